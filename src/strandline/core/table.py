"""Tables as the core sees them: what a source found, and what the user wants done with it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum

from strandline.core.watermark import Cursor

SYNC, EXTRACT, LOAD = "sync", "extract", "load"
"""The stages there are: one hop, or into the stage and on to the target (`load:NAME` where targets have names)."""


class Mode(StrEnum):
    MERGE = "merge"
    APPEND = "append"
    SNAPSHOT = "snapshot"


@dataclass(frozen=True)
class Column:
    name: str
    type: str  # the source's own words, e.g. "numeric(38,10)"
    nullable: bool = True
    cast: str = ""  # the type the config asks the database to cast it to; `type` is then that type
    comment: str = ""


@dataclass(frozen=True)
class TableInfo:
    """What a source found out about one table, view or query."""

    name: str  # "schema.table" as the source spells it
    columns: tuple[Column, ...]
    key: tuple[str, ...] = ()  # the primary key, or a unique key over NOT NULL columns
    unique: tuple[tuple[str, ...], ...] = ()  # every column set that the database keeps unique and not null
    indexed: tuple[str, ...] | None = ()  # columns that lead an index; None: a database that has none, and needs none
    estimated_rows: int | None = None
    kind: str = "table"  # "table", "view", "materialized view", "foreign table" or "query"
    comment: str = ""

    def column(self, name: str) -> Column | None:
        return next((column for column in self.columns if column.name == name), None)

    def lacks_index(self, column: str) -> bool:
        """Whether finding values of a column takes reading the whole table."""
        return self.indexed is not None and column not in self.indexed


@dataclass(frozen=True)
class MaxStall:
    after: timedelta
    then: str  # "fail" or "skip"


@dataclass(frozen=True)
class Table:
    """One source table and its copy: everything a source needs to read it and a sink to apply it."""

    pipeline: str
    name: str  # as the config, the state and the user call it
    source: str  # the source's own name for it ("schema.table"); for `query:` the same as name
    target: str
    stage: str
    mode: Mode
    cursor: Cursor | None  # None: snapshot mode, or a source that keeps versions
    key: tuple[str, ...] = ()
    key_enforced: bool = False  # the source's database keeps the key unique and not null
    columns: tuple[Column, ...] = ()  # what is read, in order, before `transform`
    family: str = ""  # whose words the types of `columns` are: a database's name for itself
    comment: str = ""
    identity: str = ""  # which table this is, whatever its name, where the source can tell
    select: tuple[str, ...] = ()  # the column list the user gave; empty: all
    query: str | None = None
    where: str | None = None
    transform: str | None = None
    deleted: str | None = None  # soft-delete column: true or not null means deleted
    initial: str | None = None
    lookback: timedelta | int | None = None
    nulls: str = "refuse"
    slice_rows: int = 5_000_000
    load_rows: int | None = None  # the same of a first load whose rows pass through and are not kept; None: no other
    schema: str = "evolve"
    shared: bool = False
    max_stall: MaxStall | None = None
    options: dict[str, str] = field(default_factory=dict, hash=False)

    @property
    def where_text(self) -> str:
        """`pipeline.table`, as errors and logs name it."""
        return f"{self.pipeline}.{self.name}"

    def measures(self) -> dict[str, str]:
        """What a position over this table measures, apart from the endpoints; any change stops the table."""
        cursor = self.cursor
        return {
            "cursor": "" if cursor is None else cursor.column,
            "kind": "" if cursor is None else cursor.kind.value,
            "zone": (cursor.zone if cursor else None) or "",
            "key": ",".join(self.key),
            "mode": self.mode.value,
            "columns": ",".join(self.select),
            "query": self.query or "",
            "where": self.where or "",
            "transform": self.transform or "",
            "deleted": self.deleted or "",
            **({"table": self.identity} if self.identity else {}),
        }

    def schema_text(self) -> str:
        return json.dumps([[column.name, column.type] for column in self.columns])

    def columns_changed(self, before: str) -> str:
        """How the columns differ from those that `schema_text` wrote then, in words; empty: not at all, or unknown."""
        if not before or before == self.schema_text():
            return ""
        was, now = dict(json.loads(before)), {column.name: column.type for column in self.columns}
        words = [f"new column {name} ({kind})" for name, kind in now.items() if name not in was]
        words += [f"column {name} is gone" for name in was if name not in now]
        words += [
            f"column {name} was {was[name]}, is {kind}" for name, kind in now.items() if was.get(name, kind) != kind
        ]
        return "; ".join(words) or "columns are in another order"

    def schema_fingerprint(self) -> str:
        return hashlib.sha256(self.schema_text().encode()).hexdigest()[:16]

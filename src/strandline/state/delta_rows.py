"""The one table of a state in Delta: its columns, records as rows and back, and the SQL that finds the latest row.

Rows are only ever added, so one commit carries a whole put, positions with their history: Delta knows no transaction
over two tables. `part` keeps both apart (`watermarks`, `history`), the files lie by part and pipeline. Of a record the
row with the highest `seq` counts; `deleted` says that it is gone. `mark` names the write, so that one whose answer got
lost is found again. Knows neither delta-rs nor Spark.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from strandline.core.errors import StateError
from strandline.core.protocols import Record, Value
from strandline.core.records import KINDS
from strandline.state import schema

Row = dict[str, Value | bool]
Quote = Callable[[Value], str]
"""A value as the SQL of one engine has it."""

WATERMARKS, HISTORY = "watermarks", "history"
PARTITIONS = ("part", "pipeline")
STATISTICS = ("key", "seq", "run_id", "change_id")
"""Columns that Delta keeps the bounds of, to leave files out: the others would only make the log longer."""


def _columns() -> dict[str, str]:
    columns = {"part": "string", "record": "string", "key": "string"}
    for kind, spec in KINDS.items():
        types = dict.fromkeys((*spec.key, *spec.text), "string") | dict.fromkeys(spec.integers, "long")
        for name, type_ in types.items():
            if columns.setdefault(name, type_) != type_:
                raise AssertionError(f"{kind}.{name} is {type_} here and {columns[name]} elsewhere")
    return columns | {"revision": "long", "deleted": "boolean", "seq": "long", "mark": "string"}


COLUMNS = _columns()
"""Every column with its type, in Delta's words."""


def part_of(kind: str) -> str:
    return HISTORY if schema.spec_of(kind).history else WATERMARKS


def fitting(records: Sequence[Record]) -> list[Record]:
    """The records as every store takes them; one whose pipeline is "" is refused: in a partition that is NULL."""
    checked = schema.checked_all(records)
    for record in checked:
        if row_of(record)["pipeline"] == "":
            raise StateError(f"{schema.label(record)}: a state in Delta cannot hold a pipeline without a name")
    return checked


def key_text(record: Record) -> str:
    return json.dumps(record.key, ensure_ascii=False)


def row_of(record: Record, *, deleted: bool = False) -> Row:
    """All columns but `seq` and `mark`, which are settled by the commit."""
    spec = schema.spec_of(record.kind)
    row: Row = dict.fromkeys(COLUMNS)
    row |= dict(zip(spec.key, record.key, strict=True)) | ({} if deleted else dict(record.fields))
    named: Row = {"part": part_of(record.kind), "record": record.kind, "key": key_text(record)}
    return row | named | {"revision": record.revision, "deleted": deleted}


def record_of(row: Mapping[str, object]) -> Record:
    kind = _text(row, "record")
    spec = schema.spec_of(kind)
    fields: dict[str, Value] = {name: _value(row, name) for name in schema.fields_of(spec)}
    return Record(kind, tuple(_text(row, name) for name in spec.key), fields, _whole(row, "revision"))


def raised(record: Record) -> Record:
    return replace(record, revision=record.revision + 1, damage="")


def current_sql(table: str, part: str, also: Sequence[str] = ()) -> str:
    """The latest row of every record, with those that say that it is gone."""
    where = " AND ".join([f"part = '{part}'", *also])
    numbered = f"SELECT *, ROW_NUMBER() OVER (PARTITION BY record, `key` ORDER BY seq DESC) AS place FROM {table}"
    return f"SELECT {names(COLUMNS)} FROM ({numbered} WHERE {where}) AS numbered WHERE place = 1"


def history_sql(
    table: str,
    kind: str,
    prefix: Sequence[str],
    where: Mapping[str, Value],
    since: str | None,
    newest: int | None,
    quote: Quote,
) -> str:
    """The records of one kind of history, as `State.read` asks for them."""
    spec = schema.spec_of(kind)
    also = [f"record = '{kind}'"]
    also += [f"`{name}` = {quote(value)}" for name, value in zip(spec.key, prefix, strict=False)]
    if since is not None:
        also.append(f"`{spec.key[len(prefix)]}` >= {quote(since)}")
    tests = ["NOT deleted"]
    for name, value in where.items():
        tests.append(f"`{name}` IS NULL" if value is None else f"`{name}` = {quote(value)}")
    order = ", ".join(f"`{name}`" + ("" if newest is None else " DESC") for name in spec.key)
    limit = "" if newest is None else f" LIMIT {newest}"
    current = current_sql(table, HISTORY, also)
    return f"SELECT * FROM ({current}) AS current WHERE {' AND '.join(tests)} ORDER BY {order}{limit}"


def revisions_sql(table: str, records: Sequence[Record], quote: Quote) -> str:
    """The stored rows of these records of history."""
    kinds = ", ".join(f"'{kind}'" for kind in sorted({record.kind for record in records}))
    keys = ", ".join(sorted({quote(key_text(record)) for record in records}))
    return current_sql(table, HISTORY, [f"record IN ({kinds})", f"`key` IN ({keys})"])


def old_sql(kind: str, before: str, quote: Quote) -> str:
    """A condition: the rows of a kind of history that lie before a key."""
    return f"part = '{HISTORY}' AND record = '{kind}' AND `{schema.spec_of(kind).key[0]}` < {quote(before)}"


def names(columns: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in columns)


def _text(row: Mapping[str, object], name: str) -> str:
    value = row[name]
    if not isinstance(value, str):
        raise StateError(f"a row of the state has no {name}: somebody edited it", remedy=_RESTORE)
    return value


def _whole(row: Mapping[str, object], name: str) -> int:
    value = row[name]
    if not isinstance(value, int):
        raise StateError(f"a row of the state has no {name}: somebody edited it", remedy=_RESTORE)
    return value


def _value(row: Mapping[str, object], name: str) -> Value:
    value = row[name]
    return value if isinstance(value, str | int) else None


_RESTORE = "RESTORE the table to a version before that, or write the row as it was."

"""Looking at a database for `doctor` and `init`: what stamps a column, how old its newest row is, whose clock is right.

Owns what the dialects share; the catalog questions are in `inspect_postgres` and its like. Reads only, over the
planning connection, and nothing that would read a large table: counts stop at `COUNTED`.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from strandline.core.table import Table, TableInfo
from strandline.core.watermark import Cursor, Kind, Watermark
from strandline.sources.database import DatabaseSource
from strandline.sources.dialect import column_of
from strandline.sources.zones import zone_info

SCANNED = 1_000_000
"""Rows up to which a column without an index is looked through all the same."""
COUNTED = 10_000
"""Where counting stops: that many, or more."""
_CLOCKS = re.compile(r"now|(clock|transaction|statement|current|local)_?timestamp|current_(date|time)|sysdate", re.I)


@dataclass(frozen=True)
class Stamp:
    """What gives a column its value. `updated` is what moves it with every UPDATE, as far as the catalog can tell."""

    inserted: str = ""  # "default now()", "trigger touch"
    updated: str = ""  # "trigger touch", "ON UPDATE current_timestamp()"
    sometimes: str = ""  # "trigger touch, only for updates of status": it moves the column, but not with every UPDATE

    @property
    def clocked(self) -> bool:
        """Whether the database itself stamps new rows."""
        return self.inserted.startswith("trigger") or bool(_CLOCKS.search(self.inserted))


@dataclass(frozen=True)
class Numbers:
    """The sequence (or AUTO_INCREMENT) behind a column of whole numbers."""

    name: str
    last: int | None  # the last number given out; None: none yet, or it cannot be read
    most: int  # the last it can give, or the column can hold
    step: int = 1
    cache: int = 1
    cycles: bool = False


@dataclass(frozen=True)
class Hidden:
    """A reason why rows or changes of a table escape a reader, whatever the barrier sees."""

    text: str
    remedy: str
    kind: str  # "rows": some cannot be read; "changes": some do not move the cursor; "stamps": some come late


class Catalog(Protocol):
    """What one database's catalog is asked."""

    key_remedy: str
    """What to do about a key that no constraint keeps unique."""

    def product(self) -> str:
        """Product and version."""

    def clock(self) -> str:
        """The database's clock, in UTC, on a standby too."""

    def stamp(self, info: TableInfo, column: str) -> Stamp: ...

    def stamp_remedy(self, info: TableInfo, column: str) -> str:
        """The SQL that would make every update move the column."""

    def default_remedy(self, info: TableInfo, column: str) -> str:
        """The SQL that would make the database stamp new rows."""

    def numbers(self, info: TableInfo, column: str) -> Numbers | None:
        """What gives out the column's numbers; None: nothing the database knows of."""

    def hidden(self, info: TableInfo) -> list[Hidden]:
        """What keeps rows or changes of the table from this user's sight."""

    def unsteady(self, functions: Collection[str]) -> set[str]:
        """Those functions (lower case) whose result may differ from run to run although the row has not changed."""

    def sight(self) -> str:
        """What this user cannot see of whoever holds the barrier; empty: nothing."""

    def select_remedy(self, info: TableInfo) -> str:
        """The GRANT that lets this user read the table."""


def catalog_of(source: DatabaseSource) -> Catalog:
    if source.dialect.name == "PostgreSQL":
        from strandline.sources.inspect_postgres import PostgresCatalog

        return PostgresCatalog(source.session, source.dialect)
    if source.dialect.name == "Snowflake":
        from strandline.sources.inspect_snowflake import SnowflakeInspection

        return SnowflakeInspection(source.session, source.dialect)
    from strandline.sources.inspect_mysql import MysqlCatalog

    return MysqlCatalog(source.session, source.dialect)


@dataclass(frozen=True)
class Skew:
    """Another clock less ours; true to `within` seconds, the time the question took."""

    seconds: float
    within: float

    @classmethod
    def read(cls, before: datetime, theirs: datetime, after: datetime) -> Skew:
        half = (after - before) / 2
        return cls((theirs - before - half).total_seconds(), half.total_seconds())

    def against(self, other: Skew) -> Skew:
        """This clock less the other."""
        return Skew(self.seconds - other.seconds, self.within + other.within)


def skew(source: DatabaseSource) -> Skew:
    catalog = catalog_of(source)
    catalog.clock()  # the connection is there before the clocks are compared
    before = datetime.now(UTC)
    return Skew.read(before, _utc(catalog.clock()), datetime.now(UTC))


def newest(source: DatabaseSource, table: Table) -> Watermark | None:
    """The highest cursor value; None where there is no row with one, or it is no time at all (`infinity`)."""
    cursor = _cursor(table)
    text = newest_text(source, table)
    return Watermark(cursor.kind, text) if text is not None and on_calendar(cursor.kind, text) else None


def newest_text(source: DatabaseSource, table: Table) -> str | None:
    """The highest cursor value as the database writes it: perhaps `infinity`, or a year no calendar of ours knows."""
    return _edge(source, table, "max")


def oldest_text(source: DatabaseSource, table: Table) -> str | None:
    """The lowest cursor value as the database writes it: perhaps `-infinity`, or MySQL's `0000-00-00`."""
    return _edge(source, table, "min")


def _edge(source: DatabaseSource, table: Table, which: str) -> str | None:
    cursor = _cursor(table)
    shown = source.dialect.text(cursor, f"{which}({column_of(source.dialect, cursor.column)})")
    text = source.session.rows(f"SELECT {shown} FROM {source.dialect.relation(table)}")[0][0]
    return None if text is None else str(text)


def on_calendar(kind: Kind, text: str) -> bool:
    return kind is Kind.INTEGER or re.match(r"(?!0000)\d{4}-\d\d-\d\d(?!.*BC)", text) is not None


def here(kind: Kind, zone: str | None, now: str) -> Watermark:
    """The database's clock (UTC) as a cursor of this kind and zone writes it."""
    at = _utc(now).astimezone(zone_info(zone or "UTC"))
    return Watermark(kind, f"{at:%Y-%m-%d}" if kind is Kind.DATE else f"{at:%Y-%m-%d %H:%M:%S.%f}")


def rows_after(source: DatabaseSource, table: Table, value: Watermark) -> int:
    """Rows of the table's filter with a later cursor, counted up to `COUNTED`."""
    cursor = _cursor(table)
    later = f"{column_of(source.dialect, cursor.column)} > {source.dialect.literal(cursor, value)}"
    return _count(source, table, later)


def rows_without(source: DatabaseSource, table: Table, column: str) -> int:
    """Rows of the table's filter whose column is NULL, counted up to `COUNTED`."""
    return _count(source, table, f"{column_of(source.dialect, column)} IS NULL")


def readable(source: DatabaseSource, table: Table) -> None:
    """SourceError if this user may not read a column of the table. No row is read."""
    columns = ", ".join(column_of(source.dialect, column.name) for column in table.columns)
    source.session.rows(f"SELECT {columns} FROM {source.dialect.relation(table)} WHERE 1 = 0")


def quick(info: TableInfo, column: str) -> bool:
    """Whether questions about the column's values can be asked without reading a large table."""
    return not info.lacks_index(column) or (info.estimated_rows is not None and info.estimated_rows <= SCANNED)


CONSTRAINT = "If it is unique, let the database keep it so by a UNIQUE constraint."


def assigns(body: str, column: str, *, exact: bool) -> bool:
    """Whether a trigger's text sets the column of the new row. `exact`: names are as written unless they are plain."""
    code = re.sub(r"--[^\n]*|/\*.*?\*/", " ", body, flags=re.DOTALL)
    flags = 0 if exact and not re.fullmatch(r"[a-z_][a-z0-9_$]*", column) else re.IGNORECASE
    name = re.escape(column)
    column_of_new = rf"NEW\s*\.\s*[\"`]?{name}[\"`]?"
    forms = (
        rf"\b{column_of_new}\s*:=",
        rf"(?:^|[;,]|\b(?:BEGIN|THEN|ELSE|LOOP|SET))\s*{column_of_new}\s*=[^=]",  # elsewhere `=` compares
        rf"\bINTO\s+(?:STRICT\s+)?{column_of_new}",
        rf"'{name}'",  # by name: jsonb_set, hstore, moddatetime
    )
    return any(re.search(form, code, flags) for form in forms)


def _cursor(table: Table) -> Cursor:
    if table.cursor is None:
        raise ValueError(f"{table.name} has no cursor")
    return table.cursor


def _count(source: DatabaseSource, table: Table, condition: str) -> int:
    where = f" AND ({table.where}\n)" if table.where else ""
    some = f"SELECT 1 FROM {source.dialect.relation(table)} WHERE {condition}{where} LIMIT {COUNTED}"
    return int(source.session.rows(f"SELECT count(*) FROM ({some}) q")[0][0])


def _utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)

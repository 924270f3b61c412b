"""Looking at a database for `doctor` and `init`: what stamps a column, how old its newest row is, whose clock is right.

Owns what both dialects share; the catalog questions are in `inspect_postgres` and `inspect_mysql`. Reads only, over
the planning connection.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from strandline.core.errors import SourceError
from strandline.core.table import Table, TableInfo
from strandline.core.watermark import Kind, Watermark
from strandline.sources.database import DatabaseSource, Session
from strandline.sources.dialect import column_of
from strandline.sources.zones import zone_info

SCANNED = 1_000_000
"""Rows up to which a column without an index is looked through all the same."""


@dataclass(frozen=True)
class Stamp:
    """What gives a column its value. `updated` is what moves it with every UPDATE, as far as the catalog can tell."""

    inserted: str = ""  # "default now()"
    updated: str = ""  # "trigger touch", "ON UPDATE current_timestamp()"


class Catalog(Protocol):
    """What one database's catalog is asked."""

    def product(self) -> str:
        """Product and version."""

    def stamp(self, info: TableInfo, column: str) -> Stamp: ...

    def stamp_remedy(self, info: TableInfo, column: str) -> str:
        """The SQL that would make every update move the column."""


def catalog_of(source: DatabaseSource) -> Catalog:
    if source.dialect.name == "PostgreSQL":
        from strandline.sources.inspect_postgres import PostgresCatalog

        return PostgresCatalog(source.session, source.dialect)
    from strandline.sources.inspect_mysql import MysqlCatalog

    return MysqlCatalog(source.session, source.dialect)


@dataclass(frozen=True)
class Skew:
    """The database's clock less ours; true to `within` seconds, the time the question took."""

    seconds: float
    within: float


def skew(source: DatabaseSource) -> Skew:
    before = datetime.now(UTC)
    theirs = datetime.fromisoformat(source.clock()).replace(tzinfo=UTC)
    after = datetime.now(UTC)
    half = (after - before) / 2
    return Skew((theirs - before - half).total_seconds(), half.total_seconds())


def newest(source: DatabaseSource, table: Table) -> Watermark | None:
    """The highest cursor value; None where there is no row with one."""
    cursor = table.cursor
    if cursor is None:
        raise ValueError(f"{table.name} has no cursor")
    highest = source.dialect.text(cursor, f"max({column_of(source.dialect, cursor.column)})")
    text = source.session.rows(f"SELECT {highest} FROM {source.dialect.relation(table)}")[0][0]
    return None if text is None else Watermark(cursor.kind, str(text))


def here(kind: Kind, zone: str | None, now: str) -> Watermark:
    """The database's clock (UTC) as a cursor of this kind and zone writes it."""
    at = datetime.fromisoformat(now).replace(tzinfo=UTC).astimezone(zone_info(zone or "UTC"))
    return Watermark(kind, f"{at:%Y-%m-%d}" if kind is Kind.DATE else f"{at:%Y-%m-%d %H:%M:%S.%f}")


def rows_after(source: DatabaseSource, table: Table, value: Watermark) -> int:
    cursor = table.cursor
    if cursor is None:
        raise ValueError(f"{table.name} has no cursor")
    later = f"{column_of(source.dialect, cursor.column)} > {source.dialect.literal(cursor, value)}"
    return _count(source.session, f"{source.dialect.relation(table)} WHERE {later}")


def rows_without(source: DatabaseSource, table: Table, column: str) -> int:
    """Rows whose column is NULL."""
    where = f"{column_of(source.dialect, column)} IS NULL"
    return _count(source.session, f"{source.dialect.relation(table)} WHERE {where}")


def quick(info: TableInfo, column: str) -> bool:
    """Whether questions about the column's values can be asked without reading a large table."""
    return column in info.indexed or (info.estimated_rows is not None and info.estimated_rows <= SCANNED)


def _count(session: Session, what: str) -> int:
    found = session.rows(f"SELECT count(*) FROM {what}")
    if not found:
        raise SourceError("a count gave no row")
    return int(found[0][0])

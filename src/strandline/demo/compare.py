"""Source against target, row by row through checksums: PostgreSQL adds up its own rows, delta-rs and Python the copy's.

Both sides write a row as the same text, take its MD5, and add the digests, so that neither order nor tooling counts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strandline.core.watermark import Watermark

if TYPE_CHECKING:
    import psycopg

_DIGITS = 15  # of each digest: what fits a bigint


@dataclass(frozen=True)
class Sum:
    rows: int
    digest: int

    def __str__(self) -> str:
        return f"{self.digest:016x}"[-8:]


@dataclass(frozen=True)
class Compared:
    """One table below its watermark. `later`: rows the source has changed at or after it; the next run brings them."""

    table: str
    watermark: Watermark
    source: Sum
    target: Sum
    later: int

    @property
    def agree(self) -> bool:
        return self.source == self.target


def compare(
    connection: psycopg.Connection[tuple[Any, ...]], lake: Path, table: str, key: Sequence[str], watermark: Watermark
) -> Compared:
    """Rows that changed since stand above the watermark in the source; their old versions in the copy are left out."""
    at = f"'{watermark.text}+00'::timestamptz"
    with connection.transaction():
        connection.execute(b"SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        columns = _columns(connection, table)
        text = " || '|' || ".join(f"coalesce({_text(name, kind)}, '~')" for name, kind in columns)
        digest = f"('x' || left(md5({text}), {_DIGITS}))::bit({4 * _DIGITS})::bigint"
        below = f"SELECT count(*), coalesce(sum({digest}), 0) FROM {table} WHERE updated_at < {at}"
        rows, total = connection.execute(below.encode()).fetchall()[0]
        above = f"SELECT {', '.join(key)} FROM {table} WHERE updated_at >= {at}"
        later = {tuple(row) for row in connection.execute(above.encode()).fetchall()}
    names = [name for name, _ in columns]
    copied = [row for row in _copied(lake / table, names) if tuple(row[name] for name in key) not in later]
    return Compared(table, watermark, Sum(int(rows), int(total)), _sum(copied, names), len(later))


def _columns(connection: psycopg.Connection[tuple[Any, ...]], table: str) -> list[tuple[str, str]]:
    asked = "SELECT column_name, data_type FROM information_schema.columns WHERE table_name = %s ORDER BY column_name"
    return [(str(name), str(kind)) for name, kind in connection.execute(asked, (table,)).fetchall()]


def _text(name: str, kind: str) -> str:
    if kind == "timestamp with time zone":
        return f"to_char({name} AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US')"
    return f"{name}::text"


def _copied(folder: Path, names: Sequence[str]) -> list[dict[str, Any]]:
    from deltalake import DeltaTable, QueryBuilder

    asked = QueryBuilder().register("copy", DeltaTable(folder)).execute(f"SELECT {', '.join(names)} FROM copy")
    columns = [column.to_pylist() for column in asked.read_all().columns]
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def _sum(rows: Iterable[dict[str, Any]], names: Sequence[str]) -> Sum:
    count = total = 0
    for row in rows:
        text = "|".join(_written(row[name]) for name in names)
        count += 1
        total += int(hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()[:_DIGITS], 16)
    return Sum(count, total)


def _written(value: Any) -> str:
    if value is None:
        return "~"
    if isinstance(value, datetime):
        return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}"
    return str(value)

"""A target's side of a comparison inside a database: one state of its rows, summed and listed by that database."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

from strandline.core.compare import Comparison, Key
from strandline.core.watermark import Watermark
from strandline.core.window import Part
from strandline.sinks.sql_dialect import Database, Held
from strandline.sources.dialect import column_of
from strandline.sources.side import DatabaseSide


class SqlSide(DatabaseSide):
    """One state of the table, whatever is committed meanwhile."""

    def __init__(self, database: Database, held: Held, comparison: Comparison) -> None:
        dialect = database.dialect
        asked = comparison.table
        cursor = comparison.cursor
        column = held.column(cursor.column, dialect.fold) if cursor else None
        table = replace(
            asked,
            source=str(held.place),
            query=None,
            where=None,
            deleted=None,
            cursor=None if column is None else dialect.cursor(column),
            columns=held.spelled([name for name, _ in (*comparison.key, *comparison.columns)], dialect.fold),
        )
        self._open = ExitStack()
        session = self._open.enter_context(database.snapshot())
        super().__init__(session, dialect, replace(comparison, table=table), lambda _: None)
        self._left_out: Sequence[Key] = ()
        if comparison.versions and comparison.key and table.cursor:
            self._relation = self._last_versions()

    def oldest(self) -> Watermark | None:
        cursor = self._comparison.table.cursor
        if cursor is None:
            return None
        lowest = self._dialect.text(cursor, f"min({column_of(self._dialect, cursor.column)})")
        ((found,),) = self._session.rows(f"SELECT {lowest} FROM {self._relation} WHERE {self._where()}")
        return None if found is None else Watermark(cursor.kind, str(found))

    def leave_out(self, keys: Sequence[Key]) -> None:
        self._left_out = keys

    def close(self) -> None:
        self._open.close()

    def _where(self, parts: Sequence[Part] = ()) -> str:
        """Of rows at or above the watermark only versions are left out: others stand for what the source has moved."""
        return " AND ".join([*self._within(), *self._in(parts), *self._without()]) or "1 = 1"

    def _within(self) -> list[str]:
        comparison, cursor = self._comparison, self._comparison.table.cursor
        if cursor is None or comparison.high is None:
            return []
        column = column_of(self._dialect, cursor.column)
        bounds = [] if comparison.low is None else [f"{column} >= {self._dialect.literal(cursor, comparison.low)}"]
        if comparison.versions:
            bounds.append(f"{column} < {self._dialect.literal(cursor, comparison.high)}")
        return bounds

    def _without(self) -> list[str]:
        if not self._left_out:
            return []
        listed = ", ".join(
            f"({', '.join('NULL' if part is None else self._dialect.string(part) for part in key)})"
            for key in self._left_out
        )
        return [f"({', '.join(self._key_texts())}) NOT IN ({listed})"]

    def _last_versions(self) -> str:
        cursor = self._comparison.table.cursor
        assert cursor is not None
        keys = ", ".join(column_of(self._dialect, name) for name, _ in self._comparison.key)
        rank = f"rank() OVER (PARTITION BY {keys} ORDER BY {column_of(self._dialect, cursor.column)} DESC)"
        where = " AND ".join(self._within()) or "1 = 1"
        inside = f"SELECT t.*, {rank} AS strandline_rank FROM {self._relation} WHERE {where}"
        return f"(SELECT * FROM ({inside}) r WHERE strandline_rank = 1) t"

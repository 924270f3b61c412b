"""A database's side of a comparison: checksums and rows computed inside it, asked for over the planning session."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from strandline.core.compare import Comparison, Cut, Form, Key, Line, Reach, Sum
from strandline.core.table import Mode
from strandline.core.window import Part
from strandline.sources.dialect import Dialect, column_of, in_part, marked, within
from strandline.verify.canonical import NOTHING, row_number


class Session(Protocol):
    def rows(self, sql: str) -> list[tuple[Any, ...]]: ...


class DatabaseSide:
    """Rows below the watermark that are alive, as the source has them now."""

    def __init__(
        self, session: Session, dialect: Dialect, comparison: Comparison, estimate: Callable[[str], int | None]
    ) -> None:
        self._session = session
        self._dialect = dialect
        self._comparison = comparison
        self._estimate = estimate
        self._columns = {column.name: column for column in comparison.table.columns}
        self._relation = dialect.relation(comparison.table)

    def reach(self) -> Reach:
        rows = self._estimate(self._where())
        if not self._comparison.ranged:
            return Reach(None, None, rows)
        column = column_of(self._dialect, self._comparison.key[0][0])
        ((low, high),) = self._session.rows(f"SELECT min({column}), max({column}) FROM {self._relation}")
        return Reach(None, None, rows) if low is None else Reach(int(low), int(high), rows)

    def sums(self, cut: Cut) -> dict[int, Sum]:
        where = self._where([cut.within] if cut.within else [])
        if cut.whole:
            ((count, total),) = self._session.rows(
                f"SELECT count(*), sum({self._row_number()}) FROM {self._relation} WHERE {where}"
            )
            return {0: Sum(int(count), int(total or 0))}
        inside = f"SELECT {self._bucket(cut)} AS b, {self._row_number()} AS h FROM {self._relation} WHERE {where}"
        found = self._session.rows(f"SELECT b, count(*), sum(h) FROM ({inside}{self._dialect.no_rows}) q GROUP BY b")
        return {int(bucket): Sum(int(rows), int(total)) for bucket, rows, total in found}

    def rows(self, parts: Sequence[Part]) -> list[Line]:
        select = ", ".join([*self._key_texts(), self._row_hash()])
        found = self._session.rows(f"SELECT {select} FROM {self._relation} WHERE {self._where(parts)}")
        return [(tuple(key), hashed) for *key, hashed in found]

    def moved(self, parts: Sequence[Part], most: int) -> list[Key]:
        comparison, cursor = self._comparison, self._comparison.table.cursor
        if comparison.high is None or cursor is None or not comparison.key:
            return []
        column = column_of(self._dialect, cursor.column)
        above = f"{column} >= {self._dialect.literal(cursor, comparison.high)}"
        conditions = [f"({above} OR {column} IS NULL)" if cursor.nullable else above, *self._in(parts)]
        if comparison.table.where:
            conditions.append(f"({comparison.table.where}\n)")
        select = f"SELECT {', '.join(self._key_texts())} FROM {self._relation} WHERE {' AND '.join(conditions)}"
        return [tuple(key) for key in self._session.rows(f"{select} LIMIT {most}")]

    def _where(self, parts: Sequence[Part] = ()) -> str:
        comparison, table = self._comparison, self._comparison.table
        if comparison.high is None:
            conditions = [f"({table.where}\n)"] if table.where else []
        else:
            conditions = within(self._dialect, table, comparison.low, comparison.high)
        if table.deleted and table.mode is not Mode.APPEND:
            conditions.append(f"CASE WHEN {self._dialect.deleted(self._columns[table.deleted])} THEN 0 ELSE 1 END = 1")
        return " AND ".join([*conditions, *self._in(parts)]) or "1 = 1"

    def _in(self, parts: Sequence[Part]) -> list[str]:
        inside = [f"({in_part(self._dialect, self._comparison.table, part)})" for part in parts]
        return [f"({' OR '.join(inside)})"] if inside else []

    def _key_texts(self) -> list[str]:
        return [self._dialect.canonical(self._columns[name], form) for name, form in self._comparison.key]

    def _marked(self, pairs: Sequence[tuple[str, Form]]) -> list[str]:
        return [marked(self._dialect, self._columns[name], form) for name, form in pairs]

    def _row_hash(self) -> str:
        return self._dialect.hashed(self._marked([*self._comparison.key, *self._comparison.columns]))

    def _row_number(self) -> str:
        comparison, dialect = self._comparison, self._dialect
        numbers = [self._number(name, form) for name, form in comparison.numbers]
        hashes = [dialect.number(self._marked(texts), comparison.hash) for texts in comparison.texts]
        return row_number(numbers, hashes, self._number(*comparison.key[0]) if comparison.numbered else None)

    def _number(self, name: str, form: Form) -> str:
        counted = self._dialect.counted(self._columns[name], form, self._comparison.hash)
        return f"COALESCE({counted}, {NOTHING})" if self._columns[name].nullable else counted

    def _bucket(self, cut: Cut) -> str:
        if not cut.column:
            texts = self._marked(self._comparison.key or self._comparison.columns)
            return f"{self._dialect.number(texts, self._comparison.hash)} % {cut.count}"
        value = column_of(self._dialect, cut.column)
        inside = self._dialect.bucket(self._columns[cut.column], cut.low, cut.width)
        return f"CASE WHEN {value} < {cut.low} THEN -1 WHEN {value} >= {cut.high} THEN {cut.count} ELSE {inside} END"

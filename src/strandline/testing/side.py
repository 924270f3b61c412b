"""Verify and repair in memory: the sums, parts and rows of `Side`, and a part made equal, over plain rows."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from strandline.core.batch import Applied
from strandline.core.compare import Comparison, Cut, Key, Line, Reach, Sum
from strandline.core.errors import TargetError
from strandline.core.table import Mode, Table
from strandline.core.watermark import Watermark
from strandline.core.window import KeyRange, Part, Repair, Window
from strandline.testing.database import Row, watermark

Rows = Callable[[], list[Row]]
OPERATION = "_operation"


def hash_number(values: Sequence[Any]) -> int:
    joined = "|".join("~" if value is None else f"{value}" for value in values)
    return int(hashlib.md5(joined.encode()).hexdigest()[:15], 16)


def in_part(table: Table, part: Part, row: Row) -> bool:
    if isinstance(part, KeyRange):
        value = row[part.column]
        return (part.low is None or part.low <= value) and (part.high is None or value < part.high)
    return hash_number([row[name] for name in table.key]) & (part.modulo - 1) in part.remainders


def cursor_of(table: Table, row: Row) -> Watermark | None:
    if table.cursor is None or row.get(table.cursor.column) is None:
        return None
    return watermark(table.cursor, row[table.cursor.column])


class MemorySide:
    def __init__(self, comparison: Comparison, rows: Rows) -> None:
        self.comparison = comparison
        self._all = rows
        self._left_out: frozenset[Key] = frozenset()

    def sums(self, cut: Cut) -> dict[int, Sum]:
        found: dict[int, list[int]] = defaultdict(list)
        for row in self._inside([cut.within] if cut.within else []):
            found[self._bucket(cut, row)].append(self._number(row))
        return {bucket: Sum(len(numbers), sum(numbers)) for bucket, numbers in found.items()}

    def rows(self, parts: Sequence[Part]) -> list[Line]:
        return [(self._key(row), f"{self._number(row)}") for row in self._inside(parts)]

    def leave_out(self, keys: Sequence[Key]) -> None:
        self._left_out = frozenset(keys)

    def close(self) -> None:
        """Nothing is held."""

    def _inside(self, parts: Sequence[Part]) -> list[Row]:
        table = self.comparison.table
        rows = [row for row in self._compared() if not parts or any(in_part(table, part, row) for part in parts)]
        return [row for row in rows if self._key(row) not in self._left_out]

    def _compared(self) -> list[Row]:
        return self._all()

    def _key(self, row: Row) -> Key:
        return tuple(str(row[name]) for name, _ in self.comparison.key)

    def _number(self, row: Row) -> int:
        names = [name for name, _ in (*self.comparison.key, *self.comparison.columns)]
        return hash_number([row.get(name) for name in names])

    def _bucket(self, cut: Cut, row: Row) -> int:
        if not cut.column:
            key = [row[name] for name, _ in self.comparison.key]
            return (hash_number(key) if key else self._number(row)) & (cut.count - 1)
        bucket: int = (row[cut.column] - cut.low) // cut.width
        return max(-1, min(cut.count, bucket))


class MemorySourceSide(MemorySide):
    def reach(self) -> Reach:
        rows = self._all()
        keys = [row[self.comparison.key[0][0]] for row in rows] if self.comparison.ranged else []
        return Reach(min(keys, default=None), max(keys, default=None), len(rows))

    def moved(self, parts: Sequence[Part], most: int) -> list[Key]:
        high, table = self.comparison.high, self.comparison.table
        if high is None:
            return []
        inside = [row for row in self._all() if not parts or any(in_part(table, part, row) for part in parts)]
        above = [row for row in inside if (value := cursor_of(table, row)) is None or value >= high]
        return [self._key(row) for row in above][:most]

    def _compared(self) -> list[Row]:
        table, low, high = self.comparison.table, self.comparison.low, self.comparison.high
        rows = [row for row in self._all() if table.mode is Mode.APPEND or not (table.deleted and row[table.deleted])]
        if high is None:
            return rows
        window = Window(low, high)
        return [row for row in rows if (value := cursor_of(table, row)) is not None and window.contains(value)]


class MemoryTargetSide(MemorySide):
    def oldest(self) -> Watermark | None:
        values = [cursor_of(self.comparison.table, row) for row in self._all()]
        return min((value for value in values if value is not None), default=None)

    def _compared(self) -> list[Row]:
        comparison, table = self.comparison, self.comparison.table
        rows = self._all()
        if comparison.low is not None:
            rows = [row for row in rows if (value := cursor_of(table, row)) is not None and value >= comparison.low]
        if table.mode is not Mode.APPEND or comparison.high is None:
            return rows
        rows = [row for row in rows if (value := cursor_of(table, row)) is not None and value < comparison.high]
        versions: dict[Key, list[Watermark]] = defaultdict(list)
        for row in rows:
            versions[self._key(row)] += [value for value in [cursor_of(table, row)] if value is not None]
        return [row for row in rows if cursor_of(table, row) == max(versions[self._key(row)])]


def repaired(table: Table, held: Sequence[Row], rows: Sequence[Row], repair: Repair) -> tuple[tuple[Row, ...], Applied]:
    """The part holds the given rows, once each; others of it go only as far as the repair allows."""
    names = (*table.key, table.cursor.column) if table.mode is Mode.APPEND and table.cursor else table.key
    given = {tuple(row[name] for name in names): row for row in rows}
    living = {
        key: {name: value for name, value in row.items() if name != OPERATION}
        for key, row in given.items()
        if row.get(OPERATION) != "delete" or table.mode is Mode.APPEND
    }
    inside = [row for row in held if in_part(table, repair.part, row)]
    known = [tuple(row[name] for name in names) for row in inside]
    extra = [row for row, key in zip(inside, known, strict=True) if key not in given]
    if repair.deletes is not None and len(extra) > repair.deletes:
        raise TargetError(
            f"{len(extra)} rows would be deleted, {repair.deletes} may be", where=table.where_text, remedy="Look first."
        )
    kept = extra if repair.deletes is None or table.mode is Mode.APPEND else []
    after = [row for row in held if not in_part(table, repair.part, row)] + kept + list(living.values())
    updated = sum(row != living[key] for row, key in zip(inside, known, strict=True) if key in living)
    inserted = sum(key not in known for key in living)
    deleted = len(held) + inserted - len(after)
    return tuple(after), Applied(len(rows), inserted, updated, deleted)

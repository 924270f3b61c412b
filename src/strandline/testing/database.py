"""A small database in memory: a clock that stands still, and transactions that stamp early and commit late.

Owns committed rows and what is in flight. Knows nothing of windows, horizons or batches.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import Enum
from itertools import count
from typing import Any

from strandline.core.table import Column, TableInfo
from strandline.core.watermark import Cursor, Kind, Watermark

Row = dict[str, Any]
Key = tuple[Any, ...]


class Clock:
    """Stands still until it is told to move."""

    def __init__(self, at: datetime = datetime(2026, 11, 15, 8, tzinfo=UTC)) -> None:
        self.at = at

    def now(self) -> datetime:
        return self.at

    def advance(self, seconds: float) -> None:
        self.at += timedelta(seconds=seconds)


class SteppedClock(Clock):
    """Goes with another clock, and can be set apart from it, as a database server's can."""

    def __init__(self, other: Clock) -> None:
        super().__init__(other.now())
        self._other = other
        self._apart = timedelta()

    def now(self) -> datetime:
        return self._other.now() + self._apart

    def advance(self, seconds: float) -> None:
        self._apart += timedelta(seconds=seconds)


def watermark(cursor: Cursor, value: Any) -> Watermark:
    """A row's cursor value as the core writes it."""
    match cursor.kind:
        case Kind.TIMESTAMP:
            return Watermark(cursor.kind, f"{value:%Y-%m-%d %H:%M:%S.%f}").floor(cursor.precision)
        case Kind.DATE:
            return Watermark(cursor.kind, f"{value:%Y-%m-%d}")
        case _:
            return Watermark(cursor.kind, str(value))


class Phase(Enum):
    OPEN = "open"
    PREPARED = "prepared"
    ENDED = "ended"


@dataclass
class Transaction:
    """Stamps its rows with the moment it began, or with `at`: the moment one of its statements did."""

    database: MemoryDatabase
    number: int
    began_at: datetime
    phase: Phase = Phase.OPEN
    writes: dict[tuple[str, Key], Row | None] = field(default_factory=dict)

    def write(self, table: str, row: Row, *, at: datetime | None = None) -> Row:
        """Insert or update. The cursor is stamped here, unless the row brings its own."""
        self._expect(Phase.OPEN)
        held = self.database.held(table)
        cursor = held.cursor.column
        if cursor not in row:
            row = {**row, cursor: next(held.sequence) if held.cursor.kind is Kind.INTEGER else at or self.began_at}
        self.database.lock(self, table, held.key_of(row))
        self.writes[table, held.key_of(row)] = row
        return row

    def delete(self, table: str, *key: Any) -> None:
        self._expect(Phase.OPEN)
        self.database.lock(self, table, key)
        self.writes[table, key] = None

    def prepare(self) -> None:
        """The first half of a two-phase commit: no more writes, and still in flight."""
        self._expect(Phase.OPEN)
        self.phase = Phase.PREPARED

    def commit(self) -> None:
        self._expect(Phase.OPEN, Phase.PREPARED)
        self.database.commit(self)
        self.phase = Phase.ENDED

    def rollback(self) -> None:
        self._expect(Phase.OPEN, Phase.PREPARED)
        self.phase = Phase.ENDED

    def _expect(self, *phases: Phase) -> None:
        if self.phase not in phases:
            raise ValueError(f"transaction {self.number} is {self.phase.value}")


@dataclass
class MemoryTable:
    """One table: its definition and its committed rows."""

    info: TableInfo
    cursor: Cursor
    rows: dict[Key, Row] = field(default_factory=dict)
    sequence: count[int] = field(default_factory=lambda: count(1))
    last_id: int = 0  # the highest cursor value ever committed

    def key_of(self, row: Row) -> Key:
        return tuple(row[name] for name in self.info.key)


class MemoryDatabase:
    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._tables: dict[str, MemoryTable] = {}
        self._transactions: list[Transaction] = []
        self._lock = threading.RLock()

    def create(self, name: str, columns: Sequence[Column], cursor: Cursor, key: Sequence[str]) -> None:
        info = TableInfo(name, tuple(columns), tuple(key), unique=(tuple(key),) if key else ())
        self._tables[name] = MemoryTable(info, cursor)

    def held(self, name: str) -> MemoryTable:
        return self._tables[name]

    def begin(self) -> Transaction:
        transaction = Transaction(self, len(self._transactions) + 1, self.clock.now())
        self._transactions.append(transaction)
        return transaction

    def write(self, table: str, *rows: Row) -> None:
        """One transaction from begin to commit."""
        transaction = self.begin()
        for row in rows:
            transaction.write(table, row)
        transaction.commit()

    def lock(self, owner: Transaction, table: str, key: Key) -> None:
        """A row belongs to the transaction that wrote it until that has ended; here a second writer fails at once."""
        if any((table, key) in other.writes for other in self.in_flight() if other is not owner):
            raise ValueError(f"{table} {key} is locked")

    def commit(self, transaction: Transaction) -> None:
        with self._lock:
            for (name, key), row in transaction.writes.items():
                table = self._tables[name]
                if row is None:
                    table.rows.pop(key, None)
                    continue
                table.rows[key] = row
                if table.cursor.kind is Kind.INTEGER and row[table.cursor.column] is not None:
                    table.last_id = max(table.last_id, row[table.cursor.column])

    def in_flight(self) -> list[Transaction]:
        return [transaction for transaction in self._transactions if transaction.phase is not Phase.ENDED]

    def rows(self, name: str) -> list[Row]:
        """The committed rows, by key."""
        with self._lock:
            return [dict(row) for _, row in sorted(self._tables[name].rows.items())]

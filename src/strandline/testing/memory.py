"""A source and a sink in memory that keep the contracts for real, with every moment of their life in the test's hands.

The source reads the small database of `testing.database`, and its barrier holds the horizon for whatever is in flight.
The sink commits rows and receipt together and can be stopped on either side of that.
"""

from __future__ import annotations

import difflib
import fnmatch
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from importlib import import_module
from itertools import groupby
from typing import TYPE_CHECKING

from strandline.core.batch import Applied, Batch, How, Receipt
from strandline.core.compare import Comparison, Form, spark_form
from strandline.core.errors import BatchConflictError, SourceError, StrandlineError, TargetError
from strandline.core.position import Holder, Horizon
from strandline.core.table import Mode, Table, TableInfo
from strandline.core.watermark import Cursor, Kind, Watermark
from strandline.core.window import Repair, Slice, Window, by_cursor, by_key
from strandline.testing.database import Clock, Key, MemoryDatabase, Phase, Row, Transaction, watermark
from strandline.testing.side import OPERATION, MemorySourceSide, MemoryTargetSide, cursor_of, in_part, repaired

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from strandline.core.protocols import Changes, Files

__all__ = ["Clock", "MemoryChanges", "MemorySink", "MemorySource", "Row", "Target", "Transaction", "watermark"]

Action = Callable[[], None]


@dataclass(frozen=True)
class Candidate:
    """A moment that becomes a horizon once everything in flight at it has ended."""

    now: datetime
    last_ids: Mapping[str, int]
    noted: tuple[Transaction, ...]

    @property
    def proven(self) -> bool:
        return all(transaction.phase is Phase.ENDED for transaction in self.noted)


class MemorySource(MemoryDatabase):
    """`barrier` False: the horizon is simply now, and says so (`proven` False). `key_slices`: first loads by key."""

    def __init__(self, clock: Clock, *, name: str = "memory", barrier: bool = True, key_slices: bool = False) -> None:
        super().__init__(clock)
        self.name = name
        self.barrier = barrier
        self.key_slices = key_slices
        self.warnings: list[tuple[str, str]] = []
        self._candidates: list[Candidate] = []

    def identity(self) -> str:
        return self.name

    def tables(self, patterns: Sequence[str], queries: Mapping[str, str]) -> dict[str, TableInfo | StrandlineError]:
        found: dict[str, TableInfo | StrandlineError] = {}
        for pattern in patterns:
            names = fnmatch.filter(self._tables, pattern)
            found |= {name: self._tables[name].info for name in names}
            if not names and not set("*?[") & set(pattern):
                near = ", ".join(difflib.get_close_matches(pattern, self._tables)) or "none"
                found[pattern] = SourceError(f'no table "{pattern}"', remedy=f"Names like it: {near}")
        for name in queries:
            found[name] = SourceError("a source in memory answers no queries", remedy="Name a table.")
        return found

    def resolve(self, table: Table, info: TableInfo, zone: str | None) -> Table:
        if table.where or table.transform or table.query:
            raise SourceError("a source in memory filters and transforms nothing", where=table.where_text)
        columns = tuple(column for column in info.columns if not table.select or column.name in table.select)
        cursor = None if table.mode is Mode.SNAPSHOT else replace(self._tables[info.name].cursor, zone=zone)
        return replace(table, cursor=cursor, key=table.key or info.key, key_enforced=bool(info.key), columns=columns)

    def horizons(self, tables: Sequence[Table]) -> dict[str, Horizon | StrandlineError]:
        """A candidate is noted with each call; the newest one whose transactions have all ended is the horizon."""
        with self._lock:
            last_ids = {name: table.last_id for name, table in self._tables.items()}
            newest = Candidate(self.clock.now(), last_ids, tuple(self.in_flight()) if self.barrier else ())
            # One that a clock further ahead made says nothing of what is written now.
            self._candidates = [one for one in self._candidates if one.now <= newest.now] + [newest]
            proven = next((candidate for candidate in reversed(self._candidates) if candidate.proven), None)
            if proven is not None:
                self._candidates = self._candidates[self._candidates.index(proven) :]
        oldest = min(newest.noted, key=lambda held: held.began_at, default=None)
        held_by = Holder(str(oldest.number), seconds=(newest.now - oldest.began_at).total_seconds()) if oldest else None
        observed = newest.now.isoformat()
        return {
            table.name: Horizon(
                self._high(table, proven),
                observed,
                self.barrier,
                held_by,
                reach=self._high(table, newest),
                next_id=self._next_id(table),
            )
            for table in tables
        }

    def _next_id(self, table: Table) -> Watermark | None:
        cursor = table.cursor
        if cursor is None or cursor.kind is not Kind.INTEGER:
            return None
        return watermark(cursor, self._tables[table.source].last_id + 1)

    def _high(self, table: Table, at: Candidate | None) -> Watermark | None:
        if at is None:
            return None
        if table.cursor is None or table.cursor.kind is not Kind.INTEGER:
            return watermark(table.cursor or Cursor("", Kind.TIMESTAMP), at.now)
        last_id = at.last_ids.get(table.source, 0)
        return watermark(table.cursor, last_id + 1) if last_id else None

    def pending(self, windows: Mapping[str, tuple[Table, Window]]) -> dict[str, int | StrandlineError | None]:
        return {name: self._waiting(table, window) for name, (table, window) in windows.items()}

    def _waiting(self, table: Table, window: Window) -> int | StrandlineError:
        nulls = [row for row in self._visible(table) if table.cursor and row[table.cursor.column] is None]
        if nulls and table.nulls == "refuse":
            return SourceError(
                f"{len(nulls)} rows have no cursor", where=table.where_text, remedy="Fill them, or say nulls: include"
            )
        return len(self.read(table, Slice(window))) + len(nulls)

    def fingerprints(self, windows: Mapping[str, tuple[Table, Window]]) -> dict[str, str | StrandlineError]:
        return {
            name: str(sorted(map(repr, self.read(table, Slice(window))))) for name, (table, window) in windows.items()
        }

    def slices(self, table: Table, window: Window, rows: int | None, limit: int | None) -> tuple[Slice, ...]:
        found = self.read(table, Slice(window))
        first_key = table.key[0] if table.key else ""
        size = table.load_rows or table.slice_rows
        whole = rows is not None and rows <= size
        if self.key_slices and window.low is None and limit is None and first_key and not whole:
            keys = sorted(row[first_key] for row in found)
            return by_key(window, first_key, keys[size::size])
        cursor = table.cursor
        if cursor is None:
            return (Slice(window),)
        values = sorted(watermark(cursor, row[cursor.column]) for row in found)
        if limit is not None and limit < len(values):
            after = [value for value in values if value > values[limit - 1]]
            window = Window(window.low, after[0]) if after else window
        return by_cursor(window, _cuts(values, table.slice_rows))

    def changes(self, table: Table, slice: Slice) -> MemoryChanges:
        return MemoryChanges(self, table, slice)

    def read(self, table: Table, slice: Slice) -> list[Row]:
        """The rows of a slice as they are committed now."""
        return [row for row in self._visible(table) if _belongs(table, slice, row)]

    def _visible(self, table: Table) -> list[Row]:
        names = [column.name for column in table.columns]
        return [{name: row[name] for name in names} for row in self.rows(table.source)]

    def forms(self, table: Table) -> dict[str, Form | None]:
        return _forms(table)

    def hashes(self) -> tuple[str, ...]:
        return ("md5",)

    def ranged(self, table: Table) -> bool:
        types = {column.name: column.type for column in table.columns}
        return len(table.key) == 1 and types[table.key[0]] in ("int", "bigint")

    def side(self, comparison: Comparison) -> MemorySourceSide:
        return MemorySourceSide(comparison, lambda: self._visible(comparison.table))

    def close(self) -> None:
        """There is nothing to give back; the rows stay."""


def _forms(table: Table) -> dict[str, Form | None]:
    return {column.name: spark_form(column.type) for column in table.columns}


def _cuts(values: Sequence[Watermark], rows: int) -> list[Watermark]:
    """Where slices of at least so many rows end, between two values and never inside one."""
    cuts, size = [], 0
    for value, tie in groupby(values):
        if size >= rows:
            cuts.append(value)
            size = 0
        size += len(list(tie))
    return cuts


def _belongs(table: Table, slice: Slice, row: Row) -> bool:
    if slice.repair:
        value = cursor_of(table, row)
        bounded = table.mode is Mode.APPEND
        return in_part(table, slice.repair.part, row) and not (
            bounded and (value is None or value >= slice.window.high)
        )
    keys = slice.keys
    if keys is not None:
        value = row[keys.column]
        if (keys.low is not None and value < keys.low) or (keys.high is not None and value >= keys.high):
            return False
    if table.cursor is None:
        return True
    value = row[table.cursor.column]
    if value is None:
        return slice.nulls
    return Window(slice.low, slice.window.high).contains(watermark(table.cursor, value))


@dataclass
class MemoryChanges:
    """Read when asked, not before: `rows` for the sink in memory, `frame` for those on Spark."""

    source: MemorySource
    table: Table
    slice: Slice
    operation: str | None = None
    unique: bool = True
    order: tuple[str, ...] = ()
    query: str | None = None
    files: Files | None = None
    how: How | None = None
    repair: Repair | None = None

    def __post_init__(self) -> None:
        self.operation = OPERATION if self.table.deleted else None

    def rows(self) -> list[Row]:
        rows = self.source.read(self.table, self.slice)
        deleted = self.table.deleted
        if deleted is None:
            return rows
        return [{**row, OPERATION: "delete" if row[deleted] else "upsert"} for row in rows]

    def frame(self, spark: SparkSession) -> DataFrame:
        """By way of Arrow: Spark takes that for a table of its own, and starts no Python to read it."""
        pyarrow = import_module("pyarrow")  # it has no types to check against

        types = {column.name: column.type for column in self.table.columns}
        types |= {self.operation: "string"} if self.operation else {}
        rows = self.rows()
        columns = {name: [row[name] for row in rows] for name in types}
        frame = spark.createDataFrame(pyarrow.table(columns))
        return frame.selectExpr(*(f"CAST(`{name}` AS {type}) AS `{name}`" for name, type in types.items())).coalesce(1)

    def translate(self, error: Exception) -> StrandlineError | None:
        """Memory does not fail under a sink; what it raises on purpose it raises itself."""
        return error if isinstance(error, StrandlineError) else None


@dataclass(frozen=True)
class Target:
    """What one target holds: replaced as a whole, so that rows and receipts are committed together."""

    rows: tuple[Row, ...] = ()
    receipts: Mapping[tuple[str, str, str], Receipt] = field(default_factory=dict)
    fences: Mapping[tuple[str, str, str], int] = field(default_factory=dict)  # batches of an earlier epoch are shut out


class MemorySink:
    """Targets by name. `at_commit` puts an action on either side of the next commit: a crash, an error, another run."""

    def __init__(self, name: str = "memory") -> None:
        self.name = name
        self.log: list[Batch] = []  # every batch that changed a target, in order
        self.warnings: list[tuple[str, str]] = []
        self._targets: dict[str, Target] = {}
        self._before: list[Action] = []
        self._after: list[Action] = []
        self._lock = threading.RLock()

    def cancel(self, table: str | None = None) -> None:
        """A batch takes no time here: there is nothing to give up."""

    def maintain(self, table: Table) -> None:
        """Nothing is left behind in memory."""

    # for the test

    def at_commit(self, *, before: Action | None = None, after: Action | None = None) -> None:
        """Run once, around the next commit. Raising `before` leaves the target as it was; `after`, the batch is in."""
        self._before += [before] if before else []
        self._after += [after] if after else []

    def forget_actions(self) -> None:
        """Whatever `at_commit` still waits for does not happen."""
        self._before.clear()
        self._after.clear()

    def targets(self) -> list[str]:
        return sorted(self._targets)

    def rows(self, target: str) -> list[Row]:
        """Every row, repeated ones included, in an order that does not depend on how they came."""
        held = self._targets.get(target, Target())
        return sorted((dict(row) for row in held.rows), key=lambda row: [(v is None, str(v)) for v in row.values()])

    def backup(self, target: str) -> Target | None:
        return self._targets.get(target)

    def restore(self, target: str, backup: Target | None) -> None:
        """As it was; None drops it."""
        with self._lock:
            self._targets.pop(target, None)
            if backup is not None:
                self._targets[target] = backup

    # the contract

    def identity(self, table: Table) -> str:
        return f"{self.name}/{table.target}"

    def applied(self, table: Table) -> Receipt | None:
        held = self._targets.get(table.target)
        if held is None:
            return None
        others = [owner for owner in held.receipts if owner != _owner(table)]
        if (others or not held.receipts) and not table.shared:
            raise TargetError(
                f"{table.target} belongs to {'.'.join(others[0]) if others else 'a stranger'}",
                where=table.where_text,
                remedy="Choose another target, or say shared: true in both.",
            )
        receipt = held.receipts.get(_owner(table))
        return receipt and replace(receipt, epoch=held.fences.get(_owner(table), 0))

    def forms(self, table: Table) -> dict[str, Form | None]:
        return _forms(table) if table.target in self._targets else {}

    def hashes(self) -> tuple[str, ...]:
        return ("md5",)

    def side(self, comparison: Comparison) -> MemoryTargetSide:
        rows = self.rows(comparison.table.target)
        return MemoryTargetSide(comparison, lambda: rows)

    def apply(self, table: Table, batch: Batch, changes: Changes, *, how: How, repair: Repair | None = None) -> Applied:
        in_memory: Callable[[], list[Row]] | None = getattr(changes, "rows", None)
        if in_memory is None:
            raise TargetError("a sink in memory takes rows that are in memory only", where=table.where_text)
        rows = in_memory()
        _take(self._before)
        with self._lock:
            held = self._targets.get(table.target, Target())
            receipt = self.applied(table)
            if receipt and batch.same(receipt.batch):
                return receipt.applied
            fence = held.fences.get(_owner(table), 0)
            if batch.epoch < fence or (receipt and batch.order <= receipt.batch.order):
                found = receipt.batch if receipt else f"epoch {fence}"
                raise BatchConflictError(f"{table.target} holds {found}, not {batch}", where=table.where_text)
            if repair is not None:
                after, applied = repaired(table, held.rows, rows, repair)
            else:
                after, applied = _merged(table, () if how is How.REPLACE else held.rows, rows, how)
            receipts = {**held.receipts, _owner(table): Receipt(batch, applied)}
            self._targets[table.target] = Target(after, receipts, held.fences)
            self.log.append(batch)
        _take(self._after)
        return applied

    def fence(self, table: Table, epoch: int) -> Receipt | None:
        with self._lock:
            held = self._targets.get(table.target)
            if held is not None:
                fences = {**held.fences, _owner(table): max(held.fences.get(_owner(table), 0), epoch)}
                self._targets[table.target] = replace(held, fences=fences)
            return self.applied(table)

    def close(self) -> None:
        """There is nothing to give back; the targets stay."""


def _take(actions: list[Action]) -> None:
    waiting = actions[:]
    actions.clear()
    for action in waiting:
        action()


def _owner(table: Table) -> tuple[str, str, str]:
    return (table.pipeline, table.name, table.stage)


def _merged(table: Table, held: Sequence[Row], rows: Sequence[Row], how: How) -> tuple[tuple[Row, ...], Applied]:
    """The MERGE rules: a newer row is never overwritten, an equal one is refreshed."""
    matching = how in (How.CHANGES, How.CURRENT) and table.mode is Mode.MERGE
    by_key = {_key(table, row): at for at, row in enumerate(held)} if matching else {}
    after: list[Row | None] = list(held)
    inserted = updated = deleted = 0
    for given in rows:
        row = {name: value for name, value in given.items() if name != OPERATION}
        gone, at = given.get(OPERATION) == "delete", by_key.get(_key(table, row))
        if at is None:
            after += [] if gone else [row]
            inserted += not gone
        elif how is How.CURRENT or _wins(table, row, held[at]):
            after[at] = None if gone else row
            deleted, updated = deleted + gone, updated + (not gone)
    values = [watermark(table.cursor, row[table.cursor.column]) for row in rows if table.cursor and _marked(table, row)]
    applied = Applied(len(rows), inserted, updated, deleted, max(values, default=None))
    return tuple(row for row in after if row is not None), applied


def _key(table: Table, row: Row) -> Key:
    return tuple(row[name] for name in table.key)


def _marked(table: Table, row: Row) -> bool:
    return table.cursor is not None and row[table.cursor.column] is not None


def _wins(table: Table, new: Row, old: Row) -> bool:
    if not _marked(table, old) or not _marked(table, new) or table.cursor is None:
        return True
    return bool(new[table.cursor.column] >= old[table.cursor.column])

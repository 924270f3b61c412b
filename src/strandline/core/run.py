"""The hop: plan → read → apply → commit.

Owns the order in which things become true: the intent is stored, then the sink applies, then the watermark moves.
A table's failure is its own. Time, threads' limits and listeners are passed in.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TypeVar

from strandline.core.batch import Applied, Batch, How
from strandline.core.books import Books, Lease, Renewal, TableRun
from strandline.core.errors import LeaseError, StrandlineError, TransientError
from strandline.core.events import (
    Adopted,
    BatchApplied,
    Committed,
    Intended,
    Listener,
    Planned,
    Retrying,
    TableFinished,
    Warned,
)
from strandline.core.plan import Planned as Work
from strandline.core.position import Position, Status, TablePlan
from strandline.core.protocols import Sink, Source
from strandline.core.reconcile import Adopt, Apply, reconcile
from strandline.core.retry import retried
from strandline.core.table import Table
from strandline.core.window import Slice

T = TypeVar("T")


@dataclass(frozen=True)
class Outcome:
    """How one table fared in one run."""

    table: str
    stage: str
    status: Status
    plan: TablePlan
    applied: Applied = field(default_factory=Applied)
    batches: int = 0
    seconds: float = 0.0
    error: StrandlineError | None = None


@dataclass
class Hop:
    """Source + Sink + Books for the tables of one pipeline and stage, during one run."""

    run_id: str
    pipeline: str
    source: Source
    sink: Sink
    books: Books
    emit: Listener
    parallel: int = 1
    redact: Callable[[str], str] = str
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self.stopping = threading.Event()

    def run(self, work: Sequence[Work], leases: dict[str, Lease]) -> list[Outcome]:
        """Carry out every plan, `parallel` tables at a time; slices of one table in order."""

        def one(planned: Work) -> Outcome:
            lease = leases.get(planned.table.name) or Lease(self.pipeline, planned.table.name)
            return self.run_table(planned, lease)

        with Renewal(self.books, self.sink.cancel), ThreadPoolExecutor(self.parallel) as pool:
            try:
                return list(pool.map(one, work))
            except BaseException:
                self.stopping.set()
                self.sink.cancel()
                raise

    def run_table(self, planned: Work, lease: Lease) -> Outcome:
        """One table from its plan to its last commit. Whatever happens is recorded and returned, not raised."""
        table, started = planned.table, self.clock()
        position = planned.position.planned(planned.plan, dict(planned.measures), table.schema_text(), self.run_id)
        entry = TableRun(
            self.run_id, self.pipeline, table.name, table.stage, Status.PLANNED, planned.plan, self.books.now()
        )
        begun, error = False, None
        try:
            position, entry = self.books.begin(position, lease, entry)
            begun = True
            self.emit(Planned(*self._where(table), planned.plan))
            if position.intent is None:  # a target that cannot be right leaves no intent behind
                self._patiently(table, lambda: reconcile(self.sink.applied(table), planned.position))
            for part in planned.plan.remaining:
                position, entry, batch = self._intend(table, part, position, entry)
                applied = self._apply(table, part, position, batch)
                position, entry = self._commit(table, batch, applied, position, entry, started)
        except Exception as caught:
            error = self._told(table, caught)
            entry = self._closed(entry, Status.FAILED, started, str(error))
            if begun:
                self._record_failure(position.failed(str(error)), entry)
        outcome = Outcome(
            table.name,
            table.stage,
            entry.status,
            planned.plan,
            entry.applied,
            entry.batches,
            self.clock() - started,
            error,
        )
        self.emit(
            TableFinished(
                *self._where(table), outcome.status, outcome.applied, outcome.batches, outcome.seconds, entry.error
            )
        )
        return outcome

    def _intend(
        self, table: Table, part: Slice, position: Position, entry: TableRun
    ) -> tuple[Position, TableRun, Batch]:
        """Store what is about to be done to the sink."""
        batch = position.next(part, self.books.store, attempt=secrets.token_hex(8))
        position, entry = self.books.commit(position.intending(batch), replace(entry, status=Status.RUNNING))
        self.emit(Intended(*self._where(table), batch, part, *_progress(position)))
        return position, entry, batch

    def _commit(
        self, table: Table, batch: Batch, applied: Applied, position: Position, entry: TableRun, started: float
    ) -> tuple[Position, TableRun]:
        """Store that the sink holds the batch: the watermark moves, and the last one gives the lease back."""
        progress = _progress(position)
        position = position.committed(batch, applied)
        entry = replace(entry, applied=entry.applied + applied, batches=entry.batches + 1)
        if position.plan is None:
            entry = self._closed(entry, Status.COMPLETED, started)
        position, entry = self.books.commit(position, entry, done=position.plan is None)
        self.emit(Committed(*self._where(table), batch, applied, *progress))
        return position, entry

    def _apply(self, table: Table, part: Slice, position: Position, batch: Batch) -> Applied:
        """Ask the sink what it holds, then apply. Transient trouble: ask again and apply again."""
        started = self.clock()
        applied = self._patiently(table, lambda: self._apply_once(table, part, position, batch))
        self.emit(BatchApplied(*self._where(table), batch, applied, self.clock() - started))
        return applied

    def _patiently(self, table: Table, step: Callable[[], T]) -> T:
        def again(error: TransientError, wait: float) -> None:
            self.emit(Retrying(*self._where(table), self.redact(str(error)), wait))
            self.sleep(wait)

        return retried(step, again)

    def _apply_once(self, table: Table, part: Slice, position: Position, batch: Batch) -> Applied:
        if self.stopping.is_set() or not self.books.holds(table.pipeline, table.name):
            raise LeaseError("stopped before its next batch", remedy="Nothing is lost; run again.")
        plan = position.plan
        assert plan is not None
        match reconcile(self.sink.applied(table), position):
            case Adopt(applied):
                self.emit(Adopted(*self._where(table), batch))
                return applied
            case Apply():
                # Key ranges of one load are disjoint, so none can repeat a row of another.
                fresh = plan.first and (plan.done == 0 or part.keys is not None)
                changes = self.source.changes(table, part)
                back = position.gap is not None and position.gap.back and not plan.replace
                how = How.REPLACE if plan.replace else How.FRESH if fresh else How.CHANGES
                how = How.REPAIR if part.repair else How.CURRENT if back else how
                if changes.how and (changes.how is not How.FRESH or plan.first):
                    how = changes.how
                return self.sink.apply(table, batch, changes, how=how, repair=part.repair or changes.repair)

    def _record_failure(self, position: Position, entry: TableRun) -> None:
        try:
            self.books.commit(position, entry, done=True)
        except StrandlineError as error:
            # The table's own error is the one to report; this one only means that the store could not be told.
            self.books.forget(self.pipeline, entry.table)
            self.emit(Warned(*self._where_entry(entry), self.redact(f"the failure could not be recorded: {error}")))

    def _told(self, table: Table, caught: Exception) -> StrandlineError:
        if isinstance(caught, StrandlineError):
            error = caught.at(table.where_text)
        else:
            first = str(caught).strip().splitlines()[:1] or [""]
            error = StrandlineError(f"{type(caught).__name__}: {first[0]}", where=table.where_text)
            error.__cause__ = caught
        error.message, error.why = (self.redact(text).replace("\0", "") for text in (error.message, error.why))
        return error

    def _closed(self, entry: TableRun, status: Status, started: float, error: str = "") -> TableRun:
        milliseconds = int((self.clock() - started) * 1000)
        return replace(entry, status=status, error=error, ended_at=self.books.now(), milliseconds=milliseconds)

    def _where(self, table: Table) -> tuple[str, str, str, str]:
        return (self.run_id, self.pipeline, table.name, table.stage)

    def _where_entry(self, entry: TableRun) -> tuple[str, str, str, str]:
        return (self.run_id, self.pipeline, entry.table, entry.stage)


def _progress(position: Position) -> tuple[int, int]:
    """Which slice of the plan is next, from 1, and of how many."""
    assert position.plan is not None
    return position.plan.done + 1, len(position.plan.slices)

"""The hop: plan → read → apply → commit.

Owns the order in which things become true: the intent is stored, then the sink applies, then the watermark moves, in
one write with the next intent. With `commit_every` an intent stands for several batches of its plan: each has its own
number and carries what those before it did, so that whoever comes after a crash takes the sink's word for all of them.
A table's failure is its own. Time, threads' limits and listeners are passed in.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TypeVar

from strandline.core.batch import Applied, Batch, How, Receipt
from strandline.core.books import Books, Lease, TableRun
from strandline.core.errors import BatchConflictError, LeaseError, StateError, StrandlineError, TransientError
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
from strandline.core.protocols import Readable, Sink
from strandline.core.reconcile import Adopt, Apply, reconcile
from strandline.core.renewal import Renewal
from strandline.core.retry import retried
from strandline.core.side_by_side import side_by_side
from strandline.core.stopping import Stopping
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
    begun: bool = True  # False: the table was never ours, and nothing was written


@dataclass(frozen=True)
class _Stand:
    """Where a table stands: its position, its history row, and the batches in them that the state does not know yet."""

    position: Position
    entry: TableRun
    untold: tuple[Committed, ...] = ()


@dataclass
class Hop:
    """Source + Sink + Books for the tables of one pipeline and stage, during one run."""

    run_id: str
    pipeline: str
    source: Readable
    sink: Sink
    books: Books
    emit: Listener
    parallel: int = 1
    commit_every: int = 1  # batches
    strategy: str = ""  # in words, for the position
    redact: Callable[[str], str] = str
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    stopping: Stopping = field(default_factory=Stopping)

    def run(self, work: Sequence[Work], leases: dict[str, Lease]) -> list[Outcome]:
        """Carry out every plan, `parallel` tables at a time; slices of one table in order."""
        return run_together([(self, work)], leases)

    def steps(self, planned: Work, lease: Lease) -> Generator[tuple[Slice, ...], None, Outcome]:
        """One table from its plan to its last commit. Whatever happens is recorded and returned, not raised. Before
        each batch it stops, with the slices that remain; before the first it has begun, and not touched the sink."""
        table, started = planned.table, self.clock()
        position = planned.position.planned(planned.plan, dict(planned.measures), table.schema_text(), self.run_id)
        position = replace(position, strategy=self.strategy)
        entry = TableRun(
            self.run_id, self.pipeline, table.name, table.stage, Status.RUNNING, planned.plan, self.books.now()
        )
        stand, begun, error = _Stand(position, entry), False, None
        try:
            intended = _Stand(*self.books.begin(self._intending(position), lease, entry))
            # Until it is known that the target can be right: one that cannot leaves no intent behind.
            stand = replace(intended, position=replace(intended.position, intent=planned.position.intent))
            begun = True
            self.emit(Planned(*self._where(table), planned.plan))
            started += yield from self._pause(intended.position)
            looked = []
            if planned.position.intent is None:
                looked = [self._patiently(table, lambda: self.sink.applied(table))]
                reconcile(looked[0], planned.position)
            stand = intended
            self._tell_intent(table, stand.position)
            stand = self._advance(table, stand, started, looked)
            while stand.position.plan is not None:
                started += yield from self._pause(stand.position)
                stand = self._advance(table, stand, started)
        except Exception as caught:
            error = told(self._overtaken(table, caught) if begun else caught, table.where_text, self.redact)
            entry = replace(self._closed(stand.entry, Status.FAILED, started, str(error)), remedy=error.advice)
            stand = replace(stand, position=stand.position.failed(str(error), error.advice), entry=entry)
            if begun:
                self._record_failure(stand)
        entry = stand.entry
        outcome = Outcome(
            table.name,
            table.stage,
            entry.status,
            planned.plan,
            entry.applied,
            entry.batches,
            self.clock() - started,
            error,
            begun,
        )
        self.emit(
            TableFinished(
                *self._where(table), outcome.status, outcome.applied, outcome.batches, outcome.seconds, entry.error
            )
        )
        return outcome

    def _pause(self, position: Position) -> Generator[tuple[Slice, ...], None, float]:
        """Others' turn; how long it took is not this table's time."""
        assert position.plan is not None
        stopped = self.clock()
        yield position.plan.remaining
        return self.clock() - stopped

    def _intending(self, position: Position, *, told: bool = True) -> Position:
        return position.intending_next(self.books.store, secrets.token_hex(8), told=told)

    def _tell_intent(self, table: Table, position: Position) -> None:
        if position.intent is not None and position.plan is not None:
            part = position.plan.remaining[0]
            self.emit(Intended(*self._where(table), position.intent, part, *_progress(position)))

    def _advance(self, table: Table, stand: _Stand, started: float, looked: Sequence[Receipt | None] = ()) -> _Stand:
        """Apply the next batch, and tell the state what is due: the watermark moves, the next batch is intended, and
        after the last one the lease is given back. `looked`: what the sink said just now, if it was asked."""
        adopt = self._apply(table, stand.position, list(looked))
        position = stand.position.adopted(adopt.batches, adopt.applied)
        entry = replace(
            stand.entry,
            applied=stand.entry.applied + adopt.applied,
            batches=stand.entry.batches + len(adopt.batches),
        )
        untold = (*stand.untold, *self._committed(table, stand.position, adopt))
        done = position.plan is None
        due = done or len(untold) >= self.commit_every
        position = self._intending(position, told=due)
        if due:
            entry = self._closed(entry, Status.COMPLETED, started) if done else entry
            position, entry = self.books.commit(position, entry, done=done)
            for event in untold:
                self.emit(event)
        self._tell_intent(table, position)
        return _Stand(position, entry, () if due else untold)

    def _committed(self, table: Table, before: Position, adopt: Adopt) -> Iterator[Committed]:
        """One event for each batch; of several the last one tells what they did together."""
        number, of = _progress(before)
        for at, batch in enumerate(adopt.batches):
            applied = adopt.applied if batch is adopt.batches[-1] else Applied()
            yield Committed(*self._where(table), batch, applied, number + at, of)

    def _apply(self, table: Table, position: Position, looked: list[Receipt | None]) -> Adopt:
        """Ask the sink what it holds, then apply. Transient trouble: ask again and apply again."""
        started = self.clock()
        adopt = self._patiently(table, lambda: self._apply_once(table, position, looked))
        self.emit(BatchApplied(*self._where(table), adopt.batches[-1], adopt.applied, self.clock() - started))
        return adopt

    def _patiently(self, table: Table, step: Callable[[], T]) -> T:
        def again(error: TransientError, wait: float) -> None:
            self.emit(Retrying(*self._where(table), self.redact(str(error)), wait))
            self.sleep(wait)

        return retried(step, again)

    def _apply_once(self, table: Table, position: Position, looked: list[Receipt | None]) -> Adopt:
        """What the sink holds then; mostly it is the intended batch, applied just now."""
        if self.stopping.is_set() or not self.books.holds(table.pipeline, table.name):
            raise LeaseError("stopped before its next batch", remedy="Nothing is lost; run again.")
        batch = position.intent
        assert batch is not None
        held = self._held(table, position, looked.pop() if looked else self.sink.applied(table))
        if held is not None:
            return held
        try:
            return Adopt((batch,), self._move(table, position, batch))
        except BatchConflictError:
            # Another runner of the same plan may be ahead by several batches.
            held = self._held(table, position, self.sink.applied(table))
            if held is None:
                raise
            return held

    def _held(self, table: Table, position: Position, receipt: Receipt | None) -> Adopt | None:
        match reconcile(receipt, position):
            case Adopt() as adopt:
                for batch in adopt.batches:
                    self.emit(Adopted(*self._where(table), batch))
                return adopt
            case Apply():
                return None

    def _move(self, table: Table, position: Position, batch: Batch) -> Applied:
        plan = position.plan
        assert plan is not None
        part = plan.remaining[0]
        # Key ranges of one load are disjoint, so none can repeat a row of another.
        fresh = plan.first and (plan.done == 0 or part.keys is not None)
        changes = self.source.changes(table, part)
        back = position.gap is not None and position.gap.back and not plan.replace
        how = How.REPLACE if plan.replace else How.FRESH if fresh else How.CHANGES
        how = How.REPAIR if part.repair else How.CURRENT if back else how
        if changes.how and (changes.how is not How.FRESH or plan.first):
            how = changes.how
        return self.sink.apply(table, batch, changes, how=how, repair=part.repair or changes.repair)

    def _record_failure(self, stand: _Stand) -> None:
        entry = stand.entry
        try:
            self.books.commit(stand.position, entry, done=True)
        except StrandlineError as error:
            # The table's own error is the one to report; this one only means that the store could not be told.
            self.books.forget(self.pipeline, entry.table)
            self.emit(Warned(*self._where_entry(entry), self.redact(f"the failure could not be recorded: {error}")))
            return
        for event in stand.untold:
            self.emit(event)

    def _overtaken(self, table: Table, caught: Exception) -> Exception:
        """Whatever a batch fails with that was cancelled because its lease was lost, that is why."""
        if isinstance(caught, StateError) or self.books.holds(self.pipeline, table.name):
            return caught
        error = LeaseError("the lease was lost: another run has the table now", remedy="Nothing is lost; run again.")
        error.__cause__ = caught
        return error

    def _closed(self, entry: TableRun, status: Status, started: float, error: str = "") -> TableRun:
        milliseconds = int((self.clock() - started) * 1000)
        return replace(entry, status=status, error=error, ended_at=self.books.now(), milliseconds=milliseconds)

    def _where(self, table: Table) -> tuple[str, str, str, str]:
        return (self.run_id, self.pipeline, table.name, table.stage)

    def _where_entry(self, entry: TableRun) -> tuple[str, str, str, str]:
        return (self.run_id, self.pipeline, entry.table, entry.stage)


def run_together(
    hops: Sequence[tuple[Hop, Sequence[Work]]],
    leases: dict[str, Lease],
    sharing: Callable[[Table, Slice], AbstractContextManager[None]] = lambda _table, _slice: nullcontext(),
) -> list[Outcome]:
    """Carry out the plans of several targets of one run, `parallel` tables at a time; the targets of one table side by
    side. While `sharing` lasts, those that read a slice get one read of it. Outcomes are in the order of the plans."""
    first = hops[0][0]
    tables: dict[str, list[tuple[Hop, Work]]] = {}
    for hop, work in hops:
        for planned in work:
            tables.setdefault(planned.table.name, []).append((hop, planned))

    def one(parts: list[tuple[Hop, Work]]) -> list[Outcome]:
        table = parts[0][1].table
        lease = leases.get(table.name) or Lease(first.pipeline, table.name)
        return side_by_side([hop.steps(planned, lease) for hop, planned in parts], lambda part: sharing(table, part))

    def cancel(table: str | None = None) -> None:
        for hop, _ in hops:
            hop.sink.cancel(table)

    with (
        Renewal(first.books, cancel),
        first.stopping.cancelling(cancel),
        ThreadPoolExecutor(first.parallel) as pool,
    ):
        try:
            found = {(end.table, end.stage): end for ends in pool.map(one, tables.values()) for end in ends}
        except BaseException:
            first.stopping.cancel()
            raise
    return [found[planned.table.name, planned.table.stage] for _, work in hops for planned in work]


def told(caught: BaseException, where: str, redact: Callable[[str], str]) -> StrandlineError:
    """What is written down of an error: where it happened, one line, and no secret."""
    if isinstance(caught, StrandlineError):
        error = caught.at(where)
    else:
        first = str(caught).strip().splitlines()[:1] or [""]
        error = StrandlineError(f"{type(caught).__name__}: {first[0]}", where=where)
        error.__cause__ = caught
    for part in ("message", "why", "remedy"):
        setattr(error, part, redact(getattr(error, part)).replace("\0", ""))
    return error


def _progress(position: Position) -> tuple[int, int]:
    """Which slice of the plan is next, from 1, and of how many."""
    assert position.plan is not None
    return position.plan.done + 1, len(position.plan.slices)

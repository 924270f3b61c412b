"""A tracked run: windows handed to the caller's own code, one table after the other, and its word on each taken down.

Owns when a table counts as moved. A table's watermark moves when it is done, or with all that were iterated past when
the block is left without an error; a table that was not reached, was skipped or failed keeps its plan.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from strandline.core.books import Lease, Step, TableRun
from strandline.core.errors import LeaseError, StateError, StrandlineError
from strandline.core.events import (
    BatchApplied,
    Committed,
    Event,
    Intended,
    RunFinished,
    RunStarted,
    TableFinished,
    Warned,
)
from strandline.core.events import Planned as PlannedEvent
from strandline.core.events import Skipped as SkippedEvent
from strandline.core.plan import Planned
from strandline.core.position import Reason, Status
from strandline.core.protocols import JoinedState, Source, Spark
from strandline.core.renewal import Renewal
from strandline.core.run import Outcome, told
from strandline.core.table import SYNC
from strandline.result import RunResult, worst
from strandline.running import Running
from strandline.tracking.table import Stand, TrackedTable
from strandline.tracking.txn import Txn

if TYPE_CHECKING:
    from types import TracebackType


@dataclass(frozen=True)
class Work:
    """The source, open, what there is to do, and what is worth saying about a table."""

    source: Source
    planned: list[Planned]
    notes: Sequence[tuple[str, str]] = ()


Planning = Callable[[str], AbstractContextManager[Work]]


class TrackedRun:
    """For a `with` block. Iterating gives the tables that have something to read."""

    def __init__(
        self,
        running: Running,
        planning: Planning,
        spark: Spark,
        *,
        atomic: bool,
        strict: bool,
        renew: bool,
        keep: timedelta,
    ) -> None:
        self.run_id = running.run_id
        self.pipeline = running.pipeline
        self.atomic = atomic
        self.spark = spark
        self.tables: tuple[TrackedTable, ...] = ()
        self.result: RunResult | None = None
        self.source: Source
        self._running = running
        self._books = running.books
        self._planning = planning
        self._strict = strict
        self._renew = renew
        self._keep = keep
        self._idle: dict[str, Outcome] = {}
        self._order: list[str] = []
        self._open = ExitStack()
        self._started = time.monotonic()

    def __enter__(self) -> TrackedRun:
        if self._order:
            raise StateError("a run is for one block", where=self.pipeline, remedy="Ask the tracker for another one.")
        with ExitStack() as stack:
            work = self._plan(stack)
            self.source, planned = work.source, work.planned
            self._emit(RunStarted(self.run_id, self.pipeline, len(planned)))
            for table, note in (*work.source.warnings, *work.notes):
                self._emit(Warned(self.run_id, self.pipeline, table, SYNC, self._running.redact(note)))
            self._running.rest(planned)
            self._idle = self._running.begin(planned)
            self._order = [part.table.name for part in planned]
            self._begin([part for part in planned if part.plan.work])
            if self._renew:
                stack.enter_context(Renewal(self._books, self._taken_over))
            self._open = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._open:
            if error is None:
                self._leave()
                return
            try:
                self._fail(error)
            except StrandlineError as trouble:  # it is the caller's error that is raised
                error.add_note(f"Strandline could not record how the run ended: {trouble}")

    def __iter__(self) -> Iterator[TrackedTable]:
        """A table is iterated past when the loop asks for the next one: the one at hand at a `break` is not."""
        for table in self.tables:
            if table.stand is Stand.WAITING:
                table.reach()
                yield table
                table.pass_by()

    def __getitem__(self, name: str) -> TrackedTable:
        for table in self.tables:
            if table.name == name:
                return table
        raise KeyError(name)

    def txn(self, table: TrackedTable | str, *, write: str) -> Txn:
        """What makes one write of the caller's into a Delta table happen once: the same for every attempt at this plan.

        `write` names it: two writes of one run into the same table need two names, or Delta skips the second.
        """
        found = self[table] if isinstance(table, str) else table
        batch = found.batch
        app_id = f"strandline/{batch.store}/{self.pipeline}/{found.name}/{found.table.stage}/{write}"
        return Txn(app_id, batch.epoch << 32 | batch.number)

    def commit_in(self, connection: object, tables: Iterable[TrackedTable] | None = None) -> None:
        """Move the watermarks of the tables that are done, iterated past or at hand (or those given) in the transaction
        that the caller has open on this connection. It decides: a rollback leaves them unfinished.

        The state must live in that database. StateError if it does not; LeaseError if another run took a table over.
        """
        ready = (Stand.AT_HAND, Stand.PASSED, Stand.SAID, Stand.HANDED)
        chosen = [table for table in self.tables if table.stand in ready] if tables is None else list(tables)
        self._check_all(chosen)
        chosen = [table for table in chosen if table.handed is None or self.decided(table) is False]
        for table in chosen:
            table.unsettled()
        stored = self._books.commit_in(connection, [self._committing(table) for table in chosen]) if chosen else []
        for table, step in zip(chosen, stored, strict=True):
            table.handed, table.stand = (connection, step), Stand.HANDED

    # what tables ask for

    def commit(self, tables: Sequence[TrackedTable]) -> None:
        """Move the watermarks of these tables in one write."""
        steps = self._books.commit_all([self._committing(table) for table in tables], done=True)
        for table, step in zip(tables, steps, strict=True):
            self._moved(table, step)

    def close(
        self, tables: Sequence[TrackedTable], status: Status, note: str, caught: BaseException | None = None
    ) -> None:
        """Give tables back as they were planned: FAILED with its error, SKIPPED with a note."""
        steps, errors = [], []
        for table in tables:
            error = told(table.translated(caught), table.table.where_text, self._running.redact) if caught else None
            text = str(error) if error else note
            advice = error.advice if error else ""
            position = table.step[0].failed(text, advice) if error else table.step[0].released()
            steps.append((position, replace(self._closed(table, status, text), remedy=advice)))
            errors.append(error)
        try:
            self._books.commit_all(steps, done=True)
        except StrandlineError as trouble:
            if len(tables) > 1:  # each by itself: one that was taken over does not keep the others
                for table in tables:
                    self.close([table], status, note, caught)
                return
            self._books.forget(self.pipeline, tables[0].name)
            text = self._running.redact(f"how it ended could not be recorded: {trouble}")
            self._emit(Warned(*self._where(tables[0]), text))
        for table, (_, entry), error in zip(tables, steps, errors, strict=True):
            self._settled(table, entry, error)

    def decided(self, table: TrackedTable) -> bool | None:
        """Whether the transaction that a table was handed to has committed; None: it is still open."""
        assert table.handed is not None
        connection, step = table.handed
        decided = self._books.committed_in(connection, step[1])
        if decided and table.stand is not Stand.SETTLED:
            self._books.release(self.pipeline, table.name)
            self._moved(table, step)
        return decided

    # from plan to end

    def _plan(self, stack: ExitStack) -> Work:
        """What there is to do. A run that cannot be planned has failed, and touches no position; one that meets another
        at work has not begun."""
        try:
            work = stack.enter_context(self._planning(self.run_id))
            self._refuse(work.planned)
        except LeaseError:
            raise
        except Exception as error:
            self._emit(RunStarted(self.run_id, self.pipeline, 0))
            try:
                self._running.open(0)
                self._end(str(told(error, self.pipeline, self._running.redact)), None)
            except StrandlineError as trouble:  # it is the first error that is raised
                error.add_note(f"Strandline could not record how the run ended: {trouble}")
            raise
        return work

    def _refuse(self, planned: Sequence[Planned]) -> None:
        for part in planned:
            if part.plan.reason is Reason.BUSY:
                raise LeaseError(
                    f"another run is at work: {part.plan.note}",
                    where=part.table.where_text,
                    remedy="Wait for it. If that process is gone, its lease expires by itself.",
                )
            if part.error is not None and self._strict:
                raise part.error

    def _begin(self, work: Sequence[Planned]) -> None:
        leases, at = self._books.leases(self.pipeline), self._books.now()
        starts = []
        for part in work:
            name, stage = part.table.name, part.table.stage
            position = part.position.planned(part.plan, dict(part.measures), part.table.schema_text(), self.run_id)
            position = position.intending_next(self._books.store, secrets.token_hex(8))
            entry = TableRun(self.run_id, self.pipeline, name, stage, Status.RUNNING, part.plan, at)
            starts.append((position, leases.get(name) or Lease(self.pipeline, name), entry))
        try:
            steps = self._books.begin_all(starts)
        except StrandlineError as error:
            self._running.end(self._keep, str(error))
            raise
        self.tables = tuple(TrackedTable(self, part, step) for part, step in zip(work, steps, strict=True))
        for table in self.tables:
            self._emit(PlannedEvent(*self._where(table), table.plan))
            self._emit(Intended(*self._where(table), table.batch, table.plan.slices[0], 1, 1))

    def _leave(self) -> None:
        """Without an error: what was iterated past is done."""
        open_ = self._settle_handed()
        ready = [table for table in self.tables if table.stand in (Stand.PASSED, Stand.SAID)]
        rest = [table for table in self.tables if table.stand in (Stand.WAITING, Stand.AT_HAND)]
        trouble: StrandlineError | None = None
        kept = any(table.outcome and table.outcome.status is not Status.COMPLETED for table in self.tables)
        if self.atomic and (rest or kept):
            self._give_back(ready, "not committed: not all tables of the run were done")
        elif ready:
            trouble = self._commit_ready(ready)
        self._give_back([table for table in rest if table.stand is Stand.AT_HAND], "left before it was done")
        self._give_back([table for table in rest if table.stand is Stand.WAITING], "not reached")
        self._end(str(trouble or ""), open_)
        if trouble is not None:
            raise trouble

    def _commit_ready(self, ready: Sequence[TrackedTable]) -> StrandlineError | None:
        """In one write where the store can; if that fails and the run is not atomic, each table by itself."""
        trouble: StrandlineError | None = None
        whole = [ready] if self._books.state.atomic else [[table] for table in ready]
        for tables in whole:
            try:
                self.commit(tables)
            except StrandlineError as error:
                if len(tables) > 1 and not self.atomic:
                    return self._commit_each(tables)
                self.close(tables, Status.FAILED, "", error)
                trouble = trouble or error
        return trouble

    def _commit_each(self, tables: Sequence[TrackedTable]) -> StrandlineError | None:
        found = [self._commit_ready([table]) for table in tables]
        return next((error for error in found if error is not None), None)

    def _give_back(self, tables: Sequence[TrackedTable], note: str) -> None:
        if tables:
            self.close(tables, Status.SKIPPED, note)

    def _fail(self, error: BaseException) -> None:
        """What was reached failed with the error, and nothing more is committed."""
        self._settle_handed()
        reached = [table for table in self.tables if table.stand in (Stand.AT_HAND, Stand.PASSED, Stand.SAID)]
        if reached:
            self.close(reached, Status.FAILED, "", error)
        self._give_back([table for table in self.tables if table.stand is Stand.WAITING], "not reached")
        self._running.open(len(self._order))  # a job that fails is told, though there was nothing to read
        self._end(str(told(error, self.pipeline, self._running.redact)), None)

    def _end(self, error: str, connection: object) -> None:
        outcomes = {**self._idle, **{table.name: table.outcome for table in self.tables if table.outcome}}
        self._running.outcomes = [outcomes[name] for name in self._order if name in outcomes]
        self._running.end(self._keep, error, connection)
        found = tuple(self._running.outcomes)
        status = Status.FAILED if error else worst(found)
        self.result = RunResult(self.run_id, self.pipeline, status, found, time.monotonic() - self._started)
        self._emit(RunFinished(self.run_id, self.pipeline, status, self.result.seconds))

    # transactions of the caller's

    def _settle_handed(self) -> object:
        """How the caller's transactions ended; the connection of one that is still open."""
        still_open: object = None
        for table in [table for table in self.tables if table.stand is Stand.HANDED]:
            assert table.handed is not None
            decided = self.decided(table)
            if decided is False:
                gone = StateError("the transaction it was committed in was rolled back", remedy="Run again.")
                self.close([table], Status.FAILED, "", gone)
            elif decided is None:
                still_open = table.handed[0]
                self._leave_open(table)
        return still_open

    def _check_all(self, chosen: Sequence[TrackedTable]) -> None:
        left = [table.name for table in self.tables if table not in chosen]
        if self.atomic and left:
            raise StateError(
                f"atomic=True: all tables are committed in one transaction, and {left[0]} is not done",
                where=self.pipeline,
                remedy="Call run.commit_in(connection) once, when all of them are.",
            )

    def _leave_open(self, table: TrackedTable) -> None:
        state = self._books.state
        if isinstance(state, JoinedState) and not state.shares:
            for other in self.tables:
                self._books.forget(self.pipeline, other.name)
            raise StateError(
                "the transaction it was committed in is still open, and this database has one writer at a time",
                where=table.table.where_text,
                remedy="Commit or roll back before the run's block ends.",
            )
        self._books.release(self.pipeline, table.name)
        assert table.handed is not None
        self._settled(table, table.handed[1][1], None)

    # small things

    def _committing(self, table: TrackedTable) -> Step:
        position = table.step[0].committed(table.batch, table.applied)
        entry = replace(self._closed(table, Status.COMPLETED), applied=table.applied, batches=1)
        return position, entry

    def _closed(self, table: TrackedTable, status: Status, error: str = "") -> TableRun:
        milliseconds = int(table.seconds * 1000)
        return replace(table.step[1], status=status, error=error, ended_at=self._books.now(), milliseconds=milliseconds)

    def _moved(self, table: TrackedTable, step: Step) -> None:
        self._emit(BatchApplied(*self._where(table), table.batch, table.applied, table.seconds))
        self._emit(Committed(*self._where(table), table.batch, table.applied, 1, 1))
        self._settled(table, step[1], None)

    def _settled(self, table: TrackedTable, entry: TableRun, error: StrandlineError | None) -> None:
        table.stand = Stand.SETTLED
        table.outcome = Outcome(
            table.name, entry.stage, entry.status, table.plan, entry.applied, entry.batches, table.seconds, error
        )
        where = self._where(table)
        if entry.status is Status.SKIPPED:
            self._emit(SkippedEvent(*where, replace(table.plan, note=entry.error)))
        self._emit(TableFinished(*where, entry.status, entry.applied, entry.batches, table.seconds, entry.error))

    def _taken_over(self, name: str) -> None:
        """It may be another run's of the same tracker, whose books these are."""
        told = "another run has taken the table over: it will not be committed"
        self._emit(Warned(self.run_id, self.pipeline, name, SYNC, told))

    def _where(self, table: TrackedTable) -> tuple[str, str, str, str]:
        return (self.run_id, self.pipeline, table.name, table.table.stage)

    def _emit(self, event: Event) -> None:
        self._running.emit(event)

"""One run of a pipeline over its stages: its record in the history, its tables with and without work, its outcomes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from strandline.config import PipelineSpec
from strandline.core.books import Books, Caller, TableRun
from strandline.core.errors import ConfigError, ConflictError, LeaseError, StrandlineError
from strandline.core.events import Event, Held, Listener, Skipped, TableEvent, TableFinished, Warned
from strandline.core.events import Planned as PlannedEvent
from strandline.core.plan import Planned
from strandline.core.position import Reason, Status, TablePlan
from strandline.core.protocols import Numbered, Readable, Record
from strandline.core.run import Hop, Outcome, run_together
from strandline.core.stopping import Stopping
from strandline.core.table import EXTRACT, Table
from strandline.core.window import Extent
from strandline.maintain import maintain_due
from strandline.pipeline import Pipeline
from strandline.result import error_text, idle, worst
from strandline.sources.shared import SharedReads
from strandline.warm import Warm

if TYPE_CHECKING:
    from strandline.lineage.hearing import Lineage


@dataclass(frozen=True)
class Unattended:
    """What a service adds to its runs. A table that somebody else is at work on is left to them, which is no failure;
    maintenance is a job of its own.

    `slot`: written with the first positions, so that another service sees that this run was made. `nominal`: when its
    schedule wanted it.
    """

    warm: Warm
    stopping: Stopping
    slot: Record | None = None
    nominal: datetime | None = None


@dataclass
class Running:
    """From the first table that has work to the last: a run that moves nothing, and fails nowhere, leaves no trace in
    the history."""

    run_id: str
    pipeline: str
    books: Books
    caller: Caller
    emit: Listener
    redact: Callable[[str], str]
    unattended: Unattended | None = None
    outcomes: list[Outcome] = field(default_factory=list)
    record: Record | None = None
    rests: int = 0
    lineage: Lineage | None = None
    stopping: Stopping = field(default_factory=Stopping)

    def __post_init__(self) -> None:
        if self.unattended is not None:
            self.stopping = self.unattended.stopping

    def carry_out(self, legs: Sequence[tuple[Pipeline, Sequence[Planned]]]) -> list[Outcome]:
        """The plans of one stage, or of those of several targets that read one source: what has no work is told, the
        rest is done, and targets are tidied up."""
        written = [self._history(opened, planned) for opened, planned in legs]
        if self.lineage:
            self.lineage.note(part.table for _, planned in legs for part in planned)
        first = legs[0][0]
        reads = SharedReads(first.source)
        hops = [self._hop(opened, reads, told) for (opened, _), told in zip(legs, written, strict=True)]
        self._warn(first, first.source.warnings)
        outcomes: dict[tuple[str, str], Outcome] = {}
        for (_, planned), told in zip(legs, written, strict=True):
            outcomes |= {(end.table, end.stage): end for end in self.begin(planned, told).values()}
        work = [[part for part in planned if part.plan.work] for _, planned in legs]
        if any(work):
            done = self._done(list(zip(hops, work, strict=True)), reads)
            outcomes |= {(end.table, end.stage): self._left(end) for end in done}
        for (opened, _), hop, parts in zip(legs, hops, work, strict=True):
            self._warn(opened, opened.sink.warnings)
            failed = {table for (table, stage), end in outcomes.items() if stage == opened.stage and end.error}
            self._maintain(hop, opened, [part for part in parts if part.table.name not in failed])
        found = [outcomes[part.table.name, part.table.stage] for _, planned in legs for part in planned]
        self.outcomes += found
        return found

    def begin(self, planned: Sequence[Planned], written: Listener | None = None) -> dict[str, Outcome]:
        """Open the record if there is something to tell, and close those of runs that died. Outcomes of tables without
        work."""
        outcomes = {part.table.name: self._without_work(part) for part in planned if not part.plan.work}
        work = [part for part in planned if part.plan.work]
        if work or any(outcome.status is Status.FAILED for outcome in outcomes.values()):
            self.open(len(planned))
            earlier = {*(part.position.run_id for part in work), *self.books.silent(self.pipeline)}
            dead = self.books.close_abandoned(earlier - {self.run_id})
            if self.lineage:
                self.lineage.abandoned(dead)
            self._record_stopped(outcomes.values(), written)
        return outcomes

    def open(self, tables: int) -> None:
        """Open the record, unless it is."""
        if self.record is None:
            self.record = self.books.run_started(self.run_id, self.pipeline, self.caller, tables)
            if self.lineage:
                self.lineage.started()

    def rest(self, planned: Sequence[Planned]) -> None:
        """Positions of tables without work, in one write: idle ones move up to a proven horizon, errors are kept. One
        that says when the next run is due is written each time, unless it is not ours to write: somebody else's."""
        rested = [(part.position, part.resting()) for part in planned if not part.plan.work and not part.full]
        rested = [(before, after) for before, after in rested if after is not before and (after != before or after.due)]
        moved = [
            replace(after, error=self.redact(after.error), remedy=self.redact(after.remedy)) for _, after in rested
        ]
        slot = [self.unattended.slot] if self.unattended and self.unattended.slot and not self.rests else []
        self.rests += 1
        if moved or slot:
            try:
                self.books.write(moved, slot)
            except ConflictError:
                # Another run moved one of them since we looked; what it wrote is newer than ours.
                self._check_slot(slot)

    def _check_slot(self, slots: Sequence[Record]) -> None:
        for slot in slots:
            if any(now.revision != slot.revision for now in self.books.state.read(slot.kind, slot.key)):
                raise LeaseError("another service makes this run", where=self.pipeline)

    def end(self, keep: timedelta, error: str = "", connection: object = None, remedy: str = "") -> None:
        """Close the record, if there is one. `error`: what kept a whole stage from being planned. `connection`: where a
        caller's transaction is open that decides over the run."""
        if self.record is None:
            return
        failed = next((outcome for outcome in self.outcomes if outcome.error), None)
        stopped = self.books.state.read("table_run", [self.run_id], where={"status": Status.FAILED.value})
        first = str(failed.error) if failed else str(stopped[0].fields["error"]) if stopped else error
        advice = (
            failed.error.advice if failed and failed.error else str(stopped[0].fields["remedy"]) if stopped else remedy
        )
        status = Status.FAILED if first else worst(tuple(self.outcomes))
        self.books.run_ended(self.record, status, self.redact(first), connection, self.redact(advice))
        if self.lineage:
            self.lineage.ended(status, first)
        self.books.prune(keep)

    def _history(self, opened: Pipeline, planned: Sequence[Planned]) -> Listener | None:
        """What writes the target's own history, where there is to be one. What is staged is none of its business, and
        trouble with it is told: the rows are in all the same."""
        if opened.spec.history != "target" or opened.stage == EXTRACT:
            return None
        from strandline.sinks.sql import SqlSink

        if not isinstance(opened.sink, SqlSink):
            raise ConfigError(
                f"history: target needs a database as target, not {opened.spec.targets[opened.target]}",
                where=self.pipeline,
                remedy="Leave it out: strandline runs list shows the history of any pipeline.",
            )
        source, tables = opened.source, {part.table.name: part.table for part in planned}

        def extent(plan: TablePlan) -> Extent:
            if plan.window is None:
                return Extent.of(None, None)
            if isinstance(source, Numbered):
                return source.extent(tables[plan.table], plan.window)
            return Extent.of(plan.window.low, plan.window.high)

        history = opened.sink.history(extent)

        def hear(event: Event) -> None:
            try:
                history.hear(event)
            except StrandlineError as error:
                said = self.redact(f"the target's history was not written: {error}")
                assert isinstance(event, TableEvent)
                self.emit(Warned(event.run_id, event.pipeline, event.table, event.stage, said))

        return hear

    def _hop(self, opened: Pipeline, source: Readable, written: Listener | None) -> Hop:
        def heard(event: Event) -> None:
            self.emit(event)
            if self.lineage:
                self.lineage.hear(event)
            if written:
                written(event)

        return Hop(
            self.run_id,
            self.pipeline,
            source,
            opened.sink,
            self.books,
            heard,
            parallel=opened.spec.parallel,
            commit_every=opened.spec.commit_every,
            strategy=_strategy(opened.spec),
            redact=self.redact,
            stopping=self.stopping,
        )

    def _done(self, hops: Sequence[tuple[Hop, Sequence[Planned]]], reads: SharedReads) -> list[Outcome]:
        try:
            return run_together(hops, self.books.leases(self.pipeline), reads.sharing)
        except KeyboardInterrupt:
            assert self.record is not None
            self.books.run_ended(self.record, Status.FAILED, "interrupted")
            if self.lineage:
                self.lineage.ended(Status.FAILED, "interrupted")
            raise

    def _left(self, outcome: Outcome) -> Outcome:
        """A table that another service took between plan and start is left to it."""
        if self.unattended is None or outcome.begun or not isinstance(outcome.error, LeaseError):
            return outcome
        plan = replace(outcome.plan, slices=(), reason=Reason.BUSY, note=outcome.error.message)
        return replace(outcome, status=Status.SKIPPED, plan=plan, error=None)

    def _warn(self, opened: Pipeline, warnings: Sequence[tuple[str, str]]) -> None:
        for table, message in warnings:
            if (table, message) in opened.told:
                continue
            opened.told.add((table, message))
            self.emit(Warned(self.run_id, self.pipeline, table, opened.stage, self.redact(message)))

    def maintain(self, opened: Pipeline, tables: Sequence[Table]) -> None:
        maintain_due(self._hop(opened, opened.source, None), tables, None)

    def _maintain(self, hop: Hop, opened: Pipeline, done: Sequence[Planned]) -> None:
        if opened.spec.maintain is not None and self.unattended is None:
            maintain_due(hop, (part.table for part in done), opened.spec.maintain)

    def _without_work(self, part: Planned) -> Outcome:
        """A table that moves nothing this time: up to date, held, busy elsewhere, or stopped by an error."""
        where = (self.run_id, self.pipeline, part.table.name, part.table.stage)
        if part.plan.held_by:
            self.emit(Held(*where, part.plan.held_by))
        elif idle(part.plan):
            self.emit(Skipped(*where, part.plan))
        left = self.unattended is not None and part.plan.reason is Reason.BUSY
        status = Status.SKIPPED if idle(part.plan) or left else Status.FAILED
        return Outcome(part.table.name, part.table.stage, status, part.plan, error=part.error)

    def _record_stopped(self, outcomes: Iterable[Outcome], written: Listener | None) -> None:
        at = self.books.now()
        failed = [outcome for outcome in outcomes if outcome.status is Status.FAILED]
        entries = [
            TableRun(
                self.run_id,
                self.pipeline,
                outcome.table,
                outcome.stage,
                Status.FAILED,
                outcome.plan,
                at,
                at,
                error=self.redact(error_text(outcome) or ""),
                remedy=self.redact(outcome.error.advice if outcome.error else ""),
            ).record()
            for outcome in failed
        ]
        if entries:
            self.books.state.put(entries)
        heard: list[Listener | None] = [written, self.lineage.hear if self.lineage else None]
        for hear in filter(None, heard):
            for outcome in failed:
                where = (self.run_id, self.pipeline, outcome.table, outcome.stage)
                hear(PlannedEvent(*where, outcome.plan))
                error = self.redact(error_text(outcome) or "")
                hear(TableFinished(*where, outcome.status, outcome.applied, 0, 0.0, error))


def _strategy(spec: PipelineSpec) -> str:
    tables = f"{spec.parallel} tables at once" if spec.parallel > 1 else "one table after the other"
    return f"{tables}, readers inside each: {spec.readers or 'one per core'}"

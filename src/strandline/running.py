"""One run of a pipeline over its stages: its record in the history, its tables with and without work, its outcomes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta

from strandline.core.books import Books, Caller, TableRun
from strandline.core.errors import ConfigError, ConflictError, StrandlineError
from strandline.core.events import Event, Held, Listener, Skipped, TableEvent, TableFinished, Warned
from strandline.core.events import Planned as PlannedEvent
from strandline.core.plan import Planned
from strandline.core.position import Status
from strandline.core.protocols import Record
from strandline.core.run import Hop, Outcome
from strandline.core.table import EXTRACT
from strandline.maintain import maintain_due
from strandline.pipeline import Pipeline
from strandline.result import error_text, idle


@dataclass
class Running:
    """From the first table that has work to the last: a run that moves nothing leaves no trace in the history."""

    run_id: str
    pipeline: str
    books: Books
    caller: Caller
    emit: Listener
    redact: Callable[[str], str]
    outcomes: list[Outcome] = field(default_factory=list)
    record: Record | None = None

    def carry_out(self, opened: Pipeline, planned: Sequence[Planned]) -> list[Outcome]:
        """The plans of one stage: what has no work is told, the rest is done, and targets are tidied up."""
        written = self._history(opened)
        hop = self._hop(opened, written)
        self._warn(opened, opened.source.warnings)
        outcomes = {part.table.name: self._without_work(part) for part in planned if not part.plan.work}
        work = [part for part in planned if part.plan.work]
        if work or any(outcome.status is Status.FAILED for outcome in outcomes.values()):
            self._begin(len(planned))
            earlier = {*(part.position.run_id for part in work), *self.books.silent(self.pipeline)}
            self.books.close_abandoned(earlier - {self.run_id})
            self._record_stopped(outcomes.values(), written)
            outcomes |= self._done(hop, work)
        self._warn(opened, opened.sink.warnings)
        self._maintain(hop, opened, [part for part in work if not outcomes[part.table.name].error])
        found = [outcomes[part.table.name] for part in planned]
        self.outcomes += found
        return found

    def rest(self, planned: Sequence[Planned]) -> None:
        """Positions of tables without work, in one write: idle ones move up to a proven horizon, errors are kept."""
        rested = [(part.position, part.resting()) for part in planned if not part.plan.work]
        moved = [replace(after, error=self.redact(after.error)) for before, after in rested if after != before]
        if moved:
            try:
                self.books.write(moved)
            except ConflictError:
                return  # another run moved one of them since we looked; what it wrote is newer than ours

    def end(self, keep: timedelta, error: str = "") -> None:
        """Close the record, if there is one. `error`: what kept a whole stage from being planned."""
        if self.record is None:
            return
        failed = next((outcome for outcome in self.outcomes if outcome.error), None)
        stopped = self.books.state.read("table_run", [self.run_id], where={"status": Status.FAILED.value})
        first = str(failed.error) if failed else str(stopped[0].fields["error"]) if stopped else error
        self.books.run_ended(self.record, Status.FAILED if first else Status.COMPLETED, first)
        self.books.prune(keep)

    def _history(self, opened: Pipeline) -> Listener | None:
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
        history = opened.sink.history()

        def hear(event: Event) -> None:
            try:
                history.hear(event)
            except StrandlineError as error:
                said = self.redact(f"the target's history was not written: {error}")
                assert isinstance(event, TableEvent)
                self.emit(Warned(event.run_id, event.pipeline, event.table, event.stage, said))

        return hear

    def _hop(self, opened: Pipeline, written: Listener | None) -> Hop:
        def heard(event: Event) -> None:
            self.emit(event)
            if written:
                written(event)

        return Hop(
            self.run_id,
            self.pipeline,
            opened.source,
            opened.sink,
            self.books,
            heard,
            parallel=opened.spec.parallel,
            redact=self.redact,
        )

    def _begin(self, tables: int) -> None:
        if self.record is None:
            self.record = self.books.run_started(self.run_id, self.pipeline, self.caller, tables)

    def _done(self, hop: Hop, work: Sequence[Planned]) -> dict[str, Outcome]:
        try:
            return {outcome.table: outcome for outcome in hop.run(work, self.books.leases(self.pipeline))}
        except KeyboardInterrupt:
            assert self.record is not None
            self.books.run_ended(self.record, Status.FAILED, "interrupted")
            raise

    def _warn(self, opened: Pipeline, warnings: Sequence[tuple[str, str]]) -> None:
        for table, message in warnings:
            self.emit(Warned(self.run_id, self.pipeline, table, opened.stage, self.redact(message)))

    def _maintain(self, hop: Hop, opened: Pipeline, done: Sequence[Planned]) -> None:
        if opened.spec.maintain is not None:
            maintain_due(hop, (part.table for part in done), opened.spec.maintain)

    def _without_work(self, part: Planned) -> Outcome:
        """A table that moves nothing this time: up to date, held, busy elsewhere, or stopped by an error."""
        where = (self.run_id, self.pipeline, part.table.name, part.table.stage)
        if part.plan.held_by:
            self.emit(Held(*where, part.plan.held_by))
        elif idle(part.plan):
            self.emit(Skipped(*where, part.plan))
        status = Status.SKIPPED if idle(part.plan) else Status.FAILED
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
            ).record()
            for outcome in failed
        ]
        if entries:
            self.books.state.put(entries)
        if written is None:
            return
        for outcome in failed:
            where = (self.run_id, self.pipeline, outcome.table, outcome.stage)
            written(PlannedEvent(*where, outcome.plan))
            error = self.redact(error_text(outcome) or "")
            written(TableFinished(*where, outcome.status, outcome.applied, 0, 0.0, error))

"""The project: a config brought to life. `plan` and `sync` of the Python API, used by the CLI and the service alike."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from strandline.config import Config, PipelineSpec, load_config
from strandline.core.backfill import plan_backfill
from strandline.core.books import Books, Caller, Key, TableRun, new_id
from strandline.core.errors import ConfigError, ConflictError, RunFailedError, StateError
from strandline.core.events import Event, Held, Listener, RunFinished, RunStarted, Skipped, Warned
from strandline.core.plan import Ask, Planned, make_plan
from strandline.core.position import Position, Status
from strandline.core.protocols import Record, Spark
from strandline.core.retry import retried
from strandline.core.run import Hop, Outcome
from strandline.core.table import Table
from strandline.maintain import maintain_due
from strandline.pipeline import SYNC, Pipeline
from strandline.result import PipelinePlan, RunResult, error_text, idle, worst
from strandline.state import open_state

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from strandline.verify.verdict import Verdict


def load(path: str | Path | None = None) -> Project:
    """The project of a config file; without a path: STRANDLINE_CONFIG, or strandline.yml upward from here."""
    return Project(load_config(Path(path) if path else None))


def _nobody(_: Event) -> None:
    """Listens to nothing."""


class Project:
    def __init__(self, config: Config) -> None:
        self.config = config
        self._books: Books | None = None
        self._own_spark: SparkSession | None = None
        self._needs: list[str] = []  # what our session was made for
        self._lock = threading.Lock()

    def __enter__(self) -> Project:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the state and stop the Spark session, if this project made one."""
        if self._books is not None:
            self._books.state.close()
            self._books = None
        if self._own_spark is not None:
            from strandline.spark.archive import build_in_background
            from strandline.spark.session import stop

            stop(self._own_spark)
            self._own_spark = None
            build_in_background(self._needs)

    @property
    def books(self) -> Books:
        if self._books is None:
            self._books = Books(open_state(self.config.state))
        return self._books

    def pipeline(self, name: str) -> PipelineSpec:
        try:
            return self.config.pipelines[name]
        except KeyError:
            known = ", ".join(sorted(self.config.pipelines)) or "none"
            raise ConfigError(f'no pipeline "{name}"', remedy=f"Pipelines in {self.config.path}: {known}") from None

    @contextmanager
    def opened(self, name: str, spark: SparkSession | None = None) -> Iterator[Pipeline]:
        with Pipeline(self.pipeline(name), self._spark(name, spark)) as pipeline:
            yield pipeline

    def plan(
        self, pipeline: str, *, tables: Collection[str] = (), limit: int | None = None, full: bool = False
    ) -> PipelinePlan:
        """What a sync would move now, without moving it. Starts no JVM and stores nothing."""
        with self.opened(pipeline) as opened:
            asks = self._asks(opened, tables, full)
            return self._shown(opened, make_plan(opened.source, asks, limit=limit, now=self.books.now()))

    def _shown(self, opened: Pipeline, planned: Sequence[Planned]) -> PipelinePlan:
        spec = opened.spec
        return PipelinePlan(
            spec.name,
            str(spec.source),
            ", ".join(str(target) for target in spec.targets.values()),
            spec.guard.total_seconds(),
            tuple(part.plan for part in planned),
            tuple(part.error for part in planned if part.error),
            tuple(opened.source.warnings),
        )

    def sync(
        self,
        pipeline: str,
        *,
        tables: Collection[str] = (),
        spark: SparkSession | None = None,
        limit: int | None = None,
        full: bool = False,
        listener: Listener = _nobody,
        caller: Caller | None = None,
        raise_on_failure: bool = False,
    ) -> RunResult:
        """Move what is new. Every table's outcome is in the result; one table's failure leaves the others alone.

        `spark`: a session the caller owns; without it a local one is made when the first rows must move.
        """

        def planning(opened: Pipeline, run_id: str) -> list[Planned]:
            asks = self._asks(opened, tables, full)
            return make_plan(opened.source, asks, run_id=run_id, limit=limit, now=self.books.now())

        # A reload that cannot start leaves the position as it is.
        return self._run(
            pipeline,
            planning,
            spark=spark,
            listener=listener,
            caller=caller or Caller.here("api"),
            resting=not full,
            raise_on_failure=raise_on_failure,
        )

    def backfill(
        self,
        pipeline: str,
        table: str,
        *,
        start: str | None = None,
        end: str | None = None,
        spark: SparkSession | None = None,
        listener: Listener = _nobody,
        caller: Caller | None = None,
        raise_on_failure: bool = False,
    ) -> RunResult:
        """Read `[start, end)` of one table's cursor again and merge it: the watermark stays, newer rows win.

        Without `start` from the beginning, without `end` up to the watermark. Raises what speaks against it.
        """

        def planning(opened: Pipeline, run_id: str) -> list[Planned]:
            (ask,) = self._asks(opened, [table], full=False)
            return [plan_backfill(opened.source, ask, start, end, run_id=run_id)]

        return self._run(
            pipeline,
            planning,
            spark=spark,
            listener=listener,
            caller=caller or Caller.here("api"),
            resting=False,
            raise_on_failure=raise_on_failure,
        )

    def plan_backfill(
        self, pipeline: str, table: str, *, start: str | None = None, end: str | None = None
    ) -> PipelinePlan:
        """What a backfill would read, without reading it."""
        with self.opened(pipeline) as opened:
            (ask,) = self._asks(opened, [table], full=False)
            return self._shown(opened, [plan_backfill(opened.source, ask, start, end)])

    def _run(
        self,
        pipeline: str,
        planning: Callable[[Pipeline, str], list[Planned]],
        *,
        spark: SparkSession | None,
        listener: Listener,
        caller: Caller,
        resting: bool,
        raise_on_failure: bool,
    ) -> RunResult:
        """Plan, carry out, tidy up, sum up. `resting`: tables without work are written down as such."""
        books, started = self.books, time.monotonic()
        run_id = new_id(books.state.now())
        with self.opened(pipeline, spark) as opened:
            planned = retried(lambda: planning(opened, run_id), lambda _, wait: time.sleep(wait))
            hop = self._new_hop(run_id, opened, listener)
            listener(RunStarted(run_id, pipeline, len(planned)))
            self._warn(hop, opened.source.warnings)
            if resting:
                self._write_idle(planned)
            outcomes = self._carry_out(hop, planned, caller)
            self._warn(hop, opened.sink.warnings)
            if opened.spec.maintain is not None:
                moved = {outcome.table for outcome in outcomes if outcome.batches and not outcome.error}
                maintain_due(hop, (part.table for part in planned if part.table.name in moved), opened.spec.maintain)
        result = RunResult(run_id, pipeline, worst(outcomes), outcomes, time.monotonic() - started)
        listener(RunFinished(run_id, pipeline, result.status, result.seconds))
        if raise_on_failure and result.failed:
            failed = [error_text(outcome) for outcome in outcomes if outcome.status is Status.FAILED]
            raise RunFailedError(f"run {run_id}: {len(failed)} of {len(outcomes)} tables failed: {failed[0]}")
        return result

    def verify(
        self,
        pipeline: str,
        *,
        tables: Collection[str] = (),
        spark: SparkSession | None = None,
        repair: bool = False,
        delete: bool = False,
        delete_fraction: float = 0.01,
        listener: Listener = _nobody,
        caller: Caller | None = None,
    ) -> tuple[Verdict, ...]:
        """Compare source and target below each table's watermark, inside each system.

        `repair`: then make the parts that differ equal, by a run of its own. Rows that the source does not have are
        deleted only with `delete`, and only if they are at most `delete_fraction` of the target's rows.
        """
        from strandline.verify.run import Deleting, Verifier

        run_id = new_id(self.books.state.now())
        with self.opened(pipeline, spark) as opened:
            hop = self._new_hop(run_id, opened, listener)
            verifier = Verifier(run_id, opened.source, opened.sink, listener, hop.redact)
            found = [verifier.verify(ask) for ask in self._asks(opened, tables, full=False)]
            if not repair:
                return tuple(part.verdict for part in found)
            started = caller or Caller.here("api")
            deleting = Deleting(delete, delete_fraction)
            return verifier.repair(found, deleting, lambda work: self._carry_out(hop, work, started))

    def _new_hop(self, run_id: str, opened: Pipeline, listener: Listener) -> Hop:
        return Hop(
            run_id,
            opened.spec.name,
            opened.source,
            opened.sink,
            self.books,
            listener,
            parallel=opened.spec.parallel,
            redact=self.config.redactor.redact,
        )

    def _warn(self, hop: Hop, warnings: Sequence[tuple[str, str]]) -> None:
        for table, message in warnings:
            hop.emit(Warned(hop.run_id, hop.pipeline, table, SYNC, hop.redact(message)))

    def _carry_out(self, hop: Hop, planned: Sequence[Planned], caller: Caller) -> tuple[Outcome, ...]:
        outcomes = {part.table.name: self._without_work(hop, part) for part in planned if not part.plan.work}
        work = [part for part in planned if part.plan.work]
        troubled = any(outcome.status is Status.FAILED for outcome in outcomes.values())
        if work or troubled:
            run = hop.books.run_started(hop.run_id, hop.pipeline, caller, len(planned))
            hop.books.close_abandoned([*(part.position.run_id for part in work), *hop.books.silent(hop.pipeline)])
            self._record_stopped(hop, outcomes)
            outcomes |= self._hop(hop, run, work)
            hop.books.prune(self.config.keep)
        return tuple(outcomes[part.table.name] for part in planned)

    def _hop(self, hop: Hop, run: Record, work: Sequence[Planned]) -> dict[str, Outcome]:
        try:
            done = {outcome.table: outcome for outcome in hop.run(work, hop.books.leases(hop.pipeline))}
        except KeyboardInterrupt:
            hop.books.run_ended(run, Status.FAILED, "interrupted")
            raise
        failed = [outcome for outcome in done.values() if outcome.error]
        stopped = hop.books.state.read("table_run", [hop.run_id], where={"status": Status.FAILED.value})
        first = str(failed[0].error) if failed else str(stopped[0].fields["error"]) if stopped else ""
        hop.books.run_ended(run, Status.FAILED if first else Status.COMPLETED, first)
        return done

    def _without_work(self, hop: Hop, part: Planned) -> Outcome:
        """A table that moves nothing this time: up to date, held, busy elsewhere, or stopped by an error."""
        where = (hop.run_id, hop.pipeline, part.table.name, part.table.stage)
        if part.plan.held_by:
            hop.emit(Held(*where, part.plan.held_by))
        elif idle(part.plan):
            hop.emit(Skipped(*where, part.plan))
        status = Status.SKIPPED if idle(part.plan) else Status.FAILED
        return Outcome(part.table.name, part.table.stage, status, part.plan, error=part.error)

    def _write_idle(self, planned: Sequence[Planned]) -> None:
        """Positions of tables without work, in one write: idle ones move up to a proven horizon, errors are kept."""
        rested = [(part.position, part.resting()) for part in planned if not part.plan.work]
        moved = [
            replace(after, error=self.config.redactor.redact(after.error))
            for before, after in rested
            if after != before
        ]
        if moved:
            try:
                self.books.write(moved)
            except ConflictError:
                return  # another run moved one of them since we looked; what it wrote is newer than ours

    def _record_stopped(self, hop: Hop, outcomes: dict[str, Outcome]) -> None:
        at = hop.books.now()
        entries = [
            TableRun(
                hop.run_id,
                hop.pipeline,
                outcome.table,
                outcome.stage,
                Status.FAILED,
                outcome.plan,
                at,
                at,
                error=self.config.redactor.redact(error_text(outcome) or ""),
            ).record()
            for outcome in outcomes.values()
            if outcome.status is Status.FAILED
        ]
        if entries:
            hop.books.state.put(entries)

    def _asks(self, opened: Pipeline, only: Collection[str], full: bool) -> list[Ask]:
        """Tables with their positions, and who is at work on them."""
        resolved = opened.tables(only)
        unreadable: dict[Key, StateError] = {}
        positions = self.books.positions(opened.spec.name, unreadable=unreadable)
        leases = self.books.leases(opened.spec.name)
        now = self.books.state.now()
        asks = []
        for part in resolved:
            table, key = part.table, (part.table.pipeline, part.table.name, part.table.stage)
            position = positions.get(key) or Position(*key)
            error = part.error or self.books.unreadable_at(unreadable, key)
            lease = leases.get(table.name)
            busy = f"{lease.holder}, run {lease.run_id}" if lease and lease.held(now) else ""
            if full and not error and not busy:
                position = self._restarted(opened, table, position)
            asks.append(
                Ask(
                    table,
                    position,
                    {} if error else opened.measures(table),
                    busy=busy,
                    full=full,
                    resume=opened.spec.unfinished == "resume",
                    error=error,
                )
            )
        return asks

    def _restarted(self, opened: Pipeline, table: Table, position: Position) -> Position:
        """Before a full reload: no watermark, and a batch number above whatever the target holds."""
        receipt = opened.sink.applied(table)
        batch = receipt.batch if receipt else None
        epoch = max(position.epoch, batch.epoch if batch else 0, receipt.epoch if receipt else 0)
        return replace(replace(position, epoch=epoch, batch=batch).moved(None), batch=batch)

    def _spark(self, name: str, given: SparkSession | None) -> Spark:
        """Gives the caller's session, or makes ours at the first call, with the jars this pipeline needs."""

        def session() -> SparkSession:
            if given is not None:
                return given
            with self._lock:
                if self._own_spark is None:
                    from strandline.spark.session import local_session

                    spec, settings = self.pipeline(name), self.config.spark
                    ends = (spec.source, *spec.targets.values())
                    self._needs = sorted({end.scheme for end in ends})
                    self._own_spark = local_session(self._needs, settings.conf, settings.master, f"strandline {name}")
            return self._own_spark

        return session

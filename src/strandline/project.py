"""The project: a config brought to life. `plan` and `sync` of the Python API, used by the CLI and the service alike."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from strandline.config import Config, PipelineSpec, load_config
from strandline.core.backfill import plan_backfill
from strandline.core.books import Books, Caller, Key, new_id
from strandline.core.errors import ConfigError, RunFailedError, StateError, StrandlineError
from strandline.core.events import Event, Listener, RunFinished, RunStarted
from strandline.core.plan import Ask, Planned, make_plan
from strandline.core.position import Position, Status
from strandline.core.protocols import Spark
from strandline.core.retry import retried
from strandline.core.run import Outcome
from strandline.core.table import EXTRACT, Table
from strandline.pipeline import Pipeline, one_stage, reads_source, some_stages
from strandline.result import PipelinePlan, RunResult, error_text, joined, worst
from strandline.running import Running
from strandline.state import open_state

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from strandline.verify.verdict import Verdict


def load(path: str | Path | None = None) -> Project:
    """The project of a config file; without a path: STRANDLINE_CONFIG, or strandline.yml upward from here."""
    return Project(load_config(Path(path) if path else None))


def _nobody(_: Event) -> None:
    """Listens to nothing."""


Planning = Callable[[Pipeline], list[Planned]]


@dataclass(frozen=True)
class _Way:
    """A stage that is to run, and how it is planned. `resting`: tables without work are written down as such."""

    stage: str
    planning: Planning
    resting: bool

    def planned(self, opened: Pipeline) -> list[Planned]:
        return retried(lambda: self.planning(opened), lambda _, wait: time.sleep(wait))


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
    def opened(self, name: str, stage: str = "", spark: SparkSession | None = None) -> Iterator[Pipeline]:
        """One stage of a pipeline; without a name its first, which reads the source."""
        spec = self.pipeline(name)
        with Pipeline(spec, one_stage(spec, stage), self._spark(name, spark)) as pipeline:
            yield pipeline

    def plan(
        self,
        pipeline: str,
        *,
        tables: Collection[str] = (),
        stages: Collection[str] = (),
        limit: int | None = None,
        full: bool = False,
    ) -> PipelinePlan:
        """What a sync would move now, without moving it. Starts no JVM and stores nothing."""
        shown = []
        for stage in some_stages(self.pipeline(pipeline), stages):
            with self.opened(pipeline, stage) as opened:
                asks = self._asks(opened, tables, full and not opened.staged)
                shown.append(self._shown(opened, make_plan(opened.source, asks, limit=limit, now=self.books.now())))
        return joined(shown)

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
            spec.via,
        )

    def sync(
        self,
        pipeline: str,
        *,
        tables: Collection[str] = (),
        stages: Collection[str] = (),
        spark: SparkSession | None = None,
        limit: int | None = None,
        full: bool = False,
        listener: Listener = _nobody,
        caller: Caller | None = None,
        raise_on_failure: bool = False,
    ) -> RunResult:
        """Move what is new. Every table's outcome is in the result; one table's failure leaves the others alone.

        `stages`: only these (`extract`, `load`, `load:NAME`). `spark`: a session the caller owns; without it a local
        one is made when the first rows must move.
        """
        running = self._running(pipeline, listener, caller)
        ways = [
            # A reload that cannot start leaves the position as it is.
            _Way(stage, self._planning(running, tables, limit, full), resting=not full)
            for stage in some_stages(self.pipeline(pipeline), stages)
        ]
        return self._run(running, ways, spark, raise_on_failure)

    def _planning(self, running: Running, tables: Collection[str], limit: int | None, full: bool = False) -> Planning:
        def planning(opened: Pipeline) -> list[Planned]:
            asks = self._asks(opened, tables, full and not opened.staged)
            return make_plan(opened.source, asks, run_id=running.run_id, limit=limit, now=self.books.now())

        return planning

    def backfill(
        self,
        pipeline: str,
        table: str,
        *,
        start: str | None = None,
        end: str | None = None,
        stages: Collection[str] = (),
        spark: SparkSession | None = None,
        listener: Listener = _nobody,
        caller: Caller | None = None,
        raise_on_failure: bool = False,
    ) -> RunResult:
        """Read `[start, end)` of one table's cursor again and merge it: the watermark stays, newer rows win.

        Without `start` from the beginning, without `end` up to the watermark. Raises what speaks against it. With a
        stage the range is staged, and loaded like anything that is.
        """
        running = self._running(pipeline, listener, caller)

        def planning(opened: Pipeline) -> list[Planned]:
            (ask,) = self._asks(opened, [table], full=False)
            return [plan_backfill(opened.source, ask, start, end, run_id=running.run_id)]

        loading = self._planning(running, [table], None)
        spec = self.pipeline(pipeline)
        ways = [
            _Way(stage, planning if reads_source(spec, stage) else loading, resting=False)
            for stage in some_stages(spec, stages)
        ]
        return self._run(running, ways, spark, raise_on_failure)

    def plan_backfill(
        self, pipeline: str, table: str, *, start: str | None = None, end: str | None = None
    ) -> PipelinePlan:
        """What a backfill would read, without reading it."""
        with self.opened(pipeline) as opened:
            (ask,) = self._asks(opened, [table], full=False)
            return self._shown(opened, [plan_backfill(opened.source, ask, start, end)])

    def _running(self, pipeline: str, listener: Listener, caller: Caller | None) -> Running:
        run_id = new_id(self.books.state.now())
        started = caller or Caller.here("api")
        return Running(run_id, pipeline, self.books, started, listener, self.config.redactor.redact)

    def _run(
        self, running: Running, ways: Sequence[_Way], spark: SparkSession | None, raise_on_failure: bool
    ) -> RunResult:
        """Stage by stage: plan, carry out. What keeps one stage from being planned is raised when the others are done:
        what is staged can be loaded while the source is away."""
        started, run_id, name = time.monotonic(), running.run_id, running.pipeline
        trouble: StrandlineError | None = None
        for number, way in enumerate(ways):
            with self.opened(name, way.stage, spark) as opened:
                try:
                    planned = way.planned(opened)
                except StrandlineError as error:
                    trouble = trouble or error
                    continue
                if number == 0:
                    running.emit(RunStarted(run_id, name, len(planned)))
                if way.resting:
                    running.rest(planned)
                running.carry_out(opened, planned)
        running.end(self.config.keep, str(trouble or ""))
        if trouble is not None:
            raise trouble
        outcomes = tuple(running.outcomes)
        result = RunResult(run_id, name, worst(outcomes), outcomes, time.monotonic() - started)
        running.emit(RunFinished(run_id, name, result.status, result.seconds))
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

        running = self._running(pipeline, listener, caller)
        verdicts: list[Verdict] = []
        for stage in (stage for stage in some_stages(self.pipeline(pipeline), ()) if stage != EXTRACT):
            with self.opened(pipeline, stage, spark) as end, self._origin(end, spark) as origin:
                asks = self._asks(origin, tables, full=False)
                verifier = Verifier(running.run_id, origin.source, end.sink, listener, running.redact)
                found = [verifier.verify(ask) for ask in (self._loaded(end, asks) if end.staged else asks)]
                if not repair:
                    verdicts += [part.verdict for part in found]
                    continue
                repairing = self._repairing(running, origin, end, asks)
                verdicts += verifier.repair(found, Deleting(delete, delete_fraction), repairing)
        running.end(self.config.keep)
        return tuple(verdicts)

    @contextmanager
    def _origin(self, end: Pipeline, spark: SparkSession | None) -> Iterator[Pipeline]:
        """The hop that reads the database which a target is a copy of."""
        if end.staged:
            with self.opened(end.spec.name, EXTRACT, spark) as opened:
                yield opened
        else:
            yield end

    def _loaded(self, end: Pipeline, asks: Sequence[Ask]) -> list[Ask]:
        from strandline.stage.source import StageSource
        from strandline.verify.staged import as_loaded

        assert isinstance(end.source, StageSource)
        positions = self.books.positions(end.spec.name)
        loaded = []
        for ask in asks:
            key = (ask.table.pipeline, ask.table.name, end.stage)
            position = positions.get(key) or Position(*key)
            loaded.append(as_loaded(ask, position, end.source.reached(ask.table, position.watermark)))
        return loaded

    def _repairing(
        self, running: Running, origin: Pipeline, end: Pipeline, asks: Sequence[Ask]
    ) -> Callable[[list[Planned]], Sequence[Outcome]]:
        """How a repair's plans are carried out: as they are, or through the stage."""
        from strandline.verify.staged import as_extract, furthest

        asked = {ask.table.name: ask for ask in asks}

        def repairing(work: list[Planned]) -> Sequence[Outcome]:
            if not end.staged:
                return running.carry_out(end, work)
            extracted = running.carry_out(origin, [as_extract(part, asked[part.table.name]) for part in work])
            names = [part.table.name for part in work]
            return furthest(extracted, running.carry_out(end, self._planning(running, names, None)(end)))

        return repairing

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
                    from strandline.spark.storage import needs, session_settings

                    spec, settings = self.pipeline(name), self.config.spark
                    ends = (spec.source, *filter(None, [spec.stage]), *spec.targets.values())
                    self._needs = needs(ends)
                    conf = {**session_settings(ends), **settings.conf}
                    self._own_spark = local_session(self._needs, conf, settings.master, f"strandline {name}")
            return self._own_spark

        return session

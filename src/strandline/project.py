"""The project: a config brought to life. `plan` and `sync` of the Python API, used by the CLI and the service alike."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from strandline.ahead import imported_ahead
from strandline.config import Config, LineageSpec, PipelineSpec, load_config
from strandline.core.backfill import plan_backfill
from strandline.core.batch import NO_MEMORY
from strandline.core.books import Books, Caller, Key, new_id
from strandline.core.errors import ConfigError, RunFailedError, SetupError, StateError, StrandlineError
from strandline.core.events import Event, Listener, RunFinished, RunStarted
from strandline.core.once import Once
from strandline.core.plan import Ask, Planned, make_plans
from strandline.core.position import Position, Status
from strandline.core.protocols import Spark
from strandline.core.retry import retried
from strandline.core.run import Outcome
from strandline.core.table import EXTRACT, SYNC, Table
from strandline.core.watermark import Watermark
from strandline.pipeline import Pipeline, Resolved, one_stage, some_stages, together
from strandline.result import PipelinePlan, RunResult, joined, worst
from strandline.running import Running, Unattended
from strandline.spark.own import OwnSpark
from strandline.spark.work import expected
from strandline.state import open_state

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from strandline.lineage.sending import Outbox
    from strandline.verify.verdict import Verdict


T = TypeVar("T")


def load(path: str | Path | None = None, *, spark: SparkSession | None = None) -> Project:
    """The project of a config file; without a path: STRANDLINE_CONFIG, or strandline.yml upward from here. `spark`: a
    session the caller owns, for all that needs one."""
    return Project(load_config(Path(path) if path else None), spark)


def _nobody(_: Event) -> None:
    """Listens to nothing."""


Planning = Callable[[Sequence[Pipeline]], "list[list[Planned] | StrandlineError]"]
"""Plans for hops over one source, or what keeps one of them from being planned. Raises what keeps all of them."""


@dataclass(frozen=True)
class _Way:
    """Stages that run side by side, and how they are planned. `resting`: tables without work are written down as such.
    `needed`: the stages after them wait for them."""

    stages: tuple[str, ...]
    planning: Planning
    resting: bool
    needed: bool = False

    def planned(self, hops: Sequence[Pipeline]) -> list[list[Planned] | StrandlineError]:
        try:
            return _patiently(lambda: self.planning(hops))
        except StrandlineError as error:
            return [error.at(hops[0].spec.name) if len(hops) > 1 else error for _ in hops]


def _patiently(attempt: Callable[[], T]) -> T:
    return retried(attempt, lambda _, wait: time.sleep(wait))


def _alone(attempt: Callable[[], T]) -> T | StrandlineError:
    """What keeps one target from being planned is in nobody else's way."""
    try:
        return _patiently(attempt)
    except StrandlineError as error:
        return error


class Project:
    def __init__(self, config: Config, spark: SparkSession | None = None) -> None:
        self.config = config
        self._given_spark = spark
        self._books: Books | None = None
        self.own_spark = OwnSpark()
        self.about: tuple[str, ...] = ()  # the pipelines that a session of ours is made for; none: all of the config
        self.once = False  # our session is for one run, and can be made for what that run is going to move
        self._lock = threading.RLock()
        self.lineage = self._lineage()

    def _lineage(self) -> Outbox | None:
        """None where the config wants no lineage."""
        if self.config.lineage == LineageSpec():
            return None
        from strandline.lineage.sending import outbox

        return outbox(self.config)

    def __enter__(self) -> Project:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the state and stop the Spark session, if this project made one."""
        if self.lineage is not None:
            self.lineage.flush()
        if self._books is not None:
            self._books.state.close()
            self._books = None
        self.own_spark.close()

    def succeeded(self, config: Config) -> Project:
        """The project of another config, which takes over what is open here, where it still fits. This one goes on
        working until its last run has ended, and is not closed."""
        project = Project(config, self._given_spark)
        project.own_spark = self.own_spark
        if config.lineage == self.config.lineage:
            project.lineage = self.lineage
        if config.state == self.config.state:
            project._books = self._books
        elif self._books is not None:
            self._books.state.close()  # who still uses it connects it again
        return project

    @property
    def books(self) -> Books:
        with self._lock:
            if self._books is None:
                self._books = Books(open_state(self.config.state, self._state_spark))
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
        with Pipeline(spec, one_stage(spec, stage), self._spark(spark)) as pipeline:
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
        for way in together(self.pipeline(pipeline), stages):
            with self.opened(pipeline, way[0]) as opened:
                hops, resolved = [opened.beside(stage) for stage in way], opened.tables(tables)
                asks = [self._asks(hop, resolved, full and not hop.staged) for hop in hops]
                plans = make_plans(opened.source, asks, limit=limit, now=self.books.now())
                shown += [self._shown(hop, planned) for hop, planned in zip(hops, plans, strict=True)]
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
            str(spec.stage or ""),
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
        unattended: Unattended | None = None,
        resume: bool = False,
    ) -> RunResult:
        """Move what is new. Every table's outcome is in the result; one table's failure leaves the others alone, and so
        does a stage that cannot be planned. Raises only if none can.

        `stages`: only these (`extract`, `load`, `load:NAME`). `spark`: a session the caller owns; without it a local
        one is made when the first rows must move. `unattended`: by a service; LeaseError if another one makes this run.
        `resume`: what was left unfinished is carried out though the config says `unfinished: stop`.
        """
        running = self._running(pipeline, listener, caller, spark, unattended)
        ways = [
            # A reload that cannot start leaves the position as it is.
            _Way(way, self._planning(running, tables, limit, full, resume), resting=not full)
            for way in together(self.pipeline(pipeline), stages)
        ]
        return self._run(running, ways, spark, raise_on_failure)

    def _planning(
        self, running: Running, tables: Collection[str], limit: int | None, full: bool = False, resume: bool = False
    ) -> Planning:
        def asked(hop: Pipeline, resolved: Sequence[Resolved]) -> list[Ask]:
            asks = self._asks(hop, resolved, full)
            return [replace(ask, resume=True) for ask in asks] if resume else asks

        def once(hops: Sequence[Pipeline]) -> list[list[Planned] | StrandlineError]:
            resolved = hops[0].tables(tables)
            asks = [_alone(partial(asked, hop, resolved)) for hop in hops]
            answered = [ask for ask in asks if not isinstance(ask, StrandlineError)]
            now = self.books.now()
            plans = iter(make_plans(hops[0].source, answered, run_id=running.run_id, limit=limit, now=now))
            return [ask if isinstance(ask, StrandlineError) else next(plans) for ask in asks]

        def planning(hops: Sequence[Pipeline]) -> list[list[Planned] | StrandlineError]:
            found = once(hops)
            planned = [part for parts in found if not isinstance(parts, StrandlineError) for part in parts]
            return once(hops) if any(part.plan.work for part in planned) and hops[0].renewed() else found

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
        running = self._running(pipeline, listener, caller, spark)

        def planning(hops: Sequence[Pipeline]) -> list[list[Planned] | StrandlineError]:
            resolved, source = hops[0].tables([table]), Once(hops[0].source)

            def backfill(hop: Pipeline) -> list[Planned]:
                (ask,) = self._asks(hop, resolved, full=False)
                return [plan_backfill(source, ask, start, end, run_id=running.run_id)]

            return [_alone(partial(backfill, hop)) for hop in hops]

        loading = self._planning(running, [table], None)
        spec = self.pipeline(pipeline)
        ways = [
            _Way(way, loading, resting=False)
            if spec.stage is not None and way != (EXTRACT,)
            else _Way(way, planning, resting=False, needed=spec.stage is not None)
            for way in together(spec, stages)
        ]
        return self._run(running, ways, spark, raise_on_failure)

    def plan_backfill(
        self, pipeline: str, table: str, *, start: str | None = None, end: str | None = None
    ) -> PipelinePlan:
        """What a backfill would read, without reading it."""
        with self.opened(pipeline) as opened:
            (ask,) = self._asks(opened, opened.tables([table]), full=False)
            return self._shown(opened, [plan_backfill(opened.source, ask, start, end)])

    def maintain(self, pipeline: str, *, tables: Collection[str] = (), listener: Listener = _nobody) -> None:
        """Tidy every target of the pipeline now, whatever its schedule says. Trouble with one is told as an event."""
        running = self._running(pipeline, listener, None, None)
        for stage in some_stages(self.pipeline(pipeline), ()):
            with self.opened(pipeline, stage) as opened:
                running.maintain(opened, [part.table for part in opened.tables(tables) if part.error is None])

    def _running(
        self,
        pipeline: str,
        listener: Listener,
        caller: Caller | None,
        spark: SparkSession | None,
        unattended: Unattended | None = None,
    ) -> Running:
        self._given_spark = self._given_spark or spark  # a state in a catalog is reached through it, too
        run_id = new_id(self.books.state.now())
        started = caller or Caller.here("api")
        running = Running(
            run_id, pipeline, self.books.another(), started, listener, self.config.redactor.redact, unattended
        )
        if self.lineage is not None:
            from strandline.lineage.hearing import Lineage

            running.lineage = Lineage(
                self.lineage.put,
                running.redact,
                self.config.lineage.namespace,
                run_id,
                self.pipeline(pipeline),
                started.trigger,
                running.stopping.is_set,
                unattended.nominal if unattended else None,
            )
        return running

    @contextmanager
    def _opened(self, running: Running, stage: str, spark: SparkSession | None) -> Iterator[Pipeline]:
        if running.unattended is None:
            with self.opened(running.pipeline, stage, spark) as pipeline:
                yield pipeline
            return
        spec = self.pipeline(running.pipeline)
        with running.unattended.warm.opened(spec, one_stage(spec, stage), self._spark(spark)) as pipeline:
            yield pipeline

    def _run(
        self, running: Running, ways: Sequence[_Way], spark: SparkSession | None, raise_on_failure: bool
    ) -> RunResult:
        """Stage by stage, and those of several targets side by side: plan, carry out. A stage that cannot be planned
        leaves the others alone: what is staged can be loaded while the source is away."""
        started, run_id, name = time.monotonic(), running.run_id, running.pipeline
        unplanned: list[StrandlineError] = []
        begun = False
        for way in ways:
            with self._opened(running, way.stages[0], spark) as opened:
                legs: list[tuple[Pipeline, list[Planned]]] = []
                hops = [opened.beside(stage) for stage in way.stages]
                for hop, found in zip(hops, way.planned(hops), strict=True):
                    if isinstance(found, StrandlineError):
                        unplanned += [found] if found not in unplanned else []  # one may stand in everybody's way
                        found.at(name if hop.stage == SYNC else f"{name}: {hop.stage}")
                    else:
                        legs.append((hop, found))
                if not legs:
                    if way.needed or (way is ways[-1] and not begun):
                        raise unplanned[0] from None
                    continue
                if not begun:
                    running.emit(RunStarted(run_id, name, len(legs[0][1])))
                begun = True
                if way.resting:
                    running.rest([part for _, planned in legs for part in planned])
                later = () if way is ways[-1] else self.pipeline(name).targets.values()
                if self.once:
                    into_lake = any(end.scheme == "delta" for end in self.pipeline(name).targets.values())
                    self.own_spark.work = expected(
                        (part for _, planned in legs for part in planned), into_lake=into_lake
                    )
                with imported_ahead(later):
                    running.carry_out(legs)
        outcomes, errors = tuple(running.outcomes), tuple(unplanned)
        first = errors[0] if errors else None
        running.end(self.config.keep, str(first or ""), remedy=first.advice if first else "")
        status = Status.FAILED if errors else worst(outcomes)
        result = RunResult(run_id, name, status, outcomes, time.monotonic() - started, errors)
        running.emit(RunFinished(run_id, name, result.status, result.seconds))
        if raise_on_failure and result.failed:
            raise RunFailedError(f"run {run_id}: {result.failure}")
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
        from strandline.operations.verified import note
        from strandline.verify.run import Deleting, Verifier

        verdicts: list[Verdict] = []
        with ExitStack() as opened:
            sides = []
            for stage in (stage for stage in some_stages(self.pipeline(pipeline), ()) if stage != EXTRACT):
                end = opened.enter_context(self.opened(pipeline, stage, spark))
                origin = opened.enter_context(self._origin(end, spark))
                asks = self._asks(origin, origin.tables(tables), full=False)
                running = self._running(pipeline, listener, caller, spark)  # each target's repair is a run of its own
                verifier = Verifier(running.run_id, origin.source, end.sink, listener, running.redact)
                found = [verifier.verify(ask) for ask in (self._loaded(end, asks) if end.staged else asks)]
                sides.append((origin, end, running, verifier, found))
            for origin, end, running, verifier, found in sides:
                if not repair:
                    verdicts += [part.verdict for part in found]
                    continue
                # What is staged goes into every target.
                others = [theirs for _, other, _, _, theirs in sides if end.staged and other is not end]
                beside = [part for theirs in others for part in theirs]
                repairing = self._repairing(running, origin, end, tables)
                verdicts += verifier.repair(found, Deleting(delete, delete_fraction), repairing, beside)
                running.end(self.config.keep)
        note(self.books.state, verdicts, self.config.redactor.redact)
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
        self, running: Running, origin: Pipeline, end: Pipeline, tables: Collection[str]
    ) -> Callable[[list[Planned]], Sequence[Outcome]]:
        """How a repair's plans are carried out: as they are, or through the stage."""
        from strandline.verify.staged import as_extract, furthest

        def repairing(work: list[Planned]) -> Sequence[Outcome]:
            if not end.staged:
                return running.carry_out([(end, work)])
            asked = {ask.table.name: ask for ask in self._asks(origin, origin.tables(tables), full=False)}
            extracted = running.carry_out([(origin, [as_extract(part, asked[part.table.name]) for part in work])])
            (loads,) = self._planning(running, [part.table.name for part in work], None)([end])
            if isinstance(loads, StrandlineError):
                raise loads
            return furthest(extracted, running.carry_out([(end, loads)]))

        return repairing

    def _asks(self, opened: Pipeline, resolved: Sequence[Resolved], full: bool) -> list[Ask]:
        """Tables with their positions in this stage, and who is at work on them."""
        unreadable: dict[Key, StateError] = {}
        positions = self.books.positions(opened.spec.name, unreadable=unreadable)
        leases = self.books.leases(opened.spec.name)
        now = self.books.state.now()
        asks = []
        for part in (found.into(opened.stage) for found in resolved):
            table, key = part.table, (part.table.pipeline, part.table.name, part.table.stage)
            position = positions.get(key) or Position(*key)
            error = part.error or self.books.unreadable_at(unreadable, key)
            lease = leases.get(table.name)
            busy = f"{lease.holder}, run {lease.run_id}" if lease and lease.held(now) else ""
            changed = table.schema == "reload" and not opened.staged and table.columns_changed(position.schema)
            again = bool(changed) or (full and not opened.staged)
            if again and not error and not busy:
                position = self._restarted(opened, table, position, None)
            elif full and not error and not busy and self._replaced(opened, table, position):
                position = self._restarted(opened, table, position, position.watermark)
            measures = {} if error else opened.measures(table)
            if opened.staged and not table.columns:  # nothing is staged: nobody can tell the key yet
                measures = position.measures
            asks.append(
                Ask(
                    table,
                    position,
                    measures,
                    busy=busy,
                    full=again,
                    resume=opened.spec.unfinished == "resume",
                    error=error,
                )
            )
        return asks

    def _restarted(self, opened: Pipeline, table: Table, position: Position, mark: Watermark | None) -> Position:
        """Before a full reload: no plan, and a batch number above whatever the target holds."""
        receipt = opened.sink.applied(table)
        batch = position.batch if receipt is NO_MEMORY else receipt.batch if receipt else None
        epoch = max(position.epoch, batch.epoch if batch else 0, receipt.epoch if receipt else 0)
        return replace(replace(position, epoch=epoch, batch=batch).moved(mark), batch=batch)

    def _replaced(self, opened: Pipeline, table: Table, position: Position) -> bool:
        """Whether what is staged and not loaded yet replaces the whole table: then nothing that came before it, a plan
        that cannot get past it least of all, is in the way."""
        from strandline.stage.source import StageSource

        assert isinstance(opened.source, StageSource)
        return opened.source.replaces(table, position.watermark)

    def _spark(self, given: SparkSession | None) -> Spark:
        """Gives the caller's session, or makes ours at the first call."""
        return lambda: given or self._given_spark or self._own()

    def _state_spark(self) -> SparkSession:
        """The session for a state in a catalog: the caller's, the active one, or ours where the config says which
        catalog that is."""
        from strandline.spark.active import active_session

        try:
            return self._given_spark or active_session()
        except SetupError as error:
            if any(key.startswith("spark.sql.catalog") for key in self.config.spark.conf):
                return self._own()
            raise ConfigError(
                f"the state {self.config.state} is reached through a Spark session, and none was given",
                remedy="Give yours: strandline.load(spark=spark), or sync(…, spark=spark).\n"
                "For the terminal, name the catalog's settings under `spark: conf:` (spark.sql.catalog…).",
                docs="docs/state.md#catalog",
            ) from error

    def _own(self) -> SparkSession:
        """Our session, made at the first call, for every pipeline that may come to it, and the state."""
        return self.own_spark.get(self.config, [self.pipeline(name) for name in self.about or self.config.pipelines])

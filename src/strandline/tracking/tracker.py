"""The Tracker: plans and watermarks for jobs that people write themselves, over any source.

The caller's own code is the sink, so nothing can be asked what it holds: a table has moved when the caller says so.
Everything else is as in any run: `make_plan`, the books, leases, history and events.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from strandline.config import Config, PipelineSpec
from strandline.config.specs import NAME
from strandline.core.books import LEASE_TIME, Books, Caller, Lease, new_id
from strandline.core.codec import position_record, record_position
from strandline.core.errors import ConfigError, ConflictError, StateError, WindowError
from strandline.core.events import Event, Listener
from strandline.core.plan import Planned
from strandline.core.position import Position
from strandline.core.process import user
from strandline.core.protocols import Source, Spark, State
from strandline.core.watermark import Watermark
from strandline.endpoint import ROLES, Endpoint
from strandline.result import PipelinePlan
from strandline.running import Running
from strandline.secrets import Redactor, looks_secret
from strandline.sources import MAX_WAIT, open_source
from strandline.sources.frame import Frame, FrameSource
from strandline.state import open_state
from strandline.tracking.names import Names, Settings, names
from strandline.tracking.planning import Planner, foreign
from strandline.tracking.run import Planning, TrackedRun
from strandline.tracking.together import ALL

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Origin = str | Endpoint | Source | Frame | Sequence[Frame]
_ATTEMPTS = 3


def _nobody(_: Event) -> None:
    """Listens to nothing."""


class Tracker:
    """The watermarks of one pipeline. Makes no Spark session and stops none; `close` ends what it opened itself."""

    def __init__(
        self,
        state: str | Path | Endpoint | State,
        *,
        pipeline: str,
        source: Origin | None = None,
        spark: SparkSession | None = None,
        tables: Names = (),
        overrides: Mapping[str, Settings] | None = None,
        exclude: Collection[str] = (),
        guard: timedelta = PipelineSpec.guard,
        max_wait: timedelta = MAX_WAIT,
        as_of: str | None = None,
        every: timedelta | None = None,
        stuck_after: timedelta | None = None,
        lease_time: timedelta = LEASE_TIME,
        keep: timedelta = Config.keep,
        listener: Listener = _nobody,
        **settings: Unpack[Settings],
    ) -> None:
        """`tables`: those that are meant where a call names none. `settings` hold for every table, `overrides` for the
        one they name. `source`: without one, Delta tables of the Spark session's current catalog, as `schema.table`.
        `max_wait`: how long transactions in flight are waited for before the horizon counts as held.
        `as_of`: Delta tables are read up to what was committed at this moment, one instant for all of them.
        `spark`: the caller's session, where a call passes none; else the one that is active.
        `every`: how often it is meant to run: `status` tells when a run has been missed. `stuck_after`: how long a plan
        may stay open before that is told (6 h).
        `lease_time`: after so long without a sign of life another job may take a run over.
        """
        if not NAME.fullmatch(pipeline):
            raise ConfigError(f'"{pipeline}" cannot name a pipeline', remedy='Use letters, digits, "_", "." and "-".')
        self.pipeline = pipeline
        self.listener = listener
        self.keep = keep
        self.prepared: dict[str, str] | None = None  # by `compat`: the runs whose plans were handed out, by table
        self._redactor = Redactor()
        self._guard, self._max_wait, self._as_of = guard, max_wait, as_of
        self._session = spark
        self._own_state = isinstance(state, str | Path | Endpoint)
        if isinstance(state, str | Path | Endpoint):
            state = open_state(self._place(state, "state"), self._spark(None))
        self.books = Books(state, lease_time=lease_time)
        address = self._place(source, "source") if isinstance(source, str | Endpoint) else Endpoint("file", pipeline)
        frames = [source] if isinstance(source, Frame) else source if isinstance(source, list | tuple) else []
        self._planner = Planner(
            pipeline,
            self.books,
            address,
            self._opening(source, address, frames),
            source is None or isinstance(source, str | Endpoint) or bool(frames),
            names(tables) or [frame.name for frame in frames],
            settings,
            dict(overrides or {}),
            tuple(exclude),
            every,
            stuck_after,
        )

    def __enter__(self) -> Tracker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the state, if the Tracker opened it."""
        if self._own_state:
            self.books.state.close()

    def plan(
        self,
        tables: Names = (),
        *,
        schemas: Names = (),
        spark: SparkSession | None = None,
        limit: int | None = None,
    ) -> PipelinePlan:
        """The windows that the next run will carry out, stored as PLANNED. A plan that was left unfinished is returned
        as it was written; a table whose last one is COMPLETED gets a new one, a new table its first position.
        """
        for _ in range(_ATTEMPTS):
            run_id = new_id(self.books.state.now())
            with self._planned(tables, schemas, spark, limit)(run_id) as work:
                planned = work.planned
                try:
                    self._store(planned, run_id)
                except ConflictError:
                    continue  # somebody else planned one of them since we looked: theirs is the plan
                return PipelinePlan(
                    self.pipeline,
                    str(self._planner.address),
                    "",
                    self._guard.total_seconds(),
                    tuple(part.plan for part in planned),
                    tuple(part.error for part in planned if part.error),
                    (*work.source.warnings, *work.notes),
                )
        raise StateError("others plan the same tables, again and again", where=self.pipeline, remedy="Try again.")

    def run(
        self,
        tables: Names = (),
        *,
        schemas: Names = (),
        spark: SparkSession | None = None,
        atomic: bool = False,
        strict: bool = True,
        limit: int | None = None,
        job_id: str = "",
        renew: bool = True,
    ) -> TrackedRun:
        """A run over these tables, for a `with` block: what is unfinished as it was planned, the others planned anew.

        `atomic`: the watermarks of all tables move in one write, or none does. `strict`: a table that cannot be planned
        stops the run before it starts; otherwise it is recorded as FAILED and the others go on. Not `renew`: the lease
        is not kept alive; whoever takes longer than it lasts can be taken over.
        """
        if atomic and not strict:
            raise ConfigError(
                "atomic=True moves all tables or none, and strict=False goes on without one that cannot be planned",
                where=self.pipeline,
                remedy="Leave one of the two out.",
            )
        if atomic and not self.books.state.atomic:
            raise ConfigError(
                "atomic=True: this state cannot write several tables in one",
                where=self.pipeline,
                remedy="Keep the state in an SQL database, or leave atomic out: then each table is done by itself.",
            )
        return self._tracked(
            self._running(Caller.here("tracker", job_id)),
            self._planned(tables, schemas, spark, limit),
            spark,
            atomic=atomic,
            strict=strict,
            renew=renew,
        )

    def run_together(
        self, *, spark: SparkSession | None = None, job_id: str = "", lease_time: timedelta = LEASE_TIME
    ) -> TrackedRun:
        """A run over one window of time for all tables, under one watermark. Its lease is not renewed."""
        books = Books(self.books.state, lease_time=lease_time)
        return self._tracked(
            self._running(Caller.here("tracker", job_id), books),
            lambda run_id: self._planner.together(self._spark(spark), run_id),
            spark,
            renew=False,
        )

    def resume(self, open_plans: Sequence[Position], *, atomic: bool = False) -> TrackedRun:
        """A run over plans as they were written; the source is not asked what there is."""
        for position in open_plans:
            if error := foreign(position):
                raise error
        running = self._running(Caller.here("tracker"))
        return self._tracked(
            running, lambda _: self._planner.as_written(open_plans, self._spark(None)), None, atomic=atomic
        )

    def horizons(self, tables: Names = (), *, spark: SparkSession | None = None) -> dict[str, Watermark | None]:
        """Up to where each table could be read now; None: not at all. Raises what keeps one of them from being read."""
        return self._planner.horizons(names(tables), self._spark(spark))

    def positions(self, tables: Names = ()) -> dict[str, Position]:
        """Where each table stands; none named: every table of the pipeline."""
        wanted = names(tables)
        found = {key[1]: position for key, position in self.books.positions(self.pipeline).items()}
        return {name: position for name, position in found.items() if not wanted or name in wanted}

    def move(self, table: str, value: str | None, *, why: str = "") -> Position:
        """Go on from another value of the cursor (a version, a time); None: from the beginning, or from `initial` where
        the table has one. Its plan is dropped: what was written for it with `run.txn` counts as never written. The
        history keeps who, why and what it was.

        LeaseError while a run is at work on the table. WindowError for a value beyond what can be read now: the source
        is asked if the table is to go on further than it stands.
        """
        before = self.positions(table).get(table)
        if before and (error := foreign(before)):
            raise error
        known = before and (before.watermark or (before.plan and before.plan.window and before.plan.window.high))
        if before is None or not known:
            raise StateError(
                "it has no watermark to move", where=f"{self.pipeline}.{table}", remedy="Give it a baseline: initial=…"
            )
        zone = before.measures.get("zone") or None
        mark = None if value is None else Watermark.parse(known.kind, value, zone)
        if mark is not None and mark > known:
            self._check_not_ahead(table, mark)
        after = before.moved(mark)
        lease = self.books.leases(self.pipeline).get(table) or Lease(self.pipeline, table)
        taken = replace(self.books.take(lease, ""), expires_at="")
        change = self.books.changed(before, after, "reset" if mark is None else "set", user(), why)
        at = replace(after, updated_at=self.books.now())
        # The lease first: a store that is not atomic stops there, and the position is untouched.
        stored = self.books.state.put([taken.record(), position_record(at), change])
        return record_position(stored[1])

    def _check_not_ahead(self, table: str, mark: Watermark) -> None:
        high = min((found for found in self.horizons(() if table == ALL else table).values() if found), default=None)
        if high is None or mark > high:
            raise WindowError(
                f"{mark} is in the future: it can be read up to {high or 'nothing'}",
                where=f"{self.pipeline}.{table}",
                why="Rows that are still to be written would lie below the watermark and never arrive.",
                remedy="Choose a value up to that one.",
            )

    def _store(self, planned: Sequence[Planned], run_id: str) -> None:
        self._running(Caller()).rest(planned)
        self.books.write(
            [
                part.position.planned(part.plan, dict(part.measures), part.table.schema_text(), run_id)
                for part in planned
                if part.plan.work and part.position.plan is None
            ]
        )

    def _planned(self, tables: Names, schemas: Names, spark: SparkSession | None, limit: int | None) -> Planning:
        wanted = [*names(tables), *(f"{schema}.*" for schema in names(schemas))]
        return lambda run_id: self._planner.each(wanted, self._spark(spark), run_id, limit)

    def _running(self, caller: Caller, books: Books | None = None) -> Running:
        run_id = new_id(self.books.state.now())
        return Running(run_id, self.pipeline, books or self.books, caller, self.listener, self._redactor.redact)

    def _tracked(
        self,
        running: Running,
        planning: Planning,
        spark: SparkSession | None,
        *,
        atomic: bool = False,
        strict: bool = True,
        renew: bool = True,
    ) -> TrackedRun:
        how = {"atomic": atomic, "strict": strict, "renew": renew}
        return TrackedRun(running, planning, self._spark(spark), **how, keep=self.keep)

    def _opening(self, source: Origin | None, address: Endpoint, frames: Sequence[Frame]) -> Callable[[Spark], Source]:
        """How the source is opened for one plan or run."""
        if source is None:
            return lambda spark: self._opened(Endpoint("catalog", spark().catalog.currentCatalog()), spark)
        if isinstance(source, str | Endpoint):
            return lambda spark: self._opened(address, spark)
        if isinstance(source, Frame | Sequence):
            return lambda spark: FrameSource(frames, spark, self.books.state.now)
        return lambda _: source

    def _opened(self, address: Endpoint, spark: Spark) -> Source:
        return open_source(address, guard=self._guard, max_wait=self._max_wait, as_of=self._as_of, spark=spark)

    def _place(self, given: str | Path | Endpoint, role: str) -> Endpoint:
        found = given if isinstance(given, Endpoint) else Endpoint.parse(str(given))
        for secret in (found.password, *(value for name, value in found.options.items() if looks_secret(name))):
            self._redactor.register(secret)
        if role not in ROLES[found.scheme]:
            fitting = ", ".join(scheme for scheme, roles in ROLES.items() if role in roles)
            raise ConfigError(f"{found.scheme}: cannot be a {role}; {role}s are {fitting}", where=self.pipeline)
        return found.resolved(Path.cwd())

    def _spark(self, given: SparkSession | None) -> Spark:
        def session() -> SparkSession:
            known = given or self._session
            if known is not None:
                return known
            from strandline.spark.active import active_session

            return active_session()

        return session

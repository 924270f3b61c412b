"""What pages and API show, found once for both. Reads the state and the desk; a page costs no read per table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from strandline import operations
from strandline.cli.selection import one_table
from strandline.config import PipelineSpec
from strandline.core.attention import HELD_AFTER
from strandline.core.books import Key
from strandline.core.errors import ConfigError, StateError
from strandline.core.position import Position, TablePlan
from strandline.core.protocols import Record
from strandline.core.watermark import Kind
from strandline.operations import ChangeEntry, PipelineStatus, TableStatus
from strandline.operations import runs as history
from strandline.operations.health import Finding, Health, Verified, findings, health_of
from strandline.operations.verified import Verifications, verifications
from strandline.pipeline import stages
from strandline.project import Project
from strandline.result import PipelinePlan, joined, positions_json
from strandline.service.desk import Desk, Entry, JobStatus, Timetable
from strandline.service.failures import Failures
from strandline.web.memory import Lags, Point, lag_points, worst_lag
from strandline.web.problems import NotFoundError

Json = dict[str, Any]
RUNS_SHOWN = 20
_PARTS = 5_000  # of a pipeline's history, to find one table's
_PART_RUNS = 60


@dataclass(frozen=True)
class PipelineView:
    status: PipelineStatus
    spec: PipelineSpec | None
    timetable: Timetable
    health: Health
    findings: tuple[Finding, ...]
    never_run: tuple[str, ...]
    verified: Mapping[tuple[str, str], Verified]
    lags: tuple[Point, ...]
    jobs: tuple[JobStatus, ...]  # queued and running ones

    @property
    def name(self) -> str:
        return self.status.pipeline

    @property
    def lag_seconds(self) -> float | None:
        return worst_lag(self.status.tables)

    @property
    def running(self) -> tuple[TableStatus, ...]:
        return tuple(table for table in self.status.tables if table.running)

    @property
    def busy(self) -> bool:
        return bool(self.running) or any(job.status == "running" for job in self.jobs)

    def to_json(self) -> Json:
        timetable = self.timetable
        return {
            **self.status.to_json(),
            "never_run": list(self.never_run),
            "health": self.health.value,
            "findings": [finding.to_json() for finding in self.findings],
            "lag_seconds": None if self.lag_seconds is None else round(self.lag_seconds, 3),
            "source": str(self.spec.source) if self.spec else None,
            "targets": [str(target) for target in self.spec.targets.values()] if self.spec else [],
            "schedule": timetable.schedule,
            "next_run": iso(timetable.next_run),
            "next_verify": iso(timetable.next_verify),
            "next_maintain": iso(timetable.next_maintain),
            "suspended_at": iso(timetable.suspended_at),
            "suspended_by": timetable.suspended_by or None,
            "why": timetable.why or None,
            "jobs": [job_json(job) for job in self.jobs],
        }


@dataclass(frozen=True)
class TableView:
    """One table over its stages."""

    pipeline: PipelineView
    name: str
    stages: tuple[TableStatus, ...]
    positions: tuple[Position, ...]  # stages that never ran among them
    unreadable: tuple[str, ...]
    findings: tuple[Finding, ...]
    changes: tuple[ChangeEntry, ...]
    parts: tuple[Record, ...]  # its shares in runs, newest first
    lags: tuple[Point, ...]

    def to_json(self) -> Json:
        shown = positions_json(list(self.positions)) if self.positions else {"stages": []}
        verified = self.pipeline.verified
        return {
            "pipeline": self.pipeline.name,
            "table": self.name,
            "stages": shown["stages"],
            "status": [stage.to_json() for stage in self.stages],
            "findings": [finding.to_json() for finding in self.findings],
            "verified": [
                {"stage": stage, **asdict(found), "at": iso(found.at)}
                for (table, stage), found in verified.items()
                if table == self.name
            ],
            "changes": [asdict(change) for change in self.changes],
            "unreadable": list(self.unreadable),
        }


@dataclass(frozen=True)
class RunView:
    run: Record
    parts: tuple[Record, ...]
    left: tuple[Position, ...]  # tables whose plan it left open

    def to_json(self) -> Json:
        return {
            **history.run_json(self.run),
            "tables": [history.part_json(part) for part in self.parts],
            "left_open": sorted({f"{position.pipeline}.{position.table}" for position in self.left}),
        }


class Views:
    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.failures = Failures()
        self.lags = Lags()

    @property
    def project(self) -> Project:
        return self.desk.project

    def now(self) -> datetime:
        return self.project.books.state.now()

    def sample(self) -> None:
        """Remember what only the present tells. The service calls it now and then; so does every page."""
        self.failures.catch_up(self.desk.log)
        project, now = self.project, self.now()
        if self.lags.due(now):
            self.lags.take(project, operations.status(project), now)

    # pipelines

    def pipelines(self, runs: int = RUNS_SHOWN) -> list[PipelineView]:
        return self._views(operations.status(self.project, runs=runs))

    def pipeline(self, name: str, runs: int = RUNS_SHOWN) -> PipelineView:
        (part,) = operations.status(self.project, (name,), runs=runs)
        if not part.configured and not part.tables and not part.runs:
            known = ", ".join(sorted(self.project.config.pipelines)) or "none"
            raise NotFoundError(f'no pipeline "{name}"', remedy=f"Pipelines: {known}")
        return self._views([part])[0]

    def _views(self, parts: Sequence[PipelineStatus]) -> list[PipelineView]:
        project, now = self.project, self.now()
        self.failures.catch_up(self.desk.log)
        if self.lags.due(now):
            self.lags.take(project, parts if len(parts) > 1 else operations.status(project), now)
        timetable, jobs = self.desk.timetable(), [job for job in self.desk.jobs() if not job.ended_at]
        known = verifications(project.books.state, parts[0].pipeline if len(parts) == 1 else "")
        return [self._view(project, part, known.get(part.pipeline, {}), timetable, jobs, now) for part in parts]

    def _view(
        self,
        project: Project,
        part: PipelineStatus,
        verified: Verifications,
        timetable: Mapping[str, Timetable],
        jobs: Sequence[JobStatus],
        now: datetime,
    ) -> PipelineView:
        spec = project.config.pipelines.get(part.pipeline)
        known = {table.table for table in part.tables}
        held_after = spec.held_after if spec else HELD_AFTER
        found = self.failures.of(part)
        found += findings(part, spec.freshness if spec else None, verified, now, held_after)
        return PipelineView(
            part,
            spec,
            timetable.get(part.pipeline) or Timetable("manual"),
            health_of(part, found),
            tuple(found),
            tuple(table.name for table in spec.tables if table.name not in known and not table.glob) if spec else (),
            verified,
            tuple(self.lags.of(part.pipeline)),
            tuple(job for job in jobs if job.job.pipeline == part.pipeline),
        )

    # tables

    def table(self, pipeline: str, name: str) -> TableView:
        view = self.pipeline(pipeline)
        self.check_table(pipeline, name)
        positions, unreadable = self._positions(pipeline, name)
        found = {position.stage: position for position in positions}
        if view.spec is not None and not unreadable:
            now = [found.pop(stage, Position(pipeline, name, stage)) for stage in stages(view.spec)]
            positions = [*now, *found.values()]
        parts = self._parts(view, name)
        by_key: dict[Key, Position] = {(p.pipeline, p.table, p.stage): p for p in positions}
        points = (point for part in parts for point in lag_points(part, by_key))
        lags = sorted(points, key=lambda point: point[0])  # of one moment, before comes first
        current = next((s for s in view.status.tables if s.table == name and s.lag_seconds is not None), None)
        if lags and current and current.lag_seconds is not None:
            lags.append((self.now(), current.lag_seconds))
        return TableView(
            view,
            name,
            tuple(table for table in view.status.tables if table.table == name),
            tuple(positions),
            tuple(str(error) for error in unreadable),
            tuple(finding for finding in view.findings if finding.table == name),
            tuple(operations.history(self.project, pipeline, name)),
            tuple(parts),
            tuple(lags),
        )

    def check_table(self, pipeline: str, table: str) -> None:
        try:
            one_table(self.project, pipeline, table)
        except ConfigError as error:
            raise NotFoundError(error.message, where=error.where, remedy=error.remedy) from error

    def _positions(self, pipeline: str, table: str = "") -> tuple[list[Position], list[StateError]]:
        unreadable: dict[Key, StateError] = {}
        found = self.project.books.positions(pipeline, table, unreadable=unreadable)
        return [position for _, position in sorted(found.items())], [error for _, error in sorted(unreadable.items())]

    def _parts(self, view: PipelineView, table: str) -> list[Record]:
        newest = min(_PARTS, max(1, len(view.status.tables)) * _PART_RUNS)
        found = self.project.books.state.read("table_run", where={"pipeline": view.name}, newest=newest)
        return [part for part in found if part.key[1] == table]

    def grid(self, view: PipelineView, runs: int) -> dict[Key, Record]:
        """The tables' shares in the latest runs, by run, table and stage."""
        shown = view.status.runs[:runs]
        if not shown:
            return {}
        since = min(run.key[0] for run in shown)
        found = self.project.books.state.read("table_run", where={"pipeline": view.name}, since=since)
        return {(part.key[0], part.key[1], part.key[2]): part for part in found}

    def positions(self, pipeline: str = "") -> Json:
        """As `strandline watermark list --json`."""
        if pipeline:
            self.pipeline(pipeline)
        found, unreadable = self._positions(pipeline)
        grouped: dict[tuple[str, str], list[Position]] = {}
        for position in found:
            grouped.setdefault((position.pipeline, position.table), []).append(position)
        return {
            "tables": [positions_json(part) for part in grouped.values()],
            "unreadable": [str(error) for error in unreadable],
        }

    # plans

    def stored_plans(self, pipeline: str) -> PipelinePlan:
        """Plans that were written and are not done yet."""
        self.pipeline(pipeline)
        found, _ = self._positions(pipeline)
        plans = tuple(position.plan for position in found if position.plan)
        return self._plan(pipeline, plans)

    def _plan(self, pipeline: str, plans: tuple[TablePlan, ...]) -> PipelinePlan:
        spec = self.project.config.pipelines.get(pipeline)
        guard = spec.guard.total_seconds() if spec else 0.0
        return joined([PipelinePlan(pipeline, "", "", guard, plans, via=spec.via if spec else "spark")])

    # runs

    def runs(
        self, pipeline: str | None, table: str | None, status: str | None, since: str | None, page: int, limit: int
    ) -> tuple[list[Record], bool]:
        """One page, newest first, and whether there are more."""
        self._check_known(pipeline)
        state, start = self.project.books.state, history.first_id(since, self.now())
        if table:
            found = history.find(self.project, pipeline, [table], status, start)
        else:
            where = {name: value for name, value in (("pipeline", pipeline), ("status", status)) if value}
            found = state.read("run", where=where, since=start, newest=page * limit + 1)
        first = (page - 1) * limit
        return found[first : first + limit], len(found) > first + limit

    def run(self, run_id: str) -> RunView:
        try:
            found = history.find_run(self.project, run_id)
        except ConfigError as error:
            raise NotFoundError(error.message, remedy=error.remedy) from error
        parts = self.project.books.state.read("table_run", found.key)
        left = history.left_by(self.project, found.key[0]) if found.fields["status"] != "COMPLETED" else []
        return RunView(found, tuple(parts), tuple(left))

    def stats(self, pipeline: str | None, tables: Sequence[str], since: str | None) -> list[Json]:
        self._check_known(pipeline)
        return history.stats(self.project, pipeline, tables, since)

    def _check_known(self, pipeline: str | None) -> None:
        try:
            history.check_pipeline(self.project, pipeline)
        except ConfigError as error:
            raise NotFoundError(error.message, remedy=error.remedy) from error

    # jobs and events

    def job(self, job_id: str) -> JobStatus:
        found = next((job for job in self.desk.jobs() if job.job_id == job_id), None)
        if found is None:
            raise NotFoundError(f'no job "{job_id}"', remedy="Old jobs are forgotten; their runs are in the history.")
        return found

    def events(self, after: int, limit: int) -> list[Entry]:
        """The latest after this number, oldest first."""
        return list(self.desk.log.since(after))[-limit:]


def iso(at: datetime | None) -> str | None:
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z") if at else None


def job_json(status: JobStatus) -> Json:
    job = status.job
    return {
        "job_id": status.job_id,
        "pipeline": job.pipeline,
        "action": job.action,
        "tables": list(job.tables),
        "stages": list(job.stages),
        "repair": job.repair,
        "trigger": job.trigger,
        "who": job.who or None,
        "status": status.status,
        "run_id": status.run_id or None,
        "error": status.error or None,
        "remedy": status.remedy or None,
        "asked_at": iso(status.asked_at),
        "ended_at": iso(status.ended_at),
    }


def entry_json(entry: Entry) -> Json:
    return {**entry.fields, "id": entry.number, "at": iso(entry.at)}


def lag_meaning(kind: Kind | None) -> str:
    """What lag is for a cursor of this kind."""
    match kind:
        case Kind.TIMESTAMP | Kind.DATE:
            return "Lag is now less the watermark. While the source is idle the watermark goes on, so it is not late."
        case Kind.INTEGER:
            return (
                "The cursor is a number, not a time: how far behind in time cannot be told. Freshness is judged by "
                "when the table was last looked at and well; the plan says how many rows wait."
            )
        case Kind.VERSION:
            return (
                "The cursor is a version. Lag is the age of the last version that was read, where the source says it; "
                "of staged batches, the plan says how many wait."
            )
        case None:
            return "There is no watermark yet."

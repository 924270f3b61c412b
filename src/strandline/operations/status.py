"""What can be seen of pipelines from the state alone: no connection to a source or a target is made."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from strandline.config import PipelineSpec
from strandline.core import attention
from strandline.core.books import Lease, stamp
from strandline.core.codec import record_position
from strandline.core.errors import StateError
from strandline.core.position import TRACKED, Position, seconds_between
from strandline.core.protocols import Record
from strandline.core.watermark import Watermark
from strandline.operations.suspension import Suspension, suspensions
from strandline.project import Project
from strandline.service.schedule import Schedule, Timed
from strandline.service.slots import Slots, slot_of, slots


@dataclass(frozen=True)
class OpenPlan:
    run_id: str
    done: int
    slices: int
    age_seconds: float | None


@dataclass(frozen=True)
class TableStatus:
    """One table and stage. `lag_seconds`: now less the watermark, where the cursor is a time."""

    pipeline: str
    table: str
    stage: str
    status: str
    watermark: Watermark | None
    last_value: Watermark | None
    lag_seconds: float | None
    batch: int
    epoch: int
    rows: int
    plan: OpenPlan | None
    held: str  # since when nothing new can be read, and who is in the way
    open_from: str  # where rows may still appear below the watermark, and why: it is looked at again
    running: str  # who holds the lease
    error: str
    updated_at: str
    remedy: str = ""  # of that error
    tracked: bool = False  # what it measures is a job of somebody's own
    held_seconds: float | None = None
    stuck: str = ""  # a plan that is open for too long
    missed: str = ""  # a run that did not come

    @property
    def attention(self) -> tuple[str, ...]:
        """What a person should look at."""
        return tuple(filter(None, (self.stuck, self.missed)))

    def to_json(self) -> dict[str, Any]:
        plan = self.plan
        return {
            "table": self.table,
            "stage": self.stage,
            "status": self.status,
            "watermark": self.watermark.text if self.watermark else None,
            "last_value": self.last_value.text if self.last_value else None,
            "lag_seconds": None if self.lag_seconds is None else round(self.lag_seconds, 3),
            "batch": self.batch,
            "epoch": self.epoch,
            "rows": self.rows,
            "open_plan": plan
            and {"run_id": plan.run_id, "done": plan.done, "slices": plan.slices, "age_seconds": plan.age_seconds},
            "held_by": self.held or None,
            "open_from": self.open_from or None,
            "running": self.running or None,
            "attention": list(self.attention),
            "error": self.error or None,
            "remedy": self.remedy or None,
            "updated_at": self.updated_at,
        }


@dataclass(frozen=True)
class PipelineStatus:
    pipeline: str
    tables: tuple[TableStatus, ...]
    last_run: Record | None  # kind "run"
    configured: bool = True  # False: only the state knows it
    via: str = "spark"
    tracked: bool = False  # a Tracker's: its job is somebody's own
    attention: str = ""
    schedule: str = "manual"
    next_run: datetime | None = None  # when a service makes it; None: not by itself, or suspended
    suspended: Suspension | None = None
    runs: tuple[Record, ...] = ()  # the latest, newest first
    undelivered: tuple[str, ...] = ()  # alerts that a channel did not take yet

    def to_json(self) -> dict[str, Any]:
        run = self.last_run
        return {
            "pipeline": self.pipeline,
            "configured": self.configured,
            "tracked": self.tracked,
            "via": self.via,
            "attention": self.attention or None,
            "schedule": self.schedule,
            "next_run": stamp(self.next_run) if self.next_run else None,
            "suspended": self.suspended and self.suspended.to_json(),
            "undelivered": list(self.undelivered),
            "last_run": run and {"run_id": run.key[0], **run.fields},
            "tables": [table.to_json() for table in self.tables],
        }


@dataclass(frozen=True)
class ChangeEntry:
    """A watermark that a person moved."""

    pipeline: str
    table: str
    stage: str
    action: str
    old: str | None
    new: str | None
    who: str
    why: str
    changed_at: str
    epoch: int


def status(
    project: Project, pipelines: tuple[str, ...] = (), *, runs: int = attention.FAILURES
) -> list[PipelineStatus]:
    """Every pipeline of the config, then those that only the state still knows; or those named. `runs`: how many of
    the latest to give with each."""
    from strandline.alerts.ledger import undelivered  # which judges what is found here

    books = project.books
    found: dict[str, list[TableStatus]] = {name: [] for name in pipelines or project.config.pipelines}
    one = pipelines[0] if len(pipelines) == 1 else ""
    leases = books.all_leases(one)
    now = books.state.now()
    suspended, meta = suspensions(books.state), books.state.read("meta")
    began, told = slots(meta), undelivered(meta)
    for record in books.state.read("position", [one] if one else []):
        name, table, _ = record.key
        if not pipelines:
            found.setdefault(name, [])
        if name in found:
            spec = project.config.pipelines.get(name)
            schedule = spec.schedule if spec and name not in suspended else None
            slot = slot_of(began, name, "sync")
            found[name].append(_table(record, leases.get((name, table)), now, spec, schedule, slot))
    return [
        replace(
            _pipeline(project, name, tables, now, None if name in suspended else began, runs),
            suspended=suspended.get(name),
            undelivered=told.get(name, ()),
        )
        for name, tables in found.items()
    ]


def _pipeline(
    project: Project, name: str, tables: list[TableStatus], now: datetime, began: Slots | None, latest: int
) -> PipelineStatus:
    """`began`: None where nothing begins by itself."""
    spec = project.config.pipelines.get(name)
    runs = project.books.state.read("run", where={"pipeline": name}, newest=latest)
    return PipelineStatus(
        name,
        tuple(tables),
        runs[0] if runs else None,
        configured=spec is not None,
        via=spec.via if spec else "spark",
        tracked=any(table.tracked for table in tables),
        attention=attention.failing(runs),
        schedule=str(spec.schedule or "manual") if spec else "manual",
        next_run=_next_run(spec, began, runs[0] if runs else None, now) if spec and began is not None else None,
        runs=tuple(runs),
    )


def _next_run(spec: PipelineSpec, began: Slots, last: Record | None, now: datetime) -> datetime | None:
    """A run that is late comes as soon as a service is there."""
    if not isinstance(spec.schedule, Timed):
        return None
    before = slot_of(began, spec.name, "sync")
    if before is None and last is not None:
        before = datetime.fromisoformat(str(last.fields["started_at"]))
    return spec.schedule.next(before) if before else spec.schedule.first(now)


def history(project: Project, pipeline: str = "", table: str = "", limit: int = 50) -> list[ChangeEntry]:
    """Every watermark that a person moved, newest first."""
    where = {name: value for name, value in (("pipeline", pipeline), ("table_name", table)) if value}
    return [_entry(record) for record in project.books.state.read("change", where=where, newest=limit)]


def _entry(record: Record) -> ChangeEntry:
    fields: dict[str, Any] = dict(record.fields)
    return ChangeEntry(table=fields.pop("table_name"), **fields)


def _table(
    record: Record,
    lease: Lease | None,
    now: datetime,
    spec: PipelineSpec | None,
    schedule: Schedule | None,
    slot: datetime | None,
) -> TableStatus:
    error = remedy = ""
    pipeline, table, stage = record.key
    try:
        position = record_position(record)
    except StateError as caught:
        position, error, remedy = Position(pipeline, table, stage), caught.message, caught.advice
    plan = position.plan
    running = lease.holder if lease and lease.held(now) else ""
    stuck, missed = ("", "") if running else _attention(position, now, spec, schedule, slot)
    totals = position.totals
    return TableStatus(
        pipeline,
        table,
        stage,
        status="UNREADABLE" if error else position.status.value,
        watermark=position.watermark,
        last_value=position.last_value,
        lag_seconds=lag(position, now),
        batch=position.batch.number if position.batch else 0,
        epoch=position.epoch,
        rows=totals.rows_inserted + totals.rows_updated + totals.rows_deleted,
        plan=OpenPlan(plan.run_id, plan.done, len(plan.slices), attention.run_age(plan.run_id, now)) if plan else None,
        held=f"{position.stall.holder}, since {position.stall.since}" if position.stall else "",
        open_from=f"{position.gap.low or 'the beginning'} ({position.gap.why})" if position.gap else "",
        running=running,
        error=error or position.error,
        remedy=remedy or position.remedy,
        updated_at=position.updated_at,
        tracked=position.measures.get("target") == TRACKED,
        held_seconds=seconds_between(position.stall.since, now.isoformat()) if position.stall else None,
        stuck=stuck,
        missed=missed,
    )


def _attention(
    position: Position, now: datetime, spec: PipelineSpec | None, schedule: Schedule | None, slot: datetime | None
) -> tuple[str, str]:
    """`slot`: when a service last looked; a table that is held meanwhile stays as it was written."""
    due = position.due
    if isinstance(schedule, Timed) and position.updated_at:
        written = datetime.fromisoformat(position.updated_at)
        due = schedule.overdue(max(written, slot) if slot else written).isoformat()
    return attention.stuck(position, now, spec.stuck_after if spec else None), attention.missed(due, now)


def lag(position: Position, now: datetime) -> float | None:
    """How long before `now` the watermark lies; None where the cursor is no time. A zone-less watermark stands in its
    writers' zone, which the position remembers. A table's own versions are as old as the last commit that was read."""
    zone = position.measures.get("zone") or "UTC"
    if position.watermark is None:
        return None
    if position.measures.get("table"):
        return seconds_between(position.observed, now.isoformat()) if position.observed else None
    try:
        here = now.astimezone(ZoneInfo(zone)).replace(tzinfo=UTC)
    except (ZoneInfoNotFoundError, ValueError):  # an offset, such as +09:00
        here = now.astimezone(datetime.strptime(zone, "%z").tzinfo).replace(tzinfo=UTC)
    return position.watermark.seconds_before(here)

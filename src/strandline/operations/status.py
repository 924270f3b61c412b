"""What can be seen of pipelines from the state alone: no connection to a source or a target is made."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from strandline.core.books import Lease
from strandline.core.codec import record_position
from strandline.core.errors import StateError
from strandline.core.position import Position
from strandline.core.protocols import Record
from strandline.core.watermark import Watermark
from strandline.project import Project


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
            "open_plan": plan and {"run_id": plan.run_id, "done": plan.done, "slices": plan.slices},
            "held_by": self.held or None,
            "open_from": self.open_from or None,
            "running": self.running or None,
            "error": self.error or None,
            "updated_at": self.updated_at,
        }


@dataclass(frozen=True)
class PipelineStatus:
    pipeline: str
    tables: tuple[TableStatus, ...]
    last_run: Record | None  # kind "run"
    configured: bool = True  # False: only the state still knows it
    via: str = "spark"

    def to_json(self) -> dict[str, Any]:
        run = self.last_run
        return {
            "pipeline": self.pipeline,
            "configured": self.configured,
            "via": self.via,
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


def status(project: Project, pipelines: tuple[str, ...] = ()) -> list[PipelineStatus]:
    """Every pipeline of the config, then those that only the state still knows; or those named."""
    books = project.books
    found: dict[str, list[TableStatus]] = {name: [] for name in pipelines or project.config.pipelines}
    leases = {name: books.leases(name) for name in found}
    now = books.state.now()
    for record in books.state.read("position"):
        name, table, _ = record.key
        if name not in found and not pipelines:
            found[name], leases[name] = [], books.leases(name)
        if name in found:
            found[name].append(_table(record, leases[name].get(table), now))
    return [
        PipelineStatus(name, tuple(tables), _last_run(project, name), *_configured(project, name))
        for name, tables in found.items()
    ]


def _configured(project: Project, name: str) -> tuple[bool, str]:
    spec = project.config.pipelines.get(name)
    return (True, spec.via) if spec else (False, "spark")


def history(project: Project, pipeline: str = "", table: str = "", limit: int = 50) -> list[ChangeEntry]:
    """Every watermark that a person moved, newest first."""
    where = {name: value for name, value in (("pipeline", pipeline), ("table_name", table)) if value}
    return [_entry(record) for record in project.books.state.read("change", where=where, newest=limit)]


def _entry(record: Record) -> ChangeEntry:
    fields: dict[str, Any] = dict(record.fields)
    return ChangeEntry(table=fields.pop("table_name"), **fields)


def _last_run(project: Project, pipeline: str) -> Record | None:
    newest = project.books.state.read("run", where={"pipeline": pipeline}, newest=1)
    return newest[0] if newest else None


def _table(record: Record, lease: Lease | None, now: datetime) -> TableStatus:
    error = ""
    pipeline, table, stage = record.key
    try:
        position = record_position(record)
    except StateError as caught:
        position, error = Position(pipeline, table, stage), caught.message
    plan = position.plan
    running = lease.holder if lease and lease.held(now) else ""
    totals = position.totals
    return TableStatus(
        pipeline,
        table,
        stage,
        status="UNREADABLE" if error else position.status.value,
        watermark=position.watermark,
        last_value=position.last_value,
        lag_seconds=_lag(position, now),
        batch=position.batch.number if position.batch else 0,
        epoch=position.epoch,
        rows=totals.rows_inserted + totals.rows_updated + totals.rows_deleted,
        plan=OpenPlan(plan.run_id, plan.done, len(plan.slices), run_age(plan.run_id, now)) if plan else None,
        held=f"{position.stall.holder}, since {position.stall.since}" if position.stall else "",
        open_from=f"{position.gap.low or 'the beginning'} ({position.gap.why})" if position.gap else "",
        running=running,
        error=error or position.error,
        updated_at=position.updated_at,
    )


def _lag(position: Position, now: datetime) -> float | None:
    """A zone-less watermark stands in its writers' zone, which the position remembers."""
    zone = position.measures.get("zone") or "UTC"
    if position.watermark is None:
        return None
    try:
        here = now.astimezone(ZoneInfo(zone)).replace(tzinfo=UTC)
    except (ZoneInfoNotFoundError, ValueError):  # an offset, such as +09:00
        here = now.astimezone(datetime.strptime(zone, "%z").tzinfo).replace(tzinfo=UTC)
    return position.watermark.seconds_before(here)


def run_age(run_id: str, now: datetime) -> float | None:
    """How long ago a run began, by its id; None for an id that is not ours."""
    try:
        return (now - datetime.strptime(run_id[:19], "%Y%m%d-%H%M%S-%f").replace(tzinfo=UTC)).total_seconds()
    except ValueError:
        return None

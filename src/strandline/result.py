"""What the API returns and `--json` prints: plans and results as plain values with a settled JSON form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from strandline.core.batch import Applied
from strandline.core.errors import StrandlineError
from strandline.core.position import Position, Reason, Status, TablePlan
from strandline.core.run import Outcome
from strandline.core.table import EXTRACT

Json = dict[str, Any]
SCHEMA_VERSION = 1


@dataclass(frozen=True)
class PipelinePlan:
    """What a sync of one pipeline would move. Nothing has been moved, nothing is stored."""

    pipeline: str
    source: str
    target: str
    guard_seconds: float
    tables: tuple[TablePlan, ...]
    errors: tuple[StrandlineError, ...] = ()
    warnings: tuple[tuple[str, str], ...] = ()  # (table, what is worth knowing before it runs)
    via: str = "spark"
    stage: str = ""  # where batches are kept between source and target; empty: nowhere

    @property
    def work(self) -> bool:
        return any(table.work for table in self.tables)

    def to_json(self) -> Json:
        return {
            "pipeline": self.pipeline,
            "guard_seconds": self.guard_seconds,
            "via": self.via,
            "tables": [_plan_json(table) for table in self.tables],
            "warnings": [{"table": table, "message": message} for table, message in self.warnings],
        }


def joined(plans: Sequence[PipelinePlan]) -> PipelinePlan:
    """The plans of one pipeline's stages as one."""
    first = plans[0]
    return replace(
        first,
        tables=tuple(table for plan in plans for table in plan.tables),
        errors=tuple(error for plan in plans for error in plan.errors),
        warnings=tuple(dict.fromkeys(warning for plan in plans for warning in plan.warnings)),
    )


def _plan_json(plan: TablePlan) -> Json:
    window = plan.window
    return {
        "table": plan.table,
        "stage": plan.stage,
        "low": window.low.text if window and window.low else None,
        "high": window.high.text if window else None,
        "reason": plan.reason.value,
        "estimated_rows": plan.estimated_rows,
        "slices": len(plan.remaining),
        "held_by": str(plan.held_by) if plan.held_by else None,
        "note": plan.note or None,
        "columns": plan.columns or None,
        "error": plan.error or None,
    }


@dataclass(frozen=True)
class RunResult:
    """How a run ended. `status` is the worst of its tables; FAILED if a whole stage could not be planned (`errors`)."""

    run_id: str
    pipeline: str
    status: Status
    tables: tuple[Outcome, ...]
    seconds: float
    errors: tuple[StrandlineError, ...] = ()

    @property
    def failed(self) -> bool:
        return self.status is Status.FAILED

    @property
    def failure(self) -> str:
        """The first error of a run that failed."""
        if self.errors:
            return str(self.errors[0])
        failed = [error_text(table) for table in self.tables if table.status is Status.FAILED]
        return f"{len(failed)} of {len(self.tables)} tables failed: {failed[0]}"

    @property
    def applied(self) -> Applied:
        """What reached the targets; of a run that only extracted, what reached the stage."""
        parts = [table for table in self.tables if table.stage != EXTRACT] or self.tables
        return sum((table.applied for table in parts), Applied())

    def to_json(self) -> Json:
        return {
            "schema_version": SCHEMA_VERSION,
            "run_id": self.run_id,
            "pipeline": self.pipeline,
            "status": self.status.value,
            "tables": [_outcome_json(table) for table in self.tables],
            **({"error": "\n".join(map(str, self.errors))} if self.errors else {}),
        }


def _outcome_json(outcome: Outcome) -> Json:
    window, applied = outcome.plan.window, outcome.applied
    return {
        "table": outcome.table,
        "stage": outcome.stage,
        "status": outcome.status.value,
        "low": window.low.text if window and window.low else None,
        "high": window.high.text if window else None,
        "batches": outcome.batches,
        "rows_read": applied.rows_read,
        "rows_inserted": applied.rows_inserted,
        "rows_updated": applied.rows_updated,
        "rows_deleted": applied.rows_deleted,
        "seconds": round(outcome.seconds, 3),
        "error": error_text(outcome),
    }


def error_text(outcome: Outcome) -> str | None:
    if outcome.plan.reason is Reason.BUSY:
        return f"another run is at work: {outcome.plan.note}"
    return str(outcome.error) if outcome.error else None


def worst(outcomes: tuple[Outcome, ...]) -> Status:
    """FAILED before COMPLETED before SKIPPED."""
    for status in (Status.FAILED, Status.COMPLETED):
        if any(outcome.status is status for outcome in outcomes):
            return status
    return Status.SKIPPED


def idle(plan: TablePlan) -> bool:
    return plan.reason in (Reason.NOTHING_NEW, Reason.HELD)


def positions_json(positions: list[Position]) -> Json:
    """`watermark get --json` for the positions of one table."""
    return {
        "pipeline": positions[0].pipeline,
        "table": positions[0].table,
        "stages": [_stage_json(position) for position in positions],
    }


def _stage_json(position: Position) -> Json:
    known = position.watermark or position.last_value
    plan = position.plan
    return {
        "stage": position.stage,
        "watermark": position.watermark.text if position.watermark else None,
        "last_value": position.last_value.text if position.last_value else None,
        "kind": known.kind.value if known else None,
        "batch": position.batch.number if position.batch else 0,
        "epoch": position.epoch,
        "status": position.status.value if position.revision else None,  # None: it never ran
        "rows": position.totals.rows_inserted + position.totals.rows_updated + position.totals.rows_deleted,
        "files": position.totals.files,
        "slices_done": f"{plan.done}/{len(plan.slices)}" if plan else None,
        "error": position.error or None,
        "remedy": position.remedy or None,
        "updated_at": position.updated_at,
    }

"""How well a pipeline is: the worst of its last run, its freshness, its verification and what is stuck.

Pure judgements over what `status` found. Pages, API, metrics and alerts say the same because they ask here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from strandline.core.attention import HELD_AFTER, Freshness
from strandline.core.position import Status
from strandline.operations.status import PipelineStatus, TableStatus

_GOOD = (Status.COMPLETED, Status.SKIPPED)


class Health(StrEnum):
    """From best to worst."""

    OK = "ok"
    UNKNOWN = "unknown"  # it never ran
    WARNING = "warning"
    ERROR = "error"


_ORDER = list(Health)


def worst(found: Iterable[Health]) -> Health:
    return max(found, key=_ORDER.index, default=Health.OK)


@dataclass(frozen=True)
class Finding:
    """Something a person should know. `about`: "run", "table", "freshness", "verification", "held", "plan" (one that
    is stuck) or "missed"."""

    health: Health
    about: str
    message: str
    table: str = ""
    stage: str = ""
    run_id: str = ""
    remedy: str = ""

    def to_json(self) -> dict[str, str | None]:
        return {
            "health": self.health.value,
            "about": self.about,
            "message": self.message,
            "table": self.table or None,
            "stage": self.stage or None,
            "run_id": self.run_id or None,
            "remedy": self.remedy or None,
        }


@dataclass(frozen=True)
class Verified:
    """The last verification of a table, as it was told."""

    answer: str
    at: datetime
    missing: int = 0
    extra: int = 0
    different: int = 0
    duplicate: int = 0
    error: str = ""

    @property
    def words(self) -> str:
        counts = {kind: getattr(self, kind) for kind in ("missing", "extra", "different", "duplicate")}
        return ", ".join(f"{number:,} {kind}" for kind, number in counts.items() if number) or self.answer


def age_seconds(table: TableStatus, now: datetime) -> float | None:
    """How far behind a table is. A cursor that is no time says nothing of it: then how long ago somebody last looked
    and all was well. None: it never got that far."""
    if table.lag_seconds is not None:
        return table.lag_seconds
    if table.watermark is None or table.status not in _GOOD or not table.updated_at:
        return None
    return (now - datetime.fromisoformat(table.updated_at)).total_seconds()


def looked_at(part: PipelineStatus, since: str) -> bool:
    """Whether a table was looked at after that, and was well: source and state can be reached."""
    return any(table.status in _GOOD and table.updated_at > since for table in part.tables)


def recovered(part: PipelineStatus) -> bool:
    """Whether every table has been looked at since the last run ended, and was well: an idle poll leaves no run."""
    run = part.last_run
    ended = str(run.fields["ended_at"] or "") if run else ""
    return bool(part.tables) and all(table.status in _GOOD and table.updated_at > ended for table in part.tables)


def findings(
    part: PipelineStatus,
    freshness: Freshness | None,
    verified: Mapping[tuple[str, str], Verified],
    now: datetime,
    held_after: timedelta = HELD_AFTER,
) -> list[Finding]:
    """Everything there is to say, the worst first. `verified`: by table and stage."""
    found = list(_of_run(part))
    for table in part.tables:
        found += _of_table(table, freshness, verified.get((table.table, table.stage)), now, held_after)
    if part.attention and not recovered(part):
        found.append(Finding(Health.ERROR, "run", part.attention))
    return sorted(found, key=lambda finding: -_ORDER.index(finding.health))


def health_of(part: PipelineStatus, found: Iterable[Finding]) -> Health:
    found = list(found)
    if part.last_run is None and not part.tables and not found:
        return Health.UNKNOWN
    return worst(finding.health for finding in found)


def _of_run(part: PipelineStatus) -> Iterable[Finding]:
    run = part.last_run
    told = any(table.error for table in part.tables)
    if run is not None and run.fields["status"] == Status.FAILED and not told and not recovered(part):
        first = str(run.fields["error"] or "").split("\n")[0]
        yield Finding(
            Health.ERROR,
            "run",
            f"the last run failed: {first}",
            run_id=run.key[0],
            remedy=str(run.fields.get("remedy") or ""),
        )


def _of_table(
    table: TableStatus,
    freshness: Freshness | None,
    verified: Verified | None,
    now: datetime,
    held_after: timedelta,
) -> Iterable[Finding]:
    where = {"table": table.table, "stage": table.stage}
    if table.error and not table.running:
        run_id = table.plan.run_id if table.plan else ""
        said = table.error.removeprefix(f"{table.pipeline}.{table.table}: ")
        yield Finding(Health.ERROR, "table", said, **where, run_id=run_id, remedy=table.remedy)
    age = age_seconds(table, now) if freshness else None
    if freshness and age is not None and (limit := freshness.passed(age)):
        name, span = limit
        health = Health.ERROR if name == "error_after" else Health.WARNING
        yield Finding(health, "freshness", f"{_span(age)} behind, {name} is {_span(span.total_seconds())}", **where)
    if verified and verified.answer == "different":
        yield Finding(Health.ERROR, "verification", f"source and target differ: {verified.words}", **where)
    elif verified and verified.answer == "failed":
        yield Finding(Health.WARNING, "verification", f"could not be verified: {verified.error}", **where)
    if table.held_seconds is not None and table.held_seconds > held_after.total_seconds():
        yield Finding(Health.WARNING, "held", f"held by {table.held}", **where)
    if table.stuck:
        yield Finding(Health.WARNING, "plan", table.stuck, **where)
    if table.missed:
        yield Finding(Health.WARNING, "missed", table.missed, **where)


def _span(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f}".rstrip("0").rstrip(".") + f" {unit}"
    return f"{seconds:.0f} s"

"""What needs a person: plans that stay open, runs that fail again and again, runs that do not come.

Pure decisions over what the state holds; `status` shows them, and a tracked run tells them as it starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from strandline.core.errors import ConfigError
from strandline.core.position import Position, Status
from strandline.core.protocols import Record

STUCK_AFTER = timedelta(hours=6)
HELD_AFTER = timedelta(minutes=10)
FAILURES = 3  # in a row


@dataclass(frozen=True)
class Freshness:
    """How far behind a table may be before a person should know, and before it is an error; None: never."""

    warn_after: timedelta | None = None
    error_after: timedelta | None = None

    def __post_init__(self) -> None:
        if self.warn_after and self.error_after and self.error_after < self.warn_after:
            raise ConfigError("error_after comes before warn_after")

    def passed(self, seconds: float) -> tuple[str, timedelta] | None:
        """The limit that is passed, by its name; None: neither is."""
        for name in ("error_after", "warn_after"):
            limit: timedelta | None = getattr(self, name)
            if limit is not None and seconds > limit.total_seconds():
                return name, limit
        return None


def stuck(position: Position, now: datetime, after: timedelta | None = None) -> str:
    """A plan that has been open for longer than it may be; empty: there is none. `after`: how long, where the config
    says so; else what its own job said."""
    age = run_age(position.plan.run_id, now) if position.plan else None
    limit = after.total_seconds() if after else position.patience or STUCK_AFTER.total_seconds()
    if age is None or age <= limit:
        return ""
    assert position.plan is not None
    return f"stuck: the plan of run {position.plan.run_id} has been open for {_span(age)}"


def failing(runs: Sequence[Record]) -> str:
    """The latest runs, newest first; empty: they did not all fail."""
    latest = runs[:FAILURES]
    if len(latest) < FAILURES or any(run.fields["status"] != Status.FAILED for run in latest):
        return ""
    return f"the last {FAILURES} runs failed"


def missed(due: str, now: datetime) -> str:
    """A run that was expected by then and did not come; empty: none is due yet, or nobody said when."""
    if not due:
        return ""
    late = (now - datetime.fromisoformat(due)).total_seconds()
    return f"no run for {_span(late)} longer than expected" if late > 0 else ""


def due(now: datetime, every: timedelta) -> str:
    """When a whole run will have been missed."""
    return (now + 2 * every).isoformat(timespec="milliseconds")


def run_age(run_id: str, now: datetime) -> float | None:
    """How long ago a run began, in seconds, by its id; None for an id that is not ours."""
    try:
        return (now - datetime.strptime(run_id[:19], "%Y%m%d-%H%M%S-%f").replace(tzinfo=UTC)).total_seconds()
    except ValueError:
        return None


def _span(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.0f} min" if seconds >= 60 else "a moment"

"""Changes of a watermark by a person: shown, asked, written. Rendering only; `operations` decides."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from strandline.cli import text
from strandline.cli.invocation import Invocation

if TYPE_CHECKING:
    from strandline.operations import Change
    from strandline.project import Project


def carry_out(invocation: Invocation, project: Project, changes: Sequence[Change], *, why: str, yes: bool) -> int:
    """Show what would be, ask, write it."""
    from strandline import operations

    shown = "\n".join(line for change in changes for line in describe(change))
    if yes and not invocation.json:
        invocation.say(shown)
    invocation.confirm(shown, yes=yes)
    operations.apply(project, changes, why=why)
    if invocation.json:
        invocation.say_json({"changes": [change.to_json() for change in changes]})
    else:
        invocation.tell("done")
    return 0


def describe(change: Change) -> list[str]:
    """`shop.orders sync: 11-15 08:00 → 07:00`, what becomes of the rows between, and what else to know."""
    now = datetime.now(UTC)
    where = f"{change.where} {change.before.stage}"
    match change.action:
        case "forget":
            said = f"forget the position (watermark {_shown(change.old, now)})"
        case "rename" if change.after:
            said = f"rename to {change.after.pipeline}.{change.after.table}"
        case "accept":
            said = f"keep {_shown(change.old, now)}, measured by the config as it is now"
        case "replan":
            said = "drop the rest of the open plan"
        case _:
            said = f"{_shown(change.old, now)} → {_shown(change.new, now)}"
    lines = [f"{where}: {said}"]
    if change.effect:
        rows = "an unknown number of rows" if change.rows is None else f"~{text.many(change.rows, 'row')}"
        lines.append(f"  {'no rows' if change.rows == 0 else rows} would be {change.effect}")
    return [*lines, *(f"  {note}" for note in change.notes)]


def _shown(watermark: object, now: datetime) -> str:
    from strandline.core.watermark import Watermark

    return text.dated(watermark, now) if isinstance(watermark, Watermark) else "beginning"

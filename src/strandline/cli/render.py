"""Tables, plans and results as lines of text. Pure: values in, lines out; colour is added only if the caller asks.

Knows nothing of terminals but their width, nothing of the state, and never decides what to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from unicodedata import combining, east_asian_width

import click

from strandline.cli import text
from strandline.core.position import Reason, Status, TablePlan
from strandline.core.run import Outcome
from strandline.core.table import LOAD
from strandline.core.watermark import Kind
from strandline.result import PipelinePlan, RunResult

_COLOURS = {
    "ok": "green",
    "done": "green",
    "up": "green",
    "equal": "green",
    "repaired": "green",
    "COMPLETED": "green",
    "warn": "yellow",
    "held": "yellow",
    "busy": "yellow",
    "RUNNING": "cyan",
    "PLANNED": "cyan",
    "fail": "red",
    "stopped": "red",
    "different": "red",
    "FAILED": "red",
}


def paint(word: str) -> str:
    """A cell in the colour of its first word; colour is never the only sign."""
    first = word.split(maxsplit=1)[0].rstrip(":,") if word.strip() else ""
    return click.style(word, fg=_COLOURS[first]) if first in _COLOURS else word


def width(word: str) -> int:
    """Columns a text takes on a terminal."""
    return sum(0 if combining(letter) else 2 if east_asian_width(letter) in "WF" else 1 for letter in word)


def table(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[str] = (), room: int | None = None
) -> list[str]:
    """Aligned columns under a head. `right`: heads of columns of numbers. `room`: shorten the first column to fit."""
    cells = [list(head), *(list(row) for row in rows)]
    widths = [max(width(row[at]) for row in cells) for at in range(len(head))]
    over = sum(widths) + 3 * len(head) - 1 - (room or 10_000)
    if over > 0:
        widths[0] = max(12, widths[0] - over)
    lines = []
    for number, row in enumerate(cells):
        row[0] = _short(row[0], widths[0])
        padded = [_pad(cell, widths[at], head[at] in right) for at, cell in enumerate(row)]
        whole = "   ".join(padded).rstrip()
        styled = click.style(whole, dim=True) if number == 0 else "   ".join(paint(cell) for cell in padded).rstrip()
        lines.append("  " + styled)
    return lines


def _pad(cell: str, size: int, right: bool) -> str:
    gap = " " * (size - width(cell))
    return gap + cell if right else cell + gap


def _short(cell: str, size: int) -> str:
    if width(cell) <= size:
        return cell
    while width(cell) >= size:
        cell = cell[:-1]
    return cell + "…"


# plan


def plan(shown: PipelinePlan, now: datetime, *, run: str, room: int | None = None) -> list[str]:
    """What would move, one line per table, and what to do next (`run`: the command)."""
    way = "   inside the server, without Spark" if shown.via == "server" else ""
    ends = " → ".join(filter(None, (shown.source, shown.stage, shown.target)))
    head = click.style(shown.pipeline, bold=True) + f"   {ends}" + way + _horizon(shown)
    rows = []
    for part in shown.tables:
        span = text.window(part.window, now) if part.window and part.work else "–"
        stage = part.stage if part.work or shown.stage else "–"
        rows.append((part.table, stage, "held" if part.reason is Reason.HELD else span, estimate(part), why(part, now)))
    return [
        head,
        "",
        *table(("table", "stage", "window", "rows", "why"), rows, right=("rows",), room=room),
        "",
        *(line for name, message in shown.warnings for line in _warning(f"{shown.pipeline}.{name}", message)),
        _closing(shown, run),
    ]


def _warning(where: str, message: str) -> list[str]:
    first, *rest = message.splitlines()
    return [click.style("warning:", fg="yellow") + f" {where}: {first}", *(f"  {line}" for line in rest), ""]


def _horizon(shown: PipelinePlan) -> str:
    planned = [part for part in shown.tables if part.reason not in (Reason.RESUMED, Reason.BACKFILL)]
    highs = [part.window.high for part in planned if part.window]
    times = sorted(high for high in highs if high.kind is Kind.TIMESTAMP)
    guard = f"guard {shown.guard_seconds:g} s"
    return f"   horizon {text.trimmed(times[-1])} ({guard})" if times else ""


def estimate(part: TablePlan) -> str:
    if part.estimated_rows is None:
        return "?"
    return f"~{text.count(part.estimated_rows)}" if part.estimated_rows else "0"


def why(part: TablePlan, now: datetime) -> str:
    """The reason for a plan, with what a person needs to judge it."""
    match part.reason:
        case Reason.HELD if part.held_by:
            reason = text.holder(part.held_by)
        case Reason.BUSY:
            return f"busy: {part.note}"
        case Reason.STOPPED:
            return f"stopped: {part.error}"
        case Reason.RESUMED:
            reason = f"resumed: run {part.run_id}, {part.done} of {text.many(len(part.slices), 'slice')} done"
        case Reason.NOTHING_NEW if part.window and part.window.low:
            reason = f"nothing new since {text.value(part.window.low, now)}"
        case _:
            reason = part.reason.value + _slices(part)
    return "; ".join(filter(None, (reason, part.note, part.columns)))


def _slices(part: TablePlan) -> str:
    if part.replace:
        return ", replaces the target in one commit"
    if len(part.slices) < 2:
        return ""
    keys = part.slices[0].keys
    return f", {len(part.slices)} slices" + (f" by {keys.column}" if keys else "")


def _closing(shown: PipelinePlan, run: str) -> str:
    reasons = [part.reason for part in shown.tables]
    work = sum(part.work for part in shown.tables)
    counts = [
        (work, "to do"),
        (reasons.count(Reason.NOTHING_NEW), "up to date"),
        (reasons.count(Reason.HELD), "held"),
        (reasons.count(Reason.BUSY), "busy"),
        (reasons.count(Reason.STOPPED), "stopped"),
    ]
    said = ", ".join(f"{number} {word}" for number, word in counts if number)
    return f"{_tables(shown.tables)}: {said or 'none'}. Nothing was moved." + (f" Run: {run}" if work else "")


# sync


def result(shown: RunResult, now: datetime, *, room: int | None = None) -> list[str]:
    """One line per table and a total."""
    rows = []
    for part in shown.tables:
        moved = part.status is Status.COMPLETED or part.batches
        rows.append(
            (
                part.table,
                part.stage,
                "done" if part.status is Status.COMPLETED else part.status.value if part.error else part.plan.reason,
                text.count(part.applied.rows_read) if moved else "–",
                text.changes(part.applied) if moved else "",
                text.duration(part.seconds) if moved else "",
                _outcome(part, now),
            )
        )
    head = ("table", "stage", "status", "rows", "changes", "time", "why")
    return [*table(head, rows, right=("rows", "time"), room=room), total(shown)]


def _outcome(part: Outcome, now: datetime) -> str:
    if part.error:
        return part.error.message.splitlines()[0]
    return why(part.plan, now)


def total(shown: RunResult) -> str:
    tables = shown.tables
    counts = [
        (sum(part.status is Status.COMPLETED for part in tables), "moved"),
        (sum(part.plan.reason is Reason.NOTHING_NEW for part in tables), "up to date"),
        (sum(part.plan.reason is Reason.HELD for part in tables), "held"),
        (sum(part.plan.reason is Reason.BUSY for part in tables), "busy"),
        (sum(part.status is Status.FAILED and part.plan.reason is not Reason.BUSY for part in tables), "failed"),
    ]
    said = ", ".join(f"{number} {word}" for number, word in counts if number)
    read = shown.applied.rows_read
    rows = f"; {text.many(read, 'row')}: {text.changes(shown.applied)}" if read else ""
    return f"{shown.pipeline}: {_tables(tables)}: {said}{rows} in {text.duration(shown.seconds)}"


def _tables(parts: Sequence[TablePlan | Outcome]) -> str:
    """`3 tables`; with a stage between source and target each of them moves in steps: `3 tables in 2 stages`."""
    stages = {part.stage for part in parts}
    steps = f" in {len(stages)} stages" if len(stages) > 1 else ""
    return text.many(len({part.table for part in parts}), "table") + steps


def limit_notes(shown: RunResult, limit: int) -> list[str]:
    """Why tables moved more rows than `--limit` asked for."""
    return [
        f"{part.table}: {text.many(part.applied.rows_read, 'row')} instead of {text.count(limit)}: {_more(part.plan)}"
        for part in shown.tables
        if part.applied.rows_read > limit
    ]


def _more(plan_: TablePlan) -> str:
    if plan_.reason is Reason.RESUMED:
        return "an unfinished plan is carried out as it was written"
    if plan_.replace:
        return "a whole table is replaced in one commit"
    if plan_.stage.partition(":")[0] == LOAD:
        return "a staged batch is loaded as a whole"
    if plan_.slices and plan_.slices[0].read_from is not None:
        return "rows within the lookback are read again, and rows that share a cursor value move together"
    return "rows that share a cursor value move together"

"""Backfill: a range below the watermark, read and merged again. The watermark stays; newer rows are never overwritten.

It is a plan like any other, carried out by the same hop under the same batch numbers, so a crash in it is resumed by
whatever run comes next.
"""

from __future__ import annotations

from strandline.core.errors import ChangedError, SourceError, StrandlineError, WindowError
from strandline.core.plan import Ask, Planned, check_comparable, check_unchanged
from strandline.core.position import Reason, TablePlan
from strandline.core.protocols import Plannable
from strandline.core.table import Mode, Table
from strandline.core.watermark import Watermark
from strandline.core.window import Window


def plan_backfill(source: Plannable, ask: Ask, low: str | None, high: str | None, *, run_id: str = "") -> Planned:
    """The plan that reads `[low, high)` again: from the beginning and up to the watermark where no bound is given.

    Raises what speaks against it. A plan without slices: there is no row in that range.
    """
    table, position = ask.table, ask.position
    if ask.error:
        raise ask.error
    check_unchanged(table, position, ask.measures)
    _check_possible(ask)
    window, note = _range(table, position.watermark, low, high)
    rows = source.pending({table.name: (table, window)})[table.name]
    if isinstance(rows, StrandlineError):
        raise rows
    slices = () if rows == 0 else source.slices(table, window, rows, None)
    plan = TablePlan(
        table.name,
        table.stage,
        window,
        slices,
        Reason.BACKFILL if slices else Reason.NOTHING_NEW,
        estimated_rows=rows,
        run_id=run_id,
        note=note,
    )
    return Planned(table, position, position.unmoved(plan), ask.measures)


def _check_possible(ask: Ask) -> None:
    table, plan, where = ask.table, ask.position.plan, ask.table.where_text
    if ask.busy:
        raise ChangedError(f"another run is at work: {ask.busy}", where=where, remedy="Wait for its end.")
    if plan is not None:
        raise ChangedError(
            f"run {plan.run_id} left its plan unfinished ({plan.done} of {len(plan.slices)} slices done)",
            where=where,
            remedy=f"Finish it first: strandline retry {plan.run_id}",
        )
    if table.mode is Mode.SNAPSHOT:
        raise SourceError("a snapshot reads the whole table with every sync", where=where)
    if table.mode is Mode.APPEND:
        raise SourceError(
            "a backfill reads rows again, and append mode would add them again",
            where=where,
            remedy="Use mode: merge with a key, or load it again: strandline sync --full",
        )
    check_comparable(table, "a backfill")


def _range(table: Table, mark: Watermark | None, low: str | None, high: str | None) -> tuple[Window, str]:
    """What lies above the watermark is left to the next sync: only below it is it known what can still appear."""
    if mark is None:
        raise WindowError(
            "nothing has been read yet", where=table.where_text, remedy=f"Load it: strandline sync -t {table.name}"
        )
    zone = table.cursor.zone if table.cursor else None
    start = None if low is None else Watermark.parse(mark.kind, low, zone)
    end = mark if high is None else Watermark.parse(mark.kind, high, zone)
    if start is not None and start >= min(end, mark):
        raise WindowError(
            f"--from {start} is not below {'--to' if end < mark else 'the watermark'} {min(end, mark)}",
            where=table.where_text,
            remedy="Rows from the watermark on come with the next sync.",
        )
    note = f"up to the watermark {mark}: what lies above it comes with the next sync" if end > mark else ""
    return Window(start, min(end, mark)), note

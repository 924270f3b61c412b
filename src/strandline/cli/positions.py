"""Positions and their history as text. Values in, lines out."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from strandline.cli import render, text
from strandline.core.position import Position
from strandline.pipeline import reads_source

if TYPE_CHECKING:
    from strandline.config import PipelineSpec
    from strandline.operations import ChangeEntry


def by_table(positions: Sequence[Position]) -> list[list[Position]]:
    grouped: dict[tuple[str, str], list[Position]] = {}
    for position in positions:
        grouped.setdefault((position.pipeline, position.table), []).append(position)
    return list(grouped.values())


def one(positions: Sequence[Position], spec: PipelineSpec | None, now: datetime) -> list[str]:
    """One table, everything about it, stage by stage; watermarks in full."""
    lines = []
    for position in positions:
        batch = position.batch
        if not position.revision:
            lines.append(f"{position.pipeline}.{position.table}   {position.stage}   has not run yet")
            lines.append(f"  {'next start':<17} {_next_start(position, spec)}")
            continue
        facts = [
            ("watermark", position.watermark.text if position.watermark else "none"),
            ("last value moved", position.last_value.text if position.last_value else "none"),
            ("next start", _next_start(position, spec)),
            ("first load" if batch is None or position.watermark is None else "open plan", _slices(position)),
            ("rows", f"{text.count(position.totals.rows_read)} read: {text.changes(position.totals)}"),
            ("files", text.count(position.totals.files) if position.totals.files else ""),
            ("batch", f"{batch.number} (epoch {batch.epoch})" if batch else "none"),
            ("status", f"{text.status(position.status.value)}, {text.ago(position.updated_at, now)}"),
            ("error", position.error),
        ]
        lines.append(f"{position.pipeline}.{position.table}   {position.stage}")
        lines += [f"  {name:<17} {said}" for name, said in facts if said]
    return lines


def _next_start(position: Position, spec: PipelineSpec | None) -> str:
    """Where the next window starts. A lookback reads from below it. A load has no settings of its own."""
    tables = spec.tables if spec and reads_source(spec, position.stage) else ()
    table = next((part for part in tables if part.name == position.table), None)
    if position.watermark is None:
        return (table.initial if table else None) or "beginning"
    back = f", reading from {position.watermark.minus(table.lookback)}" if table and table.lookback else ""
    return position.watermark.text + back


def _slices(position: Position) -> str:
    plan = position.plan
    return f"{plan.done} of {text.many(len(plan.slices), 'slice')} done, run {plan.run_id}" if plan else ""


def several(positions: Sequence[Position], now: datetime, room: int | None) -> list[str]:
    rows = [
        (
            f"{position.pipeline}.{position.table}",
            position.stage,
            text.value(position.watermark, now),
            text.value(position.last_value, now),
            str(position.batch.number) if position.batch else "–",
            text.count(position.totals.rows_inserted + position.totals.rows_updated + position.totals.rows_deleted),
            text.status(position.status.value),
            text.ago(position.updated_at, now),
            position.error.split("\n")[0] or _slices(position),
        )
        for position in positions
    ]
    head = ("table", "stage", "watermark", "last value", "batch", "rows", "status", "seen", "note")
    return render.table(head, rows, right=("batch", "rows"), room=room)


def changes(found: Sequence[ChangeEntry], room: int | None) -> list[str]:
    rows = [
        (
            f"{entry.pipeline}.{entry.table}",
            entry.stage,
            text.moment(entry.changed_at),
            entry.action,
            f"{entry.old or 'beginning'} → {entry.new or 'beginning'}",
            entry.who,
            entry.why,
        )
        for entry in found
    ]
    return render.table(("table", "stage", "when (UTC)", "what", "watermark", "who", "why"), rows, room=room)

"""Runs of the history as text. Records in, lines out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strandline.cli import render, text
from strandline.core.batch import Applied
from strandline.core.errors import explained
from strandline.core.protocols import Record
from strandline.operations.runs import counts, moved, part_json, seconds

Json = dict[str, Any]


def _applied(record: Record) -> Applied:
    read, inserted, updated, deleted = counts(record).values()
    return Applied(read, inserted, updated, deleted)


def runs(found: Sequence[Record]) -> list[str]:
    """One line per run; ids are whole, since people copy them."""
    rows = [
        (
            run_.key[0],
            str(run_.fields["pipeline"]),
            str(run_.fields["status"]),
            text.moment(str(run_.fields["started_at"])),
            _time(seconds(run_)),
            text.count(moved(run_)),
            str(run_.fields["trigger_name"]),
            _first_line(run_),
        )
        for run_ in found
    ]
    head = ("run", "pipeline", "status", "started (UTC)", "time", "rows", "by", "error")
    return render.table(head, rows, right=("time", "rows"))


def run(found: Record, parts: Sequence[Record], room: int | None, *, retry: str) -> list[str]:
    """One run: who started it, its tables, and its errors in full."""
    fields: Json = dict(found.fields)
    job = f", job {fields['job_id']}" if fields["job_id"] else ""
    head = [
        f"run {found.key[0]}   {fields['pipeline']}   {render.paint(fields['status'])}",
        f"  started {text.moment(fields['started_at'])} UTC by {fields['trigger_name']},"
        f" {fields['user_name']}@{fields['host']}{job}; took {_time(seconds(found)) or 'unknown'}",
        "",
    ]
    rows = [
        (
            part.key[1],
            part.key[2],
            str(part.fields["status"]),
            f"{part.fields['low'] or 'beginning'} → {part.fields['high']}" if part.fields["high"] else "–",
            str(part.fields["reason"]),
            text.count(counts(part)["rows_read"]),
            text.changes(_applied(part)),
            _time(part_json(part)["seconds"]),
        )
        for part in parts
    ]
    columns = ("table", "stage", "status", "window", "reason", "rows", "changes", "time")
    lines = [*head, *render.table(columns, rows, right=("rows", "time"), room=room)]
    for part in parts:
        if part.fields["error"]:
            what = "skipped" if part.fields["status"] == "SKIPPED" else "error"
            lines += ["", explained(f"{what}: {part.fields['error']}", str(part.fields["remedy"] or ""))]
    if fields["error"] and not any(part.fields["error"] for part in parts):
        lines += ["", explained(f"error: {fields['error']}", fields["remedy"] or "")]
    return [*lines, "", f"  Carry out what it left: {retry}"] if fields["status"] == "FAILED" else lines


def days(figures: Sequence[Json]) -> list[str]:
    numbers = ("runs", "completed", "failed", "rows_inserted", "rows_updated", "rows_deleted")
    rows = [
        (day["day"], *(text.count(day[name]) for name in numbers), _time(day["average_seconds"])) for day in figures
    ]
    head = ("day (UTC)", "runs", "completed", "failed", "inserted", "updated", "deleted", "average")
    return render.table(head, rows, right=head[1:])


def _time(span: float | None) -> str:
    return "" if span is None else text.duration(span)


def _first_line(record: Record) -> str:
    return str(record.fields["error"] or "").split("\n")[0]

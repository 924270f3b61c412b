"""Runs of the history as JSON and as text. Records in, values and lines out."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from strandline.cli import render, text
from strandline.core.batch import Applied
from strandline.core.protocols import Record
from strandline.core.records import COUNTS

Json = dict[str, Any]


def seconds(run_: Record) -> float | None:
    """How long a run took; None while it runs."""
    fields: Json = dict(run_.fields)
    if not fields["ended_at"]:
        return None
    return (datetime.fromisoformat(fields["ended_at"]) - datetime.fromisoformat(fields["started_at"])).total_seconds()


def _counts(record: Record) -> dict[str, int]:
    return {name: int(record.fields[name] or 0) for name in COUNTS}


def _applied(record: Record) -> Applied:
    read, inserted, updated, deleted = _counts(record).values()
    return Applied(read, inserted, updated, deleted)


def _moved(record: Record) -> int:
    return sum(_counts(record).values()) - _counts(record)["rows_read"]


def run_json(run_: Record) -> Json:
    fields = run_.fields
    return {
        "run_id": run_.key[0],
        "pipeline": fields["pipeline"],
        "status": fields["status"],
        "trigger": fields["trigger_name"],
        "started_at": fields["started_at"],
        "ended_at": fields["ended_at"] or None,
        "seconds": seconds(run_),
        "rows": _moved(run_),
        **_counts(run_),
        "user": fields["user_name"],
        "host": fields["host"],
        "job_id": fields["job_id"] or None,
        "error": fields["error"] or None,
    }


def part_json(part: Record) -> Json:
    fields: Json = dict(part.fields)
    return {
        "table": part.key[1],
        "stage": part.key[2],
        "status": fields["status"],
        "low": fields["low"],
        "high": fields["high"],
        "reason": fields["reason"],
        "held_by": fields["held_by"] or None,
        "batches": fields["batches"],
        **_counts(part),
        "seconds": fields["milliseconds"] / 1000,
        "started_at": fields["started_at"],
        "ended_at": fields["ended_at"] or None,
        "error": fields["error"] or None,
    }


def runs(found: Sequence[Record]) -> list[str]:
    """One line per run; ids are whole, since people copy them."""
    rows = [
        (
            run_.key[0],
            str(run_.fields["pipeline"]),
            str(run_.fields["status"]),
            text.moment(str(run_.fields["started_at"])),
            _time(seconds(run_)),
            text.count(_moved(run_)),
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
            text.count(_counts(part)["rows_read"]),
            text.changes(_applied(part)),
            _time(part_json(part)["seconds"]),
        )
        for part in parts
    ]
    columns = ("table", "stage", "status", "window", "reason", "rows", "changes", "time")
    lines = [*head, *render.table(columns, rows, right=("rows", "time"), room=room)]
    for part in parts:
        if part.fields["error"]:
            lines += ["", f"error: {part.fields['error']}"]
    if fields["error"] and not any(part.fields["error"] for part in parts):
        lines += ["", f"error: {fields['error']}"]
    return [*lines, "", f"  Carry out what it left: {retry}"] if fields["status"] == "FAILED" else lines


def per_day(records: Sequence[Record], took: Sequence[float | None]) -> list[Json]:
    """Figures per day, newest first. `took`: the seconds of each record, None while it runs."""
    grouped: dict[str, list[tuple[Record, float | None]]] = {}
    for record, span in zip(records, took, strict=True):
        grouped.setdefault(str(record.fields["started_at"])[:10], []).append((record, span))
    return [_day(day, grouped[day]) for day in sorted(grouped, reverse=True)]


def _day(day: str, entries: Sequence[tuple[Record, float | None]]) -> Json:
    statuses = [record.fields["status"] for record, _ in entries]
    spans = [span for _, span in entries if span is not None]
    sums = {name: sum(_counts(record)[name] for record, _ in entries) for name in COUNTS}
    return {
        "day": day,
        "runs": len(entries),
        "completed": statuses.count("COMPLETED"),
        "failed": statuses.count("FAILED"),
        **sums,
        "average_seconds": round(sum(spans) / len(spans), 3) if spans else None,
    }


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

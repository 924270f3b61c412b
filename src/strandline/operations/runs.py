"""The history of runs: found, summed up and as JSON. Reads the state only; the CLI and the service show the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from strandline.config import parse_duration
from strandline.core.errors import ConfigError
from strandline.core.position import Position
from strandline.core.protocols import Record
from strandline.core.records import COUNTS
from strandline.project import Project

Json = dict[str, Any]


def find(
    project: Project,
    pipeline: str | None,
    tables: Sequence[str],
    status: str | None,
    since: str | None,
    newest: int | None = None,
) -> list[Record]:
    """Runs that match, newest first; at most so many."""
    given = {"pipeline": pipeline, "status": status.upper() if status else None}
    where = {name: value for name, value in given.items() if value is not None}
    if newest is not None and not tables:
        return project.books.state.read("run", where=where, since=since, newest=newest)
    found = project.books.state.read("run", where=where, since=since)
    if tables:
        taking_part = {part.key[0] for part in parts(project, pipeline, tables, since)}
        found = [run for run in found if run.key[0] in taking_part]
    return found[::-1][:newest]


def parts(project: Project, pipeline: str | None, tables: Sequence[str], since: str | None) -> list[Record]:
    """The tables' shares in runs, oldest first."""
    where: Mapping[str, str] = {"pipeline": pipeline} if pipeline else {}
    return [part for part in project.books.state.read("table_run", where=where, since=since) if part.key[1] in tables]


def find_run(project: Project, run: str) -> Record:
    """A run of the history by its id, or the last one. ConfigError names the latest."""
    state = project.books.state
    found = state.read("run", newest=1) if run == "last" else state.read("run", [run])
    if not found:
        latest = ", ".join(record.key[0] for record in state.read("run", newest=3)) or "none"
        raise ConfigError(f'no run "{run}" in the history', remedy=f"The latest: {latest}\nAll: strandline runs list")
    return found[0]


def left_by(project: Project, run_id: str) -> list[Position]:
    """Tables whose open plan this run wrote, or failed to carry out."""
    tried = {record.key[1:] for record in project.books.state.read("table_run", [run_id])}
    return [
        position
        for _, position in sorted(project.books.positions(unreadable={}).items())
        if position.plan and (position.plan.run_id == run_id or (position.table, position.stage) in tried)
    ]


def check_pipeline(project: Project, pipeline: str | None) -> None:
    """ConfigError unless it is a pipeline of the config, or one that the history still knows."""
    if pipeline is not None and not project.books.state.read("run", where={"pipeline": pipeline}, newest=1):
        project.pipeline(pipeline)


def first_id(since: str | None, now: datetime) -> str | None:
    """The lowest run id at or after a time: run ids sort by time."""
    return f"{_moment(since, now):%Y%m%d-%H%M%S}" if since else None


def _moment(since: str, now: datetime) -> datetime:
    try:
        at = datetime.fromisoformat(since)
        return at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        pass
    try:
        span: timedelta = parse_duration(since)
        return now - span
    except (ConfigError, OverflowError):
        raise ConfigError(
            f'--since "{since}" is neither a time nor a span',
            remedy="Write 2026-11-15, 2026-11-15 08:00 (UTC), 12h or 7d.",
        ) from None


def stats(project: Project, pipeline: str | None, tables: Sequence[str], since: str | None) -> list[Json]:
    """Figures per day (UTC), newest first: of runs, or of the tables' shares in them. Default: 30 days."""
    start = first_id(since or "30d", project.books.state.now())
    if not tables:
        found = find(project, pipeline, (), None, start)
        return _per_day(found, [seconds(run) for run in found])
    shares = parts(project, pipeline, tables, start)
    return _per_day(shares, [_part_seconds(part) for part in shares])


def seconds(run: Record) -> float | None:
    """How long a run took; None while it runs."""
    fields: Json = dict(run.fields)
    if not fields["ended_at"]:
        return None
    return (datetime.fromisoformat(fields["ended_at"]) - datetime.fromisoformat(fields["started_at"])).total_seconds()


def _part_seconds(part: Record) -> float | None:
    value: Any = part.fields["milliseconds"]
    return value / 1000 if part.fields["ended_at"] else None


def counts(record: Record) -> dict[str, int]:
    return {name: int(record.fields[name] or 0) for name in COUNTS}


def moved(record: Record) -> int:
    """Rows that were inserted, updated or deleted."""
    return sum(counts(record).values()) - counts(record)["rows_read"]


def run_json(run: Record) -> Json:
    fields = run.fields
    return {
        "run_id": run.key[0],
        "pipeline": fields["pipeline"],
        "status": fields["status"],
        "trigger": fields["trigger_name"],
        "started_at": fields["started_at"],
        "ended_at": fields["ended_at"] or None,
        "seconds": seconds(run),
        "rows": moved(run),
        **counts(run),
        "user": fields["user_name"],
        "host": fields["host"],
        "job_id": fields["job_id"] or None,
        "error": fields["error"] or None,
        "remedy": fields["remedy"] or None,
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
        **counts(part),
        "seconds": fields["milliseconds"] / 1000,
        "started_at": fields["started_at"],
        "ended_at": fields["ended_at"] or None,
        "error": fields["error"] or None,
        "remedy": fields["remedy"] or None,
    }


def _per_day(records: Sequence[Record], took: Sequence[float | None]) -> list[Json]:
    """`took`: the seconds of each record, None while it runs."""
    grouped: dict[str, list[tuple[Record, float | None]]] = {}
    for record, span in zip(records, took, strict=True):
        grouped.setdefault(str(record.fields["started_at"])[:10], []).append((record, span))
    return [_day(day, grouped[day]) for day in sorted(grouped, reverse=True)]


def _day(day: str, entries: Sequence[tuple[Record, float | None]]) -> Json:
    statuses = [record.fields["status"] for record, _ in entries]
    spans = [span for _, span in entries if span is not None]
    sums = {name: sum(counts(record)[name] for record, _ in entries) for name in COUNTS}
    return {
        "day": day,
        "runs": len(entries),
        "completed": statuses.count("COMPLETED"),
        "failed": statuses.count("FAILED"),
        **sums,
        "average_seconds": round(sum(spans) / len(spans), 3) if spans else None,
    }

"""`strandline runs`: the history of runs, one run in full, and figures per day. Reads the state only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from strandline.cli.invocation import Invocation, common, pipeline_option, tables_option

if TYPE_CHECKING:
    from strandline.core.protocols import Record
    from strandline.project import Project

_STATUSES = ("RUNNING", "COMPLETED", "FAILED")


@click.group(invoke_without_command=True)
@common
@click.pass_context
def runs(ctx: click.Context) -> int | None:
    """The history of runs; without a command: list."""
    if ctx.invoked_subcommand is not None:
        return None
    code: int = ctx.invoke(list_)
    return code


since_option = click.option(
    "--since", metavar="WHEN", help="From a time (2026-11-15, 2026-11-15 08:00) or a span (2d)."
)


@runs.command("list")
@pipeline_option
@tables_option
@click.option(
    "--status",
    type=click.Choice(_STATUSES, case_sensitive=False),
    metavar="STATUS",
    help="Only runs that are running, completed or failed.",
)
@since_option
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, metavar="N", help="The latest N.")
@common
@click.pass_obj
def list_(
    invocation: Invocation,
    pipeline: str | None = None,
    tables: tuple[str, ...] = (),
    status: str | None = None,
    since: str | None = None,
    limit: int = 20,
) -> int:
    """List runs, newest first. A sync that found nothing new leaves none."""
    from strandline.cli import history

    with invocation.project() as project:
        _check_pipeline(project, pipeline)
        start = _run_id(since, project.books.state.now())
        found = _find(project, pipeline, tables, status, start)[:limit]
        if invocation.json:
            invocation.say_json({"runs": [history.run_json(run) for run in found]})
        elif found:
            invocation.say("\n".join(history.runs(found)))
        else:
            invocation.tell("no runs")
    return 0


@runs.command()
@click.argument("run", metavar="RUN")
@common
@click.pass_obj
def show(invocation: Invocation, run: str) -> int:
    """Show one run: its tables with windows, rows, durations and errors. RUN is a run id, or "last"."""
    from strandline.cli import history
    from strandline.cli.sync import find_run

    with invocation.project() as project:
        found = find_run(project, run)
        parts = project.books.state.read("table_run", found.key)
        if invocation.json:
            invocation.say_json({**history.run_json(found), "tables": [history.part_json(part) for part in parts]})
        else:
            retry = invocation.command("retry", found.key[0])
            invocation.say("\n".join(history.run(found, parts, invocation.room(), retry=retry)))
    return 0


@runs.command()
@pipeline_option
@tables_option
@since_option
@common
@click.pass_obj
def stats(invocation: Invocation, pipeline: str | None, tables: tuple[str, ...], since: str | None) -> int:
    """Figures per day (UTC): runs, how they ended, rows, average time. Default: 30 days."""
    from strandline.cli import history

    with invocation.project() as project:
        _check_pipeline(project, pipeline)
        start = _run_id(since or "30d", project.books.state.now())
        if tables:
            parts = _parts(project, pipeline, tables, start)
            days = history.per_day(parts, [_seconds(part) for part in parts])
        else:
            found = _find(project, pipeline, (), None, start)
            days = history.per_day(found, [history.seconds(run) for run in found])
        if invocation.json:
            invocation.say_json({"days": days})
        elif days:
            invocation.say("\n".join(history.days(days)))
        else:
            invocation.tell("no runs")
    return 0


def _check_pipeline(project: Project, pipeline: str | None) -> None:
    """A pipeline of the config, or one that the history still knows."""
    if pipeline is not None and not project.books.state.read("run", where={"pipeline": pipeline}, newest=1):
        project.pipeline(pipeline)


def _find(
    project: Project, pipeline: str | None, tables: Sequence[str], status: str | None, since: str | None
) -> list[Record]:
    """Runs that match, newest first."""
    given = {"pipeline": pipeline, "status": status.upper() if status else None}
    where = {name: value for name, value in given.items() if value is not None}
    found = project.books.state.read("run", where=where, since=since)
    if tables:
        taking_part = {part.key[0] for part in _parts(project, pipeline, tables, since)}
        found = [run for run in found if run.key[0] in taking_part]
    return found[::-1]


def _parts(project: Project, pipeline: str | None, tables: Sequence[str], since: str | None) -> list[Record]:
    where: Mapping[str, str] = {"pipeline": pipeline} if pipeline else {}
    return [part for part in project.books.state.read("table_run", where=where, since=since) if part.key[1] in tables]


def _seconds(part: Record) -> float | None:
    value: Any = part.fields["milliseconds"]
    return value / 1000 if part.fields["ended_at"] else None


def _run_id(since: str | None, now: datetime) -> str | None:
    """The lowest run id at or after a time: run ids sort by time."""
    return f"{_moment(since, now):%Y%m%d-%H%M%S}" if since else None


def _moment(since: str, now: datetime) -> datetime:
    from strandline.config import parse_duration
    from strandline.core.errors import ConfigError

    try:
        at = datetime.fromisoformat(since)
        return at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)
    except ValueError:
        pass
    try:
        span: timedelta = parse_duration(since)
    except ConfigError:
        raise ConfigError(
            f'--since "{since}" is neither a time nor a span',
            remedy="Write 2026-11-15, 2026-11-15 08:00 (UTC), 12h or 7d.",
        ) from None
    return now - span

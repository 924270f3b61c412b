"""`strandline status`: where every table stands, from the state alone."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from strandline.cli.invocation import Invocation, common, pipeline_option, tables_option

if TYPE_CHECKING:
    from strandline.operations import PipelineStatus, TableStatus
    from strandline.project import Project


@click.command()
@pipeline_option
@tables_option
@common
@click.pass_obj
def status(invocation: Invocation, pipeline: str | None, tables: tuple[str, ...]) -> int:
    """Show where every table stands: watermark, lag, last run, what is open or wrong.

    Reads the state only: no JVM, no connection to a source or a target.
    """
    from strandline import operations

    with invocation.project() as project:
        if pipeline is not None and pipeline not in {key[0] for key in project.books.positions()}:
            project.pipeline(pipeline)
        found = operations.status(project, (pipeline,) if pipeline else ())
        now = project.books.state.now()
        known = [_with_new(project, part, tables) for part in found]
        _check_found(known, tables, found)
        if invocation.json:
            invocation.say_json({"pipelines": [_json(part, waiting) for part, waiting in known]})
            return 0
        for part, waiting in known:
            invocation.say("\n".join(_lines(part, waiting, now, invocation.room())) + "\n")
    return 0


Known = tuple["PipelineStatus", list[str]]


def _with_new(project: Project, part: PipelineStatus, only: tuple[str, ...]) -> Known:
    """The status, cut to the tables asked for, and the config's tables that never ran."""
    from dataclasses import replace

    spec = project.config.pipelines.get(part.pipeline)
    stored = {table.table for table in part.tables}
    waiting = [table.name for table in spec.tables if table.name not in stored and not table.glob] if spec else []
    if only:
        part = replace(part, tables=tuple(table for table in part.tables if table.table in only))
        waiting = [name for name in waiting if name in only]
    return part, waiting


def _check_found(known: list[Known], only: tuple[str, ...], everything: list[PipelineStatus]) -> None:
    from strandline.core.errors import ConfigError

    seen = {name for part, waiting in known for name in (*(table.table for table in part.tables), *waiting)}
    unknown = [name for name in only if name not in seen]
    if unknown:
        stored = sorted({table.table for part in everything for table in part.tables})
        raise ConfigError(f'no table "{unknown[0]}"', remedy=f"Tables in the state: {', '.join(stored) or 'none'}")


def _json(part: PipelineStatus, waiting: list[str]) -> dict[str, Any]:
    return {**part.to_json(), "never_run": waiting}


def _lines(part: PipelineStatus, waiting: list[str], now: datetime, room: int | None) -> list[str]:
    from strandline.cli import render, text

    rows = [
        (
            table.table,
            table.stage,
            text.value(table.watermark, now),
            "" if table.lag_seconds is None else text.duration(table.lag_seconds),
            text.count(table.rows),
            _state(table),
            text.ago(table.updated_at, now),
            _remark(table),
        )
        for table in part.tables
    ]
    rows += [(name, "–", "–", "", "0", "never run", "", "") for name in waiting]
    head = ("table", "stage", "watermark", "lag", "rows", "status", "seen", "note")
    gone = (
        "" if part.configured else "   tracked: a job of your own" if part.tracked else "   not in the config any more"
    )
    gone += _timing(part, now) if part.configured else ""
    gone += f"   {part.attention}" if part.attention else ""
    gone += "   inside the server, without Spark" if part.via == "server" else ""
    return [
        click.style(part.pipeline, bold=True) + "   " + _last_run(part, now) + gone,
        "",
        *(render.table(head, rows, right=("lag", "rows"), room=room) if rows else ["  no tables yet"]),
        *(f"  alert not delivered by {said}" for said in part.undelivered),
    ]


def _timing(part: PipelineStatus, now: datetime) -> str:
    """`   every 5m, next in 2 min`; whoever is suspended has no next one."""
    from strandline.cli import text

    if part.suspended:
        why = f": {part.suspended.why}" if part.suspended.why else ""
        by = f"suspended {text.ago(part.suspended.at, now)} by {part.suspended.by}{why}"
        return f"   {part.schedule}   " + click.style(by, bold=True)
    if part.next_run is None:
        return "" if part.schedule == "manual" else f"   {part.schedule}"
    seconds = (part.next_run - now).total_seconds()
    return f"   {part.schedule}, next " + (f"in {text.duration(seconds)}" if seconds > 0 else "is due")


def _state(table: TableStatus) -> str:
    from strandline.cli import text

    return "RUNNING" if table.running else text.status(table.status)


def _remark(table: TableStatus) -> str:
    parts = [f"by {table.running}"] if table.running else []
    parts += [f"held by {table.held}"] if table.held else []
    parts += [f"read again from {table.open_from}"] if table.open_from else []
    if table.plan:
        parts.append(f"run {table.plan.run_id}: {table.plan.done} of {table.plan.slices} slices done")
    parts += table.attention
    if table.error:
        parts.append(table.error.splitlines()[0])
    return "; ".join(parts)


def _last_run(part: PipelineStatus, now: datetime) -> str:
    from strandline.cli import text
    from strandline.core.records import COUNTS

    run = part.last_run
    if run is None:
        return "no run yet"
    rows = sum(int(run.fields[name] or 0) for name in COUNTS[1:])
    when = text.ago(str(run.fields["started_at"]), now)
    return f"last run {run.key[0]} {run.fields['status']}, {when}, {text.many(rows, 'row')}"

"""`strandline runs`: the history of runs, one run in full, and figures per day. Reads the state only."""

from __future__ import annotations

import click

from strandline.cli.invocation import Invocation, common, pipeline_option, tables_option

_STATUSES = ("RUNNING", "COMPLETED", "FAILED", "SKIPPED")


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
    help="Only runs that are running, completed, failed or skipped.",
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
    from strandline.operations import runs as operations

    with invocation.project() as project:
        operations.check_pipeline(project, pipeline)
        start = operations.first_id(since, project.books.state.now())
        found = operations.find(project, pipeline, tables, status, start, limit)
        if invocation.json:
            invocation.say_json({"runs": [operations.run_json(run) for run in found]})
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
    from strandline.operations import runs as operations

    with invocation.project() as project:
        found = operations.find_run(project, run)
        parts = project.books.state.read("table_run", found.key)
        if invocation.json:
            tables = [operations.part_json(part) for part in parts]
            invocation.say_json({**operations.run_json(found), "tables": tables})
        else:
            own = found.fields["trigger_name"] == "tracker"
            retry = "run the job again" if own else invocation.command("retry", found.key[0])
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
    from strandline.operations import runs as operations

    with invocation.project() as project:
        operations.check_pipeline(project, pipeline)
        days = operations.stats(project, pipeline, tables, since)
        if invocation.json:
            invocation.say_json({"days": days})
        elif days:
            invocation.say("\n".join(history.days(days)))
        else:
            invocation.tell("no runs")
    return 0

"""`strandline backfill`: read a range below the watermark again and merge it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from strandline.cli.invocation import Invocation, common, pipeline_option
from strandline.cli.stages import stage_flags

if TYPE_CHECKING:
    from strandline.core.events import Listener
    from strandline.result import RunResult


@click.command()
@pipeline_option
@click.option("-t", "--table", required=True, metavar="TABLE", help="The table.")
@click.option("--from", "start", metavar="VALUE", help="First cursor value to read. Without it: from the beginning.")
@click.option("--to", "end", metavar="VALUE", help="First cursor value not to read. Without it: up to the watermark.")
@stage_flags
@click.option("--dry-run", is_flag=True, help="Show the plan and move nothing.")
@click.option("--job-id", default="", metavar="ID", help="Your scheduler's id of this job, for the run history.")
@common
@click.pass_obj
def backfill(
    invocation: Invocation,
    pipeline: str | None,
    table: str,
    start: str | None,
    end: str | None,
    dry_run: bool,
    job_id: str,
    stage: str = "",
) -> int:
    """Read a range of a table again and merge it; the watermark stays where it is.

    Rows that the target holds in a newer version are not overwritten. A backfill that was interrupted is finished by
    the next sync.
    """
    from strandline.cli.plan import say_plan
    from strandline.cli.selection import one_table
    from strandline.cli.sync import watched
    from strandline.core.books import Caller

    with invocation.project() as project:
        name = one_table(project, pipeline, table)
        if dry_run:
            made = project.plan_backfill(name, table, start=start, end=end)
            bounds = [word for flag, value in (("--from", start), ("--to", end)) if value for word in (flag, value)]
            say_plan(invocation, made, invocation.command("backfill", "-p", name, "-t", table, *bounds))
            if invocation.json:
                invocation.say_json({"pipelines": [made.to_json()]})
            return 0

        def run(listener: Listener) -> RunResult:
            caller = Caller.here("backfill", job_id)
            only = [stage] if stage else ()
            return project.backfill(name, table, start=start, end=end, stages=only, listener=listener, caller=caller)

        result = watched(invocation, project.pipeline(name), run)
        if invocation.json:
            invocation.say_json(result.to_json())
        return 1 if result.failed else 0

"""`strandline plan`: what a sync would move, without moving it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from strandline.cli.invocation import Invocation, common, pipeline_option, tables_option
from strandline.cli.stages import stage_flags

if TYPE_CHECKING:
    from strandline.project import Project
    from strandline.result import PipelinePlan

WORK_PENDING = 3


@click.command()
@pipeline_option
@tables_option
@stage_flags
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="As for sync: about N rows per table.")
@click.option("--detailed-exitcode", is_flag=True, help="Exit with 3 if there is something to move.")
@common
@click.pass_obj
def plan(
    invocation: Invocation,
    pipeline: str | None,
    tables: tuple[str, ...],
    limit: int | None,
    detailed_exitcode: bool,
    stage: str = "",
) -> int:
    """Show what a sync would move, without moving it.

    Per table: the window, the rows in it (~ is an estimate) and why. Starts no JVM and stores nothing. Exits with 1 if
    a table is stopped by an error.
    """
    from strandline.cli.selection import select

    with invocation.project() as project:
        chosen = select(project, pipeline, tables)
        return show(invocation, project, chosen, stage=stage, limit=limit, detailed=detailed_exitcode)


def show(
    invocation: Invocation,
    project: Project,
    chosen: Mapping[str, tuple[str, ...]],
    *,
    stage: str = "",
    limit: int | None = None,
    full: bool = False,
    detailed: bool = False,
) -> int:
    """Plan and print; one pipeline's error leaves the others alone. Returns the exit code."""
    from strandline.core.errors import StrandlineError

    documents, codes = [], []
    for name, tables in chosen.items():
        try:
            made = project.plan(name, tables=tables, stages=[stage] if stage else (), limit=limit, full=full)
        except StrandlineError as error:
            error.at(name)
            if len(chosen) == 1:
                raise
            invocation.tell_error(error)
            documents.append({"pipeline": name, "tables": [], "error": str(error)})
            codes.append(error.exit_code)
            continue
        documents.append(made.to_json())
        codes += [1] if made.errors else [WORK_PENDING] if made.work and detailed else []
        again = invocation.command("sync", "-p", name, *(word for table in tables for word in ("-t", table)))
        say_plan(invocation, made, again)
    if invocation.json:
        invocation.say_json({"pipelines": documents})
    return 1 if 1 in codes else max(codes, default=0)


def say_plan(invocation: Invocation, made: PipelinePlan, run: str) -> None:
    """`run`: the command that carries it out."""
    from strandline.cli import render

    if not invocation.json:
        invocation.say("\n".join(render.plan(made, datetime.now(UTC), run=run, room=invocation.room())) + "\n")
    for stopped in made.errors:
        invocation.tell_error(stopped)

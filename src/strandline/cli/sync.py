"""`strandline sync` moves what is new; `strandline retry` carries out what a run left unfinished."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from strandline.cli.invocation import Invocation, common, pipeline_option, tables_option
from strandline.cli.stages import stage_flags

if TYPE_CHECKING:
    from strandline.core.books import Caller
    from strandline.core.events import Listener
    from strandline.core.position import Position
    from strandline.core.protocols import Record
    from strandline.project import Project
    from strandline.result import RunResult


@click.command()
@pipeline_option
@tables_option
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="About N rows per table, whole cursor values.")
@click.option("--dry-run", is_flag=True, help="Show the plan and move nothing.")
@click.option("--full", is_flag=True, help="Replace the target in one commit and restart the watermark. Asks first.")
@stage_flags
@click.option("--verify", is_flag=True, help="Then compare source and target; exit code 1 if they differ.")
@click.option("--verify-data", is_flag=True, hidden=True)
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--job-id", default="", metavar="ID", help="Your scheduler's id of this job, for the run history.")
@common
@click.pass_obj
def sync(
    invocation: Invocation,
    pipeline: str | None,
    tables: tuple[str, ...],
    limit: int | None,
    dry_run: bool,
    full: bool,
    verify: bool,
    verify_data: bool,
    yes: bool,
    job_id: str,
    stage: str = "",
) -> int:
    """Move what is new, table by table.

    An unfinished plan of an earlier run is carried out first. One table's failure leaves the others alone. Without -p
    every pipeline runs, one after the other; with -t those that have the table.
    """
    from strandline.cli.plan import show
    from strandline.cli.selection import select
    from strandline.core.books import Caller

    with invocation.project() as project:
        chosen = select(project, pipeline, tables)
        if dry_run:
            return show(invocation, project, chosen, stage=stage, limit=limit, full=full)
        if full:
            invocation.confirm(_question(chosen), yes=yes)
        caller = Caller.here("cli", job_id)
        verify = verify or verify_data
        return _Syncing(invocation, caller, stage, limit=limit, full=full, verify=verify).run(project, chosen)


def _question(chosen: Mapping[str, tuple[str, ...]]) -> str:
    parts = [f"{name}: {', '.join(tables) or 'every table'}" for name, tables in chosen.items()]
    return (
        "A full sync reads these tables from the beginning and replaces their targets:\n  "
        + "\n  ".join(parts)
        + "\nEach target is replaced in one commit; until then it stays as it is."
    )


@dataclass
class _Syncing:
    """One or several pipelines, one after the other, watched and summed up."""

    invocation: Invocation
    caller: Caller
    stage: str = ""  # empty: every one
    limit: int | None = None
    full: bool = False
    verify: bool = False

    def run(self, project: Project, chosen: Mapping[str, tuple[str, ...]]) -> int:
        """Returns the exit code. A pipeline that cannot even start leaves the others alone."""
        from strandline.core.errors import StrandlineError

        documents: list[dict[str, Any]] = []
        codes = {0}
        for name, tables in chosen.items():
            try:
                result = self._one(project, name, tables)
                documents.append(result.to_json())
                codes.add(1 if result.failed else 0)
                if self.verify:
                    codes.add(self._verify(project, result, documents[-1]))
            except StrandlineError as error:
                self.invocation.tell_error(error.at(name))
                documents.append(_not_started(name, self.invocation.redact(str(error))))
                codes.add(error.exit_code)
        if self.invocation.json:
            self.invocation.say_json(documents[0] if len(documents) == 1 else {"runs": documents})
        return 1 if 1 in codes else max(codes)

    def _one(self, project: Project, name: str, tables: tuple[str, ...]) -> RunResult:
        from strandline.cli import render

        def sync(listener: Listener) -> RunResult:
            return project.sync(
                name,
                tables=tables,
                stages=[self.stage] if self.stage else (),
                limit=self.limit,
                full=self.full,
                listener=listener,
                caller=self.caller,
            )

        result = watched(self.invocation, sync)
        if self.limit is not None:
            for note in render.limit_notes(result, self.limit):
                self.invocation.tell(f"note: {note}")
        return result

    def _verify(self, project: Project, result: RunResult, document: dict[str, Any]) -> int:
        """The tables of this run, on the same session; what was found goes into the run's document."""
        from strandline.cli.verify import verified

        tables = list(dict.fromkeys(outcome.table for outcome in result.tables if not outcome.error))
        if not tables:
            return 0
        verdicts, code = verified(self.invocation, project, {result.pipeline: tables})
        document["verify"] = [verdict.to_json() for verdict in verdicts]
        return code


def watched(invocation: Invocation, run: Callable[[Listener], RunResult]) -> RunResult:
    """Carry out a run with its progress shown, then its result and its errors."""
    from strandline.cli import render
    from strandline.cli.interrupt import finishing_slices
    from strandline.cli.progress import listening

    with finishing_slices(), listening(invocation) as listener:
        result = run(listener)
    if not invocation.json:
        invocation.say("\n".join(render.result(result, datetime.now(UTC), room=invocation.room())))
    for outcome in result.tables:
        if outcome.error:
            invocation.tell_error(outcome.error)
    return result


def _not_started(pipeline: str, error: str) -> dict[str, Any]:
    return {"schema_version": 1, "run_id": None, "pipeline": pipeline, "status": "FAILED", "tables": [], "error": error}


@click.command()
@click.argument("run", metavar="RUN")
@click.option("--replan", is_flag=True, help="Drop what is left of the plan, and plan anew. Asks first.")
@click.option("--allow-duplicates", is_flag=True, help="With --replan: append rows again that are already there.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--job-id", default="", metavar="ID", help="Your scheduler's id of this job, for the run history.")
@common
@click.pass_obj
def retry(invocation: Invocation, run: str, replan: bool, allow_duplicates: bool, yes: bool, job_id: str) -> int:
    """Carry out the plans that RUN left unfinished, exactly as they were written.

    RUN is a run id, or "last". With --replan the rest of the plan is dropped first, and what is new by now is planned.
    """
    from strandline.core.books import Caller

    with invocation.project() as project:
        found = find_run(project, run)
        left = _left_by(project, found.key[0])
        if not left:
            return _nothing_left(invocation, found)
        if replan:
            _replan(invocation, project, found.key[0], allow_duplicates, yes)
        else:
            parts = [f"{part.pipeline}.{part.table} ({_progress(part)})" for part in left]
            invocation.tell(f"carrying out what run {found.key[0]} left: {', '.join(parts)}")
        chosen: dict[str, tuple[str, ...]] = {}
        for part in left:
            chosen[part.pipeline] = (*chosen.get(part.pipeline, ()), part.table)
        return _Syncing(invocation, Caller.here("cli", job_id)).run(_resuming(project, chosen), chosen)


def find_run(project: Project, run: str) -> Record:
    """A run of the history by its id, or the last one. ConfigError names the latest."""
    from strandline.core.errors import ConfigError

    state = project.books.state
    found = state.read("run", newest=1) if run == "last" else state.read("run", [run])
    if not found:
        latest = ", ".join(record.key[0] for record in state.read("run", newest=3)) or "none"
        raise ConfigError(f'no run "{run}" in the history', remedy=f"The latest: {latest}\nAll: strandline runs list")
    return found[0]


def _left_by(project: Project, run_id: str) -> list[Position]:
    """Tables whose open plan this run wrote, or failed to carry out."""
    tried = {record.key[1:] for record in project.books.state.read("table_run", [run_id])}
    return [
        position
        for _, position in sorted(project.books.positions(unreadable={}).items())
        if position.plan and (position.plan.run_id == run_id or (position.table, position.stage) in tried)
    ]


def _progress(position: Position) -> str:
    plan = position.plan
    return f"{plan.done} of {len(plan.slices)} slices done" if plan else ""


def _nothing_left(invocation: Invocation, run: Record) -> int:
    run_id, status = run.key[0], run.fields["status"]
    if invocation.json:
        invocation.say_json({"runs": []})
    invocation.tell(f"run {run_id} ({status}) left nothing unfinished; to move what is new: strandline sync")
    return 0


def _replan(invocation: Invocation, project: Project, run_id: str, allow_duplicates: bool, yes: bool) -> None:
    from strandline import operations
    from strandline.cli.changes import describe

    changes = operations.replan(project, run_id, allow_duplicates=allow_duplicates)
    invocation.confirm("\n".join(line for change in changes for line in describe(change)), yes=yes)
    operations.apply(project, changes, why=f"retry --replan {run_id}")


def _resuming(project: Project, chosen: Mapping[str, tuple[str, ...]]) -> Project:
    """The project with its pipelines told to resume: a retry is the answer that `unfinished: stop` asks for."""
    config = project.config
    resuming = {name: replace(config.pipelines[name], unfinished="resume") for name in chosen}
    project.config = replace(config, pipelines={**config.pipelines, **resuming})
    return project

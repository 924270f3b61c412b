"""`strandline sync` moves what is new; `strandline retry` carries out what a run left unfinished."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from strandline.cli.invocation import Invocation, common, pipeline_option, tables_option
from strandline.cli.stages import stage_flags

if TYPE_CHECKING:
    from strandline.config import PipelineSpec
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
@click.option("--every", metavar="SPAN", help="Again and again, so long after each other, until Ctrl-C: 5s, 1m.")
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
    every: str | None,
    yes: bool,
    job_id: str,
    stage: str = "",
) -> int:
    """Move what is new, table by table.

    An unfinished plan of an earlier run is carried out first. One table's failure leaves the others alone. Without -p
    every pipeline runs, one after the other; with -t those that have the table. With --every, connections and Spark
    are kept between polls, pipelines run side by side, and --json prints a line for each run that moved something.
    """
    from strandline.cli.plan import show
    from strandline.cli.selection import select
    from strandline.core.books import Caller

    if every and (dry_run or full or verify or verify_data or limit is not None or job_id):
        raise click.UsageError("--every goes with -p, -t and the flags that choose a stage alone")
    with invocation.project() as project:
        chosen = select(project, pipeline, tables)
        if every:
            return _continuous(invocation, project, chosen, every, stage)
        if dry_run:
            return show(invocation, project, chosen, stage=stage, limit=limit, full=full)
        if full:
            invocation.confirm(_question(chosen), yes=yes)
        caller = Caller.here("cli", job_id)
        verify = verify or verify_data
        return _Syncing(invocation, caller, stage, limit=limit, full=full, verify=verify).run(project, chosen)


def _tell_suspended(invocation: Invocation, project: Project, name: str) -> None:
    """A person who runs a suspended pipeline means to, or does not know."""
    from strandline import operations

    if found := operations.suspension(project.books.state, name):
        invocation.tell(f"note: {name} is {found}; by hand it runs all the same")


def _continuous(
    invocation: Invocation, project: Project, chosen: Mapping[str, tuple[str, ...]], every: str, stage: str
) -> int:
    from strandline.cli.serve import continuous
    from strandline.config import parse_duration
    from strandline.core.errors import ConfigError
    from strandline.service.schedule import SHORTEST

    span = parse_duration(every)
    if span < SHORTEST:
        raise ConfigError(f"--every {every} is too often; at least 100ms must lie between two runs")
    for name in chosen:
        _tell_suspended(invocation, project, name)
    return continuous(invocation, project, chosen, span, (stage,) if stage else ())


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
    resume: bool = False  # `retry`: plans as they were written

    def run(self, project: Project, chosen: Mapping[str, tuple[str, ...]]) -> int:
        """Returns the exit code. A pipeline that cannot even start leaves the others alone."""
        from strandline.core.errors import StrandlineError

        documents: list[dict[str, Any]] = []
        codes = {0}
        project.about, project.once = tuple(chosen), len(chosen) == 1 and not self.verify
        for name, tables in chosen.items():
            try:
                result = self._one(project, name, tables)
                documents.append(result.to_json())
                codes.add(1 if result.failed else 0)
                if self.verify and not result.errors:
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

        stages = [self.stage] if self.stage else []

        def remark(text: str) -> None:
            self.invocation.tell(f"note: {name}: {text}")

        def sync(listener: Listener) -> RunResult:
            if self._fit_for_a_service(project.pipeline(name)):
                from strandline.service.door import hand_over

                made = hand_over(project.config, name, tables, stages, listener, remark)
                if made is not None:
                    return made
            return project.sync(
                name,
                tables=tables,
                stages=stages,
                limit=self.limit,
                full=self.full,
                listener=listener,
                caller=self.caller,
                resume=self.resume,
            )

        _tell_suspended(self.invocation, project, name)
        result = watched(self.invocation, project.pipeline(name), sync)
        if self.limit is not None:
            for note in render.limit_notes(result, self.limit):
                self.invocation.tell(f"note: {note}")
        return result

    def _fit_for_a_service(self, spec: PipelineSpec) -> bool:
        """What a service makes as a command would. It knows no job ids, and its standard output is another."""
        special = self.limit is not None or self.full or self.resume or self.caller.job_id
        return not special and all(target.scheme != "stdout" for target in spec.targets.values())

    def _verify(self, project: Project, result: RunResult, document: dict[str, Any]) -> int:
        """The tables of this run, on the same session; what was found goes into the run's document."""
        from strandline.cli.verify import verified

        tables = list(dict.fromkeys(outcome.table for outcome in result.tables if not outcome.error))
        if not tables:
            return 0
        verdicts, code = verified(self.invocation, project, {result.pipeline: tables})
        document["verify"] = [verdict.to_json() for verdict in verdicts]
        return code


def watched(invocation: Invocation, spec: PipelineSpec, run: Callable[[Listener], RunResult]) -> RunResult:
    """Carry out a run with its progress shown, then its result and its errors."""
    from strandline.cli import render
    from strandline.cli.interrupt import finishing_slices
    from strandline.cli.progress import listening

    invocation.rows_on_stdout |= any(target.scheme == "stdout" for target in spec.targets.values())
    with finishing_slices(), listening(invocation) as listener:
        result = run(listener)
    if not invocation.json:
        invocation.say("\n".join(render.result(result, datetime.now(UTC), room=invocation.room())))
    for error in (*(outcome.error for outcome in result.tables), *result.errors):
        if error:
            invocation.tell_error(error)
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
    from strandline.operations.runs import find_run, left_by

    with invocation.project() as project:
        found = find_run(project, run)
        left = left_by(project, found.key[0])
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
        return _Syncing(invocation, Caller.here("cli", job_id), resume=True).run(project, chosen)


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

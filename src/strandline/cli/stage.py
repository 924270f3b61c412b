"""`strandline stage`: what lies between source and targets, and what of it can go. `stage.clean` decides; here it is
shown and asked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import click

from strandline.cli.invocation import Invocation, common, pipeline_option, tables_option
from strandline.core.errors import ConfigError

if TYPE_CHECKING:
    from strandline.project import Project
    from strandline.stage.clean import Cleaning, CleanPlan, StagedBatch


@click.group(invoke_without_command=True)
@click.pass_context
def stage(ctx: click.Context) -> None:
    """See and clean what is staged between source and targets."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@stage.command("list")
@pipeline_option
@tables_option
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    metavar="N",
    help="The newest N of each table.",
)
@click.option("--all", "every", is_flag=True, help="Every batch there ever was.")
@click.option("--files", is_flag=True, help="Name each batch's files, too.")
@common
@click.pass_obj
def list_(
    invocation: Invocation, pipeline: str | None, tables: tuple[str, ...], limit: int, every: bool, files: bool
) -> int:
    """List staged batches: files, rows, bytes, window, and which targets have loaded them."""
    from strandline.stage.clean import stage_list

    with invocation.project() as project:
        found = [
            (cleaning.pipeline, batch)
            for cleaning, names in _stages(project, pipeline, tables)
            for name in names
            for batch in stage_list(
                cleaning.objects, cleaning.pipeline, name, cleaning.loaded.get(name, {}), None if every else limit
            )
        ]
        if invocation.json:
            invocation.say_json({"batches": [{"pipeline": name, **asdict(batch)} for name, batch in found]})
        elif found:
            lines = _batches(found, project.books.state.now(), invocation.room())
            invocation.say("\n".join(_with_files(lines, found) if files else lines))
        else:
            invocation.tell("nothing is staged yet")
    return 0


@stage.command()
@pipeline_option
@tables_option
@click.option("--older-than", metavar="SPAN", help="Only what was staged that long ago: 7d, 12h.")
@click.option("--keep-last", type=click.IntRange(min=0), default=0, metavar="N", help="Keep the newest N batches.")
@click.option("--unloaded", is_flag=True, help="Also what not every target has loaded; only with --yes.")
@click.option("--dry-run", is_flag=True, help="Show what would go, and stop.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@common
@click.pass_obj
def clean(
    invocation: Invocation,
    pipeline: str | None,
    tables: tuple[str, ...],
    older_than: str | None,
    keep_last: int,
    unloaded: bool,
    dry_run: bool,
    yes: bool,
) -> int:
    """Remove the files of batches that every target has loaded, and files that dead attempts left.

    What was removed cannot be loaded again; the batch numbers go on.
    """
    from strandline.config.duration import parse_duration

    span = parse_duration(older_than) if older_than else timedelta(0)
    if unloaded and not (yes or dry_run):
        raise ConfigError(
            "--unloaded removes rows that a target does not have", remedy="Look first with --dry-run, then add --yes."
        )
    with invocation.project() as project:
        plans = [
            cleaning.plan(names, older_than=span, keep_last=keep_last, unloaded=unloaded)
            for cleaning, names in _stages(project, pipeline, tables, ask_targets=not unloaded)
        ]
        some = [plan for plan in plans if plan.batches or plan.orphans]
        if invocation.json:
            invocation.say_json({"dry_run": dry_run, "cleaned": [_plan_json(plan) for plan in some]})
        if not some:
            invocation.tell("nothing to clean")
            return 0
        if not invocation.json:
            invocation.say("\n".join(line for plan in some for line in _plan(plan)))
        if dry_run:
            invocation.tell("nothing was removed")
            return 0
        invocation.confirm("These files are removed for good.", yes=yes)
        for plan in some:
            if unloaded:
                _refuse_at_work(project, plan)
            plan.carry_out()
        invocation.tell("done")
    return 0


s3clean = click.Group(
    "s3clean", commands={"list": list_, "clean": clean}, hidden=True, help="The same as `strandline stage`."
)


def _stages(
    project: Project, pipeline: str | None, tables: Sequence[str], *, ask_targets: bool = False
) -> Iterator[tuple[Cleaning, list[str]]]:
    """Every pipeline asked for that has a stage, with its staged tables asked for.

    What is loaded is what the state says; `ask_targets`: and what the target itself holds, which may have been dropped
    or restored since.
    """
    from strandline.cli.selection import select
    from strandline.objects import open_objects
    from strandline.stage.clean import Cleaning, loaded_by, staged_tables

    chosen = select(project, pipeline, tables)
    specs = {name: project.pipeline(name) for name in chosen}
    if all(spec.stage is None for spec in specs.values()):
        raise ConfigError(
            f"{' and '.join(chosen) or 'no pipeline'} has no stage", remedy="It needs a `stage:` for that."
        )
    for name, wanted in chosen.items():
        endpoint = specs[name].stage
        if endpoint is None:
            continue
        objects = open_objects(endpoint)
        known = staged_tables(objects, name)
        positions = project.books.positions(name).values()
        loaded = loaded_by(positions, known, specs[name].targets)
        chosen_tables = [table for table in known if not wanted or table in wanted]
        if ask_targets:
            loaded = {table: _held(project, name, table, loaded[table]) for table in chosen_tables}
        yield Cleaning(objects, name, loaded), chosen_tables


def _held(project: Project, pipeline: str, table: str, loaded: Mapping[str, int]) -> dict[str, int]:
    """By target, the last number that both the state and the target call loaded."""
    from strandline.core.table import LOAD
    from strandline.operations.resting import configured
    from strandline.stage.clean import last_loaded

    held = dict(loaded)
    if not any(fnmatchcase(table, spec.name) for spec in project.pipeline(pipeline).tables):
        return held  # nothing is loaded into it any more
    for target, number in loaded.items():
        with project.opened(pipeline, f"{LOAD}:{target}" if target else LOAD) as opened:
            receipt = opened.sink.applied(configured(opened, table)) if number else None
        if receipt is None or receipt.exact:
            held[target] = min(number, last_loaded(receipt.batch.watermark if receipt else None))
    return held


def _refuse_at_work(project: Project, plan: CleanPlan) -> None:
    """What is not loaded may be being loaded."""
    now, cleaned = project.books.state.now(), {batch.table for batch in plan.batches}
    held = [table for table, lease in project.books.leases(plan.pipeline).items() if lease.held(now)]
    busy = next((table for table in held if table in cleaned), None)
    if busy is not None:
        raise ConfigError(
            "a run is at work on this table", where=f"{plan.pipeline}.{busy}", remedy="Wait until it ends."
        )


def _batches(found: Sequence[tuple[str, StagedBatch]], now: datetime, room: int | None) -> list[str]:
    from strandline.cli import render, text

    rows = [
        (
            f"{pipeline}.{batch.table}",
            str(batch.number),
            f"{batch.low or 'beginning'} → {batch.high}",
            text.count(batch.rows),
            str(batch.files),
            _size(batch.bytes),
            text.ago(_aware(batch.written_at), now),
            _state(batch),
        )
        for pipeline, batch in found
    ]
    head = ("table", "batch", "window", "rows", "files", "bytes", "staged", "loaded")
    return render.table(head, rows, right=("batch", "rows", "files", "bytes"), room=room)


def _with_files(lines: Sequence[str], found: Sequence[tuple[str, StagedBatch]]) -> Iterator[str]:
    yield lines[0]
    for line, (_, batch) in zip(lines[1:], found, strict=True):
        yield line
        yield from (f"  {path}" for path in batch.paths)


def _state(batch: StagedBatch) -> str:
    """By which targets; a pipeline's only target has no name."""
    done = ", ".join(filter(None, batch.loaded)) or ("yes" if batch.loaded else "no")
    waiting = ", ".join(filter(None, batch.waiting))
    said = f"{done}; not {waiting}" if waiting and batch.loaded else done if batch.loaded else "no"
    return f"{said}, cleaned" if batch.cleaned else said


def _plan(plan: CleanPlan) -> list[str]:
    from strandline.cli import text

    by_table: dict[str, list[StagedBatch]] = {}
    for batch in plan.batches:
        by_table.setdefault(batch.table, []).append(batch)
    lines = []
    for table, batches in by_table.items():
        files, rows = sum(each.files for each in batches), sum(each.rows for each in batches)
        holding = f"{text.many(files, 'file')}, {text.many(rows, 'row')}, {_size(sum(each.bytes for each in batches))}"
        span = f"batches {batches[0].number} to {batches[-1].number}"
        lines.append(f"{plan.pipeline}.{table}   {span}: {holding}{_not_loaded(batches)}")
    if plan.orphans:
        lines.append(f"{plan.pipeline}   {text.many(len(plan.orphans), 'file')} that dead attempts left")
    return lines


def _not_loaded(batches: Sequence[StagedBatch]) -> str:
    waiting = [batch for batch in batches if batch.waiting or not batch.loaded]
    return f"; {len(waiting)} of them NOT LOADED" if waiting else ""


def _plan_json(plan: CleanPlan) -> Mapping[str, object]:
    return {
        "pipeline": plan.pipeline,
        "batches": [asdict(batch) for batch in plan.batches],
        "orphans": list(plan.orphans),
        "bytes": plan.bytes,
    }


def _aware(stamp: str) -> str:
    return datetime.fromisoformat(stamp).replace(tzinfo=UTC).isoformat()


def _size(number: int) -> str:
    size = float(number)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 10 else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"

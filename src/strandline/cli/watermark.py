"""`strandline watermark`: see and move watermarks. Moving is decided by `operations`; here it is shown and asked."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from strandline.cli.invocation import Invocation, common, pipeline_option, table_option, tables_option
from strandline.cli.stages import stage_option

if TYPE_CHECKING:
    from strandline.core.errors import StateError
    from strandline.core.position import Position
    from strandline.project import Project

why_option = click.option("--why", default="", metavar="TEXT", help="The reason, for the history.")
wait_option = click.option("--wait", is_flag=True, help="Wait for a run of the table to end, instead of refusing.")
yes_option = click.option("--yes", is_flag=True, help="Do not ask.")
duplicates_option = click.option("--allow-duplicates", is_flag=True, help="Mode append: rows may come in twice.")


@click.group(invoke_without_command=True)
@click.pass_context
def watermark(ctx: click.Context) -> None:
    """See, move, save and restore watermarks. The target's data is never touched."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@watermark.command()
@pipeline_option
@table_option
@common
@click.pass_obj
def get(invocation: Invocation, pipeline: str | None, table: str) -> int:
    """Show where one table stands, stage by stage."""
    from strandline.cli import positions
    from strandline.cli.selection import one_table
    from strandline.core.position import Position
    from strandline.pipeline import stages
    from strandline.result import positions_json

    with invocation.project() as project:
        home = one_table(project, pipeline, table)
        found, bad = _read(invocation, project, home, (table,))
        spec = project.config.pipelines.get(home)
        if spec is not None and not bad:
            known = {position.stage: position for position in found}
            now = [known.pop(stage, Position(home, table, stage)) for stage in stages(spec)]
            found = [*now, *known.values()]
        if invocation.json:
            shown = positions_json(found) if found else {"pipeline": home, "table": table, "stages": []}
            invocation.say_json(shown)
        elif found:
            invocation.say("\n".join(positions.one(found, spec, project.books.state.now())))
    return 1 if bad else 0


@watermark.command("list")
@pipeline_option
@tables_option
@common
@click.pass_obj
def list_(invocation: Invocation, pipeline: str | None, tables: tuple[str, ...]) -> int:
    """List every table's watermark."""
    from strandline.cli import positions
    from strandline.cli.selection import one_table, stored
    from strandline.result import positions_json

    with invocation.project() as project:
        if pipeline is not None and not stored(project, pipeline):
            project.pipeline(pipeline)
        for table in tables:
            one_table(project, pipeline, table)
        found, bad = _read(invocation, project, pipeline, tables)
        if invocation.json:
            grouped = positions.by_table(found)
            invocation.say_json({"tables": [positions_json(part) for part in grouped]})
        elif found:
            invocation.say("\n".join(positions.several(found, project.books.state.now(), invocation.room())))
        else:
            invocation.tell("no watermarks yet: nothing has been synced")
    return 1 if bad else 0


def _read(
    invocation: Invocation, project: Project, pipeline: str | None, tables: tuple[str, ...]
) -> tuple[list[Position], bool]:
    """Positions asked for, and whether some could not be read; those are told."""
    unreadable: dict[tuple[str, str, str], StateError] = {}
    known = project.books.positions(pipeline or "", unreadable=unreadable)
    bad = [error for key, error in sorted(unreadable.items()) if not tables or key[1] in tables]
    for error in bad:
        invocation.tell_error(error)
    found = [position for key, position in sorted(known.items()) if not tables or key[1] in tables]
    return found, bool(bad)


@watermark.command("set")
@pipeline_option
@table_option
@stage_option
@click.option("--timestamp", metavar="TIME", help="A time or date: 2026-11-15, 2026-11-15T08:12:44.12Z.")
@click.option("--value", metavar="VALUE", help="A value of the cursor, whatever its kind.")
@click.option("--version", metavar="N", help="A version number.")
@click.option("--accept", is_flag=True, help="Keep the watermark, though what it measures has changed.")
@duplicates_option
@wait_option
@why_option
@yes_option
@common
@click.pass_obj
def set_(
    invocation: Invocation,
    pipeline: str | None,
    table: str,
    timestamp: str | None,
    value: str | None,
    version: str | None,
    accept: bool,
    allow_duplicates: bool,
    wait: bool,
    why: str,
    yes: bool,
    stage: str = "",
) -> int:
    """Move a watermark, after showing what would be re-read or skipped.

    Refused during a run of the table, for a value in the future, and for one that is no value of the cursor.
    """
    from strandline import operations
    from strandline.cli.changes import carry_out
    from strandline.cli.selection import one_table
    from strandline.core.watermark import Kind

    given = [
        (text, kind) for text, kind in ((timestamp, Kind.TIMESTAMP), (value, None), (version, Kind.VERSION)) if text
    ]
    if len(given) + accept != 1:
        raise click.UsageError("give one of --timestamp, --value, --version and --accept", click.get_current_context())
    text, kind = given[0] if given else (None, None)
    with invocation.project() as project:
        change = operations.set_watermark(
            project,
            one_table(project, pipeline, table),
            table,
            text,
            stage=stage,
            kind=kind,
            accept=accept,
            allow_duplicates=allow_duplicates,
            wait=wait,
        )
        return carry_out(invocation, project, [change], why=why, yes=yes)


@watermark.command()
@pipeline_option
@table_option
@stage_option
@duplicates_option
@wait_option
@why_option
@yes_option
@common
@click.pass_obj
def reset(
    invocation: Invocation,
    pipeline: str | None,
    table: str,
    allow_duplicates: bool,
    wait: bool,
    why: str,
    yes: bool,
    stage: str = "",
) -> int:
    """Forget the watermark: the next sync reads from the beginning and merges. Deletes nothing.

    To replace the target instead: strandline sync --full.
    """
    from strandline import operations
    from strandline.cli.changes import carry_out
    from strandline.cli.selection import one_table

    with invocation.project() as project:
        home = one_table(project, pipeline, table)
        change = operations.reset(project, home, table, stage=stage, allow_duplicates=allow_duplicates, wait=wait)
        return carry_out(invocation, project, [change], why=why, yes=yes)


@watermark.command()
@pipeline_option
@click.option("-t", "--table", metavar="TABLE", help="Only this table.")
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, metavar="N", help="The latest N.")
@common
@click.pass_obj
def history(invocation: Invocation, pipeline: str | None, table: str | None, limit: int) -> int:
    """Show every watermark that a person moved: old, new, who and why."""
    from dataclasses import asdict

    from strandline import operations
    from strandline.cli import positions

    with invocation.project() as project:
        found = operations.history(project, pipeline or "", table or "", limit)
        if invocation.json:
            invocation.say_json({"changes": [asdict(entry) for entry in found]})
        elif found:
            invocation.say("\n".join(positions.changes(found, invocation.room())))
        else:
            invocation.tell("no watermark was moved by a person")
    return 0


@watermark.command()
@pipeline_option
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Not to stdout.")
@common
@click.pass_obj
def export(invocation: Invocation, pipeline: str | None, output: Path | None) -> int:
    """Print every position as JSON, for `watermark import`."""
    from strandline import operations
    from strandline.cli.selection import stored

    with invocation.project() as project:
        if pipeline is not None and not stored(project, pipeline):
            project.pipeline(pipeline)
        document = operations.export(project, pipeline or "")
        if output is None:
            invocation.say_json(document)
        else:
            whole = json.dumps({"schema_version": 1, **document}, indent=2, ensure_ascii=False)
            output.write_text(whole + "\n", encoding="utf-8")
            invocation.tell(f"{len(document['positions'])} positions written to {output}")
    return 0


@watermark.command("import")
@click.argument("file", metavar="[FILE]", required=False)
@click.option("--from-target", is_flag=True, help="Rebuild the position of -t from what the target holds.")
@click.option("--from-control", metavar="TABLE", help="Take over what a control table in the target of -p notes.")
@click.option("--from-delta", metavar="PATH", help="Take over what a Delta table of watermarks notes.")
@click.option("--from-cache", metavar="TABLE[:KEY]", help="Take over what a cache table in the source of -t holds.")
@pipeline_option
@click.option("-t", "--table", metavar="TABLE", help="With --from-target and --from-cache: the table.")
@stage_option
@wait_option
@why_option
@yes_option
@common
@click.pass_obj
def import_(
    invocation: Invocation,
    file: str | None,
    from_target: bool,
    from_control: str | None,
    from_delta: str | None,
    from_cache: str | None,
    pipeline: str | None,
    table: str | None,
    wait: bool,
    why: str,
    yes: bool,
    stage: str = "",
) -> int:
    """Restore positions from FILE (- is stdin), or one table's from its target (--from-target -t TABLE).

    FILE is what `watermark export` wrote, or the JSON document in which another tool keeps a table's watermark
    (`last_mysql_data_timestamp`). A control table has the columns TABLE_NAME, WATERMARK_TO and SYNC_STATUS. A Delta
    table has table_name and last_processed_version (a version), or pipeline_name and last_processed_ts. A cache table
    has a key and a value, such as {"seq": 4711}.
    """
    from strandline import operations
    from strandline.cli.changes import carry_out
    from strandline.cli.selection import one_pipeline, one_table

    given = (file, from_control, from_delta, from_cache, from_target or None)
    if sum(each is not None for each in given) != 1 or (from_target or from_cache is not None) != (table is not None):
        said = (
            "give one of FILE, --from-target with -t TABLE, --from-control with -p PIPELINE, --from-delta, and "
            "--from-cache with -t TABLE"
        )
        raise click.UsageError(said, click.get_current_context())
    with invocation.project() as project:
        if from_control is not None:
            found = operations.adopt_control(project, one_pipeline(project, pipeline), from_control, wait=wait)
            return carry_out(invocation, project, found, why=why, yes=yes)
        if from_delta is not None:
            found = operations.adopt_delta(project, from_delta, pipeline or "", wait=wait)
            return carry_out(invocation, project, found, why=why, yes=yes)
        if table is not None:
            home = one_table(project, pipeline, table)
            if from_cache is not None:
                found = [operations.adopt_cache(project, home, table, from_cache, wait=wait)]
                return carry_out(invocation, project, found, why=why, yes=yes)
            found = [operations.import_from_target(project, home, table, stage=stage, wait=wait)]
        else:
            document = _document(file or "-")
            if operations.is_foreign(document):
                found = operations.adopt(project, document, pipeline or "", wait=wait)
            else:
                found = operations.import_(project, document, wait=wait)
        return carry_out(invocation, project, found, why=why, yes=yes)


def _document(file: str) -> Any:
    from strandline.core.errors import ConfigError

    try:
        return json.loads(sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from error
    except ValueError as error:
        remedy = "Give the file that `strandline watermark export` wrote."
        raise ConfigError(f"{file} is not JSON: {error}", remedy=remedy) from error


@watermark.command()
@pipeline_option
@table_option
@click.option("--to", required=True, metavar="TABLE", help="The new name, as the config has it now.")
@click.option("--to-pipeline", metavar="PIPELINE", help="The new pipeline. Default: the same.")
@stage_option
@wait_option
@why_option
@yes_option
@common
@click.pass_obj
def rename(
    invocation: Invocation,
    pipeline: str | None,
    table: str,
    to: str,
    to_pipeline: str | None,
    wait: bool,
    why: str,
    yes: bool,
    stage: str = "",
) -> int:
    """Give a position another name, after a table or pipeline was renamed in the config."""
    from strandline import operations
    from strandline.cli.changes import carry_out
    from strandline.cli.selection import one_table

    with invocation.project() as project:
        home = one_table(project, pipeline, table)
        change = operations.rename(project, (home, table), (to_pipeline or home, to), stage=stage, wait=wait)
        return carry_out(invocation, project, [change], why=why, yes=yes)


@watermark.command()
@pipeline_option
@table_option
@stage_option
@wait_option
@why_option
@yes_option
@common
@click.pass_obj
def forget(
    invocation: Invocation, pipeline: str | None, table: str, wait: bool, why: str, yes: bool, stage: str = ""
) -> int:
    """Drop the position of a table that is gone. Its target and its history stay."""
    from strandline import operations
    from strandline.cli.changes import carry_out
    from strandline.cli.selection import one_table

    with invocation.project() as project:
        home = one_table(project, pipeline, table)
        change = operations.forget(project, home, table, stage=stage, wait=wait)
        return carry_out(invocation, project, [change], why=why, yes=yes)

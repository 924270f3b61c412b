"""`strandline verify` compares source and target below the watermark, and repairs what differs if asked to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from strandline.cli.invocation import Invocation, common, pipeline_option, tables_option
from strandline.core.compare import KINDS

if TYPE_CHECKING:
    from strandline.project import Project
    from strandline.verify.verdict import Verdict


@click.command()
@pipeline_option
@tables_option
@click.option("--repair", is_flag=True, help="Then make what differs equal, by a run of its own.")
@click.option("--delete", is_flag=True, help="With --repair: delete rows that the source does not have.")
@click.option(
    "--delete-fraction",
    type=click.FloatRange(0, 1),
    default=0.01,
    show_default=True,
    metavar="F",
    help="Delete nothing if more than this part of the target's rows would go.",
)
@common
@click.pass_obj
def verify(
    invocation: Invocation,
    pipeline: str | None,
    tables: tuple[str, ...],
    repair: bool,
    delete: bool,
    delete_fraction: float,
) -> int:
    """Compare source and target, row by row where they differ.

    Checksums of all rows below the watermark are computed inside each system; only buckets that differ are looked at
    closer. Rows are missing (in the source only), extra (in the target only), different, or duplicate. Exit code 1 if
    a table differs and was not repaired. The source may be written meanwhile.
    """
    from strandline.cli.selection import select

    if delete and not repair:
        raise click.UsageError("--delete goes with --repair")
    with invocation.project() as project:
        chosen = select(project, pipeline, tables)
        verdicts, code = verified(
            invocation, project, chosen, repair=repair, delete=delete, delete_fraction=delete_fraction
        )
        if invocation.json:
            invocation.say_json({"tables": [verdict.to_json() for verdict in verdicts]})
        return code


def verified(
    invocation: Invocation, project: Project, chosen: Mapping[str, Sequence[str]], **options: Any
) -> tuple[list[Verdict], int]:
    """Every table of these pipelines, watched and told; a pipeline that cannot even start leaves the others alone."""
    from strandline.cli.progress import listening
    from strandline.core.books import Caller
    from strandline.core.errors import StrandlineError

    verdicts: list[Verdict] = []
    codes = {0}
    for name, tables in chosen.items():
        try:
            with listening(invocation) as listener:
                found = project.verify(name, tables=tables, listener=listener, caller=Caller.here("cli"), **options)
        except StrandlineError as error:
            invocation.tell_error(error.at(name))
            codes.add(error.exit_code)
            continue
        verdicts += found
        codes |= {0 if verdict.good else 1 for verdict in found}
        if not invocation.json:
            invocation.say("\n".join(_lines(name, found, invocation.room())))
        for verdict in found:
            if verdict.error:
                invocation.tell_error(verdict.error)
    return verdicts, 1 if 1 in codes else max(codes)


def _lines(pipeline: str, verdicts: Sequence[Verdict], room: int | None) -> list[str]:
    """One line per table, some keys of what differs, and a total."""
    from strandline.cli import render, text

    head = ("table", "rows", *KINDS, "repaired", "result", "time")
    several = len({verdict.stage for verdict in verdicts}) > 1
    rows = [
        (
            _name(verdict, several),
            text.count(verdict.rows),
            *(_count(verdict, kind) for kind in KINDS),
            text.count(verdict.repaired),
            verdict.answer.value,
            text.duration(verdict.seconds),
        )
        for verdict in verdicts
    ]
    lines = [click.style(pipeline, bold=True), "", *render.table(head, rows, right=(*head[1:7], "time"), room=room), ""]
    for verdict in verdicts:
        for kind, keys in verdict.differences.examples.items():
            shown = ", ".join(_key(key) for key in keys)
            more = getattr(verdict.differences, kind) - len(keys)
            rest = f" and {text.count(more)} more" if more > 0 else ""
            lines.append(f"  {_name(verdict, several)}: {kind} {shown}{rest}")
        lines += [f"  {_name(verdict, several)}: {note}" for note in verdict.notes]
    bad = sum(not verdict.good for verdict in verdicts)
    thing = "copy" if several else "table"
    return [*lines, f"{text.many(len(verdicts), thing)}: {len(verdicts) - bad} as they should be, {bad} not"]


def _name(verdict: Verdict, several: bool) -> str:
    """With several targets, which of them."""
    return f"{verdict.table} ({verdict.stage})" if several else verdict.table


def _count(verdict: Verdict, kind: str) -> str:
    count = getattr(verdict.differences, kind)
    return f"{count:,}" if verdict.complete else f"≥ {count:,}"


def _key(key: Sequence[str | None]) -> str:
    parts = ["NULL" if part is None else part for part in key]
    return parts[0] if len(parts) == 1 else f"({', '.join(parts)})"

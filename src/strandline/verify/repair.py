"""A repair as a plan like any other: the parts of the key that differ, each a slice that leaves the watermark alone.

So a repair runs under the lease, its batches are numbered, the history has it, and a crash leaves a plan that the next
run carries out. Owns what may be repaired; carries out nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

from strandline.core.compare import Comparison, coarser, joined
from strandline.core.errors import ChangedError, LeaseError, TargetError
from strandline.core.plan import Ask, Planned
from strandline.core.position import Reason, TablePlan
from strandline.core.table import Mode, Table
from strandline.core.window import KeyHash, KeyRange, Part, Repair, Slice, Window
from strandline.verify.table import Findings

DELETE_FRACTION = 0.01
_SLICES = 16
_HASHES = 512
_SMALL = 500_000  # rows of a table that are read again at once rather than in several commits


def planned(
    ask: Ask,
    comparison: Comparison,
    findings: Findings,
    run_id: str,
    *,
    delete: bool,
    delete_fraction: float,
    beside: Sequence[Findings] = (),
) -> Planned | None:
    """The plan that makes these parts equal; None: there is nothing it may do. Errors say why it may not.

    `beside`: of the same table in the other targets of a stage. They are given the same batch, and must take it too.
    """
    table, position, found = ask.table, ask.position, findings.differences
    check(ask, comparison, findings)
    removable = found.extra and (delete or table.deleted)  # a row that the source marks as deleted goes in any case
    if not (found.missing or found.different or found.duplicate or removable):
        return None
    deletes = max(_most(table, each, delete_fraction) for each in (findings, *beside)) if delete else None
    assert position.watermark is not None
    window = Window(None, position.watermark)
    plan = TablePlan(
        table.name,
        table.stage,
        window,
        tuple(Slice(window, last=False, repair=Repair(part, deletes)) for part in _merged(findings)),
        Reason.REPAIR,
        estimated_rows=found.missing + found.different + found.duplicate + (found.extra if delete else 0),
        run_id=run_id,
    )
    return Planned(table, position, position.unmoved(plan), ask.measures)


def _most(table: Table, findings: Findings, fraction: float) -> int:
    """How many rows of a target may be deleted. TargetError if more would be."""
    extra, most = findings.differences.extra, int(fraction * findings.rows)
    if extra <= most:
        return most
    needed = extra / max(findings.rows, 1)
    raise TargetError(
        f"{extra:,} of {findings.rows:,} rows would be deleted, {needed:.1%}; at most {fraction:g} of "
        f"them may be: {most:,}",
        where=table.where_text,
        why="So many at once look like a source that lost rows, or another one. Nothing was repaired.",
        remedy=f"If they are to go:   strandline verify -t {table.name} --repair --delete "
        f"--delete-fraction {_rounded_up(needed)}",
    )


def check(ask: Ask, comparison: Comparison, findings: Findings) -> None:
    """Raises what keeps this table from being repaired part by part."""
    table, plan = ask.table, ask.position.plan
    if ask.busy:
        raise LeaseError(f"another run is at work: {ask.busy}", where=table.where_text, remedy="Wait for it.")
    if plan is not None:
        raise ChangedError(
            f"run {plan.run_id} left its plan unfinished: a repair has to wait",
            where=table.where_text,
            remedy=f"Carry it out first:   strandline sync -t {table.name}",
        )
    if table.mode is Mode.SNAPSHOT:
        raise TargetError(
            "a snapshot is not repaired, it is taken again", where=table.where_text, remedy=_again(table, "sync")
        )
    if not comparison.key or not findings.complete:
        why = "so much differs that it was not counted to the end" if comparison.key else "its rows have no key"
        raise TargetError(
            f"it cannot be repaired row by row: {why}", where=table.where_text, remedy=_again(table, "sync --full")
        )


def _again(table: Table, command: str) -> str:
    return f"Load it again:   strandline {command} -t {table.name}"


def _merged(findings: Findings) -> list[Part]:
    """Few slices: ranges beside each other are one, and if there are many, what lies between them is read too."""
    ranges = [part for part in findings.parts if isinstance(part, KeyRange)]
    hashes = [part for part in findings.parts if isinstance(part, KeyHash)]
    merged: list[Part] = list(joined(ranges, 1 if findings.rows <= _SMALL else _SLICES))
    if hashes:
        every = sorted(set(chain.from_iterable(part.remainders for part in hashes)))
        merged.append(coarser(replace(hashes[0], remainders=tuple(every)), _HASHES))
    return merged


def _rounded_up(fraction: float) -> str:
    return f"{min(1.0, fraction * 1.01 + 0.0001):.4f}"

"""One table compared: sums of all rows or of all buckets on both sides at once, then only rows of buckets that differ.

Memory is bounded: sums of at most 16,384 buckets, and rows in portions. Works while the source is written: a row that
is updated meanwhile leaves the comparison on both sides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from strandline.core.compare import (
    LEAF,
    Comparison,
    Cut,
    Differences,
    Sum,
    compare,
    cut_range,
    differing,
    first_cut,
    parts_of,
    portions,
)
from strandline.core.errors import SourceError
from strandline.core.protocols import SourceSide, TargetSide
from strandline.core.window import Part

MOVED = 1_000_000  # rows at or above the watermark that a comparison can leave out
_PORTION = 100_000  # rows fetched at once from either side
_RANGES = 200  # key ranges asked for in one statement
_WHOLE = 2**28  # rows of a table that is added up as one at first; sums of Spark's could not hold those of many more
_ROWS = 2_000_000  # rows looked at one by one before a table counts as different altogether

Tell = Callable[[str, int, int], None]
"""Told what is being done, how many steps are done, and of how many."""


@dataclass
class Findings:
    rows: int = 0  # of the target that were compared
    differences: Differences = field(default_factory=Differences)
    parts: list[Part] = field(default_factory=list)  # where they lie
    complete: bool = True  # False: so much differs that it was not counted to the end


def compare_table(source: SourceSide, target: TargetSide, comparison: Comparison, tell: Tell) -> Findings:
    tell("rows above the watermark", 0, 3)
    moved = _moved(source, comparison, ())
    target.leave_out(moved)
    reach = source.reach()
    tell("checksums", 1, 3)
    # To find each row's bucket costs a third of it all. While nobody writes, both sides are mostly equal.
    cut = first_cut(comparison, reach) if moved or (reach.rows or 0) > _WHOLE else Cut(1)
    here, there = _sums(source, target, cut)
    findings = Findings(rows=sum(found.rows for found in there.values()))
    if cut.whole and differing(here, there):
        cut = first_cut(comparison, reach)
        here, there = _sums(source, target, cut)
    tell("differing buckets", 2, 3)
    work = [(cut, differing(here, there))]
    looked = 0
    while work:
        cut, buckets = work.pop()
        large = {bucket: rows for bucket, rows in buckets.items() if _divisible(cut, bucket, rows)}
        for bucket, rows in large.items():
            part = cut.part(bucket)
            inner = replace(cut_range(part, max(2, 2 * rows // LEAF)), within=part)
            work.append((inner, differing(*_sums(source, target, inner))))
        small = {bucket: rows for bucket, rows in buckets.items() if bucket not in large}
        for group, rows in portions(small, _PORTION, _RANGES if cut.column else LEAF):
            parts = parts_of(comparison, cut, group)
            if looked > _ROWS:
                return replace(findings, complete=False)
            looked += rows
            found = compare_parts(source, target, comparison, parts)
            findings.differences += found
            findings.parts += parts if found else ()
    tell("differing buckets", 3, 3)
    return findings


def compare_parts(source: SourceSide, target: TargetSide, comparison: Comparison, parts: Sequence[Part]) -> Differences:
    """Row by row. Rows that moved are asked for after the source's: whichever moved before is among them."""
    lines = source.rows(parts)
    moved = frozenset(_moved(source, comparison, parts))
    return compare(comparison, lines, target.rows(parts), moved)


def _sums(source: SourceSide, target: TargetSide, cut: Cut) -> tuple[Mapping[int, Sum], Mapping[int, Sum]]:
    with ThreadPoolExecutor(1) as beside:
        here = beside.submit(source.sums, cut)
        there = target.sums(cut)
        return here.result(), there


def _moved(source: SourceSide, comparison: Comparison, parts: Sequence[Part]) -> list[tuple[str | None, ...]]:
    moved = source.moved(parts, MOVED + 1)
    if len(moved) > MOVED:
        raise SourceError(
            f"more than {MOVED:,} rows were written since the last sync",
            where=comparison.table.where_text,
            why="They stand at or above the watermark and would have to be left out one by one.",
            remedy=f"Move them first:   strandline sync --verify -t {comparison.table.name}",
        )
    return moved


def _divisible(cut: Cut, bucket: int, rows: int) -> bool:
    """A bucket that holds far more than its share and can be cut further: keys lie close together there."""
    return bool(cut.column) and 0 <= bucket < cut.count and cut.width > 1 and rows > 8 * LEAF

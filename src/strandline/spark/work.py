"""How much a Spark that is started for one run alone will have to do.

Java and Spark compile what they are about to do, which takes a few seconds and pays where much passes through. Owns
where it does not; knows no Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum

from strandline.core.plan import Planned
from strandline.core.position import Position


class Work(Enum):
    MUCH = "much"
    LITTLE = "little"
    """Done sooner without Java's optimising compiler."""
    LEAST = "least"
    """Done sooner where Spark compiles no single expressions, too."""


_LITTLE, _LEAST = (100_000, 10_000_000), (20_000, 200_000)
"""Rows to be moved, and rows that Spark looks through in the targets: at most."""


def expected(plans: Iterable[Planned], *, into_lake: bool) -> Work:
    """In a lake it is Spark that finds the rows of a target; a database does so itself."""
    work = [part for part in plans if part.plan.work]
    moved = [_moved(part) for part in work]
    there = [_there(part.position) for part in work] if into_lake else []
    for size, rows, looked_through in ((Work.LEAST, *_LEAST), (Work.LITTLE, *_LITTLE)):
        if _at_most(rows, moved) and _at_most(looked_through, there):
            return size
    return Work.MUCH


def _moved(part: Planned) -> int | None:
    """None: nobody knows, or the user's own code may read what it likes."""
    return None if part.table.transform else part.plan.estimated_rows


def _there(position: Position) -> int | None:
    """About how many rows a target has; None: a watermark that was set, or taken over, tells nothing of them."""
    known = position.watermark is None or position.totals.rows_read
    return position.totals.rows_read if known else None


def _at_most(limit: int, counts: Sequence[int | None]) -> bool:
    known = [count for count in counts if count is not None]
    return len(known) == len(counts) and sum(known) <= limit

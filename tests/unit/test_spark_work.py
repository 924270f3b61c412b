"""What a Spark that is started for one run is told to save itself: by how much the run moves, and looks through."""

from __future__ import annotations

import pytest

from strandline.core.batch import Applied
from strandline.core.plan import Planned
from strandline.core.position import Position, Reason, TablePlan
from strandline.core.table import Mode, Table
from strandline.core.watermark import Kind, Watermark
from strandline.core.window import Window, by_cursor
from strandline.spark.work import Work, expected

TEN = Watermark(Kind.INTEGER, "10")
SLICES = by_cursor(Window(None, TEN), [])


def part(
    rows: int | None,
    there: int = 0,
    *,
    work: bool = True,
    watermark: Watermark | None = None,
    transform: str | None = None,
) -> Planned:
    table = Table("shop", "orders", "orders", "orders", "sync", Mode.MERGE, None, ("id",), transform=transform)
    position = Position("shop", "orders", "sync", watermark or (TEN if there else None), totals=Applied(there))
    slices = SLICES if work else ()
    plan = TablePlan("orders", "sync", Window(None, TEN), slices, Reason.INCREMENTAL, estimated_rows=rows)
    return Planned(table, position, plan, {})


@pytest.mark.parametrize(
    ("parts", "into_lake", "work"),
    [
        ([part(20, 1000), part(20, 1000)], True, Work.LEAST),
        ([part(15_000, 1000), part(15_000, 1000)], True, Work.LITTLE),
        ([part(20, 5_000_000)], True, Work.LITTLE),
        ([part(20, 5_000_000)], False, Work.LEAST),
        ([part(20, 50_000_000)], True, Work.MUCH),
        ([part(200_000)], True, Work.MUCH),
        ([part(20), part(200_000, work=False)], True, Work.LEAST),
        ([part(20), part(None)], True, Work.MUCH),
        ([part(20), part(20, transform="mine:enrich")], True, Work.MUCH),
        ([part(20, watermark=TEN)], True, Work.MUCH),
        ([part(20, watermark=TEN)], False, Work.LEAST),
    ],
    ids=[
        "little in all",
        "two tables that are more together",
        "into a large table",
        "a database looks through its table itself",
        "into a huge one",
        "much to move",
        "what does not move counts for nothing",
        "nobody knows how much",
        "nobody knows what the user's own code reads",
        "nobody knows how much is there",
        "where it does not matter",
    ],
)
def test_what_a_session_is_started_for(parts: list[Planned], into_lake: bool, work: Work) -> None:
    assert expected(parts, into_lake=into_lake) is work

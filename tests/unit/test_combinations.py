"""Ranges that are looked at again, together with limits, crashes, people, clocks and changes of the config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from itertools import count

import pytest

from strandline.core.batch import Applied, Batch, Receipt
from strandline.core.errors import StrandlineError
from strandline.core.plan import make_plan
from strandline.core.position import Gap, Reason, Status
from strandline.core.table import MaxStall, Mode, Table
from strandline.core.watermark import Kind, Watermark
from strandline.core.window import Window
from strandline.testing.database import Transaction
from strandline.testing.memory import MemorySource
from strandline.testing.world import World

SKIP = MaxStall(timedelta(minutes=1), "skip")


@pytest.fixture
def world() -> World:
    world = World()
    world.table(max_stall=SKIP)
    world.write(1)
    world.poll()
    return world


def ids(world: World) -> list[int]:
    return [row["id"] for row in world.target_rows()]


def stalled(world: World, id: int = 2) -> Transaction:
    """A transaction that has written a row and stays open for longer than the table allows."""
    late = world.source.begin()
    late.write("orders", {"id": id, "value": "late"})
    world.clock.advance(70)
    return late


def end(world: World, late: Transaction) -> None:
    late.commit()
    world.clock.advance(1)
    world.poll()


def test_a_plan_given_up_halfway_past_a_stall_leaves_the_range_open(world: World) -> None:
    world.change(slice_rows=1)
    late = stalled(world)
    world.write(3)
    world.write(4)
    assert world.poll_killed(4), "the first slice is committed: the watermark is past the stall"
    world.expire_leases()
    position = world.position()
    world.books().write([replace(position, plan=None, intent=None, epoch=position.epoch + 1)])
    end(world, late)
    world.poll()
    assert ids(world) == [1, 2, 3, 4]


def test_a_watermark_moved_back_into_an_open_range_leaves_it_open(world: World) -> None:
    late = stalled(world)
    world.write(3)
    world.poll()
    between = world.position().watermark
    world.write(4)
    world.poll()
    world.books().write([world.position().moved(between)])
    end(world, late)
    assert ids(world) == [1, 2, 3, 4]
    assert world.position().gap is None


def test_a_watermark_moved_below_an_open_range_or_past_it_closes_it(world: World) -> None:
    start = world.position().watermark
    stalled(world)
    world.write(3)
    world.poll()
    position = world.position()
    assert position.gap is not None and position.watermark is not None
    assert position.moved(start).gap is None, "all of it is read again"
    assert position.moved(position.watermark.minus(timedelta(days=-1))).gap is None, "left out on purpose"
    assert position.moved(None).gap is None


def test_a_limit_gets_past_a_range_that_stays_open_though_rows_appear_in_it(world: World) -> None:
    """Every run would read the first rows of the range again, and never come to what lies beyond it."""
    late, other = stalled(world), world.source.begin()
    other.write("orders", {"id": 20, "value": "late too"})
    for id in range(3, 8):
        world.write(id)
    world.poll()
    other.commit()
    for id in range(8, 12):
        world.write(id)
    for _ in range(5):
        world.poll(limit=1)
    assert ids(world)[-1] == 11
    late.commit()
    world.clock.advance(1)
    for _ in range(15):
        world.poll(limit=1)
    assert ids(world) == [*range(1, 12), 20]
    assert world.position().gap is None


def test_a_limit_with_lookback_leaves_open_what_it_did_not_look_back_at(world: World) -> None:
    world.change(lookback=timedelta(seconds=100))
    late = stalled(world)
    world.write(3)
    world.poll()
    world.source.write("orders", {"id": 8, "value": "old", "moved": world.clock.now() - timedelta(seconds=80)})
    for id in range(4, 7):
        world.write(id)
        world.poll(limit=1)
    world.clock.advance(1000)
    end(world, late)
    assert ids(world) == [1, 2, 3, 4, 5, 6, 8]


class Meddled(MemorySource):
    """Somebody commits between the two looks that planning takes at a range."""

    late: Transaction | None = None

    def fingerprints(self, windows: Mapping[str, tuple[Table, Window]]) -> dict[str, str | StrandlineError]:
        found = super().fingerprints(windows)
        if self.late is not None:
            self.late.commit()
            self.late = None
        return found


def test_a_row_that_appears_while_a_run_is_planned_is_not_taken_for_seen() -> None:
    world = World()
    world.source = source = Meddled(world.source.clock)
    world.table(max_stall=SKIP)
    world.write(1)
    world.poll()
    stalled(world, 9)
    late = stalled(world)
    world.write(3)
    world.poll()
    world.write(4)
    source.late = late
    world.poll()
    world.poll()
    assert ids(world) == [1, 2, 3, 4]


def test_a_range_opened_by_the_first_load_begins_where_that_began() -> None:
    world = World()
    world.table(max_stall=SKIP)
    world.write(1)
    world.clock.advance(100)
    world.change(initial=world.clock.now().isoformat())
    late = stalled(world)
    world.write(3)
    world.poll()
    assert ids(world) == [3]
    end(world, late)
    assert ids(world) == [2, 3], "what lies before `initial` was never asked for"


def test_a_row_updated_after_the_clock_went_back_replaces_the_one_stamped_higher(world: World) -> None:
    world.clock.advance(100)
    world.write(1, value="second")
    world.poll()
    world.source.clock.advance(-60)
    world.write(1, value="third")
    world.poll()
    world.clock.advance(100)
    world.poll()
    assert world.target_rows() == world.source.rows("orders")
    assert world.position().gap is None


def test_a_row_updated_after_ids_started_again_replaces_the_one_numbered_higher() -> None:
    world = World()
    world.table(kind=Kind.INTEGER)
    world.write(1, 2, 3)
    world.write(1, value="again")
    world.poll()
    held = world.source.held("orders")
    held.sequence, held.last_id = count(1), 0
    world.write(1, value="newest")
    world.poll()
    assert "sync --full" in world.plan()[0].plan.note
    for id in (4, 5, 6, 7):
        world.write(id)
    world.poll(limit=2)
    while world.position().gap:
        world.poll(limit=2)
    assert world.target_rows() == world.source.rows("orders")


@pytest.mark.parametrize("reset", [False, True])
def test_a_watermark_moved_while_the_clock_is_behind_still_waits_for_it(world: World, reset: bool) -> None:
    """Rows stamped by the clock that was ahead would win over newer ones."""
    early = world.position().watermark
    world.clock.advance(100)
    world.write(1, value="second")
    world.poll()
    world.source.clock.advance(-60)
    world.poll()
    world.books().write([world.position().moved(None if reset else early)])
    world.write(1, value="third")
    (planned,) = world.plan()
    assert planned.plan.reason is Reason.HELD
    assert "sync --full" in planned.plan.note
    world.poll()
    world.clock.advance(100)
    world.poll()
    assert world.target_rows() == world.source.rows("orders")
    assert world.position().gap is None


def test_append_goes_on_after_the_clock_went_back_above_what_was_read() -> None:
    world = World()
    world.table(mode=Mode.APPEND)
    world.table("others")
    for id in range(1, 6):
        world.write(id)
    world.clock.advance(1000)
    world.poll(limit=2)
    world.source.clock.advance(-30)
    world.poll()
    world.clock.advance(100)
    world.poll()
    assert ids(world) == [1, 2, 3, 4, 5]


def test_the_clock_goes_back_twice_and_then_a_stall_is_passed_over(world: World) -> None:
    world.clock.advance(500)
    world.poll()
    for id in (2, 3):
        world.source.clock.advance(-100)
        world.write(id)
        world.poll()
    late = world.source.begin()
    late.write("orders", {"id": 4, "value": "late"})
    world.clock.advance(300)
    world.write(5)
    world.poll()
    gap = world.position().gap
    assert gap is not None and gap.back
    end(world, late)
    assert ids(world) == [1, 2, 3, 4, 5]
    assert world.position().gap is None


def test_rows_without_a_cursor_and_a_limit_do_not_keep_a_range_open(world: World) -> None:
    world.change(nulls="include")
    late = stalled(world)
    world.source.write("orders", {"id": 9, "value": "no cursor", "moved": None})
    world.write(3)
    world.poll(limit=1)
    late.commit()
    world.clock.advance(1)
    for _ in range(3):
        world.poll(limit=1)
    assert ids(world) == [1, 2, 3, 9]
    assert world.position().gap is None


def test_a_range_outlives_the_max_stall_it_came_from(world: World) -> None:
    late = stalled(world)
    world.write(3)
    world.poll()
    world.change(max_stall=None, lookback=timedelta(seconds=1))
    world.write(4)
    world.poll()
    end(world, late)
    world.write(5)
    world.poll()
    assert ids(world) == [1, 2, 3, 4, 5]


def test_a_fence_for_one_table_leaves_the_other_in_a_shared_target_alone() -> None:
    world = World()
    world.table(shared=True)
    world.table("others", shared=True, target="orders")
    world.write(1)
    world.write(2, table="others")
    world.poll()
    world.sink.fence(world.tables["orders"], 5)
    world.write(3, table="others")
    outcomes = world.poll()
    assert outcomes["others"].status is Status.COMPLETED, outcomes["others"].error


def test_a_target_that_remembers_only_a_fence_above_the_batch_agrees_with_it() -> None:
    high = Watermark(Kind.INTEGER, "9")
    batch = Batch("store", 1, 4, None, high, high, "a")
    fenced = Receipt(Batch("", 2, 4, None, Watermark(Kind.VERSION, "0"), None, ""), Applied(), exact=False)
    assert fenced.agrees(batch)
    assert not fenced.agrees(replace(batch, number=3))
    assert not fenced.agrees(replace(batch, epoch=3)), "a target that went back"


def test_a_gap_above_the_watermark_stops_no_other_table() -> None:
    """A target restored and imported can leave the watermark below a range that was open."""
    world = World()
    world.table(mode=Mode.APPEND)
    world.write(1)
    world.poll()
    position = world.position()
    assert position.watermark is not None
    world.books().write([replace(position, gap=Gap(position.watermark.minus(timedelta(days=-1)), "why"))])
    (planned,) = make_plan(world.source, world.asks(world.books()), now=world.books().now())
    assert planned.error is None

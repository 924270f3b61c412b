"""A horizon that does not move: held for too long, passed over, or a source that went back."""

from __future__ import annotations

from datetime import timedelta
from itertools import count

import pytest

from strandline.core.errors import ChangedError, SourceError
from strandline.core.plan import Planned
from strandline.core.position import Reason, Status
from strandline.core.table import MaxStall, Mode
from strandline.core.watermark import Kind
from strandline.testing.world import World


@pytest.fixture
def world() -> World:
    world = World()
    world.table()
    world.write(1)
    world.poll()
    return world


def plan(world: World) -> Planned:
    (planned,) = world.plan()
    return planned


def limit(world: World, then: str, minutes: int = 10) -> None:
    world.change(max_stall=MaxStall(timedelta(minutes=minutes), then))


def test_a_hold_is_remembered_from_its_first_sight_with_its_holder(world: World) -> None:
    world.source.begin()
    world.clock.advance(5)
    world.poll()
    first = world.position().stall
    assert first is not None and first.holder.pid == "2"
    world.clock.advance(60)
    revision = world.position().revision
    world.poll()
    assert world.position().stall == first
    assert world.position().revision == revision, "being held on writes nothing new"


def test_a_hold_that_is_over_is_forgotten(world: World) -> None:
    open_one = world.source.begin()
    world.poll()
    assert world.position().stall
    open_one.commit()
    world.clock.advance(1)
    world.poll()
    assert world.position().stall is None


def test_held_for_too_long_fails_and_names_the_holder(world: World) -> None:
    limit(world, "fail")
    world.source.begin()
    world.clock.advance(599)
    assert plan(world).plan.reason is Reason.HELD
    world.clock.advance(1)
    stopped = plan(world)
    assert isinstance(stopped.error, SourceError)
    assert "held for 600 s" in stopped.error.message and "transaction 2" in stopped.error.message
    assert stopped.plan.held_by is not None, "the run history names it"
    world.poll()
    assert world.position().status is Status.FAILED


def test_skip_reads_past_the_holder_and_brings_its_rows_when_they_appear(world: World) -> None:
    limit(world, "skip")
    late = world.source.begin()
    late.write("orders", {"id": 2, "value": "late"})
    world.clock.advance(700)
    world.write(3)
    before = world.position().watermark
    assert "passed over transaction 2" in plan(world).plan.note
    world.poll()
    assert [row["id"] for row in world.target_rows()] == [1, 3]
    position = world.position()
    assert position.watermark is not None and before is not None and position.watermark > before
    assert position.gap is not None and position.gap.low == before

    world.write(4)
    world.poll()
    assert world.position().gap is not None, "as long as it is open, so is the range"
    late.commit()
    world.clock.advance(1)
    world.poll()
    assert [row["id"] for row in world.target_rows()] == [1, 2, 3, 4]
    assert world.position().gap is None
    assert world.position().stall is None


def test_a_range_passed_over_is_closed_though_its_transaction_was_rolled_back(world: World) -> None:
    limit(world, "skip")
    late = world.source.begin()
    world.clock.advance(700)
    world.write(3)
    world.poll()
    batches = len(world.sink.log)
    late.rollback()
    world.clock.advance(1)
    world.poll()
    assert world.position().gap is None
    assert len(world.sink.log) == batches, "what it holds was recognised: nothing was applied again"


def test_a_first_load_past_a_holder_is_read_again_from_the_beginning() -> None:
    world = World()
    world.table(max_stall=MaxStall(timedelta(minutes=1), "skip"))
    late = world.source.begin()
    late.write("orders", {"id": 2, "value": "late"})
    world.clock.advance(61)
    world.write(1)
    world.poll()
    assert [row["id"] for row in world.target_rows()] == [1]
    late.commit()
    world.clock.advance(1)
    world.poll()
    assert [row["id"] for row in world.target_rows()] == [1, 2]
    assert world.position().gap is None


def test_skip_is_refused_in_append_mode() -> None:
    world = World()
    world.table(max_stall=MaxStall(timedelta(minutes=1), "skip"), mode=Mode.APPEND)
    world.write(1)
    world.source.begin()
    world.clock.advance(61)
    assert "append mode would add them again" in str(plan(world).error)


# a source that went back


def test_a_clock_that_went_back_holds_and_then_what_was_written_meanwhile_is_read(world: World) -> None:
    world.clock.advance(100)
    world.poll()
    mark = world.position().watermark
    world.source.clock.advance(-30)
    world.write(2)  # stamped below the watermark
    held = plan(world)
    assert held.plan.reason is Reason.HELD
    assert "clock went back" in held.plan.note
    world.poll()
    assert world.position().watermark == mark
    world.clock.advance(40)
    world.poll()
    assert [row["id"] for row in world.target_rows()] == [1, 2]
    assert world.position().gap is None


def test_a_row_written_just_after_the_step_is_read_however_late_the_next_look_is(world: World) -> None:
    world.clock.advance(1000)
    world.poll()
    world.source.clock.advance(-900)
    world.write(2)
    world.clock.advance(500)
    world.poll()
    world.clock.advance(500)
    world.poll()
    assert [row["id"] for row in world.target_rows()] == [1, 2]


def test_a_limit_leaves_the_rest_of_the_range_open(world: World) -> None:
    world.clock.advance(100)
    world.poll()
    mark = world.position().watermark
    world.source.clock.advance(-50)
    for id in (2, 3, 4):
        world.write(id)
    world.poll()
    world.clock.advance(100)
    while world.position().gap is not None:
        world.poll(limit=1)
        after = world.position().watermark
        assert mark is not None and after is not None and after >= mark
        world.clock.advance(1)
    assert [row["id"] for row in world.target_rows()] == [1, 2, 3, 4]


def test_append_stops_where_rows_stand_in_a_range_that_had_been_read() -> None:
    world = World()
    world.table(mode=Mode.APPEND)
    world.write(1)
    world.poll()
    world.source.clock.advance(-30)
    world.write(2)
    world.poll()
    world.clock.advance(40)
    stopped = plan(world)
    assert isinstance(stopped.error, ChangedError)
    assert "clock went back" in stopped.error.message


def test_append_goes_on_where_no_row_came_while_the_clock_was_back() -> None:
    world = World()
    world.table(mode=Mode.APPEND)
    world.write(1)
    world.clock.advance(60)
    world.poll()
    world.source.clock.advance(-30)
    world.poll()
    world.clock.advance(40)
    world.write(2)
    world.poll()
    assert [row["id"] for row in world.target_rows()] == [1, 2]


def test_ids_that_start_again_are_read_once_they_have_passed_the_watermark() -> None:
    world = World()
    world.table(kind=Kind.INTEGER)
    world.write(1, 2, 3)
    world.poll()
    held = world.source.held("orders")
    held.sequence, held.last_id = count(2), 1
    world.write(7)
    noted = plan(world)
    assert noted.plan.reason is Reason.NOTHING_NEW and "started again" in noted.plan.note
    world.poll()
    world.write(8, 9)
    world.poll()
    assert [row["id"] for row in world.target_rows()] == [1, 2, 3, 7, 8, 9]
    assert world.position().gap is None

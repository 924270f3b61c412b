"""Backfill and lookback: ranges read again, the watermark where it was."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from strandline.core.errors import ChangedError, SourceError, WindowError
from strandline.core.events import Event, Intended
from strandline.core.position import Status
from strandline.core.table import Mode
from strandline.testing.database import Row
from strandline.testing.world import Killed, World


@pytest.fixture
def world() -> World:
    world = World()
    world.table(slice_rows=2)
    for id in (1, 2, 3, 4, 5):
        world.write(id)
    world.poll()
    return world


def damage(world: World, *ids: int) -> None:
    """The target loses rows, and nobody notices."""
    held = world.sink.backup("orders")
    assert held is not None
    rows: tuple[Row, ...] = tuple(row for row in held.rows if row["id"] not in ids)
    world.sink.restore("orders", replace(held, rows=rows))


def ids(world: World) -> list[int]:
    return [row["id"] for row in world.target_rows()]


def test_a_backfill_brings_rows_again_and_leaves_the_watermark(world: World) -> None:
    damage(world, 1, 2, 5)
    before = world.position()
    start = world.source.rows("orders")[1]["moved"]
    outcome = world.backfill(f"{start:%Y-%m-%d %H:%M:%S}", None)
    assert outcome is not None and outcome.status is Status.COMPLETED
    assert ids(world) == [2, 3, 4, 5]
    after = world.position()
    assert (after.watermark, after.observed, after.plan) == (before.watermark, before.observed, None)
    assert after.batch is not None and before.batch is not None and after.batch.number > before.batch.number
    world.write(6)
    world.poll()
    assert ids(world) == [2, 3, 4, 5, 6]


def test_a_backfill_never_overwrites_a_newer_row(world: World) -> None:
    newer = {**world.source.rows("orders")[0], "value": "newer", "moved": world.clock.now()}
    held = world.sink.backup("orders")
    assert held is not None
    others = tuple(row for row in held.rows if row["id"] != 1)
    world.sink.restore("orders", replace(held, rows=(*others, newer)))
    world.backfill(None, None)
    assert newer in world.target_rows()


def test_a_killed_backfill_is_finished_by_the_next_poll(world: World) -> None:
    damage(world, 1, 2, 3, 4, 5)
    seen = 0

    def die(event: Event) -> None:
        nonlocal seen
        seen += isinstance(event, Intended)
        if seen == 2:
            raise Killed

    mark = world.position().watermark
    with pytest.raises(Killed):
        world.backfill(None, None, die)
    world.expire_leases()
    world.write(6)
    world.poll()
    assert ids(world) == [1, 2, 3, 4, 5]
    assert world.position().watermark == mark
    world.poll()
    assert ids(world) == [1, 2, 3, 4, 5, 6]


def test_a_backfill_of_an_empty_range_does_nothing(world: World) -> None:
    assert world.backfill("2000-01-01", "2000-01-02") is None


def test_a_backfill_stops_at_the_watermark_and_says_so(world: World) -> None:
    world.write(6)
    damage(world, 5)
    outcome = world.backfill(None, "2099-01-01")
    assert outcome is not None and "up to the watermark" in outcome.plan.note
    assert ids(world) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("start", "end", "says"),
    [
        ("2099-01-01", None, "is not below the watermark"),
        ("2026-11-15", "2026-11-14", "is not below --to"),
        ("yesterday", None, "is not a timestamp"),
    ],
)
def test_a_range_that_cannot_be_is_refused(world: World, start: str, end: str | None, says: str) -> None:
    with pytest.raises(WindowError, match=says):
        world.backfill(start, end)


def test_a_backfill_is_refused_in_append_mode_while_a_plan_is_open_and_before_the_first_load(world: World) -> None:
    world.change(mode=Mode.APPEND)
    with pytest.raises(ChangedError, match="mode: merge → append"):
        world.backfill(None, None)
    fresh = World()
    fresh.table(mode=Mode.APPEND)
    fresh.write(1)
    fresh.poll()
    with pytest.raises(SourceError, match="append mode would add them again"):
        fresh.backfill(None, None)
    world.change(mode=Mode.MERGE)
    world.write(6)
    assert world.poll_killed(1)
    world.expire_leases()
    with pytest.raises(ChangedError, match="left its plan unfinished"):
        world.backfill(None, None)
    new = World()
    new.table()
    with pytest.raises(WindowError, match="nothing has been read yet"):
        new.backfill(None, None)


# lookback


def test_an_unchanged_overlap_is_recognised_and_not_applied_again(world: World) -> None:
    world.change(lookback=timedelta(hours=1))
    world.write(6)
    world.poll()
    batches = len(world.sink.log)
    for _ in range(3):
        world.clock.advance(1)
        world.poll()
    assert len(world.sink.log) == batches
    assert world.position().status is Status.SKIPPED


def test_a_late_row_in_the_overlap_is_found(world: World) -> None:
    world.change(lookback=timedelta(hours=1))
    world.write(6)
    world.poll()
    stamp = world.source.rows("orders")[0]["moved"]
    world.source.write("orders", {"id": 7, "value": "late", "moved": stamp + timedelta(microseconds=1)})
    mark = world.position().watermark
    world.clock.advance(1)
    world.poll()
    assert ids(world) == [1, 2, 3, 4, 5, 6, 7]
    after = world.position().watermark
    assert mark is not None and after is not None and after >= mark


def test_a_row_that_changed_in_place_in_the_overlap_is_applied(world: World) -> None:
    world.change(lookback=timedelta(hours=1))
    world.write(6)
    world.poll()
    row = world.source.rows("orders")[2]
    world.source.write("orders", {**row, "value": "in place"})
    world.clock.advance(1)
    world.poll()
    assert {**row, "value": "in place"} in world.target_rows()


def test_a_row_that_came_between_the_look_and_the_read_is_not_taken_for_seen(world: World) -> None:
    """The fingerprint is taken before the rows are read: whatever is written between the two is looked at again."""
    world.change(lookback=timedelta(hours=1))
    world.write(6)
    stamp = world.source.rows("orders")[0]["moved"]

    def write(event: Event) -> None:
        if isinstance(event, Intended):
            world.source.write("orders", {"id": 7, "value": "late", "moved": stamp})

    world.poll(write)
    assert 7 in ids(world)
    batches = len(world.sink.log)
    world.clock.advance(1)
    world.poll()
    assert len(world.sink.log) == batches + 1


def test_a_wider_lookback_is_not_covered_by_what_was_seen(world: World) -> None:
    world.change(lookback=timedelta(seconds=1))
    world.write(6)
    world.poll()
    damage(world, 1)
    world.change(lookback=timedelta(hours=1))
    world.clock.advance(1)
    world.poll()
    assert ids(world) == [1, 2, 3, 4, 5, 6]

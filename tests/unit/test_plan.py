"""Planning: what is read next, from the watermark and the horizon alone, and what is left alone and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from strandline.core.errors import ChangedError, SourceError, StrandlineError
from strandline.core.plan import Planned, make_plan
from strandline.core.position import Horizon, Reason, TablePlan
from strandline.core.table import Mode, Table
from strandline.core.watermark import Cursor, Kind, Watermark
from strandline.core.window import Window
from strandline.testing.memory import MemorySource
from strandline.testing.world import World


@pytest.fixture
def world() -> World:
    world = World()
    world.table()
    return world


def only(world: World, **wishes: Any) -> Planned:
    (planned,) = world.plan(**wishes)
    return planned


def plan(world: World, **wishes: Any) -> TablePlan:
    return only(world, **wishes).plan


def at(world: World, before: float = 0) -> Watermark:
    """The clock's time as a watermark."""
    return Watermark(Kind.TIMESTAMP, f"{world.clock.now() - timedelta(seconds=before):%Y-%m-%d %H:%M:%S.%f}")


# windows


def test_a_first_load_reads_from_the_beginning_to_the_horizon(world: World) -> None:
    world.write(1, 2)
    first = plan(world)
    assert (first.reason, first.window) == (Reason.FIRST_LOAD, Window(None, at(world)))
    assert (first.first, first.replace, first.estimated_rows) == (True, False, 2)


def test_the_next_window_begins_where_the_last_one_ended(world: World) -> None:
    world.write(1)
    world.poll()
    watermark = world.position().watermark
    world.write(2)
    following = plan(world)
    assert following.window == Window(watermark, at(world))
    assert (following.reason, following.first) == (Reason.INCREMENTAL, False)


def test_planning_stores_nothing(world: World) -> None:
    world.write(1)
    world.plan()
    assert not any(world.state.read(kind) for kind in ("position", "lease", "run", "table_run"))


def test_initial_value_is_where_a_first_load_starts(world: World) -> None:
    world.write(1)
    world.change(initial="2026-11-15 08:00:02")
    world.write(2)
    planned = plan(world)
    assert planned.window == Window(Watermark(Kind.TIMESTAMP, "2026-11-15 08:00:02"), at(world))
    assert planned.estimated_rows == 1


def test_initial_value_counts_only_until_there_is_a_watermark(world: World) -> None:
    world.write(1)
    world.poll()
    watermark = world.position().watermark
    world.change(initial="2020-01-01")
    world.write(2)
    window = plan(world).window
    assert window is not None and window.low == watermark


def test_an_initial_value_of_the_wrong_kind_stops_the_table(world: World) -> None:
    world.change(initial="4711")
    stopped = only(world)
    assert isinstance(stopped.error, SourceError)
    assert stopped.plan.reason is Reason.STOPPED


@pytest.mark.parametrize("barrier", [True, False])
def test_initial_latest_sets_a_baseline_and_brings_what_comes_after(barrier: bool) -> None:
    world = World(barrier=barrier)
    world.table(initial="latest", lookback=None if barrier else timedelta(seconds=1))
    world.write(1)
    world.clock.advance(60)
    assert plan(world).reason is Reason.NOTHING_NEW
    world.poll()
    assert world.position().watermark == at(world), "without a baseline, what comes next would lie below `latest` too"
    world.clock.advance(60)
    world.write(2)
    world.clock.advance(60)
    world.poll()
    assert [row["id"] for row in world.target_rows()] == [2]


# nothing to read


def test_nothing_new_moves_the_watermark_to_a_proven_horizon(world: World) -> None:
    world.write(1)
    world.poll()
    world.clock.advance(60)
    assert plan(world).reason is Reason.NOTHING_NEW
    world.poll()
    assert world.position().watermark == at(world)
    assert world.state.read("run", newest=5) == world.state.read("run"), "an idle poll adds no run"
    assert len(world.state.read("run")) == 1


def test_nothing_new_moves_nothing_where_no_barrier_stands_behind_the_horizon() -> None:
    world = World(barrier=False)
    world.table(lookback=timedelta(seconds=10))
    world.write(1)
    world.poll()
    world.clock.advance(60)
    world.poll()
    watermark = world.position().watermark
    world.clock.advance(60)
    idle = plan(world)
    assert (idle.reason, idle.proven) == (Reason.NOTHING_NEW, False)
    world.poll()
    assert world.position().watermark == watermark


def test_an_empty_integer_table_has_nothing_to_read(world: World) -> None:
    world = World()
    world.table(kind=Kind.INTEGER)
    empty = plan(world)
    assert (empty.reason, empty.window) == (Reason.NOTHING_NEW, None)
    world.poll()
    assert world.position().watermark is None
    world.write(7)
    assert plan(world).window == Window(None, Watermark(Kind.INTEGER, "2"))


def test_an_open_transaction_holds_the_table_and_is_named(world: World) -> None:
    world.source.begin()
    world.clock.advance(600)
    held = plan(world)
    assert held.reason is Reason.HELD
    assert str(held.held_by) == "transaction 1 open for 600 s"
    world.poll()
    assert world.position().watermark is None


def test_what_was_safe_before_the_open_transaction_is_read_all_the_same(world: World) -> None:
    world.write(1)
    world.plan()
    safe = at(world)
    world.clock.advance(1)
    world.source.begin()
    world.write(2)
    partly = plan(world)
    assert partly.window == Window(None, safe)
    assert partly.work and partly.held_by is not None


def test_a_table_in_work_is_busy_and_left_alone(world: World) -> None:
    world.write(1)
    world.poll_killed(1)
    busy = plan(world)
    assert busy.reason is Reason.BUSY
    assert "pid" in busy.note
    assert not busy.work


def test_a_table_in_work_is_left_alone_by_whoever_cannot_plan_it(world: World) -> None:
    """An error that is written to its position would take it from the run that is at work."""
    world.write(1)
    (ask,) = world.asks(world.books())
    wrong = replace(ask, busy="somebody", error=SourceError("there is no key"))
    (planned,) = make_plan(world.source, [wrong])
    assert (planned.plan.reason, planned.error, planned.resting()) == (Reason.BUSY, None, ask.position)


# what it measures


CHANGES: Mapping[str, Mapping[str, Any]] = {
    "cursor": {"cursor": Cursor("other", Kind.TIMESTAMP)},
    "kind": {"cursor": Cursor("moved", Kind.DATE)},
    "zone": {"cursor": Cursor("moved", Kind.TIMESTAMP, zone="Asia/Tokyo")},
    "key": {"key": ("id", "value")},
    "mode": {"mode": Mode.APPEND},
    "columns": {"select": ("id", "moved")},
    "query": {"query": "SELECT 1"},
    "where": {"where": "id > 1"},
    "transform": {"transform": "jobs:clean"},
    "target": {"target": "elsewhere"},
}


@pytest.mark.parametrize("measure", CHANGES)
@pytest.mark.parametrize("loaded", [True, False])
def test_a_change_of_what_the_watermark_measures_stops_the_table(measure: str, loaded: bool, world: World) -> None:
    if loaded:
        world.write(1)
    world.poll()
    assert world.position().watermark is not None
    world.change(**CHANGES[measure])
    stopped = only(world)
    assert isinstance(stopped.error, ChangedError)
    assert f"{measure}: " in stopped.error.message
    assert "--full" in stopped.error.remedy and "--accept" in stopped.error.remedy
    assert not stopped.plan.work


def test_another_server_behind_the_same_address_stops_the_table(world: World) -> None:
    world.poll()
    world.source.name = "restored elsewhere"
    error = only(world).error
    assert isinstance(error, ChangedError)
    assert "source: memory → restored elsewhere" in error.message


def test_a_change_stops_an_open_plan_too(world: World) -> None:
    world.write(1)
    world.poll_killed(1)
    world.expire_leases()
    world.change(where="id > 1")
    assert isinstance(only(world).error, ChangedError)


def test_settings_that_measure_nothing_may_change(world: World) -> None:
    world.write(1)
    world.poll()
    world.change(slice_rows=7, lookback=timedelta(seconds=1), schema="stop")
    assert only(world).error is None


# resuming


def test_an_unfinished_plan_is_carried_out_exactly_as_written(world: World) -> None:
    world.change(slice_rows=1)
    world.write(1)
    world.write(2)
    assert world.poll_killed(4)
    stored = world.position().plan
    world.write(3)
    world.expire_leases()
    again = plan(world, limit=1)
    assert stored is not None
    assert again == replace(stored, reason=Reason.RESUMED)
    assert len(again.slices) == 2 and again.remaining == again.slices[1:]


def test_an_unfinished_plan_stops_where_the_user_wants_to_be_asked(world: World) -> None:
    world.write(1)
    world.poll_killed(1)
    world.expire_leases()
    (ask,) = world.asks(world.books())
    (stopped,) = make_plan(world.source, [replace(ask, resume=False)])
    assert stopped.error is not None and "retry" in stopped.error.remedy


# slices, limit, lookback, nulls


def test_slices_tile_the_window_and_never_split_a_tie(world: World) -> None:
    world.change(slice_rows=2)
    world.write(1, 2, 3)
    world.write(4)
    world.write(5)
    planned = plan(world)
    assert [len(world.source.read(world.tables["orders"], part)) for part in planned.slices] == [3, 2]
    assert planned.window is not None
    assert planned.slices[0].window.low is None and planned.slices[-1].window.high == planned.window.high
    assert all(one.window.high == two.window.low for one, two in pairwise(planned.slices))


@pytest.mark.parametrize(("limit", "read"), [(1, 3), (3, 3), (4, 4), (5, 5), (50, 5)])
def test_limit_ends_the_window_after_whole_cursor_values(limit: int, read: int, world: World) -> None:
    world.write(1, 2, 3)
    world.write(4)
    world.write(5)
    horizon = at(world)
    planned = plan(world, limit=limit)
    assert sum(len(world.source.read(world.tables["orders"], part)) for part in planned.slices) == read
    assert planned.window is not None
    assert (planned.window.high == horizon) is (limit >= 5)


def test_a_limited_table_gets_everything_in_the_end(world: World) -> None:
    for id in range(5):
        world.write(id)
    for _ in range(5):
        world.poll(limit=1)
    assert world.target_rows() == world.source.rows("orders")


def test_lookback_reads_from_before_the_watermark_and_does_not_move_it_back() -> None:
    world = World(barrier=False)
    world.table(lookback=timedelta(seconds=10), slice_rows=1)
    world.write(1)
    late = world.source.begin()
    late.write("orders", {"id": 2, "value": "late"})
    world.clock.advance(5)
    world.poll()
    watermark = world.position().watermark
    late.commit()
    world.clock.advance(1)
    planned = plan(world)
    assert watermark is not None and planned.window is not None
    assert planned.window.low == watermark
    assert planned.slices[0].read_from == watermark.minus(timedelta(seconds=10))
    assert all(part.read_from is None for part in planned.slices[1:])
    world.poll()
    assert world.target_rows() == world.source.rows("orders")


def test_lookback_on_an_empty_window_reads_and_does_not_move_the_watermark_back() -> None:
    world = World(barrier=False)
    world.table(lookback=timedelta(seconds=10))
    late = world.source.begin()
    late.write("orders", {"id": 2, "value": "late"})
    world.write(1)
    world.poll()
    watermark = world.position().watermark
    late.commit()
    world.poll()
    assert world.position().watermark == watermark
    assert world.target_rows() == world.source.rows("orders")


def test_a_source_without_a_barrier_needs_a_lookback_unless_all_is_read_each_time() -> None:
    world = World(barrier=False)
    world.table()
    error = only(world).error
    assert isinstance(error, SourceError) and "lookback: 10m" in error.remedy
    world.change(mode=Mode.SNAPSHOT, cursor=None)
    assert only(world).error is None


@pytest.mark.parametrize("setting", [{"lookback": timedelta(seconds=1)}, {"nulls": "include"}])
def test_what_reads_rows_again_is_refused_where_they_would_be_added_again(setting: Any, world: World) -> None:
    world.write(1)
    world.change(**setting)
    assert only(world).error is None
    world.change(mode=Mode.APPEND)  # though there is a key: append compares nothing
    error = only(world).error
    assert isinstance(error, SourceError) and "append" in error.message


def test_null_cursors_are_refused_or_counted_and_read(world: World) -> None:
    world.source.write("orders", {"id": 1, "value": "a", "moved": None})
    world.write(2)
    assert "1 rows have no cursor" in str(only(world).error)
    world.change(nulls="include")
    assert plan(world).estimated_rows == 2
    world.poll()
    assert world.target_rows() == world.source.rows("orders")


def test_a_row_that_loses_its_cursor_arrives_as_it_is_now(world: World) -> None:
    world.change(nulls="include")
    world.write(1)
    world.poll()
    world.source.write("orders", {"id": 1, "value": "cursor erased", "moved": None})
    world.poll()
    assert world.target_rows() == world.source.rows("orders")


def test_a_load_by_key_reads_the_null_cursors_of_every_key_range() -> None:
    world = World(key_slices=True)
    world.table(slice_rows=1, nulls="include")
    for id in (1, 3, 5):
        world.write(id)
        world.source.write("orders", {"id": id + 1, "value": "no cursor", "moved": None})
    world.poll()
    assert world.target_rows() == world.source.rows("orders")


def test_only_the_last_key_range_moves_the_watermark() -> None:
    world = World(key_slices=True)
    world.table(slice_rows=1)
    for id in (1, 2, 3):
        world.write(id)
    assert world.poll_killed(1 + 3 * 2)
    assert world.position().batches == 2
    assert world.position().watermark is None
    world.expire_leases()
    world.poll()
    assert world.position().watermark is not None
    assert world.target_rows() == world.source.rows("orders")


@pytest.mark.parametrize(("held", "shared", "slices"), [(False, False, 2), (True, False, 4), (False, True, 4)])
def test_only_a_load_into_nothing_takes_more_rows_at_once(held: bool, shared: bool, slices: int) -> None:
    """Where the target may hold rows, those of a batch are kept to be merged."""
    world = World(key_slices=True)
    world.table(slice_rows=1, load_rows=2, shared=shared)
    world.write(1, 2, 3, 4)
    if held:
        world.poll()
    (ask,) = world.asks(world.books())
    again = replace(ask, position=ask.position.moved(None) if held else ask.position)
    (planned,) = make_plan(world.source, [again], now=world.books().now())
    assert len(planned.plan.slices) == slices


# whole tables


def test_a_snapshot_replaces_the_target_in_one_batch_every_time(world: World) -> None:
    world.change(mode=Mode.SNAPSHOT, cursor=None, slice_rows=1)
    world.write(1, 2)
    world.poll()
    gone = world.source.begin()
    gone.delete("orders", 1)
    gone.commit()
    world.clock.advance(1)
    snapshot = plan(world)
    assert (snapshot.reason, snapshot.replace, len(snapshot.slices)) == (Reason.SNAPSHOT, True, 1)
    world.poll()
    assert [row["id"] for row in world.target_rows()] == [2]


@pytest.mark.parametrize("initial", [None, "latest"])
def test_full_reads_everything_again_as_one_replacing_batch(initial: str | None, world: World) -> None:
    world.change(initial=initial, slice_rows=1)
    world.write(1)
    world.poll()
    world.write(2)
    again = plan(world, full=True)
    assert again.window == Window(None, at(world))
    assert (again.replace, len(again.slices)) == (True, 1)


def test_full_goes_past_a_change_and_an_open_plan(world: World) -> None:
    world.write(1)
    world.poll_killed(1)
    world.expire_leases()
    world.change(select=("id", "moved"))
    assert plan(world, full=True).replace


# one table's trouble


class Troubled(MemorySource):
    """Has trouble with the table called `bad`, at the step it is told."""

    step = ""

    def horizons(self, tables: Sequence[Table]) -> dict[str, Horizon | StrandlineError]:
        return {**super().horizons(tables), **self._trouble("horizons")}

    def pending(self, windows: Mapping[str, tuple[Table, Window]]) -> dict[str, int | StrandlineError | None]:
        return {**super().pending(windows), **self._trouble("pending")}

    def slices(self, table: Table, window: Window, rows: int | None, limit: int | None) -> Any:
        if table.name == "bad" and self.step == "slices":
            raise SourceError("trouble")
        return super().slices(table, window, rows, limit)

    def _trouble(self, step: str) -> dict[str, StrandlineError]:
        return {"bad": SourceError("trouble")} if step == self.step else {}


@pytest.mark.parametrize("step", ["horizons", "pending", "slices"])
def test_one_tables_trouble_leaves_the_others_planned(step: str) -> None:
    world = World()
    world.source = Troubled(world.clock)
    world.source.step = step
    for name in ("bad", "good"):
        world.table(name)
        world.write(1, table=name)
    bad, good = world.plan()
    assert (bad.plan.reason, bad.plan.error) == (Reason.STOPPED, "trouble")
    assert str(bad.error) == "shop.bad: trouble"
    assert good.plan.work and good.error is None


def test_a_table_that_could_not_be_resolved_is_stopped_with_its_error(world: World) -> None:
    (ask,) = world.asks(world.books())
    (stopped,) = make_plan(world.source, [replace(ask, error=SourceError("no such column"))])
    assert (stopped.plan.reason, stopped.plan.error) == (Reason.STOPPED, "no such column")


def test_plans_come_in_the_order_they_were_asked_for(world: World) -> None:
    for name in ("c", "a", "b"):
        world.table(name)
    world.change("a", initial="nonsense")
    assert [planned.table.name for planned in world.plan()] == ["orders", "c", "a", "b"]


def test_the_clock_of_the_horizon_is_kept_with_the_position(world: World) -> None:
    world.write(1)
    world.poll()
    assert datetime.fromisoformat(world.position().observed) == world.clock.now()

"""Several targets of one source: asked once, side by side slice by slice, each with its own position and fate."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from strandline.core.books import Books, Caller, Lease, TableRun, new_id
from strandline.core.errors import LeaseError, StrandlineError, TargetError
from strandline.core.events import Committed, Event, Intended, Listener
from strandline.core.once import Once
from strandline.core.plan import Ask, Planned, make_plans
from strandline.core.position import Horizon, Position, Reason, Status
from strandline.core.run import Hop, Outcome, run_together
from strandline.core.side_by_side import side_by_side
from strandline.core.table import Table
from strandline.core.watermark import Kind, Watermark
from strandline.core.window import Slice, Window
from strandline.sources.shared import SharedReads
from strandline.testing.database import Clock, SteppedClock
from strandline.testing.memory import MemoryChanges, MemorySink, MemorySource
from strandline.testing.world import PIPELINE, Killed, World, nobody

NEAR, FAR = "load:near", "load:far"


class CountingSource(MemorySource):
    """Remembers what it was asked, and whose rows were read."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.asked: list[str] = []

    def horizons(self, tables: Sequence[Table]) -> dict[str, Horizon | StrandlineError]:
        self.asked.append(f"horizons of {len(tables)}")
        return super().horizons(tables)

    def pending(self, windows: Mapping[str, tuple[Table, Window]]) -> dict[str, int | StrandlineError | None]:
        self.asked.append(f"pending of {len(windows)}")
        return super().pending(windows)

    def fingerprints(self, windows: Mapping[str, tuple[Table, Window]]) -> dict[str, str | StrandlineError]:
        self.asked.append(f"fingerprints of {len(windows)}")
        return super().fingerprints(windows)

    def slices(self, table: Table, window: Window, rows: int | None, limit: int | None) -> tuple[Slice, ...]:
        self.asked.append(f"slices of {table.name}")
        return super().slices(table, window, rows, limit)


class Fan(World):
    """A world with two targets, polled as `Project.sync` does it."""

    def __init__(self) -> None:
        super().__init__()
        self.source = self.counting = CountingSource(SteppedClock(self.clock))
        self.sinks = {NEAR: MemorySink("near"), FAR: MemorySink("far")}
        self.shared: list[Slice] = []

    def at(self, stage: str, table: str = "orders") -> Position:
        key = (PIPELINE, table, stage)
        return self.books().positions(PIPELINE).get(key) or Position(*key)

    def asks_of(self, books: Books, stage: str) -> list[Ask]:
        found = []
        for ask in self.asks(books):
            table, target = replace(ask.table, stage=stage), self.sinks[stage]
            measures = {**ask.measures, "target": target.identity(table)}
            found.append(replace(ask, table=table, position=self.at(stage, table.name), measures=measures))
        return found

    def plans(self, books: Books, run_id: str = "", stages: Sequence[str] = (NEAR, FAR)) -> list[list[Planned]]:
        asks = [self.asks_of(books, stage) for stage in stages]
        return make_plans(self.source, asks, run_id=run_id, now=books.now())

    def fan_out(self, listener: Listener = nobody, stages: Sequence[str] = (NEAR, FAR)) -> dict[str, Outcome]:
        """One run, by a process that remembers nothing; outcomes of the table `orders`, by stage."""
        books, run_id = self.books(), new_id(self.clock.now())
        plans = self.plans(books, run_id, stages)
        self._write_idle(books, [part for planned in plans for part in planned])
        hops = [
            (
                Hop(run_id, PIPELINE, self.source, self.sinks[stage], books, listener, sleep=self.clock.advance),
                [part for part in planned if part.plan.work],
            )
            for stage, planned in zip(stages, plans, strict=True)
        ]
        run = books.run_started(run_id, PIPELINE, Caller("test"), len(plans[0]))
        found = run_together(hops, books.leases(PIPELINE), self._sharing)
        books.run_ended(run, Status.FAILED if any(end.error for end in found) else Status.COMPLETED, "")
        return {end.stage: end for end in found if end.table == "orders"}

    @contextmanager
    def _sharing(self, _table: Table, slice_: Slice) -> Iterator[None]:
        self.shared.append(slice_)
        yield

    def check(self) -> None:
        """Both targets hold the source's rows; numbers rose by one, and the last is the position's."""
        for stage, sink in self.sinks.items():
            rows = sorted(sink.rows("orders"), key=lambda row: int(row["id"]))
            assert rows == self.source.rows("orders"), stage
            assert [batch.number for batch in sink.log] == list(range(1, len(sink.log) + 1))
            assert sink.log[-1].same(self.at(stage).batch)
            assert self.at(stage).totals.rows_inserted == len(rows)


@pytest.fixture
def fan() -> Fan:
    fan = Fan()
    fan.table(slice_rows=2)
    return fan


def refuse() -> None:
    raise TargetError("the target is away")


# planning


def test_the_source_is_asked_once_for_all_targets_that_stand_at_the_same_place(fan: Fan) -> None:
    fan.table("items")
    fan.write(1, 2, 3)
    near, far = fan.plans(fan.books())
    assert fan.counting.asked == ["horizons of 2", "pending of 2", "slices of orders"]
    assert [part.plan.slices for part in near] == [part.plan.slices for part in far]
    assert [part.plan.stage for part in far] == [FAR, FAR]


def test_a_target_that_lags_is_asked_for_by_itself_up_to_the_same_horizon(fan: Fan) -> None:
    fan.table("items")
    fan.write(1, 2)
    fan.fan_out(stages=[NEAR])
    fan.write(3)
    fan.counting.asked.clear()
    near, far = fan.plans(fan.books())
    assert fan.counting.asked.count("horizons of 2") == 1 and len(fan.counting.asked) == 5, "one barrier, two windows"
    assert near[0].plan.window and far[0].plan.window
    assert near[0].plan.window.low is not None and far[0].plan.window.low is None
    assert near[0].plan.window.high == far[0].plan.window.high


def test_a_range_that_is_looked_at_twice_in_one_planning_is_asked_for_twice(fan: Fan) -> None:
    """Whoever writes there between the look and the fingerprint that the next run goes by must show."""
    table, once = fan.tables["orders"], Once(fan.counting)
    seen = Window(None, Watermark(Kind.TIMESTAMP, "2030-01-01 00:00:00"))
    before = once.fingerprints({"orders": (table, seen)})["orders"]
    fan.write(1)
    again = once.fingerprints({"next": (table, seen), "known": (table, seen)})
    assert again["known"] == again["next"] != before
    assert once.fingerprints({"orders": (table, seen)})["orders"] == before
    assert fan.counting.asked == ["fingerprints of 1", "fingerprints of 2"]


# carrying out


def test_targets_go_side_by_side_slice_by_slice_and_share_every_slice(fan: Fan) -> None:
    for id in range(5):
        fan.write(id)
    events: list[Event] = []
    fan.fan_out(events.append)
    assert [event.stage for event in events if isinstance(event, Committed)] == [NEAR, FAR] * 3
    assert fan.shared == [event.slice for event in events if isinstance(event, Intended) and event.stage == FAR]
    fan.check()


def test_the_lease_is_one_and_is_given_back_by_the_last_target(fan: Fan) -> None:
    fan.write(1)
    held: list[bool] = []

    def look(event: Event) -> None:
        if isinstance(event, Committed):
            held.append(fan.books().leases(PIPELINE)["orders"].held(fan.clock.now()))

    fan.fan_out(look)
    assert held == [True, False]
    assert fan.books().leases(PIPELINE)["orders"].token == 1


def test_another_run_does_not_join_a_lease(fan: Fan) -> None:
    books = fan.books()
    part = (Position(PIPELINE, "orders", NEAR), Lease(PIPELINE, "orders"), entry("first"))
    books.begin_all([part])
    now = books.leases(PIPELINE)["orders"]
    other = (Position(PIPELINE, "orders", FAR), now)
    with pytest.raises(LeaseError):
        books.begin(*other, entry("second", FAR))
    books.begin(*other, entry("first", FAR))
    assert books.leases(PIPELINE)["orders"].token == now.token


def entry(run_id: str, stage: str = NEAR) -> TableRun:
    return TableRun(run_id, PIPELINE, "orders", stage, Status.RUNNING, None, "")


@pytest.mark.parametrize("failing", [NEAR, FAR])
def test_a_target_that_fails_fails_by_itself_and_goes_on_where_it_stood(fan: Fan, failing: str) -> None:
    for id in range(5):
        fan.write(id)
    (other,) = {NEAR, FAR} - {failing}
    fan.sinks[failing].at_commit(before=refuse)
    ends = fan.fan_out()
    assert (ends[failing].status, ends[other].status) == (Status.FAILED, Status.COMPLETED)
    assert fan.at(failing).plan is not None and fan.at(other).plan is None
    assert not fan.books().leases(PIPELINE)["orders"].held(fan.clock.now())
    rows = {key[2]: row.fields["status"] for row in fan.state.read("table_run") if (key := row.key)}
    assert rows == {failing: "FAILED", other: "COMPLETED"}
    fan.write(10)
    ends = fan.fan_out()
    assert ends[failing].plan.reason is Reason.RESUMED and ends[other].applied.rows_inserted == 1
    fan.write(11)
    fan.fan_out()  # the one that lagged reads for itself
    assert fan.at(failing).watermark == fan.at(other).watermark
    fan.shared.clear()
    fan.write(12)
    fan.fan_out()
    assert len(fan.shared) == 1, "both stand at the same place again"
    fan.check()


@pytest.mark.parametrize("lost", [NEAR, FAR])
def test_a_target_that_cannot_be_right_stops_before_it_is_touched_and_alone(fan: Fan, lost: str) -> None:
    fan.write(1)
    fan.fan_out()
    fan.sinks[lost].restore("orders", None)
    fan.write(2)
    ends = fan.fan_out()
    assert {stage: end.status for stage, end in ends.items()} == {
        stage: Status.FAILED if stage == lost else Status.COMPLETED for stage in (NEAR, FAR)
    }
    assert fan.at(lost).intent is None
    assert [row["id"] for row in fan.sinks[lost].rows("orders")] == []


def test_a_target_that_was_added_later_reads_from_the_beginning_and_then_shares(fan: Fan) -> None:
    fan.write(1, 2)
    fan.fan_out(stages=[NEAR])
    fan.write(3)
    fan.fan_out()
    assert fan.shared == []
    fan.write(4)
    fan.fan_out()
    assert len(fan.shared) == 1
    fan.check()


EVENTS = 2 * (1 + 3 * 3 + 1)  # planned, three slices of three events, finished: for each target


@pytest.mark.parametrize("at", range(EVENTS))
def test_killed_at_every_event_both_targets_are_brought_up_and_nothing_comes_twice(fan: Fan, at: int) -> None:
    for id in range(6):
        fan.write(id)
    seen: list[Event] = []

    def kill(event: Event) -> None:
        seen.append(event)
        if len(seen) > at:
            raise Killed

    with pytest.raises(Killed):
        fan.fan_out(kill)
    fan.write(100, value="after the plan was written")
    for _ in range(3):
        fan.expire_leases()
        assert not [end.error for end in fan.fan_out().values() if end.error]
    fan.check()
    assert fan.at(NEAR).watermark == fan.at(FAR).watermark


def test_after_a_kill_between_two_commits_the_one_behind_goes_first_and_the_rest_is_shared(fan: Fan) -> None:
    for id in range(6):
        fan.write(id)

    def kill() -> None:
        raise Killed

    fan.sinks[FAR].at_commit(before=kill)
    with pytest.raises(Killed):
        fan.fan_out()
    assert (fan.at(NEAR).batches, fan.at(FAR).batches) == (1, 0)
    fan.expire_leases()
    fan.shared.clear()
    order: list[str] = []
    fan.fan_out(lambda event: order.append(event.stage) if isinstance(event, Committed) else None)
    assert order == [FAR, NEAR, FAR, NEAR, FAR]
    assert len(fan.shared) == 2
    fan.check()


# the order


def ends(*texts: str) -> tuple[Slice, ...]:
    return tuple(Slice(Window(None, Watermark(Kind.INTEGER, text))) for text in texts)


class Order:
    """What was done by whom, `a1` for the slice that ends at 1, with what was shared in brackets."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def target(self, name: str, *texts: str, fails_at: str = "") -> Generator[tuple[Slice, ...], None, str]:
        slices = ends(*texts)
        for number, text in enumerate(texts):
            yield slices[number:]
            if text == fails_at:
                return f"{name} failed"
            self.seen.append(name + text)
        return f"{name} done"

    @contextmanager
    def sharing(self, slice_: Slice) -> Iterator[None]:
        self.seen.append(f"[{slice_.window.high}")
        yield
        self.seen.append("]")

    def __str__(self) -> str:
        return " ".join(self.seen)


def test_who_is_behind_goes_first_until_all_stand_at_the_same_slice() -> None:
    order = Order()
    targets = [order.target("a", "3", "4"), order.target("b", "1", "2", "3", "4"), order.target("c", "2", "3", "4")]
    assert side_by_side(targets, order.sharing) == ["a done", "b done", "c done"]
    assert str(order) == "b1 [2 b2 c2 ] [3 a3 b3 c3 ] [4 a4 b4 c4 ]"


def test_targets_with_nothing_in_common_share_nothing() -> None:
    order = Order()
    assert side_by_side([order.target("a", "1", "3"), order.target("b", "2")], order.sharing) == ["a done", "b done"]
    assert str(order) == "a1 a3 b2"


def test_slices_in_contrary_orders_come_to_an_end() -> None:
    order = Order()
    side_by_side([order.target("a", "1", "2"), order.target("b", "2", "1")], order.sharing)
    assert str(order) == "a1 [2 a2 b2 ] b1"


def test_one_that_fails_leaves_the_slice_to_the_others() -> None:
    order = Order()
    targets = [order.target("a", "1", "2", fails_at="1"), order.target("b", "1", "2"), order.target("c")]
    assert side_by_side(targets, order.sharing) == ["a failed", "b done", "c done"]
    assert str(order) == "[1 b1 ] b2"


# on a Spark that lets its sessions share nothing


def test_where_sessions_cannot_share_each_target_reads_for_itself(fan: Fan, caplog: pytest.LogCaptureFixture) -> None:
    table, part = fan.tables["orders"], ends("1")[0]
    asked: list[object] = []

    class Changes(MemoryChanges):
        def frame(self, spark: Any) -> Any:
            asked.append(spark)
            return "rows"

    class Source:
        def changes(self, table: Table, slice: Slice) -> Changes:
            return Changes(fan.source, table, slice)

    reads = SharedReads(Source())
    with reads.sharing(table, part):
        sessions: list[Any] = [object(), object()]
        frames: list[Any] = [reads.changes(table, part).frame(session) for session in sessions]
    assert frames == ["rows", "rows"]
    assert asked == sessions
    assert caplog.text.count("shop.orders: its targets cannot share a read") == 1

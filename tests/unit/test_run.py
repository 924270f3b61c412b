"""The loop: what becomes true in which order, and what a crash, an error or another runner can do to it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from strandline.core.batch import Batch
from strandline.core.books import Books, Caller
from strandline.core.errors import (
    CommitUnknownError,
    LeaseError,
    StateError,
    TargetError,
    TransientError,
)
from strandline.core.events import (
    Adopted,
    BatchApplied,
    Committed,
    Event,
    Intended,
    Planned,
    Retrying,
    TableFinished,
    Warned,
)
from strandline.core.plan import make_plan
from strandline.core.position import Status
from strandline.core.protocols import Record
from strandline.core.reconcile import settle
from strandline.core.run import Hop
from strandline.core.table import Mode
from strandline.core.watermark import Watermark
from strandline.state.memory import MemoryState
from strandline.testing.memory import Action
from strandline.testing.world import PIPELINE, Killed, World

EVENTS_OF_THREE_SLICES = 1 + 3 * 3 + 1


@pytest.fixture
def world() -> World:
    world = World()
    world.table(slice_rows=2)
    return world


def fail(error: BaseException) -> Action:
    def action() -> None:
        raise error

    return action


def history(world: World) -> list[Record]:
    return world.state.read("table_run")


def assert_equal(world: World, table: str = "orders") -> None:
    assert world.target_rows(table) == world.source.rows(table)


# order


def test_intent_then_apply_then_commit_for_every_slice(world: World) -> None:
    for id in range(5):
        world.write(id)
    events: list[Event] = []
    world.poll(events.append)
    slice_ = [Intended, BatchApplied, Committed]
    assert [type(event) for event in events] == [Planned, *slice_, *slice_, *slice_, TableFinished]
    intended = [(event.number, event.of) for event in events if isinstance(event, Intended)]
    committed = [(event.number, event.of) for event in events if isinstance(event, Committed)]
    assert intended == committed == [(1, 3), (2, 3), (3, 3)]


def test_the_intent_is_stored_before_the_sink_is_touched_and_the_watermark_moves_after(world: World) -> None:
    world.write(1)
    seen: list[tuple[Batch | None, Watermark | None]] = []

    def look() -> None:
        position = world.position()
        seen.append((position.intent, position.watermark))

    world.sink.at_commit(before=look, after=look)
    world.poll()
    assert world.sink.log[0].same(seen[0][0])
    assert [watermark for _, watermark in seen] == [None, None]
    assert world.position().watermark == world.sink.log[0].high


def test_a_finished_table_has_no_plan_no_intent_and_no_lease(world: World) -> None:
    world.write(1)
    world.poll()
    position = world.position()
    assert (position.plan, position.intent, position.status) == (None, None, Status.COMPLETED)
    assert not world.books().leases(PIPELINE)["orders"].held(world.clock.now())


def test_counts_and_last_value_are_what_the_sink_counted(world: World) -> None:
    world.write(1, 2, 3)
    world.poll()
    world.write(3, 4, value="changed")
    outcome = world.poll()["orders"]
    assert (outcome.applied.rows_inserted, outcome.applied.rows_updated) == (1, 1)
    position = world.position()
    assert (position.totals.rows_read, position.totals.rows_inserted, position.totals.rows_updated) == (5, 4, 1)
    assert position.last_value is not None and position.watermark is not None
    assert position.last_value < position.watermark


def test_a_row_stamped_at_the_watermark_after_the_run_comes_with_the_next_one(world: World) -> None:
    world.source.write("orders", {"id": 1, "value": "a"})
    world.clock.advance(1)
    world.poll()
    world.source.write("orders", {"id": 2, "value": "stamped exactly at the watermark"})
    world.clock.advance(1)
    world.poll()
    assert_equal(world)


def test_a_late_commit_below_now_is_not_lost(world: World) -> None:
    late = world.source.begin()
    world.write(1)
    world.poll()
    late.write("orders", {"id": 2, "value": "stamped long ago"})
    world.write(3)
    late.prepare()
    world.poll()
    assert world.target_rows() == []
    late.commit()
    world.poll()
    assert_equal(world)


# crashes


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("mode", [Mode.MERGE, Mode.APPEND])
@pytest.mark.parametrize("key_slices", [False, True])
@pytest.mark.parametrize("at", range(EVENTS_OF_THREE_SLICES))
def test_killed_at_every_event_and_resumed(at: int, key_slices: bool, mode: Mode, every: int) -> None:
    world = World(key_slices=key_slices, commit_every=every)
    world.table(slice_rows=2, mode=mode)
    for id in range(6):
        world.write(id)
    assert world.poll_killed(at)
    before = world.position()
    world.write(100, value="after the plan was written")
    world.expire_leases()
    outcome = world.poll().get("orders")
    if before.plan is not None:
        assert outcome is not None
        assert outcome.plan.window == before.plan.window
        assert world.position().watermark == before.plan.window.high if before.plan.window else False
    world.poll()
    assert_equal(world)
    assert_counts_add_up(world)


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("second", range(EVENTS_OF_THREE_SLICES))
@pytest.mark.parametrize("first", [1, 2, 5])
def test_killed_twice_and_resumed(first: int, second: int, every: int, world: World) -> None:
    world.commit_every = every
    for id in range(6):
        world.write(id)
    assert world.poll_killed(first)
    world.expire_leases()
    world.poll_killed(second)
    world.expire_leases()
    world.poll()
    world.write(7)
    world.poll()
    assert_equal(world)
    assert_counts_add_up(world)
    ended = {str(record.fields["status"]) for kind in ("run", "table_run") for record in world.state.read(kind)}
    assert ended <= {"COMPLETED", "FAILED"}


def assert_counts_add_up(world: World) -> None:
    """Every batch was applied once, and the history, the position and the target agree on what it did."""
    assert len({batch.order for batch in world.sink.log}) == len(world.sink.log)
    inserted = sum(int(part.fields["rows_inserted"] or 0) for part in history(world))
    batches = sum(int(part.fields["batches"] or 0) for part in history(world))
    position = world.position()
    assert inserted == position.totals.rows_inserted == len(world.target_rows())
    assert batches == position.batches == len(world.sink.log)


@pytest.mark.parametrize("after", [False, True])
def test_killed_on_either_side_of_the_sinks_commit(after: bool, world: World) -> None:
    world.write(1, 2)
    world.sink.at_commit(**{"after" if after else "before": fail(Killed())})
    with pytest.raises(Killed):
        world.poll()
    assert world.position().watermark is None
    assert len(world.target_rows()) == (2 if after else 0)
    world.expire_leases()
    events: list[Event] = []
    world.poll(events.append)
    assert any(isinstance(event, Adopted) for event in events) is after
    assert_equal(world)
    assert_counts_add_up(world)


def test_nothing_is_written_to_the_state_once_the_process_is_killed(world: World) -> None:
    world.write(1)

    def records() -> list[Record]:
        return [record for kind in ("position", "lease", "run", "table_run") for record in world.state.read(kind)]

    at_death: list[Record] = []

    def die() -> None:
        at_death.extend(records())
        raise Killed

    world.sink.at_commit(after=die)
    with pytest.raises(Killed):
        world.poll()
    assert records() == at_death


def test_a_killed_run_is_closed_by_the_next_one(world: World) -> None:
    world.write(1)
    assert world.poll_killed(2)
    assert [run.fields["status"] for run in world.state.read("run")] == ["RUNNING"]
    world.expire_leases()
    world.poll()
    assert [run.fields["status"] for run in world.state.read("run")] == ["FAILED", "COMPLETED"]
    assert [part.fields["status"] for part in history(world)] == ["FAILED", "COMPLETED"]
    assert "killed" in str(history(world)[0].fields["error"])


def test_a_run_that_died_before_its_first_table_began_is_closed_too(world: World) -> None:
    world.books().run_started("20261115-000000-000-dead", "shop", Caller("test"), 1)
    world.expire_leases()
    world.write(1)
    world.poll()
    runs = {run.key[0]: run.fields["status"] for run in world.state.read("run")}
    assert runs.pop("20261115-000000-000-dead") == Status.FAILED
    assert list(runs.values()) == [Status.COMPLETED]


def test_a_run_that_died_while_resuming_is_closed_too(world: World) -> None:
    world.write(1)
    for _ in range(2):
        assert world.poll_killed(1)
        world.expire_leases()
    world.poll()
    assert [run.fields["status"] for run in world.state.read("run")] == ["FAILED", "FAILED", "COMPLETED"]


# fewer writes


class CountingState(MemoryState):
    puts = 0

    def put(self, records: Sequence[Record]) -> list[Record]:
        self.puts += any(record.kind == "position" for record in records)
        return super().put(records)


@pytest.mark.parametrize(("every", "writes"), [(1, 1 + 6), (3, 1 + 2), (4, 1 + 2), (100, 1 + 1)])
def test_a_position_is_written_once_at_the_start_and_once_per_so_many_batches(every: int, writes: int) -> None:
    state = CountingState()
    world = World(state=state, commit_every=every)
    world.table(slice_rows=2)
    for id in range(12):
        world.write(id)
    outcome = world.poll()["orders"]
    assert (outcome.status, outcome.batches, outcome.applied.rows_read) == (Status.COMPLETED, 6, 12)
    assert state.puts == writes
    assert_equal(world)
    assert_counts_add_up(world)


def test_what_was_applied_since_the_last_write_is_kept_by_an_error_and_taken_at_the_targets_word_after_a_crash(
    world: World,
) -> None:
    world.commit_every = 5
    for id in range(10):
        world.write(id)

    def after(number: int, error: BaseException) -> None:
        def action() -> None:
            if len(world.sink.log) == number:
                raise error
            world.sink.at_commit(after=action)

        world.sink.at_commit(after=action)

    after(2, TargetError("disk full"))
    outcome = world.poll()["orders"]
    assert (outcome.status, outcome.batches) == (Status.FAILED, 1), "the second is in, but nobody said so"
    assert world.position().plan is not None and world.position().batches == 1
    after(4, Killed())
    with pytest.raises(Killed):
        world.poll()
    assert world.position().batches == 1
    world.expire_leases()
    events: list[Event] = []
    assert world.poll(events.append)["orders"].batches == 4
    assert [event.batch.number for event in events if isinstance(event, Adopted)] == [2, 3, 4]
    assert [event.number for event in events if isinstance(event, Committed)] == [2, 3, 4, 5]
    assert_equal(world)
    assert_counts_add_up(world)


def test_a_runner_that_another_one_overtakes_by_several_batches_goes_on_from_there(world: World) -> None:
    """That one lost its lease and has not noticed: both carry out one plan, and each batch is applied once."""
    world.commit_every = 5
    for id in range(10):
        world.write(id)
    hangs, goes_on, ahead = threading.Event(), threading.Event(), threading.Event()

    def zombie(event: Event) -> None:
        if isinstance(event, Intended) and event.number == 1:
            hangs.set()
            assert goes_on.wait(120)
        if isinstance(event, BatchApplied) and event.batch.number == 3:
            ahead.set()

    def let_it_pass() -> None:
        goes_on.set()
        assert ahead.wait(120)

    with ThreadPoolExecutor(1) as pool:
        overtaken = pool.submit(world.poll, zombie)
        assert hangs.wait(120)
        world.expire_leases()
        world.sink.at_commit(after=lambda: world.sink.at_commit(before=let_it_pass))
        outcome = world.poll()["orders"]
        assert isinstance(overtaken.result()["orders"].error, LeaseError)
    assert (outcome.status, outcome.batches) == (Status.COMPLETED, 5)
    assert_equal(world)
    assert_counts_add_up(world)


# errors


def test_a_failure_is_recorded_keeps_its_plan_and_gives_the_lease_back(world: World) -> None:
    world.write(1)
    world.sink.at_commit(before=fail(TargetError("disk full", remedy="Make room.")))
    outcome = world.poll()["orders"]
    assert outcome.status is Status.FAILED and outcome.error is not None
    position = world.position()
    assert position.status is Status.FAILED
    assert position.error == "shop.orders: disk full"
    assert position.plan is not None and position.intent is not None
    assert [part.fields["status"] for part in history(world)] == ["FAILED"]
    assert world.poll()["orders"].status is Status.COMPLETED, "the lease must be free at once"
    assert_equal(world)


def test_a_failure_after_some_slices_keeps_them(world: World) -> None:
    for id in range(5):
        world.write(id)

    def fail_the_second() -> None:
        world.sink.at_commit(before=fail(TargetError("disk full")))

    world.sink.at_commit(after=fail_the_second)
    outcome = world.poll()["orders"]
    assert (outcome.status, outcome.batches) == (Status.FAILED, 1)
    plan = world.position().plan
    assert plan is not None and plan.done == 1
    assert world.poll()["orders"].batches == 2
    assert_equal(world)
    assert_counts_add_up(world)


def test_any_exception_becomes_the_tables_own_error(world: World) -> None:
    world.write(1)
    world.sink.at_commit(before=fail(ZeroDivisionError("division by zero\nwith details")))
    error = world.poll()["orders"].error
    assert error is not None
    assert str(error) == "shop.orders: ZeroDivisionError: division by zero"
    assert isinstance(error.__cause__, ZeroDivisionError)


def test_one_tables_failure_leaves_the_others_alone(world: World) -> None:
    world.table("items")
    world.write(1)
    world.write(1, table="items")
    world.sink.at_commit(before=fail(TargetError("no")))
    outcomes = world.poll()
    assert [outcomes[name].status for name in ("orders", "items")] == [Status.FAILED, Status.COMPLETED]
    assert_equal(world, "items")
    assert world.state.read("run")[0].fields["status"] == "FAILED"


def test_secrets_are_redacted_from_errors_history_and_events(world: World) -> None:
    world.write(1)
    world.sink.at_commit(before=fail(TargetError("password hunter2 refused", why="hunter2")))
    books = world.books()
    events: list[Event] = []
    planned = make_plan(world.source, world.asks(books))
    hop = Hop(
        "run",
        PIPELINE,
        world.source,
        world.sink,
        books,
        events.append,
        redact=lambda text: text.replace("hunter2", "***"),
    )
    error = hop.run(planned, {})[0].error
    assert error is not None
    texts = [error.explain(), world.position().error, *(str(part.fields) for part in history(world)), repr(events)]
    assert not any("hunter2" in text for text in texts)


# transient errors


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("error", [TransientError("connection lost"), CommitUnknownError("who knows")])
def test_transient_trouble_asks_the_sink_before_it_applies_again(
    error: TransientError, after: bool, world: World
) -> None:
    world.write(1, 2)
    world.sink.at_commit(**{"after" if after else "before": fail(error)})
    events: list[Event] = []
    waits: list[float] = []
    outcome = world.poll(events.append, sleep=waits.append)["orders"]
    assert outcome.status is Status.COMPLETED
    assert waits == [1.0]
    assert any(isinstance(event, Adopted) for event in events) is after
    assert [event.wait_seconds for event in events if isinstance(event, Retrying)] == waits
    assert len(world.sink.log) == 1
    assert_counts_add_up(world)


def test_transient_trouble_that_stays_fails_the_table_in_the_end(world: World) -> None:
    world.write(1)

    def again() -> None:
        world.sink.at_commit(before=again)
        raise TransientError("connection lost")

    world.sink.at_commit(before=again)
    waits: list[float] = []
    outcome = world.poll(sleep=waits.append)["orders"]
    assert waits == [1.0, 2.0, 4.0]
    assert isinstance(outcome.error, TransientError)
    assert world.position().plan is not None


def test_other_errors_are_not_tried_again(world: World) -> None:
    world.write(1)
    world.sink.at_commit(before=fail(TargetError("no")))
    waits: list[float] = []
    world.poll(sleep=waits.append)
    assert waits == []


# two runners


def test_a_second_runner_is_told_who_is_at_work(world: World) -> None:
    world.write(1)
    reasons: list[str] = []

    def second() -> None:
        reasons.extend(part.plan.reason.value for part in world.plan())
        planned = make_plan(world.source, world.asks(Books(MemoryState(world.clock.now))))
        hop = Hop("second", PIPELINE, world.source, world.sink, world.books(), lambda _: None)
        lease = world.books().leases(PIPELINE)["orders"]
        error = hop.run(planned[:1], {"orders": lease})[0].error
        assert isinstance(error, LeaseError) and "another run is at work" in error.message

    world.sink.at_commit(before=second)
    assert world.poll()["orders"].status is Status.COMPLETED
    assert reasons == ["busy"]
    assert len(world.sink.log) == 1


def test_two_runners_that_planned_at_once_do_the_work_once(world: World) -> None:
    world.write(1)
    first, second = world.plan(run_id="a"), world.plan(run_id="b")
    nothing: list[Event] = []
    one = Hop("a", PIPELINE, world.source, world.sink, world.books(), nothing.append).run(first, {})
    two = Hop("b", PIPELINE, world.source, world.sink, world.books(), nothing.append).run(second, {})
    assert one[0].status is Status.COMPLETED
    assert isinstance(two[0].error, LeaseError)
    assert len(world.sink.log) == 1
    assert [part.key[0] for part in history(world)] == ["a"]


@pytest.mark.parametrize("at", range(5))
def test_a_zombie_that_wakes_after_its_lease_was_taken_changes_nothing(at: int, world: World) -> None:
    world.write(1, 2)
    events: list[Event] = []

    def overtake() -> None:
        world.expire_leases()
        world.poll()
        world.write(2, 3, value="newer")
        world.poll()

    def listener(event: Event) -> None:
        events.append(event)
        if len(events) == at + 1:
            overtake()

    outcome = world.poll(listener)["orders"]
    alive = isinstance(events[at], Committed | TableFinished)
    assert outcome.status is (Status.COMPLETED if alive else Status.FAILED)
    assert_equal(world)
    assert len({batch.order for batch in world.sink.log}) == len(world.sink.log)
    position = world.position()
    assert position.batch is not None and position.batch.same(world.sink.log[-1])
    assert position.status is Status.COMPLETED


@pytest.mark.parametrize("after", [False, True])
def test_a_zombie_that_hangs_in_the_sink_changes_nothing(after: bool, world: World) -> None:
    world.write(1, 2)

    def overtake() -> None:
        world.expire_leases()
        world.poll()
        world.write(2, 3, value="newer")
        world.poll()

    world.sink.at_commit(**{"after" if after else "before": overtake})
    events: list[Event] = []
    outcome = world.poll(events.append)["orders"]
    assert outcome.status is Status.FAILED
    assert any(isinstance(event, Warned) for event in events)
    assert_equal(world)
    assert_counts_of_position(world)


def assert_counts_of_position(world: World) -> None:
    position = world.position()
    assert position.totals.rows_inserted == len(world.target_rows())
    assert position.batches == len(world.sink.log)


def test_a_lost_lease_stops_the_table_before_its_next_batch(world: World) -> None:
    for id in range(4):
        world.write(id)
    books = world.books()

    def lose() -> None:
        books.forget(PIPELINE, "orders")

    world.sink.at_commit(after=lose)
    outcome = world.poll(books=books)["orders"]
    assert isinstance(outcome.error, LeaseError)
    assert len(world.sink.log) == 1
    assert world.position().watermark is None


def test_a_lease_lost_at_renewal_stops_the_table_before_it_applies(world: World) -> None:
    world.write(1)
    books = world.books()

    def overtaken(event: Event) -> None:
        if isinstance(event, Intended):
            lease = world.books().leases(PIPELINE)["orders"]
            world.state.put([lease.record()])
            assert books.renew() == [(PIPELINE, "orders")]

    outcome = world.poll(overtaken, books=books)["orders"]
    assert isinstance(outcome.error, LeaseError)
    assert world.sink.log == []


def test_a_batch_cancelled_because_its_lease_was_lost_says_so(world: World) -> None:
    """Not what the sink says of a job that was cancelled."""
    world.write(1)
    books = world.books()

    def cancelled() -> None:
        books.forget(PIPELINE, "orders")
        raise TargetError("job 13 cancelled")

    world.sink.at_commit(before=cancelled)
    error = world.poll(books=books)["orders"].error
    assert isinstance(error, LeaseError) and "another run has the table" in str(error)
    assert str(error.__cause__) == "job 13 cancelled"


def test_a_failed_table_does_not_drag_its_living_run_down(world: World) -> None:
    """`sync -t orders` beside a run whose `orders` failed and whose `items` are still on their way."""
    world.table("items")
    world.write(1)
    world.write(1, table="items")

    def beside() -> None:
        items = world.tables.pop("items")
        world.clock.advance(1)
        world.poll()
        world.tables["items"] = items

    def then_fail() -> None:
        world.sink.at_commit(before=beside)
        raise TargetError("no")

    world.sink.at_commit(before=then_fail)
    outcomes = world.poll()
    assert outcomes["items"].status is Status.COMPLETED
    living = world.state.read("run")[0].key
    statuses = {part.key[1]: part.fields["status"] for part in world.state.read("table_run", living)}
    assert statuses == {"orders": "FAILED", "items": "COMPLETED"}
    assert [run.fields["status"] for run in world.state.read("run")] == ["FAILED", "COMPLETED"]


# side by side, and stopped on the way


def test_tables_run_side_by_side_and_each_fares_by_itself(world: World) -> None:
    names = [f"table{number}" for number in range(8)]
    world.tables.clear()
    for name in names:
        world.table(name, slice_rows=1)
        world.write(1, table=name)
        world.write(2, table=name)
    world.sink.at_commit(before=fail(TargetError("no")))
    books = world.books()
    planned = make_plan(world.source, world.asks(books))
    hop = Hop("run", PIPELINE, world.source, world.sink, books, lambda _: None, parallel=4)
    outcomes = hop.run(planned, {})
    assert [outcome.table for outcome in outcomes] == names
    failed = [outcome.table for outcome in outcomes if outcome.status is Status.FAILED]
    assert len(failed) == 1
    for name in set(names) - set(failed):
        assert_equal(world, name)


def test_a_run_that_is_stopped_ends_with_the_slice_at_hand(world: World) -> None:
    for id in range(6):
        world.write(id)
    books = world.books()
    hop = Hop("run", PIPELINE, world.source, world.sink, books, lambda _: None)
    world.sink.at_commit(after=hop.stopping.set)
    (outcome,) = hop.run(make_plan(world.source, world.asks(books)), {})
    assert (outcome.status, outcome.batches) == (Status.FAILED, 1)
    assert world.position().watermark is not None
    assert world.poll()["orders"].batches == 2, "the lease is free, and the rest of the plan is carried out"
    assert_equal(world)


# a state that is away


class FlakyState(MemoryState):
    """Refuses the writes it is told to."""

    refuse = 0

    def put(self, records: Sequence[Record]) -> list[Record]:
        if self.refuse:
            self.refuse -= 1
            raise StateError("the store is away")
        return super().put(records)


def test_a_state_that_is_away_at_the_commit_costs_nothing_but_time(world: World) -> None:
    world.state = state = FlakyState(world.clock.now)
    world.write(1, 2)

    def away() -> None:
        state.refuse = 2  # the commit, and the record of its failure

    world.sink.at_commit(after=away)
    books = world.books()
    events: list[Event] = []
    outcome = world.poll(events.append, books=books)["orders"]
    assert isinstance(outcome.error, StateError)
    assert any(isinstance(event, Warned) for event in events)
    assert not books.holds(PIPELINE, "orders"), "a lease that nobody gives back must not be renewed for ever"
    world.expire_leases()
    world.poll(books=books)
    assert_equal(world)
    assert_counts_add_up(world)


# a person in between


def test_a_watermark_moved_after_a_crash_goes_on_once_the_intent_is_settled(world: World) -> None:
    world.write(1)
    world.sink.at_commit(after=fail(Killed()))
    with pytest.raises(Killed):
        world.poll()
    world.expire_leases()
    position = world.position()
    settled = settle(world.sink.applied(world.tables["orders"]), position)
    world.books().write([settled.moved(None)])
    assert world.poll()["orders"].status is Status.COMPLETED
    assert_equal(world)
    assert [batch.order for batch in world.sink.log] == [(1, 1), (2, 2)]


def test_a_watermark_moved_under_a_running_table_stops_that_run(world: World) -> None:
    world.write(1, 2)

    def person() -> None:
        world.expire_leases()
        world.books().write([world.position().moved(None)])

    world.sink.at_commit(before=person)
    outcome = world.poll()["orders"]
    assert isinstance(outcome.error, LeaseError)
    assert (world.position().watermark, world.position().epoch) == (None, 2)


def test_a_zombies_batch_that_reached_the_target_after_a_person_moved_the_watermark_is_seen(world: World) -> None:
    world.write(1)
    world.poll()
    world.write(2)

    def person() -> None:
        world.expire_leases()
        settled = settle(world.sink.applied(world.tables["orders"]), world.position())
        world.books().write([settled.moved(None)])

    world.sink.at_commit(before=person)
    assert isinstance(world.poll()["orders"].error, LeaseError)
    held = world.sink.backup("orders")
    stopped = world.poll()["orders"].error
    assert isinstance(stopped, TargetError) and "is ahead" in stopped.message
    assert "import --from-target" in stopped.remedy
    assert world.sink.backup("orders") == held


@pytest.mark.parametrize("lost", ["dropped", "restored"])
def test_a_target_that_lost_batches_is_never_written_to(lost: str, world: World) -> None:
    world.write(1)
    world.poll()
    backup = world.sink.backup("orders") if lost == "restored" else None
    world.write(2)
    world.poll()
    world.sink.restore("orders", backup)
    world.write(3)
    outcome = world.poll()["orders"]
    assert isinstance(outcome.error, TargetError)
    assert "sync --full" in outcome.error.remedy
    assert world.sink.backup("orders") == backup


def test_a_target_fed_by_another_state_is_never_written_to(world: World) -> None:
    world.write(1)
    world.poll()
    other = MemoryState(world.clock.now)
    mine, world.state = world.state, other
    refused = world.poll()["orders"].error
    assert isinstance(refused, TargetError) and "import --from-target" in refused.remedy
    assert world.position().intent is None, "nothing was on its way to the target: whoever imports need not fence it"
    world.state = mine
    world.write(2)
    assert world.poll()["orders"].status is Status.COMPLETED
    assert_equal(world)

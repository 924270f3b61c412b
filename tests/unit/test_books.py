"""The books: every write is a compare-and-set, a lease keeps two runners apart, and the history says what was."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from strandline.core.batch import Applied
from strandline.core.books import Books, Caller, Lease, TableRun, new_id, stamp
from strandline.core.errors import ConflictError, LeaseError, StateError
from strandline.core.position import Position, Status
from strandline.core.protocols import Record
from strandline.core.renewal import Renewal
from strandline.core.watermark import Kind, Watermark
from strandline.state.memory import MemoryState
from strandline.testing.database import Clock

ORDERS = Position("shop", "orders", "sync")
FREE = Lease("shop", "orders")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def state(clock: Clock) -> MemoryState:
    return MemoryState(clock.now)


def entry(run_id: str = "run", table: str = "orders") -> TableRun:
    return TableRun(run_id, "shop", table, "sync", Status.PLANNED, None, "2026-11-15T08:00:00.000Z")


def expire(clock: Clock) -> None:
    clock.advance(61)


# positions


def test_positions_are_found_by_pipeline_and_table(state: MemoryState) -> None:
    books = Books(state)
    items = Position("shop", "items", "sync")
    other = Position("other", "orders", "sync")
    books.write([ORDERS, items, other])
    assert len(books.positions()) == 3
    assert set(books.positions("shop")) == {("shop", "orders", "sync"), ("shop", "items", "sync")}
    assert set(books.positions("shop", "items")) == {("shop", "items", "sync")}


def test_a_write_gives_the_new_revision_and_stamps_the_time(state: MemoryState, clock: Clock) -> None:
    books = Books(state)
    (stored,) = books.write([ORDERS])
    assert (stored.revision, stored.updated_at) == (1, stamp(clock.now()))
    (again,) = books.write([stored])
    assert again.revision == 2


def test_a_stale_position_is_refused_and_nothing_else_of_its_write_is_stored(state: MemoryState) -> None:
    books = Books(state)
    books.write([ORDERS])
    with pytest.raises(ConflictError):
        books.write([Position("shop", "items", "sync"), ORDERS])
    assert len(books.positions()) == 1


def test_a_watermark_moved_by_a_person_is_in_the_history(state: MemoryState) -> None:
    books = Books(state)
    before = replace(ORDERS, watermark=Watermark(Kind.INTEGER, "7"))
    after = before.moved(None)
    books.write([after], [books.changed(before, after, "reset", "ann", "bad load")])
    (change,) = state.read("change")
    told = {name: change.fields[name] for name in ("action", "old", "new", "who", "why", "epoch", "table_name")}
    assert told == {
        "action": "reset",
        "old": "7",
        "new": None,
        "who": "ann",
        "why": "bad load",
        "epoch": 2,
        "table_name": "orders",
    }


# leases


def test_a_held_lease_names_its_holder_and_its_end(state: MemoryState) -> None:
    one, two = Books(state), Books(state)
    one.begin(ORDERS, FREE, entry())
    with pytest.raises(LeaseError) as caught:
        two.take(two.leases("shop")["orders"], "second")
    assert "run run" in caught.value.message and "pid" in caught.value.message
    assert "2026-11-15T08:01:00.000Z" in caught.value.remedy


def test_the_token_rises_with_every_holder(state: MemoryState, clock: Clock) -> None:
    tokens = []
    for number in range(3):
        books = Books(state)
        position = books.positions().get(("shop", "orders", "sync"), ORDERS)
        books.begin(position, books.leases("shop").get("orders", FREE), entry(f"run {number}"))
        tokens.append(books.leases("shop")["orders"].token)
        expire(clock)
    assert tokens == [1, 2, 3]


def test_of_two_that_take_a_free_lease_one_gets_it(state: MemoryState) -> None:
    one, two = Books(state), Books(state)
    one.begin(ORDERS, FREE, entry("one"))
    with pytest.raises(LeaseError, match="between plan and start"):
        two.begin(ORDERS, FREE, entry("two"))
    assert two.holds("shop", "orders") is False
    assert [part.key[0] for part in state.read("table_run")] == ["one"]


def test_tables_are_leased_one_by_one(state: MemoryState) -> None:
    one, two = Books(state), Books(state)
    one.begin(ORDERS, FREE, entry())
    two.begin(Position("shop", "items", "sync"), Lease("shop", "items"), entry("two", "items"))
    assert one.holds("shop", "orders") and two.holds("shop", "items")


def test_the_last_commit_gives_the_lease_back(state: MemoryState, clock: Clock) -> None:
    books = Books(state)
    position, part = books.begin(ORDERS, FREE, entry())
    position, part = books.commit(position, part)
    assert books.leases("shop")["orders"].held(clock.now())
    books.commit(position, part, done=True)
    assert not books.leases("shop")["orders"].held(clock.now())
    assert not books.holds("shop", "orders")


def test_whoever_was_overtaken_commits_nothing(state: MemoryState, clock: Clock) -> None:
    one, two = Books(state), Books(state)
    position, part = one.begin(ORDERS, FREE, entry("one"))
    expire(clock)
    two.begin(position, two.leases("shop")["orders"], entry("two"))
    for done in (False, True):
        with pytest.raises(LeaseError, match="lost"):
            one.commit(replace(position, epoch=9), part, done=done)
    assert two.positions()["shop", "orders", "sync"].epoch == 1


def test_without_a_lease_nothing_is_committed(state: MemoryState) -> None:
    books = Books(state)
    position, part = books.begin(ORDERS, FREE, entry())
    books.forget("shop", "orders")
    with pytest.raises(LeaseError):
        books.commit(position, part)


def test_renewal_extends_what_is_held_and_tells_what_was_lost(state: MemoryState, clock: Clock) -> None:
    one, two = Books(state), Books(state)
    items = Position("shop", "items", "sync")
    position, _ = one.begin(ORDERS, FREE, entry("one"))
    one.begin(items, Lease("shop", "items"), entry("one", "items"))
    clock.advance(50)
    assert one.renew() == []
    clock.advance(50)
    assert one.leases("shop")["orders"].held(clock.now())
    expire(clock)
    two.begin(position, two.leases("shop")["orders"], entry("two"))
    assert one.renew() == [("shop", "orders")]
    assert (one.holds("shop", "orders"), one.holds("shop", "items")) == (False, True)


def test_a_released_lease_is_free_and_one_that_was_taken_over_is_left_alone(state: MemoryState, clock: Clock) -> None:
    one, two = Books(state), Books(state)
    position, _ = one.begin(ORDERS, FREE, entry("one"))
    one.release("shop", "orders")
    assert not one.leases("shop")["orders"].held(clock.now())
    position, _ = one.begin(position, one.leases("shop")["orders"], entry("again"))
    expire(clock)
    two.begin(position, two.leases("shop")["orders"], entry("two"))
    one.release("shop", "orders")
    assert two.leases("shop")["orders"].held(clock.now())


class AwayOnce(MemoryState):
    """Its first renewal fails; tells when the next one came."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock.now)
        self.renewals = 0
        self.renewed = threading.Event()

    def put(self, records: Sequence[Record]) -> list[Record]:
        if [record.kind for record in records] == ["lease"]:
            self.renewals += 1
            if self.renewals == 1:
                raise StateError("the store is away")
            self.renewed.set()
        return super().put(records)


def test_leases_are_renewed_by_themselves_even_after_the_store_was_away(clock: Clock) -> None:
    state = AwayOnce(clock)
    books = Books(state, lease_time=timedelta(milliseconds=30))
    books.begin(ORDERS, FREE, entry())
    lost: list[str] = []
    with Renewal(books, lost.append):
        assert state.renewed.wait(120)
    assert books.holds("shop", "orders")
    assert lost == []


def test_a_lease_that_was_taken_over_is_told(state: MemoryState) -> None:
    books = Books(state, lease_time=timedelta(milliseconds=30))
    books.begin(ORDERS, FREE, entry())
    (record,) = state.read("lease")
    state.put([replace(record, fields={**record.fields, "holder": "somebody else"})])
    told = threading.Event()
    with Renewal(books, lambda _: told.set()):
        assert told.wait(120)
    assert not books.holds("shop", "orders")


# history


def started(books: Books, run_id: str) -> Record:
    return books.run_started(run_id, "shop", Caller("test", "ann", "host", "job 7"), 2)


def test_a_run_ends_with_the_sums_of_its_tables_and_its_duration(state: MemoryState, clock: Clock) -> None:
    books = Books(state)
    run = started(books, "run")
    position, part = books.begin(ORDERS, FREE, entry())
    books.commit(position, replace(part, applied=Applied(5, 3, 2, 0)), done=True)
    items = replace(entry(table="items"), applied=Applied(1, 1, 0, 0))
    state.put([items.record()])
    clock.advance(2.5)
    books.run_ended(run, Status.COMPLETED, "")
    (ended,) = state.read("run")
    counted = [ended.fields[name] for name in ("rows_read", "rows_inserted", "rows_updated", "milliseconds", "status")]
    assert counted == [6, 4, 2, 2500, "COMPLETED"]
    assert (ended.fields["user_name"], ended.fields["job_id"]) == ("ann", "job 7")


def test_an_abandoned_run_is_closed_once_and_says_so(state: MemoryState, clock: Clock) -> None:
    books = Books(state)
    started(books, "dead")
    position, part = books.begin(ORDERS, FREE, entry("dead"))
    books.commit(position, replace(part, status=Status.RUNNING, applied=Applied(5, 5)))
    expire(clock)
    Books(state).close_abandoned(["dead", "dead", "", "unknown"])
    (run,), (part_,) = state.read("run"), state.read("table_run")
    assert (run.fields["status"], part_.fields["status"]) == ("FAILED", "FAILED")
    assert "killed" in str(run.fields["error"]) and "killed" in str(part_.fields["error"])
    assert run.fields["rows_read"] == 5, "what it committed before it died counts"
    Books(state).close_abandoned(["dead"])
    assert state.read("run") == [run] and state.read("table_run") == [part_]


def test_a_run_that_ended_keeps_its_word(state: MemoryState, clock: Clock) -> None:
    books = Books(state)
    run = started(books, "done")
    books.run_ended(run, Status.FAILED, "disk full")
    expire(clock)
    books.close_abandoned(["done"])
    assert state.read("run")[0].fields["error"] == "disk full"


def test_a_run_with_a_living_lease_is_not_closed(state: MemoryState) -> None:
    books = Books(state)
    started(books, "alive")
    books.begin(ORDERS, FREE, entry("alive"))
    Books(state).close_abandoned(["alive"])
    assert (state.read("run")[0].fields["status"], state.read("table_run")[0].fields["status"]) == (
        "RUNNING",
        "PLANNED",
    )


def test_a_run_taken_for_dead_between_two_tables_still_has_the_last_word(state: MemoryState) -> None:
    books = Books(state)
    run = started(books, "alive")
    Books(state).close_abandoned(["alive"])
    books.run_ended(run, Status.COMPLETED, "")
    assert state.read("run")[0].fields["status"] == "COMPLETED"


def test_history_is_pruned_by_age_and_positions_stay(state: MemoryState, clock: Clock) -> None:
    books = Books(state)
    old = new_id(clock.now())
    started(books, old)
    books.write([ORDERS])
    clock.advance(10 * 86400)
    new = new_id(clock.now())
    started(books, new)
    assert books.prune(timedelta(days=7)) == 1
    assert [run.key[0] for run in state.read("run")] == [new]
    assert books.positions()


def test_run_ids_sort_by_time_and_are_unique() -> None:
    first = datetime(2026, 11, 15, 8, 12, 44, 120003, UTC)
    ids = [new_id(first), new_id(first + timedelta(milliseconds=1)), new_id(first + timedelta(days=1))]
    assert ids == sorted(ids)
    assert re.fullmatch(r"20261115-081244-120-[0-9a-f]{6}", ids[0])
    assert new_id(first) != new_id(first)

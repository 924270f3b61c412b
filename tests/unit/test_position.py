"""Positions: the watermark moves with a commit and nowhere else, and what a step leaves behind."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strandline.core.batch import Applied
from strandline.core.position import Holder, Position, Reason, Status, TablePlan
from strandline.core.watermark import Kind, Watermark
from strandline.core.window import Slice, Window, by_cursor, by_key


def at(value: int) -> Watermark:
    return Watermark(Kind.INTEGER, str(value))


def plan(*slices: Slice, proven: bool = True) -> TablePlan:
    window = Window(slices[0].window.low, slices[-1].window.high)
    return TablePlan(
        "orders", "sync", window, slices, Reason.INCREMENTAL, run_id="writer", proven=proven, observed="T0"
    )


WINDOW = Window(at(10), at(30))
HALVES = by_cursor(WINDOW, [at(20)])
EMPTY = Position("shop", "orders", "sync")
AT_TEN = replace(EMPTY, watermark=at(10))


def planned(position: Position = AT_TEN, slices: tuple[Slice, ...] = HALVES) -> Position:
    return position.planned(plan(*slices), {"cursor": "id"}, "schema", "runner")


def test_a_plan_is_stored_with_what_it_measures_and_who_carries_it_out() -> None:
    position = replace(planned(), error="old")
    again = position.planned(position.plan or plan(*HALVES), {"cursor": "id"}, "schema of today", "another")
    assert (again.status, again.measures, again.schema) == (Status.PLANNED, {"cursor": "id"}, "schema")
    assert (again.run_id, again.error) == ("another", "")
    assert again.plan is not None and again.plan.run_id == "writer"


def test_batches_are_numbered_without_gaps_and_a_retried_slice_keeps_its_number() -> None:
    position = planned()
    first = position.next(HALVES[0], "store", "try 1")
    retried = position.intending(first).failed("broken").next(HALVES[0], "store", "try 2")
    assert first.number == retried.number == 1
    assert retried.same(first)
    second = position.committed(first, Applied()).next(HALVES[1], "store", "try 1")
    assert (second.number, second.low, second.high) == (2, at(20), at(30))


def test_the_watermark_moves_at_the_commit_of_each_slice() -> None:
    position = planned()
    for part in HALVES:
        batch = position.next(part, "store", "try")
        intending = position.intending(batch)
        assert intending.watermark == position.watermark
        position = intending.committed(batch, Applied(rows_read=2, last_value=at(int(part.window.high.text) - 1)))
        assert position.watermark == part.window.high
    assert (position.plan, position.intent, position.status) == (None, None, Status.COMPLETED)
    assert (position.observed, position.batches, position.totals.rows_read) == ("T0", 2, 4)
    assert position.last_value == at(29)


def test_a_range_that_is_read_again_leaves_the_watermark_where_it_is() -> None:
    position = planned(replace(EMPTY, watermark=at(50)))
    for part in HALVES:
        batch = position.next(part, "store", "try")
        position = position.intending(batch).committed(batch, Applied())
        assert (batch.watermark, position.watermark) == (at(50), at(50))


def test_key_ranges_move_the_watermark_only_with_the_last() -> None:
    slices = by_key(WINDOW, "id", [5, 9])
    position = planned(slices=slices)
    seen = []
    for part in slices:
        position = position.committed(position.next(part, "store", "try"), Applied())
        seen.append(position.watermark)
    assert seen == [at(10), at(10), at(30)]


def test_a_failure_keeps_the_plan_and_the_intent() -> None:
    position = planned()
    intending = position.intending(position.next(HALVES[0], "store", "try"))
    failed = intending.failed("disk full")
    assert (failed.plan, failed.intent, failed.watermark) == (intending.plan, intending.intent, at(10))
    assert (failed.status, failed.error) == (Status.FAILED, "disk full")


def skip(low: Watermark | None, high: Watermark, *, proven: bool = True) -> TablePlan:
    return TablePlan("orders", "sync", Window(low, high), (), Reason.NOTHING_NEW, proven=proven, observed="T1")


@pytest.mark.parametrize(
    ("before", "plan", "after"),
    [
        (at(10), skip(at(10), at(30)), at(30)),
        (at(10), skip(at(10), at(30), proven=False), at(10)),
        (at(10), skip(at(10), at(10), proven=False), at(10)),
        (at(40), skip(at(10), at(30)), at(40)),
        (None, skip(None, at(30)), at(30)),
        (None, skip(None, at(30), proven=False), None),
        (None, skip(at(30), at(30), proven=False), at(30)),
        (at(10), TablePlan("orders", "sync", None, (), Reason.NOTHING_NEW), at(10)),
    ],
    ids=["proven", "not proven", "empty", "never back", "first", "first, not proven", "latest", "no horizon"],
)
def test_a_skip_moves_the_watermark_up_to_a_proven_horizon_only(
    before: Watermark | None, plan: TablePlan, after: Watermark | None
) -> None:
    skipped = replace(EMPTY, watermark=before, error="old").skipped(plan, {"cursor": "id"})
    assert skipped.watermark == after
    assert (skipped.status, skipped.error, skipped.measures) == (Status.SKIPPED, "", {"cursor": "id"})


def test_a_watermark_moved_by_a_person_begins_an_epoch_and_never_restarts_the_numbers() -> None:
    position = planned()
    position = position.committed(position.next(HALVES[0], "store", "try"), Applied(rows_read=7, last_value=at(19)))
    moved = position.moved(at(5))
    assert (moved.watermark, moved.epoch, moved.plan, moved.intent) == (at(5), 2, None, None)
    assert (moved.measures, moved.last_value, moved.totals) == ({}, None, Applied(rows_read=7))
    following = moved.next(Slice(Window(at(5), at(30))), "store", "try")
    assert following.order == (2, 2)
    assert position.batch is not None and following.order > position.batch.order


def test_a_plan_says_what_remains_of_it() -> None:
    half_done = replace(plan(*HALVES), done=1)
    assert half_done.remaining == HALVES[1:] and half_done.work
    assert not replace(half_done, done=2).work


def test_a_holder_names_the_transaction_its_user_and_its_age() -> None:
    assert str(Holder("4711")) == "transaction 4711"
    assert str(Holder("4711", "app@web3", 660.4)) == "transaction 4711 (app@web3) open for 660 s"

"""Every row of the table in correctness: what the sink holds against what the position says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strandline.core.batch import Applied, Batch, Receipt
from strandline.core.errors import TargetError
from strandline.core.position import Position, Reason, TablePlan
from strandline.core.reconcile import Adopt, Apply, reconcile, settle
from strandline.core.watermark import Kind, Watermark
from strandline.core.window import Slice, Window


def batch(number: int, *, epoch: int = 1, store: str = "ours") -> Batch:
    low, high = Watermark(Kind.INTEGER, str(number)), Watermark(Kind.INTEGER, str(number + 1))
    return Batch(store, epoch, number, low, high, high, "attempt")


def receipt(held: Batch | None) -> Receipt | None:
    return None if held is None else Receipt(replace(held, attempt="the sink's own"), Applied(rows_inserted=3))


def position(last: Batch | None, intent: Batch | None) -> Position:
    return Position("shop", "orders", "sync", watermark=last.watermark if last else None, batch=last, intent=intent)


@pytest.mark.parametrize("last", [None, batch(4)])
def test_the_intended_batch_is_adopted_with_what_the_sink_counted(last: Batch | None) -> None:
    assert reconcile(receipt(batch(5)), position(last, batch(5))) == Adopt((batch(5),), Applied(rows_inserted=3))


@pytest.mark.parametrize("last", [None, batch(4)])
def test_what_the_position_has_lets_the_next_batch_be_applied(last: Batch | None) -> None:
    assert reconcile(receipt(last), position(last, batch(5))) == Apply()


def test_the_first_batch_of_a_new_epoch_follows_the_last_of_the_old_one() -> None:
    assert reconcile(receipt(batch(4)), position(batch(4), batch(5, epoch=2))) == Apply()


@pytest.mark.parametrize(
    ("held", "last", "says"),
    [
        (None, batch(4), "lost its batches"),
        (batch(3), batch(4), "went back"),
        (batch(9), batch(4), "is ahead"),
        (batch(1, epoch=2), batch(4), "is ahead"),
        (batch(4, epoch=1), batch(2, epoch=2), "went back"),
        (batch(5, store="another"), batch(4), "is ahead"),
        (batch(4, store="another"), batch(4), "went back"),
        (batch(1), None, "no position"),
        (replace(batch(5), high=Watermark(Kind.INTEGER, "99")), batch(4), "is ahead"),
    ],
)
def test_anything_else_stops_with_the_choices(held: Batch | None, last: Batch | None, says: str) -> None:
    with pytest.raises(TargetError, match=says) as caught:
        reconcile(receipt(held), position(last, batch(5)))
    assert caught.value.where == "shop.orders"
    assert "sync --full -t orders" in caught.value.remedy
    assert "import --from-target -t orders" in caught.value.remedy


def several() -> Position:
    """Batches 5, 6 and 7 of one plan; the state knows that the first is on its way, and what came before."""
    slices = tuple(Slice(Window(one.low, one.high)) for one in map(batch, (5, 6, 7)))
    plan = TablePlan("orders", "sync", Window(slices[0].low, slices[-1].window.high), slices, Reason.INCREMENTAL)
    return replace(position(batch(4), batch(5)), plan=plan, totals=Applied(rows_read=100))


def test_a_later_batch_of_the_plan_is_adopted_with_those_before_it_and_what_it_carried() -> None:
    held = replace(batch(7), carried=Applied(rows_read=107, rows_updated=2, last_value=batch(9).high))
    found = reconcile(Receipt(held, Applied(rows_read=1, last_value=batch(6).high)), several())
    did = Applied(rows_read=8, rows_updated=2, last_value=batch(9).high)
    assert found == Adopt((batch(5), batch(6), batch(7)), did)
    settled = settle(Receipt(held, Applied(rows_read=1)), several())
    assert (settled.plan, settled.intent, settled.batches) == (None, None, 3)
    assert (settled.watermark, settled.totals.rows_read) == (batch(7).watermark, 108)


@pytest.mark.parametrize(
    "held",
    [
        batch(7),  # whoever brought it had told the state of 6: this is an older state
        replace(batch(7), carried=Applied(), high=Watermark(Kind.INTEGER, "99")),
        replace(batch(8), carried=Applied()),
        replace(batch(7, epoch=2), carried=Applied()),
        replace(batch(7, store="another"), carried=Applied()),
    ],
)
def test_what_the_plan_does_not_lead_to_is_not_adopted(held: Batch) -> None:
    with pytest.raises(TargetError, match="is ahead"):
        reconcile(receipt(held), several())


def open_plan() -> TablePlan:
    window = Window(Watermark(Kind.INTEGER, "5"), Watermark(Kind.INTEGER, "7"))
    return TablePlan("orders", "sync", window, (Slice(window), Slice(window)), Reason.INCREMENTAL)


def test_settling_commits_an_intent_that_the_sink_holds() -> None:
    settled = settle(receipt(batch(5)), replace(position(batch(4), batch(5)), plan=open_plan()))
    assert (settled.batch, settled.intent, settled.watermark) == (batch(5), None, batch(5).watermark)
    assert settled.totals.rows_inserted == 3
    assert settled.plan is not None and settled.plan.done == 1


def test_settling_drops_an_intent_that_the_sink_never_got() -> None:
    before = replace(position(batch(4), batch(5)), plan=open_plan())
    assert settle(receipt(batch(4)), before) == replace(before, intent=None)


def test_settling_without_an_intent_changes_nothing() -> None:
    before = position(batch(4), None)
    assert settle(None, before) == before


def test_settling_stops_where_target_and_position_cannot_both_be_right() -> None:
    with pytest.raises(TargetError):
        settle(None, position(batch(4), batch(5)))

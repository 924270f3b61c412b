"""The stored form of positions: it comes back as it was, and what somebody edited is refused, never guessed over."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from strandline.core.batch import Applied, Batch
from strandline.core.codec import position_record, record_position, resumed
from strandline.core.errors import StateError
from strandline.core.position import Holder, Position, Reason, Status, TablePlan
from strandline.core.protocols import Record
from strandline.core.records import KINDS
from strandline.core.watermark import Kind, Watermark
from strandline.core.window import Slice, Window, by_key
from strandline.state.memory import MemoryState


def stamp(text: str) -> Watermark:
    return Watermark(Kind.TIMESTAMP, f"2026-11-15 {text}")


WINDOW = Window(None, stamp("09:00:00.123456789"))
PLAN = TablePlan(
    "orders",
    "sync",
    WINDOW,
    (*by_key(WINDOW, "id", [2**62]), Slice(WINDOW, read_from=stamp("07:00:00"), nulls=True)),
    Reason.FIRST_LOAD,
    estimated_rows=12,
    run_id="20261115-080000-000-abc",
    done=1,
    first=True,
    replace=True,
    observed="T0",
    proven=False,
    held_by=Holder("4711", "app", 3.5, "UPDATE"),
    note="said in plan",
)
BATCH = Batch("store", 2, 7, None, stamp("09:00:00"), stamp("09:00:00"), "attempt")
POSITION = Position(
    "shop",
    "orders",
    "sync",
    watermark=stamp("08:00:00.000001"),
    last_value=stamp("07:59:59.999"),
    batch=BATCH,
    intent=replace(BATCH, number=8),
    epoch=2,
    plan=PLAN,
    status=Status.RUNNING,
    totals=Applied(2**53 + 1, 4, 3, 2, stamp("07:59:59.999")),
    batches=7,
    measures={"cursor": "moved", "where": "name = 'ä'"},
    schema="[]",
    observed="T0",
    error="something",
    run_id="20261115-080000-000-abc",
    updated_at="2026-11-15T08:00:00.000Z",
    revision=9,
)


@pytest.mark.parametrize(
    "position",
    [
        POSITION,
        Position("shop", "orders", "sync"),
        replace(POSITION, watermark=None, last_value=None, totals=Applied()),
        replace(POSITION, plan=None, intent=None),
        replace(POSITION, plan=TablePlan("orders", "sync", None, (), Reason.HELD)),
        POSITION.moved(None),
        POSITION.moved(Watermark(Kind.INTEGER, str(2**63 - 1))),
        POSITION.moved(Watermark(Kind.DATE, "2026-11-15")),
    ],
    ids=["whole", "new", "no watermark", "idle", "no window", "reset", "integer", "date"],
)
def test_a_position_comes_back_as_it_was_stored(position: Position) -> None:
    again = record_position(position_record(position))
    assert again == position
    texts = [(value and value.text) for value in (again.watermark, again.last_value)]
    assert texts == [(value and value.text) for value in (position.watermark, position.last_value)]


def test_a_position_fits_a_store() -> None:
    (stored,) = MemoryState().put([position_record(replace(POSITION, revision=0))])
    assert set(stored.fields) == {*KINDS["position"].text, *KINDS["position"].integers}
    assert record_position(stored) == replace(POSITION, revision=1)


def edited(plan: dict[str, Any] | None = None, **fields: Any) -> Record:
    record = position_record(POSITION)
    if plan is not None:
        fields["plan"] = json.dumps({**json.loads(str(record.fields["plan"])), **plan})
    return replace(record, fields={**record.fields, **fields})


@pytest.mark.parametrize(
    "record",
    [
        edited(watermark="yesterday"),
        edited(watermark="4711"),
        edited(kind=""),
        edited(kind="era"),
        edited(status="DONE"),
        edited(epoch=None),
        edited(batches="many"),
        edited(rows_read=None),
        edited(batch="{}"),
        edited(intent="not json"),
        edited(plan={"slices": 7}),
        edited(plan={"slices": [{}]}),
        edited(plan={"kind": "era"}),
        edited(plan={"held_by": {"who": "x"}}),
        edited(measures="[]x"),
        edited(measures='["cursor"]'),
        edited(measures="7"),
        edited(measures=None),
    ],
)
def test_an_edited_position_is_refused_by_name(record: Record) -> None:
    with pytest.raises(StateError) as caught:
        record_position(record)
    assert caught.value.where == "shop.orders"
    assert "import --from-target" in caught.value.remedy


def test_a_resumed_plan_differs_in_its_reason_only() -> None:
    assert resumed(PLAN) == replace(PLAN, reason=Reason.RESUMED)

"""Batches: an identity that survives the trip through a target, and what counts as the same piece of work."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from strandline.core.batch import Applied, Batch
from strandline.core.watermark import Kind, Watermark


def stamp(text: str) -> Watermark:
    return Watermark(Kind.TIMESTAMP, f"2026-11-15 {text}")


BATCH = Batch("store", 2, 7, stamp("08:00:00"), stamp("09:00:00.123456789"), stamp("09:00:00.123456789"), "attempt")


@pytest.mark.parametrize(
    "batch",
    [
        BATCH,
        replace(BATCH, low=None, watermark=None),
        Batch("store", 1, 1, None, Watermark(Kind.INTEGER, str(2**63 - 1)), Watermark(Kind.INTEGER, "-5"), "a"),
        Batch("store", 1, 1, None, Watermark(Kind.DATE, "2026-11-15"), None, "a"),
    ],
)
def test_a_batch_comes_back_from_json_digit_for_digit(batch: Batch) -> None:
    again = Batch.from_json(batch.to_json())
    assert again == batch
    assert again.high.text == batch.high.text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "7",
        '"x"',
        "{}",
        "{",
        *(
            json.dumps({**json.loads(BATCH.to_json()), **wrong})
            for wrong in (
                {"high": None},
                {"high": "yesterday"},
                {"high": 7},
                {"kind": "era"},
                {"epoch": None},
                {"number": "x"},
            )
        ),
    ],
)
def test_what_we_did_not_write_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match="not a batch"):
        Batch.from_json(text)


def test_another_attempt_is_the_same_batch() -> None:
    assert BATCH.same(replace(BATCH, attempt="another"))
    assert BATCH.same(replace(BATCH, carried=Applied(3)))


@pytest.mark.parametrize(
    "other",
    [
        None,
        replace(BATCH, store="another"),
        replace(BATCH, epoch=3),
        replace(BATCH, number=8),
        replace(BATCH, low=None),
        replace(BATCH, high=stamp("09:00:00.123456788")),
        replace(BATCH, watermark=None),
    ],
)
def test_anything_else_is_another_batch(other: Batch | None) -> None:
    assert not BATCH.same(other)


def test_a_later_epoch_comes_after_every_number_of_an_earlier_one() -> None:
    assert replace(BATCH, epoch=3, number=1).order > replace(BATCH, epoch=2, number=10**9).order


def test_what_batches_did_adds_up_and_keeps_the_highest_value() -> None:
    one = Applied(5, 3, 2, 0, stamp("08:30:00"))
    two = Applied(4, 1, 1, 2, stamp("08:10:00"))
    assert one + two == Applied(9, 4, 3, 2, stamp("08:30:00"))
    assert (one + Applied(), Applied() + Applied()) == (one, Applied())

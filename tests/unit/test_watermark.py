"""Watermarks keep the exact text and the exact order, whatever a person or a database writes."""

from __future__ import annotations

import operator
from datetime import UTC, datetime, timedelta

import pytest

from strandline.core.errors import WindowError
from strandline.core.watermark import Kind, Watermark


def stamp(text: str) -> Watermark:
    return Watermark(Kind.TIMESTAMP, text)


def integer(value: int) -> Watermark:
    return Watermark(Kind.INTEGER, str(value))


@pytest.mark.parametrize(
    ("kind", "texts"),
    [
        (Kind.TIMESTAMP, ["0001-01-01 00:00:00", "2026-11-15 08:12:44", "2026-11-15 08:12:44.000000001"]),
        (Kind.TIMESTAMP, ["2026-11-15 08:12:44.09", "2026-11-15 08:12:44.1", "2026-11-15 08:12:44.123456789"]),
        (Kind.DATE, ["0999-12-31", "2026-02-28", "2026-03-01"]),
        (Kind.INTEGER, [str(-(10**38) + 1), "-2", "-1", "0", str(2**63 - 1), str(2**63), str(10**38 - 1)]),
        (Kind.VERSION, ["0", "9", "10"]),
    ],
)
def test_values_keep_their_text_and_their_order(kind: Kind, texts: list[str]) -> None:
    values = [Watermark(kind, text) for text in texts]
    assert sorted(values, reverse=True) == values[::-1]
    assert [str(value) for value in values] == texts


def test_the_same_instant_with_more_digits_is_equal_but_keeps_its_text() -> None:
    short, long = stamp("2026-11-15 08:12:44.1"), stamp("2026-11-15 08:12:44.100000000")
    assert short == long
    assert hash(short) == hash(long)
    assert str(short) != str(long)


@pytest.mark.parametrize(
    ("typed", "text"),
    [
        ("2026-11-15", "2026-11-15 00:00:00"),
        ("2026-11-15T08:12", "2026-11-15 08:12:00"),
        (" 2026-11-15 08:12:44.123456789 ", "2026-11-15 08:12:44.123456789"),
        ("2026-11-15T08:12:44Z", "2026-11-15 08:12:44"),
        ("2026-11-15T08:12:44.5+09:00", "2026-11-14 23:12:44.5"),
        ("2026-11-15 08:12:44-0330", "2026-11-15 11:42:44"),
        ("2026-12-31 23:30:00 -01", "2027-01-01 00:30:00"),
        ("0999-01-01 00:00:00+01", "0998-12-31 23:00:00"),
    ],
)
def test_a_typed_time_is_taken_in_utc_where_it_has_an_offset(typed: str, text: str) -> None:
    assert Watermark.parse(Kind.TIMESTAMP, typed).text == text


@pytest.mark.parametrize(
    ("typed", "text"),
    [
        ("2026-11-15 08:00:00", "2026-11-15 08:00:00"),
        ("2026-11-15 08:00:00.25Z", "2026-11-15 17:00:00.25"),
        ("2026-11-15 08:00:00+09:00", "2026-11-15 08:00:00"),
    ],
)
def test_a_typed_time_with_an_offset_is_turned_into_the_zone_of_a_column_that_has_none(typed: str, text: str) -> None:
    assert Watermark.parse(Kind.TIMESTAMP, typed, zone="Asia/Tokyo").text == text


@pytest.mark.parametrize(("typed", "text"), [("007", "7"), ("-0", "0"), (" -12 ", "-12"), (str(10**38), str(10**38))])
def test_a_typed_integer_becomes_canonical(typed: str, text: str) -> None:
    assert Watermark.parse(Kind.INTEGER, typed).text == text


@pytest.mark.parametrize(
    ("kind", "typed"),
    [
        (Kind.TIMESTAMP, "yesterday"),
        (Kind.TIMESTAMP, "2026-02-30 00:00:00"),
        (Kind.TIMESTAMP, "2026-02-30 00:00:00+01:00"),
        (Kind.TIMESTAMP, "2026-11-15 24:00:00"),
        (Kind.TIMESTAMP, "2026-11-15 08:00:00+99:00"),
        (Kind.TIMESTAMP, "2026-11-15 08:00:00.1234567890"),
        (Kind.TIMESTAMP, "0001-01-01 00:00:00+01:00"),
        (Kind.TIMESTAMP, "٢٠٢٦-11-15"),
        (Kind.DATE, "2026-11-15 08:00"),
        (Kind.DATE, "2026-11-15Z"),
        (Kind.DATE, "2026-13-01"),
        (Kind.INTEGER, "1.5"),
        (Kind.INTEGER, "1e9"),
        (Kind.INTEGER, "1_000"),
        (Kind.INTEGER, "٣"),
        (Kind.INTEGER, ""),
        (Kind.INTEGER, "9" * 5000),
    ],
)
def test_what_is_no_value_of_its_kind_is_refused(kind: Kind, typed: str) -> None:
    with pytest.raises(WindowError):
        Watermark.parse(kind, typed)


@pytest.mark.parametrize(
    ("text", "digits", "floored"),
    [
        ("2026-11-15 08:12:44.999999999", 6, "2026-11-15 08:12:44.999999"),
        ("2026-11-15 08:12:44.999999", 0, "2026-11-15 08:12:44"),
        ("1969-12-31 23:59:59.9", 0, "1969-12-31 23:59:59"),
        ("2026-11-15 08:12:44.1", 3, "2026-11-15 08:12:44.1"),
        ("2026-11-15 08:12:44", 3, "2026-11-15 08:12:44"),
    ],
)
def test_floor_cuts_digits_and_never_rounds_up(text: str, digits: int, floored: str) -> None:
    assert stamp(text).floor(digits).text == floored


@pytest.mark.parametrize(
    ("value", "amount", "text"),
    [
        (stamp("2026-11-15 00:00:01.000000789"), timedelta(seconds=5), "2026-11-14 23:59:56.000000789"),
        (stamp("1000-01-01 00:00:00"), timedelta(seconds=1), "0999-12-31 23:59:59.000000"),
        (stamp("0001-01-01 00:00:00"), timedelta(minutes=10), "0001-01-01 00:00:00.000000"),
        (Watermark(Kind.DATE, "2026-03-01"), timedelta(days=1), "2026-02-28"),
        (Watermark(Kind.DATE, "2026-03-01"), timedelta(minutes=10), "2026-02-28"),
        (Watermark(Kind.DATE, "2026-03-01"), timedelta(days=1, microseconds=1), "2026-02-27"),
        (integer(2**63), 1, str(2**63 - 1)),
        (integer(-(10**37)), 10, str(-(10**37) - 10)),
    ],
)
def test_minus_is_exact_and_rounds_to_the_safe_side(value: Watermark, amount: timedelta | int, text: str) -> None:
    assert value.minus(amount).text == text


@pytest.mark.parametrize(
    ("value", "amount"),
    [
        (stamp("2026-11-15 00:00:00"), 5),
        (Watermark(Kind.DATE, "2026-11-15"), 5),
        (integer(5), timedelta(seconds=1)),
        (stamp("9999-12-31 23:59:59"), timedelta(seconds=-1)),
    ],
)
def test_minus_refuses_an_amount_that_does_not_fit(value: Watermark, amount: timedelta | int) -> None:
    with pytest.raises(WindowError):
        value.minus(amount)


def test_values_of_different_kinds_are_never_equal_and_cannot_be_ordered() -> None:
    number, version = Watermark(Kind.INTEGER, "5"), Watermark(Kind.VERSION, "5")
    assert number != version
    for compare in (operator.lt, operator.le, operator.gt, operator.ge):
        with pytest.raises(WindowError, match="cannot be compared"):
            compare(number, version)


def test_the_age_of_a_value_is_known_only_for_times() -> None:
    now = datetime(2026, 11, 15, 0, 1, tzinfo=UTC)
    assert stamp("2026-11-15 00:00:59.5").seconds_before(now) == 0.5
    assert Watermark(Kind.DATE, "2026-11-15").seconds_before(now) == 60
    assert integer(5).seconds_before(now) is None

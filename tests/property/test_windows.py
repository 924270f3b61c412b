"""Windows tile: whatever they are cut at, every value lies in exactly one part."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.core.errors import WindowError
from strandline.core.watermark import Kind, Watermark
from strandline.core.window import Window, by_cursor, by_key

_MICROSECONDS = st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31))
_NANOSECONDS = st.integers(0, 999)

integers = st.integers(-(10**38), 10**38).map(lambda n: Watermark(Kind.INTEGER, str(n)))
few = st.integers(-5, 5).map(lambda n: Watermark(Kind.INTEGER, str(n)))
stamps = st.builds(
    lambda at, nanos: Watermark(Kind.TIMESTAMP, f"{at.isoformat(' ', 'microseconds')}{nanos:03d}"),
    _MICROSECONDS,
    _NANOSECONDS,
)
dates = st.dates().map(lambda day: Watermark(Kind.DATE, day.isoformat()))
lines = st.sampled_from([integers, few, stamps, dates])


@st.composite
def windows(draw: st.DrawFn, values: st.SearchStrategy[Watermark]) -> Window:
    low, high = sorted([draw(values), draw(values)])
    return Window(draw(st.sampled_from([low, None])), high)


@given(st.data())
def test_parts_of_a_cut_window_tile_it(data: st.DataObject) -> None:
    values = data.draw(lines)
    window = data.draw(windows(values))
    parts = list(window.cut(data.draw(st.lists(values))))
    assert parts[0].low == window.low
    assert parts[-1].high == window.high
    assert all(left.high == right.low for left, right in pairwise(parts))
    assert window.empty or not any(part.empty for part in parts)


@given(st.data())
def test_every_value_of_a_cut_window_is_in_exactly_one_part(data: st.DataObject) -> None:
    values = data.draw(lines)
    window = data.draw(windows(values))
    cuts = data.draw(st.lists(values))
    value = data.draw(st.sampled_from([*cuts, window.high]) | values)
    slices = by_cursor(window, cuts)
    assert sum(part.window.contains(value) for part in slices) == window.contains(value)
    assert all(part.last for part in slices)


@given(st.data(), st.sets(st.integers()), st.integers())
def test_every_key_is_in_exactly_one_key_slice_and_only_the_last_moves_the_watermark(
    data: st.DataObject, cuts: set[int], key: int
) -> None:
    slices = by_key(data.draw(windows(integers)), "id", cuts)
    holding = [
        keys
        for keys in (part.keys for part in slices)
        if keys is not None and (keys.low is None or keys.low <= key) and (keys.high is None or key < keys.high)
    ]
    assert len(holding) == 1
    assert [part.last for part in slices] == [False] * (len(slices) - 1) + [True]


@given(st.data())
def test_watermarks_round_trip_through_text_and_what_a_person_types(data: st.DataObject) -> None:
    value = data.draw(data.draw(lines))
    assert Watermark(value.kind, value.text) == value
    assert Watermark.parse(value.kind, value.text).text == value.text


@given(_MICROSECONDS, _NANOSECONDS, _MICROSECONDS, _NANOSECONDS)
def test_timestamps_order_as_instants_do_to_the_nanosecond(
    left: datetime, left_nanos: int, right: datetime, right_nanos: int
) -> None:
    texts = [
        f"{at.isoformat(' ', 'microseconds')}{nanos:03d}" for at, nanos in ((left, left_nanos), (right, right_nanos))
    ]
    one, two = (Watermark(Kind.TIMESTAMP, text) for text in texts)
    assert (one < two) == ((left, left_nanos) < (right, right_nanos))
    assert (one == two) == ((left, left_nanos) == (right, right_nanos))


@given(st.integers(), st.integers())
def test_integers_order_as_numbers_do(left: int, right: int) -> None:
    one, two = Watermark(Kind.INTEGER, str(left)), Watermark(Kind.INTEGER, str(right))
    assert (one < two) == (left < right)


@given(stamps, stamps, st.integers(0, 9))
def test_floor_never_goes_up_and_keeps_order(one: Watermark, two: Watermark, digits: int) -> None:
    assert one.floor(digits) <= one
    assert one.floor(digits).floor(digits).text == one.floor(digits).text
    if one <= two:
        assert one.floor(digits) <= two.floor(digits)


def test_the_longest_span_there_is_ends_at_the_beginning_of_the_calendar() -> None:
    assert Watermark(Kind.DATE, "2026-11-15").minus(timedelta.max).text == "0001-01-01"


@given(st.data(), st.timedeltas(timedelta(0)))
def test_minus_never_goes_up_and_keeps_order(data: st.DataObject, span: timedelta) -> None:
    values = data.draw(st.sampled_from([stamps, dates]))
    one, two = sorted([data.draw(values), data.draw(values)])
    assert one.minus(span) <= one
    assert one.minus(span) <= two.minus(span)


@given(integers, st.integers(0, 10**38))
def test_minus_of_an_integer_is_exact(value: Watermark, units: int) -> None:
    assert int(value.minus(units).text) == int(value.text) - units


def test_a_window_cannot_end_before_it_starts_nor_mix_kinds() -> None:
    five, six = Watermark(Kind.INTEGER, "5"), Watermark(Kind.INTEGER, "6")
    with pytest.raises(WindowError, match="before it starts"):
        Window(six, five)
    with pytest.raises(WindowError, match="cannot be compared"):
        Window(Watermark(Kind.VERSION, "5"), six)
    with pytest.raises(WindowError, match="cannot be compared"):
        list(Window(five, six).cut([Watermark(Kind.DATE, "2026-11-15")]))


def test_an_empty_window_holds_nothing_not_even_its_own_bound() -> None:
    five = Watermark(Kind.INTEGER, "5")
    assert Window(five, five).empty
    assert not Window(five, five).contains(five)
    assert not Window(None, five).empty

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from strandline.core.watermark import Kind, Watermark
from strandline.sources.zones import local

BERLIN = "Europe/Berlin"  # clocks went back from 03:00 to 02:00 on 2026-10-25, at 01:00 UTC


def shown(utc: str, zone: str = BERLIN) -> str:
    return local(Watermark(Kind.TIMESTAMP, utc), zone).text


@pytest.mark.parametrize(
    ("utc", "expected"),
    [
        ("2026-07-01 10:00:00.000001", "2026-07-01 12:00:00.000001"),
        ("2026-01-01 10:00:00.500000", "2026-01-01 11:00:00.500000"),
        ("2026-10-24 23:59:59.000000", "2026-10-25 01:59:59.000000"),
        ("2026-10-25 00:30:00.000000", "2026-10-25 02:00:00.000000"),  # shows 02:30, but 02:00 comes once more
        ("2026-10-25 00:59:59.999999", "2026-10-25 02:00:00.000000"),
        ("2026-10-25 01:00:00.000000", "2026-10-25 02:00:00.000000"),
        ("2026-10-25 01:30:00.000000", "2026-10-25 02:30:00.000000"),
        ("2026-03-29 00:59:59.000000", "2026-03-29 01:59:59.000000"),
        ("2026-03-29 01:00:00.000000", "2026-03-29 03:00:00.000000"),
    ],
)
def test_horizon_stops_at_the_smallest_stamp_that_can_still_be_written(utc: str, expected: str) -> None:
    assert shown(utc) == expected


def test_no_later_clock_shows_less_around_the_end_of_summer_time() -> None:
    start = datetime(2026, 10, 24, 20, 0, 17, tzinfo=UTC)
    instants = [start + timedelta(minutes=7 * count) for count in range(80)]
    for at, instant in enumerate(instants):
        bound = shown(f"{instant:%Y-%m-%d %H:%M:%S.%f}")
        later = [f"{one.astimezone(ZoneInfo(BERLIN)):%Y-%m-%d %H:%M:%S.%f}" for one in instants[at:]]
        assert bound <= min(later)

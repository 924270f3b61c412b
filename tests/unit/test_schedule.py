"""Schedules: what can be written, and when each comes next, summer time included."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from strandline.core.errors import ConfigError
from strandline.service.schedule import After, Checking, Cron, Every, Manual, Schedule, parse, parse_checking

NOW = datetime(2026, 11, 16, 8, 0, tzinfo=UTC)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


@pytest.mark.parametrize(
    ("text", "schedule"),
    [
        ("every 5s", Every(timedelta(seconds=5))),
        ("every  1h30m", Every(timedelta(hours=1, minutes=30))),
        ("every 5m jitter 30s", Every(timedelta(minutes=5), timedelta(seconds=30))),
        ("0 2 * * * Europe/Berlin", Cron("0 2 * * *", "Europe/Berlin")),
        ("*/15 * * * *", Cron("*/15 * * * *", "UTC")),
        ("cron 0 2 * * MON-FRI Asia/Tokyo jitter 5m", Cron("0 2 * * MON-FRI", "Asia/Tokyo", timedelta(minutes=5))),
        ("USING CRON */15 * * * * UTC", Cron("*/15 * * * *", "UTC")),
        ("after shop", After("shop")),
        ("manual", Manual()),
    ],
)
def test_a_schedule_is_read(text: str, schedule: Schedule) -> None:
    assert parse(text) == schedule
    assert parse(str(parse(text))) == schedule


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hourly", "is no schedule; write every 5m, a cron line"),
        ("0 2 * *", "is no schedule"),
        ("61 * * * *", "is no cron line: bad minute"),
        ("0 0 31 2 *", "is no cron line: bad day-of-month"),
        ("0 2 * * * Europe/Berlim", '"Europe/Berlim" in .* is no time zone'),
        ("every soon", '"soon" is not a duration'),
        ("every 10ms", "too often"),
        ("every 5m jitter often", '"often" is not a duration'),
        ("after", "after PIPELINE"),
        ("after a b", "after PIPELINE"),
        ("", "is no schedule"),
    ],
)
def test_what_is_no_schedule_is_told_with_what_could_be_written(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse(text)


def test_verification_has_a_schedule_and_may_repair() -> None:
    assert parse_checking("every 1d repair") == Checking(Every(timedelta(days=1)), repair=True)
    assert parse_checking("0 3 * * SUN UTC") == Checking(Cron("0 3 * * SUN"))
    assert str(parse_checking("every 1d repair")) == "every 1d repair"
    with pytest.raises(ConfigError):
        parse_checking("after shop")


def test_every_counts_from_the_start_of_the_last_run_and_jitter_adds_a_part_of_itself() -> None:
    schedule = Every(timedelta(minutes=5), timedelta(seconds=30))
    assert schedule.next(NOW) == at("2026-11-16T08:05:00Z")
    assert schedule.next(NOW, 0.5) == at("2026-11-16T08:05:15Z")
    assert schedule.first(NOW) == NOW
    assert schedule.overdue(NOW) == at("2026-11-16T08:10:30Z")


def berlin(line: str, after: str, times: int = 3) -> list[str]:
    schedule, found, moment = Cron(line, "Europe/Berlin"), [], at(after)
    for _ in range(times):
        moment = schedule.next(moment)
        found.append(f"{moment:%m-%d %H:%M}")
    return found


def test_cron_keeps_the_wall_clock_of_its_zone_across_summer_time() -> None:
    assert berlin("0 8 * * *", "2026-03-28T00:00Z") == ["03-28 07:00", "03-29 06:00", "03-30 06:00"]


def test_what_stands_in_the_hour_that_summer_time_skips_runs_right_after_it() -> None:
    """02:30 does not exist on 29 March: the clock goes from 02:00 to 03:00, which is 01:00 UTC."""
    assert berlin("30 2 * * *", "2026-03-28T12:00Z", 2) == ["03-29 01:00", "03-30 00:30"]


def test_what_stands_in_the_hour_that_comes_twice_runs_once() -> None:
    """02:30 comes twice on 25 October; first as 00:30 UTC."""
    assert berlin("30 2 * * *", "2026-10-24T12:00Z", 2) == ["10-25 00:30", "10-26 01:30"]


def test_every_quarter_of_an_hour_goes_on_through_the_hour_that_comes_twice() -> None:
    assert berlin("*/30 * * * *", "2026-10-24T23:59Z", 5) == [
        "10-25 00:00",
        "10-25 00:30",
        "10-25 01:00",
        "10-25 01:30",
        "10-25 02:00",
    ]


def test_a_cron_run_is_missed_one_slot_later_or_after_an_hour() -> None:
    assert Cron("*/15 * * * *").overdue(NOW) == at("2026-11-16T08:30:00Z")
    assert Cron("0 2 * * *").overdue(NOW) == at("2026-11-17T03:00:00Z")
    assert Cron("0 2 * * *").first(NOW) == at("2026-11-17T02:00:00Z")

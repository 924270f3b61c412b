"""Connections that transactions leave for the next ones."""

from __future__ import annotations

from strandline.sinks.spare import Spare


class Connection:
    def __init__(self) -> None:
        self.open = True

    def close(self) -> None:
        self.open = False


class Clock:
    at = 0.0


def _spare(clock: Clock) -> Spare[Connection]:
    return Spare(Connection, lambda connection: connection.open, lambda: clock.at)


def test_what_was_left_a_moment_ago_is_taken_again() -> None:
    spare = _spare(Clock())
    first = spare.take()
    second = spare.take()
    spare.leave(first)
    spare.leave(second)
    assert (spare.take(), spare.take()) == (second, first)
    assert spare.take() not in (first, second)


def test_what_lay_for_long_or_is_broken_is_closed_with_all_that_are_older() -> None:
    clock = Clock()
    spare = _spare(clock)
    old, broken = spare.take(), spare.take()
    spare.leave(old)
    spare.leave(broken)
    broken.close()
    assert spare.take() not in (old, broken)
    assert not old.open
    late = spare.take()
    spare.leave(late)
    clock.at = 11.0
    assert spare.take() is not late
    assert not late.open


def test_between_runs_none_stays_open() -> None:
    spare = _spare(Clock())
    used, left = spare.take(), spare.take()
    spare.leave(left)
    spare.close()
    assert used.open
    assert not left.open


def test_what_is_left_after_the_end_is_closed() -> None:
    spare = _spare(Clock())
    used = spare.take()
    spare.end()
    spare.leave(used)
    assert not used.open

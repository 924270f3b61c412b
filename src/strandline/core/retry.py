"""Trying again what is worth trying again as it is: connections lost, deadlocks, commits that conflicted."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from strandline.core.errors import TransientError

T = TypeVar("T")
WAITS = (1.0, 2.0, 4.0)  # seconds; after the last one the error stands


def retried(attempt: Callable[[], T], again: Callable[[TransientError, float], None]) -> T:
    """The attempt's result; on transient trouble `again` says so and waits. Any other error is raised at once."""
    for wait in WAITS:
        try:
            return attempt()
        except TransientError as error:
            again(error, wait)
    return attempt()

"""Trying again: only what is transient, with waits that grow, and not for ever."""

from __future__ import annotations

import pytest

from strandline.core.errors import SourceError, StrandlineError, TransientError
from strandline.core.retry import WAITS, retried


def failing(*errors: StrandlineError) -> list[StrandlineError]:
    return list(errors)


def attempt(errors: list[StrandlineError]) -> str:
    if errors:
        raise errors.pop(0)
    return "done"


def test_transient_trouble_is_waited_out() -> None:
    errors, waits = failing(TransientError("lost"), TransientError("lost")), list[float]()
    assert retried(lambda: attempt(errors), lambda _, wait: waits.append(wait)) == "done"
    assert waits == list(WAITS[:2])


def test_the_last_error_stands() -> None:
    errors, waits = failing(*(TransientError(str(number)) for number in range(9))), list[float]()
    with pytest.raises(TransientError, match=str(len(WAITS))):
        retried(lambda: attempt(errors), lambda _, wait: waits.append(wait))
    assert waits == list(WAITS)


def test_anything_else_is_raised_at_once() -> None:
    errors, waits = failing(SourceError("gone")), list[float]()
    with pytest.raises(SourceError):
        retried(lambda: attempt(errors), lambda _, wait: waits.append(wait))
    assert waits == []

"""How a run is asked to end from outside: after the slices at work; or, if that takes too long, without them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Stopping:
    """Handed to a run; any thread may ask."""

    def __init__(self) -> None:
        self._asked = threading.Event()
        self._cancels: list[Callable[[], None]] = []

    def set(self) -> None:
        """No further batch begins."""
        self._asked.set()

    def is_set(self) -> bool:
        return self._asked.is_set()

    def cancel(self) -> None:
        """And those at work are given up. What a target commits all the same is adopted by the next run."""
        self.set()
        for cancel in list(self._cancels):
            cancel()

    @contextmanager
    def cancelling(self, cancel: Callable[[], None]) -> Iterator[None]:
        """While this lasts, `cancel` is how to give up."""
        self._cancels.append(cancel)
        try:
            yield
        finally:
            self._cancels.remove(cancel)

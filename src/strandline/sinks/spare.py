"""Connections that a target's transactions left, for the next ones: to connect takes longer than to move a few rows.

Shared by a target and those that work beside it; threads take and leave as they come.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

_FRESH_SECONDS = 10.0  # one that lay longer may be dead without knowing it


class Closing(Protocol):
    def close(self) -> None: ...


C = TypeVar("C", bound=Closing)


class Spare(Generic[C]):
    def __init__(
        self, connect: Callable[[], C], usable: Callable[[C], bool], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._connect = connect
        self._usable = usable
        self._clock = clock
        self._idle: list[tuple[float, C]] = []
        self._ended = False

    def take(self) -> C:
        """The one that was left last, or a new one."""
        with suppress(IndexError):
            left_at, found = self._idle.pop()
            if self._usable(found) and self._clock() - left_at < _FRESH_SECONDS:
                return found
            self._idle.append((left_at, found))
            self.close()  # the others are older
        return self._connect()

    def leave(self, connection: C) -> None:
        self._idle.append((self._clock(), connection))
        if self._ended:
            self.close()

    def end(self) -> None:
        """Whoever is still at work leaves nothing open."""
        self._ended = True
        self.close()

    def close(self) -> None:
        """Those that nobody uses now."""
        with suppress(IndexError):
            while True:
                self._idle.pop()[1].close()

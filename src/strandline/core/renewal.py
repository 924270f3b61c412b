"""Leases kept alive from a thread of their own while work takes its time."""

from __future__ import annotations

import threading
from collections.abc import Callable

from strandline.core.books import Books
from strandline.core.errors import StrandlineError


class Renewal:
    """Renews whatever leases the books hold, from entering to leaving."""

    def __init__(self, books: Books, lost: Callable[[str], None]) -> None:
        """`lost` is told the table whose lease somebody else has taken over."""
        self._books = books
        self._lost = lost
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="strandline-leases", daemon=True)

    def __enter__(self) -> Renewal:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _renew(self) -> None:
        pause = self._books.lease_time.total_seconds() / 3
        while not self._stop.wait(pause):
            try:
                lost = self._books.renew()
            except StrandlineError:
                continue  # the store is away for now; whoever takes over meanwhile is seen by compare-and-set
            for _, table in lost:
                self._lost(table)

"""The clock of an object store is what it stamps on objects that we write: one for all runners, whatever theirs say.

S3 stamps by its own clock, a directory by its file server's. Asking costs two requests, so the distance from this
machine's steady clock is kept and made narrower by every write; wrong by at most a second, which is how S3 rounds, and
never ahead. Leases last a minute, and nothing but patience hangs on them: what is written is compared, not timed.
"""

from __future__ import annotations

import threading
import time
import uuid
from datetime import UTC, datetime

from strandline.core.errors import TransientError
from strandline.objects import Entry, Objects

_KEY = "clock"
_ROUNDED_SECONDS = 1.0
_TRUSTED_SECONDS = 300.0


def steady() -> float:
    """Seconds that also pass while the machine sleeps, where it can tell."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


class StoreClock:
    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._lock = threading.Lock()
        self._low = self._high = 0.0  # bounds of the store's time less ours
        self._asked: float | None = None

    def now(self) -> datetime:
        if self._asked is None or steady() - self._asked > _TRUSTED_SECONDS:
            self._ask()
        return datetime.fromtimestamp(steady() + self._low, UTC)

    def saw(self, entry: Entry, before: float, after: float) -> None:
        """The store stamped an object between these two moments of ours."""
        stamped = entry.modified.timestamp()
        low, high = stamped - after, stamped + _ROUNDED_SECONDS - before
        with self._lock:
            if self._asked is None or low > self._high or high < self._low:  # the first time, or it was set anew
                self._low, self._high = low, high
            else:
                self._low, self._high = max(self._low, low), min(self._high, high)
            self._asked = after

    def _ask(self) -> None:
        """Somebody else may write the same object in between: its stamp is then later than ours, and as good."""
        before = steady()
        self._objects.replace(_KEY, uuid.uuid4().hex.encode())
        found = self._objects.find(_KEY)
        if found is None:
            raise TransientError(f"{self._objects.address}/{_KEY} was removed while it was read")
        self.saw(found[1], before, steady())

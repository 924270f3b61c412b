"""Delivery of events: in order, in a thread of its own, so that no run waits for it. What cannot be delivered is told
and dropped; a run never fails for it."""

from __future__ import annotations

import json
import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from strandline.alerts.webhook import send
from strandline.config import Config

TIMEOUT = 5.0
"""Seconds for one try."""
WAIT = 5.0
"""Seconds for which the end of a process waits for what is on its way."""
KEPT = 10_000
"""Events on their way; beyond, new ones are dropped."""
_PAUSES = (0.2, 1.0)  # seconds, between tries
_PATH = "/api/v1/lineage"

Deliver = Callable[[bytes], str]
"""Gives why it failed; empty: delivered."""

log = logging.getLogger(__name__)


def _logged(event: str, message: str, **_: Any) -> None:
    log.warning("%s: %s", event, message)


class Outbox:
    """The thread lives only while there is something to deliver. Trouble is told when it begins and when it is over."""

    def __init__(self, deliver: Deliver, tell: Callable[..., None] = _logged) -> None:
        self.tell = tell
        self.sent = self.lost = 0
        self.error = ""  # why the latest was not delivered
        self._deliver = deliver
        self._waiting: deque[bytes] = deque()
        self._busy = False
        self._closed = threading.Event()
        self._changed = threading.Condition()

    def put(self, event: Mapping[str, Any]) -> None:
        body = json.dumps(event, ensure_ascii=False).encode()
        with self._changed:
            if len(self._waiting) >= KEPT:
                self._failed("too many are waiting")
                return
            self._waiting.append(body)
            if not self._busy:
                self._busy = True
                threading.Thread(target=self._work, name="strandline-lineage", daemon=True).start()

    def flush(self, seconds: float = WAIT) -> None:
        """Wait for what is on its way; what is still waiting then is lost, and told."""
        with self._changed:
            if self._changed.wait_for(lambda: not self._busy, seconds):
                return
            self._closed.set()
            left = len(self._waiting) + 1
            self._waiting.clear()
            self.lost += left
        self.tell("lineage_failed", f"{left} lineage events were not delivered in {seconds:g} s", error=self.error)

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._waiting:
                    self._busy = False
                    self._changed.notify_all()
                    return
                body = self._waiting.popleft()
            self._one(body)

    def _one(self, body: bytes) -> None:
        error = self._deliver(body)
        for pause in () if self.error else _PAUSES:  # while it is away each gets one try
            if not error or self._closed.wait(pause):
                break
            error = self._deliver(body)
        if error:
            self._failed(error)
            return
        self.sent += 1
        if self.error:
            self.error = ""
            self.tell("lineage_sent", f"lineage events are delivered again; {self.lost} were lost", lost=self.lost)

    def _failed(self, error: str) -> None:
        self.lost += 1
        if not self.error and not self._closed.is_set():
            self.tell("lineage_failed", f"a lineage event was not delivered: {error}", error=error)
        self.error = error


def outbox(config: Config) -> Outbox:
    """Where the config wants events: an HTTP collector, or a file."""
    spec, redact = config.lineage, config.redactor.redact
    if spec.file:
        path = config.root / Path(spec.file).expanduser()
        return Outbox(lambda body: redact(_appended(path, body)))
    url = spec.url.rstrip("/") + ("" if "/" in spec.url.partition("://")[2].rstrip("/") else _PATH)
    headers = {"Content-Type": "application/json", "User-Agent": "strandline"}
    if spec.token:
        headers["Authorization"] = f"Bearer {spec.token}"
    return Outbox(lambda body: redact(send(url, body, headers, TIMEOUT)))


def _appended(path: Path, body: bytes) -> str:
    try:
        with path.open("ab") as file:
            file.write(body + b"\n")
    except OSError as error:
        return f"{path}: {error.strerror}"
    return ""

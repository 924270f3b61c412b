"""What a service has to tell: events of its runs and of its own life as numbered entries, the latest kept in memory.

Polls that find nothing new are not told, and a table that is held is told when that changes.
"""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from enum import Enum
from typing import Any

from strandline.core.batch import Applied, Batch
from strandline.core.compare import KINDS, Differences
from strandline.core.events import Event, Held, Listener, RunFinished, RunStarted, Skipped
from strandline.core.position import Holder, TablePlan
from strandline.core.records import COUNTS
from strandline.core.window import Slice, Window
from strandline.service.desk import Entry

KEPT = 2000


class Log:
    """`EventLog` of the desk. Any thread may tell; whoever listens is called in the order of telling."""

    def __init__(
        self, now: Callable[[], datetime], redact: Callable[[str], str], hear: Callable[[Entry], None] | None = None
    ) -> None:
        self.redact = redact
        self._now = now
        self._hear = hear
        self._entries: deque[Entry] = deque(maxlen=KEPT)
        self._number = 0
        self._closed = False
        self._changed = threading.Condition()

    def tell(self, event: str, message: str = "", **fields: Any) -> None:
        self.add({"event": event, **fields, **({"message": message} if message else {})})

    def add(self, fields: Mapping[str, Any]) -> None:
        clean = {name: self.redact(value) if isinstance(value, str) else value for name, value in fields.items()}
        with self._changed:
            self._number += 1
            entry = Entry(self._number, self._now(), clean)
            self._entries.append(entry)
            if self._hear:
                self._hear(entry)
            self._changed.notify_all()

    def since(self, number: int) -> Sequence[Entry]:
        with self._changed:
            return [entry for entry in self._entries if entry.number > number]

    def wait(self, number: int, seconds: float) -> Sequence[Entry]:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._number > number, seconds)
            return self.since(number)

    def close(self) -> None:
        """Nobody need wait any longer."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class Telling:
    """Passes the events of a service's runs on, without those of polls that found nothing new."""

    def __init__(self, log: Log, words: Callable[[Event, datetime], str], now: Callable[[], datetime]) -> None:
        self._log = log
        self._words = words
        self._now = now
        self._held: dict[tuple[str, str, str], str] = {}

    def listener(self) -> Listener:
        """For one run."""
        started: list[RunStarted] = []
        told = False

        def hear(event: Event) -> None:
            nonlocal told
            if isinstance(event, RunStarted):
                started.append(event)
                return
            if not self._new(event) or (isinstance(event, RunFinished) and not told):
                return
            told = True
            while started:
                self._tell(started.pop())
            self._tell(event)

        return hear

    def _new(self, event: Event) -> bool:
        if isinstance(event, Held):
            where, holder = (event.pipeline, event.table, event.stage), event.held_by.pid
            before, self._held[where] = self._held.get(where), holder
            return holder != before
        if isinstance(event, Skipped):
            self._held.pop((event.pipeline, event.table, event.stage), None)
            return False
        return True

    def _tell(self, event: Event) -> None:
        words = self._words(event, self._now())
        self._log.add({**event_fields(event), **({"message": words} if words else {})})


def event_fields(event: Event) -> dict[str, Any]:
    """An event as JSON has it: its name, and flat values under settled names."""
    found: dict[str, Any] = {"event": re.sub(r"(?<!^)(?=[A-Z])", "_", type(event).__name__).lower()}
    for part in fields(event):
        found |= _flat(part.name, getattr(event, part.name))
    return found


def _flat(name: str, value: Any) -> Mapping[str, Any]:
    match value:
        case Applied():
            return {count: getattr(value, count) for count in COUNTS}
        case Batch():
            return {"batch": value.number, "epoch": value.epoch}
        case Slice():
            return _window(value.window)
        case TablePlan():
            return {
                "reason": value.reason.value,
                **_window(value.window),
                "estimated_rows": value.estimated_rows,
                "slices": len(value.remaining),
            }
        case Holder():
            return {"held_by": str(value)}
        case Differences():
            return {kind: getattr(value, kind) for kind in KINDS}
        case Enum():
            return {name: value.value}
        case float():
            return {name: round(value, 3)}
    return {name: value}


def _window(window: Window | None) -> dict[str, Any]:
    if window is None:
        return {"low": None, "high": None}
    return {"low": window.low.text if window.low else None, "high": window.high.text}

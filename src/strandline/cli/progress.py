"""What a person sees while a run works: a listener of the event stream that writes one line per event.

On a terminal `bars` draws instead; both only look at events.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from strandline.cli import render, text
from strandline.cli.invocation import Invocation
from strandline.core.events import (
    Adopted,
    Committed,
    Compared,
    Comparing,
    Event,
    Held,
    Intended,
    Listener,
    Maintained,
    Planned,
    Retrying,
    RunFinished,
    RunStarted,
    TableEvent,
    TableFinished,
    Warned,
)

log = logging.getLogger("strandline.run")


@contextmanager
def listening(invocation: Invocation) -> Iterator[Listener]:
    """Bars on a terminal, lines on a pipe; with --debug lines everywhere, and every event in the log."""
    if sys.stderr.isatty() and not invocation.debug:
        from strandline.cli.bars import Bars

        with Bars(redact=invocation.redact) as bars:
            yield bars
    else:
        lines = Lines(invocation.tell)

        def both(event: Event) -> None:
            log.debug("%r", event)
            lines(event)

        yield both


class Lines:
    """One line per event, with its time."""

    def __init__(self, write: Callable[[str], None], clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._write = write
        self._clock = clock
        self._lock = threading.Lock()

    def __call__(self, event: Event) -> None:
        now = self._clock()
        said = describe(event, now)
        if said:
            where = f"{event.pipeline}.{event.table} {event.stage}" if isinstance(event, TableEvent) else event.pipeline
            with self._lock:
                self._write(f"{now:%Y-%m-%dT%H:%M:%SZ} {where}: {said}")


def describe(event: Event, now: datetime) -> str:
    """An event in words; empty for what only matters to machines, or is said in the summary (`Skipped`)."""
    match event:
        case RunStarted():
            return f"run {event.run_id}, {text.many(event.tables, 'table')}"
        case Planned():
            span = f"{text.window(event.plan.window, now)}, " if event.plan.window else ""
            return f"planned {span}{render.estimate(event.plan)} rows, {render.why(event.plan, now)}"
        case Held():
            return f"held by {text.holder(event.held_by)}"
        case Intended():
            return f"slice {event.number} of {event.of}: {text.window(event.slice.window, now)}, {event.batch}"
        case Adopted():
            return f"{event.batch} is in the target already: an earlier attempt got that far"
        case Committed():
            rows = text.many(event.applied.rows_read, "row")
            return f"slice {event.number} of {event.of}: {rows}, {text.changes(event.applied)}"
        case Retrying():
            return f"trying again in {text.duration(event.wait_seconds)}: {event.error}"
        case Comparing():
            return f"verify: {event.step}"
        case Compared():
            return f"verify: {event.status}, {text.many(event.rows, 'row')} in {text.duration(event.seconds)}"
        case Maintained():
            return "target compacted and cleaned up"
        case Warned():
            return f"warning: {event.message}"
        case TableFinished():
            return f"{event.status.value} in {text.duration(event.seconds)}" + (
                f": {event.error}" if event.error else ""
            )
        case RunFinished():
            return f"run {event.run_id} {event.status.value} in {text.duration(event.seconds)}"
    return ""

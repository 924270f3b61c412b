"""Progress bars on a terminal: one per table at work. Loads rich, so it is imported only where bars are drawn."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.text import Text

from strandline.cli import text
from strandline.core.events import (
    Committed,
    Compared,
    Comparing,
    Event,
    Held,
    Intended,
    Planned,
    Retrying,
    TableEvent,
    TableFinished,
    Warned,
)
from strandline.core.position import Status

if TYPE_CHECKING:
    from types import TracebackType

_SHOWN = 12  # with more tables than this, finished ones make room


class _Left(ProgressColumn):
    """Time left, from the slices done so far."""

    def render(self, task: Task) -> Text:
        done, of, elapsed = task.fields["done"], task.fields["of"], task.elapsed or 0.0
        if task.finished or not done or not of:
            return Text(task.fields["note"], style="dim")
        left = max(0.0, task.fields["per_slice"] * of - elapsed)
        return Text(f"{text.duration(left)} left", style="dim")


@dataclass
class _AtWork:
    """What a table's bar is drawn from."""

    task: TaskID
    started: float
    rows: int = 0
    done: int = 0  # slices of this run


class Bars:
    """A listener; safe to call from the threads of several tables."""

    def __init__(self, console: Console | None = None, redact: Callable[[str], str] = str) -> None:
        self._redact = redact
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            TextColumn("{task.fields[stage]}", style="dim", markup=False),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[state]}"),
            TextColumn("{task.fields[rows]}", justify="right"),
            TextColumn("{task.fields[rate]}", justify="right"),
            _Left(),
            console=console or Console(stderr=True),
        )
        self._tables: dict[tuple[str, str, str], _AtWork] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Bars:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def __call__(self, event: Event) -> None:
        if isinstance(event, TableEvent):
            with self._lock:
                self._on(event)

    def _on(self, event: TableEvent) -> None:
        match event:
            case Planned():
                self._begin(event)
            case Held():
                self._say(event, f"held by {text.holder(event.held_by)}")
            case Warned():
                self._say(event, event.message.replace("\n", "\n  "), "warning: ")
            case Retrying():
                self._update(
                    event, state=f"again in {text.duration(event.wait_seconds)}", note=self._redact(event.error)[:60]
                )
            case Intended():
                self._update(event, state=f"slice {event.number}/{event.of}", note="")
            case Committed():
                self._committed(event)
            case TableFinished():
                self._finished(event)
            case Comparing():
                self._comparing(event)
            case Compared():
                self._compared(event)

    def _begin(self, event: Planned) -> None:
        plan = event.plan
        total = len(plan.slices) if len(plan.slices) > 1 else None  # one slice: a bar that only moves
        self._add(event, total, plan.done, len(plan.remaining))

    def _add(self, event: TableEvent, total: int | None, completed: int, of: int) -> None:
        task = self._progress.add_task(
            event.table,
            total=total,
            completed=completed,
            stage=event.stage,
            state="",
            rows="",
            rate="",
            note="",
            done=0,
            of=of,
            per_slice=0.0,
        )
        self._tables[event.pipeline, event.table, event.stage] = _AtWork(task, time.monotonic())

    def _comparing(self, event: Comparing) -> None:
        if self._table(event) is None:
            self._add(event, event.of, 0, event.of)
        table = self._tables[event.pipeline, event.table, event.stage]
        self._progress.update(table.task, completed=event.done, state="verify", note=event.step)

    def _compared(self, event: Compared) -> None:
        table = self._table(event)
        if table is None:
            return
        rows = text.many(event.rows, "row")
        self._progress.update(table.task, total=1, completed=1, state=event.status, rows=rows, note="")
        self._progress.stop_task(table.task)
        del self._tables[event.pipeline, event.table, event.stage]  # a repair begins a bar of its own

    def _committed(self, event: Committed) -> None:
        table = self._table(event)
        if table is None:
            return
        table.rows += event.applied.rows_read
        table.done += 1
        seconds = max(time.monotonic() - table.started, 0.001)
        self._progress.update(
            table.task,
            advance=1,
            rows=text.many(table.rows, "row"),
            rate=text.rate(table.rows / seconds),
            done=table.done,
            per_slice=seconds / table.done,
        )

    def _finished(self, event: TableFinished) -> None:
        table = self._table(event)
        if table is None:
            return
        done = event.status is Status.COMPLETED
        state, note = (
            ("done", text.changes(event.applied)) if done else ("[red]FAILED[/red]", self._redact(event.error)[:60])
        )
        self._progress.update(table.task, total=1, completed=1 if done else 0, state=state, note=note, done=0)
        self._progress.stop_task(table.task)
        if len(self._tables) > _SHOWN:
            self._progress.update(table.task, visible=False)

    def _update(self, event: TableEvent, *, state: str, note: str) -> None:
        table = self._table(event)
        if table is not None:
            self._progress.update(table.task, state=state, note=note)

    def _table(self, event: TableEvent) -> _AtWork | None:
        return self._tables.get((event.pipeline, event.table, event.stage))

    def _say(self, event: TableEvent, message: str, lead: str = "") -> None:
        self._progress.console.print(Text(f"{lead}{event.pipeline}.{event.table}: {self._redact(message)}"))

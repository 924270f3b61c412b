"""A service whose clock, chance and threads are in the test's hands, over sources and targets in memory."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from strandline.core.events import Event
from strandline.core.table import Column
from strandline.core.watermark import Cursor, Kind
from strandline.project import Project, load
from strandline.service.service import Service
from strandline.state.memory import MemoryState
from strandline.testing.database import Clock
from strandline.testing.memory import MemorySink, MemorySource

CONFIG = """\
state: sqlite:///{folder}/state.db
{top}pipelines:
"""
PIPELINE = """\
  {name}:
    source: postgresql://reader@db/{name}
    target: delta:{folder}/{name}
    tables: [{name}_orders]
    {lines}
"""


class Clockwork:
    """Pipelines by name with the lines that the config has for each. Everything outlives a service but the service."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.config = folder / "strandline.yml"
        self.clock = Clock()
        self.source, self.sink = MemorySource(self.clock), MemorySink()
        self.waiting: list[Callable[[], None]] | None = None  # None: jobs are done as they are begun
        self.opened = 0
        self.services: list[Service] = []
        monkeypatch.setattr("strandline.pipeline.open_source", self._open)
        self._patch = monkeypatch
        monkeypatch.setattr("strandline.pipeline.open_sink", lambda *_, **__: self.sink)

    def _open(self, *_: Any, **__: Any) -> MemorySource:
        self.opened += 1
        return self.source

    def keep_state_in_memory(self) -> MemoryState:
        state = MemoryState(self.clock.now)
        self._patch.setattr("strandline.project.open_state", lambda *_: state)
        return state

    def write_config(self, top: str = "", **pipelines: str) -> None:
        text = CONFIG.format(folder=self.folder, top=top)
        for name, lines in pipelines.items():
            text += PIPELINE.format(name=name, folder=self.folder, lines=lines)
            if f"{name}_orders" not in self.source._tables:
                columns = (Column("id", "bigint"), Column("value", "string"), Column("moved", "timestamp"))
                self.source.create(f"{name}_orders", columns, Cursor("moved", Kind.TIMESTAMP), ["id"])
        self.config.write_text(text)

    def service(self, **options: Any) -> Service:
        project: Project = load(self.config)
        spawn = (lambda work: work()) if self.waiting is None else self.waiting.append
        service = Service(project, words=words, now=self.clock.now, chance=lambda: 0.0, spawn=spawn, **options)
        self.services.append(service)
        return service

    def started(self, **options: Any) -> Service:
        service = self.service(**options)
        service.start()
        return service

    def write(self, name: str, *ids: int) -> None:
        for number in ids:
            self.clock.advance(0.001)
            self.source.write(f"{name}_orders", {"id": number, "value": "new"})
        self.clock.advance(0.001)

    def pass_time(self, service: Service, seconds: float) -> None:
        """Tick whenever the service says that there is something to do."""
        end = self.clock.now() + timedelta(seconds=seconds)
        while (wait := service.tick()) <= (end - self.clock.now()).total_seconds():
            self.clock.advance(max(wait, 0.001))
        self.clock.at = end

    def pass_hours(self, service: Service, hours: int) -> None:
        for _ in range(hours):
            self.clock.advance(3600)
            service.tick()

    def moved(self, name: str) -> int:
        return len(self.sink.rows(f"{name}_orders"))


def words(event: Event, _: datetime) -> str:
    return type(event).__name__


def told(service: Service, event: str) -> list[dict[str, Any]]:
    return [dict(entry.fields) for entry in service.log.since(0) if entry.fields["event"] == event]

"""The real service with a gate: jobs wait before it, or go on past an event only when it is opened."""

from __future__ import annotations

import threading
from collections.abc import Callable

from strandline.cli.progress import describe
from strandline.core.events import Event, Listener
from strandline.project import Project
from strandline.service.log import Telling
from strandline.service.service import Service


class Gate(threading.Event):
    def __init__(self, opened: Callable[[], None]) -> None:
        super().__init__()
        super().set()
        self._opened = opened

    def set(self) -> None:
        super().set()
        self._opened()


class GatedDesk(Service):
    """Nothing runs by its schedule: nobody calls `tick`. While the gate is closed jobs stay queued; or, with an
    `event`, wait after it was told."""

    def __init__(self, project: Project) -> None:
        self.gate = Gate(lambda: None)
        self.event: type[Event] | None = None
        self._threads: list[threading.Thread] = []
        super().__init__(project, words=describe, spawn=self._begun)
        self.gate = Gate(self._dispatch)
        self._telling = _Gated(self)
        self._follow(project.config)

    def _begun(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        self._threads.append(thread)  # a job may begin another while `settle` takes what is here

    def _dispatch(self) -> None:
        if self.gate.is_set() or self.event:
            super()._dispatch()

    def listener(self) -> Listener:
        return self._telling.listener()

    def refuse_config(self, error: str) -> None:
        """As after a bad edit."""
        self._watch.error = error

    def settle(self) -> None:
        """Wait for every job that was asked for."""
        while self._threads:
            thread = self._threads.pop()
            thread.join(300)
            assert not thread.is_alive()


class _Gated(Telling):
    def __init__(self, desk: GatedDesk) -> None:
        super().__init__(desk.log, describe, desk._now)
        self._desk = desk

    def listener(self) -> Listener:
        told = super().listener()

        def hear(event: Event) -> None:
            told(event)
            if self._desk.event and isinstance(event, self._desk.event):
                self._desk.gate.wait(300)

        return hear

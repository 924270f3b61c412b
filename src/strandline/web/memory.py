"""What a service remembers between two looks of lag over time: every half minute for a day.

Each pipeline's worst of every five minutes is in the state, so that another service, or this one after a restart, goes
on from there; what it does not know, the history of runs can tell.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from strandline.core.books import Key
from strandline.core.errors import ConflictError, StrandlineError
from strandline.core.position import Position
from strandline.core.protocols import Record, State
from strandline.core.watermark import Watermark
from strandline.operations.status import PipelineStatus, lag
from strandline.project import Project

EVERY = timedelta(seconds=30)
KEPT_EVERY = timedelta(minutes=5)
"""How often samples go into the state."""
_DAY = timedelta(days=1)
_SAMPLES = _DAY // EVERY
_SEED_PARTS = 500

Point = tuple[datetime, float]


def worst_lag(tables: Iterable[Any]) -> float | None:
    """Of the tables whose cursor is a time; None if there is none."""
    return max((table.lag_seconds for table in tables if table.lag_seconds is not None), default=None)


class Lags:
    """How far behind each pipeline's slowest table was."""

    def __init__(self) -> None:
        self._samples: dict[str, deque[Point]] = {}
        self._taken_at: datetime | None = None
        self._kept_at: datetime | None = None
        self._lock = threading.Lock()

    def due(self, now: datetime) -> bool:
        return self._taken_at is None or now - self._taken_at >= EVERY

    def take(self, project: Project, found: Iterable[PipelineStatus], now: datetime) -> None:
        with self._lock:
            if not self.due(now):
                return
            if self._taken_at is None:
                self._seed(project, found, now)
            self._taken_at = now
            for part in found:
                worst = worst_lag(part.tables)
                if worst is not None:
                    self._samples.setdefault(part.pipeline, deque(maxlen=_SAMPLES)).append((now, worst))
            if self._kept_at is None or now - self._kept_at >= KEPT_EVERY:
                self._kept_at = now
                self._keep(project.books.state, now)

    def of(self, pipeline: str) -> list[Point]:
        with self._lock:
            return list(self._samples.get(pipeline, ()))

    def _keep(self, state: State, now: datetime) -> None:
        known = {record.key[0]: record for record in state.read("lag")}
        records = [
            replace(known.get(name) or Record("lag", (name,), {}), fields={"points": _written(points, now)})
            for name, points in self._samples.items()
        ]
        try:
            state.put(records)
        except ConflictError:
            return  # another service has just done so

    def _seed(self, project: Project, found: Iterable[PipelineStatus], now: datetime) -> None:
        positions = project.books.positions(unreadable={})
        kept = {record.key[0]: _read(str(record.fields["points"]), now) for record in project.books.state.read("lag")}
        for part in found:
            if worst_lag(part.tables) is None:
                continue
            parts = project.books.state.read("table_run", where={"pipeline": part.pipeline}, newest=_SEED_PARTS)
            runs: dict[str, list[Point]] = {}
            for record in parts:
                runs.setdefault(record.key[0], []).extend(lag_points(record, positions)[1:])
            points = sorted(
                (max(at for at, _ in ends), max(late for _, late in ends)) for ends in runs.values() if ends
            )
            known = kept.get(part.pipeline, [])
            newer = [point for point in points if not known or point[0] > known[-1][0]]
            self._samples[part.pipeline] = deque([*known, *newer], maxlen=_SAMPLES)


def _written(points: Iterable[Point], now: datetime) -> str:
    """The worst of every five minutes of the last day."""
    worst: dict[int, int] = {}
    for at, late in points:
        if now - at < _DAY:
            slot = int(at.timestamp() // KEPT_EVERY.total_seconds())
            worst[slot] = max(worst.get(slot, 0), round(late))
    return json.dumps(sorted(worst.items()))


def _read(text: str, now: datetime) -> list[Point]:
    points = ((datetime.fromtimestamp(slot * KEPT_EVERY.total_seconds(), UTC), late) for slot, late in json.loads(text))
    return [(at, float(late)) for at, late in points if now - at < _DAY]


def lag_points(record: Record, positions: Mapping[Key, Position]) -> list[Point]:
    """A table's lag as its part in a run ended: just before the watermark moved, and after. Empty where the history
    cannot tell: the cursor is no time, or the part did not complete."""
    fields = record.fields
    position = positions.get((str(fields["pipeline"]), record.key[1], record.key[2]))
    mark = position.watermark if position else None
    if position is None or mark is None or position.measures.get("table") or fields["status"] != "COMPLETED":
        return []
    ended = datetime.fromisoformat(str(fields["ended_at"]))
    found = []
    for text in (fields["low"], fields["high"]):
        try:
            late = lag(replace(position, watermark=Watermark(mark.kind, str(text))), ended) if text else None
        except StrandlineError:  # another kind of cursor, before the config was changed
            return []
        if late is not None:
            found.append((ended, max(late, 0.0)))
    return found if len(found) == 2 else [(ended, found[0][1])] * 2 if found else []

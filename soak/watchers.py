"""What runs beside Strandline: the pollers people write by hand, and a stopwatch on the barrier."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from soak.bench import Bench
from soak.writers import STAMPED, TABLES
from strandline.core.errors import StrandlineError
from strandline.core.position import Horizon
from strandline.core.table import Mode, Table
from strandline.core.watermark import Cursor, Kind, Watermark
from strandline.core.window import Window
from strandline.endpoint import Endpoint
from strandline.sources import open_source
from strandline.sources.database import DatabaseSource
from strandline.sources.dialect import in_window

POLL_SECONDS = 0.3


class Naive(threading.Thread):
    """`WHERE updated_at > watermark`, and the same that stays `behind` (SQL) the clock."""

    def __init__(self, bench: Bench, name: str, behind: str = "") -> None:
        super().__init__(name=name, daemon=True)
        self.bench = bench
        self.behind = behind
        self.tables = STAMPED if behind else TABLES
        self.seen: dict[str, dict[int, int]] = {table: {} for table in self.tables}
        self.watermarks: dict[str, Any] = dict.fromkeys(self.tables)
        self.polls = 0
        self.ended = threading.Event()

    def run(self) -> None:
        while not self.ended.wait(POLL_SECONDS):
            self.poll()

    def finish(self) -> None:
        """A last look, when everything has long been committed."""
        self.ended.set()
        self.join()
        self.poll()

    def poll(self) -> None:
        for table in self.tables:
            cursor = "at" if table in STAMPED else "id"
            bound = self.bench.rows(f"SELECT {self.behind}")[0][0] if self.behind else None
            where = [f"{cursor} > '{self.watermarks[table]}'"] if self.watermarks[table] is not None else []
            where += [f"{cursor} <= '{bound}'"] if bound is not None else []
            found = self.bench.rows(f"SELECT id, version, {cursor} FROM {table} WHERE {' AND '.join(where) or '1 = 1'}")
            for number, version, _ in found:
                self.seen[table][int(number)] = max(int(version), self.seen[table].get(int(number), 0))
            highest = max((value for *_, value in found), default=self.watermarks[table])
            self.watermarks[table] = bound if bound is not None else highest
        self.polls += 1

    def lost(self) -> int:
        return sum(missing(self.bench.versions(table), self.seen[table]) for table in self.tables)


def missing(source: dict[int, int], target: dict[int, int]) -> int:
    """Final versions of rows that never arrived."""
    return sum(target.get(number) != version for number, version in source.items())


class Stopwatch(threading.Thread):
    """How long the barrier takes, again and again; and every window it proves, read at once and kept in memory."""

    def __init__(self, bench: Bench, guard: timedelta, rounds: int | None = None) -> None:
        super().__init__(daemon=True)
        self.rounds = rounds
        self.waits: list[float] = []
        self.held = 0
        self.ended = threading.Event()
        source = open_source(Endpoint.parse(bench.url), guard=guard)
        assert isinstance(source, DatabaseSource)
        self.bench = bench
        self.source = source
        self.tables = [_resolved(source, name) for name in TABLES]
        self.watermarks: dict[str, Watermark | None] = dict.fromkeys(TABLES)
        self.seen: dict[str, dict[int, int]] = {name: {} for name in TABLES}
        self.windows = self.twice = 0

    def run(self) -> None:
        while not self.ended.wait(POLL_SECONDS) and (self.rounds is None or len(self.waits) < self.rounds):
            self.poll()

    def poll(self) -> None:
        started = time.perf_counter()
        horizons = self.source.horizons(self.tables)
        self.waits.append(time.perf_counter() - started)
        self.held += any(isinstance(found, Horizon) and found.held_by is not None for found in horizons.values())
        for table in self.tables:
            found = horizons[table.name]
            if isinstance(found, StrandlineError):
                raise found
            if found.high is not None:
                self._read(table, Window(self.watermarks[table.name], found.high))

    def _read(self, table: Table, window: Window) -> None:
        where = in_window(self.source.dialect, table, window)
        for number, version in self.bench.rows(
            f"SELECT id, version FROM {self.source.dialect.relation(table)} WHERE {where}"
        ):
            self.twice += self.seen[table.name].get(int(number)) == int(version)
            self.seen[table.name][int(number)] = int(version)
        self.watermarks[table.name] = window.high
        self.windows += 1

    def finish(self) -> dict[str, float]:
        self.ended.set()
        self.join()
        return {**spread(self.waits[1:]), "held": self.held}

    def figures(self) -> dict[str, int]:
        """After a last look, when everything has long been committed."""
        self.poll()
        self.source.close()
        lost = sum(missing(self.bench.versions(name), self.seen[name]) for name in TABLES)
        return {"windows": self.windows, "lost": lost, "twice": self.twice, "kills": 0, "failed": 0}


def _resolved(source: DatabaseSource, name: str) -> Table:
    info = source.tables([name], {})[name]
    if isinstance(info, StrandlineError):
        raise info
    cursor = Cursor("at" if name in STAMPED else "id", Kind.TIMESTAMP)  # typed by the source
    return source.resolve(Table("soak", name, name, name, "sync", Mode.MERGE, cursor), info, None)


def spread(seconds: Sequence[float]) -> dict[str, float]:
    """In milliseconds."""
    if len(seconds) < 2:
        return {"number": len(seconds)}
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    found = {"p50": cuts[49], "p90": cuts[89], "p99": cuts[98], "max": max(seconds)}
    return {"number": len(seconds), **{name: round(value * 1000, 1) for name, value in found.items()}}

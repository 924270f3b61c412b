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
from strandline.endpoint import Endpoint
from strandline.sources import open_source
from strandline.sources.database import DatabaseSource

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
    """How long the barrier takes, again and again, on a connection of its own."""

    def __init__(self, bench: Bench, guard: timedelta, rounds: int | None = None) -> None:
        super().__init__(daemon=True)
        self.rounds = rounds
        self.waits: list[float] = []
        self.held = 0
        self.ended = threading.Event()
        source = open_source(Endpoint.parse(bench.url), guard=guard)
        assert isinstance(source, DatabaseSource)
        self.source = source

    def run(self) -> None:
        while not self.ended.wait(POLL_SECONDS) and (self.rounds is None or len(self.waits) < self.rounds):
            started = time.perf_counter()
            self.source.clock()
            self.held += self.source.drain() is not None
            self.waits.append(time.perf_counter() - started)
        self.source.close()

    def finish(self) -> dict[str, float]:
        self.ended.set()
        self.join()
        return {**spread(self.waits[1:]), "held": self.held}


def spread(seconds: Sequence[float]) -> dict[str, float]:
    """In milliseconds."""
    if len(seconds) < 2:
        return {"number": len(seconds)}
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    found = {"p50": cuts[49], "p90": cuts[89], "p99": cuts[98], "max": max(seconds)}
    return {"number": len(seconds), **{name: round(value * 1000, 1) for name, value in found.items()}}

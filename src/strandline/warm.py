"""Pipelines kept open between polls: connections stay, and what the source said of its tables is remembered a while.

A plan with work is made for the tables as they are now: what was remembered is asked again first, and if it has
changed, the plan is made anew. A poll that finds nothing new trusts it, and asks only whether this is still the same
server.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager

from strandline.config import PipelineSpec
from strandline.core.protocols import Spark
from strandline.core.table import Table
from strandline.pipeline import Pipeline, Resolved

REMEMBERED = 60.0
"""Seconds for which a source's word on its tables is good: a new table that a glob matches is found within them."""


class Warm:
    """By pipeline and stage. A pipeline is used by one run at a time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept: dict[tuple[str, str], WarmPipeline] = {}
        self._lock = threading.Lock()

    @contextmanager
    def opened(self, spec: PipelineSpec, stage: str, spark: Spark) -> Iterator[Pipeline]:
        """What raises leaves nothing open."""
        key = (spec.name, stage)
        with self._lock:
            kept = self._kept.pop(key, None)
        if kept is not None and kept.spec != spec:
            kept.close()
            kept = None
        pipeline = kept or WarmPipeline(spec, stage, spark, clock=self._clock)
        try:
            yield pipeline
        except BaseException:
            pipeline.close()
            raise
        pipeline.rest()
        with self._lock:
            self._kept[key] = pipeline

    def close(self, name: str = "") -> None:
        """One pipeline, or all."""
        with self._lock:
            chosen = [self._kept.pop(key) for key in list(self._kept) if name in ("", key[0])]
        for pipeline in chosen:
            pipeline.close()


class WarmPipeline(Pipeline):
    def __init__(self, spec: PipelineSpec, stage: str, spark: Spark, *, clock: Callable[[], float]) -> None:
        super().__init__(spec, stage, spark)
        self._clock = clock
        self._found: dict[tuple[str, ...], list[Resolved]] = {}
        self._measured: dict[str, tuple[Table, Mapping[str, str]]] = {}
        self._until = 0.0
        self._answered: tuple[str, ...] | None = None  # from memory, for these tables

    def tables(self, only: Collection[str] = ()) -> list[Resolved]:
        asked = tuple(sorted(only))
        if asked in self._found and self._clock() < self._until and self._same_server():
            self._answered = asked
            return self._found[asked]
        return self._asked(asked)

    def renewed(self) -> bool:
        if self._answered is None:
            return False
        before = self._found[self._answered]
        return self._asked(self._answered) != before

    def measures(self, table: Table) -> Mapping[str, str]:
        known = self._measured.get(table.name)
        if known is None or known[0] != table:
            self._measured[table.name] = known = (table, super().measures(table))
        return known[1]

    def _asked(self, only: tuple[str, ...]) -> list[Resolved]:
        from strandline.sources.database import DatabaseSource

        self._answered = None
        self._found.clear()
        self._measured.clear()
        self.__dict__.pop("_source_identity", None)
        found = super().tables(only)
        if isinstance(self.source, DatabaseSource) and not any(part.error for part in found):
            self._found[only] = found
            self._until = self._clock() + REMEMBERED
        return found

    def _same_server(self) -> bool:
        """Behind one address there may be another server than a moment ago, and the connection may not tell."""
        return self.source.identity() == self._source_identity

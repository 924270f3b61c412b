"""The state in a Delta table, whoever reads and writes it: the compare-and-set, and what is kept in memory.

A put is one append that succeeds only if nobody wrote since the rows we know. Whoever loses reads what was added,
compares the revisions again and tries once more; of any number of writers one always wins. Threads that come while a
commit is under way share the next. Positions, leases and pipelines are held in memory, and a read looks only at what
was added since; history is asked for. Knows neither delta-rs nor Spark.
"""

from __future__ import annotations

import copy
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Protocol

from strandline.core.errors import CommitUnknownError, ConflictError, StrandlineError, TransientError
from strandline.core.protocols import Record, Value
from strandline.state import schema
from strandline.state.delta_rows import HISTORY, Row, fitting, part_of, raised, record_of, row_of

_PATIENCE_SECONDS, _PATIENCE_ATTEMPTS = 60.0, 10  # both, so that a machine under load has its chances too
_REMEMBERED = 10_000  # revisions of history, before they are asked for anew

Id = tuple[str, tuple[str, ...]]


class Log(Protocol):
    """A Delta table of records. One thread at a time."""

    address: str

    def now(self) -> datetime: ...

    def identity(self) -> str: ...

    def load(self) -> list[Row]:
        """The latest row of every record that is not history."""

    def added(self) -> list[Row]:
        """Rows of every kind that others added since `load`, `added` or `append` were last called, oldest first."""

    def append(self, rows: Sequence[Row]) -> bool:
        """Add these in one commit, right after the rows we know; False: somebody else was before us, and nothing was
        written."""

    def history(
        self, kind: str, prefix: Sequence[str], where: Mapping[str, Value], since: str | None, newest: int | None
    ) -> list[Row]:
        """Current rows of one kind of history, as `State.read` has them."""

    def stored(self, records: Sequence[Record]) -> list[Row]:
        """The latest rows of these records of history, as of the rows we know or later."""

    def drop(self, kind: str, before: str) -> int:
        """Remove the rows of a kind of history before a key; how many records there were."""

    def tidy(self) -> bool:
        """If it is time: rewrite what many commits have left in small pieces, and say so. Never raises."""

    def close(self) -> None: ...


@dataclass(eq=False)
class _Write:
    """What one caller wants written. Whoever holds the lock writes for all who wait."""

    records: Sequence[Record]
    rows: Callable[[], list[Row]]  # on top of what is stored; ConflictError: it is not what they were made from
    settled: bool = False
    error: StrandlineError | None = None


class DeltaState:
    atomic = True

    def __init__(self, log: Log) -> None:
        self._log = log
        self._lock = threading.RLock()
        self._waiting: deque[_Write] = deque()
        self._records: dict[str, dict[tuple[str, ...], Record]] = {}
        self._revisions: dict[Id, int] = {}  # of history that was seen since the start
        self._take(log.load())

    def now(self) -> datetime:
        return self._log.now()

    def identity(self) -> str:
        return self._log.identity()

    def read(
        self,
        kind: str,
        prefix: Sequence[str] = (),
        *,
        where: Mapping[str, Value] | None = None,
        since: str | None = None,
        newest: int | None = None,
    ) -> list[Record]:
        spec = schema.check_read(kind, prefix, tuple(where or ()), since)
        with self._lock:
            self._refresh()
            if spec.history:
                return [record_of(row) for row in self._log.history(kind, prefix, where or {}, since, newest)]
            width = len(prefix)
            found = [
                record
                for key, record in sorted(self._records.get(kind, {}).items())
                if key[:width] == tuple(prefix)
                and (since is None or key[width] >= since)
                and all(record.fields[name] == value for name, value in (where or {}).items())
            ]
        return found if newest is None else found[::-1][:newest]

    def put(self, records: Sequence[Record]) -> list[Record]:
        given = fitting(records)
        written = [raised(record) for record in given]

        def rows() -> list[Row]:
            self._compare(given)
            return [row_of(record) for record in written]

        self._write(given, rows)
        return written

    def append(self, records: Sequence[Record]) -> None:
        given = fitting(records)

        def rows() -> list[Row]:
            return [row_of(replace(record, revision=1)) for record in given if not self._stored(record)]

        self._write(given, rows)

    def delete(self, records: Sequence[Record]) -> None:
        given = fitting(records)

        def rows() -> list[Row]:
            self._compare(given)
            return [row_of(raised(record), deleted=True) for record in given]

        self._write(given, rows)

    def prune(self, kind: str, before: str) -> int:
        schema.check_prune(kind)
        with self._lock:
            dropped = self._log.drop(kind, before)
            self._refresh()
        return dropped

    def close(self) -> None:
        with self._lock:
            self._log.close()

    def _write(self, records: Sequence[Record], rows: Callable[[], list[Row]]) -> None:
        if not records:
            return
        own = _Write(records, rows)
        self._waiting.append(own)
        with self._lock:
            if not own.settled:
                self._settle([self._waiting.popleft() for _ in range(len(self._waiting))])
        if own.error is not None:
            raise own.error

    def _settle(self, writes: Sequence[_Write]) -> None:
        """Carry these out in as few commits as there can be: two of one record need two."""
        while writes:
            now, writes = _apart(writes)
            try:
                self._commit(now)
            except StrandlineError as error:
                _fail(now, error)
            except BaseException:  # who interrupted this thread did not ask for the others
                _fail([*now, *writes], CommitUnknownError(f"the state {self._log.address}: a write was interrupted"))
                raise
            for write in now:
                write.settled = True

    def _commit(self, writes: Sequence[_Write]) -> None:
        """Add the rows that belong on top of what is stored. What we know may be old: a conflict with it counts only
        after another look. Of those whom others forestall, who has waited longest pauses least."""
        started, attempts, fresh = time.monotonic(), 0, False
        while True:
            self._look_up([record for write in writes for record in write.records])
            added, refused = _joined(writes)
            if refused and not fresh:
                self._refresh()
                fresh = True
                continue
            for write, error in refused.items():
                write.error = error
            writes = [write for write in writes if write not in refused]
            began, attempts = time.monotonic(), attempts + 1
            if not added or self._log.append(added):
                self._take(added)
                break
            took, waited = time.monotonic() - began, time.monotonic() - started
            if waited > _PATIENCE_SECONDS and attempts >= _PATIENCE_ATTEMPTS:
                raise TransientError(
                    f"the state {self._log.address}: others were quicker {attempts} times in {waited:.0f} s",
                    remedy="Run fewer jobs on one state at once, or keep it in a database: state: postgresql://…",
                )
            time.sleep(random.uniform(0, took * max(0.0, 1 - waited / _PATIENCE_SECONDS)))
            self._refresh()
            fresh = True
        if self._log.tidy():
            self._refresh()

    def _compare(self, given: Sequence[Record]) -> None:
        for record in given:
            stored = self._stored(record)
            if stored != record.revision:
                raise schema.conflict(record, stored)

    def _stored(self, record: Record) -> int:
        if part_of(record.kind) == HISTORY:
            return self._revisions[record.kind, record.key]
        found = self._records.get(record.kind, {}).get(record.key)
        return found.revision if found else 0

    def _look_up(self, given: Sequence[Record]) -> None:
        """History is not held: its revisions are asked for once. Whatever is added later, we see."""
        if len(self._revisions) > _REMEMBERED:
            self._revisions.clear()
        unknown = [
            record
            for record in given
            if part_of(record.kind) == HISTORY and (record.kind, record.key) not in self._revisions
        ]
        if unknown:
            stored = self._log.stored(unknown)
            self._revisions |= {(record.kind, record.key): 0 for record in unknown}
            self._take(stored)

    def _refresh(self) -> None:
        self._take(self._log.added())

    def _take(self, rows: Iterable[Mapping[str, object]]) -> None:
        for row in rows:
            record = record_of(row)
            gone = row["deleted"] is True
            if row["part"] == HISTORY:
                self._revisions[record.kind, record.key] = 0 if gone else record.revision
            elif gone:
                self._records.get(record.kind, {}).pop(record.key, None)
            else:
                self._records.setdefault(record.kind, {})[record.key] = record


def _apart(writes: Sequence[_Write]) -> tuple[list[_Write], list[_Write]]:
    """Those that go into one commit, and those that must come after it: they have a record in common."""
    first: list[_Write] = []
    later: list[_Write] = []
    taken: set[Id] = set()
    for write in writes:
        ids = {(record.kind, record.key) for record in write.records}
        (first if ids.isdisjoint(taken) else later).append(write)
        taken |= ids
    return first, later


def _joined(writes: Sequence[_Write]) -> tuple[list[Row], dict[_Write, ConflictError]]:
    """The rows of all, and who is refused."""
    rows: list[Row] = []
    refused: dict[_Write, ConflictError] = {}
    for write in writes:
        try:
            rows += write.rows()
        except ConflictError as error:
            refused[write] = error
    return rows, refused


def _fail(writes: Sequence[_Write], error: StrandlineError) -> None:
    """Each gets an error of its own: callers write pipeline and table into it."""
    for write in writes:
        if write.error is None:
            write.error, error = error, copy.copy(error)
        write.settled = True

"""The state in memory, for tests: the semantics of the others, nothing that outlives the object."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from strandline.core.protocols import Record, Value
from strandline.state import schema


class MemoryState:
    atomic = True

    def __init__(self, clock: Callable[[], datetime] | None = None) -> None:
        self._clock = clock or (lambda: datetime.now(UTC))
        self._lock = threading.RLock()
        self._store = str(uuid.uuid4())
        self._records: dict[str, dict[tuple[str, ...], Record]] = {}

    def now(self) -> datetime:
        return self._clock()

    def identity(self) -> str:
        return self._store

    def read(
        self,
        kind: str,
        prefix: Sequence[str] = (),
        *,
        where: Mapping[str, Value] | None = None,
        since: str | None = None,
        newest: int | None = None,
    ) -> list[Record]:
        schema.check_read(kind, prefix, tuple(where or ()), since)
        next_part = len(prefix)
        with self._lock:
            found = [
                record
                for key, record in sorted(self._kind(kind).items())
                if key[:next_part] == tuple(prefix)
                and (since is None or key[next_part] >= since)
                and all(record.fields[name] == value for name, value in (where or {}).items())
            ]
        return found if newest is None else found[::-1][:newest]

    def put(self, records: Sequence[Record]) -> list[Record]:
        given = schema.checked_all(records)
        with self._lock:
            self._compare(given)
            written = [replace(record, revision=record.revision + 1) for record in given]
            for record in written:
                self._kind(record.kind)[record.key] = record
        return written

    def append(self, records: Sequence[Record]) -> None:
        given = schema.checked_all(records)
        with self._lock:
            for record in given:
                self._kind(record.kind).setdefault(record.key, replace(record, revision=1))

    def delete(self, records: Sequence[Record]) -> None:
        given = schema.checked_all(records)
        with self._lock:
            self._compare(given)
            for record in given:
                self._kind(record.kind).pop(record.key, None)

    def prune(self, kind: str, before: str) -> int:
        schema.check_prune(kind)
        with self._lock:
            old = [key for key in self._kind(kind) if key[0] < before]
            for key in old:
                del self._kind(kind)[key]
        return len(old)

    def close(self) -> None:
        """The records stay: whoever holds the object may open it again."""

    def _kind(self, kind: str) -> dict[tuple[str, ...], Record]:
        return self._records.setdefault(kind, {})

    def _compare(self, records: Sequence[Record]) -> None:
        for record in records:
            stored = self._kind(record.kind).get(record.key)
            revision = stored.revision if stored else 0
            if revision != record.revision:
                raise schema.conflict(record, revision)

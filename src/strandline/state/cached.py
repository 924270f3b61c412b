"""Memory over a state in an SQL database: `cache: memory`.

Positions are what polls read most and what carries most text: watermarks, plans, measures. They stay in memory, and a
read asks the database only which of them were written since. So nobody ever acts on what another process has replaced;
writes go to the database as they always do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from strandline.core.protocols import Record, Value
from strandline.state import schema
from strandline.state.dialect import Dialect
from strandline.state.sql import SqlState

_KIND = "position"
_STAMPS = ("revision", "updated_at")  # both: a database that was restored counts its revisions again
Key = tuple[str, ...]


class CachedState(SqlState):
    def __init__(self, dialect: Dialect) -> None:
        self._held: dict[Key, Record] = {}
        super().__init__(dialect)

    def read(
        self,
        kind: str,
        prefix: Sequence[str] = (),
        *,
        where: Mapping[str, Value] | None = None,
        since: str | None = None,
        newest: int | None = None,
    ) -> list[Record]:
        if kind != _KIND or where or since is not None or newest is not None:
            return super().read(kind, prefix, where=where, since=since, newest=newest)
        with self._lock:
            stamps = self._stamps(prefix)
            stale = [Record(kind, key, {}) for key, stamp in stamps.items() if _stamp(self._held.get(key)) != stamp]
            if stale:
                found = self._attempt(lambda cursor, _: self._stored(cursor, stale, lock=False), transaction=False)
                self._held |= {record.key: record for record in found.values()}
            for key in [key for key in self._held if key[: len(prefix)] == tuple(prefix) and key not in stamps]:
                del self._held[key]
            return [self._held[key] for key in stamps if key in self._held]

    def put(self, records: Sequence[Record]) -> list[Record]:
        with self._lock:
            written = super().put(records)
            self._held |= {record.key: record for record in written if record.kind == _KIND}
            return written

    def _stamps(self, prefix: Sequence[str]) -> dict[Key, tuple[Value, ...]]:
        spec, name, mark = schema.check_read(_KIND, prefix, (), None), self._dialect.name, self._dialect.placeholder
        keys = self._dialect.names(spec.key)
        tests = " AND ".join(f"{name(part)} = {mark}" for part in spec.key[: len(prefix)]) or "1 = 1"
        sql = f"SELECT {keys}, {self._dialect.names(_STAMPS)} FROM {self._table(_KIND)} WHERE {tests} ORDER BY {keys}"
        width = len(spec.key)
        return {tuple(row[:width]): tuple(row[width:]) for row in self._query(sql, list(prefix))}


def _stamp(record: Record | None) -> tuple[Value, ...]:
    return (record.revision, record.fields["updated_at"]) if record else ()

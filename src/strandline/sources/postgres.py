"""PostgreSQL as a source: its clock, sequences and estimates, with the catalog, the barrier and the sessions beside it.

Planning runs over psycopg; data moves through Spark's JDBC only.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import cached_property

from strandline.core.errors import SourceError, StrandlineError
from strandline.core.position import Holder, Horizon
from strandline.core.table import Column, Table, TableInfo
from strandline.core.watermark import Kind, Watermark
from strandline.endpoint import Endpoint
from strandline.sources import postgres_canonical
from strandline.sources.database import EMPTY, DatabaseSource
from strandline.sources.dialect import column_of
from strandline.sources.postgres_barrier import Barrier
from strandline.sources.postgres_catalog import Catalog, describe
from strandline.sources.postgres_dialect import PostgresDialect
from strandline.sources.postgres_sequence import sequences
from strandline.sources.postgres_session import PostgresSession, reader
from strandline.sources.resolve import Server

_PARTS = """
WITH RECURSIVE part(oid) AS (
  SELECT {name}::regclass::oid UNION SELECT inhrelid FROM pg_inherits JOIN part ON inhparent = part.oid)"""
_SIZE = f"{_PARTS} SELECT sum(pg_table_size(oid)) FROM part"
_ALL_HEAP = f"""{_PARTS}
SELECT bool_and(c.relkind = 'p' OR coalesce(m.amname = 'heap', false))
  FROM part JOIN pg_class c ON c.oid = part.oid LEFT JOIN pg_am m ON m.oid = c.relam"""
_UTC = "to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US')"


class PostgresSource(DatabaseSource):
    def __init__(
        self,
        endpoint: Endpoint,
        *,
        guard: timedelta,
        barrier: bool = True,
        readers: int | None = None,
        statements: bool = False,
        sleep: Callable[[float], None] = time.sleep,
        max_wait: timedelta = timedelta(seconds=10),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.planner = PostgresSession(endpoint)
        self.statements = statements
        self.sleep = sleep
        self.max_wait = max_wait
        self.ticks = clock
        super().__init__(
            self.planner,
            PostgresDialect(),
            reader(endpoint),
            guard=guard,
            barrier=self._drain if barrier else None,
            readers=readers,
        )

    @cached_property
    def _server(self) -> Server:
        zone = f"SELECT reset_val, {_UTC} FROM pg_settings WHERE name = 'TimeZone'"
        return Server(*self.planner.rows(zone)[0])

    def server(self) -> Server:
        return self._server

    def identity(self) -> str:
        system, database = self.planner.rows("SELECT system_identifier, current_database() FROM pg_control_system()")[0]
        return f"postgresql:{system}/{database}"

    def find(self, patterns: Sequence[str]) -> dict[str, TableInfo | StrandlineError]:
        return Catalog(self.planner).find(patterns)

    def describe(self, sql: str) -> tuple[Column, ...]:
        return describe(self.planner, sql)

    def clock(self) -> str:
        standby, at = self.planner.rows(f"SELECT pg_is_in_recovery(), {_UTC}")[0]
        if standby and self.barrier:
            raise SourceError(
                "the source is a standby: what is in flight on its primary cannot be seen from here",
                why="A transaction that commits late on the primary would be lost.",
                remedy="Read from the primary, or accept re-reading instead of a barrier:   barrier: lookback 10m",
                docs="docs/cursors.md#standby",
            )
        return str(at)

    def _drain(self) -> Holder | None:
        return Barrier(self.planner, self.sleep, self.max_wait, self.ticks, self.statements).drain()

    def hashes(self) -> tuple[str, ...]:
        ((version,),) = self.planner.rows("SELECT current_setting('server_version_num')::int / 10000")
        return postgres_canonical.hashes(version)

    def estimate(self, table: Table, condition: str) -> int | None:
        relation = self.dialect.relation(table)
        plan = self.planner.rows(f"EXPLAIN (FORMAT JSON) SELECT 1 FROM {relation} WHERE {condition}")[0][0]
        document = json.loads(plan) if isinstance(plan, str) else plan
        return int(document[0]["Plan"]["Plan Rows"])

    def sample(self, table: Table, share: float, rows: int) -> tuple[str, str]:
        """Some of its pages, if they hold fewer rows than are looked for; else some of those, which are not sorted."""
        relation = self.dialect.relation(table)
        if table.query is None and self._has_pages(relation) and share * (self.estimate(table, "true") or 0) < rows:
            return f"{relation} TABLESAMPLE SYSTEM ({100 * share:.6f})", ""
        return relation, f" AND random() < {share:.8f}"

    def _has_pages(self, relation: str) -> bool:
        """Whether all it consists of can be sampled by pages: of a foreign partition all rows would come."""
        name = self.dialect.string(relation.removesuffix(" t"))
        return self.planner.rows(_ALL_HEAP.format(name=name)) == [(True,)]

    def width(self, table: Table) -> int:
        """As it is stored, compressed. A view and a query have no size."""
        if table.query is not None:
            return 0
        name = self.dialect.string(self.dialect.relation(table).removesuffix(" t"))
        ((stored,),) = self.planner.rows(_SIZE.format(name=name))
        return int(stored or 0) // max(1, self.estimate(table, "true") or 0)

    def tops(self, tables: Sequence[Table]) -> dict[str, Horizon | StrandlineError]:
        """min(max(id), last id the sequence gave out) + 1: one explicit huge id drags nothing past ids to come."""
        given = sequences(self.planner, [table for table in tables if table.lookback is None])
        found: dict[str, Horizon | StrandlineError] = {
            name: answer for name, answer in given.items() if isinstance(answer, SourceError)
        }
        asked = {table.name: table for table in tables if table.name not in found}

        def top(table: Table) -> str:
            column = column_of(self.dialect, table.cursor.column if table.cursor else "")
            highest = f"(SELECT max({column}) FROM {self.dialect.relation(table)})::text"
            return f"{highest}, ({given[table.name]})::text" if table.lookback is None else f"{highest}, NULL"

        for name, answer in self.each(list(asked.values()), lambda table: table.name, top):
            if isinstance(answer, SourceError):
                found[name] = answer.at(asked[name].where_text)
            elif answer[0] is None:
                found[name] = Horizon(None, note=EMPTY)
            else:
                high = min(int(value) for value in answer if value is not None) + 1
                unordered = asked[name].lookback is not None
                note = "ids may come late: lookback re-reads them" if unordered else ""
                next_id = None if answer[1] is None else Watermark(Kind.INTEGER, str(int(answer[1]) + 1))
                found[name] = Horizon(
                    Watermark(Kind.INTEGER, str(high)), proven=not unordered, note=note, next_id=next_id
                )
        return found

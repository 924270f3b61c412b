"""Snowflake as a source. Nothing there tells what is in flight, so that no barrier is possible: what may have been
committed late is read again (`lookback`), and applied only if it is new.

Planning and data go through Snowflake's connector; Spark's tasks fetch the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from functools import cached_property

from strandline.config.duration import format_duration
from strandline.core.errors import SourceError, StrandlineError
from strandline.core.position import Horizon
from strandline.core.table import Column, Mode, Table, TableInfo
from strandline.core.watermark import Kind, Watermark
from strandline.core.window import Slice
from strandline.endpoint import Endpoint
from strandline.sources.database import EMPTY, DatabaseSource
from strandline.sources.dialect import column_of
from strandline.sources.jdbc import Reader
from strandline.sources.resolve import Server
from strandline.sources.snowflake_catalog import Catalog, describe
from strandline.sources.snowflake_changes import SnowflakeChanges
from strandline.sources.snowflake_dialect import SnowflakeDialect
from strandline.sources.snowflake_names import settled
from strandline.sources.snowflake_session import SnowflakeSession

LOOKBACK = timedelta(minutes=10)
"""Read again unless the config says how much: transactions that stay open for longer are found by `verify`."""
_NOW = "TO_VARCHAR(SYSDATE(), 'YYYY-MM-DD HH24:MI:SS.FF6')"


class SnowflakeSource(DatabaseSource):
    def __init__(self, endpoint: Endpoint, *, guard: timedelta) -> None:
        self.planner = SnowflakeSession(endpoint)
        dialect = SnowflakeDialect()
        reader = Reader("", {}, lambda _: None)  # no JDBC: errors arrive as the connector's own
        super().__init__(self.planner, dialect, reader, guard=guard, barrier=None, readers=1)

    @cached_property
    def _server(self) -> Server:
        """The account's zone: what stamps get that nobody gave another."""
        found = self.planner.records("SHOW PARAMETERS LIKE 'TIMEZONE' IN ACCOUNT")
        return Server(str(found[0]["value"]) if found else "", self.clock())

    def server(self) -> Server:
        return self._server

    def identity(self) -> str:
        return server_identity(self.planner)

    def find(self, patterns: Sequence[str]) -> dict[str, TableInfo | StrandlineError]:
        return Catalog(self.planner).find(patterns)

    def describe(self, sql: str) -> tuple[Column, ...]:
        return describe(self.planner, sql)

    def resolve(self, table: Table, info: TableInfo, zone: str | None) -> Table:
        """Names in whichever case people write them, and a lookback where the config gives none."""
        table = replace(
            table,
            cursor=None if table.cursor is None else replace(table.cursor, column=settled(table.cursor.column)),
            key=tuple(map(settled, table.key)),
            deleted=None if table.deleted is None else settled(table.deleted),
            select=tuple(_settled_choice(text, info) for text in table.select),
        )
        found = super().resolve(table, info, zone)
        timed = found.cursor is not None and found.cursor.kind is not Kind.INTEGER
        if found.mode is Mode.SNAPSHOT or found.lookback is not None or not timed:
            return found
        return replace(found, lookback=LOOKBACK)

    def clock(self) -> str:
        return str(self.planner.rows(f"SELECT {_NOW}")[0][0])

    def without_barrier(self, table: Table, /) -> str:
        back = table.lookback
        span = f"the last {format_duration(back)}" if isinstance(back, timedelta) else f"{back or 0:,} numbers"
        return f"no barrier: lookback reads {span} again"

    def tops(self, tables: Sequence[Table]) -> dict[str, Horizon | StrandlineError]:
        """Sequences give numbers out of order and in blocks; how far back they may come, only people know."""
        found: dict[str, Horizon | StrandlineError] = {
            table.name: SourceError(
                "nothing shows which numbers of a Snowflake sequence are still to be committed",
                where=table.where_text,
                remedy="Say how many numbers below the highest are to be read again, for example   lookback: 100000",
                docs="docs/snowflake.md#lookback",
            )
            for table in tables
            if table.lookback is None
        }
        asked = {table.name: table for table in tables if table.name not in found}

        def top(table: Table) -> str:
            column = column_of(self.dialect, table.cursor.column if table.cursor else "")
            return f"(SELECT TO_VARCHAR(MAX({column})) FROM {self.dialect.relation(table)})"

        for name, answer in self.each(list(asked.values()), lambda table: table.name, top):
            if isinstance(answer, SourceError):
                found[name] = answer.at(asked[name].where_text)
            elif answer[0] is None:
                found[name] = Horizon(None, note=EMPTY)
            else:
                found[name] = Horizon(Watermark(Kind.INTEGER, str(int(answer[0]) + 1)), proven=False)
        return found

    def estimate(self, table: Table, condition: str) -> int | None:
        """Exact: a column store counts quicker than it explains."""
        return int(self.planner.rows(f"SELECT COUNT(*) FROM {self.dialect.relation(table)} WHERE {condition}")[0][0])

    def changes(self, table: Table, slice: Slice) -> SnowflakeChanges:
        return SnowflakeChanges(self.planner, self.reader, self.dialect, table, slice)

    def hashes(self) -> tuple[str, ...]:
        return ("md5",)


def server_identity(session: SnowflakeSession) -> str:
    account = "CURRENT_ORGANIZATION_NAME() || '-' || CURRENT_ACCOUNT_NAME()"
    ((found, database),) = session.rows(f"SELECT {account}, CURRENT_DATABASE()")
    return f"snowflake:{found}/{database}"


def _settled_choice(text: str, info: TableInfo) -> str:
    """`name` or `name::type`, the name as it is shown."""
    if info.column(text):
        return text
    name, colons, cast = text.partition("::")
    return f"{settled(name.strip())}{colons}{cast}"

"""MySQL and MariaDB as a source: their clock, ids and estimates, with the catalog, the barrier and sessions beside it.

Planning runs over PyMySQL; data moves through Spark's JDBC only.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import cached_property

from strandline.core.errors import SourceError, StrandlineError
from strandline.core.position import Holder, Horizon
from strandline.core.table import Column, Table, TableInfo
from strandline.core.watermark import Kind, Watermark
from strandline.endpoint import Endpoint
from strandline.sources.database import EMPTY, DatabaseSource
from strandline.sources.dialect import column_of
from strandline.sources.mysql_barrier import Barrier
from strandline.sources.mysql_catalog import Catalog, conditions
from strandline.sources.mysql_dialect import MySqlDialect
from strandline.sources.mysql_session import MySqlSession, reader
from strandline.sources.names import split
from strandline.sources.resolve import Server
from strandline.sources.zones import is_utc

_VARIABLES = (
    "auto_increment_increment", "datadir", "group_replication_group_name", "hostname", "port", "read_only",
    "server_uid", "server_uuid", "system_time_zone", "time_zone", "version", "wsrep_on",
)  # fmt: skip
_OFFSET = "TIMESTAMPDIFF(MINUTE, UTC_TIMESTAMP(), CONVERT_TZ(UTC_TIMESTAMP(), '+00:00', 'SYSTEM'))"


class MySqlSource(DatabaseSource):
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
        self.planner = MySqlSession(endpoint)
        self.database = endpoint.path
        self.statements = statements
        self.sleep = sleep
        self.max_wait = max_wait
        self.ticks = clock
        dialect = MySqlDialect(endpoint.options.get("zero_dates", "refuse"))
        super().__init__(
            self.planner,
            dialect,
            reader(endpoint),
            guard=guard,
            barrier=self._drain if barrier else None,
            readers=readers,
        )

    def variables(self) -> dict[str, str]:
        listed = ", ".join(f"'{name}'" for name in _VARIABLES)
        found = self.planner.rows(f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({listed})")
        return {name: str(value) for name, value in found}

    @cached_property
    def _known(self) -> dict[str, str]:
        """What does not change while a server runs."""
        return self.variables()

    def server(self) -> Server:
        zone, now = self._known.get("time_zone", "SYSTEM"), str(self.planner.rows("SELECT CAST(NOW(6) AS CHAR)")[0][0])
        if zone.upper() != "SYSTEM":
            return Server(zone, now)
        system = self._known.get("system_time_zone", "")
        if is_utc(system):
            return Server("UTC", now)
        minutes = int(self.planner.rows(f"SELECT {_OFFSET}")[0][0])
        hours, rest = divmod(abs(minutes), 60)
        return Server(f"{'-' if minutes < 0 else '+'}{hours:02d}:{rest:02d}", now)

    def identity(self) -> str:
        return f"{server_identity(self._known)}/{self.database}"

    def find(self, patterns: Sequence[str]) -> dict[str, TableInfo | StrandlineError]:
        return Catalog(self.planner, patterns).find()

    def describe(self, sql: str) -> tuple[Column, ...]:
        return self.planner.describe(sql)

    def clock(self) -> str:
        if self.barrier:
            self._check_barrier()
        return str(self.planner.rows("SELECT CAST(NOW(6) AS CHAR)")[0][0])

    def _check_barrier(self) -> None:
        """Everything that would make the lists of what is in flight incomplete."""
        variables = self.variables()
        reason = ""
        if variables.get("read_only", "OFF").upper() not in ("OFF", "0"):
            reason = "the source is read-only: a replica, whose transactions run elsewhere"
        elif variables.get("wsrep_on", "OFF").upper() in ("ON", "1"):
            reason = "the source is a Galera node: transactions of the other nodes cannot be seen from here"
        elif variables.get("group_replication_group_name"):
            reason = "the source is in a replication group: transactions of other members cannot be seen from here"
        elif not self._sees_others:
            raise SourceError(
                f"{self.planner.endpoint.user} lacks PROCESS: open transactions of others cannot be seen, so late "
                "commits could be lost",
                remedy=f"{self._grant}\nOr accept re-reading instead of a barrier:   barrier: lookback 10m",
                docs="docs/cursors.md#mysql",
            )
        elif self._replicates():
            reason = "the source is a replica: what is in flight on its primary cannot be seen from here"
        if reason:
            raise SourceError(
                reason,
                why="A transaction that commits late there would be lost.",
                remedy="Read from the primary, or accept re-reading instead of a barrier:   barrier: lookback 10m",
                docs="docs/cursors.md#standby",
            )

    def _replicates(self) -> bool:
        """Whether rows come from another server: its threads run here, or are set up and stopped for now."""
        threads = "SELECT 1 FROM information_schema.PROCESSLIST WHERE USER = 'system user' AND COMMAND <> 'Daemon'"
        if self.planner.rows(f"{threads} LIMIT 1"):
            return True
        mariadb = "mariadb" in self._known.get("version", "").lower()
        try:
            return bool(self.planner.rows("SHOW ALL SLAVES STATUS" if mariadb else "SHOW REPLICA STATUS"))
        except SourceError:
            return False  # not allowed to ask: what runs has been seen above

    @cached_property
    def _sees_others(self) -> bool:
        grants = [str(row[0]) for row in self.planner.rows("SHOW GRANTS")]
        return any(re.match(r"GRANT (?:ALL PRIVILEGES|.*\bPROCESS\b).* ON \*\.\* TO", grant) for grant in grants)

    @cached_property
    def _grant(self) -> str:
        user, _, host = str(self.planner.rows("SELECT CURRENT_USER()")[0][0]).rpartition("@")
        user, host = (part.replace("'", "''") for part in (user, host))
        return f"GRANT PROCESS ON *.* TO '{user}'@'{host}';"

    def _drain(self) -> Holder | None:
        mariadb = "mariadb" in self._known.get("version", "").lower()
        return Barrier(
            self.planner, mariadb, self.sleep, self.max_wait, self.ticks, self.guard, self.statements
        ).drain()

    def hashes(self) -> tuple[str, ...]:
        return ("crc32", "md5")

    def estimate(self, table: Table, condition: str) -> int | None:
        plan = self.planner.rows(f"EXPLAIN SELECT 1 FROM {self.dialect.relation(table)} WHERE {condition}")
        at = 8 if len(plan[0]) == 10 else 9  # MySQL has two columns more than MariaDB
        known = [int(row[at]) for row in plan if row[at] is not None]
        return max(known) if known else None

    def sample(self, table: Table, share: float, _rows: int) -> tuple[str, str]:
        """Some of the rows: all are read, and few are sorted."""
        return self.dialect.relation(table), f" AND rand() < {share:.8f}"

    def width(self, table: Table) -> int:
        if table.query is not None:
            return 0
        schema, name = (self.dialect.string(part) for part in split(table.source))
        where = f"TABLE_SCHEMA = {schema} AND TABLE_NAME = {name}"
        found = self.planner.rows(f"SELECT AVG_ROW_LENGTH FROM information_schema.TABLES WHERE {where}")
        return int(found[0][0] or 0) if found else 0

    def tops(self, tables: Sequence[Table]) -> dict[str, Horizon | StrandlineError]:
        """max(id) + 1: AUTO_INCREMENT itself moves past an explicit huge id."""
        found: dict[str, Horizon | StrandlineError] = dict(self._unordered(tables))
        asked = {table.name: table for table in tables if table.name not in found}

        def top(table: Table) -> str:
            column = column_of(self.dialect, table.cursor.column if table.cursor else "")
            highest = f"(SELECT CAST(max({column}) AS CHAR) FROM {self.dialect.relation(table)})"
            return f"{highest}, {self._next_id(table)}"

        for name, answer in self.each(list(asked.values()), lambda table: table.name, top):
            if isinstance(answer, SourceError):
                found[name] = answer.at(asked[name].where_text)
            else:
                found[name] = _top(*answer, unordered=asked[name].lookback is not None)
        return found

    def _next_id(self, table: Table) -> str:
        """SQL for the id that the server would give out next; it may lag behind, so max(id) is asked as well."""
        if table.lookback is not None or table.query is not None:
            return "NULL"
        schema, name = (self.dialect.string(part) for part in split(table.source))
        where = f"TABLE_SCHEMA = {schema} AND TABLE_NAME = {name}"
        return f"(SELECT CAST(AUTO_INCREMENT AS CHAR) FROM information_schema.TABLES WHERE {where})"

    def _unordered(self, tables: Sequence[Table]) -> dict[str, SourceError]:
        """Tables whose ids prove nothing: not given out by the server one by one."""
        strict = [table for table in tables if table.lookback is None]
        named = {split(table.source): table for table in strict if table.query is None}
        ordered = set()
        if named:
            where = conditions(MySqlDialect(), sorted(named))
            sql = (
                "SELECT TABLE_SCHEMA, TABLE_NAME, COLUMN_NAME FROM information_schema.COLUMNS "
                f"WHERE {where} AND EXTRA LIKE '%auto_increment%'"
            )
            for schema, name, column in self.planner.rows(sql):
                table = named[schema, name]
                if table.cursor and table.cursor.column == column:
                    ordered.add(table.name)
        step = self._known.get("auto_increment_increment", "1")
        reason = "it is not AUTO_INCREMENT: nothing tells in which order ids appear"
        if step != "1":
            ordered, reason = set(), f"auto_increment_increment is {step}: ids do not come in order"
        return {table.name: _refused(table, reason) for table in strict if table.name not in ordered}


def server_identity(variables: Mapping[str, str]) -> str:
    """Which server this is, whatever its address: by its own id, or where it has none by where it keeps its data.

    MariaDB's `server_uid` is made of hardware address and port, which two containers can share.
    """
    where = "/".join(variables.get(name, "") for name in ("server_uid", "hostname", "datadir"))
    return f"mysql:{variables.get('server_uuid') or hashlib.sha256(where.encode()).hexdigest()[:32]}"


def _top(highest: str | None, next_id: str | None, *, unordered: bool) -> Horizon:
    if highest is None:
        return Horizon(None, note=EMPTY)
    high, note = int(highest) + 1, "ids may come late: lookback re-reads them" if unordered else ""
    given = None if next_id is None else Watermark(Kind.INTEGER, str(max(high, int(next_id))))
    return Horizon(Watermark(Kind.INTEGER, str(high)), proven=not unordered, note=note, next_id=given)


def _refused(table: Table, reason: str) -> SourceError:
    return SourceError(
        f'cursor column "{table.cursor.column if table.cursor else ""}": {reason}',
        where=table.where_text,
        why="An id below the watermark could still be inserted, and would be lost.",
        remedy="Re-read as many ids as can come late, for example   lookback: 1000   or choose a timestamp cursor",
        docs="docs/cursors.md#integers",
    )

"""The commit barrier of MySQL and MariaDB: note every statement and transaction in flight, wait until all have ended.

InnoDB's list of transactions alone is not enough: its view is cached, a statement that waits for a metadata lock is
not in it, and NOW() is fixed when a statement starts. So statements are noted first; then a canary transaction is
begun, and only a list that shows the canary is new enough to be believed. A statement that has ended may have left its
connection's transaction open: that is noted in its stead. T0 must be read before `drain` is called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from strandline.core.errors import SourceError
from strandline.core.position import Holder
from strandline.sources.jdbc import MARK
from strandline.sources.mysql_session import MySqlSession

_STATEMENTS = """
SELECT ID, USER, TIME, {number} FROM information_schema.PROCESSLIST
 WHERE ID <> CONNECTION_ID() AND COMMAND NOT IN ('Sleep', 'Daemon', 'Binlog Dump', 'Binlog Dump GTID')
   AND USER NOT IN ('event_scheduler', 'unauthenticated user')
   AND NOT (COALESCE(INFO, '') LIKE 'SELECT%' AND COALESCE(INFO, '') LIKE '%{mark}%'
            AND USER = SUBSTRING_INDEX(CURRENT_USER(), '@', 1))
"""
_TRANSACTIONS = """
SELECT trx_mysql_thread_id, CAST(trx_started AS CHAR), trx_id, TIMESTAMPDIFF(SECOND, trx_started, NOW()),
       trx_is_read_only
  FROM information_schema.INNODB_TRX
"""
_CACHE_SECONDS = 0.11  # InnoDB refreshes its list only if nobody has read it for a tenth of a second


@dataclass(frozen=True)
class InFlight:
    """What one look showed: statements by connection, transactions by (connection, start), prepared ones by id."""

    statements: dict[int, tuple[str, float, int]]  # user, seconds, query number
    transactions: dict[tuple[int, str], float]
    prepared: dict[str, float]


class Barrier:
    def __init__(
        self,
        session: MySqlSession,
        mariadb: bool,
        sleep: Callable[[float], None],
        max_wait: timedelta,
        clock: Callable[[], float],
    ) -> None:
        self.session = session
        self.number = "QUERY_ID" if mariadb else "0"
        self.sleep = sleep
        self.max_wait = max_wait.total_seconds()
        self.clock = clock

    def drain(self) -> Holder | None:
        """None once everything noted has ended; after `max_wait`, whoever has been open longest."""
        deadline = self.clock() + self.max_wait
        noted_at = self.clock()
        first = self._look()
        statements, transactions = dict(first.statements), dict(first.transactions)
        prepared: dict[str, float] | None = None
        now = first
        while True:
            elapsed = self.clock() - noted_at
            for thread, noted in list(statements.items()):
                if not self._same(noted, now.statements.get(thread), elapsed):
                    del statements[thread]
                    left = {key: age for key, age in now.transactions.items() if key[0] == thread}
                    transactions |= left
            transactions = {key: age for key, age in transactions.items() if key in now.transactions}
            if not statements and not transactions:
                # Only now: a transaction noted above that was prepared meanwhile is among these.
                prepared = dict(now.prepared) if prepared is None else prepared
                prepared = {key: age for key, age in prepared.items() if key in now.prepared}
                if not prepared:
                    return None
            if self.clock() >= deadline:
                return _holder(statements, transactions, prepared or {}, now)
            self.sleep(_CACHE_SECONDS)
            now = self._look()

    def _same(self, noted: tuple[str, float, int], now: tuple[str, float, int] | None, elapsed: float) -> bool:
        """Whether a connection still runs the statement noted. Without numbers, by its age, in doubt yes."""
        if now is None:
            return False
        return now[2] == noted[2] if noted[2] else now[1] >= elapsed - 2

    def _look(self) -> InFlight:
        """Statements first, then a list of transactions that is certainly newer."""
        sql = _STATEMENTS.format(number=self.number, mark=MARK)
        statements = {row[0]: (str(row[1]), float(row[2] or 0), int(row[3] or 0)) for row in self.session.rows(sql)}
        with self._canary() as canary:
            rows = self._believed(canary)
        open_now = [row for row in rows if row[0] != canary and not row[4]]
        return InFlight(
            statements,
            {(row[0], row[1]): float(row[3] or 0) for row in open_now if row[0]},
            {str(row[2]): float(row[3] or 0) for row in open_now if not row[0]},
        )

    def _believed(self, canary: int) -> list[tuple[Any, ...]]:
        deadline = self.clock() + max(self.max_wait, 5)
        while True:
            rows = self.session.rows(_TRANSACTIONS)
            if any(row[0] == canary for row in rows):
                return rows
            if self.clock() >= deadline:
                raise SourceError(
                    "InnoDB's list of transactions does not show a transaction that was just begun",
                    why="Without a current list, late commits could be lost.",
                    remedy="Somebody may be reading information_schema.INNODB_TRX all the time; stop that, or use "
                    "barrier: lookback 10m",
                )
            self.sleep(_CACHE_SECONDS)

    @contextmanager
    def _canary(self) -> Iterator[int]:
        connection = self.session.connect()
        try:
            with connection.cursor() as cursor:
                cursor.execute("SELECT CONNECTION_ID()")
                ((number,),) = cursor.fetchall()
                cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
            yield int(number)
        finally:
            connection.close()


def _holder(
    statements: dict[int, tuple[str, float, int]],
    transactions: dict[tuple[int, str], float],
    prepared: dict[str, float],
    now: InFlight,
) -> Holder:
    users = {thread: user for thread, (user, _, _) in now.statements.items()}
    held = [Holder(str(thread), user, seconds) for thread, (user, seconds, _) in statements.items()]
    held += [
        Holder(str(key[0]), users.get(key[0], ""), now.transactions.get(key, age)) for key, age in transactions.items()
    ]
    held += [Holder(f"prepared {key}", "", now.prepared.get(key, age)) for key, age in prepared.items()]
    return max(held, key=lambda holder: holder.seconds or 0)

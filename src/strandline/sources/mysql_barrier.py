"""The commit barrier of MySQL and MariaDB: note every statement and transaction in flight, wait until all have ended.

InnoDB's list of transactions alone is not enough: its view is cached, a statement that waits for a metadata lock is
not in it, and NOW() is fixed when a statement starts. So statements are noted first; then a canary transaction is
begun, and only a list that shows the canary is new enough to be believed. A statement that has ended may have left its
connection's transaction open: that is noted in its stead. T0 must be read before `drain` is called.

A connection that is seen asleep has ended its statement. One that is seen with another statement probably has, but a
stored function shows its own statements in the place of the one that called it: that is believed only when the guard
has passed.
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
from strandline.sources.statement import without_literals

_STATEMENTS = """
SELECT ID, USER, TIME, {number}, INFO FROM information_schema.PROCESSLIST
 WHERE ID <> CONNECTION_ID() AND COMMAND NOT IN ('Sleep', 'Daemon', 'Binlog Dump', 'Binlog Dump GTID')
   AND USER <> 'unauthenticated user'
   AND NOT (COALESCE(INFO, '') LIKE 'SELECT%' AND COALESCE(INFO, '') LIKE '%{mark}%'
            AND USER = SUBSTRING_INDEX(CURRENT_USER(), '@', 1))
"""
_TRANSACTIONS = """
SELECT trx_mysql_thread_id, CAST(trx_started AS CHAR), trx_id, TIMESTAMPDIFF(SECOND, trx_started, NOW()),
       trx_is_read_only, trx_query
  FROM information_schema.INNODB_TRX
"""
_CONNECTED = "SELECT ID, USER FROM information_schema.PROCESSLIST WHERE ID IN ({threads})"
_TURN = "strandline barrier"
_CACHE_SECONDS = 0.11  # InnoDB refreshes its list only if nobody has read it for a tenth of a second
_NOT_NUMBERED = 2**48  # from here on InnoDB shows an address: the transaction has written nothing so far


@dataclass(frozen=True)
class Statement:
    """What a connection runs. `number` 0: the server does not number statements."""

    user: str
    seconds: float
    number: int
    text: str

    def same(self, later: Statement, elapsed: float) -> bool:
        """Whether the connection still runs this `elapsed` seconds later; without numbers by age, in doubt yes."""
        return later.number == self.number if self.number else later.seconds >= elapsed - 2


@dataclass(frozen=True)
class Transaction:
    """One line of InnoDB's list. `thread` 0: prepared, and its connection has gone."""

    thread: int
    started: str
    number: int
    seconds: float
    text: str

    def same(self, later: Transaction) -> bool:
        """Starts are whole seconds, and a number comes with the first write: in doubt, yes."""
        if self.thread != later.thread or self.started != later.started:
            return False
        return self.number == later.number or not (self.numbered and later.numbered)

    @property
    def numbered(self) -> bool:
        return 0 < self.number < _NOT_NUMBERED


@dataclass(frozen=True)
class Barrier:
    session: MySqlSession
    mariadb: bool
    sleep: Callable[[float], None]
    max_wait: timedelta
    clock: Callable[[], float]
    guard: timedelta
    statements: bool = False  # whether a holder's statement may be shown

    def drain(self) -> Holder | None:
        """None once everything noted has ended; after `max_wait`, whoever has been open longest."""
        deadline = self.clock() + self.max_wait.total_seconds()
        running = self._running()
        now = self._open()
        noted = [found for found in now if found.thread]
        if running:
            left = self._outlast_statements(running, deadline)
            now = self._open()
            noted += [found for found in now if found.thread in running]
            if left:
                return self._oldest(left, [found for found in now if _noted(found, noted)])
        noted, now = self._outlast(noted, now, deadline)
        # Only now: a transaction noted above that was prepared meanwhile is among these.
        prepared = [] if noted else self._outlast([found for found in now if not found.thread], now, deadline)[0]
        return self._oldest({}, noted or prepared) if noted or prepared else None

    def _outlast_statements(self, noted: dict[int, Statement], deadline: float) -> dict[int, Statement]:
        """Those of the statements noted that have not ended by the deadline. A connection need be seen idle only once,
        so busy ones are looked at often."""
        noted_at, pause = self.clock(), 0.005
        left = dict(noted)
        while left:
            elapsed, now = self.clock() - noted_at, self._running()
            sure = elapsed >= self.guard.total_seconds()
            left = {
                thread: before
                for thread, before in left.items()
                if thread in now and (before.same(now[thread], elapsed) or not sure)
            }
            if not left or self.clock() >= deadline:
                break
            self.sleep(pause)
            pause = min(pause * 1.2, 0.1)
        return left

    def _outlast(
        self, noted: list[Transaction], now: list[Transaction], deadline: float
    ) -> tuple[list[Transaction], list[Transaction]]:
        """Those of the transactions noted that have not ended by the deadline, and the last list looked at."""
        while noted := [found for found in now if _noted(found, noted)]:
            if self.clock() >= deadline:
                break
            self.sleep(_CACHE_SECONDS)
            now = self._open()
        return noted, now

    def _running(self) -> dict[int, Statement]:
        sql = _STATEMENTS.format(number="QUERY_ID" if self.mariadb else "0", mark=MARK)
        return {
            int(thread): Statement(str(user), float(seconds or 0), int(number or 0), str(text or ""))
            for thread, user, seconds, number, text in self.session.rows(sql)
        }

    def _open(self) -> list[Transaction]:
        """Every transaction that may write, from a list that is certainly newer than this call."""
        with self._canary() as canary, self._turn():  # in this order: whose turn it is refreshes the list for all
            rows = self._believed(canary)
        return [
            Transaction(int(row[0] or 0), str(row[1]), int(row[2]), float(row[3] or 0), str(row[5] or ""))
            for row in rows
            if row[0] != canary and not row[4]
        ]

    def _believed(self, canary: int) -> list[tuple[Any, ...]]:
        deadline = self.clock() + max(self.max_wait.total_seconds(), 5)
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
                    docs="docs/cursors.md#mysql",
                )
            self.sleep(_CACHE_SECONDS)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """One barrier at a time reads the list, or several would keep it stale for each other."""
        seconds = max(self.max_wait.total_seconds(), 5)
        self.session.rows(f"SELECT {MARK} GET_LOCK('{_TURN}', {seconds:.0f})")
        try:
            yield
        finally:
            self.session.rows(f"SELECT {MARK} RELEASE_LOCK('{_TURN}')")

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

    def _oldest(self, statements: dict[int, Statement], transactions: list[Transaction]) -> Holder:
        """Whoever has been at it longest, of those that have not ended."""
        threads = {transaction.thread for transaction in transactions if transaction.thread}
        listed = ", ".join(str(thread) for thread in threads)
        users = dict(self.session.rows(_CONNECTED.format(threads=listed))) if threads else {}
        held = [Holder(str(thread), run.user, run.seconds, self._shown(run.text)) for thread, run in statements.items()]
        held += [
            Holder(
                str(found.thread) if found.thread else f"prepared {found.number}",
                str(users.get(found.thread, "")),
                found.seconds,
                self._shown(found.text),
            )
            for found in transactions
        ]
        return max(held, key=lambda holder: holder.seconds or 0)

    def _shown(self, text: str) -> str:
        return without_literals(text, double_quotes=True) if self.statements else ""


def _noted(found: Transaction, noted: list[Transaction]) -> bool:
    return any(before.same(found) for before in noted)

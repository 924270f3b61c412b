"""PostgreSQL's commit barrier: note every transaction in flight, and wait until each of them has ended.

It needs no privilege and no start times. T0 (and for integer cursors the highest id) must be read before `drain` is
called; whatever could still commit at or below it is then either noted here or was finished before.

One message may hold several transactions (`BEGIN; …; COMMIT; BEGIN; …`, a procedure that commits), and all of them are
stamped with the time the message came. Where the reader may see that time, the message is waited for as a whole.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from strandline.core.position import Holder
from strandline.sources.postgres_session import READER, PostgresSession
from strandline.sources.statement import without_literals

# Left out: sessions of other databases, autovacuum workers (a database but no user), and read-only sessions of our own.
# A session that shows nothing of itself is waited for.
_IN_FLIGHT = f"""
SELECT l.virtualxid, l.pid, now()::text
  FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
 WHERE l.locktype = 'virtualxid' AND l.mode = 'ExclusiveLock' AND l.pid <> pg_backend_pid()
   AND NOT coalesce(a.datid <> (SELECT oid FROM pg_database WHERE datname = current_database()), false)
   AND NOT coalesce(a.datid IS NOT NULL AND a.usesysid IS NULL, false)
   AND NOT coalesce(a.application_name = '{READER}' AND a.usename = current_user, false)
"""
# By number, not by name: a name may be used again at once, and steady traffic under one name would never end.
_PREPARED = "SELECT transaction::text FROM pg_prepared_xacts WHERE database = current_database()"


@dataclass(frozen=True)
class Barrier:
    session: PostgresSession
    sleep: Callable[[float], None]
    max_wait: timedelta
    clock: Callable[[], float]
    statements: bool = False  # whether a holder's statement may be shown

    def drain(self) -> Holder | None:
        """None once everything noted has ended; after `max_wait`, whoever has been open longest."""
        deadline = self.clock() + self.max_wait.total_seconds()
        noted = self.session.rows(_IN_FLIGHT)
        if noted and (holder := self._outlast(_running(noted), deadline)):
            return holder
        # Only now: a transaction noted above that was prepared meanwhile is among these.
        prepared = [number for (number,) in self.session.rows(_PREPARED)]
        return self._outlast(_waiting(prepared), deadline) if prepared else None

    def _outlast(self, of: str, deadline: float) -> Holder | None:
        """Ask for the oldest of those noted until there is none; whoever it is at the deadline."""
        pause = 0.002
        while found := self.session.rows(of):
            if self.clock() >= deadline:
                name, user, seconds, said = found[0]
                return Holder(name, user or "", seconds, without_literals(said or "") if self.statements else "")
            self.sleep(pause)
            pause = min(pause * 2, 0.1)
        return None


def _running(noted: list[tuple[str, int, str]]) -> str:
    """Those of the transactions noted, and of the messages they came in, that have not ended."""
    transactions = _array([transaction for transaction, _, _ in noted])
    sessions = _array([str(pid) for _, pid, _ in noted])
    at = f"'{noted[0][2]}'"
    return f"""
WITH held AS (
  SELECT pid FROM pg_locks WHERE locktype = 'virtualxid' AND virtualxid = ANY({transactions}::text[])
  UNION
  SELECT pid FROM pg_stat_activity
   WHERE pid = ANY({sessions}::int[]) AND backend_type = 'client backend'
     AND (xact_start <= {at} OR state = 'active' AND query_start <= {at})
)
SELECT pid::text, usename::text, extract(epoch FROM clock_timestamp() - coalesce(xact_start, query_start))::float8,
       nullif(query, '<insufficient privilege>')
  FROM held LEFT JOIN pg_stat_activity USING (pid)
 ORDER BY coalesce(xact_start, query_start) NULLS LAST LIMIT 1"""


def _waiting(prepared: list[str]) -> str:
    return f"""
SELECT 'prepared ' || gid, owner::text, extract(epoch FROM clock_timestamp() - prepared)::float8, NULL
  FROM pg_prepared_xacts
 WHERE database = current_database() AND transaction::text = ANY({_array(prepared)}::text[])
 ORDER BY prepared LIMIT 1"""


def _array(values: list[str]) -> str:
    return "ARRAY[" + ", ".join("'" + value.replace("'", "''") + "'" for value in values) + "]"

"""PostgreSQL's commit barrier: note every transaction in flight, and wait until each of them has ended.

It needs no privilege and no start times. T0 (and for integer cursors the highest id) must be read before `drain` is
called; whatever could still commit at or below it is then either noted here or was finished before.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from strandline.core.position import Holder
from strandline.sources.postgres_session import READER, PostgresSession

# Left out: sessions of other databases, autovacuum workers (a database but no user), and read-only sessions of our own.
# A session that shows nothing of itself is waited for.
_IN_FLIGHT = f"""
SELECT l.virtualxid
  FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
 WHERE l.locktype = 'virtualxid' AND l.mode = 'ExclusiveLock' AND l.pid <> pg_backend_pid()
   AND NOT coalesce(a.datid <> (SELECT oid FROM pg_database WHERE datname = current_database()), false)
   AND NOT coalesce(a.datid IS NOT NULL AND a.usesysid IS NULL, false)
   AND NOT coalesce(a.application_name = '{READER}' AND a.usename = current_user, false)
"""
_PREPARED = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"


def drain(
    session: PostgresSession, sleep: Callable[[float], None], max_wait: timedelta, clock: Callable[[], float]
) -> Holder | None:
    """None once everything noted has ended; after `max_wait`, whoever has been open longest."""
    deadline = clock() + max_wait.total_seconds()
    noted = [vxid for (vxid,) in session.rows(_IN_FLIGHT)]
    running = f"FROM pg_locks WHERE locktype = 'virtualxid' AND virtualxid = ANY({_array(noted)})"
    if noted and not _ended(session, running, sleep, clock, deadline):
        return _running(session, noted)
    # Only now: a transaction noted above that was prepared meanwhile is among these.
    prepared = [gid for (gid,) in session.rows(_PREPARED)]
    waiting = f"FROM pg_prepared_xacts WHERE database = current_database() AND gid = ANY({_array(prepared)})"
    if prepared and not _ended(session, waiting, sleep, clock, deadline):
        return _waiting(session, prepared)
    return None


def _ended(
    session: PostgresSession, of: str, sleep: Callable[[float], None], clock: Callable[[], float], deadline: float
) -> bool:
    pause = 0.002
    while session.rows(f"SELECT EXISTS (SELECT 1 {of})")[0][0]:
        if clock() >= deadline:
            return False
        sleep(pause)
        pause = min(pause * 2, 0.1)
    return True


def _running(session: PostgresSession, noted: list[str]) -> Holder | None:
    found = session.rows(
        "SELECT a.pid, a.usename, extract(epoch FROM clock_timestamp() - a.xact_start)::float8 "
        "FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid "
        f"WHERE l.locktype = 'virtualxid' AND l.mode = 'ExclusiveLock' AND l.virtualxid = ANY({_array(noted)}) "
        "ORDER BY a.xact_start NULLS LAST LIMIT 1"
    )
    return next((Holder(str(pid), user or "", seconds) for pid, user, seconds in found), Holder("just ended"))


def _waiting(session: PostgresSession, gids: list[str]) -> Holder | None:
    found = session.rows(
        "SELECT gid, owner, extract(epoch FROM clock_timestamp() - prepared)::float8 FROM pg_prepared_xacts "
        f"WHERE database = current_database() AND gid = ANY({_array(gids)}) ORDER BY prepared LIMIT 1"
    )
    return next((Holder(f"prepared {gid}", user, seconds) for gid, user, seconds in found), Holder("just ended"))


def _array(values: list[str]) -> str:
    return "ARRAY[" + ", ".join("'" + value.replace("'", "''") + "'" for value in values) + "]::text[]"

"""A target in SQLite that keeps every row of every batch: a version that came twice or never is seen as such.

Rows and the batch's identity are one commit, so it keeps the Sink contract without Spark, and a process that uses it
can be killed every second.
"""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

from strandline.core.batch import Applied, Batch, How, Receipt
from strandline.core.compare import Comparison, Form
from strandline.core.errors import BatchConflictError, TargetError
from strandline.core.protocols import Changes, TargetSide
from strandline.core.table import Table
from strandline.core.window import Repair
from strandline.endpoint import Endpoint
from strandline.sources.database import Session
from strandline.sources.dialect import in_slice
from strandline.sources.jdbc import JdbcChanges
from strandline.sources.mysql_session import MySqlSession
from strandline.sources.postgres_session import PostgresSession

CREATE = """
CREATE TABLE IF NOT EXISTS rows (target TEXT, id INTEGER, version INTEGER, batch INTEGER);
CREATE TABLE IF NOT EXISTS receipts (target TEXT PRIMARY KEY, batch TEXT, rows INTEGER, epoch INTEGER);
"""


class Ledger:
    """The file, for the process that writes it and for whoever looks into it afterwards."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.connection = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
        self.connection.execute("PRAGMA synchronous = OFF")  # the process dies, not the machine
        self.connection.executescript(CREATE)

    def versions(self, target: str) -> dict[int, int]:
        """The newest version of each row."""
        found = self.connection.execute("SELECT id, max(version) FROM rows WHERE target = ? GROUP BY id", [target])
        return dict(found.fetchall())

    def repeated(self, target: str) -> int:
        """Versions of rows that came more than once."""
        sql = "SELECT count(*) FROM (SELECT 1 FROM rows WHERE target = ? GROUP BY id, version HAVING count(*) > 1)"
        return int(self.connection.execute(sql, [target]).fetchone()[0])

    def batches(self) -> int:
        return int(self.connection.execute("SELECT count(DISTINCT target || batch) FROM rows").fetchone()[0])


class LedgerSink:
    def __init__(self, path: Path, source: Endpoint) -> None:
        self.ledger = Ledger(path)
        self.source = source
        self.warnings: list[tuple[str, str]] = []
        self._lock = threading.Lock()  # tables run side by side

    def identity(self, table: Table) -> str:
        return f"ledger/{table.target}"

    def applied(self, table: Table) -> Receipt | None:
        sql = "SELECT batch, rows, epoch FROM receipts WHERE target = ?"
        found = self.ledger.connection.execute(sql, [table.target]).fetchone()
        return found and Receipt(Batch.from_json(found[0]), Applied(found[1], found[1]), found[2])

    def apply(self, table: Table, batch: Batch, changes: Changes, *, how: How, repair: Repair | None = None) -> Applied:
        if how is How.REPLACE or repair is not None:
            raise TargetError("the ledger only grows", where=table.where_text)
        rows = self._read(changes)
        with self._lock:
            return self._keep(table, batch, rows)

    def _keep(self, table: Table, batch: Batch, rows: list[tuple[int, int]]) -> Applied:
        connection = self.ledger.connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            held = self.applied(table)
            if held and batch.same(held.batch):
                return held.applied
            if held and (batch.order <= held.batch.order or batch.epoch < held.epoch):
                raise BatchConflictError(f"{table.target} holds {held.batch}, not {batch}", where=table.where_text)
            kept = [(table.target, number, version, batch.number) for number, version in rows]
            connection.executemany("INSERT INTO rows VALUES (?, ?, ?, ?)", kept)
            receipt = (table.target, batch.to_json(), len(rows), held.epoch if held else 0)
            connection.execute("INSERT OR REPLACE INTO receipts VALUES (?, ?, ?, ?)", receipt)
            connection.execute("COMMIT")
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        return Applied(len(rows), len(rows))

    def _read(self, changes: Changes) -> list[tuple[int, int]]:
        """On a connection that is newer than the horizon."""
        if not isinstance(changes, JdbcChanges):
            raise TargetError("the ledger reads databases only")
        named = self.source.scheme
        session: Session = PostgresSession(self.source) if named == "postgresql" else MySqlSession(self.source)
        where = in_slice(changes.dialect, changes.table, changes.slice)
        try:
            found = session.rows(f"SELECT id, version FROM {changes.dialect.relation(changes.table)} WHERE {where}")
        finally:
            session.close()
        return [(int(number), int(version)) for number, version in found]

    def fence(self, table: Table, epoch: int) -> Receipt | None:
        self.ledger.connection.execute(
            "UPDATE receipts SET epoch = max(epoch, ?) WHERE target = ?", [epoch, table.target]
        )
        return self.applied(table)

    def forms(self, table: Table) -> dict[str, Form | None]:
        raise TargetError("the soak compares the ledger by itself", where=table.where_text)

    def hashes(self) -> tuple[str, ...]:
        return ("md5",)

    def side(self, comparison: Comparison) -> TargetSide:
        raise TargetError("the soak compares the ledger by itself", where=comparison.table.where_text)

    def cancel(self, table: str | None = None) -> None:
        """A batch is over in milliseconds."""

    def maintain(self, table: Table) -> None:
        """Every row is kept."""

    def close(self) -> None:
        self.ledger.connection.close()

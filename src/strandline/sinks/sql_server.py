"""One batch from a table of the target's own database: its rows never leave it, and no Spark starts (`via: server`).

The rows are staged as they are for any other batch, so what is applied is what was counted; only they are brought by
one statement of the database's own. It reads without locking what it reads.
"""

from __future__ import annotations

from strandline.core.batch import Applied, Batch, How
from strandline.core.protocols import Changes
from strandline.core.table import Table
from strandline.core.window import Repair
from strandline.sinks.sql_columns import check_key, own, settle_own
from strandline.sinks.sql_dialect import Database, Place
from strandline.sinks.sql_ledger import Entry, Seen
from strandline.sinks.sql_merge import Merge
from strandline.sinks.sql_move import Move
from strandline.sinks.sql_stage import Staging


class ServerWrite:
    """One batch. Another thread may cancel it."""

    def __init__(self, database: Database, table: Table, place: Place, batch: Batch, changes: Changes) -> None:
        self.warnings: list[str] = []
        self._database = database.another()  # what takes long must not keep other tables waiting
        self._move = Move(self._database, table, place, batch)
        self._table = table
        self._place = place
        self._batch = batch
        self._changes = changes

    def run(self, seen: Seen, how: How, repair: Repair | None, *, create: bool) -> Applied:
        """Make room, stage, move. Nothing shows in the target before the last step's commit."""
        dialect, table = self._database.dialect, self._table
        entry = seen.ours(table) or Entry.none(table)
        new = own(table, dialect)
        held = self._move.claim(seen, new, create=create)
        columns = settle_own(table, held, new, dialect)
        check_key(table, held, dialect)
        if columns.added:
            self._move.alter(dialect.add(self._place, columns.added))
        self.warnings += columns.warnings
        staging = Staging(self._database, self._place, table, self._batch, self._changes)
        staging.sweep()
        try:
            staging.create(columns.columns)
            staging.take()
            return self._move.run(entry, Merge(dialect, table, held, staging.rows()), (), how, repair)
        finally:
            staging.drop()

    def cancel(self) -> None:
        self._move.cancel()

    def close(self) -> None:
        self._database.close()

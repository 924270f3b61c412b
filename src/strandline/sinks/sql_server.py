"""One batch from a table of the target's own database: its rows never leave it, and no Spark starts (`via: server`).

Where the source keeps keys unique and the database merges and counts in one statement, that statement reads the rows
itself. Elsewhere they are staged as for any other batch, only brought by the database's own INSERT. Either way what is
counted is what is applied, and nothing that is read is locked.
"""

from __future__ import annotations

from collections.abc import Sequence

from strandline.core.batch import Applied, Batch, How
from strandline.core.protocols import Changes
from strandline.core.table import Column, Mode, Table
from strandline.core.window import Repair
from strandline.sinks.sql_columns import Columns, check_key, own, settle_own
from strandline.sinks.sql_dialect import Database, Held, Place
from strandline.sinks.sql_ledger import Entry, Seen
from strandline.sinks.sql_merge import Merge
from strandline.sinks.sql_move import Move
from strandline.sinks.sql_stage import Pair, Rows, Staging, last_moved


class ServerWrite:
    """One batch. Another thread may cancel it."""

    def __init__(self, database: Database, table: Table, place: Place, batch: Batch, changes: Changes) -> None:
        self.warnings: list[str] = []
        self._shared = database
        self._database: Database | None = None  # what takes long must not keep other tables waiting
        self._move = Move(database, table, place, batch)
        self._table = table
        self._place = place
        self._batch = batch
        self._changes = changes

    def run(self, seen: Seen, how: How, repair: Repair | None, *, create: bool) -> Applied:
        """Nothing shows in the target before the commit of the last step, which moves the ledger, too."""
        entry = seen.ours(self._table)
        held = self._shared.find(self._place) if entry and seen.made and not seen.void else None
        if entry and held and repair is None:
            columns = self._fitted(held)
            merge = self._direct(held, columns.columns, how)
            if merge is not None and not columns.added:
                self.warnings += columns.warnings
                return self._move.run(entry, merge, (), how, None, seen.made)
        return self._staged(seen, how, repair, create=create)

    def _staged(self, seen: Seen, how: How, repair: Repair | None, *, create: bool) -> Applied:
        """Make room, stage, move."""
        table, place = self._table, self._place
        database = self._database = self._shared.another()
        dialect, move = database.dialect, Move(database, table, place, self._batch)
        self._move = move
        entry = seen.ours(table) or Entry.none(table)
        held = move.claim(seen, own(table, dialect), create=create)
        columns = self._fitted(held)
        if columns.added:
            move.alter(dialect.add(place, columns.added))
        self.warnings += columns.warnings
        staging = Staging(database, place, table, self._batch, self._changes)
        staging.sweep()
        try:
            staging.create(columns.columns)
            staging.take()
            return move.run(entry, Merge(dialect, table, held, staging.rows()), (), how, repair)
        finally:
            staging.drop()

    def _fitted(self, held: Held) -> Columns:
        dialect = self._shared.dialect
        columns = settle_own(self._table, held, own(self._table, dialect), dialect)
        check_key(self._table, held, dialect)
        return columns

    def _direct(self, held: Held, columns: Sequence[Column], how: How) -> Merge | None:
        """The merge that reads the source itself; None where rows could repeat a key, or cannot be counted that way."""
        table, dialect, query = self._table, self._shared.dialect, self._changes.query
        cast = any(column.cast for column in table.columns if column.name in table.key)
        if query is None or cast or not table.key_enforced or table.mode is not Mode.MERGE:
            return None
        pairs = tuple(Pair(column, f"c{at}") for at, column in enumerate(columns))
        last = last_moved(dialect, table, pairs)
        rows = Rows("brought", pairs, self._changes.operation is not None, Applied(), query, last)
        merge = Merge(dialect, table, held, rows)
        return merge if how in (How.CHANGES, How.CURRENT) and merge.steps(how)[0].last else None

    def cancel(self) -> None:
        self._move.cancel()

    def close(self) -> None:
        if self._database is not None:
            self._database.close()

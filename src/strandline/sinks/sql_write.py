"""One batch on its way into a database: columns, staging, and the transaction that moves ledger and rows."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pyspark.sql.types import StructType

from strandline.core.batch import Applied, Batch, How
from strandline.core.errors import StrandlineError
from strandline.core.protocols import Changes
from strandline.core.table import Column, Table
from strandline.core.window import Repair
from strandline.sinks.delta_schema import check_columns, plain
from strandline.sinks.sql_columns import Columns, check_key
from strandline.sinks.sql_dialect import Database, Held, Place
from strandline.sinks.sql_errors import told
from strandline.sinks.sql_ledger import Entry, Seen
from strandline.sinks.sql_merge import Merge
from strandline.sinks.sql_move import Move
from strandline.sinks.sql_schema import settle, wanted
from strandline.sinks.sql_stage import Staging
from strandline.spark.session import batch_session, end_batch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Write:
    """One batch. Another thread may cancel it."""

    def __init__(
        self, database: Database, spark: SparkSession, table: Table, place: Place, batch: Batch, changes: Changes
    ) -> None:
        self.warnings: list[str] = []
        self._database = database.another()  # what takes long must not keep other tables waiting
        self._dialect = database.dialect
        self._move = Move(self._database, table, place, batch)
        self._table = table
        self._place = place
        self._batch = batch
        self._changes = changes
        self._session = batch_session(spark)
        self._columns: tuple[Column, ...] = ()  # as they are staged

    def run(self, seen: Seen, how: How, repair: Repair | None, *, create: bool) -> Applied:
        """Make room, stage, move. Nothing shows in the target before the last step's commit."""
        with told(self._table, self._changes, self.translate):
            return self._run(seen, how, repair, create=create)

    def _run(self, seen: Seen, how: How, repair: Repair | None, *, create: bool) -> Applied:
        frame = self._changes.frame(self._session)
        operation = self._changes.operation
        schema = plain((frame.drop(operation) if operation else frame).schema)
        entry = seen.ours(self._table) or Entry.none(self._table)
        held, columns = self._prepare(seen, schema, create=create, replaced=how is How.REPLACE)
        staging = Staging(self._database, self._place, self._table, self._batch, self._changes)
        staging.sweep()
        try:
            self._columns = columns.columns
            staging.create(columns.columns)
            staging.fill(frame)
            merge = Merge(self._dialect, self._table, held, staging.rows())
            return self._move.run(entry, merge, columns.changed, how, repair)
        finally:
            staging.drop()

    def translate(self, text: str) -> StrandlineError | None:
        """What the target's driver said, from the text of Spark's error; it knows staged columns only."""
        found = self._database.writer.translate(text)
        if found is not None:
            found.message = re.sub(r"(?<=column ['\"`])c(\d+)(?=['\"`])", self._named, found.message)
        return found

    def _named(self, staged: re.Match[str]) -> str:
        number = int(staged[1])
        return self._columns[number].name if number < len(self._columns) else staged[0]

    def cancel(self) -> None:
        """Interrupt the session of this batch, and the statement it may have come to; nobody else notices."""
        self._session.interruptAll()
        self._move.cancel()

    def close(self) -> None:
        self._database.close()
        end_batch(self._session)

    def _prepare(self, seen: Seen, schema: StructType, *, create: bool, replaced: bool) -> tuple[Held, Columns]:
        """The table with room for the batch's columns, as the policy allows, and our row in its ledger."""
        check_columns(self._table, schema, self._dialect.name)
        new = wanted(self._table, schema, self._dialect, self._database.knows)
        held = self._move.claim(seen, new, create=create)
        columns = settle(self._table, schema, held, new, self._dialect, replaced=replaced)
        check_key(self._table, held, self._dialect)
        if columns.added:
            self._move.alter(self._dialect.add(self._place, columns.added))
        if columns.widened:
            self._move.alter(self._dialect.retype(self._place, columns.widened))
        self.warnings += columns.warnings
        if held.triggers:
            self.warnings.append(f"{self._place} has triggers: what they change is not what the source holds")
        return held, columns

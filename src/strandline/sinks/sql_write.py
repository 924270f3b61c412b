"""One batch on its way into a database: columns, staging, and the transaction that moves ledger and rows.

How the rows get into the staging table is a `Fill`: Spark writes them here; a warehouse that loads files has its own.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Protocol

from pyspark.sql.types import StructType

from strandline.core.batch import Applied, Batch, How
from strandline.core.errors import StrandlineError
from strandline.core.protocols import Changes
from strandline.core.table import Column, Table
from strandline.core.window import Repair
from strandline.sinks.delta_schema import check_columns, plain
from strandline.sinks.sql_columns import TRIGGERS, Columns, check_key
from strandline.sinks.sql_dialect import Database, Held, Place, SparkDatabase
from strandline.sinks.sql_errors import told
from strandline.sinks.sql_ledger import Entry, Seen
from strandline.sinks.sql_merge import Merge
from strandline.sinks.sql_move import Move
from strandline.sinks.sql_schema import settle, wanted
from strandline.sinks.sql_stage import Staging
from strandline.spark.session import batch_session, end_batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Fill(Protocol):
    """How one batch's rows get into its staging table. Another thread may cancel it."""

    def schema(self) -> StructType:
        """The columns that come, the operation's among them."""

    def stage(self, place: Place, table: Table, batch: Batch) -> Staging:
        """The staging table, not made yet."""

    def bring(self) -> None:
        """The rows, into the staging table."""

    def translate(self, text: str, /) -> StrandlineError | None:
        """What the target said, from the text of another's error; None: nothing."""

    def cancel(self) -> None: ...

    def close(self) -> None: ...


class SparkFill:
    """Spark reads the changes and writes the staging table, on a session of this batch."""

    def __init__(self, database: SparkDatabase, spark: SparkSession, changes: Changes) -> None:
        self._database = database
        self._changes = changes
        self._session = batch_session(spark)

    def schema(self) -> StructType:
        self._frame: DataFrame = self._changes.frame(self._session)
        return self._frame.schema

    def stage(self, place: Place, table: Table, batch: Batch) -> Staging:
        self.staging = Staging(self._database, place, table, batch, self._changes)
        return self.staging

    def bring(self) -> None:
        self._database.fill(self.staging.shaped(self._frame), self.staging.place)

    def translate(self, text: str) -> StrandlineError | None:
        return self._database.translate(text)

    def cancel(self) -> None:
        """Interrupt the session of this batch; nobody else notices."""
        self._session.interruptAll()

    def close(self) -> None:
        end_batch(self._session)


class Write:
    """One batch, over a connection of its own, which it closes. Another thread may cancel it."""

    def __init__(
        self, database: Database, fill: Fill, table: Table, place: Place, batch: Batch, changes: Changes
    ) -> None:
        self.warnings: list[str] = []
        self._database = database
        self._dialect = database.dialect
        self._fill = fill
        self._move = Move(self._database, table, place, batch)
        self._table = table
        self._place = place
        self._batch = batch
        self._changes = changes
        self._columns: tuple[Column, ...] = ()  # as they are staged

    def run(self, seen: Seen, how: How, repair: Repair | None, *, create: bool) -> Applied:
        """Make room, stage, move. Nothing shows in the target before the last step's commit."""
        with told(self._table, self._changes, self.translate):
            return self._run(seen, how, repair, create=create)

    def _run(self, seen: Seen, how: How, repair: Repair | None, *, create: bool) -> Applied:
        given = self._fill.schema().fields
        schema = plain(StructType([field for field in given if field.name != self._changes.operation]))
        entry = seen.ours(self._table) or Entry.none(self._table)
        held, columns = self._prepare(seen, schema, create=create, replaced=how is How.REPLACE)
        staging = self._fill.stage(self._place, self._table, self._batch)
        staging.sweep()
        try:
            self._columns = columns.columns
            staging.create(columns.columns)
            self._fill.bring()
            merge = Merge(self._dialect, self._table, held, staging.rows())
            return self._move.run(entry, merge, columns.changed, how, repair)
        finally:
            staging.drop()

    def translate(self, text: str) -> StrandlineError | None:
        """What the target's driver said, from the text of Spark's error; it knows staged columns only."""
        found = self._fill.translate(text)
        if found is not None:
            found.message = re.sub(r"(?<=column ['\"`])c(\d+)(?=['\"`])", self._named, found.message)
        return found

    def _named(self, staged: re.Match[str]) -> str:
        number = int(staged[1])
        return self._columns[number].name if number < len(self._columns) else staged[0]

    def cancel(self) -> None:
        """The fill, and the statement it may have come to."""
        self._fill.cancel()
        self._move.cancel()

    def close(self) -> None:
        self._database.close()
        self._fill.close()

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
            self.warnings.append(TRIGGERS.format(self._place))
        return held, columns

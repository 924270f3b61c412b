"""One batch on its way into a database: columns, staging, and the transaction that moves ledger and rows."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.types import StructType

from strandline.core.batch import Applied, Batch, How
from strandline.core.errors import BatchConflictError, StrandlineError, TargetError, TransientError
from strandline.core.protocols import Changes
from strandline.core.table import Column, Mode, Table
from strandline.core.window import Repair
from strandline.sinks.delta_schema import check_columns, plain
from strandline.sinks.sql_dialect import Database, Held, Place, Session
from strandline.sinks.sql_ledger import CONFLICT, Entry, Ledger, Seen
from strandline.sinks.sql_merge import Merge
from strandline.sinks.sql_schema import Columns, check_key, settle, wanted
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
        self._ledger = Ledger(self._database, place)
        self._table = table
        self._place = place
        self._batch = batch
        self._changes = changes
        self._session = batch_session(spark)
        self._transaction: Session | None = None
        self._columns: tuple[Column, ...] = ()  # as they are staged

    def run(self, seen: Seen, how: How, repair: Repair | None, *, create: bool) -> Applied:
        """Make room, stage, move. Nothing shows in the target before the last step's commit."""
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
            rows = staging.rows()
            if columns.changed and not self._dialect.transactional_ddl:
                self._clear(entry, columns)
            return self._move(entry, Merge(self._dialect, self._table, held, rows), columns, how, repair)
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
        if (transaction := self._transaction) is not None:
            transaction.cancel()

    def close(self) -> None:
        self._database.close()
        end_batch(self._session)

    def _prepare(self, seen: Seen, schema: StructType, *, create: bool, replaced: bool) -> tuple[Held, Columns]:
        """The table with room for the batch's columns, as the policy allows, and our row in its ledger."""
        check_columns(self._table, schema, self._dialect.name)
        new = wanted(self._table, schema, self._dialect, self._database.knows)
        if seen.made is None:
            if not create:
                raise TargetError(
                    f"there is no table {self._place}, and the target says `create: false`",
                    remedy="Make it, or let Strandline:   create: true",
                )
            key = self._table.key if self._table.mode is Mode.MERGE else ()
            self._run(self._dialect.create(self._place, new, key, self._table.comment))
        self._ledger.create()
        self._ledger.claim(self._table, self._made(), seen.void)
        held = self._database.find(self._place)
        if held is None:
            raise TransientError(f"{self._place} was dropped just now")
        columns = settle(self._table, schema, held, new, self._dialect, replaced=replaced)
        check_key(self._table, held, self._dialect)
        if columns.added:
            self._run(self._dialect.add(self._place, columns.added))
        if columns.widened:
            self._run(self._dialect.retype(self._place, columns.widened))
        self.warnings += columns.warnings
        if held.triggers:
            self.warnings.append(f"{self._place} has triggers: what they change is not what the source holds")
        return held, columns

    def _clear(self, entry: Entry, columns: Columns) -> None:
        """Where ALTER TABLE ends a transaction, rows go first, in one of their own, and then the columns change: if
        this run dies in between, the table is empty until the next one has filled it."""
        with self._database.transaction() as session:
            if not self._ledger.ready(session, entry, self._batch):
                raise self._conflict()
            session.run(f"DELETE FROM {self._dialect.place(self._place)}")
        self._run(self._dialect.retype_empty(self._place, columns.changed))

    def _move(self, entry: Entry, merge: Merge, columns: Columns, how: How, repair: Repair | None) -> Applied:
        made, done = self._made(), False
        with self._shared(), self._database.transaction() as session:
            self._transaction = session
            try:
                if self._ledger.move(session, entry, self._batch, merge.rows.read, made):
                    applied, done = self._rows(session, merge, columns, how, repair), True
                    self._ledger.count(session, entry, applied)
            finally:
                self._transaction = None
        if done:
            return applied
        for other in self._ledger.read(self._database):
            if other.of(self._table) and (receipt := other.held(self._batch, self._table)) is not None:
                return receipt.applied
        raise self._conflict()

    @contextmanager
    def _shared(self) -> Iterator[None]:
        """Somebody else may have inserted a row of ours since our merge looked for it: the next try updates it."""
        try:
            yield
        except TargetError as error:
            if self._table.shared and "duplicate" in error.message.lower():
                raise TransientError(f"another writer was quicker: {error.message}") from error
            raise

    def _rows(self, session: Session, merge: Merge, columns: Columns, how: How, repair: Repair | None) -> Applied:
        counted: Counter[str] = Counter()
        if repair is not None:
            self._check_deletes(session, merge, repair)
            steps = merge.repair(repair)
        else:
            steps = merge.steps(how)
        if columns.changed and self._dialect.transactional_ddl:
            clear, *steps = steps
            session.run(clear.sql)
            for statement in self._dialect.retype_empty(self._place, columns.changed):
                session.run(statement)
        for step in steps:
            if len(step.counts) > 1:
                counted.update(dict(zip(step.counts, map(int, session.rows(step.sql)[0]), strict=True)))
            else:
                rows = session.run(step.sql)
                counted.update(dict.fromkeys(step.counts, rows))
        return replace(
            merge.rows.read,
            rows_inserted=counted["inserted"],
            rows_updated=counted["updated"],
            rows_deleted=counted["deleted"],
        )

    def _check_deletes(self, session: Session, merge: Merge, repair: Repair) -> None:
        if repair.deletes is None or self._table.mode is Mode.APPEND:
            return
        ((extras,),) = session.rows(merge.extras(repair))
        if extras > repair.deletes:
            raise TargetError(
                f"{extras:,} rows that the source does not have would be deleted; at most {repair.deletes:,} may be",
                why="So many at once look like a source that lost rows, or another one.",
                remedy=f"If they are to go:   strandline verify -t {self._table.name} --repair --delete "
                "--delete-fraction 1",
            )

    def _conflict(self) -> BatchConflictError:
        return BatchConflictError(
            f"{self._batch} was not written: the target holds another batch",
            where=self._table.where_text,
            remedy=CONFLICT,
        )

    def _made(self) -> str:
        return self._database.made(self._place, [self._place.table]).get(self._place.table, "")

    def _run(self, statements: Sequence[str]) -> None:
        for statement in statements:
            self._database.run(statement)

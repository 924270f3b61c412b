"""The one transaction that moves ledger and rows. Owns its order; where the rows came from is none of its business."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from strandline.core.batch import Applied, Batch, How
from strandline.core.errors import BatchConflictError, TargetError, TransientError
from strandline.core.table import Column, Mode, Table
from strandline.core.window import Repair
from strandline.sinks.sql_dialect import Database, Held, Place, Session
from strandline.sinks.sql_ledger import CONFLICT, Entry, Ledger, Seen
from strandline.sinks.sql_merge import Merge
from strandline.sinks.sql_stage import moved


class Move:
    """One batch. Another thread may cancel it."""

    def __init__(self, database: Database, table: Table, place: Place, batch: Batch) -> None:
        self._database = database
        self._dialect = database.dialect
        self._ledger = Ledger(database, place)
        self._table = table
        self._place = place
        self._batch = batch
        self._transaction: Session | None = None

    def claim(self, seen: Seen, columns: Sequence[Column], *, create: bool) -> Held:
        """The target, made of these columns if there is none, with our row in its ledger."""
        if seen.made is None:
            if not create:
                raise TargetError(
                    f"there is no table {self._place}, and the target says `create: false`",
                    remedy="Make it, or let Strandline:   create: true",
                )
            key = self._table.key if self._table.mode is Mode.MERGE else ()
            self.alter(self._dialect.create(self._place, columns, key, self._table.comment))
        if seen.void or seen.ours(self._table) is None:
            self._ledger.create()
            self._ledger.claim(self._table, self._made(), seen.void)
        held = self._database.find(self._place)
        if held is None:
            raise TransientError(f"{self._place} was dropped just now")
        return held

    def run(
        self,
        entry: Entry,
        merge: Merge,
        changed: Sequence[Column],
        how: How,
        repair: Repair | None,
        made: str | None = None,
    ) -> Applied:
        """`changed`: columns that get another type, where every row is replaced. `made`: the target's incarnation, if
        nothing was done to it since the look."""
        if changed and not self._dialect.transactional_ddl:
            self._clear(entry, changed)
        made, done = made or self._made(), False
        with self._shared(), self._database.transaction() as session:
            self._transaction = session
            try:
                if self._ledger.move(session, entry, self._batch, merge.rows.read, made):
                    applied, done = self._rows(session, merge, changed, how, repair), True
                    self._ledger.count(session, entry, merge.rows.read, applied)
            finally:
                self._transaction = None
        if done:
            return applied
        for other in self._ledger.read(self._database):
            if other.of(self._table) and (receipt := other.held(self._batch, self._table)) is not None:
                return receipt.applied
        raise self._conflict()

    def cancel(self) -> None:
        if (transaction := self._transaction) is not None:
            transaction.cancel()

    def alter(self, statements: Sequence[str]) -> None:
        for statement in statements:
            self._database.run(statement)

    def _clear(self, entry: Entry, changed: Sequence[Column]) -> None:
        """Where ALTER TABLE ends a transaction, rows go first, in one of their own, and then the columns change: if
        this run dies in between, the table is empty until the next one has filled it."""
        statements = self._dialect.retype_empty(self._place, changed)
        with self._database.transaction() as session:
            if not self._ledger.ready(session, entry, self._batch):
                raise self._conflict()
            session.run(f"DELETE FROM {self._dialect.place(self._place)}")
        self.alter(statements)

    @contextmanager
    def _shared(self) -> Iterator[None]:
        """Somebody else may have inserted a row of ours since our merge looked for it: the next try updates it."""
        try:
            yield
        except TargetError as error:
            if self._table.shared and "duplicate" in error.message.lower():
                raise TransientError(f"another writer was quicker: {error.message}") from error
            raise

    def _rows(
        self, session: Session, merge: Merge, changed: Sequence[Column], how: How, repair: Repair | None
    ) -> Applied:
        counted: Counter[str] = Counter()
        read = merge.rows.read
        if repair is not None:
            self._check_deletes(session, merge, repair)
            steps = merge.repair(repair)
        else:
            steps = merge.steps(how)
        if changed and self._dialect.transactional_ddl:
            clear, *steps = steps
            session.run(clear.sql)
            for statement in self._dialect.retype_empty(self._place, changed):
                session.run(statement)
        for step in steps:
            if step.first:
                session.run(step.first)
            if len(step.counts) > 1:
                row = session.rows(step.sql)[0]
                found = dict(zip(step.counts, map(int, row[: len(step.counts)]), strict=True))
                counted.update(found)
                if step.last:
                    read = replace(read, rows_read=found["read"], last_value=moved(self._table, row[-1]))
            else:
                rows = session.run(step.sql)
                counted.update(dict.fromkeys(step.counts, rows))
        return replace(
            read,
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

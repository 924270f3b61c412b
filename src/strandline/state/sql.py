"""The state in a SQL database over a plain DB-API connection: compare-and-set, history, the store's own schema.

One connection behind a lock: every statement is short, so a run's threads and its lease renewal take turns. What
differs between databases is in the dialect.

A write is tried again by itself where that cannot do harm: after a deadlock, and after a lost connection. If the COMMIT
went out and no answer came, the write is simply made again: either the first one did not happen, and now it does, or it
did, and the rows are found exactly as they were to be written. Only if neither can be told is it CommitUnknownError.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property
from itertools import groupby
from typing import Any, TypeVar

from strandline.core.errors import (
    CommitUnknownError,
    ConnectError,
    StateError,
    StrandlineError,
    TransientError,
)
from strandline.core.protocols import Record, Value
from strandline.core.records import KINDS, KindSpec
from strandline.state import schema
from strandline.state.dialect import Connection, Cursor, Dialect, Fault

log = logging.getLogger(__name__)
_ATTEMPTS = 3
_ROWS = 500  # per statement, far below every database's limit of parameters

T = TypeVar("T")
Step = Callable[[Cursor, bool], T]
"""Work on a cursor. True: an earlier attempt's COMMIT was not answered, so the work may have been done already."""


class SqlState:
    atomic = True

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self.shares = bool(dialect.lock)
        self._lock = threading.RLock()
        self._connection: Connection | None = dialect.connect()
        try:
            self._store = self._open()
        except BaseException:
            self.close()
            raise

    def now(self) -> datetime:
        clock = self._dialect.clock
        if clock is None:
            return datetime.now(UTC)
        at: datetime = self._query(clock)[0][0]
        return at.replace(tzinfo=UTC)

    def identity(self) -> str:
        return self._store

    def read(
        self,
        kind: str,
        prefix: Sequence[str] = (),
        *,
        where: Mapping[str, Value] | None = None,
        since: str | None = None,
        newest: int | None = None,
    ) -> list[Record]:
        spec = schema.check_read(kind, prefix, tuple(where or ()), since)
        name, mark = self._dialect.name, self._dialect.placeholder
        tests: list[tuple[str, str, Value]] = [
            (name(part), "=", value) for part, value in zip(spec.key, prefix, strict=False)
        ]
        if since is not None:
            tests.append((name(spec.key[len(prefix)]), ">=", since))
        tests += [(name(field), "=", value) for field, value in (where or {}).items()]
        conditions = [
            f"{column} IS NULL" if value is None else f"{column} {sign} {mark}" for column, sign, value in tests
        ]
        values: list[Value] = [value for _, _, value in tests if value is not None]
        order = ", ".join(name(part) + ("" if newest is None else " DESC") for part in spec.key)
        sql = f"{self._select(kind, spec)} WHERE {' AND '.join(conditions) or '1 = 1'} ORDER BY {order}"
        if newest is not None:
            sql += f" LIMIT {mark}"
            values.append(newest)
        return [_record(kind, spec, row) for row in self._query(sql, values)]

    def put(self, records: Sequence[Record]) -> list[Record]:
        given = schema.checked_all(records)
        written = [replace(record, revision=record.revision + 1) for record in given]

        def write(cursor: Cursor, unsettled: bool) -> list[Record]:
            if unsettled and self._stored(cursor, given) == {_id(record): record for record in written}:
                return written
            self._write(cursor, given, written, unsettled)
            return written

        return self._transact(write) if given else []

    def put_in(self, connection: object, records: Sequence[Record]) -> list[Record]:
        given = schema.checked_all(records)
        written = [replace(record, revision=record.revision + 1) for record in given]
        with self._joined(connection) as cursor:
            self._write(cursor, given, written, unsettled=False)
        return written

    def read_in(self, connection: object, records: Sequence[Record]) -> list[Record]:
        if not self._dialect.inside(connection):
            return []
        with self._joined(connection) as cursor:
            found = self._stored(cursor, schema.checked_all(records), lock=False)
        return list(found.values())

    def append(self, records: Sequence[Record]) -> None:
        written = [replace(record, revision=1) for record in schema.checked_all(records)]

        def write(cursor: Cursor, _: bool) -> None:
            for kind, group in _by_kind(written):
                self._insert(cursor, kind, group, self._dialect.keep)

        if written:
            self._transact(write)

    def delete(self, records: Sequence[Record]) -> None:
        given = schema.checked_all(records)

        def remove(cursor: Cursor, unsettled: bool) -> None:
            if unsettled and not self._revisions(cursor, given):
                return
            self._compare(cursor, given, unsettled)
            for kind, group in _by_kind(given):
                for chunk in _chunks(group):
                    condition, values = self._among(schema.spec_of(kind), chunk)
                    cursor.execute(f"DELETE FROM {self._table(kind)} WHERE {condition}", values)

        if given:
            self._transact(remove)

    def prune(self, kind: str, before: str) -> int:
        spec = schema.check_prune(kind)
        condition = f"{self._dialect.name(spec.key[0])} < {self._dialect.placeholder}"

        def remove(cursor: Cursor, _: bool) -> int:
            cursor.execute(f"DELETE FROM {self._table(kind)} WHERE {condition}", (before,))
            return cursor.rowcount

        return self._transact(remove)

    def close(self) -> None:
        """Using the state afterwards connects it again."""
        with self._lock:
            connection, self._connection = self._connection, None
            if connection is not None:
                with suppress(self._dialect.error):  # it may be gone already
                    connection.close()

    # The statements

    def _table(self, kind: str) -> str:
        return self._dialect.name(schema.table_of(kind))

    def _select(self, kind: str, spec: KindSpec) -> str:
        return f"SELECT {self._dialect.names(_columns(spec))} FROM {self._table(kind)}"

    def _insert(self, cursor: Cursor, kind: str, records: Sequence[Record], tail: str) -> None:
        if records:
            rows = [(*record.key, *record.fields.values(), record.revision) for record in records]
            cursor.executemany(f"{self._inserts[kind]} {tail}", rows)

    @cached_property
    def _inserts(self) -> dict[str, str]:
        """By kind: every batch of every table writes some of each."""
        dialect = self._dialect
        return {
            kind: f"INSERT INTO {self._table(kind)} ({dialect.names(_columns(spec))}) "
            f"VALUES {dialect.row(len(_columns(spec)))}"
            for kind, spec in KINDS.items()
        }

    @cached_property
    def _overwrites(self) -> dict[str, str]:
        """By kind, what an INSERT ends with that overwrites."""
        dialect = self._dialect
        return {
            kind: dialect.overwrite.format(
                key=dialect.names(spec.key),
                columns=", ".join(
                    dialect.assign.format(name=dialect.name(field)) for field in (*schema.fields_of(spec), "revision")
                ),
            )
            for kind, spec in KINDS.items()
        }

    def _write(self, cursor: Cursor, given: Sequence[Record], written: Sequence[Record], unsettled: bool) -> None:
        log.debug("put %s", ", ".join(f"{schema.label(record)} revision {record.revision}" for record in written))
        self._compare(cursor, given, unsettled)
        for kind, group in _by_kind(written):
            self._insert(cursor, kind, [record for record in group if record.revision == 1], "")
            self._insert(cursor, kind, [record for record in group if record.revision > 1], self._overwrites[kind])

    def _among(self, spec: KindSpec, records: Sequence[Record]) -> tuple[str, list[str]]:
        rows = ", ".join([self._dialect.row(len(spec.key))] * len(records))
        condition = f"({self._dialect.names(spec.key)}) {self._dialect.among.format(rows=rows)}"
        return condition, [part for record in records for part in record.key]

    def _revisions(self, cursor: Cursor, records: Sequence[Record]) -> dict[tuple[str, ...], int]:
        """The stored revisions of these records, which nobody else can change from here on."""
        found: dict[tuple[str, ...], int] = {}
        for kind, group in _by_kind(records):
            spec = schema.spec_of(kind)
            keys = self._dialect.names(spec.key)
            for chunk in _chunks(group):
                condition, values = self._among(spec, chunk)
                sql = f"SELECT {keys}, revision FROM {self._table(kind)} WHERE {condition} ORDER BY {keys}"
                cursor.execute(f"{sql} {self._dialect.lock}", values)
                found |= {(kind, *row[:-1]): row[-1] for row in cursor.fetchall()}
        return found

    def _stored(self, cursor: Cursor, records: Sequence[Record], *, lock: bool = True) -> dict[tuple[str, ...], Record]:
        found: list[Record] = []
        for kind, group in _by_kind(records):
            spec = schema.spec_of(kind)
            for chunk in _chunks(group):
                condition, values = self._among(spec, chunk)
                tail = self._dialect.lock if lock else ""
                cursor.execute(f"{self._select(kind, spec)} WHERE {condition} {tail}", values)
                found += [_record(kind, spec, row) for row in cursor.fetchall()]
        return {_id(record): record for record in found}

    def _compare(self, cursor: Cursor, records: Sequence[Record], unsettled: bool) -> None:
        stored = self._revisions(cursor, records)
        for record in records:
            revision = stored.get(_id(record), 0)
            if revision != record.revision:
                conflict = schema.conflict(record, revision)
                if unsettled:
                    raise CommitUnknownError(f"{conflict}; whether our write was in between cannot be told")
                raise conflict

    # Connection and transactions

    def _query(self, sql: str, values: Sequence[Value] = ()) -> Sequence[Sequence[Any]]:
        def ask(cursor: Cursor, _: bool) -> Sequence[Sequence[Any]]:
            log.debug("%s %s", sql, list(values))
            cursor.execute(sql, values)
            return cursor.fetchall()

        return self._attempt(ask, transaction=False)

    def _transact(self, step: Step[T]) -> T:
        return self._attempt(step, transaction=True)

    def _attempt(self, step: Step[T], *, transaction: bool) -> T:
        unsettled = False
        with self._lock:
            for attempt in range(1, _ATTEMPTS + 1):
                cursor = self._cursor(unsettled)
                committing = False
                try:
                    if not transaction:
                        return step(cursor, False)
                    cursor.execute(self._dialect.begin)
                    result = step(cursor, unsettled)
                    committing = True
                    cursor.execute("COMMIT")
                    return result
                except self._dialect.error as error:
                    fault = self._dialect.fault(error)
                    self._abandon(cursor, rollback=transaction, lost=fault is Fault.LOST)
                    unsettled = unsettled or (committing and fault is Fault.LOST)
                    if fault not in (Fault.LOST, Fault.BUSY) or attempt == _ATTEMPTS:
                        raise self._failure(error, fault, unsettled) from error
                except StrandlineError:
                    self._abandon(cursor, rollback=transaction)
                    raise
                except BaseException:  # Ctrl-C in the middle of a statement: the connection cannot be used on
                    self._abandon(cursor, lost=True)
                    raise
        raise AssertionError("the last attempt returns or raises")

    @contextmanager
    def _joined(self, connection: object) -> Iterator[Cursor]:
        """A cursor in the caller's transaction. What fails is undone; what the caller did before it stays."""
        cursor = self._dialect.join(connection)
        try:
            cursor.execute("SAVEPOINT strandline")
            try:
                self._check_joined(cursor)
                yield cursor
            except BaseException:
                cursor.execute("ROLLBACK TO SAVEPOINT strandline")
                raise
            finally:
                cursor.execute("RELEASE SAVEPOINT strandline")
        except self._dialect.error as error:
            raise self._failure(error, self._dialect.fault(error), False) from error
        finally:
            cursor.close()

    def _check_joined(self, cursor: Cursor) -> None:
        try:
            store = schema.marks(cursor, self._dialect)[1]
        except self._dialect.error as error:
            if self._dialect.fault(error) is not Fault.ABSENT:
                raise
            store = None
        if store != self._store:
            raise StateError(
                f"this connection does not lead to the state {self._dialect.address}",
                why="Its transaction and the watermark would not be one."
                if store is None
                else "Another state is there.",
                remedy="Connect to the database, and the schema, that the state is in.",
            )

    def _cursor(self, unsettled: bool) -> Cursor:
        """A cursor on the open connection, or on a new one."""
        if self._connection is None:
            try:
                self._connection = self._dialect.connect()
            except ConnectError as error:
                kind = CommitUnknownError if unsettled else TransientError
                raise kind(error.message, remedy=error.remedy) from error
        return self._connection.cursor()

    def _abandon(self, cursor: Cursor, *, rollback: bool = False, lost: bool = False) -> None:
        with suppress(self._dialect.error):
            cursor.close()  # before the connection: SQLite keeps the file open as long as a cursor is
        if rollback and not lost and self._connection is not None:
            try:
                self._connection.cursor().execute("ROLLBACK")
            except self._dialect.error:  # ended by the database already, or the connection went too
                lost = True
        if lost:
            self.close()

    def _failure(self, error: Exception, fault: Fault, unsettled: bool) -> StrandlineError:
        if unsettled:
            return CommitUnknownError(f"the state {self._dialect.address}: no answer to a commit: {error}")
        if fault in (Fault.LOST, Fault.BUSY):
            return TransientError(f"the state {self._dialect.address}: {error}")
        return self._dialect.explain(error)

    # The store's own schema

    def _open(self) -> str:
        """One query where the schema is as it should be."""
        version, store = self._marks()
        if version is None or version < schema.VERSION:
            self._migrate()
            version, store = self._marks()
        if version is None or store is None:
            raise StateError(
                f"the state {self._dialect.address} has lost its own marks in strandline_meta",
                remedy="Restore it from a backup. Strandline does not guess which store it was.",
            )
        if version > schema.VERSION:
            raise StateError(
                f"the state {self._dialect.address} was written by a newer Strandline "
                f"(schema {version}; this one knows {schema.VERSION})",
                remedy="Upgrade this installation: pip install --upgrade strandline",
            )
        return store

    def _marks(self) -> tuple[int | None, str | None]:
        try:
            return schema.marks(self._cursor(False), self._dialect)
        except self._dialect.error as error:
            fault = self._dialect.fault(error)
            if fault is Fault.ABSENT:
                return None, None
            raise self._failure(error, fault, False) from error

    def _migrate(self) -> None:
        cursor = self._cursor(False)
        try:
            for statement in self._dialect.exclusive:
                cursor.execute(statement)
                if cursor.description and tuple(cursor.fetchall()) == ((0,),):
                    raise TransientError(f"the state {self._dialect.address} is being migrated by another process")
            schema.migrate(cursor, self._dialect)
            for statement in self._dialect.release:
                cursor.execute(statement)
        except self._dialect.error as error:
            raise self._failure(error, self._dialect.fault(error), False) from error


def _columns(spec: KindSpec) -> tuple[str, ...]:
    return (*spec.key, *schema.fields_of(spec), "revision")


def _record(kind: str, spec: KindSpec, row: Sequence[Any]) -> Record:
    width = len(spec.key)
    return Record(kind, tuple(row[:width]), dict(zip(schema.fields_of(spec), row[width:-1], strict=True)), row[-1])


def _id(record: Record) -> tuple[str, ...]:
    return (record.kind, *record.key)


def _by_kind(records: Sequence[Record]) -> list[tuple[str, list[Record]]]:
    """Always in the same order, so that two writers of the same records do not lock them crosswise."""
    ordered = sorted(records, key=_id)
    return [(kind, list(group)) for kind, group in groupby(ordered, key=lambda record: record.kind)]


def _chunks(records: Sequence[Record]) -> list[Sequence[Record]]:
    return [records[start : start + _ROWS] for start in range(0, len(records), _ROWS)]

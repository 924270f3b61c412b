"""PostgreSQL as a target: its sessions, its catalog, and what its errors mean. The statements are `postgres_target`."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from strandline.core.errors import CommitUnknownError, StrandlineError, TargetError, TransientError
from strandline.core.table import Column
from strandline.endpoint import Endpoint
from strandline.sinks import postgres_copy
from strandline.sinks.postgres_target import PostgresTargetDialect
from strandline.sinks.spare import Spare
from strandline.sinks.sql_dialect import STAGE, Held, Place, Writer, no_schema, writer
from strandline.sources import postgres_session
from strandline.sources.postgres_session import PostgresSession, reader

if TYPE_CHECKING:
    import psycopg
    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)
WRITER = "strandline writer"
_KINDS = {"r": "table", "p": "table", "v": "view", "m": "materialized view", "f": "foreign table"}
_FIND = """
SELECT c.relkind::text, EXISTS (SELECT 1 FROM pg_trigger g WHERE g.tgrelid = c.oid AND NOT g.tgisinternal),
       (SELECT coalesce(json_agg(json_build_array(
                 a.attname,
                 CASE WHEN y.typtype = 'd' THEN format_type(y.typbasetype, y.typtypmod)
                      ELSE format_type(a.atttypid, a.atttypmod) END,
                 NOT a.attnotnull, col_description(a.attrelid, a.attnum), a.attgenerated <> '', a.attidentity = 'a',
                 a.atthasdef,
                 coalesce((SELECT l.collname FROM pg_collation l
                            WHERE l.oid = a.attcollation AND NOT l.collisdeterministic), '')) ORDER BY a.attnum), '[]')
          FROM pg_attribute a JOIN pg_type y ON y.oid = a.atttypid
         WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
       (SELECT coalesce(json_agg(u.names), '[]')
          FROM (SELECT json_agg(a.attname) AS names
                  FROM pg_index i JOIN pg_attribute a
                    ON a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey[0:i.indnkeyatts - 1])
                 WHERE i.indrelid = c.oid AND i.indisunique AND i.indisvalid
                   AND i.indpred IS NULL AND i.indexprs IS NULL
                 GROUP BY i.indexrelid) u)
  FROM pg_class c WHERE c.oid = to_regclass({name})
"""
_FULL = "53100"
_CANCELLED = "57014"
_MADE_AT_ONCE = "pg_type_typname_nsp_index"
_DENIED = "42501"
_COPIED = re.compile(postgres_copy.FAILED)
_JDBC = re.compile(
    r"(?:was aborted: |PSQLException: )(?:ERROR: |FATAL: )?(.*?)(?:  Call getNextException.*)?$", re.MULTILINE
)


@dataclass
class PostgresTransaction:
    """One connection that commits when told."""

    session: PostgresTarget
    connection: psycopg.Connection[tuple[Any, ...]]

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        log.debug("%s", sql)
        with self.session.errors(self.connection):
            return self.connection.execute(sql.encode()).fetchall()

    def run(self, sql: str) -> int:
        log.debug("%s", sql)
        with self.session.errors(self.connection):
            return self.connection.execute(sql.encode()).rowcount

    def cancel(self) -> None:
        self.connection.cancel()


class PostgresTarget(PostgresSession):
    role = "target"
    application = WRITER
    options = (*PostgresSession.options, "create", "copy")
    settings = postgres_session.SETTINGS

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        self._copies = endpoint.flag("copy", True)
        self._spare = Spare(self.connect, _is_idle)
        self._guest = False  # the spare connections are another's

    @cached_property
    def dialect(self) -> PostgresTargetDialect:
        ((version,),) = self.rows("SELECT current_setting('server_version_num')::int / 10000")
        return PostgresTargetDialect(version)

    @cached_property
    def schema(self) -> str:
        if given := self.endpoint.options.get("schema"):
            return given
        ((found,),) = self.rows("SELECT coalesce(current_schema(), 'public')")
        return str(found)

    @cached_property
    def writer(self) -> Writer:
        """Texts go without a type, so that the staging table's columns say what they are."""
        chosen = {"ApplicationName": WRITER, "reWriteBatchedInserts": "true", "stringtype": "unspecified"}
        # The driver makes one statement of up to 128 rows: so many fill it, and take half as long as 10,000 at once.
        return writer(reader(self.endpoint), chosen, ("readOnly", "binaryTransferDisable"), batch=1024)

    def fill(self, rows: DataFrame, stage: Place) -> None:
        """By COPY where Spark's workers can, else over JDBC."""
        table = self.dialect.place(stage)
        if not (self._copies and postgres_copy.copied(rows, self.login, self.settings, table)):
            self.writer.fill(rows, table)

    def translate(self, text: str, /) -> StrandlineError | None:
        return translate(text)

    def another(self) -> PostgresTarget:
        other = PostgresTarget(self.endpoint)
        other.__dict__.update({"dialect": self.dialect, "schema": self.schema, "writer": self.writer})
        other._spare, other._guest = self._spare, True
        return other

    def identity(self) -> str:
        return self._identity

    @cached_property
    def _identity(self) -> str:
        system, database = self.rows("SELECT system_identifier, current_database() FROM pg_control_system()")[0]
        return f"postgresql:{system}/{database}"

    def run(self, sql: str) -> int:
        log.debug("%s", sql)
        with self._lock, self.errors():
            return self._open().execute(sql.encode()).rowcount

    @contextmanager
    def transaction(self) -> Iterator[PostgresTransaction]:
        import psycopg

        connection = self._spare.take()
        try:
            connection.autocommit = False
            yield PostgresTransaction(self, connection)
            try:
                connection.commit()
            except psycopg.Error as error:
                if connection.closed:
                    said = f"the connection to {self.endpoint} was lost while it committed"
                    raise CommitUnknownError(said) from error
                with self.errors(connection):
                    raise
        except BaseException:
            connection.close()
            self.rest()  # what broke it may have broken all
            raise
        connection.autocommit = True
        self._spare.leave(connection)

    def _open(self) -> psycopg.Connection[tuple[Any, ...]]:
        if self._connection is not None and self._connection.closed:
            self._connection = None
            self.rest()
        self._connection = self._connection or self._spare.take()
        return self._connection

    def rest(self) -> None:
        self._spare.close()

    def close(self) -> None:
        if self._guest and self._connection is not None:
            self._spare.leave(self._connection)
            self._connection = None
        super().close()
        if not self._guest:
            self._spare.end()

    @contextmanager
    def snapshot(self) -> Iterator[PostgresTransaction]:
        connection = self.connect()
        try:
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            yield PostgresTransaction(self, connection)
        finally:
            connection.close()

    def made(self, place: Place, names: Sequence[str]) -> dict[str, str]:
        string = self.dialect.string
        listed = ", ".join(string(name) for name in names)
        found = self.rows(
            "SELECT c.relname, c.oid::text FROM pg_namespace n LEFT JOIN pg_class c ON c.relnamespace = n.oid "
            f"AND c.relname IN ({listed}) AND c.relkind IN ('r', 'p', 'v', 'm', 'f') "
            f"WHERE n.nspname = {string(place.schema)}"
        )
        if not found:
            raise no_schema("schema", place.schema, f"CREATE SCHEMA {self.dialect.quote(place.schema)}")
        return {name: oid for name, oid in found if name is not None}

    def find(self, place: Place) -> Held | None:
        name = self.dialect.string(self.dialect.place(place))
        found = self.rows(_FIND.format(name=name))
        if not found:
            return None
        kind, triggers, columns, unique = found[0]
        return Held(
            place,
            tuple(Column(name, kind, nullable, comment=comment or "") for name, kind, nullable, comment, *_ in columns),
            tuple(frozenset(names) for names in unique),
            _KINDS.get(kind, "relation of another kind"),
            generated=frozenset(row[0] for row in columns if row[4]),
            numbered=frozenset(row[0] for row in columns if row[5]),
            defaulted=frozenset(row[0] for row in columns if row[6]),
            loose={row[0]: row[7] for row in columns if row[7]},
            triggers=triggers,
        )

    def knows(self, type_text: str) -> bool:
        ((found,),) = self.rows(f"SELECT to_regtype({self.dialect.string(type_text)}) IS NOT NULL")
        return bool(found)

    def left(self, place: Place) -> dict[str, str]:
        """LIKE goes by the index on names: every table asks, and there may be many."""
        named = STAGE.replace("_", r"\_")
        found = self.rows(
            "SELECT c.relname, coalesce(obj_description(c.oid, 'pg_class'), '') FROM pg_class c "
            "JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind = 'r' "
            f"AND n.nspname = {self.dialect.string(place.schema)} AND c.relname LIKE '{named}%'"
        )
        return dict(found)

    def drop(self, place: Place) -> bool:
        try:
            with self.transaction() as session:
                session.run("SET LOCAL lock_timeout = '1s'")
                session.run(f"DROP TABLE IF EXISTS {self.dialect.place(place)}")
        except StrandlineError as error:
            log.warning("%s could not be dropped: %s", place, error)
            return False
        return True

    def fault(self, state: str, said: str, /) -> StrandlineError:
        return _fault(state, said)


def _is_idle(connection: psycopg.Connection[tuple[Any, ...]]) -> bool:
    return connection.info.transaction_status == 0  # open, and in no transaction


def translate(text: str) -> StrandlineError | None:
    """What either driver said, from the text of Spark's error; None: neither said anything."""
    if copied := _COPIED.search(text):
        state, said = copied[1], copied[2].strip()
        if not state or state.startswith(postgres_session.LOST):
            return TransientError(f"the target's connection failed: {said}")
        return _fault(state, said)
    found = _JDBC.search(text)
    if found is None:
        return None
    said = found[1].strip()
    if postgres_session.JDBC_LOST.search(said):
        return TransientError(f"the target's connection failed: {said}")
    return _fault("", said)


def _fault(state: str, said: str) -> StrandlineError:
    if state == _FULL or "No space left on device" in said:
        return TargetError("the target's disk is full", why=said, remedy="Free some space. Nothing was committed.")
    if _MADE_AT_ONCE in said:
        return TransientError(f"somebody else was making the same table: {said}")
    if state == _CANCELLED:
        return TransientError(f"the target gave up a statement: {said}")
    remedy = ""
    if state == _DENIED or "permission denied" in said:
        remedy = "The target's user must own its tables, and may CREATE in their schema."
    elif "out of range" in said or "too long" in said:
        remedy = "Widen the column in the target, or cast it in `query:` or `transform:`."
    return TargetError(said, remedy=remedy)

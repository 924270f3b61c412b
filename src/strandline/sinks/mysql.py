"""MySQL and MariaDB as targets: sessions, catalog, and what their errors mean. The statements are `mysql_target`."""

from __future__ import annotations

import logging
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from strandline.core.errors import CommitUnknownError, ConfigError, StrandlineError, TargetError, TransientError
from strandline.core.table import Column
from strandline.endpoint import Endpoint
from strandline.sinks.mysql_target import MySqlTargetDialect
from strandline.sinks.spare import Spare
from strandline.sinks.sql_dialect import STAGE, Held, Place, Writer, no_schema, writer
from strandline.sources import mysql_session
from strandline.sources.jdbc import translator
from strandline.sources.mysql import server_identity
from strandline.sources.mysql_session import MySqlSession, reader

if TYPE_CHECKING:
    from pymysql.connections import Connection
    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)
_PROGRAM = "strandline writer"
_SQL_MODE = f"{mysql_session.SQL_MODE},NO_AUTO_VALUE_ON_ZERO"  # a 0 in a numbered column stays one
_FOUND_ROWS = 2  # CLIENT.FOUND_ROWS: a row that is updated to what it was counts as updated
_COLUMNS = """
SELECT COLUMN_NAME, COLUMN_TYPE, IS_NULLABLE, COLUMN_COMMENT, EXTRA, COLUMN_DEFAULT, CHARACTER_SET_NAME, COLLATION_NAME
  FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = {schema} AND TABLE_NAME = {table} ORDER BY ORDINAL_POSITION
"""
_UNIQUE = """
SELECT INDEX_NAME, COLUMN_NAME, SUB_PART FROM information_schema.STATISTICS
 WHERE TABLE_SCHEMA = {schema} AND TABLE_NAME = {table} AND NON_UNIQUE = 0
"""
_JDBC = re.compile(r"(?:java\.sql\.\w+|com\.mysql\.cj\.\S+)Exception: (?:Data truncation: )?(.*)")
_INTERRUPTED, _FULL, _DENIED = {1317, 1053}, {1021, 1114}, {1044, 1142, 1143, 1227}


@dataclass
class MySqlTransaction:
    """One connection that commits when told."""

    session: MySqlTarget
    connection: Connection[Any]
    thread: int

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        log.debug("%s", sql)
        with self.session.errors(self.connection), self.connection.cursor() as cursor:
            cursor.execute(sql)
            return list(cursor.fetchall())

    def run(self, sql: str) -> int:
        log.debug("%s", sql)
        with self.session.errors(self.connection), self.connection.cursor() as cursor:
            return int(cursor.execute(sql))

    def cancel(self) -> None:
        self.session.kill(self.thread)


class MySqlTarget(MySqlSession):
    role = "target"
    program = _PROGRAM
    options = (*(option for option in MySqlSession.options if option != "zero_dates"), "schema", "create")
    sql_mode = _SQL_MODE
    client_flag = _FOUND_ROWS

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        self._spare: Spare[Connection[Any]] = Spare(self.connect, lambda connection: connection.open)
        self._guest = False  # the spare connections are another's

    @cached_property
    def dialect(self) -> MySqlTargetDialect:
        ((version,),) = self.rows("SELECT VERSION()")
        return MySqlTargetDialect(mariadb="mariadb" in str(version).lower())

    @cached_property
    def schema(self) -> str:
        found = self.endpoint.options.get("schema") or self.endpoint.path
        if not found:
            raise ConfigError(f"{self.endpoint} names no database", remedy="Write it at the end of the target's URL.")
        return found

    @cached_property
    def writer(self) -> Writer:
        chosen = {
            "rewriteBatchedStatements": "true",
            "sessionVariables": f"sql_mode='{_SQL_MODE}'",
            "connectionAttributes": f"program_name:{_PROGRAM}",
        }
        return writer(reader(self.endpoint), chosen)

    def fill(self, rows: DataFrame, stage: Place) -> None:
        self.writer.fill(rows, self.dialect.place(stage))

    def translate(self, text: str, /) -> StrandlineError | None:
        return translate(text)

    def another(self) -> MySqlTarget:
        other = MySqlTarget(self.endpoint)
        other.__dict__.update({"dialect": self.dialect, "schema": self.schema, "writer": self.writer})
        other._spare, other._guest = self._spare, True
        return other

    def identity(self) -> str:
        return self._identity

    @cached_property
    def _identity(self) -> str:
        found = self.rows(
            "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('datadir', 'hostname', 'server_uid', 'server_uuid')"
        )
        return server_identity({name: str(value) for name, value in found})

    def run(self, sql: str) -> int:
        log.debug("%s", sql)
        with self._lock, self.errors(), self._open().cursor() as cursor:
            return int(cursor.execute(sql))

    @contextmanager
    def transaction(self) -> Iterator[MySqlTransaction]:
        import pymysql

        connection = self._spare.take()
        try:
            session = self._begun(connection, "READ COMMITTED")
            connection.begin()
            yield session
            try:
                connection.commit()
            except pymysql.err.MySQLError as error:
                if not connection.open or error.args[:1] in [(code,) for code in mysql_session.GONE]:
                    said = f"the connection to {self.endpoint} was lost while it committed"
                    raise CommitUnknownError(said) from error
                with self.errors(connection):
                    raise
        except BaseException:
            _close(connection)
            self.rest()  # what broke it may have broken all
            raise
        self._spare.leave(connection)

    def rest(self) -> None:
        self._spare.close()

    def close(self) -> None:
        super().close()
        if not self._guest:
            self._spare.end()

    @contextmanager
    def snapshot(self) -> Iterator[MySqlTransaction]:
        connection = self.connect()
        try:
            session = self._begun(connection, "REPEATABLE READ")
            session.run("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
            yield session
        finally:
            _close(connection)

    def _begun(self, connection: Connection[Any], level: str) -> MySqlTransaction:
        with self.errors(connection), connection.cursor() as cursor:
            cursor.execute(f"SET SESSION TRANSACTION ISOLATION LEVEL {level}")
            cursor.execute("SELECT CONNECTION_ID()")
            ((thread,),) = cursor.fetchall()
        return MySqlTransaction(self, connection, int(thread))

    def kill(self, thread: int) -> None:
        """From another thread: the statement of a connection gives up."""
        self.run(f"KILL QUERY {thread}")

    def made(self, place: Place, names: Sequence[str]) -> dict[str, str]:
        string = self.dialect.string
        found = self.rows(
            "SELECT TABLE_NAME, CAST(CREATE_TIME AS CHAR) FROM information_schema.TABLES "
            f"WHERE TABLE_SCHEMA = {string(place.schema)} AND TABLE_NAME IN ({', '.join(map(string, names))})"
        )
        asked = f"SELECT 1 FROM information_schema.SCHEMATA WHERE SCHEMA_NAME = {string(place.schema)}"
        if not found and not self.rows(asked):
            raise no_schema("database", place.schema, f"CREATE DATABASE {self.dialect.quote(place.schema)}")
        return {str(name): str(made) for name, made in found}

    def find(self, place: Place) -> Held | None:
        words = {"schema": self.dialect.string(place.schema), "table": self.dialect.string(place.table)}
        where = "WHERE {}_SCHEMA = {schema} AND {}_TABLE = {table}".format("TRIGGER", "EVENT_OBJECT", **words)
        found = self.rows(
            "SELECT TABLE_TYPE FROM information_schema.TABLES "
            f"WHERE TABLE_SCHEMA = {words['schema']} AND TABLE_NAME = {words['table']}"
        )
        if not found:
            return None
        columns = [tuple(map(_text, row)) for row in self.rows(_COLUMNS.format(**words))]
        indexes: dict[str, set[str]] = defaultdict(set)
        prefixes = set()
        for index, column, part in self.rows(_UNIQUE.format(**words)):
            indexes[index].add(column)
            prefixes |= {index} if part is not None else set()
        generated = {row[0] for row in columns if re.search(r"(?<!DEFAULT_)GENERATED", row[4].upper())}
        numbered = {row[0] for row in columns if "auto_increment" in row[4]}
        return Held(
            place,
            tuple(Column(row[0], _typed(row), row[2] == "YES", comment=row[3]) for row in columns),
            tuple(frozenset(names) for index, names in indexes.items() if index not in prefixes),
            "view" if "VIEW" in str(found[0][0]) else "table",
            generated=frozenset(generated),
            defaulted=frozenset(numbered | {row[0] for row in columns if row[5] not in ("", "NULL")}),
            loose={row[0]: row[7] for row in columns if row[7] and not _exact(row[7]) and "char" in row[1]},
            triggers=bool(self.rows(f"SELECT 1 FROM information_schema.TRIGGERS {where} LIMIT 1")),
        )

    def knows(self, type_text: str) -> bool:
        """MariaDB has types of its own."""
        return self.dialect.collation == "utf8mb4_nopad_bin" or not re.match(r"(uuid|inet4|inet6)\b", type_text)

    def left(self, place: Place) -> dict[str, str]:
        found = self.rows(
            "SELECT TABLE_NAME, TABLE_COMMENT FROM information_schema.TABLES "
            f"WHERE TABLE_SCHEMA = {self.dialect.string(place.schema)} AND LEFT(TABLE_NAME, {len(STAGE)}) = '{STAGE}'"
        )
        return {str(name): _text(comment) for name, comment in found}

    def drop(self, place: Place) -> bool:
        try:
            with self.transaction() as session:
                session.run("SET SESSION lock_wait_timeout = 1")
                session.run(f"DROP TABLE IF EXISTS {self.dialect.place(place)}")
                session.run("SET SESSION lock_wait_timeout = DEFAULT")
        except StrandlineError as error:
            log.warning("%s could not be dropped: %s", place, error)
            return False
        return True

    def fault(self, code: int, said: str, /) -> StrandlineError:
        return _fault(code, said)


def _fault(code: int, said: str) -> StrandlineError:
    if code in _INTERRUPTED:
        return TransientError(f"the target gave up a statement: {said}")
    if code in _FULL or "is full" in said:
        return TargetError("the target's disk is full", why=said, remedy="Free some space. Nothing was committed.")
    remedy = ""
    if code in _DENIED or "denied" in said:
        remedy = "The target's user needs SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, INDEX and DROP there."
    elif re.search(r"too long|[Oo]ut of range|Incorrect", said):
        remedy = "Widen the column in the target, or cast it in `query:` or `transform:`."
    return TargetError(said, remedy=remedy)


translate = translator(_JDBC, mysql_session.JDBC_LOST, "target", lambda said: _fault(0, said))


def _typed(row: Sequence[str]) -> str:
    """The type with its character set and collation: staged texts must compare as those of the target do."""
    return f"{row[1]} CHARACTER SET {row[6]} COLLATE {row[7]}" if row[7] else row[1]


def _exact(collation: str) -> bool:
    """Whether two texts are equal only if they are the same, to the last blank."""
    return collation.endswith("_nopad_bin") or collation == "utf8mb4_0900_bin"


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else "" if value is None else str(value)


def _close(connection: Connection[Any]) -> None:
    if connection.open:
        connection.close()

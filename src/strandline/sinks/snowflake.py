"""Snowflake as a target: its sessions, its catalog, its loading, and what its errors mean. The statements are
`snowflake_target`."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from strandline.core.errors import (
    CommitUnknownError,
    ConfigError,
    SourceError,
    StrandlineError,
    TargetError,
    TransientError,
)
from strandline.core.protocols import Files
from strandline.core.table import Column
from strandline.endpoint import Endpoint
from strandline.sinks.snowflake_target import SnowflakeTargetDialect
from strandline.sinks.sql_dialect import STAGE, Held, Place, Session, no_schema
from strandline.sinks.sql_files import FileColumn
from strandline.sources.snowflake import server_identity
from strandline.sources.snowflake_catalog import column_records, keys_of
from strandline.sources.snowflake_dialect import type_text
from strandline.sources.snowflake_names import shown, stored
from strandline.sources.snowflake_session import DENIED, SnowflakeSession

if TYPE_CHECKING:
    from snowflake.connector import SnowflakeConnection

log = logging.getLogger(__name__)
_NO_FILE = 253006
_KINDS = {"BASE TABLE": "table", "VIEW": "view", "MATERIALIZED VIEW": "materialized view"}
_BAD_ROW = re.compile(
    r"(?P<what>.+) File '(?P<file>.*?)'(?:, line \d+, character \d+)?(?: Row (?P<row>\d+)[^,]*)?"
    r"(?:, column (?:\"[^\"]*\"\[)?\"(?P<column>[^\"]*)\".*)?"
)
_SKIPPING = re.compile(r" If you would like to continue loading when an error .*")  # whoever does loses rows
_EXTERNAL = """\
Name the Snowflake stage that shows the same files, in the target's options:   external_stage: DATABASE.SCHEMA.NAME"""


@dataclass
class SnowflakeTransaction:
    """One connection that commits when told."""

    session: SnowflakeTarget
    connection: SnowflakeConnection

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        log.debug("%s", sql)
        with self.session.errors():
            return list(self.session.execute(self.connection, sql, self.session.long).fetchall())

    def run(self, sql: str) -> int:
        log.debug("%s", sql)
        with self.session.errors():
            return self.session.execute(self.connection, sql, self.session.long).rowcount or 0

    def cancel(self) -> None:
        self.session.run(f"SELECT SYSTEM$CANCEL_ALL_QUERIES({self.connection.session_id})")


class SnowflakeTarget(SnowflakeSession):
    role = "target"
    options = (*SnowflakeSession.options, "create", "hybrid", "external_stage")

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        self.dialect = SnowflakeTargetDialect(hybrid=endpoint.flag("hybrid", False))
        self._idle: list[SnowflakeConnection] = []  # a login takes long

    @property
    def schema(self) -> str:
        return shown(self.default_schema)

    def another(self) -> SnowflakeTarget:
        return SnowflakeTarget(self.endpoint)

    def identity(self) -> str:
        return self._identity

    @cached_property
    def _identity(self) -> str:
        return server_identity(self)

    def run(self, sql: str) -> int:
        log.debug("%s", sql)
        with self._lock, self.errors():
            return self.execute(self.open(), sql).rowcount or 0

    @contextmanager
    def transaction(self) -> Iterator[SnowflakeTransaction]:
        with self.errors():
            connection = self._idle.pop() if self._idle else self.connect()
        session = SnowflakeTransaction(self, connection)
        try:
            session.run("BEGIN")
            yield session
        except BaseException:
            self._roll_back(session)
            raise
        try:
            session.run("COMMIT")
        except TransientError as error:
            connection.close()
            raise CommitUnknownError(f"the connection to {self.endpoint} was lost while it committed") from error
        self._idle.append(connection)

    def _roll_back(self, session: SnowflakeTransaction) -> None:
        try:
            session.run("ROLLBACK")
            self._idle.append(session.connection)
        except StrandlineError as error:  # its end rolls back as well; what went wrong first is what to tell
            log.warning("%s: %s", self.endpoint, error)
            session.connection.close()

    @contextmanager
    def snapshot(self) -> Iterator[SnowflakeTransaction]:
        """Snowflake reads what is committed when a statement begins: only the lease keeps other batches away."""
        with self.transaction() as session:
            yield session

    def rest(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def close(self) -> None:
        super().close()
        self.rest()

    def made(self, place: Place, names: Sequence[str]) -> dict[str, str]:
        string = self.dialect.string
        schema, listed = string(stored(place.schema)), ", ".join(string(stored(name)) for name in names)
        made = "COALESCE(TO_VARCHAR(CREATED, 'YYYY-MM-DD HH24:MI:SS.FF3'), '')"
        found = self.rows(
            f"SELECT TABLE_NAME, {made} FROM INFORMATION_SCHEMA.TABLES "
            f"WHERE TABLE_SCHEMA = {schema} AND TABLE_NAME IN ({listed})"
        )
        asked = f"SELECT 1 FROM INFORMATION_SCHEMA.SCHEMATA WHERE SCHEMA_NAME = {schema}"
        if not found and not self.rows(asked):
            raise no_schema("schema", place.schema, f"CREATE SCHEMA {self.dialect.quote(place.schema)}")
        return {shown(name): str(made) for name, made in found}

    def find(self, place: Place) -> Held | None:
        string, name = self.dialect.string, (place.schema, place.table)
        found = self.records(
            f"SELECT * FROM INFORMATION_SCHEMA.TABLES WHERE TABLE_SCHEMA = {string(stored(place.schema))} "
            f"AND TABLE_NAME = {string(stored(place.table))}"
        )
        if not found:
            return None
        columns = {shown(row["column_name"]): row for row in column_records(self, [name])}
        kept = keys_of(self, [name]).get(name) if found[0].get("is_hybrid") == "YES" else None
        return Held(
            place,
            tuple(
                Column(name, type_text(row), row["is_nullable"] == "YES", comment=str(row.get("comment") or ""))
                for name, row in columns.items()
            ),
            (frozenset(kept),) if kept else (),
            _KINDS.get(str(found[0]["table_type"]), "table of another kind"),
            generated=frozenset(name for name, row in columns.items() if row.get("is_identity") == "YES"),
            defaulted=frozenset(name for name, row in columns.items() if row.get("column_default") is not None),
            loose={name: str(row["collation_name"]) for name, row in columns.items() if row.get("collation_name")},
        )

    def knows(self, _type_text: str, /) -> bool:
        """Whatever a source names in Snowflake's words."""
        return True

    def left(self, place: Place) -> dict[str, str]:
        found = self.rows(
            "SELECT TABLE_NAME, COMMENT FROM INFORMATION_SCHEMA.TABLES "
            f"WHERE TABLE_SCHEMA = {self.dialect.string(stored(place.schema))} "
            f"AND STARTSWITH(TABLE_NAME, {self.dialect.string(stored(STAGE))})"
        )
        return {shown(name): str(comment or "") for name, comment in found}

    def drop(self, place: Place) -> bool:
        try:
            self.run(f"DROP TABLE IF EXISTS {self.dialect.place(place)}")
        except StrandlineError as error:
            log.warning("%s could not be dropped: %s", place, error)
            return False
        return True

    def copy(self, session: Session, files: Files, stage: Place, columns: Sequence[FileColumn], /) -> None:
        try:
            self._load(session, files, stage, columns)
        except TargetError as error:
            _tell_row(error, files, columns)
            raise

    def _load(self, session: Session, files: Files, stage: Place, columns: Sequence[FileColumn]) -> None:
        local = [address.removeprefix("file:") for address in files.sizes if address.startswith("file:")]
        if len(local) == len(files.sizes):
            for path in local:
                session.run(self.dialect.put(path, stage))
            session.run(self.dialect.copy(stage, columns))
            return
        name = self.endpoint.options.get("external_stage")
        if not name:
            raise ConfigError(f"{self.endpoint} cannot read the files of the stage by itself", remedy=_EXTERNAL)
        paths = below(self._address(name), list(files.sizes))
        for statement in self.dialect.copy_external(stage, columns, name, paths):
            session.run(statement)

    def _address(self, name: str) -> str:
        """Where an external stage begins."""
        found = [row for row in self.records(f"DESCRIBE STAGE {name}") if row["property"] == "URL"]
        return str(found[0]["property_value"]).strip('[]"') if found else ""

    def fault(self, number: int, said: str, /) -> StrandlineError:
        if number == _NO_FILE:
            return SourceError(f"the stage is damaged: {said}")
        remedy = ""
        if number in DENIED or "Insufficient privileges" in said:
            remedy = (
                "The target's role needs USAGE on the database and schema, CREATE TABLE there, and OWNERSHIP of its "
                "tables."
            )
        elif "too long" in said or "out of range" in said or "not recognized" in said:
            remedy = "Widen the column in the target, or cast it in `query:` or `transform:`."
        return TargetError(said, remedy=remedy)


def _tell_row(error: TargetError, files: Files, columns: Sequence[FileColumn]) -> None:
    """COPY says in its error which file, row and column of the staging table it was: here by the names that the user
    knows. VALIDATE would tell more, but nothing of a COPY that is given up as a whole or that selects columns."""
    said = _SKIPPING.sub("", error.message)
    found = _BAD_ROW.fullmatch(said)
    if found is None:
        error.message, error.why = said, f"It was loading {', '.join(list(files.sizes)[:5])}"
        return
    name = found["file"].rpartition("/")[2]
    where = next((address for address in files.sizes if address.endswith(f"/{name}")), found["file"])
    where += f" row {found['row']}" if found["row"] else ""
    staged = {column.staged.upper(): f'"{column.name}" ({column.type})' for column in columns}
    column = staged.get(found["column"] or "", found["column"])
    error.message, error.why = found["what"], where + (f", column {column}" if column else "")


def below(root: str, addresses: Sequence[str]) -> list[str]:
    """The files' paths below an external stage's address. ConfigError where it shows other files."""
    folder = root.rstrip("/") + "/"
    other = next((address for address in addresses if not address.startswith(folder)), None)
    if other is not None:
        raise ConfigError(
            f"external_stage shows {root or 'nothing'}, and {other} does not lie there",
            remedy="Name a Snowflake stage whose URL is that of the pipeline's `stage:`, or a folder above it.",
        )
    return [address.removeprefix(folder) for address in addresses]

"""Redshift as a target: its sessions, its catalog, its COPY, and what its errors mean. The statements are
`redshift_target`.

It is spoken to over PostgreSQL's protocol, with PostgreSQL's driver; its catalog is that of PostgreSQL 8.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from strandline.core.errors import ConfigError, StrandlineError, TargetError, TransientError
from strandline.core.protocols import Files
from strandline.core.table import Column
from strandline.endpoint import Endpoint
from strandline.sinks.postgres import PostgresTarget
from strandline.sinks.redshift_target import BINARY_BYTES, TEXT_BYTES, RedshiftDialect, manifest
from strandline.sinks.sql_dialect import STAGE, Held, Place, Session, no_schema
from strandline.sinks.sql_files import FileColumn
from strandline.sources.postgres_session import PostgresSession

log = logging.getLogger(__name__)
_KINDS = {"r": "table", "v": "view"}
_CONFLICTS = (
    "Serializable isolation violation",
    "conflict with concurrent transaction",
    "already exists",
    "could not open relation",
)
_COLUMNS = """
SELECT a.attname, format_type(a.atttypid, a.atttypmod), NOT a.attnotnull, d.description, pg_get_expr(f.adbin, f.adrelid)
  FROM pg_attribute a
  LEFT JOIN pg_description d ON d.classoid = 1259 AND d.objoid = a.attrelid AND d.objsubid = a.attnum
  LEFT JOIN pg_attrdef f ON f.adrelid = a.attrelid AND f.adnum = a.attnum
 WHERE a.attrelid = {oid} AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
_LOAD_ERRORS = """
SELECT file_name, line_number, column_name, column_type, error_message
  FROM sys_load_error_detail WHERE table_id = {oid} ORDER BY start_time DESC LIMIT 5
"""

_TOO_LONG = f"""\
A text has at most {TEXT_BYTES:,} bytes in Redshift, a binary value {BINARY_BYTES:,}; a column's length is in bytes.
Make the column longer:   ALTER TABLE … ALTER COLUMN … TYPE varchar({TEXT_BYTES})
Or make the value shorter in `query:` or `transform:`, or leave the column out with `columns:`."""
_NO_ACCESS = re.compile(r"S3ServiceException|Access ?Denied|not authorized|assume", re.IGNORECASE)
_ROLE = """\
The role in `iam_role` must be attached to the cluster (or namespace), and allow s3:GetObject and s3:ListBucket there.
The bucket must be in Redshift's own region."""


class RedshiftTarget(PostgresTarget):
    options = (*PostgresSession.options, "create", "iam_role")
    settings = "SET TIME ZONE 'UTC'; SET datestyle = 'ISO, YMD'"
    port = 5439

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        self.iam_role = endpoint.options.get("iam_role", "")
        if not self.iam_role:
            raise ConfigError(
                f"{endpoint} names no role that may read the stage",
                remedy='Add the option   iam_role: "arn:aws:iam::…:role/…"   or   iam_role: default',
                docs="docs/targets-redshift.md",
            )

    @cached_property
    def dialect(self) -> RedshiftDialect:
        return RedshiftDialect()

    @cached_property
    def schema(self) -> str:
        return self.dialect.fold(super().schema)

    def another(self) -> RedshiftTarget:
        other = type(self)(self.endpoint)
        other.__dict__.update({"dialect": self.dialect, "schema": self.schema})
        other._spare, other._guest = self._spare, True
        return other

    @cached_property
    def _identity(self) -> str:
        """A namespace's GUID is the cluster's, or the serverless namespace's, whatever address leads to it."""
        ((database,),) = self.rows("SELECT current_database()")
        return f"redshift:{self.namespace()}/{database}"

    def namespace(self) -> str:
        ((found,),) = self.rows("SELECT current_namespace")
        return str(found)

    def made(self, place: Place, names: Sequence[str]) -> dict[str, str]:
        string = self.dialect.string
        listed = ", ".join(string(name) for name in names)
        found = self.rows(
            "SELECT c.relname, c.oid FROM pg_namespace n LEFT JOIN pg_class c ON c.relnamespace = n.oid "
            f"AND c.relname IN ({listed}) AND c.relkind IN ('r', 'v') WHERE n.nspname = {string(place.schema)}"
        )
        if not found:
            raise no_schema("schema", place.schema, f"CREATE SCHEMA {self.dialect.quote(place.schema)}")
        return {str(name): str(oid) for name, oid in found if name is not None}

    def find(self, place: Place) -> Held | None:
        """No column set is unique: Redshift takes keys at their word."""
        string = self.dialect.string
        found = self.rows(
            "SELECT c.oid, c.relkind FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
            f"WHERE n.nspname = {string(place.schema)} AND c.relname = {string(place.table)}"
        )
        if not found:
            return None
        oid, kind = found[0]
        columns = self.rows(_COLUMNS.format(oid=oid))
        return Held(
            place,
            tuple(Column(name, held, nullable, comment=comment or "") for name, held, nullable, comment, _ in columns),
            (),
            _KINDS.get(_text(kind), "relation of another kind"),
            generated=frozenset(row[0] for row in columns if str(row[4] or "").startswith('"identity"')),
            defaulted=frozenset(row[0] for row in columns if row[4] is not None),
        )

    def knows(self, _type_text: str, /) -> bool:
        """No source has Redshift's own words."""
        return False

    def left(self, place: Place) -> dict[str, str]:
        found = self.rows(
            "SELECT c.relname, d.description FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
            "LEFT JOIN pg_description d ON d.classoid = 1259 AND d.objoid = c.oid AND d.objsubid = 0 "
            f"WHERE c.relkind = 'r' AND n.nspname = {self.dialect.string(place.schema)} AND c.relname LIKE '{STAGE}%'"
        )
        return {str(name): str(comment or "") for name, comment in found}

    def drop(self, place: Place) -> bool:
        try:
            with self.transaction() as session:
                session.run("SET statement_timeout TO 10000")
                session.run(f"DROP TABLE IF EXISTS {self.dialect.place(place)}")
                session.run("RESET statement_timeout")
        except StrandlineError as error:
            log.warning("%s could not be dropped: %s", place, error)
            return False
        return True

    def copy(self, session: Session, files: Files, stage: Place, columns: Sequence[FileColumn]) -> None:
        if not all(address.startswith("s3://") for address in files.sizes):
            raise ConfigError("redshift loads from S3 only", remedy='Write   stage: "s3://bucket/prefix"')
        address = files.put(f"{stage.table}.redshift.json", manifest(files))
        try:
            self.load(session, stage, address)
        except TargetError as error:
            named = {column.staged: column.name for column in columns}
            error.why = "\n".join([*_details(error.__cause__), *self._load_errors(stage, named)])
            raise

    def load(self, session: Session, stage: Place, manifest: str) -> None:
        """The one statement that no other database has."""
        session.run(self.dialect.copy(stage, manifest, self.iam_role))

    def _load_errors(self, stage: Place, named: Mapping[str, str]) -> list[str]:
        """What Redshift noted of the rows it did not take. The staging table is this attempt's alone."""
        try:
            oid = self.made(stage, [stage.table]).get(stage.table, "0")
            found = self.rows(_LOAD_ERRORS.format(oid=oid))
        except StrandlineError as error:  # that of COPY is the one to tell
            log.warning("sys_load_error_detail could not be read: %s", error)
            return []
        texts = [[_text(part) for part in row] for row in found]
        return [_bad_row(file, line, named.get(name, name), kind, why) for file, line, name, kind, why in texts]

    def fault(self, state: str, said: str, /) -> StrandlineError:
        if any(text in said for text in _CONFLICTS):
            return TransientError(f"another transaction was in the way: {said}")
        found = super().fault(state, said)
        if "too long" in said or "exceeds" in said:
            found.remedy = _TOO_LONG
        elif _NO_ACCESS.search(said):
            found.remedy = _ROLE
        return found


def _details(error: BaseException | None) -> list[str]:
    """COPY of Parquet says in the error's detail which file and column it was."""
    import psycopg

    detail = error.diag.message_detail if isinstance(error, psycopg.Error) else None
    return [" ".join(line.split()) for line in (detail or "").splitlines() if set(line.strip()) - {"-"}]


def _bad_row(file: str, line: str, column: str, kind: str, reason: str) -> str:
    where = f"{file} line {line}" if file else "a row"
    named = f', column "{column}" ({kind})' if column else ""
    return f"{where}{named}: {reason}"


def _text(value: Any) -> str:
    """The catalog's texts are padded, and one character may come as bytes."""
    return value.decode().strip() if isinstance(value, bytes) else str(value if value is not None else "").strip()

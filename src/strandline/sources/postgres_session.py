"""Connections to PostgreSQL: psycopg for planning, JDBC settings for Spark, and what their errors mean.

Owns addresses, TLS, session settings and error texts. Passwords leave it only towards the drivers.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from strandline.core.errors import ConfigError, ConnectError, SetupError, SourceError, StrandlineError, TransientError
from strandline.endpoint import Endpoint
from strandline.sources.jdbc import Reader, translator
from strandline.sources.names import nearest

if TYPE_CHECKING:
    import psycopg

log = logging.getLogger(__name__)
READER = "strandline reader"
"""Application name of sessions that only ever read; the barrier leaves them out."""
_TLS = ("sslmode", "sslrootcert", "sslcert", "sslkey", "sslpassword")
_OPTIONS = (*_TLS, "connect_timeout", "schema")
SETTINGS = "SET TIME ZONE 'UTC'; SET datestyle = 'ISO, YMD'; SET intervalstyle = 'postgres'; SET extra_float_digits = 3"
LOST = ("08", "57P", "53", "40", "55P03")  # connection, shutdown, resources, rollback, lock: worth another try
_JDBC_ERROR = re.compile(r"org\.postgresql\.util\.PSQLException: (?:ERROR: |FATAL: )?(.*)")
JDBC_LOST = re.compile(
    r"connection attempt failed|I/O error|Connection (?:to .*)?refused|terminating connection|has been closed"
    r"|recovery|shutting down|starting up|too many (?:clients|connections)|deadlock|could not serialize"
    r"|unexpectedly|connection reset|SocketTimeout|conflict with recovery",
    re.IGNORECASE,
)


class PostgresSession:
    """The planning connection, opened when first used and again after it was lost; threads take turns."""

    role = "source"
    application = READER
    port = 5432
    options: tuple[str, ...] = _OPTIONS
    settings = f"{SETTINGS}; SET default_transaction_read_only = on"

    def __init__(self, endpoint: Endpoint) -> None:
        unknown = next((option for option in endpoint.options if option not in self.options), None)
        if unknown is not None:
            raise ConfigError(f'{endpoint}: unknown option "{unknown}"', remedy=nearest(unknown, self.options))
        self.endpoint = endpoint
        self._lock = threading.Lock()
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        log.debug("%s", sql)
        with self._lock, self.errors():
            return self._open().execute(sql.encode()).fetchall()

    def describe(self, sql: str) -> list[tuple[str, int, int]]:
        """Name, type oid and type modifier of each column a statement yields."""
        with self._lock, self.errors():
            result = self._open().execute(sql.encode()).pgresult
            if result is None:
                raise SourceError("the statement yields no rows")
            fields = range(result.nfields)
            return [((result.fname(at) or b"").decode(), result.ftype(at), result.fmod(at)) for at in fields]

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _open(self) -> psycopg.Connection[tuple[Any, ...]]:
        if self._connection is None or self._connection.closed:
            self._connection = self.connect()
        return self._connection

    @property
    def login(self) -> dict[str, Any]:
        """What the driver connects by."""
        end = self.endpoint
        return {
            "host": end.host or "localhost",
            "port": end.port or self.port,
            "dbname": end.path or end.user,
            "user": end.user or None,
            "password": end.password or None,
            "application_name": self.application,
            "client_encoding": "UTF8",
            "connect_timeout": int(end.options.get("connect_timeout", "10")),
            **{name: end.options[name] for name in _TLS if name in end.options},
        }

    def connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        """A new connection: autocommit, in UTC. The planning connection is one of these."""
        import psycopg

        end = self.endpoint
        try:
            connection = psycopg.connect(**self.login, autocommit=True, prepare_threshold=None)
        except psycopg.Error as error:
            raise _refused(end, str(error), self.role) from None
        connection.execute(self.settings.encode())
        if schema := end.options.get("schema"):
            connection.execute(psycopg.sql.SQL("SET search_path = {}").format(psycopg.sql.Identifier(schema)))
        return connection

    def fault(self, _state: str, said: str, /) -> StrandlineError:
        """What an error of a statement means that another try would not cure."""
        return _fault(said)

    @contextmanager
    def errors(self, connection: psycopg.Connection[tuple[Any, ...]] | None = None) -> Iterator[None]:
        """Raise what the driver raises as one of ours; without a connection, the planning one is meant."""
        try:
            import psycopg
        except ImportError:
            raise SetupError(
                "PostgreSQL needs the package psycopg", remedy="pip install 'strandline[postgres]'"
            ) from None
        try:
            yield
        except psycopg.Error as error:
            state = error.sqlstate or ""
            text = _first_line(str(error))
            used = connection or self._connection
            if used is None or used.closed or state.startswith(LOST):
                raise TransientError(f"{self.endpoint}: {text}") from error
            raise self.fault(state, text) from error


def reader(endpoint: Endpoint) -> Reader:
    """What Spark is told: read-only sessions in UTC, rows in portions, the binary protocol from the first row on."""
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host or "localhost"
    properties = {
        "driver": "org.postgresql.Driver",
        "user": endpoint.user,
        "password": endpoint.password,
        "ApplicationName": READER,
        "readOnly": "true",
        "fetchsize": "10000",
        "prepareThreshold": "-1",
        "binaryTransferDisable": "1082",  # date: the driver puts days before 1582 into another calendar
        "preferTimestampNTZ": "true",
        "sessionInitStatement": SETTINGS,
        "pushDownPredicate": "false",
        "pushDownAggregate": "false",
        "pushDownLimit": "false",
        **{name: endpoint.options[name] for name in _TLS if name in endpoint.options},
    }
    if schema := endpoint.options.get("schema"):
        properties["currentSchema"] = '"' + schema.replace('"', '""') + '"'
    url = f"jdbc:postgresql://{host}:{endpoint.port or 5432}/{endpoint.path or endpoint.user}"
    given = {name: value for name, value in properties.items() if value}
    return Reader(url, given, translate, bytes_at_a_time=16 << 20)


def _fault(said: str) -> SourceError:
    if "BigDecimal" in said:
        return SourceError(
            f"a numeric column holds a value that is no number: {said}",
            remedy='Correct the value, leave it out by where, or read the column as text:   columns: ["name::text"]',
            docs="docs/types.md#numbers",
        )
    remedy = ""
    if "permission denied" in said:
        remedy = "GRANT SELECT on it to the source's user"
    elif "does not exist" in said:
        remedy = "It was there when the run was planned, or never: check the table, its columns and `where`"
    return SourceError(said, remedy=remedy)


translate = translator(_JDBC_ERROR, JDBC_LOST, "source", _fault)


def _refused(endpoint: Endpoint, said: str, role: str) -> ConnectError:
    said = said.replace(endpoint.password, "…") if endpoint.password else said
    text = _first_line(said)
    remedy = "Check that the server runs and that host and port are right"
    if "password authentication failed" in said or "no password supplied" in said:
        text, remedy = f'login as "{endpoint.user}" was refused', f"Check user and password of the {role}"
    elif "does not exist" in said:
        text = text[text.find("FATAL") + 6 :].strip() if "FATAL" in text else text
        remedy = f"Check the name at the end of the {role}'s URL"
    elif "pg_hba.conf" in said or "SSL" in said:
        remedy = f"Check the server's pg_hba.conf and the {role}'s sslmode"
    return ConnectError(f"{endpoint}: {text}", remedy=remedy)


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "no reason given")

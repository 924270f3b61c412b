"""Connections to MySQL and MariaDB: PyMySQL for planning, JDBC settings for Spark, and what their errors mean.

Owns addresses, TLS, session settings and error texts. Passwords leave it only towards the drivers.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from strandline.core.errors import ConfigError, ConnectError, SetupError, SourceError, StrandlineError, TransientError
from strandline.core.table import Column
from strandline.endpoint import Endpoint
from strandline.sources.jdbc import Reader, translator
from strandline.sources.names import nearest

if TYPE_CHECKING:
    from pymysql.connections import Connection

log = logging.getLogger(__name__)
_OPTIONS = (
    "sslmode",
    "ssl_ca",
    "ssl_cert",
    "ssl_key",
    "truststore",
    "truststore_password",
    "connect_timeout",
    "zero_dates",
)
_MODES = {
    "disabled": "DISABLED",
    "preferred": "PREFERRED",
    "required": "REQUIRED",
    "verify_ca": "VERIFY_CA",
    "verify_identity": "VERIFY_IDENTITY",
}
SQL_MODE = "STRICT_ALL_TABLES"  # a known mode: literals and quotes mean what the dialect thinks they mean
# Server gone, shutdown, too many connections, lock wait, deadlock, out of resources.
GONE = {2006, 2013, 2055}  # the connection
_LOST = GONE | {1040, 1053, 1077, 1079, 1158, 1159, 1160, 1161, 1203, 1205, 1213, 1927, 2002, 2003}
_NO_TLS = 2026
_JDBC_ERROR = re.compile(r"(?:com\.mysql\.cj\.\S+|java\.sql\.SQL\w*Exception): (.*)")
JDBC_LOST = re.compile(
    r"Communications link failure|connection .*(?:closed|refused|reset)|Too many connections|shutdown|Deadlock"
    r"|Lock wait timeout|Connection was killed|server has gone away|EOFException|connection was unexpectedly lost"
    r"|No operations allowed after",
    re.IGNORECASE,
)


class MySqlSession:
    """The planning connection, opened when first used and again after it was lost; threads take turns."""

    role = "source"
    program = "strandline reader"
    options: tuple[str, ...] = _OPTIONS
    sql_mode = SQL_MODE
    client_flag = 0

    def __init__(self, endpoint: Endpoint) -> None:
        check_options(endpoint, self.options)
        self.endpoint = endpoint
        self._lock = threading.Lock()
        self._connection: Connection[Any] | None = None
        self._tls: dict[str, Any] | None = None

    def connect(self) -> Connection[Any]:
        """A new connection: autocommit, in UTC. The planning connection is one of these."""
        import pymysql

        end = self.endpoint
        self._tls = _tls(end) if self._tls is None else self._tls
        try:
            return pymysql.connect(
                host=end.host or "localhost",
                port=end.port or 3306,
                user=end.user or None,
                password=end.password,
                database=end.path or None,
                charset="utf8mb4",
                autocommit=True,
                connect_timeout=int(end.options.get("connect_timeout", "10")),
                init_command=f"SET time_zone = '+00:00', sql_mode = '{self.sql_mode}'",
                program_name=self.program,
                client_flag=self.client_flag,
                **self._tls,
            )
        except pymysql.err.MySQLError as error:
            code, said = _said(error)
            if code == _NO_TLS and end.options.get("sslmode", "preferred") == "preferred":
                self._tls = {"ssl_disabled": True}
                return self.connect()
            raise _refused(end, code, said, self.role) from None

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        log.debug("%s", sql)
        with self._lock, self.errors(), self._open().cursor() as cursor:
            cursor.execute(sql)
            return list(cursor.fetchall())

    def describe(self, sql: str) -> tuple[Column, ...]:
        """The columns a statement yields, as the server describes them."""
        with self._lock, self.errors(), self._open().cursor() as cursor:
            cursor.execute(sql)
            fields = cursor._result.fields if cursor._result else []
            return tuple(Column(field.name, _type_text(field)) for field in fields)

    def close(self) -> None:
        with self._lock:
            if self._connection is not None and self._connection.open:
                self._connection.close()
            self._connection = None

    def _open(self) -> Connection[Any]:
        if self._connection is None or not self._connection.open:
            self._connection = self.connect()
        return self._connection

    def fault(self, _code: int, said: str, /) -> StrandlineError:
        """What an error of a statement means that another try would not cure."""
        return _fault(said)

    @contextmanager
    def errors(self, connection: Connection[Any] | None = None) -> Iterator[None]:
        """Raise what the driver raises as one of ours; without a connection, the planning one is meant."""
        try:
            import pymysql
        except ImportError:
            raise SetupError("MySQL needs the package PyMySQL", remedy="pip install 'strandline[mysql]'") from None
        try:
            yield
        except pymysql.err.MySQLError as error:
            code, said = _said(error)
            used = connection or self._connection
            if code in _LOST or used is None or not used.open:
                raise TransientError(f"{self.endpoint}: {said}") from error
            raise self.fault(code, said) from error


def check_options(endpoint: Endpoint, known: Sequence[str]) -> None:
    unknown = next((option for option in endpoint.options if option not in known), None)
    if unknown is not None:
        raise ConfigError(f'{endpoint}: unknown option "{unknown}"', remedy=nearest(unknown, known))
    for option, values in (("sslmode", tuple(_MODES)), ("zero_dates", ("refuse", "null"))):
        value = endpoint.options.get(option, values[0])
        if value not in values:
            raise ConfigError(f"{endpoint}: {option} is one of {', '.join(values)}")


def _tls(endpoint: Endpoint) -> dict[str, Any]:
    """One context for all connections: making one reads every certificate the system trusts, which takes longer than
    all the planning of an idle run."""
    import ssl

    mode, options = endpoint.options.get("sslmode", "preferred"), endpoint.options
    if mode == "disabled":
        return {"ssl_disabled": True}
    if mode.startswith("verify"):
        context = ssl.create_default_context(cafile=options.get("ssl_ca"))
        context.check_hostname = mode == "verify_identity"
    else:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if "ssl_cert" in options:
        context.load_cert_chain(options["ssl_cert"], options.get("ssl_key"))
    return {"ssl": context}


def reader(endpoint: Endpoint) -> Reader:
    """What Spark is told: sessions in UTC, results streamed, no type guessed by the driver."""
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host or "localhost"
    options = endpoint.options
    properties = {
        "driver": "com.mysql.cj.jdbc.Driver",
        "user": endpoint.user,
        "password": endpoint.password,
        "fetchsize": "-2147483648",
        "connectionTimeZone": "UTC",
        "forceConnectionTimeZoneToSession": "true",
        "sessionVariables": f"sql_mode='{SQL_MODE}'",
        "connectionAttributes": "program_name:strandline reader",
        "characterEncoding": "UTF-8",
        "tinyInt1isBit": "false",
        "yearIsDateType": "false",
        "preferTimestampNTZ": "true",
        "pushDownPredicate": "false",
        "pushDownAggregate": "false",
        "pushDownLimit": "false",
        "sslMode": _MODES[options.get("sslmode", "preferred")],
    }
    if "truststore" in options:
        properties["trustCertificateKeyStoreUrl"] = f"file:{options['truststore']}"
        properties["trustCertificateKeyStorePassword"] = options.get("truststore_password", "")
    url = f"jdbc:mysql://{host}:{endpoint.port or 3306}/{endpoint.path}"
    return Reader(url, {name: value for name, value in properties.items() if value}, translate)


def _fault(said: str) -> SourceError:
    remedy = ""
    if "command denied" in said or "Access denied" in said:
        remedy = "GRANT SELECT on it to the source's user"
    elif "doesn't exist" in said or "Unknown column" in said:
        remedy = "It was there when the run was planned, or never: check the table, its columns and `where`"
    return SourceError(said, remedy=remedy)


translate = translator(_JDBC_ERROR, JDBC_LOST, "source", _fault)


def _refused(endpoint: Endpoint, code: int, said: str, role: str) -> ConnectError:
    said = said.replace(endpoint.password, "…") if endpoint.password else said
    text, remedy = said, "Check that the server runs and that host and port are right"
    if code == 1044:
        text = f'"{endpoint.user}" may not use the database "{endpoint.path}"'
        remedy = f"GRANT access to it to the {role}'s user"
    elif code in (1045, 1698):
        text, remedy = f'login as "{endpoint.user}" was refused', f"Check user and password of the {role}"
    elif code == 1049:
        remedy = f"Check the name at the end of the {role}'s URL"
    return ConnectError(f"{endpoint}: {text}", remedy=remedy)


def _said(error: Exception) -> tuple[int, str]:
    code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    return code, str(error.args[1]) if len(error.args) > 1 else str(error)


def _type_text(field: Any) -> str:
    """A result column's type in the words of the catalog; the protocol tells digits and length, not the declaration."""
    from pymysql.constants import FIELD_TYPE, FLAG

    unsigned = bool(field.flags & FLAG.UNSIGNED)
    names = {
        FIELD_TYPE.TINY: "tinyint", FIELD_TYPE.SHORT: "smallint", FIELD_TYPE.INT24: "mediumint",
        FIELD_TYPE.LONG: "int", FIELD_TYPE.LONGLONG: "bigint", FIELD_TYPE.FLOAT: "float", FIELD_TYPE.DOUBLE: "double",
        FIELD_TYPE.DATE: "date", FIELD_TYPE.TIME: "time", FIELD_TYPE.YEAR: "year", FIELD_TYPE.JSON: "json",
        FIELD_TYPE.GEOMETRY: "geometry",
    }  # fmt: skip
    if field.type_code in names:
        return names[field.type_code] + (" unsigned" if unsigned else "")
    if field.type_code in (FIELD_TYPE.DATETIME, FIELD_TYPE.TIMESTAMP):
        name = "datetime" if field.type_code == FIELD_TYPE.DATETIME else "timestamp"
        return f"{name}({min(field.scale, 6)})"
    if field.type_code == FIELD_TYPE.BIT:
        return f"bit({field.length})"
    if field.type_code in (FIELD_TYPE.NEWDECIMAL, FIELD_TYPE.DECIMAL):
        digits = field.length - (1 if field.scale else 0) - (0 if unsigned else 1)
        return f"decimal({digits},{field.scale})"
    return "varbinary" if field.charsetnr == 63 else "varchar"

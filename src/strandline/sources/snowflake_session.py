"""Connections to Snowflake through its own connector, and what its errors mean.

Owns addresses, logins, session settings and error texts. Passwords leave it only towards the connector.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

from strandline.core.errors import ConfigError, ConnectError, SetupError, SourceError, StrandlineError, TransientError
from strandline.endpoint import Endpoint
from strandline.sources.dialect import refusal
from strandline.sources.names import nearest
from strandline.sources.snowflake_names import stored

if TYPE_CHECKING:
    from snowflake.connector import SnowflakeConnection
    from snowflake.connector.cursor import SnowflakeCursor
    from snowflake.connector.result_batch import ResultBatch

log = logging.getLogger(__name__)
_LOGIN = ("account", "authenticator", "private_key_file", "protocol")
_OPTIONS = ("warehouse", "role", "schema", "connect_timeout", "network_timeout", *_LOGIN)
_SETTINGS: dict[str, Any] = {
    "TIMEZONE": "UTC",
    "QUOTED_IDENTIFIERS_IGNORE_CASE": False,
    "ERROR_ON_NONDETERMINISTIC_UPDATE": True,
    "ABORT_DETACHED_QUERY": True,  # a statement of a process that died does not go on
    "LOCK_TIMEOUT": 600,
    "PYTHON_CONNECTOR_QUERY_RESULT_FORMAT": "ARROW",
    "CLIENT_TELEMETRY_ENABLED": False,
    "QUERY_TAG": "strandline",
}
_HOST = re.compile(r"localhost|[\d.]+|.*\.snowflakecomputing\.(com|cn)")
_SHORT, _LONG = "300", "3600"
"""Seconds. The connector cancels a statement when it gives up waiting for the network: one number for both."""
NO_WAREHOUSE = 606
_NO_OBJECT = {2003, 2043}
DENIED = {3001, 3041, 2403}
_AGAIN = {604, 625, 630, 200007, 290500, 290503, 580500}  # cancelled, lock held, timed out, the service is unwell
_CLIENT = range(250000, 260000)  # what the connector itself says of the way to the server
_REFUSED = (
    (
        r"Incorrect username or password|JWT token is invalid|Authentication",
        'login as "{user}" was refused',
        "Check user and password (or `private_key_file`) of the {role}; the account is {account}.",
    ),
    (r"[Rr]ole .*(not exist|not granted|not authorized)", "{said}", "Check `role=` in the {role}'s URL."),
    (r"locked|disabled", "{said}", "Ask whoever administers the account to unlock the user."),
    (r"404|Not Found", "there is no account {account}", "Write the account as ORGANIZATION-NAME in the {role}'s URL."),
)


class SnowflakeSession:
    """The planning connection, opened when first used and again after it was lost; threads take turns."""

    role = "source"
    options: tuple[str, ...] = _OPTIONS

    def __init__(self, endpoint: Endpoint) -> None:
        unknown = next((option for option in endpoint.options if option not in self.options), None)
        if unknown is not None:
            raise ConfigError(f'{endpoint}: unknown option "{unknown}"', remedy=nearest(unknown, self.options))
        database, _, schema = endpoint.path.partition("/")
        if not database:
            raise ConfigError(
                f"{endpoint} names no database",
                remedy="Write snowflake://user:password@account/database/schema?warehouse=…&role=…",
            )
        self.endpoint = endpoint
        self.database = stored(database)
        self.default_schema = stored(endpoint.options.get("schema") or schema or "public")
        self._lock = threading.Lock()
        self._connection: SnowflakeConnection | None = None

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        log.debug("%s", sql)
        with self._lock, self.errors():
            return list(self.execute(self.open(), sql).fetchall())

    def records(self, sql: str) -> list[dict[str, Any]]:
        """Rows by the names of their columns, in small letters: what SHOW lists has grown columns before."""
        log.debug("%s", sql)
        with self._lock, self.errors():
            cursor = self.execute(self.open(), sql)
            names = [column.name.lower() for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def describe(self, sql: str) -> list[tuple[str, dict[str, Any]]]:
        """Name and type of each column a statement yields; it is not run."""
        from snowflake.connector.constants import FIELD_ID_TO_NAME

        with self._lock, self.errors():
            found = self.open().cursor().describe(sql)
        return [
            (
                field.name,
                {
                    "data_type": FIELD_ID_TO_NAME[field.type_code],
                    "numeric_precision": field.precision,
                    "numeric_scale": field.scale,
                    "datetime_precision": field.scale,
                },
            )
            for field in found
        ]

    def parts(self, sql: str) -> list[ResultBatch]:
        """Run a query over a connection of its own: its result lies in parts that anybody may fetch, for hours."""
        log.debug("%s", sql)
        with self.errors(), closing(self.connect()) as connection:
            return self.execute(connection, sql, self.long).get_result_batches() or []

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def open(self) -> SnowflakeConnection:
        if self._connection is None or self._connection.is_closed():
            self._connection = self.connect()
        return self._connection

    @property
    def long(self) -> int:
        """How long a statement may take that moves rows, or waits for others that do."""
        return int(self.endpoint.options.get("network_timeout", _LONG))

    def execute(self, connection: SnowflakeConnection, sql: str, seconds: int | None = None) -> SnowflakeCursor:
        cursor = connection.cursor()
        cursor.execute(sql, timeout=seconds)
        return cursor

    def connect(self) -> SnowflakeConnection:
        """A new connection: each statement commits itself, in UTC."""
        import snowflake.connector
        from snowflake.connector.errors import Error

        end = self.endpoint
        given = {name: end.options[name] for name in ("warehouse", "role", *_LOGIN) if name in end.options}
        if _HOST.fullmatch(end.host) or end.port:
            address: dict[str, Any] = {"host": end.host, "account": end.host.partition(".")[0]}
            address |= {"port": end.port} if end.port else {}
        else:
            address = {"account": end.host}
        secret = "private_key_file_pwd" if "private_key_file" in given else "password"
        try:
            return snowflake.connector.connect(
                **{**address, **given, secret: end.password},
                user=end.user,
                database=_written(self.database),
                schema=_written(self.default_schema),
                login_timeout=int(end.options.get("connect_timeout", "30")),
                network_timeout=int(end.options.get("network_timeout", _SHORT)),
                session_parameters=dict(_SETTINGS),
                arrow_number_to_decimal=True,
                application="strandline",
            )
        except Error as error:
            raise self._refused(str(error.msg or error)) from None

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Raise what the connector raises as one of ours."""
        try:
            from snowflake.connector.errors import Error
        except ImportError:
            raise SetupError(
                "Snowflake needs the package snowflake-connector-python", remedy="pip install 'strandline[snowflake]'"
            ) from None
        try:
            yield
        except Error as error:
            raise self.told(error.errno or 0, _said(str(error.msg or error))) from error

    def told(self, number: int, said: str) -> StrandlineError:
        if number in _AGAIN or number in _CLIENT:
            return TransientError(f"{self.endpoint}: {said}")
        if number == NO_WAREHOUSE or "No active warehouse" in said:
            return ConfigError(
                f"{self.endpoint}: no warehouse is at work: {said}",
                remedy=f"Name one in the {self.role}'s URL, ?warehouse=…, that its role may use:   SHOW WAREHOUSES",
            )
        return self.fault(number, said)

    def fault(self, number: int, said: str, /) -> StrandlineError:
        """What an error of a statement means that another try would not cure."""
        if (refused := refusal(said, "varchar")) is not None:
            return refused
        remedy = ""
        if number in DENIED or "Insufficient privileges" in said:
            remedy = "GRANT SELECT on it, and USAGE on its database and schema, to the source's role"
        elif number in _NO_OBJECT:
            remedy = "It is not there, or the source's role may not see it: check the table, its columns and `where`"
        return SourceError(said, remedy=remedy)

    def _refused(self, said: str) -> ConnectError:
        end = self.endpoint
        said = _said(said.replace(end.password, "…") if end.password else said)
        words = {"user": end.user, "role": self.role, "account": end.host, "said": said}
        for pattern, text, remedy in _REFUSED:
            if re.search(pattern, said):
                return ConnectError(f"{end}: {text.format(**words)}", remedy=remedy.format(**words))
        return ConnectError(f"{end}: {said}", remedy="Check the account's name, and that Snowflake can be reached.")


def _written(name: str) -> str:
    """A stored name as the connector takes it."""
    return name if re.fullmatch(r"[A-Z_][A-Z0-9_$]*", name) else '"' + name.replace('"', '""') + '"'


def _said(text: str) -> str:
    """The server's words on one line, without number and state."""
    text = " ".join(text.split())
    return re.sub(r"^(\d+ \(\w+\):|\d+:)( [0-9a-f-]{36}:)? ", "", text).removeprefix("SQL compilation error: ").strip()

"""MySQL or MariaDB as a state store, through PyMySQL: InnoDB, utf8mb4, names compared byte by byte."""

from __future__ import annotations

from typing import Any

from strandline.core.errors import ConfigError, ConnectError, SetupError, StateError
from strandline.endpoint import Endpoint
from strandline.state.dialect import Connection, Cursor, Dialect, Fault, cannot_join, no_transaction

# Plain utf8mb4_bin would take "a" and "a " for the same key. The collation that does not has another name on either
# server; each reads the comment meant for it.
_COLLATION = "/*M! COLLATE utf8mb4_nopad_bin */ /*!50700 COLLATE utf8mb4_0900_bin */"
_MIGRATION_LOCK = "CONCAT('strandline.', MD5(DATABASE()))"
_OPTIONS = ("ssl_ca", "ssl_cert", "ssl_key", "unix_socket")
_BUSY = (1205, 1213, 1062, 3101)  # lock wait, deadlock, duplicate key, Galera's certification
_LOST = (0, 1053, 1152, 1158, 1159, 1160, 1161, 1317, 1927, 2006, 2013, 2014, 2055)


def dialect(endpoint: Endpoint) -> Dialect:
    try:
        import pymysql
    except ImportError as error:
        raise SetupError(
            f"the state {endpoint} needs the MySQL driver", remedy="pip install 'strandline[mysql]'"
        ) from error
    unknown = [name for name in endpoint.options if name not in _OPTIONS]
    if unknown:
        raise ConfigError(f"the state {endpoint} has no option {', '.join(unknown)}: only {', '.join(_OPTIONS)}")
    return Dialect(
        address=str(endpoint),
        error=pymysql.Error,
        connect=lambda: _connect(endpoint),
        join=lambda connection: _join(endpoint, connection),
        inside=_inside,
        fault=_fault,
        explain=lambda error: _explain(endpoint, error),
        shared=True,
        existing=(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE() "
            "UNION SELECT index_name FROM information_schema.statistics WHERE table_schema = DATABASE()"
        ),
        placeholder="%s",
        quote="`",
        key_type="VARCHAR(190)",
        text_type="LONGTEXT",
        index_length="(190)",
        table_options=f"ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 {_COLLATION}",
        begin="START TRANSACTION",
        lock="FOR UPDATE",
        among="IN ({rows})",
        overwrite="ON DUPLICATE KEY UPDATE {columns}",
        assign="{name} = VALUES({name})",
        keep="ON DUPLICATE KEY UPDATE revision = revision",
        clock="SELECT UTC_TIMESTAMP(6)",
        exclusive=(f"SELECT GET_LOCK({_MIGRATION_LOCK}, 50)",),
        release=(f"SELECT RELEASE_LOCK({_MIGRATION_LOCK})",),
    )


def _connect(endpoint: Endpoint) -> Connection:
    import pymysql

    options: dict[str, Any] = dict(endpoint.options)
    try:
        # READ COMMITTED: no gap locks, so runs that add different records do not wait for each other.
        return pymysql.connect(
            host=endpoint.host or "localhost",
            port=endpoint.port or 3306,
            user=endpoint.user or None,
            password=endpoint.password,
            database=endpoint.path,
            charset="utf8mb4",
            autocommit=True,
            connect_timeout=10,
            read_timeout=60,
            write_timeout=60,
            sql_mode="STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION",
            init_command="SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
            **options,
        )
    except pymysql.Error as error:
        raise ConnectError(
            f"the state {endpoint} cannot be reached: {_text(error)}",
            remedy="Check address, login and password under `state:`, and that the server is up.",
        ) from error


def _join(endpoint: Endpoint, connection: object) -> Cursor:
    import pymysql
    from pymysql.cursors import Cursor as Plain

    if not isinstance(connection, pymysql.connections.Connection):
        raise cannot_join("PyMySQL", str(endpoint))
    if connection.get_autocommit() and not _inside(connection):
        raise no_transaction()
    theirs: Any = connection
    cursor: Cursor = theirs.cursor(Plain)
    return cursor


def _inside(connection: Any) -> bool:
    from pymysql.constants import SERVER_STATUS

    return connection.open and bool(connection.server_status & SERVER_STATUS.SERVER_STATUS_IN_TRANS)


def _code(error: Exception) -> int:
    return error.args[0] if error.args and isinstance(error.args[0], int) else 0


def _text(error: Exception) -> str:
    return str(error.args[1]) if len(error.args) > 1 else str(error)


def _fault(error: Exception) -> Fault:
    import pymysql

    code = _code(error)
    if code == 1146:
        return Fault.ABSENT
    if code in _BUSY:
        return Fault.BUSY
    if code in _LOST and isinstance(error, pymysql.OperationalError | pymysql.InterfaceError | pymysql.InternalError):
        return Fault.LOST
    return Fault.REFUSED


def _explain(endpoint: Endpoint, error: Exception) -> StateError:
    remedy = ""
    if _code(error) in (1044, 1142, 1143):
        remedy = "Grant the login SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER and INDEX on the database."
    elif _code(error) in (1021, 1114, 3675):
        remedy = "Free some space on the server and run again: it goes on where it stopped."
    elif _code(error) in (1290, 1836):
        remedy = "The server is read-only (a replica?). Name the primary under `state:`."
    return StateError(f"the state {endpoint}: {_text(error)}", remedy=remedy)

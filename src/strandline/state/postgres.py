"""PostgreSQL as a state store, through psycopg. Tables go to the login's current schema."""

from __future__ import annotations

from typing import Any

from strandline.core.errors import ConnectError, SetupError, StateError
from strandline.endpoint import Endpoint
from strandline.state.dialect import Connection, Cursor, Dialect, Fault, cannot_join, no_transaction

_MIGRATION_LOCK = 7_383_091_145_204_512  # any number, as long as it is always the same one


def dialect(endpoint: Endpoint) -> Dialect:
    try:
        import psycopg
    except ImportError as error:
        raise SetupError(
            f"the state {endpoint} needs the PostgreSQL driver", remedy="pip install 'strandline[postgres]'"
        ) from error
    return Dialect(
        address=str(endpoint),
        error=psycopg.Error,
        connect=lambda: _connect(endpoint),
        join=lambda connection: _join(endpoint, connection),
        inside=_inside,
        fault=_fault,
        explain=lambda error: _explain(endpoint, error),
        shared=True,
        existing=(
            "SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE n.nspname = current_schema()"
        ),
        placeholder="%s",
        quote='"',
        key_type='TEXT COLLATE "C"',
        text_type='TEXT COLLATE "C"',
        index_length="",
        table_options="",
        begin="BEGIN ISOLATION LEVEL READ COMMITTED",
        lock="FOR UPDATE",
        among="IN (VALUES {rows})",
        overwrite="ON CONFLICT ({key}) DO UPDATE SET {columns}",
        assign="{name} = excluded.{name}",
        keep="ON CONFLICT DO NOTHING",
        clock="SELECT clock_timestamp() AT TIME ZONE 'UTC'",
        exclusive=("BEGIN ISOLATION LEVEL READ COMMITTED", f"SELECT pg_advisory_xact_lock({_MIGRATION_LOCK})"),
        release=("COMMIT",),
    )


def _connect(endpoint: Endpoint) -> Connection:
    import psycopg

    where: dict[str, Any] = {
        "host": endpoint.host or None,
        "port": endpoint.port,
        "user": endpoint.user or None,
        "password": endpoint.password or None,
        "dbname": endpoint.path or None,
        "connect_timeout": "10",
        "application_name": "strandline",
        **endpoint.options,
    }
    try:
        # Statements are never prepared on the server: a pooler could hand the next one to another session.
        connection = psycopg.connect(autocommit=True, prepare_threshold=None, **where)
        connection.execute("SET lock_timeout = '30s'; SET idle_in_transaction_session_timeout = '60s'")
    except psycopg.Error as error:
        raise ConnectError(
            f"the state {endpoint} cannot be reached: {str(error).strip()}",
            remedy="Check address, login and password under `state:`, and that the server is up.",
        ) from error
    return connection


def _join(endpoint: Endpoint, connection: object) -> Cursor:
    import psycopg
    from psycopg.rows import tuple_row

    if not isinstance(connection, psycopg.Connection):
        raise cannot_join("psycopg", str(endpoint))
    if connection.autocommit and not _inside(connection):
        raise no_transaction()
    return connection.cursor(row_factory=tuple_row)


def _inside(connection: Any) -> bool:
    from psycopg.pq import TransactionStatus

    return connection.info.transaction_status not in (TransactionStatus.IDLE, TransactionStatus.UNKNOWN)


def _fault(error: Exception) -> Fault:
    import psycopg
    from psycopg import errors

    if isinstance(error, errors.UndefinedTable):
        return Fault.ABSENT
    busy = (errors.DeadlockDetected, errors.SerializationFailure, errors.LockNotAvailable, errors.UniqueViolation)
    if isinstance(error, (*busy, errors.QueryCanceled)):
        return Fault.BUSY
    state = error.sqlstate if isinstance(error, psycopg.Error) else None
    gone = state is None or state.startswith(("08", "57P")) or state == errors.IdleInTransactionSessionTimeout.sqlstate
    if gone and isinstance(error, psycopg.OperationalError | psycopg.InterfaceError | psycopg.InternalError):
        return Fault.LOST
    return Fault.REFUSED


def _explain(endpoint: Endpoint, error: Exception) -> StateError:
    from psycopg import errors

    remedy = ""
    if isinstance(error, errors.InsufficientPrivilege):
        remedy = "Let the login create tables in its schema: GRANT CREATE, USAGE ON SCHEMA … TO …"
    elif isinstance(error, errors.DiskFull):
        remedy = "Free some space on the server and run again: it goes on where it stopped."
    elif isinstance(error, errors.ReadOnlySqlTransaction):
        remedy = "The server is read-only (a replica?). Name the primary under `state:`."
    return StateError(f"the state {endpoint}: {str(error).strip()}", remedy=remedy)

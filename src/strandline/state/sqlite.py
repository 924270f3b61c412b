"""SQLite as a state store: one file, mode 0600, in WAL mode, shared by several processes of one machine.

Every commit is flushed to disk (`synchronous` stays FULL): a watermark that was reported survives a power cut.
"""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path

from strandline.core.errors import StateError
from strandline.endpoint import Endpoint
from strandline.state.dialect import Connection, Cursor, Dialect, Fault, cannot_join, no_transaction

_WAIT_SECONDS = 15.0
_SMALLEST_PAGE = 512
_ROOM = 256 * 1024  # with less free than this, an error of the disk is taken for a full one


def dialect(endpoint: Endpoint) -> Dialect:
    path = Path(endpoint.path).expanduser()
    return Dialect(
        address=str(path),
        error=sqlite3.Error,
        connect=lambda: _connect(path),
        join=lambda connection: _join(path, connection),
        inside=_inside,
        fault=_fault,
        explain=lambda error: _explain(path, error),
        shared=False,
        existing="SELECT name FROM sqlite_master",
        placeholder="?",
        quote='"',
        key_type="TEXT",
        text_type="TEXT",
        index_length="",
        table_options="",
        begin="BEGIN IMMEDIATE",
        lock="",
        among="IN (VALUES {rows})",
        overwrite="ON CONFLICT ({key}) DO UPDATE SET {columns}",
        assign="{name} = excluded.{name}",
        keep="ON CONFLICT DO NOTHING",
        clock=None,
        exclusive=("BEGIN IMMEDIATE",),
        release=("COMMIT",),
    )


def _connect(path: Path) -> Connection:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Created here, not by SQLite: -wal and -shm take over the mode of the file.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    except OSError as error:
        raise StateError(
            f"the state file {path} cannot be opened: {error.strerror}",
            remedy="Check the folder and the permissions, or name another file under `state:`.",
        ) from error
    size = path.stat().st_size
    if 0 < size < _SMALLEST_PAGE:
        raise _damaged(path, "it is too short")  # SQLite would take it for an empty one
    connection = sqlite3.connect(path, timeout=_WAIT_SECONDS, isolation_level=None, check_same_thread=False)
    if size == 0:
        try:
            _write_ahead(connection)
        except sqlite3.Error as error:
            connection.close()
            raise _explain(path, error) from error
    return connection


def _join(path: Path, connection: object) -> Cursor:
    if not isinstance(connection, sqlite3.Connection):
        raise cannot_join("sqlite3", str(path))
    if not connection.in_transaction:
        if connection.isolation_level is None:
            raise no_transaction()
        connection.execute("BEGIN IMMEDIATE")  # or releasing our savepoint, the outermost, would commit
    cursor = connection.cursor()
    cursor.row_factory = None
    return cursor


def _inside(connection: sqlite3.Connection) -> bool:
    return connection.in_transaction


def _write_ahead(connection: sqlite3.Connection) -> None:
    """The mode is kept in the file. SQLite does not wait by itself while another process sets it too."""
    deadline = time.monotonic() + _WAIT_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if _fault(error) is not Fault.BUSY or time.monotonic() > deadline:
                raise
        time.sleep(0.01)


def _primary(error: Exception) -> int:
    """SQLite's error code without its details; 0 where the error is the driver's own."""
    code = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF if isinstance(code, int) else 0


def _fault(error: Exception) -> Fault:
    if _primary(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL):
        return Fault.BUSY
    if str(error).startswith("no such table"):
        return Fault.ABSENT
    return Fault.REFUSED


def _explain(path: Path, error: Exception) -> StateError:
    code = _primary(error)
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return _damaged(path, str(error))
    if code == sqlite3.SQLITE_FULL or (code == sqlite3.SQLITE_IOERR and _free(path) < _ROOM):
        return StateError(
            f"the disk is full: nothing was written to the state file {path}",
            remedy="Free some space and run again: it goes on where it stopped.",
        )
    remedy = {
        sqlite3.SQLITE_READONLY: "Make the file and its folder writable for this user.",
        sqlite3.SQLITE_CANTOPEN: "Make the file and its folder writable for this user.",
        sqlite3.SQLITE_IOERR: "Check the disk, its free space and its permissions. A network folder cannot hold it.",
    }
    return StateError(f"the state file {path}: {error}", remedy=remedy.get(code, ""))


def _free(path: Path) -> int:
    disk = os.statvfs(path.parent)
    return disk.f_bavail * disk.f_frsize


def _damaged(path: Path, how: str) -> StateError:
    return StateError(
        f"the state file {path} is damaged or is not a state file: {how}",
        why="It was left as it is. Starting over with an empty state would read everything again.",
        remedy=(
            f"Restore {path} from a backup, or move it away and rebuild the positions from the targets:\n"
            "strandline watermark import --from-target"
        ),
    )

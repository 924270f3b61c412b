"""What differs between the SQL databases a state can live in, as one value. Knows nothing of records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Protocol

from strandline.core.errors import StateError


class Cursor(Protocol):
    @property
    def rowcount(self) -> int: ...
    @property
    def description(self) -> Sequence[Any] | None: ...
    def execute(self, sql: str, values: Sequence[Any] = ..., /) -> object: ...
    def executemany(self, sql: str, rows: Iterable[Sequence[Any]], /) -> object: ...
    def fetchall(self) -> Sequence[Sequence[Any]]: ...
    def close(self) -> None: ...


class Connection(Protocol):
    """In autocommit: transactions are the statements that say so."""

    def cursor(self) -> Cursor: ...
    def close(self) -> None: ...


class Fault(Enum):
    """What a driver's error means for the statement that met it."""

    LOST = auto()  # the connection is gone, and with it what was not committed
    BUSY = auto()  # deadlock, lock wait, two inserts of one key: rolled back, worth trying again
    ABSENT = auto()  # a table is not there
    REFUSED = auto()  # anything else: trying again would not help


@dataclass(frozen=True)
class Dialect:
    address: str  # as people may see it
    error: type[Exception]  # the root of the driver's errors
    connect: Callable[[], Connection]  # ConnectError or StateError where it fails
    join: Callable[[Any], Cursor]  # on a caller's connection, in the transaction open there; StateError where none is
    inside: Callable[[Any], bool]  # whether a transaction is open on a caller's connection
    fault: Callable[[Exception], Fault]
    explain: Callable[[Exception], StateError]  # what a REFUSED error tells the user
    shared: bool  # whether others' tables may live beside ours
    existing: str  # names of all tables and indexes
    placeholder: str
    quote: str
    key_type: str
    text_type: str
    index_length: str  # follows a text column in an index
    table_options: str
    begin: str
    lock: str  # follows a SELECT whose rows will be written
    among: str  # `(a, b) IN …` a list of rows
    overwrite: str  # follows an INSERT; {key} and {columns} are filled in
    assign: str  # one of the {columns}
    keep: str  # follows an INSERT that leaves an existing key alone
    clock: str | None  # None: the host's clock is the store's
    exclusive: tuple[str, ...]  # statements around a migration: only one process is inside
    release: tuple[str, ...]

    def name(self, identifier: str) -> str:
        return f"{self.quote}{identifier}{self.quote}"

    def names(self, identifiers: Iterable[str]) -> str:
        return ", ".join(map(self.name, identifiers))

    def row(self, width: int) -> str:
        return f"({', '.join([self.placeholder] * width)})"


def cannot_join(driver: str, address: str) -> StateError:
    return StateError(
        f"this is no connection of {driver}, so it cannot lead to the state {address}",
        remedy=f"Give the connection of {driver} on which your own writes are.",
    )


def no_transaction() -> StateError:
    return StateError(
        "the connection has no transaction open: it commits every statement by itself",
        why="The watermark would be committed apart from your own writes.",
        remedy="Turn autocommit off, or begin a transaction before your first write.",
    )

"""The three contracts: Source, Sink, State. Everything else is written once, above them.

Time and Spark are passed in. Importing this module loads neither Spark nor a driver.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from strandline.core.batch import Applied, Batch, How, Receipt
from strandline.core.compare import Comparison, Cut, Form, Key, Line, Reach, Sum
from strandline.core.errors import StrandlineError
from strandline.core.position import Horizon
from strandline.core.table import Table, TableInfo
from strandline.core.watermark import Watermark
from strandline.core.window import Extent, Part, Repair, Slice, Window

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Spark = Callable[[], "SparkSession"]
"""Gives the session, making it at the first call; a sink that needs none never calls it."""


class Files(Protocol):
    """Files that hold exactly some rows, for a sink whose database loads files by itself: no Spark starts."""

    @property
    def schema(self) -> str:
        """Spark's JSON of their columns, the operation's among them, in the order that they have in the files."""

    @property
    def sizes(self) -> Mapping[str, int]:
        """Every file's address (`s3://…`, `file:…`) and how many bytes it has."""

    @property
    def rows(self) -> int:
        """How many rows the files hold."""

    def get(self, address: str) -> bytes:
        """A file's bytes."""

    def put(self, name: str, data: bytes) -> str:
        """Keep a small object beside the files, until they are cleaned away; its address."""


class Changes(Protocol):
    """A slice's rows, not yet moved, in every form the source can offer. The sink picks the form."""

    operation: str | None
    """Name of the column that says "upsert" or "delete" per row; None: every row is an upsert."""

    @property
    def unique(self) -> bool:
        """The source promises at most one row per key. Otherwise the sink keeps the last one by `order`, or refuses
        where there is no order."""

    order: tuple[str, ...]
    """Columns that order several changes of one key; empty: there is no order."""
    how: How | None
    """How a source that keeps batches says they are applied; None: the plan decides."""
    repair: Repair | None
    """What these rows repair, with How.REPAIR."""

    @property
    def query(self) -> str | None:
        """SQL that yields the rows inside the source's own database, in its own types, as `c0`, `c1`, … in the order of
        the table's columns, and `op`; None where rows must pass through Spark."""

    @property
    def files(self) -> Files | None:
        """Files that already hold exactly these rows; None where there are none."""

    def frame(self, spark: SparkSession) -> DataFrame:
        """The rows as a lazy DataFrame on this session, transformed as the table asks. Nothing is read yet."""

    def translate(self, error: Exception) -> StrandlineError | None:
        """What a failure of the sink's action means if the source caused it (frames are lazy); None: it did not."""


class Side(Protocol):
    """One system's side of a comparison, computed inside that system: what leaves it is sums, keys and hashes.

    Both sides render a value in the same canonical text (`verify.canonical`), so that equal rows have equal hashes.
    """

    def sums(self, cut: Cut) -> dict[int, Sum]:
        """Rows and added hashes by bucket, in one pass; a bucket without rows may be left out."""

    def rows(self, parts: Sequence[Part]) -> list[Line]:
        """Key and hash of every row in any of these parts; none given: of all rows."""


class SourceSide(Side, Protocol):
    """The rows below the watermark that are not deleted, as they are at each call."""

    def reach(self) -> Reach:
        """About how many rows there are, and the range of a whole-number key."""

    def moved(self, parts: Sequence[Part], most: int) -> list[Key]:
        """Keys of rows that now stand at or above the watermark, or have no cursor value; at most so many."""


class TargetSide(Side, Protocol):
    """The rows of the target as it was when this side was made; with versions, the last below the watermark."""

    def oldest(self) -> Watermark | None:
        """The lowest cursor value there is; None where there is none to be seen."""

    def leave_out(self, keys: Sequence[Key]) -> None:
        """From now on these rows are not there."""

    def close(self) -> None: ...


class Readable(Protocol):
    """What carrying out a plan needs of a source."""

    def changes(self, table: Table, slice: Slice) -> Changes:
        """The rows of a slice, lazily: nothing is read yet."""


class Plannable(Protocol):
    """What planning asks a source."""

    def horizons(self, tables: Sequence[Table]) -> dict[str, Horizon | StrandlineError]:
        """ONE barrier for all tables, by `table.name`: nothing that could still commit below `high` is in flight.

        A table that has no safe bound gets its SourceError; the others are not disturbed.

        Whoever reads the window afterwards does so on a connection opened after this returned.
        """

    def pending(self, windows: Mapping[str, tuple[Table, Window]]) -> dict[str, int | StrandlineError | None]:
        """Rows waiting in each window, in batched statements. 0 is exact; another figure is an estimate, None unknown.

        A table with NULL cursors under `nulls: refuse` gets a SourceError; under `include` they count as waiting.
        """

    def fingerprints(self, windows: Mapping[str, tuple[Table, Window]]) -> dict[str, str | StrandlineError]:
        """Count and checksum of the rows in each window, computed by the source: the same again means unchanged."""

    def slices(self, table: Table, window: Window, rows: int | None, limit: int | None) -> tuple[Slice, ...]:
        """Cut a window into slices of about `table.slice_rows`; whole cursor values only. `rows` is the estimate. By
        whole-number keys that the source keeps unique, `table.load_rows` counts, if given.

        `limit`: slices that hold at least that many rows where there are that many, and end there.
        """


class Source(Plannable, Readable, Protocol):
    """Where changes come from: it says how far it is safe to read, and gives a window of changes."""

    def identity(self) -> str:
        """Which server and database this is, whatever its address (`system_identifier`, `server_uuid`)."""

    warnings: list[tuple[str, str]]
    """What `resolve` found worth saying, as (`table.name`, message): a cursor without an index, for one."""

    def tables(self, patterns: Sequence[str], queries: Mapping[str, str]) -> dict[str, TableInfo | StrandlineError]:
        """Every table and view that a name or glob matches, and every named query, in one or a few round trips.

        The keys are the plain names and query names as given; what a glob matches is spelled as the glob is, with a
        schema or without. A name that does not exist gets a SourceError with the nearest names; a glob may match none.
        """

    def resolve(self, table: Table, info: TableInfo, zone: str | None) -> Table:
        """The table with cursor typed, key and columns settled; SourceError names what cannot be carried exactly."""

    def forms(self, table: Table) -> dict[str, Form | None]:
        """The form in which each column is compared with its copy; None: it cannot be."""

    def hashes(self) -> tuple[str, ...]:
        """The hashes of texts that it computes for a comparison, the cheapest first; `md5` is among them."""

    def ranged(self, table: Table) -> bool:
        """Whether the key is one column of whole numbers, and so has ranges."""

    def side(self, comparison: Comparison) -> SourceSide:
        """This source's side of a comparison."""

    def close(self) -> None: ...


@runtime_checkable
class Numbered(Protocol):
    """A source whose windows are numbers, of batches or of versions."""

    def extent(self, table: Table, window: Window) -> Extent:
        """What is behind the numbers."""


class Sink(Protocol):
    """Where batches go. A sink remembers the identity of the last batch it holds, in the same commit as the rows."""

    def identity(self, table: Table) -> str:
        """Which target this is, as the position remembers it."""

    def applied(self, table: Table) -> Receipt | None:
        """The last batch this table's target holds, or None if it never held one. The authority after a crash.

        Raises TargetError if the target exists but is not ours: another pipeline's (unless `shared`), or a stranger.
        """

    def apply(self, table: Table, batch: Batch, changes: Changes, *, how: How, repair: Repair | None = None) -> Applied:
        """Apply the batch. Applying the same identity again changes nothing and returns what the first time returned.

        `repair`, given with How.REPAIR: afterwards that part of the target holds, once each, the rows of the batch.
        Rows that are missing are inserted, different ones overwritten even by an older row, repeated ones made one.
        Rows of the part that are not in the batch stay, or are deleted if there are at most `repair.deletes` of them
        (TargetError if more); one that the batch marks as deleted goes in any case. In append mode a row is known by
        key and cursor, and others stay. Rows that are equal already need not be touched.

        Raises BatchConflictError if the target holds something else under this number; CommitUnknownError if the
        outcome cannot be told (the caller asks `applied` again); SchemaError if the columns do not fit.
        """

    def fence(self, table: Table, epoch: int) -> Receipt | None:
        """Shut out every batch of an earlier epoch, whoever may still be at work on it; returns what the target holds
        then, for good. Changes no rows; a target that does not exist yet stays so."""

    def forms(self, table: Table) -> dict[str, Form | None]:
        """The form in which each column of the target is compared, by its name; empty: there is no target yet."""

    def hashes(self) -> tuple[str, ...]:
        """The hashes of texts that it computes for a comparison; `md5` is among them."""

    def side(self, comparison: Comparison) -> TargetSide:
        """This target's side of a comparison, as it is now."""

    def cancel(self, table: str | None = None) -> None:
        """From another thread: make the `apply` under way give up, for one table or for all. It may still commit."""

    def maintain(self, table: Table) -> None:
        """Tidy what past batches left behind (small files, replaced files); `applied` says what it said before."""

    warnings: list[tuple[str, str]]
    """What `apply` found worth saying, as (`table.name`, message): a column that the source no longer has, for one."""

    def close(self) -> None: ...


@runtime_checkable
class Resting(Protocol):
    """An end that keeps more open during a run than between runs."""

    def rest(self) -> None:
        """A run is over, and another may follow. What it kept for its batches is closed."""


Value = str | int | None


@dataclass(frozen=True)
class Record:
    """A flat record of one kind (`records.KINDS`). `revision` 0: not stored yet; every write raises it by one."""

    kind: str
    key: tuple[str, ...]
    fields: Mapping[str, Value] = field(hash=False)
    revision: int = 0
    damage: str = ""  # why its fields are not to be trusted: what is stored now cannot be read


class State(Protocol):
    """A small store of flat records with revisions. Positions, plans, leases and history are written above it."""

    atomic: bool
    """Whether `put` writes all or none of its records."""

    def now(self) -> datetime:
        """The store's clock, aware and in UTC: the only clock leases are judged by."""

    def identity(self) -> str:
        """A UUID made when the store was; it is lost only with the store."""

    def read(
        self,
        kind: str,
        prefix: Sequence[str] = (),
        *,
        where: Mapping[str, Value] | None = None,
        since: str | None = None,
        newest: int | None = None,
    ) -> list[Record]:
        """Records whose key starts with `prefix`, by key; `where` compares fields, `since` bounds the key's next part
        from below; `newest` gives the last N by key, newest first."""

    def put(self, records: Sequence[Record]) -> list[Record]:
        """Write each record if the stored revision is still the given one, else ConflictError and none of them
        (`atomic`), or none from the first conflict on, in the given order; positions in a row have no order among
        them. Returns them with their new revisions."""

    def append(self, records: Sequence[Record]) -> None:
        """Add history that is never changed again; a key that exists already is left as it is."""

    def delete(self, records: Sequence[Record]) -> None:
        """Remove records under the same compare-and-set as `put`."""

    def prune(self, kind: str, before: str) -> int:
        """Drop history records whose first key part is below `before`; returns how many."""

    def close(self) -> None: ...


@runtime_checkable
class JoinedState(State, Protocol):
    """A state in an SQL database, which can also be written in a transaction that a caller has open there."""

    shares: bool
    """Whether other records can be written meanwhile; SQLite has one writer at a time."""

    def put_in(self, connection: object, records: Sequence[Record]) -> list[Record]:
        """As `put`, on the caller's connection and in its transaction, which decides. What is written by then in that
        transaction stays; StateError if the connection has none open, or leads to another database."""

    def read_in(self, connection: object, records: Sequence[Record]) -> list[Record]:
        """These records as that connection's transaction sees them; none where it has no transaction open."""

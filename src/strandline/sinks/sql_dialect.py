"""What differs between databases as targets: text only, so that any statement can be read and checked by itself.

Owns the words that `sql_*` and each technology's own file share. A dialect extends the one that its database has as a
source: quoting, literals, canonical text for `verify`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from strandline.core.errors import StrandlineError, TargetError
from strandline.core.table import Column
from strandline.sources import names
from strandline.sources.dialect import Dialect
from strandline.sources.jdbc import SPARKS, Reader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LEDGER = "strandline_ledger"
STAGE = "strandline_stage_"
"""How the name of every staging table begins."""


@dataclass(frozen=True)
class Place:
    """A table in a schema; for MySQL, in a database."""

    schema: str
    table: str

    def beside(self, table: str) -> Place:
        return Place(self.schema, table)

    def __str__(self) -> str:
        return names.render(self.schema, self.table)


@dataclass(frozen=True)
class Held:
    """A table as the target's catalog describes it."""

    place: Place
    columns: tuple[Column, ...]
    unique: tuple[frozenset[str], ...]  # column sets that an index keeps unique
    kind: str = "table"
    generated: frozenset[str] = frozenset()  # the database fills them itself and takes no other value
    numbered: frozenset[str] = frozenset()  # it takes a value at INSERT only: GENERATED ALWAYS AS IDENTITY
    defaulted: frozenset[str] = frozenset()  # a row may leave them out
    loose: Mapping[str, str] = field(default_factory=dict, hash=False)  # texts that differ may be equal: collation
    triggers: bool = False

    def column(self, name: str, fold: Callable[[str], str]) -> Column | None:
        return next((column for column in self.columns if fold(column.name) == fold(name)), None)

    def spelled(self, names: Iterable[str], fold: Callable[[str], str]) -> tuple[Column, ...]:
        """Its columns, each under that of these names which is its own in another case, where there is one."""
        known = {fold(name): name for name in names}
        return tuple(replace(column, name=known.get(fold(column.name), column.name)) for column in self.columns)


@dataclass(frozen=True)
class Field:
    """A column of a batch that a target is to hold."""

    spark: str  # its type, as `simpleString` spells it
    source: str = ""  # its type in the source's words; empty: it is not as the source has it
    key: int = 0  # of how many columns the key is that it belongs to; 0: to none


@dataclass(frozen=True)
class Step:
    """One statement. `counts` says what its row count is (`inserted`, …); several: the one row it returns."""

    sql: str
    counts: tuple[str, ...] = ()
    last: bool = False  # after its counts, the highest cursor value among the rows, as text
    first: str = ""  # goes before it, in the same transaction


@dataclass(frozen=True)
class Matched:
    """Rows `s` of a batch and a target `t`: what makes two of them one, and when the batch's counts."""

    target: str
    columns: Sequence[tuple[str, str]]  # of the target, and of the rows
    sets: Sequence[tuple[str, str]]
    rows: str
    on: str
    newer: str
    gone: str  # true for a row that is to be deleted; empty: there is none
    numbered: bool
    query: str = ""  # yields `rows` where they are not staged: the statement that merges them is to count them, too
    last: str = ""  # SQL for the highest cursor value among those, as text


@dataclass(frozen=True)
class Writer:
    """How Spark reaches the database to write over JDBC. The login travels as properties, never in the URL."""

    url: str
    properties: Mapping[str, str] = field(repr=False)

    def fill(self, rows: DataFrame, table: str) -> None:
        rows.write.jdbc(self.url, table, "append", dict(self.properties))


class TargetDialect(Dialect, Protocol):
    transactional_ddl: bool
    """Whether ALTER TABLE takes part in a transaction; where not, it ends it."""
    retypes: bool
    """Whether a column that holds values can be given a wider type."""
    keys: bool
    """Whether the database keeps a key unique; where not, it is for whoever writes."""
    now: str
    exact_text: str  # makes a text column tell any two texts apart
    overriding: str  # in an INSERT, makes a numbered column take the value given
    stamp: str  # type of a moment
    serial: str  # type of a number that the database gives out
    long_text: str  # type of a text, the longest there is
    hashes: tuple[str, ...]  # of texts, for a comparison; the cheapest first

    def fold(self, name: str) -> str:
        """Column names that fold to one are one."""

    def place(self, place: Place) -> str:
        """A table's name in SQL."""

    def name_type(self, length: int) -> str:
        """Type of a name of at most so many characters; two are equal only if they are the same."""

    def sql_type(self, field: Field) -> str | None:
        """The type that holds every value of Spark's, as the catalog spells it; None: none does."""

    def spark_type(self, column: Column) -> str | None:
        """The Spark type that a column of this database is read as, as `simpleString` spells it; None: as none."""

    def bare(self, type_text: str) -> str:
        """A type without the words that say nothing about the values it holds."""

    def takes(self, held: str, spark: str) -> bool:
        """Whether a column of a type that somebody else chose holds every value of Spark's exactly."""

    def own(self, field: Field) -> str | None:
        """The source's words for a column, where it is a database of this very kind; None: they cannot be kept."""

    def fits_name(self, name: str) -> bool:
        """Whether a name is short enough to stay itself."""

    def staged(self, name: str, spark: str) -> str:
        """A Spark expression for a column, as it is written to the staging table."""

    def create(self, place: Place, columns: Sequence[Column], key: Sequence[str], comment: str) -> list[str]:
        """Make the table, unless it is there."""

    def create_stage(self, place: Place, columns: Sequence[tuple[str, str]], comment: str) -> list[str]:
        """Make a staging table: these columns, `part`, and `tag`, which the database fills per transaction."""

    def add(self, place: Place, columns: Sequence[Column]) -> list[str]: ...

    def retype(self, place: Place, columns: Sequence[Column]) -> list[str]:
        """Give columns another type, and convert what they hold."""

    def retype_empty(self, place: Place, columns: Sequence[Column]) -> list[str]:
        """Give columns another type where there is no row whose value could be converted."""

    def unless_there(self, into: str, values: Mapping[str, str], keys: Sequence[Sequence[str]], /) -> str:
        """An INSERT of one row, by column, that does nothing if one of its keys is there already."""

    def lock(self, table: str, /) -> str:
        """A statement that lets nobody else write to a table until the transaction ends; empty: there is no need, since
        keys are kept and rows locked."""

    def last_first(self, value: str) -> str:
        """The highest first, NULL last."""

    def count_different(self, rows: str, columns: Sequence[str]) -> str:
        """Counts the different combinations of these columns among rows."""

    def twins(self, rows: str, keys: Sequence[str], columns: Sequence[str]) -> str:
        """Selects the keys that have rows which differ in any of these columns."""

    def differs(self, pairs: Sequence[tuple[str, str, str]]) -> str:
        """SQL that is true where any of these pairs (one, other, type) is not the same value, NULL being one."""

    def same(self, one: str, other: str) -> str:
        """SQL for equality in which NULL equals NULL."""

    def equal(self, one: str, other: str, kind: str, /) -> str:
        """SQL for equality of two values of a type, neither NULL: not of what the database only takes for equal."""

    def apart(self, value: str, kind: str, /) -> list[str]:
        """SQL by which rows are grouped so that different values of a type stay apart."""

    def update(self, target: str, sets: Sequence[tuple[str, str]], rows: str, on: str) -> str:
        """Update `t` from rows `s`."""

    def delete(self, target: str, rows: str, on: str, known: Sequence[Column], /) -> str:
        """Delete from `t` what rows `s` match. `known`: the columns that a row is known by."""

    def delete_where(self, target: str, where: str, known: Sequence[Column], /) -> str:
        """Delete from `t` by a condition."""

    def merge(self, matched: Matched, /) -> Step | None:
        """Delete, update and insert in one statement that counts all three; None: not here."""

    def analyze(self, place: Place) -> str: ...


class Session(Protocol):
    """One connection to the target."""

    def rows(self, sql: str) -> list[tuple[Any, ...]]: ...

    def run(self, sql: str) -> int:
        """How many rows the statement changed."""

    def cancel(self) -> None:
        """From another thread: the statement under way gives up."""


class Database(Protocol):
    """One server as a target. Threads take turns on its connection; a transaction has one of its own."""

    def another(self) -> Database:
        """The same server over a connection of its own, to be closed by whoever asked."""

    @property
    def dialect(self) -> TargetDialect: ...

    @property
    def schema(self) -> str:
        """Where a target without a schema lies."""

    def identity(self) -> str:
        """Which server this is, whatever its address."""

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Of one statement that commits itself."""

    def run(self, sql: str) -> int: ...

    def transaction(self) -> AbstractContextManager[Session]:
        """Commits at the end, rolls back at an error. CommitUnknownError: the answer to the commit was lost."""

    def snapshot(self) -> AbstractContextManager[Session]:
        """Reads one state of the database, whatever is committed meanwhile."""

    def made(self, place: Place, names: Sequence[str]) -> dict[str, str]:
        """Which of these tables of the place's schema there are, each with what tells it from one made anew.

        TargetError if there is no such schema.
        """

    def find(self, place: Place) -> Held | None: ...

    def knows(self, type_text: str) -> bool:
        """Whether there is such a type: a source's own may be missing here."""

    def left(self, place: Place) -> dict[str, str]:
        """Every staging table of the place's schema, with its comment."""

    def drop(self, place: Place) -> bool:
        """Drop a staging table if there is one, unless somebody is at work on it for longer than a moment."""

    def rest(self) -> None:
        """Between runs: close what only a run needs. A service has many pipelines, and a server few connections."""

    def close(self) -> None: ...


class SparkDatabase(Database, Protocol):
    """A database whose staging tables Spark fills."""

    def another(self) -> SparkDatabase: ...

    def fill(self, rows: DataFrame, stage: Place) -> None:
        """Rows as they are staged (`c0`, `c1`, …, `part`), each partition in a transaction of its own."""

    def translate(self, text: str, /) -> StrandlineError | None:
        """What the database said meanwhile, from the text of Spark's error; None: nothing."""


def no_schema(kind: str, schema: str, create: str) -> TargetError:
    return TargetError(
        f'the target has no {kind} "{schema}"',
        remedy=f"Make it:   {create}\nOr give the table another `target:`, or the target the option `schema`.",
    )


def writer(
    given: Reader,
    chosen: Mapping[str, str],
    left_out: Collection[str] = (),
    batch: int = 10_000,
) -> Writer:
    """How Spark writes where it is known how it reads: the driver's settings with `chosen` and without `left_out`.
    `batch`: rows that it sends at once."""
    settings = {**given.properties, **chosen}
    driver = {name: value for name, value in settings.items() if name not in (*left_out, *SPARKS, "fetchsize")}
    plain = {name: value for name, value in driver.items() if name.islower()}
    address = replace(given, properties=driver).address
    return Writer(address, {**plain, "batchsize": str(batch), "isolationLevel": "READ_COMMITTED"})

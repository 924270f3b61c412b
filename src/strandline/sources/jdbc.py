"""Reading a slice through Spark's JDBC: one lazy frame, parallel readers, every predicate and type spelled by us.

Owns what Spark is told. Rows come from `SELECT … AS c0, … AS c1 FROM relation` so that no identifier of the user's
passes through Spark's quoting. The slice's condition stands inside; Spark adds one reader's tile around it.
"""

from __future__ import annotations

import importlib
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING
from urllib.parse import quote

from strandline.core.batch import How
from strandline.core.errors import ConfigError, SourceError, StrandlineError, TransientError
from strandline.core.protocols import Files
from strandline.core.table import Table
from strandline.core.window import Repair, Slice
from strandline.sources.dialect import Carried, Dialect, column_of, in_slice, refusal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MARK = "/* strandline reader */"
"""In every statement that Spark reads with: it tells a database's barrier that nothing is being written."""
log = logging.getLogger(__name__)
_LEAST_AT_A_TIME = 100  # rows: what a table takes on disk may be more than what is in it
_NO_CONNECTION = "FAILED_JDBC.CONNECTION"  # Spark's word; what the driver said it keeps to itself

SPARKS = {"sessionInitStatement", "preferTimestampNTZ", "pushDownPredicate", "pushDownAggregate", "pushDownLimit"}
"""Properties that are Spark's own: it knows them in any case."""

OPERATION = "_strandline_operation"
"""The column of a soft-deleting table that says what became of a row."""

Transform = Callable[["DataFrame"], "DataFrame"]


@dataclass(frozen=True)
class Reader:
    """How Spark reaches the database. The login travels as properties, never in the URL."""

    url: str
    properties: Mapping[str, str] = field(repr=False)
    translate: Callable[[str], StrandlineError | None]  # the driver's error, from the text of Spark's
    rows_per_reader: int = 100_000  # below both of these a second connection costs more than it brings
    bytes_per_reader: int = 32 << 20
    bytes_at_a_time: int | None = None  # of what is fetched, where rows come in portions

    def fetched(self, width: int) -> int | None:
        """How many rows of so many bytes come at a time; None: as many as usual."""
        if not self.bytes_at_a_time or not width:
            return None
        enough = max(_LEAST_AT_A_TIME, self.bytes_at_a_time // width)
        return enough if enough < int(self.properties["fetchsize"]) else None

    @property
    def address(self) -> str:
        """The URL with every setting of the driver whose name has capitals.

        Beside predicates Spark hands properties to the driver in lower case, and the driver ignores what it does not
        know: sessions would be in the server's zone, and unencrypted where the config asks for more.
        """
        spelled = {name: value for name, value in self.properties.items() if not name.islower() and name not in SPARKS}
        text = "&".join(f"{name}={quote(value, '')}" for name, value in spelled.items())
        return f"{self.url}?{text}" if text else self.url


@dataclass(frozen=True)
class Tiles:
    """Conditions on one column, called `p`, that cut a slice for parallel readers; without a column, one reader."""

    column: str | None = None
    conditions: tuple[str, ...] = ("1 = 1",)
    steady: bool = True  # no row can move from one tile to another while they are read
    fetched: int | None = None  # rows at a time; None: as many as usual

    @classmethod
    def cut(cls, column: str, at: Sequence[str], *, steady: bool) -> Tiles:
        """Half-open, open-ended, and the first also takes NULLs: every row falls in exactly one."""
        if not at:
            return cls()
        middle = [f"p >= {low} AND p < {high}" for low, high in pairwise(at)]
        return cls(column, (f"p < {at[0]} OR p IS NULL", *middle, f"p >= {at[-1]}"), steady)


def translator(
    said: re.Pattern[str], lost: re.Pattern[str], role: str, fault: Callable[[str], StrandlineError]
) -> Callable[[str], StrandlineError | None]:
    """What a driver's error means, from the text of Spark's, in which `said` finds the driver's words; None: it said
    nothing. `lost` knows a connection that failed, `fault` the rest."""

    def translate(text: str) -> StrandlineError | None:
        found = said.search(text)
        if found is None:
            return None
        words = found[1].strip()
        return TransientError(f"the {role}'s connection failed: {words}") if lost.search(words) else fault(words)

    return translate


class JdbcChanges:
    """A slice's rows, read when a sink runs its action: on connections that are newer than the horizon."""

    files: Files | None = None
    how: How | None = None
    repair: Repair | None = None

    def __init__(
        self,
        reader: Reader,
        dialect: Dialect,
        table: Table,
        slice: Slice,
        tiles: Callable[[], Tiles],
    ) -> None:
        self.reader = reader
        self.dialect = dialect
        self.table = table
        self.slice = slice
        self._cut = tiles
        self.operation: str | None = OPERATION if table.deleted else None
        names = {column.name for column in table.columns}
        self.order: tuple[str, ...] = (table.cursor.column,) if table.cursor and table.cursor.column in names else ()

    @cached_property
    def _tiles(self) -> Tiles:
        return self._cut()

    @property
    def unique(self) -> bool:
        return self.table.key_enforced and self.table.transform is None and self._tiles.steady

    @property
    def query(self) -> str | None:
        if self.table.transform is not None:
            return None
        select = []
        for at, column in enumerate(self.table.columns):
            value = column_of(self.dialect, column.name)
            select.append(f"{f'CAST({value} AS {column.cast})' if column.cast else value} AS c{at}")
        if verdict := self._verdict:
            select.append(f"{verdict} AS op")
        where = in_slice(self.dialect, self.table, self.slice)
        return f"SELECT {', '.join(select)} FROM {self.dialect.relation(self.table)} WHERE {where}"

    @property
    def _verdict(self) -> str:
        """SQL for what is to be done with a row, where the source marks deleted ones."""
        if not self.table.deleted:
            return ""
        column = next(column for column in self.table.columns if column.name == self.table.deleted)
        return f"CASE WHEN {self.dialect.deleted(column)} THEN 'delete' ELSE 'upsert' END"

    def frame(self, spark: SparkSession) -> DataFrame:
        from pyspark.sql import functions

        names = [column.name for column in self.table.columns]
        carried = [self.dialect.carry(column) for column in self.table.columns]
        if verdict := self._verdict:
            names, carried = [*names, OPERATION], [*carried, Carried(verdict, "STRING")]
        if not _runs_in_utc(spark):
            carried = [each.portable or each for each in carried]
        read = self.read(spark, carried)
        values = [functions.expr(each.value.format(f"c{at}")) for at, each in enumerate(carried)]
        frame = read.select([value.alias(name, metadata={}) for value, name in zip(values, names, strict=True)])
        return transformed(self.table, self.operation, frame) if self.table.transform else frame

    def read(self, spark: SparkSession, carried: Sequence[Carried]) -> DataFrame:
        """The columns as they arrive, `c0`, `c1`, …"""
        relation = f"({self.statement(carried)}\n) strandline"
        fetched = {"fetchsize": str(self._tiles.fetched)} if self._tiles.fetched else {}
        log.debug("%s: %s, readers: %s", self.table.where_text, relation, self._tiles.conditions)
        return spark.read.jdbc(
            self.reader.address,
            relation,
            predicates=list(self._tiles.conditions),
            properties={**self.reader.properties, **fetched, "customSchema": schema_text(carried)},
        )

    def statement(self, carried: Sequence[Carried]) -> str:
        select = [f"{each.expression} AS c{at}" for at, each in enumerate(carried)]
        if self._tiles.column:
            select.append(f"{self._tiles.column} AS p")
        source = f"{self.dialect.relation(self.table)} WHERE {in_slice(self.dialect, self.table, self.slice)}"
        return f"SELECT {MARK} {', '.join(select)} FROM {source}"

    def translate(self, error: Exception) -> StrandlineError | None:
        if isinstance(error, StrandlineError):
            return error.at(self.table.where_text)
        text = str(error)
        found = refusal(text, self.dialect.text_type) or self.reader.translate(text)
        if found is None and _NO_CONNECTION in text:
            found = TransientError(
                "Spark cannot connect to the source", remedy="Check that the server runs and that Spark can reach it"
            )
        return None if found is None else found.at(self.table.where_text)


def _runs_in_utc(spark: SparkSession) -> bool:
    """Whether Spark was told to start its JVMs in UTC."""
    chosen = spark.conf.getAll
    for role in ("driver", "executor"):
        options = " ".join(chosen.get(f"spark.{role}.{kind}JavaOptions", "") for kind in ("default", "extra"))
        if re.findall(r"-Duser\.timezone=(\S+)", options)[-1:] != ["UTC"]:
            return False
    return True


def schema_text(carried: Sequence[Carried]) -> str:
    return ", ".join(f"c{at} {each.spark}" for at, each in enumerate(carried))


def load_transform(name: str) -> Transform:
    """`module:function`, imported as Python would from the project's folder."""
    module, colon, function = name.partition(":")
    if not colon or not module or not function:
        raise ConfigError(f'transform "{name}" is not module:function')
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        remedy = "The module lies beside strandline.yml, or is installed, or is on PYTHONPATH."
        raise ConfigError(f"transform {name} cannot be loaded: {error}", remedy=remedy) from error
    if not callable(found):
        raise ConfigError(f"transform {name} is not a function")
    transform: Transform = found
    return transform


def _carry(name: str) -> None:
    """Functions that it hands to Spark's Python workers go there whole: on a server the module is not there, or is as
    it was when a worker first read it."""
    module = importlib.import_module(name.partition(":")[0])
    importlib.import_module("pyspark.cloudpickle").register_pickle_by_value(module)


def transformed(table: Table, operation: str | None, frame: DataFrame) -> DataFrame:
    """The frame as the table's `transform` makes it; it must keep the key and the operation."""
    transform = load_transform(table.transform or "")
    if hasattr(frame.sparkSession, "cloneSession"):
        _carry(table.transform or "")
    try:
        result = transform(frame)
    except Exception as error:
        raise SourceError(f"transform {table.transform} failed: {error}", where=table.where_text) from error
    needed = [*table.key, *([operation] if operation else [])]
    lost = [column for column in needed if column not in getattr(result, "columns", ())]
    if lost:
        remedy = f"Return a DataFrame that keeps {', '.join(needed)}"
        raise SourceError(f"transform {table.transform} lost {', '.join(lost)}", where=table.where_text, remedy=remedy)
    return result

"""A batch's rows on their way into a database: a staging table of this attempt alone, filled, then read.

Spark may run a task again that had committed, or two at once: each row carries its partition and what the database
calls the transaction that brought it. One transaction per partition is chosen, once, and only its rows are ever read.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from strandline.core.batch import Applied, Batch
from strandline.core.errors import SourceError, WindowError
from strandline.core.protocols import Changes
from strandline.core.table import Column, Table
from strandline.core.watermark import Kind, Watermark
from strandline.sinks.sql_dialect import STAGE, Database, Place, TargetDialect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class Pair:
    """A column of the target, and of the staging table."""

    column: Column
    staged: str  # c0, c1, …


@dataclass(frozen=True)
class Rows:
    """The rows of a batch, in the database: what follows FROM, and what was counted of them."""

    relation: str
    pairs: tuple[Pair, ...]
    operation: bool  # there is a column `op`
    read: Applied
    query: str = ""  # yields them under the name `relation`, where they are not staged; then nothing was counted yet
    last: str = ""  # SQL for the highest cursor value among those, as text

    @property
    def gone(self) -> str:
        """SQL that is true for a row `s` that the source marks as deleted."""
        return "s.op = 'delete'" if self.operation else ""

    @property
    def alive(self) -> str:
        return "(s.op IS NULL OR s.op <> 'delete')" if self.operation else "1 = 1"


class Staging:
    """One staging table, from its making to its end."""

    def __init__(self, database: Database, place: Place, table: Table, batch: Batch, changes: Changes) -> None:
        self._database = database
        self._dialect: TargetDialect = database.dialect
        self._table = table
        self._changes = changes
        self._owner = owner(table, place)
        # Not the attempt alone: tasks of a try that was given up may still write to the table they know.
        self.place = place.beside(f"{STAGE}{batch.attempt[:16]}_{secrets.token_hex(4)}")
        self._name = self._dialect.place(self.place)

    def sweep(self) -> None:
        """Drop what dead attempts at this table left; one that somebody still writes to stays for the next time."""
        sweep(self._database, self.place, self._owner)

    def create(self, columns: Sequence[Column]) -> None:
        self._pairs = tuple(Pair(column, f"c{at}") for at, column in enumerate(columns))
        staged = [(pair.staged, pair.column.type) for pair in self._pairs]
        if self._changes.operation:
            staged.append(("op", "varchar(20)"))
        for statement in self._dialect.create_stage(self.place, staged, self._owner):
            self._database.run(statement)

    def shaped(self, frame: DataFrame) -> DataFrame:
        """Spark's rows as they are staged."""
        from pyspark.sql import functions as sql

        operation = self._changes.operation
        fields = [field for field in frame.schema.fields if field.name != operation]
        staged = [
            sql.expr(self._dialect.staged(field.name, field.dataType.simpleString())).alias(f"c{at}")
            for at, field in enumerate(fields)
        ]
        if operation:
            staged.append(sql.col(f"`{operation.replace('`', '``')}`").cast("string").alias("op"))
        return frame.select(*staged, sql.spark_partition_id().alias("part"))

    def take(self) -> None:
        """The database's part, where the rows are its own: one statement, which locks none of them."""
        listed = ", ".join(self._names)
        with self._database.transaction() as session:
            session.run(f"INSERT INTO {self._name} ({listed}, part) SELECT {listed}, 0 FROM ({self._changes.query}) q")

    def rows(self) -> Rows:
        """What was staged: counted, chosen and, where keys repeat, the last row of each.

        SourceError: a NULL in the key, or rows of one key that nothing orders.
        """
        plain, read = self._staged()
        once = self._changes.unique or not self._keyed or self._all_different(plain, read.rows_read)
        relation = plain if once else self._last_per_key(plain)
        return Rows(relation, self._pairs, self._changes.operation is not None, read)

    def _staged(self) -> tuple[str, Applied]:
        """What follows FROM for every row that counts, and how many those are."""
        found = self._database.rows(
            f"SELECT part, tag, {', '.join(self._counts())} FROM {self._name} GROUP BY part, tag"
        )
        chosen = {part: (tag, counts) for part, tag, *counts in sorted(found, reverse=True)}
        read = self._read([counts for _, counts in chosen.values()])
        self._database.run(self._dialect.analyze(self.place))
        listed = ", ".join(f"({part}, {self._dialect.string(str(tag))})" for part, (tag, _) in chosen.items())
        where = f"(part, tag) IN ({listed})" if listed else "1 = 0"
        return f"(SELECT {', '.join(self._names)} FROM {self._name} WHERE {where})", read

    def _counts(self) -> list[str]:
        """SQL that counts rows and those with a NULL in the key, and finds the highest cursor value."""
        nulls = " OR ".join(f"{name} IS NULL" for name in self._keys) if self._keyed else "1 = 0"
        return ["count(*)", f"sum(CASE WHEN {nulls} THEN 1 ELSE 0 END)", self._last]

    def _read(self, counts: Sequence[Sequence[Any]]) -> Applied:
        self._refuse_nulls(sum(int(nulls or 0) for _, nulls, _ in counts))
        marks = [mark for *_, last in counts if (mark := moved(self._table, last)) is not None]
        return Applied(sum(int(rows) for rows, *_ in counts), last_value=max(marks, default=None))

    def drop(self) -> None:
        self._database.drop(self.place)

    @property
    def _names(self) -> list[str]:
        return [*(pair.staged for pair in self._pairs), *(["op"] if self._changes.operation else [])]

    @property
    def _last(self) -> str:
        return last_moved(self._dialect, self._table, self._pairs)

    @property
    def _keyed(self) -> bool:
        """Whether rows are told apart by key; a repair in append mode tells them by key, too."""
        return bool(self._table.key)

    @property
    def _keys(self) -> list[str]:
        fold = self._dialect.fold
        staged = {fold(pair.column.name): pair.staged for pair in self._pairs}
        return [staged[fold(name)] for name in self._table.key]

    def _apart(self, names: Sequence[str]) -> list[str]:
        kinds = {pair.staged: pair.column.type for pair in self._pairs}
        return [text for name in names for text in self._dialect.apart(name, kinds.get(name, ""))]

    def _refuse_nulls(self, rows: int) -> None:
        if rows:
            raise SourceError(
                f"{rows} rows have a NULL in the key ({', '.join(self._table.key)})",
                where=self._table.where_text,
                remedy="Choose a `key:` whose columns are never NULL, or leave those rows out with `where:`.",
            )

    def _all_different(self, plain: str, rows: int) -> bool:
        ((keys,),) = self._database.rows(self._dialect.count_different(plain, self._apart(self._keys)))
        return int(keys) == rows

    def _last_per_key(self, plain: str) -> str:
        """The last change of each key; among equals an upsert beats a delete, equal rows are one. Else SourceError."""
        apart, order, names = self._apart(self._keys), self._order(), self._names
        keys = ", ".join(apart)
        ranked = plain
        if order:
            rank = f"rank() OVER (PARTITION BY {keys} ORDER BY {order})"
            ranked = f"(SELECT * FROM (SELECT {', '.join(names)}, {rank} AS n FROM {plain} a) b WHERE n = 1)"
        twins = self._dialect.twins(ranked, apart, self._apart(names))
        ((found,),) = self._database.rows(f"SELECT count(*) FROM ({twins}) d")
        if found:
            raise self._twins(int(found))
        first = f"row_number() OVER (PARTITION BY {keys} ORDER BY {order or self._keys[0]})"
        numbered = f"SELECT {', '.join(names)}, {first} AS n FROM {plain} a"
        return f"(SELECT {', '.join(names)} FROM ({numbered}) b WHERE n = 1)"

    def _order(self) -> str:
        fold = self._dialect.fold
        staged = {fold(pair.column.name): pair.staged for pair in self._pairs}
        order = [self._dialect.last_first(staged[fold(name)]) for name in self._changes.order if fold(name) in staged]
        if order and self._changes.operation:
            order.append("CASE WHEN op = 'delete' THEN 1 ELSE 0 END")
        return ", ".join(order)

    def _twins(self, keys: int) -> SourceError:
        table, order = self._table, self._changes.order
        by = f" and one {', '.join(order)}" if order else ""
        listed = ", ".join([*table.key, *order])
        return SourceError(
            f"{keys} keys have several different rows{by}: which one is the last cannot be told",
            where=table.where_text,
            why=f"The key is ({', '.join(table.key)}).",
            remedy=f"Find them:   SELECT {listed}, count(*) FROM {table.source} GROUP BY {listed} HAVING count(*) > 1\n"
            "Then choose a `key:` that is unique.",
        )


def last_moved(dialect: TargetDialect, table: Table, pairs: Sequence[Pair]) -> str:
    """SQL for the highest cursor value among the rows, as text. Versions are not in the rows: a column of that name is
    somebody's own."""
    cursor, fold = table.cursor, dialect.fold
    if cursor is None or cursor.kind is Kind.VERSION:
        return "NULL"
    pair = next((pair for pair in pairs if fold(pair.column.name) == fold(cursor.column)), None)
    own = pair and dialect.cursor(pair.column)
    return dialect.text(own, f"max({pair.staged})") if pair and own else "NULL"


def moved(table: Table, text: object) -> Watermark | None:
    """What `last_moved` yielded."""
    cursor = table.cursor
    if text is None or cursor is None:
        return None
    try:
        return Watermark(cursor.kind, str(text))
    except WindowError:  # a cursor that `transform` made something else: nothing to report
        return None


def owner(table: Table, place: Place) -> str:
    """What a staging table's comment says: whose it is."""
    names = [table.pipeline, table.name, table.stage, place.table]
    return f"strandline {json.dumps(names, ensure_ascii=False)}"


def sweep(database: Database, place: Place, owner: str) -> None:
    for name, comment in database.left(place).items():
        if comment == owner:
            database.drop(place.beside(name))

"""A batch's rows on their way into a target: counted, read once, one row per key; and the text of the MERGE.

Owns the MERGE rules. Only public DataFrame API and SQL text, so that a session may be classic or Spark Connect.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, Observation, Window
from pyspark.sql import functions as sql
from pyspark.sql.types import BooleanType, DateType, IntegralType, MapType, NumericType, TimestampNTZType, TimestampType

from strandline.core.batch import Applied
from strandline.core.errors import SourceError, WindowError
from strandline.core.protocols import Changes
from strandline.core.table import Table
from strandline.core.watermark import Kind, Watermark
from strandline.spark.columns import column, constant
from strandline.spark.text import quoted

_SMALL_ROWS = 200_000
_SMALL_BYTES = 64 << 20
FIXED = (NumericType, BooleanType, DateType, TimestampType, TimestampNTZType)


@dataclass(frozen=True)
class Rows:
    """The rows of a batch, held by Spark, and what was counted on the way."""

    frame: DataFrame
    read: int
    last_value: Watermark | None
    small: bool
    deletes: int = 0
    first_value: Watermark | None = None
    """Lowest of the cursor; None: rows without one are among them, or none can be told."""
    keys: tuple[int, int] | None = None
    """Lowest and highest of a key's first column, if whole numbers."""

    @property
    def applied(self) -> Applied:
        return Applied(rows_read=self.read, last_value=self.last_value)


class Counting:
    """Counts rows and the highest cursor while they stream past: one pass, nothing held."""

    def __init__(self, table: Table, frame: DataFrame) -> None:
        self._table = table
        self._observation = Observation()
        self.frame = frame.observe(self._observation, *_measures(table, frame))

    def complete(self, applied: Applied) -> Applied:
        """Only after the action really ran: a write that Delta skipped never observes, and this would wait for ever."""
        found = self._observation.get
        return replace(applied, rows_read=found["rows"], last_value=_watermark(self._table, found["last"]))


@contextmanager
def held(table: Table, changes: Changes, frame: DataFrame) -> Iterator[Rows]:
    """The rows, read from the source exactly once: what Spark cannot keep in memory it keeps on disk."""
    frame = frame.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        nulls = sum((sql.when(column(name).isNull(), 1).otherwise(0) for name in table.key), start=constant(0))
        measures = [
            *_measures(table, frame),
            *_bounds(table, changes, frame),
            sql.sum(nulls).alias("nulls"),
            sql.sum(_width(frame)).alias("bytes"),
        ]
        if not changes.unique:
            measures.append(sql.count_distinct(*[column(name) for name in table.key]).alias("keys"))
        (found,) = frame.agg(*measures).collect()
        if found["nulls"]:
            raise SourceError(
                f"{found['nulls']} rows have a NULL in the key ({', '.join(table.key)})",
                where=table.where_text,
                remedy="Choose a `key:` whose columns are never NULL, or leave those rows out with `where:`.",
            )
        small = found["rows"] <= _SMALL_ROWS and (found["bytes"] or 0) <= _SMALL_BYTES
        single = changes.unique or found["keys"] == found["rows"]
        yield Rows(
            frame if single else _last_per_key(table, changes, frame),
            found["rows"],
            _watermark(table, found["last"]),
            small,
            found["deletes"] or 0,
            None if found["unmarked"] else _watermark(table, found["first"]),
            None if found["first_key"] is None else (found["first_key"], found["last_key"]),
        )
    finally:
        frame.unpersist()


def merge_text(table: Table, changes: Changes, target: str, columns: Sequence[str], *, compared: bool = True) -> str:
    """The MERGE of the view `strandline_rows` into the target.

    A newer row is never overwritten or deleted and an equal one is refreshed, so repeats are safe. A row without a
    cursor value (`nulls: include`) is read with every run, so what it says is current. Keys are never NULL (checked
    before), so plain equality is right and lets Spark join by hash. Not `compared`: a row replaces any.
    """
    on = " AND ".join(f"t.{quoted(name)} = s.{quoted(name)}" for name in table.key)
    newer = "true"
    if compared and (name := cursor_column(table, columns)) is not None:
        cursor = quoted(name)
        unmarked = f"s.{cursor} IS NULL OR " if table.nulls == "include" else ""
        newer = f"({unmarked}t.{cursor} IS NULL OR s.{cursor} >= t.{cursor})"
    delete, alive = "", ""
    if changes.operation:
        gone = f"s.{quoted(changes.operation)} <=> 'delete'"
        delete, alive = f"WHEN MATCHED AND {gone} AND {newer} THEN DELETE\n", f"AND NOT ({gone}) "
    names = [quoted(name) for name in columns]
    return (
        f"MERGE INTO {target} AS t USING strandline_rows AS s ON {on}\n{delete}"
        f"WHEN MATCHED AND {newer} {alive}THEN UPDATE SET {', '.join(f't.{name} = s.{name}' for name in names)}\n"
        f"WHEN NOT MATCHED {alive}THEN INSERT ({', '.join(names)}) VALUES ({', '.join(f's.{name}' for name in names)})"
    )


def living(changes: Changes, frame: DataFrame) -> DataFrame:
    """The rows that are not deletes, without the operation."""
    if changes.operation is None:
        return frame
    alive = frame.where(~column(changes.operation).eqNullSafe("delete"))
    return alive.drop(changes.operation)


def _last_per_key(table: Table, changes: Changes, frame: DataFrame) -> DataFrame:
    """The last change of each key; among equals an upsert beats a delete, and equal rows are one. Else SourceError."""
    keys = [column(name) for name in table.key]
    last = frame
    if changes.order:
        order = [column(name).desc_nulls_last() for name in changes.order]
        if changes.operation:
            order.append(column(changes.operation).eqNullSafe("delete").asc())
        rank = "strandline_rank"
        ranked = frame.withColumn(rank, sql.rank().over(Window.partitionBy(*keys).orderBy(*order)))
        last = ranked.where(column(rank) == 1).drop(rank)
    if not any(isinstance(field.dataType, MapType) for field in frame.schema.fields):
        last = last.dropDuplicates()
    (twins,) = last.groupBy(*keys).count().where("count > 1").agg(sql.count(constant(1)).alias("keys")).collect()
    if twins["keys"]:
        by = f" and one {', '.join(changes.order)}" if changes.order else ""
        listed = ", ".join([*table.key, *changes.order])
        raise SourceError(
            f"{twins['keys']} keys have several different rows{by}: which one is the last cannot be told",
            where=table.where_text,
            why=f"The key is ({', '.join(table.key)}).",
            remedy=f"Find them:   SELECT {listed}, count(*) FROM {table.source} GROUP BY {listed} HAVING count(*) > 1\n"
            "Then choose a `key:` that is unique.",
        )
    return last


def _measures(table: Table, frame: DataFrame) -> list[Column]:
    name = cursor_column(table, frame.columns)
    last = constant(None) if name is None else sql.max(column(name))
    return [sql.count(constant(1)).alias("rows"), last.cast("string").alias("last")]


def _bounds(table: Table, changes: Changes, frame: DataFrame) -> list[Column]:
    """What tells whether the rows may replace those of the target, and which of them."""
    name, key = cursor_column(table, frame.columns), table.key[0] if table.key else None
    nothing = constant(None)
    cursor = nothing if name is None else column(name)
    whole = key is not None and isinstance(frame.schema[key].dataType, IntegralType)
    number = column(key).cast("long") if key is not None and whole else nothing.cast("long")
    gone = column(changes.operation).eqNullSafe("delete") if changes.operation else constant(False)
    return [
        sql.sum(gone.cast("int")).alias("deletes"),
        sql.sum(cursor.isNull().cast("int")).alias("unmarked"),
        sql.min(cursor).cast("string").alias("first"),
        sql.min(number).alias("first_key"),
        sql.max(number).alias("last_key"),
    ]


def cursor_column(table: Table, columns: Sequence[str]) -> str | None:
    """The cursor where its values can be compared: among the columns, and not a version."""
    if table.cursor is None or table.cursor.kind is Kind.VERSION or table.cursor.column not in columns:
        return None
    return table.cursor.column


def _watermark(table: Table, text: str | None) -> Watermark | None:
    if text is None or table.cursor is None:
        return None
    try:
        return Watermark(table.cursor.kind, text)
    except WindowError:  # a year beyond 9999 or a cursor that `transform` made something else: nothing to report
        return None


def _width(frame: DataFrame) -> Column:
    """About how many bytes a row takes in memory."""
    width = constant(16 * len(frame.columns)).cast("long")
    for field in frame.schema.fields:
        if not isinstance(field.dataType, FIXED):
            text = field.dataType.simpleString() in ("string", "binary")
            value = column(field.name) if text else column(field.name).cast("string")
            width = width + sql.coalesce(sql.octet_length(value), constant(0))
    return width

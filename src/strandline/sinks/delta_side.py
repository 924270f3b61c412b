"""A Delta table's side of a comparison: checksums and rows of one version of it, computed on Spark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as sql

from strandline.core.compare import Comparison, Cut, Form, Key, Line, Sum, spark_form
from strandline.core.watermark import Cursor, Kind, Watermark
from strandline.core.window import Part
from strandline.sinks.delta_canonical import counted, hashed, in_part, number, text
from strandline.sinks.delta_errors import told
from strandline.sinks.delta_rows import cursor_column
from strandline.sinks.delta_write import tuned
from strandline.spark.columns import column, constant
from strandline.spark.session import batch_session, end_batch
from strandline.spark.text import literal, quoted
from strandline.verify.canonical import row_number

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_HALF = 30  # bits of a row's number: sums of its two parts cannot overflow


class DeltaSide:
    """One version of the table, whatever is committed meanwhile. `read` gives its rows on a session."""

    def __init__(self, spark: SparkSession, read: Callable[[SparkSession], DataFrame], comparison: Comparison) -> None:
        # An overflow is an error, a decimal plain digits.
        self._session = tuned(batch_session(spark, {"spark.sql.ansi.enabled": "true"}))
        self._comparison = comparison
        self._left_out: DataFrame | None = None
        with told(comparison.table):
            frame = read(self._session)
            self._own = {field.name.lower(): spark_form(field.dataType.simpleString()) for field in frame.schema.fields}
            self._frame = _compared(comparison, frame)

    def oldest(self) -> Watermark | None:
        table = self._comparison.table
        name = cursor_column(table, self._frame.columns)
        if name is None or table.cursor is None:
            return None
        with told(table):
            ((lowest,),) = self._frame.agg(sql.min(column(name)).cast("string")).collect()
        return None if lowest is None else Watermark(table.cursor.kind, lowest)

    def leave_out(self, keys: Sequence[Key]) -> None:
        names = [f"k{at}" for at, _ in enumerate(self._comparison.key)]
        schema = ", ".join(f"{name} string" for name in names)
        self._left_out = self._session.createDataFrame(list(keys), schema) if keys else None

    def sums(self, cut: Cut) -> dict[int, Sum]:
        frame = self._present([cut.within] if cut.within else [])
        bucket = constant(0) if cut.whole else sql.expr(self._bucket(cut))
        frame = frame.select(bucket.alias("b"), sql.expr(self._row_number()).alias("h"))
        halves = (
            sql.sum(sql.expr(f"shiftright(h, {_HALF})")).alias("high"),
            sql.sum(sql.expr(f"h & {(1 << _HALF) - 1}")).alias("low"),
        )
        with told(self._comparison.table):
            groups = frame.groupBy() if cut.whole else frame.groupBy("b")
            found = groups.agg(sql.first("b").alias("b"), sql.count(constant(1)).alias("rows"), *halves).collect()
        return {row["b"]: Sum(row["rows"], (row["high"] << _HALF) + row["low"]) for row in found if row["rows"]}

    def rows(self, parts: Sequence[Part]) -> list[Line]:
        select = [sql.expr(each) for each in (*self._key_texts(), self._row_hash())]
        with told(self._comparison.table):
            found = self._present(parts).select(*select).collect()
        return [(tuple(key), hash_) for *key, hash_ in found]

    def close(self) -> None:
        end_batch(self._session)

    def _present(self, parts: Sequence[Part]) -> DataFrame:
        frame = self._frame
        if parts:
            table = self._comparison.table
            frame = frame.where(" OR ".join(f"({in_part(table, part)})" for part in parts))
        if self._left_out is None:
            return frame
        texts = zip(self._key_texts(), self._left_out.columns, strict=True)
        same = [sql.expr(each) == self._left_out[name] for each, name in texts]
        return frame.join(self._left_out, same, "left_anti")

    def _key_texts(self) -> list[str]:
        return [self._text(name, form) for name, form in self._comparison.key]

    def _row_hash(self) -> str:
        return hashed([*self._key_texts(), *(self._text(name, form) for name, form in self._comparison.columns)])

    def _row_number(self) -> str:
        comparison = self._comparison
        numbers = [counted(quoted(name), form) for name, form in comparison.numbers]
        hashes = [
            number([self._text(name, form) for name, form in texts], comparison.hash) for texts in comparison.texts
        ]
        ((key, form), *_) = comparison.key or [("", None)]
        return row_number(numbers, hashes, counted(quoted(key), form) if form and comparison.numbered else None)

    def _text(self, name: str, form: Form) -> str:
        return text(quoted(name), form, self._own.get(name.lower()))

    def _bucket(self, cut: Cut) -> str:
        if not cut.column:
            texts = [self._text(name, form) for name, form in self._comparison.key or self._comparison.columns]
            return f"{number(texts, self._comparison.hash)} & {cut.count - 1}"
        value = quoted(cut.column)
        return (
            f"CASE WHEN {value} < {cut.low} THEN -1L WHEN {value} >= {cut.high} THEN {cut.count}L "
            f"ELSE (CAST({value} AS BIGINT) - ({cut.low}L)) DIV {cut.width}L END"
        )


def _compared(comparison: Comparison, frame: DataFrame) -> DataFrame:
    """The rows that have a counterpart to be compared with."""
    table = comparison.table
    name = cursor_column(table, frame.columns)
    cursor = comparison.cursor
    if name is None or cursor is None or comparison.high is None:
        return frame
    if comparison.low is not None:
        frame = frame.where(f"{quoted(name)} >= {value(cursor, comparison.low)}")
    if not comparison.versions:
        return frame
    frame = frame.where(f"{quoted(name)} < {value(cursor, comparison.high)}")
    if not comparison.key:
        return frame
    newest = Window.partitionBy(*[column(key) for key, _ in comparison.key]).orderBy(column(name).desc())
    return frame.withColumn("strandline_rank", sql.rank().over(newest)).where("strandline_rank = 1")


def value(cursor: Cursor, watermark: Watermark) -> str:
    """A cursor value as a Spark literal."""
    if cursor.kind is Kind.INTEGER:
        return f"CAST({literal(watermark.text)} AS DECIMAL(38,0))"
    if cursor.kind is Kind.DATE:
        return f"DATE{literal(watermark.text)}"
    return (
        f"TIMESTAMP{literal(watermark.text + 'Z')}"
        if cursor.zone is None
        else f"TIMESTAMP_NTZ{literal(watermark.text)}"
    )

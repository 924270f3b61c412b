"""A batch's way into a topic: through Spark's Kafka sink, or, row by row, through the driver's own transaction.

Owns the Spark settings of either way, and counts what was published.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as sql

from strandline.core.batch import Applied, Batch, How
from strandline.core.errors import SchemaError
from strandline.core.protocols import Changes
from strandline.core.table import Column, Mode, Table
from strandline.sinks.delta_rows import Counting, Rows, held
from strandline.sinks.delta_schema import check_columns
from strandline.sinks.kafka_client import Brokers
from strandline.sinks.kafka_positions import Held
from strandline.sinks.kafka_producer import Message, TableProducer
from strandline.sinks.kafka_rows import DELETE, headers, messages, spread, with_headers
from strandline.sinks.kafka_tally import Tally
from strandline.spark.columns import constant
from strandline.spark.session import batch_session, end_batch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SETTINGS = {
    # Kafka as a source of Spark's second kind: only its writes are seen by what counts the rows on their way.
    "spark.sql.sources.useV1SourceList": "avro,csv,json,orc,parquet,text",
    "spark.sql.redaction.options.regex": r"(?i)url|kafka\.(sasl|ssl)",
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": "16m",
}


class Write:
    def __init__(self, spark: SparkSession, brokers: Brokers, table: Table, batch: Batch, changes: Changes) -> None:
        self.session = batch_session(spark, _SETTINGS)
        self._brokers, self._table, self._batch, self._changes = brokers, table, batch, changes
        self._frame = changes.frame(self.session)
        self._producer: TableProducer | None = None
        check_columns(table, self._frame.schema, "Kafka")
        missing = [name for name in table.key if name not in self._frame.columns]
        if missing:
            raise SchemaError(
                f'the key column "{missing[0]}" is not among the columns',
                where=table.where_text,
                remedy="Keep it in `columns:` and in `transform:`, or choose another `key:`.",
            )

    @property
    def published(self) -> Table:
        """The table with the columns that its messages have."""
        fields = [field for field in self._frame.schema.fields if field.name != self._changes.operation]
        columns = tuple(Column(field.name, field.dataType.simpleString()) for field in fields)
        return replace(self._table, columns=columns)

    def run(self, producer: TableProducer, how: How, position: Callable[[Applied], Held]) -> Applied:
        """Publish; the position is written with the rows, or as soon as brokers have acknowledged them all."""
        self._producer = producer
        # A first load tells of rows that there are; nobody has heard of the others.
        living = how is How.FRESH and self._table.mode is not Mode.APPEND
        with self._rows() as (frame, known):
            if self._brokers.exactly_once:
                return self._through_the_driver(producer, frame, known, living, position)
            return self._through_spark(producer, frame, known, living, position)

    def cancel(self) -> None:
        if self._producer is not None:
            self._producer.cancelled.set()
        self.session.interruptAll()

    def close(self) -> None:
        end_batch(self.session)

    @contextmanager
    def _rows(self) -> Iterator[tuple[DataFrame, Rows | None]]:
        """One row per key where the mode is merge; where the source promises that, rows are not held on their way."""
        table, changes = self._table, self._changes
        if table.mode is Mode.APPEND or (changes.unique and table.key_enforced):
            yield self._frame, None
            return
        with held(table, changes, self._frame) as rows:
            yield rows.frame, rows

    def _messages(self, frame: DataFrame, *, parts: bool) -> DataFrame:
        tombstones = self._brokers.deletes == "tombstone" and self._table.mode is not Mode.APPEND
        spread_ = spread(self._table, self._changes, frame, parts=parts)
        return messages(self._table, self._changes, spread_, tombstones=tombstones)

    def _through_spark(
        self,
        producer: TableProducer,
        frame: DataFrame,
        known: Rows | None,
        living: bool,
        position: Callable[[Applied], Held],
    ) -> Applied:
        counting = None if known else Counting(self._table, frame)
        found = self._messages(counting.frame if counting else frame, parts=False)
        published = Observation()
        found = found.where(sql.col("operation") != DELETE) if living else found
        deletes = sql.sum(sql.when(sql.col("operation") == DELETE, 1).otherwise(0))
        found = found.observe(published, sql.count(constant(1)).alias("rows"), deletes.alias("deletes"))
        told = with_headers(found, headers(self._table, self._batch))
        told.write.format("kafka").mode("append").options(**self._brokers.spark(), topic=producer.topic).save()
        rows, gone = published.get["rows"], published.get["deletes"] or 0
        read = counting.complete(Applied()) if counting else known.applied if known else Applied()
        applied = Applied(read.rows_read, rows - gone, 0, gone, read.last_value)
        producer.publish((), lambda: position(applied))
        return applied

    def _through_the_driver(
        self,
        producer: TableProducer,
        frame: DataFrame,
        known: Rows | None,
        living: bool,
        position: Callable[[Applied], Held],
    ) -> Applied:
        tally, fixed = Tally(self._table), headers(self._table, self._batch)
        found = self._messages(frame, parts=True)

        def passing() -> Iterator[Message]:
            for key, value, at, operation in found.toLocalIterator(prefetchPartitions=True):
                tally.see(at, deleted=operation == DELETE)
                if operation == DELETE and living:
                    continue
                own = {**fixed, "cursor": at, "operation": operation}
                yield Message(key, value, [(name, text) for name, text in own.items() if text is not None])

        def applied() -> Applied:
            found = replace(tally.applied, rows_deleted=0) if living else tally.applied
            return replace(found, rows_read=known.read, last_value=known.last_value) if known else found

        producer.publish(passing(), lambda: position(applied()))
        return applied()

"""Kafka topics as targets: every change of a table is a message; a position record says which batch was the last.

Owns whose a topic is, and when a batch is published, refused or already there. Whoever brings a batch first opens the
table's producer, which shuts out every earlier one, and only then reads what the cluster holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from strandline.core.batch import Applied, Batch, How, Receipt
from strandline.core.compare import Comparison, Form
from strandline.core.errors import BatchConflictError, SchemaError, StrandlineError, TargetError
from strandline.core.protocols import Changes, Spark, TargetSide
from strandline.core.table import Table
from strandline.core.window import Repair
from strandline.endpoint import Endpoint
from strandline.sinks.delta_errors import told
from strandline.sinks.kafka_client import Brokers
from strandline.sinks.kafka_positions import Held, OpenTransactionError, Positions, of_table
from strandline.sinks.kafka_producer import FencedError, TableProducer

if TYPE_CHECKING:
    from confluent_kafka.admin._topic import TopicDescription

    from strandline.sinks.kafka_write import Write


_SETTLE_SECONDS = 3  # committing a position takes milliseconds


class KafkaSink:
    def __init__(self, endpoint: Endpoint, spark: Spark) -> None:
        self.brokers = Brokers(endpoint)
        self.warnings: list[tuple[str, str]] = []
        self._create = endpoint.flag("create", False)
        self._positions = Positions(self.brokers)
        self._spark = spark
        self._writes: dict[str, Write] = {}  # under way, by table

    def identity(self, table: Table) -> str:
        return f"kafka:{self.brokers.cluster}/{self._name(table)}"

    def applied(self, table: Table) -> Receipt | None:
        """What is committed. A transaction that somebody left open is settled by the next `apply`, or by `fence`."""
        topic = self._topic(table)
        return None if topic is None else self._held(table, topic).receipt()

    def apply(self, table: Table, batch: Batch, changes: Changes, *, how: How, repair: Repair | None = None) -> Applied:
        if how is How.REPAIR or repair is not None:
            raise _incomparable(table)
        topic = self._topic(table, make=True)
        assert topic is not None
        self._positions.make()
        with self._told(table, changes), self._producer(table, topic) as producer:
            found = self._held(table, topic)
            if found.batch is not None and batch.same(found.batch):
                return found.applied
            _refuse_passed(table, batch, found)
            try:
                return self._publish(producer, table, batch, changes, how, found)
            except FencedError:
                now = self._held(table, topic)
                if now.batch is not None and batch.same(now.batch):
                    return now.applied
                _refuse_passed(table, batch, now)
                raise

    def _publish(
        self, producer: TableProducer, table: Table, batch: Batch, changes: Changes, how: How, before: Held
    ) -> Applied:
        spark = self._spark()  # first: PySpark is imported while its Java starts
        from strandline.sinks.kafka_write import Write

        write = self._writes[table.name] = Write(spark, self.brokers, table, batch, changes)
        try:
            published = write.published
            _check_policy(table, published.columns_changed(before.schema), replaced=how is How.REPLACE)

            def position(applied: Applied) -> Held:
                return replace(before, epoch=batch.epoch, batch=batch, applied=applied, schema=published.schema_text())

            return write.run(producer, how, position)
        finally:
            del self._writes[table.name]
            write.close()

    def lacking(self, tables: Sequence[Table]) -> list[str]:
        """What keeps batches of these tables out, in words, as far as the brokers tell: rights, and what the topic of
        positions is like."""
        wanted = {self._name(table): ("WRITE", "DESCRIBE") for table in tables}
        words = []
        for name, rights in {**wanted, self.brokers.positions: ("READ", "WRITE", "DESCRIBE")}.items():
            found = self.brokers.topic(name, rights=True)
            if found is not None and found.authorized_operations is not None:
                given = {operation.name for operation in found.authorized_operations}
                words += [f"{right} on topic {name} is missing" for right in rights if right not in given]
            if found is not None and name == self.brokers.positions and not self.brokers.compacted(name):
                words.append(f"topic {name} is not compacted: what it remembers expires")
        return words

    def fence(self, table: Table, epoch: int) -> Receipt | None:
        topic = self._topic(table)
        if topic is None or self.brokers.topic(self.brokers.positions) is None:
            return None
        with self._told(table), self._producer(table, topic) as producer:
            found = self._held(table, topic)
            if found.epoch < epoch:
                raised = replace(found, epoch=epoch)
                producer.publish((), lambda: raised)
        return self._held(table, topic).receipt()

    def forms(self, table: Table) -> dict[str, Form | None]:
        raise _incomparable(table)

    def hashes(self) -> tuple[str, ...]:
        return ("md5",)

    def side(self, comparison: Comparison) -> TargetSide:
        raise _incomparable(comparison.table)

    def cancel(self, table: str | None = None) -> None:
        for name, write in list(self._writes.items()):
            if table in (None, name):
                write.cancel()

    def maintain(self, table: Table) -> None:
        """Nothing: the brokers tidy topics by themselves."""

    def close(self) -> None:
        self._positions.close()

    def _name(self, table: Table) -> str:
        try:
            return self.brokers.topic_name(table.target)
        except StrandlineError as error:
            raise error.at(table.where_text) from None

    def _topic(self, table: Table, *, make: bool = False) -> TopicDescription | None:
        """The table's topic; None where it is yet to be made. TargetError where nobody asked for that."""
        name = self._name(table)
        found = self.brokers.topic(name)
        if found is None and not self._create:
            raise TargetError(
                f"there is no topic {name} on {self.brokers.endpoint}",
                where=table.where_text,
                remedy=f"Make it:   kafka-topics --create --topic {name}\n"
                "Or have it made: add `create: true` to the target, and `partitions:` and `replication:` as you like.",
                docs="docs/targets-kafka.md#topics",
            )
        return self.brokers.make(name) if found is None and make else found

    @contextmanager
    def _producer(self, table: Table, topic: TopicDescription) -> Iterator[TableProducer]:
        producer = TableProducer(self.brokers, table, topic.name)
        try:
            yield producer
        finally:
            producer.close()

    def _held(self, table: Table, topic: TopicDescription) -> Held:
        """A transaction that is open for so long is a dead process's: the table's own is ended by taking its place."""
        try:
            found = self._positions.read(_SETTLE_SECONDS)
        except OpenTransactionError:
            with self.brokers.errors(), self._producer(table, topic):
                found = self._positions.read()
        return of_table(found, table, topic.name, str(topic.topic_id))

    @contextmanager
    def _told(self, table: Table, changes: Changes | None = None) -> Iterator[None]:
        with told(table, changes), self.brokers.errors():
            try:
                yield
            except StrandlineError:
                raise
            except Exception as error:
                by_source = None if changes is None else changes.translate(error)
                found = by_source or self.brokers.java(error)
                if found is None:
                    raise
                raise found.at(table.where_text) from error


_CONFLICT = """\
Another state store feeds this topic, or an older run is still alive.
See what the target holds (it asks before it changes anything):   strandline watermark import --from-target -t TABLE"""


def _refuse_passed(table: Table, batch: Batch, held: Held) -> None:
    passed = held.batch is not None and held.batch.number >= batch.number
    if passed or held.epoch > batch.epoch:
        what = f"it holds {held.batch}" if passed else f"epoch {held.epoch} has begun"
        raise BatchConflictError(
            f"the topic has moved past {batch}: {what}",
            where=table.where_text,
            why="Another run got there, or a change of the watermark was begun and did not end: give it again.",
            remedy=_CONFLICT,
        )


def _check_policy(table: Table, changed: str, *, replaced: bool) -> None:
    """JSON takes any columns; the table's `schema:` may not."""
    if not changed or table.schema == "evolve" or (table.schema == "reload" and replaced):
        return
    again = f"Publish the table again with its new columns:   strandline sync --full -t {table.name}"
    raise SchemaError(
        f"the columns changed: {changed}",
        where=table.where_text,
        why=f"The table says `schema: {table.schema}`.",
        remedy=again if table.schema == "reload" else "Set `schema: evolve` to take such changes, or undo them.",
    )


def _incomparable(table: Table) -> TargetError:
    return TargetError(
        f"pipeline {table.pipeline} publishes to Kafka, and a topic is not compared with its source",
        where=table.where_text,
        why="A topic holds changes, not rows: what it says of a row depends on what was compacted or has expired.",
        remedy="Verify the table that a consumer makes of it, or publish everything again:   "
        f"strandline sync --full -t {table.name}",
        docs="docs/targets-kafka.md#verify",
    )

"""What a cluster holds of each table: position records in one compacted topic, the last of each table being the one.

Owns the record and reading it. Only committed records are read, and as far as the topic went when it was asked: a
transaction that is still open there is waited for.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from strandline.core.batch import Applied, Batch, Receipt
from strandline.core.errors import TargetError, TransientError
from strandline.core.table import Table
from strandline.sinks.kafka_client import Brokers

if TYPE_CHECKING:
    from confluent_kafka import Message

_PATIENCE_SECONDS = 30.0
# Records are small and replaced often: what is replaced goes soon, so that reading the topic stays quick.
_SETTINGS = {
    "cleanup.policy": "compact",
    "segment.ms": "3600000",
    "segment.bytes": "16777216",
    "min.cleanable.dirty.ratio": "0.1",
}
Key = tuple[str, str, str, str]


@dataclass(frozen=True)
class Held:
    """A position record: the last batch of a table in a topic, and the epoch below which batches are shut out."""

    pipeline: str
    table: str
    stage: str
    topic: str
    topic_id: str  # a topic that was deleted and made again is another one, and holds nothing
    epoch: int
    batch: Batch | None = None
    applied: Applied = field(default_factory=Applied)
    schema: str = ""  # of that batch, in Spark's words

    @property
    def key(self) -> Key:
        return (self.pipeline, self.table, self.stage, self.topic)

    @property
    def order(self) -> tuple[int, int]:
        return (self.epoch, self.batch.number if self.batch else 0)

    def receipt(self) -> Receipt | None:
        return None if self.batch is None else Receipt(self.batch, self.applied, epoch=self.epoch)

    def record(self) -> tuple[bytes, bytes]:
        """Its key and its value."""
        value = {
            "pipeline": self.pipeline,
            "table": self.table,
            "stage": self.stage,
            "topic": self.topic,
            "topic_id": self.topic_id,
            "epoch": self.epoch,
            "batch": json.loads(self.batch.to_json()) if self.batch else None,
            "applied": self.applied.to_json(),
            "schema": self.schema,
        }
        return json.dumps(self.key).encode(), json.dumps(value).encode()

    @classmethod
    def from_record(cls, value: bytes) -> Held:
        raw: dict[str, Any] = json.loads(value)
        batch = Batch.from_json(json.dumps(raw["batch"])) if raw["batch"] else None
        return cls(**{**raw, "batch": batch, "applied": Applied.from_json(raw["applied"])})


class OpenTransactionError(TransientError):
    """Somebody's record is neither committed nor aborted."""


class Positions:
    """Threads take turns; what was read is kept, and read on from there."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self._lock = threading.Lock()
        self._consumer: Consumer | None = None
        self._reached: dict[int, int] = {}  # by partition, how far was read
        self._held: dict[Key, Held] = {}

    def read(self, seconds: float | None = None) -> dict[Key, Held]:
        """Every table's last record, none left out that was committed before the call. OpenTransactionError if that
        cannot be told within so many seconds."""
        with self._lock:
            topic = self._brokers.topic(self._brokers.positions)
            if topic is None:
                return {}
            with self._brokers.errors():
                self._read_to(self._brokers.ends(topic), seconds or _PATIENCE_SECONDS)
            return dict(self._held)

    def make(self) -> None:
        """Make the topic, unless it is there."""
        if self._brokers.topic(self._brokers.positions) is None:
            self._brokers.make(self._brokers.positions, 1, **_SETTINGS)

    def close(self) -> None:
        with self._lock:
            if self._consumer is not None:
                self._consumer.close()
                self._consumer = None

    def _read_to(self, ends: Mapping[int, int], seconds: float) -> None:
        consumer = self._assigned(ends)
        until = time.monotonic() + seconds
        while behind := [part for part, end in ends.items() if self._reached[part] < end]:
            message = consumer.poll(0.2)
            if message is not None:
                self._take(message)
            elif time.monotonic() > until:
                raise OpenTransactionError(
                    f"{self._brokers.endpoint}: {self._brokers.positions} cannot be read to its end",
                    why=f"A transaction is open in partition {behind[0]}: its producer is at work, or died just now.",
                    remedy="It ends by itself, after the transaction_timeout of that producer at the latest.",
                )

    def _assigned(self, ends: Mapping[int, int]) -> Consumer:
        if self._consumer is None or self._reached.keys() != ends.keys():
            settings = {
                "group.id": "strandline",  # asked for, and not used: nothing is committed
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 20,
            }
            self._consumer = self._consumer or Consumer(self._brokers.python(**settings))
            self._reached = dict.fromkeys(ends, 0)
            places = [TopicPartition(self._brokers.positions, part, OFFSET_BEGINNING) for part in ends]
            self._consumer.assign(places)
        return self._consumer

    def _take(self, message: Message) -> None:
        error, part, offset = message.error(), message.partition(), message.offset()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            raise KafkaException(error)
        assert part is not None and offset is not None
        if error is not None:
            self._reached[part] = offset
            return
        self._reached[part] = offset + 1
        value = message.value()
        if value is None:
            return
        try:
            found = Held.from_record(value if isinstance(value, bytes) else value.encode())
        except (ValueError, KeyError, TypeError) as error_:
            raise TargetError(
                f"{self._brokers.positions} holds a record that is not ours, at offset {offset}: {error_}",
                remedy="Name another topic with the target's option `positions:`.",
            ) from error_
        before = self._held.get(found.key)
        if before is None or before.topic_id != found.topic_id or found.order >= before.order:
            self._held[found.key] = found


def of_table(held: Mapping[Key, Held], table: Table, topic: str, topic_id: str) -> Held:
    """The table's own record in this topic. TargetError if the topic is another table's, unless it is `shared`."""
    key = (table.pipeline, table.name, table.stage, topic)
    own = held.get(key)
    if own is not None and own.topic_id == topic_id and own.batch is not None:
        return own
    here = [found for found in held.values() if (found.topic, found.topic_id) == (topic, topic_id) and found.batch]
    other = next((found for found in here if (found.pipeline, found.table) != (table.pipeline, table.name)), None)
    if other is not None and not table.shared:
        raise TargetError(
            f"topic {topic} belongs to {other.pipeline}.{other.table}",
            where=table.where_text,
            remedy='Give the table another topic (`target:`, or a `topic:` with "{table}" in it),\n'
            "or set `shared: true` on both.",
        )
    return Held(*key, topic_id, own.epoch if own else 0)

"""The one producer that may write for a table: whoever opens it shuts the one before out, and settles what it left.

Owns transactions. A position record is always written in one; with `exactly_once` the rows are in it, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event

from confluent_kafka import KafkaError, KafkaException, Producer

from strandline.core.errors import CommitUnknownError, TargetError, TransientError
from strandline.core.table import Table
from strandline.sinks.kafka_client import LARGEST_BYTES, Brokers
from strandline.sinks.kafka_positions import Held

_FENCED = (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH)
_OPEN_SECONDS = 60  # a transaction of the one before is ended first
_LOOK_EVERY = 1000  # rows
_SAFE = 0.8  # of the time that a transaction may take
_POSITION_SECONDS = 60  # the time for a position record alone


class FencedError(TransientError):
    """Another producer of this table was opened since: it is the one that counts."""


@dataclass(frozen=True)
class Message:
    key: str | None
    value: str | None
    headers: list[tuple[str, str | bytes | None]]


class TableProducer:
    def __init__(self, brokers: Brokers, table: Table, topic: str) -> None:
        """Returns with every earlier producer of the table shut out, and its last transaction committed or aborted."""
        self.topic = topic
        self.cancelled = Event()
        self._brokers = brokers
        self._undelivered: KafkaError | None = None  # the first that was not
        self._seconds = brokers.transaction_seconds if brokers.exactly_once else _POSITION_SECONDS
        name = "/".join(["strandline", table.pipeline, table.name, table.stage, topic])
        settings = {
            "transactional.id": name,
            "transaction.timeout.ms": int(self._seconds * 1000),
            "partitioner": "murmur2_random",  # as Java's clients do it, Spark's among them: a key keeps its partition
            "queue.buffering.max.kbytes": 64 << 10,
            "message.max.bytes": LARGEST_BYTES,
            "on_delivery": self._refused,
            "delivery.report.only.error": True,
            **brokers.compression(),
        }
        with brokers.errors():
            self._producer = Producer(brokers.python(**settings))
            self._producer.list_topics(topic, brokers.seconds)  # connected, it finds its coordinator at once
            self._producer.init_transactions(_OPEN_SECONDS)

    def publish(self, messages: Iterable[Message], position: Callable[[], Held]) -> None:
        """Messages, then the position that is known after them, in one transaction.

        FencedError if another producer took over; CommitUnknownError if the outcome cannot be told.
        """
        with self._fencing():
            self._producer.begin_transaction()
        try:
            with self._fencing():
                self._send(messages)
                key, value = position().record()
                self._producer.produce(self._brokers.positions, key=key, value=value)
        except BaseException:
            self._abort()
            raise
        self._commit()

    def close(self) -> None:
        """Nothing is awaited: what is not committed by now is for nobody."""
        self._producer.purge()

    def _send(self, messages: Iterable[Message]) -> None:
        began = 0.0
        for sent, message in enumerate(messages):
            began = began or time.monotonic()
            if sent % _LOOK_EVERY == 0:
                self._look(sent, time.monotonic() - began)
            self._produce(message)

    def _look(self, sent: int, seconds: float) -> None:
        self._producer.poll(0)
        if self.cancelled.is_set():
            raise TransientError("the batch was cancelled")
        if seconds > self._seconds * _SAFE:
            fits = max(int(sent * _SAFE / 2), 1)
            raise TargetError(
                f"the batch does not fit in one transaction: {sent:,} rows were sent in {seconds:.0f} s of "
                f"{self._seconds:g} s",
                why="The brokers abort a transaction that is open for longer. Nothing of it is seen by consumers.",
                remedy=f"Make batches smaller (`slice_rows: {fits}`) and plan anew:   strandline retry last --replan\n"
                "Or raise `transaction_timeout` of the target, up to the brokers' transaction.max.timeout.ms.",
                docs="docs/targets-kafka.md#exactly-once",
            )

    def _produce(self, message: Message) -> None:
        until = time.monotonic() + self._seconds
        while True:
            try:
                self._producer.produce(self.topic, key=message.key, value=message.value, headers=list(message.headers))
            except BufferError:  # memory is bounded: wait until brokers have taken some
                self._producer.poll(0.1)
                if time.monotonic() > until or self.cancelled.is_set():
                    raise TransientError(f"{self._brokers.endpoint}: the brokers take no rows") from None
            else:
                return

    def _commit(self) -> None:
        until = time.monotonic() + self._seconds
        while True:
            try:
                with self._fencing():
                    self._producer.commit_transaction(self._brokers.seconds)
            except KafkaException as error:
                found: KafkaError = error.args[0]
                if found.txn_requires_abort():
                    self._abort()
                    said = self._undelivered or found
                    failed = TransientError(f"{self._brokers.endpoint}: the transaction failed: {said.str()}")
                    raise self._brokers.ours(said) or failed from error
                if not found.retriable() or time.monotonic() > until:
                    raise CommitUnknownError(
                        f"{self._brokers.endpoint}: no answer to the commit: {found.str()}"
                    ) from error
            else:
                return

    def _refused(self, error: KafkaError | None, _: object) -> None:
        self._undelivered = self._undelivered or error

    def _abort(self) -> None:
        """As far as it can be: whoever opens the next producer ends what is left open."""
        try:
            self._producer.abort_transaction(self._brokers.seconds)
        except KafkaException:
            self._producer.purge()

    @contextmanager
    def _fencing(self) -> Iterator[None]:
        try:
            yield
        except KafkaException as error:
            found: KafkaError = error.args[0]
            if (self._fatal() if found.code() == KafkaError._FATAL else found.code()) in _FENCED:
                raise FencedError(f"{self._brokers.endpoint}: another producer took the table over") from error
            raise

    def _fatal(self) -> int:
        """`produce` says only that there was a fatal error; who ends the transaction is told which one."""
        try:
            self._producer.abort_transaction(self._brokers.seconds)
        except KafkaException as error:
            found: KafkaError = error.args[0]
            return found.code()
        return KafkaError._FATAL

"""Syncs into a real Kafka broker: what consumers see, whatever dies on the way."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import yaml
from confluent_kafka import KafkaException, Producer
from kafka_child import PASSING
from targets import watched

import strandline
from strandline.core.batch import How
from strandline.core.errors import ConnectError, StrandlineError, TargetError
from strandline.core.events import BatchApplied, Event
from strandline.core.position import Status
from strandline.core.run import Outcome
from strandline.doctor import Level, examine
from strandline.endpoint import Endpoint
from strandline.sinks import open_sink
from strandline.sinks.kafka_client import Brokers
from strandline.sinks.kafka_positions import Held, Positions
from strandline.sinks.kafka_producer import TableProducer
from strandline.sinks.kafka_write import Write
from strandline.testing.kafka import Consumed, Kafka, current
from strandline.testing.lake import Lake
from strandline.testing.servers import free_port
from strandline.testing.sink import RowChanges, at, batch, orders
from strandline.testing.world import Killed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).parent
BOTH = pytest.mark.parametrize("exactly_once", [False, True], ids=["at least once", "exactly once"])
SOURCE = """
CREATE TABLE orders (id bigint PRIMARY KEY, price numeric(30, 10), paid timestamptz, day date, photo bytea, note text,
    gone boolean NOT NULL DEFAULT false, at timestamptz NOT NULL DEFAULT clock_timestamp());
INSERT INTO orders (id, price, paid, day, photo, note)
    VALUES (1, 12345678901234567890.0000000001, '2026-11-15 08:00:00.120003+09', '2026-11-15', '\\x00ff', 'a "b"'),
           (9007199254740993, NULL, NULL, NULL, NULL, NULL)"""


class Shop:
    """A table in PostgreSQL, and pipelines that publish it."""

    def __init__(self, folder: Path, database: str, kafka: Kafka, spark: SparkSession) -> None:
        self.folder, self.database, self.kafka, self.spark = folder, database, kafka, spark
        self.prefix = f"t{uuid.uuid4().hex[:12]}"
        self.target: dict[str, Any] = {"url": kafka.url(), "create": True, "topic": f"{self.prefix}.{{table}}"}
        self.table: dict[str, Any] = {"name": "orders", "cursor": "at", "deleted": "gone"}
        self.others: dict[str, Any] = {}

    def execute(self, sql: str) -> None:
        with psycopg.connect(self.database, autocommit=True) as connection:
            connection.execute(sql.encode())

    def pipeline(self, **changed: Any) -> dict[str, Any]:
        target = {**self.target, **changed}
        return {"source": self.database, "guard": "0s", "target": target, "tables": [self.table]}

    @property
    def config(self) -> Path:
        path = self.folder / "strandline.yml"
        path.write_text(yaml.safe_dump({"pipelines": self.others or {"shop": self.pipeline()}}))
        return path

    def sync(self, name: str = "shop", **how: Any) -> Outcome:
        with strandline.load(self.config) as project:
            (outcome,) = project.sync(name, spark=self.spark, **how).tables
        return outcome

    def messages(self, *, committed: bool = True) -> list[Consumed]:
        return self.kafka.consume(f"{self.prefix}.orders", committed=committed)


@pytest.fixture
def shop(tmp_path: Path, pg_database: str, kafka: Kafka, spark: SparkSession) -> Shop:
    shop = Shop(tmp_path, pg_database, kafka, spark)
    shop.execute(SOURCE)
    return shop


@BOTH
def test_every_change_is_a_message_with_key_value_and_headers(shop: Shop, exactly_once: bool) -> None:
    shop.target["exactly_once"] = exactly_once
    outcome = shop.sync()
    assert outcome.status is Status.COMPLETED, outcome.error
    assert (outcome.applied.rows_read, outcome.applied.rows_inserted) == (2, 2)
    first, second = sorted(shop.messages(), key=lambda message: message.key["id"])
    assert (first.key, second.key) == ({"id": 1}, {"id": 9007199254740993})
    assert first.value == {
        "id": 1,
        "price": "12345678901234567890.0000000001",
        "paid": "2026-11-14T23:00:00.120003Z",
        "day": "2026-11-15",
        "photo": base64.b64encode(b"\x00\xff").decode(),
        "note": 'a "b"',
        "gone": False,
        "at": first.value["at"],
    }
    assert list(second.value.values())[1:6] == [None] * 5
    assert second.text is not None and '"id":9007199254740993,' in second.text
    written = first.value["at"].replace("T", " ").removesuffix("Z").rstrip("0")
    assert first.headers == {
        "pipeline": "shop",
        "table": "orders",
        "batch": "1.1",
        "cursor": written,
        "operation": "upsert",
    }
    assert str(outcome.applied.last_value) >= written

    shop.execute("UPDATE orders SET gone = true, at = clock_timestamp() WHERE id = 1")
    shop.execute("UPDATE orders SET note = 'new', at = clock_timestamp() WHERE id <> 1")
    outcome = shop.sync()
    assert (outcome.applied.rows_inserted, outcome.applied.rows_deleted) == (1, 1)
    messages = shop.messages()
    (tombstone,) = [message for message in messages if message.value is None]
    assert (tombstone.key, tombstone.headers["operation"]) == ({"id": 1}, "delete")
    assert tombstone.place[0] == first.place[0]  # a key stays in its partition, so that its changes stay in order
    assert [row["note"] for row in current(messages).values()] == ["new"]
    assert shop.sync().status is Status.SKIPPED


def test_a_key_has_one_partition_whoever_publishes_it(shop: Shop) -> None:
    """Java's clients and librdkafka do not agree on that by themselves."""
    shop.execute("INSERT INTO orders (id) SELECT generate_series(10, 60)")
    shop.sync()
    shop.target["exactly_once"] = True
    shop.execute("UPDATE orders SET at = clock_timestamp()")
    assert shop.sync().status is Status.COMPLETED
    places: dict[int, set[int]] = {}
    for message in shop.messages():
        places.setdefault(message.key["id"], set()).add(message.place[0])
    assert len(places) == 53 and all(len(parts) == 1 for parts in places.values())
    assert len({part for parts in places.values() for part in parts}) == 2


def test_deletes_are_records_where_the_config_says_so_and_full_publishes_everything_again(shop: Shop) -> None:
    shop.target |= {"deletes": "record", "exactly_once": True}
    shop.sync()
    shop.execute("UPDATE orders SET gone = true, at = clock_timestamp() WHERE id = 1")
    shop.sync()
    (gone,) = [message for message in shop.messages() if message.headers["operation"] == "delete"]
    assert gone.value["id"] == 1 and gone.value["gone"] is True
    assert shop.sync(full=True).status is Status.COMPLETED
    again = {(message.key["id"], message.headers["operation"]) for message in shop.messages() if message.batch[0] == 2}
    assert again == {(1, "delete"), (9007199254740993, "upsert")}


def test_verify_says_that_a_topic_is_not_compared(shop: Shop) -> None:
    shop.sync()
    with strandline.load(shop.config) as project:
        (verdict,) = project.verify("shop", spark=shop.spark)
    assert verdict.error is not None and "pipeline shop publishes to Kafka" in str(verdict.error)


def test_a_topic_made_anew_has_lost_its_batches(shop: Shop) -> None:
    shop.sync()
    shop.kafka.delete(f"{shop.prefix}.orders")
    shop.execute("INSERT INTO orders (id) VALUES (3)")
    outcome = shop.sync()
    assert "the target lost its batches" in str(outcome.error)
    assert shop.sync(full=True).status is Status.COMPLETED
    assert {message.key["id"] for message in shop.messages()} == {1, 3, 9007199254740993}


@BOTH
def test_brokers_restart_in_the_middle_of_a_batch(
    shop: Shop, exactly_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.target["exactly_once"] = exactly_once
    shop.execute("INSERT INTO orders (id) SELECT generate_series(10, 59)")
    died: list[str] = []

    def reach(_: str) -> None:
        if not died:
            died.append("once")
            shop.kafka.kill()
            restart.start()

    restart = Timer(1, shop.kafka.launch)
    if exactly_once:
        watched(monkeypatch, TableProducer, "_produce", reach, after=False)
    else:
        watched(monkeypatch, Write, "_messages", reach, before=False)  # Spark's tasks are about to send
    outcome = shop.sync()
    restart.join()
    assert died and outcome.status is Status.COMPLETED, outcome.error
    assert Counter(message.key["id"] for message in shop.messages()) == Counter([1, 9007199254740993, *range(10, 60)])


def test_a_driver_killed_in_the_middle_of_its_batches_loses_nothing(shop: Shop) -> None:
    """And, exactly once, consumers that read what is committed never see the batch that it did not end."""
    shop.execute("INSERT INTO orders (id) SELECT generate_series(10, 499)")
    passing = range(10, PASSING + 1)
    topics = {name: f"{shop.prefix}.{name}" for name in ("least", "exactly")}
    own = {"positions": f"{shop.prefix}.positions", "transaction_timeout": "60s"}
    least = shop.pipeline(topic=topics["least"], **own)
    exactly = shop.pipeline(topic=topics["exactly"], exactly_once=True, **own)
    shop.others = {"least": least, "exactly": exactly}
    command = [sys.executable, str(HERE / "kafka_child.py"), str(shop.config)]
    child = subprocess.Popen(command, start_new_session=True)
    try:
        until = time.monotonic() + 400
        while not ({1, *passing} <= _ids(shop.kafka, topics["least"]) and _ids(shop.kafka, topics["exactly"])):
            assert child.poll() is None and time.monotonic() < until
            time.sleep(0.1)
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    seen = shop.kafka.consume(topics["least"])
    assert {message.key["id"] for message in seen} == {1, *passing}
    _expire_leases(shop.config)
    for name in topics:
        outcome = shop.sync(name)
        assert outcome.status is Status.COMPLETED, outcome.error
    rows = {1, 9007199254740993, *range(10, 500)}

    exact = shop.kafka.consume(topics["exactly"])
    assert Counter(message.key["id"] for message in exact) == Counter(rows)
    assert {message.batch for message in exact} == {(1, 1)}
    assert len(shop.kafka.consume(topics["exactly"], committed=False)) > len(rows)

    repeated = shop.kafka.consume(topics["least"])
    assert {message.key["id"] for message in repeated} == rows
    assert len(repeated) == len(rows) + len(seen)
    told = {(message.key["id"], message.text, json.dumps(message.headers)) for message in repeated}
    assert len(told) == len(rows)  # a repeat says what the first one said


def _ids(kafka: Kafka, topic: str) -> set[int]:
    """What is with the brokers by now, committed or not: nothing where there is no topic yet."""
    try:
        return {message.key["id"] for message in kafka.consume(topic, committed=False)}
    except (KafkaException, KeyError, AssertionError):
        return set()


def _expire_leases(config: Path) -> None:
    with strandline.load(config) as project:
        state = project.books.state
        state.put([replace(lease, fields={**lease.fields, "expires_at": ""}) for lease in state.read("lease")])


@BOTH
def test_logins_and_tls_reach_both_clients_and_no_secret_shows(
    kafka: Kafka, spark: SparkSession, exactly_once: bool
) -> None:
    options = {"create": "true", "exactly_once": str(exactly_once).lower(), "tls_ca": str(kafka.authority)}
    options["topic"] = f"safe{exactly_once}.{{table}}"

    def sink(user: str, password: str | None = None) -> Any:
        return closing(open_sink(Endpoint.parse(kafka.url(user=user, password=password), options), lambda: spark))

    with sink(kafka.user) as opened:
        assert opened.apply(orders(), batch(1), RowChanges([(1, "one", at(0))]), how=How.FRESH).rows_inserted == 1
    with sink(kafka.user, "hunter22-wrong") as opened, pytest.raises(ConnectError, match="was refused") as refused:
        opened.identity(orders())
    assert "hunter22" not in refused.value.explain() and "mechanism" in refused.value.remedy
    with sink(kafka.stranger) as opened, pytest.raises(TargetError, match=r"no permission|no topic") as denied:
        opened.apply(orders(), batch(2), RowChanges([]), how=How.CHANGES)
    assert kafka.password not in denied.value.explain()


def test_a_topic_that_is_not_there_is_made_only_if_the_config_says_so(shop: Shop) -> None:
    shop.target["create"] = False
    outcome = shop.sync()
    assert isinstance(outcome.error, TargetError)
    assert f"there is no topic {shop.prefix}.orders" in str(outcome.error) and "create: true" in outcome.error.remedy
    findings = list(examine(lambda: strandline.load(shop.config)))
    assert any(found.level is Level.FAIL and "there is no topic" in found.text for found in findings)
    shop.kafka.make(f"{shop.prefix}.orders", 3)
    assert shop.sync().status is Status.COMPLETED
    assert len(shop.messages()) == 2
    assert not [found for found in examine(lambda: strandline.load(shop.config)) if found.level is Level.FAIL]


@BOTH
def test_a_row_that_is_too_large_for_its_topic_is_told_as_such(shop: Shop, exactly_once: bool) -> None:
    shop.target["exactly_once"] = exactly_once
    shop.kafka.make(f"{shop.prefix}.orders", 2, **{"max.message.bytes": "1000"})
    shop.execute("INSERT INTO orders (id, note) VALUES (3, repeat('x', 2000))")
    outcome = shop.sync()
    assert outcome.error is not None and "too large for the topic" in str(outcome.error), outcome.error
    shop.execute("DELETE FROM orders WHERE id = 3")
    assert shop.sync().status is Status.COMPLETED
    assert {message.key["id"] for message in shop.messages()} == {1, 9007199254740993}


def test_brokers_that_are_away_are_told_as_such(shop: Shop) -> None:
    shop.target |= {"url": f"kafka://127.0.0.1:{free_port()}", "connect_timeout": "4"}
    with pytest.raises(ConnectError, match="refused") as away:
        shop.sync()
    assert "Check that the brokers run" in away.value.remedy


def test_a_batch_too_long_for_its_transaction_is_given_up_with_the_size_that_fits(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.target |= {"exactly_once": True, "transaction_timeout": "1s"}
    watched(monkeypatch, TableProducer, "_produce", lambda _: time.sleep(0.5), after=False)
    monkeypatch.setattr("strandline.sinks.kafka_producer._LOOK_EVERY", 1)
    shop.execute("INSERT INTO orders (id) VALUES (3), (4)")
    outcome = shop.sync()
    assert outcome.error is not None and "does not fit in one transaction" in str(outcome.error)
    assert "slice_rows" in outcome.error.remedy
    assert shop.messages() == []


def test_a_position_that_a_dead_process_left_undecided_is_settled_by_the_next_look(
    kafka: Kafka, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be open for as long as a transaction may be, and nobody could be told anything."""
    name = f"t{uuid.uuid4().hex[:12]}"
    options = {"create": "true", "exactly_once": "true", "topic": name, "positions": f"{name}.positions"}

    def die(producer: TableProducer) -> None:
        producer._producer.flush(30)
        raise Killed

    def sink() -> Any:
        return closing(open_sink(Endpoint.parse(kafka.url(), options), lambda: spark))

    rows = RowChanges([(1, "one", at(0))])
    with sink() as dead:
        dead.apply(orders(), batch(1), rows, how=How.FRESH)
        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr(TableProducer, "_commit", die)
            patch.setattr(TableProducer, "_abort", lambda _: None)
            dead.apply(orders(), batch(2), rows, how=How.CHANGES)
    with sink() as living:
        assert living.applied(orders()).batch == batch(1)
        living.apply(orders(), batch(2), rows, how=How.CHANGES)
    assert [message.batch for message in kafka.consume(name)] == [(1, 1), (1, 2)]


def test_doctor_finds_positions_that_expire(shop: Shop) -> None:
    shop.target["positions"] = f"{shop.prefix}.positions"
    shop.kafka.make(f"{shop.prefix}.positions")
    shop.kafka.make(f"{shop.prefix}.orders")
    found = [finding.text for finding in examine(lambda: strandline.load(shop.config)) if finding.level is Level.FAIL]
    assert found == [f"topic {shop.prefix}.positions is not compacted: what it remembers expires"]


def _produce(producer: Producer, topic: str, held: Held) -> None:
    key, value = held.record()
    producer.produce(topic, key=key, value=value)


@pytest.fixture
def positions(kafka: Kafka) -> Iterator[Callable[[], Positions]]:
    opened: list[Positions] = []

    def make() -> Positions:
        opened.append(Positions(Brokers(Endpoint.parse(kafka.url(), {"positions": name}))))
        return opened[-1]

    name = f"p{uuid.uuid4().hex[:12]}"
    kafka.make(name, 1)
    yield make
    for each in opened:
        each.close()


def test_a_position_behind_an_open_transaction_is_waited_for(
    kafka: Kafka, positions: Callable[[], Positions], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read to the end of what is committed alone, another table's newer record would not be there yet."""
    reading = positions()
    name = reading._brokers.positions
    one, two = (Held("shop", table, "sync", table, "id", 1, batch(1)) for table in ("one", "two"))
    slow = Producer(kafka.client(**{"transactional.id": "slow"}))
    slow.init_transactions(30)
    slow.begin_transaction()
    _produce(slow, name, one)
    slow.flush(30)
    quick = Producer(kafka.client())
    _produce(quick, name, two)
    quick.flush(30)
    ending = Timer(1, slow.commit_transaction, [30])
    ending.start()
    assert {held.table for held in reading.read().values()} == {"one", "two"}
    ending.join()
    slow.begin_transaction()
    _produce(slow, name, one)
    slow.flush(30)
    monkeypatch.setattr("strandline.sinks.kafka_positions._PATIENCE_SECONDS", 0.5)
    with pytest.raises(StrandlineError, match="cannot be read to its end"):
        positions().read()
    slow.abort_transaction(30)


def test_changes_of_a_delta_table_are_published_once_with_their_deletes(shop: Shop, tmp_path: Path) -> None:
    """Each run dies once its batch is in the topic and before that is recorded."""
    lake = Lake(tmp_path / "lake")
    lake.create()
    shop.target["exactly_once"] = True
    shop.database, shop.table = f"delta:{lake.root}", {"name": "orders", "key": "id"}
    steps: list[Callable[[], None]] = [
        lambda: lake.insert(1, 2, 3),
        lambda: lake.update(2, "changed"),
        lambda: lake.delete(3),
    ]
    for number, step in enumerate(steps, 1):
        step()

        def die(event: Event) -> None:
            if isinstance(event, BatchApplied):
                raise Killed

        with pytest.raises(Killed):
            shop.sync(listener=die)
        _expire_leases(shop.config)
        outcome = shop.sync()
        assert (outcome.status, outcome.batches, outcome.error) == (Status.COMPLETED, 1, None)
        assert [message.headers["batch"] for message in shop.messages()].count(f"1.{number}") == (3, 1, 1)[number - 1]
    assert {row["id"]: row["note"] for row in current(shop.messages()).values()} == {1: "new", 2: "changed"}
    (gone,) = [message for message in shop.messages() if message.headers["operation"] == "delete"]
    assert (gone.key, gone.text) == ({"id": 3}, None)
    assert shop.sync().status is Status.SKIPPED

"""What a `kafka://` address says, before any broker is asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.config import load_config
from strandline.core.batch import NO_MEMORY, Applied, Batch
from strandline.core.errors import ConfigError
from strandline.core.position import Position
from strandline.core.reconcile import Apply, reconcile
from strandline.core.watermark import Kind, Watermark
from strandline.endpoint import Endpoint
from strandline.sinks.kafka_client import Brokers
from strandline.sinks.kafka_positions import Held

BATCH = Batch("store", 2, 7, None, Watermark(Kind.INTEGER, "9"), Watermark(Kind.INTEGER, "9"), "a")
CONFIG = """
pipelines:
  shop:
    source: postgresql://u@h/d
    target: {url: "kafka://k:9092", topic: "TOPIC"}
    tables: [orders, {name: items, MORE}]
"""


def brokers(url: str = "kafka://k1:9092,k2:9092", **options: str) -> Brokers:
    return Brokers(Endpoint.parse(url, options))


def test_one_set_of_options_reaches_both_clients(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("CERTIFICATE")
    found = brokers('kafka://u:p"w@k1:9093,k2:9093', tls_ca=str(tmp_path / "ca.pem"), mechanism="PLAIN")
    python, spark = found.python(), found.spark()
    assert python["bootstrap.servers"] == spark["kafka.bootstrap.servers"] == "k1:9093,k2:9093"
    assert python["security.protocol"] == spark["kafka.security.protocol"] == "SASL_SSL"
    assert (python["sasl.username"], python["sasl.password"]) == ("u", 'p"w')
    assert spark["kafka.sasl.jaas.config"].endswith('PlainLoginModule required username="u" password="p\\"w";')
    assert python["ssl.ca.location"] == str(tmp_path / "ca.pem")
    assert spark["kafka.ssl.truststore.certificates"] == "CERTIFICATE"
    assert spark["kafka.acks"] == "all"
    assert brokers().python()["security.protocol"] == brokers().spark()["kafka.security.protocol"] == "PLAINTEXT"


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("topics", "t", 'unknown option "topics"'),
        ("mechanism", "GSSAPI", "not one of PLAIN"),
        ("connect_timeout", "soon", "not a whole number"),
        ("tls", "maybe", "true or false"),
        ("tls_certificate", "nowhere.pem", "cannot be read"),
    ],
)
def test_an_option_that_cannot_be_is_refused(option: str, value: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        brokers(**{option: value}).spark()


def test_a_topic_is_named_after_its_table() -> None:
    assert brokers().topic_name("public.orders") == "public.orders"
    assert brokers(topic="shop.{table}.v1").topic_name("orders") == "shop.orders.v1"
    for name in ("größe", "a b", "..", "_strandline.positions"):
        with pytest.raises(ConfigError, match="cannot name a topic"):
            brokers().topic_name(name)


@pytest.mark.parametrize(
    ("topic", "more", "said"),
    [
        ("all", "nulls: refuse", "shop.items and shop.orders.*both write to kafka://k:9092/all"),
        ("{table}", "target: orders", "both write to kafka://k:9092/orders"),
        ("{table}", "mode: snapshot", "items: a topic cannot be replaced"),
    ],
)
def test_a_config_that_cannot_work_is_refused_with_its_line(tmp_path: Path, topic: str, more: str, said: str) -> None:
    path = tmp_path / "strandline.yml"
    path.write_text(CONFIG.replace("TOPIC", topic).replace("MORE", more))
    with pytest.raises(ConfigError, match=said):
        load_config(path, {})


def test_a_position_record_is_read_back_as_it_was_written() -> None:
    held = Held("shop", "orders", "sync", "orders", "id", 3, BATCH, Applied(5, 4, 0, 1, BATCH.high), '[["id", "int"]]')
    assert Held.from_record(held.record()[1]) == held
    fence = Held("shop", "orders", "sync", "orders", "id", 3)
    assert Held.from_record(fence.record()[1]) == fence and fence.receipt() is None


def test_a_target_without_a_memory_takes_whatever_comes_next() -> None:
    first = Position("shop", "orders", "sync")
    assert reconcile(NO_MEMORY, first) == Apply()
    assert reconcile(NO_MEMORY, Position("shop", "orders", "sync", batch=BATCH, intent=BATCH)) == Apply()
    assert NO_MEMORY.agrees(BATCH)

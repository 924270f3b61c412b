"""A real Kafka broker for tests, started and stopped as the databases of `testing.servers` are: one node, its own
controller, an open listener and one with logins and TLS.
"""

from __future__ import annotations

import json
import os
import signal
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from strandline.spark.jars import files, spark_home
from strandline.spark.java import find_java
from strandline.testing.kafka_jars import BROKER
from strandline.testing.servers import Server, free_port

_JAVA = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-Xmx256m")
_SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "listener.security.protocol.map": "OPEN:PLAINTEXT,SAFE:SASL_SSL,CONTROLLER:PLAINTEXT",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "OPEN",
    "sasl.enabled.mechanisms": "SCRAM-SHA-512",
    "listener.name.safe.scram-sha-512.sasl.jaas.config": (
        "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    ),
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "log.dirs": "data",
    "num.partitions": "2",
    "auto.create.topics.enable": "false",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "600000",  # who is slow is told so by its client
    "group.initial.rebalance.delay.ms": "0",
    "ssl.keystore.type": "PEM",
    "ssl.keystore.location": "server.pem",
    "listener.name.safe.ssl.client.auth": "none",
}


class Kafka(Server):
    """`user` may do anything, `stranger` (same password) nothing. Without a login, at the open port, anybody may."""

    scheme = "kafka"
    user = "strandline"
    stranger = "stranger"
    database = ""
    _refuses_root = False
    _give_up = signal.SIGKILL

    def __init__(self, folder: Path | None = None, settings: Mapping[str, str] | None = None) -> None:
        super().__init__(folder, settings)
        self.port, self.safe_port, self._controller_port = (free_port() for _ in range(3))

    def url(self, _: str | None = None, user: str | None = None, password: str | None = None) -> str:
        """The open port; with a user, the one that asks for logins."""
        if user is None:
            return f"kafka://127.0.0.1:{self.port}"
        return f"kafka://{user}:{self.password if password is None else password}@localhost:{self.safe_port}"

    @property
    def authority(self) -> Path:
        """The certificate that the broker's is signed by: its own."""
        return self.folder / "certificate.pem"

    def client(self, **more: Any) -> dict[str, Any]:
        return {"bootstrap.servers": f"127.0.0.1:{self.port}", "log_level": 0, **more}

    def make(self, topic: str, partitions: int = 2, **config: str) -> None:
        from confluent_kafka.admin import AdminClient
        from confluent_kafka.cimpl import NewTopic

        admin = AdminClient(self.client())
        admin.create_topics([NewTopic(topic, partitions, 1, config=config)])[topic].result(120)

    def delete(self, topic: str) -> None:
        from confluent_kafka.admin import AdminClient

        admin = AdminClient(self.client())
        admin.delete_topics([topic], operation_timeout=60)[topic].result(120)

    def consume(self, topic: str, *, committed: bool = True) -> list[Consumed]:
        """Every message of a topic as it is now, by partition and offset."""
        return consume(self.client(), topic, committed=committed)

    def _create(self) -> None:
        subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
        key = ["-newkey", "rsa:2048", "-nodes", "-keyout", "key.pem", "-out", "certificate.pem", "-days", "2"]
        self._run(["openssl", "req", "-x509", *key, *subject])
        parts = [(self.folder / name).read_text() for name in ("key.pem", "certificate.pem")]
        (self.folder / "server.pem").write_text("".join(parts))
        self._write_settings()
        logins = [f"SCRAM-SHA-512=[name={name},password={self.password}]" for name in (self.user, self.stranger)]
        added = [part for login in logins for part in ("--add-scram", login)]
        cluster = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        program = self._java("kafka.tools.StorageTool")
        self._run([*program, "format", "-t", cluster, "-c", "server.properties", *added])

    def _command(self) -> list[str]:
        self._write_settings()
        return [*self._java("kafka.Kafka"), "server.properties"]

    def _ready(self) -> bool:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        try:
            topics = AdminClient(self.client(**{"socket.connection.setup.timeout.ms": 1000})).list_topics(timeout=1)
        except KafkaException:
            return False
        return bool(topics.brokers)

    def _java(self, program: str) -> list[str]:
        scala = next((spark_home() / "jars").glob("scala-library-*.jar"))
        path = os.pathsep.join(map(str, [*files(BROKER), scala]))
        return [f"{find_java()}/bin/java", *_JAVA, "-cp", path, program]

    def _write_settings(self) -> None:
        open_, safe = f"OPEN://127.0.0.1:{self.port}", f"SAFE://localhost:{self.safe_port}"
        controller = f"127.0.0.1:{self._controller_port}"
        own = {
            "listeners": f"{open_},{safe},CONTROLLER://{controller}",
            "advertised.listeners": f"{open_},{safe}",
            "controller.quorum.voters": f"1@{controller}",
            "super.users": f"User:ANONYMOUS;User:{self.user}",
        }
        settings = {**_SETTINGS, **self.settings, **own}
        text = "".join(f"{key}={value}\n" for key, value in settings.items())
        (self.folder / "server.properties").write_text(text)


class Consumed:
    """A message as a consumer has it."""

    def __init__(self, key: bytes | None, value: bytes | None, headers: Any, place: Any) -> None:
        self.key: Any = None if key is None else json.loads(key)
        self.value: Any = None if value is None else json.loads(value)
        self.text = None if value is None else value.decode()
        self.headers: dict[str, str] = {name: given.decode() for name, given in headers or []}
        self.place = place  # partition and offset

    @property
    def batch(self) -> tuple[int, int]:
        epoch, number = self.headers["batch"].split(".")
        return int(epoch), int(number)


def consume(client: dict[str, Any], topic: str, *, committed: bool = True) -> list[Consumed]:
    from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

    level = "read_committed" if committed else "read_uncommitted"
    settings = {"group.id": "tests", "isolation.level": level, "enable.partition.eof": True, "fetch.wait.max.ms": 20}
    consumer = Consumer({**client, "enable.auto.commit": False, **settings})
    try:
        parts = set(consumer.list_topics(topic, timeout=60).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, part, OFFSET_BEGINNING) for part in parts])
        found = []
        while parts:
            message = consumer.poll(120)
            assert message is not None, f"{topic} was not read to its end"
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                parts.discard(message.partition())
                continue
            place = (message.partition(), message.offset())
            found.append(Consumed(message.key(), message.value(), message.headers(), place))
    finally:
        consumer.close()
    return sorted(found, key=lambda each: each.place)


def current(messages: list[Consumed]) -> dict[str, Any]:
    """What a consumer makes of a compacted topic: by key, the last row; a batch below one that it knows is dropped."""
    rows: dict[str, Any] = {}
    seen: dict[str, tuple[int, int]] = {}
    for message in messages:
        key = json.dumps(message.key)
        if message.batch < seen.get(key, (0, 0)):
            continue
        seen[key] = message.batch
        if message.value is None or message.headers["operation"] == "delete":
            rows.pop(key, None)
        else:
            rows[key] = message.value
    return rows

"""How brokers are reached: one set of options for Spark's client and for Python's, and what their errors mean.

Owns the options of a `kafka://` address, logins and TLS. Passwords leave it only towards the two clients.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from strandline.config.duration import parse_duration
from strandline.core.errors import ConfigError, ConnectError, SetupError, StrandlineError, TargetError, TransientError
from strandline.endpoint import Endpoint
from strandline.sources.names import nearest

try:
    from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.admin._config import ConfigResource
    from confluent_kafka.admin._resource import ResourceType
    from confluent_kafka.cimpl import NewTopic
except ImportError as error:
    raise SetupError("confluent-kafka is not installed", remedy="pip install 'strandline[kafka]'") from error

if TYPE_CHECKING:
    from confluent_kafka.admin._topic import TopicDescription

T = TypeVar("T")
log = logging.getLogger(__name__)
log.addHandler(logging.NullHandler())  # the client's own words: what they mean is told by errors
POSITIONS = "_strandline.positions"
_TLS = ("tls", "tls_ca", "tls_certificate", "tls_key", "tls_key_password")
_OPTIONS = (
    "topic",
    "create",
    "partitions",
    "replication",
    "deletes",
    "exactly_once",
    "transaction_timeout",
    "positions",
    "mechanism",
    *_TLS,
    "compression",
    "connect_timeout",
)
_MECHANISMS = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_SECONDS = 10
LARGEST_BYTES = 64 << 20  # of a message: the topic has the say, not a client's default
_REFUSED = (KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED, KafkaError._SSL)
_DENIED = (
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
)
_JAVA_REFUSED = re.compile(r"S(?:asl|sl)AuthenticationException: (.*)")
_JAVA_DENIED = re.compile(r"(?:Topic|Cluster)AuthorizationException: (.*)")
_JAVA_LARGE = re.compile(r"RecordTooLargeException: (.*)")
_JAVA_LOST = re.compile(
    r"org\.apache\.kafka\.common\.errors\."
    r"((?:Timeout|Network|NotEnoughReplicas\w*|NotLeader\w*|Disconnect)Exception: .*)"
)
RIGHTS = """\
The user needs WRITE and DESCRIBE on the topic, READ, WRITE and DESCRIBE on {positions}
(and CREATE, until it is there), and WRITE and DESCRIBE on transactional ids that begin with "strandline/":
  kafka-acls --add --allow-principal User:NAME --operation Write --transactional-id strandline/ \
--resource-pattern-type prefixed"""


class Brokers:
    """One cluster, reached with one login. Nothing is connected until it is asked something."""

    def __init__(self, endpoint: Endpoint) -> None:
        unknown = next((option for option in endpoint.options if option not in _OPTIONS), None)
        if unknown is not None:
            raise ConfigError(f'{endpoint}: unknown option "{unknown}"', remedy=nearest(unknown, _OPTIONS))
        self.endpoint = endpoint
        self._options = endpoint.options
        self.positions = endpoint.options.get("positions", POSITIONS)
        self.seconds = self._whole("connect_timeout", _SECONDS)
        self._mechanism = self._choice("mechanism", "SCRAM-SHA-512", *_MECHANISMS)
        self._tls = endpoint.flag("tls", any(name in endpoint.options for name in _TLS[1:]))
        self._said: list[KafkaError] = []  # what the client told meanwhile, oldest first
        self._answered = False

    def topic_name(self, target: str) -> str:
        name = self._options.get("topic", "{table}").replace("{table}", target)
        if not _TOPIC.fullmatch(name) or name in (".", "..", self.positions):
            raise ConfigError(
                f'"{name}" cannot name a topic',
                why="Kafka takes letters, digits, dots, underscores and hyphens, 249 at most.",
                remedy='Give the table another `target:`, or the target a `topic:` with "{table}" in it.',
            )
        return name

    @cached_property
    def deletes(self) -> str:
        return self._choice("deletes", "tombstone", "tombstone", "record")

    @cached_property
    def exactly_once(self) -> bool:
        return self.endpoint.flag("exactly_once", False)

    @cached_property
    def transaction_seconds(self) -> float:
        return parse_duration(self._options.get("transaction_timeout", "5m")).total_seconds()

    def python(self, **more: Any) -> dict[str, Any]:
        """What a client of confluent-kafka is made with."""
        found: dict[str, Any] = {
            "bootstrap.servers": self.endpoint.host,
            "client.id": "strandline",
            "reconnect.backoff.max.ms": 1000,
            "security.protocol": self._protocol,
            "error_cb": self._said.append,
            "logger": log,
        }
        if self.endpoint.user:
            found |= {
                "sasl.mechanism": self._mechanism,
                "sasl.username": self.endpoint.user,
                "sasl.password": self.endpoint.password,
            }
        names = {
            "tls_ca": "ssl.ca.location",
            "tls_certificate": "ssl.certificate.location",
            "tls_key": "ssl.key.location",
            "tls_key_password": "ssl.key.password",
        }
        found |= {name: self._options[option] for option, name in names.items() if option in self._options}
        return found | more

    def spark(self) -> dict[str, str]:
        """What Spark's Kafka sink is told. Certificates travel as text: executors have no files of ours."""
        found = {
            "bootstrap.servers": self.endpoint.host,
            "client.id": "strandline",
            "security.protocol": self._protocol,
            "acks": "all",
            "enable.idempotence": "true",
            "max.request.size": str(LARGEST_BYTES),
            **self.compression(),
        }
        if self.endpoint.user:
            login = f'username="{_java(self.endpoint.user)}" password="{_java(self.endpoint.password)}"'
            found |= {
                "sasl.mechanism": self._mechanism,
                "sasl.jaas.config": f"{_MECHANISMS[self._mechanism]} required {login};",
            }
        if "tls_ca" in self._options:
            found |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": self._file("tls_ca")}
        if "tls_certificate" in self._options:
            found |= {
                "ssl.keystore.type": "PEM",
                "ssl.keystore.certificate.chain": self._file("tls_certificate"),
                "ssl.keystore.key": self._file("tls_key"),
            }
        if "tls_key_password" in self._options:
            found["ssl.key.password"] = self._options["tls_key_password"]
        return {f"kafka.{name}": value for name, value in found.items()}

    def compression(self) -> dict[str, str]:
        return {"compression.type": self._options["compression"]} if "compression" in self._options else {}

    @cached_property
    def cluster(self) -> str:
        """The cluster's own name for itself, whatever its address."""
        return str(self._ask(lambda: self._admin.describe_cluster(request_timeout=self.seconds)).cluster_id)

    def topic(self, name: str, *, rights: bool = False) -> TopicDescription | None:
        """None where there is no such topic. Looking never makes one."""
        asked = TopicCollection([name])

        def look() -> Future[TopicDescription]:
            found = self._admin.describe_topics(
                asked, include_authorized_operations=rights, request_timeout=self.seconds
            )
            return found[name]

        try:
            return self._ask(look)
        except MissingTopicError:
            return None

    def compacted(self, name: str) -> bool:
        """True also where the user may not know."""
        asked = ConfigResource(ResourceType.TOPIC, name)
        try:
            found = self._ask(lambda: self._admin.describe_configs([asked], request_timeout=self.seconds)[asked])
        except TargetError:
            return True
        return "compact" in found["cleanup.policy"].value

    def make(self, name: str, partitions: int | None = None, **config: str) -> TopicDescription:
        """Make a topic; one that exists is left as it is."""
        count = partitions or self._whole("partitions", -1)
        topic = NewTopic(name, count, self._whole("replication", -1), config=config)
        try:
            self._ask(lambda: self._admin.create_topics([topic], request_timeout=self.seconds)[name])
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise TargetError(f"topic {name} cannot be made: {error.args[0].str()}") from error
        until = time.monotonic() + self.seconds
        while (made := self.topic(name)) is None:  # brokers hear of it one after the other
            if time.monotonic() > until:
                raise TransientError(f"{self.endpoint}: topic {name} was made, and is not there yet")
            time.sleep(0.05)
        return made

    def ends(self, topic: TopicDescription) -> dict[int, int]:
        """Where each partition ends, what is not committed yet included."""
        latest = import_module("confluent_kafka.admin").OffsetSpec.latest()
        asked = {TopicPartition(topic.name, part.id): latest for part in topic.partitions}
        uncommitted = IsolationLevel.READ_UNCOMMITTED

        def look(partition: TopicPartition) -> Callable[[], Future[Any]]:
            one = {partition: asked[partition]}
            return lambda: self._admin.list_offsets(one, isolation_level=uncommitted, request_timeout=self.seconds)[
                partition
            ]

        return {partition.partition: int(self._ask(look(partition)).offset) for partition in asked}

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Raise what a client raised as one of ours, where it says what a person can do."""
        try:
            yield
        except KafkaException as error:
            found = self.ours(error.args[0])
            if found is None:
                raise
            raise found from error

    def ours(self, error: KafkaError) -> StrandlineError | None:
        refused = next((said for said in self._said if said.code() in _REFUSED), None)
        if refused is not None or error.code() in _REFUSED:
            return self._login_refused((refused or error).str())
        if error.code() in _DENIED:
            return self._denied(error.str())
        if error.code() == KafkaError.INVALID_TRANSACTION_TIMEOUT:
            return TargetError(
                f"{self.endpoint}: the brokers allow no transaction of {self.transaction_seconds:g} s",
                remedy="Lower `transaction_timeout` of the target, or raise the brokers' transaction.max.timeout.ms.",
            )
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            return TargetError(f"a row is too large for the topic: {error.str()}", remedy=_LARGE)
        if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return MissingTopicError(error.str())
        lost = (KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE)
        if error.code() in lost or error.retriable():
            told = (said.str() for said in self._said if said.code() != KafkaError._ALL_BROKERS_DOWN)
            why = next(told, error.str())
            if self._answered:
                return TransientError(f"{self.endpoint}: the brokers do not answer: {why}")
            remedy = "Check that the brokers run, that hosts and ports are right, and `tls:` and the login"
            return ConnectError(f"{self.endpoint}: {why}", remedy=remedy)
        return None

    def java(self, error: Exception) -> StrandlineError | None:
        """What a failure of Spark's Kafka sink means; None: it is none of Kafka's."""
        text = str(error)
        if found := _JAVA_REFUSED.search(text):
            return self._login_refused(found[1])
        if found := _JAVA_DENIED.search(text):
            return self._denied(found[1])
        if found := _JAVA_LARGE.search(text):
            return TargetError(f"a row is too large for the topic: {found[1]}", remedy=_LARGE)
        if found := _JAVA_LOST.search(text):
            return TransientError(f"{self.endpoint}: the brokers did not acknowledge: {found[1]}")
        return None

    def _login_refused(self, said: str) -> ConnectError:
        said = said.replace(self.endpoint.password, "…") if self.endpoint.password else said
        return ConnectError(
            f'{self.endpoint}: login as "{self.endpoint.user}" was refused: {said}',
            remedy=f"Check user, password, `mechanism:` ({self._mechanism}) and `tls:` of the target",
        )

    def _denied(self, said: str) -> TargetError:
        return TargetError(
            f"{self.endpoint}: no permission: {said}",
            remedy=RIGHTS.format(positions=self.positions),
            docs="docs/targets-kafka.md#rights",
        )

    def _ask(self, request: Callable[[], Future[T]]) -> T:
        """The answer. A login that is refused is told at once, not when time is up."""
        with self.errors():
            future = request()
            while not wait([future], 0.05).done:
                self._admin.poll(0)
                if any(said.code() in _REFUSED for said in self._said):
                    raise KafkaException(self._said[-1])
            found = future.result()
        self._answered = True
        self._said.clear()
        return found

    @cached_property
    def _admin(self) -> AdminClient:
        return AdminClient(self.python())

    @property
    def _protocol(self) -> str:
        return f"{'SASL_' if self.endpoint.user else ''}{'SSL' if self._tls else 'PLAINTEXT'}"

    def _choice(self, option: str, default: str, *words: str) -> str:
        word = self._options.get(option, default)
        if word not in words:
            raise ConfigError(f'{self.endpoint}: {option} is "{word}", not one of {", ".join(words)}')
        return word

    def _whole(self, option: str, default: int) -> int:
        text = self._options.get(option, str(default))
        if text != str(default) and (not text.isdecimal() or not int(text)):
            raise ConfigError(f'{self.endpoint}: {option} is "{text}", not a whole number above 0')
        return int(text)

    def _file(self, option: str) -> str:
        if option not in self._options:
            raise ConfigError(f"{self.endpoint}: tls_certificate needs {option}")
        try:
            return Path(self._options[option]).read_text()
        except OSError as error:
            raise ConfigError(f"{self.endpoint}: {option} cannot be read: {error.strerror}") from error


class MissingTopicError(TargetError):
    """There is no such topic."""


_LARGE = """\
Raise the topic's max.message.bytes, or leave the column out with `columns:`."""


def _java(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')

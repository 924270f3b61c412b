"""Every kind of target and of state store, with the points at which a process can die inside them.

A target of a new kind is one more entry in TARGETS, a store one more in STATES: whatever is parametrised by them, the
crash matrices above all, takes them along.
"""

from __future__ import annotations

import json
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, QueryBuilder
from test_sql_types import asked

from strandline.core.batch import Batch
from strandline.core.protocols import Sink, State
from strandline.endpoint import Endpoint
from strandline.objects import open_objects
from strandline.sinks import open_sink
from strandline.sinks.kafka_producer import TableProducer
from strandline.sinks.kafka_write import Write as KafkaWrite
from strandline.sinks.mysql_target import MySqlTargetDialect
from strandline.sinks.postgres_target import PostgresTargetDialect
from strandline.sinks.sql_dialect import Place, TargetDialect
from strandline.sinks.sql_files import FileFill, FileSink
from strandline.sinks.sql_ledger import Ledger, create_text
from strandline.sinks.sql_move import Move
from strandline.sinks.sql_write import SparkFill, Write
from strandline.sources.snowflake_session import SnowflakeSession
from strandline.state import open_state
from strandline.state.memory import MemoryState
from strandline.testing.database import Row
from strandline.testing.kafka import Kafka
from strandline.testing.memory import MemorySink
from strandline.testing.redshift import PostgresWords, as_redshift, redshift_endpoint
from strandline.testing.stores import Seaweed

Reach = Callable[[str], None]
"""A point at which a process can die, by name."""


class Target(ABC):
    """A sink, a way to look into it, and the points inside it at which a process can die."""

    sink: Sink
    points: frozenset[str]
    address = "delta:nowhere"  # for a config; the sink is opened here
    stage: Any = "stage"  # where batches lie for it, as a config says it
    needs_spark = True  # to load what is staged

    @abstractmethod
    def rows(self, table: str) -> list[Row]: ...

    @abstractmethod
    def log(self, table: str) -> list[Batch]:
        """Every batch that changed the table, oldest first."""

    @abstractmethod
    def watch(self, patch: pytest.MonkeyPatch, reach: Reach) -> None: ...


class MemoryTarget(Target):
    needs_spark = False
    points = frozenset({"before the commit", "after the commit"})

    def __init__(self, _: pytest.FixtureRequest) -> None:
        self.sink = self.memory = MemorySink()

    def rows(self, table: str) -> list[Row]:
        return self.memory.rows(table)

    def log(self, table: str) -> list[Batch]:
        assert self.memory.targets() == [table]
        return self.memory.log

    def watch(self, patch: pytest.MonkeyPatch, reach: Reach) -> None:
        real = self.memory.apply

        def apply(*given: Any, **how: Any) -> Any:
            self.memory.at_commit(before=lambda: reach("before the commit"), after=lambda: reach("after the commit"))
            try:
                return real(*given, **how)
            finally:
                self.memory.forget_actions()

        patch.setattr(self.memory, "apply", apply)


class DeltaTarget(Target):
    points = frozenset({"before prepare", "before run", "after run"})

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self.folder: Path = request.getfixturevalue("tmp_path") / "lake"
        spark = request.getfixturevalue("spark")
        self.sink = open_sink(Endpoint.parse(f"delta:{self.folder}"), lambda: spark)

    def rows(self, table: str) -> list[Row]:
        found = QueryBuilder().register("t", self._delta(table)).execute("SELECT * FROM t").read_all()
        columns = {name: found[name].to_pylist() for name in found.schema.names}
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def log(self, table: str) -> list[Batch]:
        notes = [commit["userMetadata"] for commit in self._delta(table).history() if "userMetadata" in commit]
        return [Batch.from_json(json.dumps(json.loads(note)["strandline"])) for note in reversed(notes)]

    def watch(self, patch: pytest.MonkeyPatch, reach: Reach) -> None:
        from strandline.sinks.delta_write import Write

        watched(patch, Write, "prepare", reach, after=False)
        watched(patch, Write, "run", reach)

    def _delta(self, table: str) -> DeltaTable:
        return DeltaTable(str(self.folder / table))


NOTES = {
    "postgresql": (
        "CREATE TABLE notes (n serial, target text, batch text)",
        "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN "
        "INSERT INTO notes (target, batch) VALUES (NEW.target, NEW.batch); RETURN NULL; END'",
        "CREATE TRIGGER note AFTER UPDATE ON strandline_ledger FOR EACH ROW "
        "WHEN (NEW.number <> OLD.number) EXECUTE FUNCTION note()",
    ),
    "mysql": (
        "CREATE TABLE notes (n int AUTO_INCREMENT PRIMARY KEY, target text, batch text)",
        "CREATE TRIGGER note AFTER UPDATE ON strandline_ledger FOR EACH ROW "
        "IF NEW.number <> OLD.number THEN INSERT INTO notes (target, batch) VALUES (NEW.target, NEW.batch); END IF",
    ),
}


class SqlTarget(Target):
    """A database. Its ledger holds the last batch only; here it notes each one, in the batch's own transaction."""

    points = frozenset({"before _prepare", "before bring", "before count", "after count", "after run"})
    fill: type = SparkFill

    def __init__(self, request: pytest.FixtureRequest, url: str, dialect: TargetDialect) -> None:
        endpoint = Endpoint.parse(url)
        self.ask = asked(url)
        self.sink = self.open(request, url)
        request.addfinalizer(self.sink.close)
        place = Place("public" if endpoint.scheme == "postgresql" else endpoint.path, "")
        for statement in (create_text(dialect, place), *NOTES[endpoint.scheme]):
            self.ask(statement)

    def open(self, request: pytest.FixtureRequest, url: str) -> Sink:
        spark = request.getfixturevalue("spark")
        return open_sink(Endpoint.parse(url), lambda: spark)

    def rows(self, table: str) -> list[Row]:
        found = self.ask(f"SELECT id, value, moved FROM {table}")
        return [{"id": id_, "value": value, "moved": _aware(moved)} for id_, value, moved in found]

    def log(self, table: str) -> list[Batch]:
        found = self.ask(f"SELECT batch FROM notes WHERE target = '{table}' ORDER BY n")
        return [Batch.from_json(text) for (text,) in found]

    def watch(self, patch: pytest.MonkeyPatch, reach: Reach) -> None:
        watched(patch, Write, "_prepare", reach, after=False)
        watched(patch, self.fill, "bring", reach, after=False)
        watched(patch, Ledger, "count", reach)
        watched(patch, Move, "run", reach, before=False)


def _aware(moved: datetime | None) -> datetime | None:
    return moved if moved is None or moved.tzinfo else moved.replace(tzinfo=UTC)


class PostgresTarget(SqlTarget):
    def __init__(self, request: pytest.FixtureRequest) -> None:
        super().__init__(request, request.getfixturevalue("pg_database"), PostgresTargetDialect())


class MariadbTarget(SqlTarget):
    def __init__(self, request: pytest.FixtureRequest) -> None:
        super().__init__(request, request.getfixturevalue("mariadb_database"), MySqlTargetDialect(mariadb=True))


class RedshiftTarget(SqlTarget):
    """PostgreSQL in its place, which gets the stage's files as Redshift does."""

    needs_spark = False
    fill = FileFill

    def __init__(self, request: pytest.FixtureRequest) -> None:
        seaweed: Seaweed = request.getfixturevalue("seaweed")
        seaweed.bucket("crashes")
        self._prefix = f"s3://crashes/{uuid.uuid4().hex}"
        self._objects = open_objects(Endpoint.parse(self._prefix, seaweed.options()))
        self.stage = {"url": self._prefix, **seaweed.options()}
        super().__init__(request, request.getfixturevalue("pg_database"), PostgresWords())

    def open(self, _: pytest.FixtureRequest, url: str) -> Sink:
        endpoint = redshift_endpoint(url)
        self.address = str(endpoint)
        return FileSink(endpoint, as_redshift(self._fetch)(endpoint))

    def _fetch(self, address: str) -> bytes:
        found = self._objects.get(address.removeprefix(f"{self._prefix}/"))
        assert found is not None
        return found


class SnowflakeTarget(Target):
    """Its stand-in. There are no triggers: a batch is noted as its transaction has ended."""

    needs_spark = False
    points = SqlTarget.points

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self.address = request.getfixturevalue("snowflake_database")
        self.session = SnowflakeSession(Endpoint.parse(self.address))
        self.sink = open_sink(Endpoint.parse(self.address), lambda: pytest.fail("no Spark is needed"))
        request.addfinalizer(self.sink.close)
        request.addfinalizer(self.session.close)
        self.noted: list[Batch] = []
        real = Move.run

        def run(move: Move, *given: Any) -> Any:
            applied = real(move, *given)
            if not self.noted or not self.noted[-1].same(move._batch):
                self.noted.append(move._batch)
            return applied

        request.getfixturevalue("monkeypatch").setattr(Move, "run", run)

    def rows(self, table: str) -> list[Row]:
        found = self.session.rows(f"SELECT id, value, moved FROM {table}")
        return [{"id": int(id_), "value": value, "moved": _aware(moved)} for id_, value, moved in found]

    def log(self, table: str) -> list[Batch]:
        ((number,),) = self.session.rows(f"SELECT number FROM strandline_ledger WHERE lower(target) = '{table}'")
        assert self.noted[-1].number == number
        return self.noted

    def watch(self, patch: pytest.MonkeyPatch, reach: Reach) -> None:
        watched(patch, Write, "_prepare", reach, after=False)
        watched(patch, FileFill, "bring", reach, after=False)
        watched(patch, Ledger, "count", reach)
        watched(patch, Move, "run", reach, before=False)


class KafkaTarget(Target):
    """Exactly once, and appended to. Its positions are read one by one: nothing is compacted so soon."""

    points = frozenset({"before _rows", "before _produce", "before _commit", "after _commit"})

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self.kafka: Kafka = request.getfixturevalue("kafka")
        self.prefix = uuid.uuid4().hex[:12]
        self.positions = f"{self.prefix}.positions"
        options = {"topic": f"{self.prefix}.{{table}}", "positions": self.positions}
        spark = request.getfixturevalue("spark")
        endpoint = Endpoint.parse(self.kafka.url(), {**options, "create": "true", "exactly_once": "true"})
        self.sink = open_sink(endpoint, lambda: spark)
        request.addfinalizer(self.sink.close)

    def rows(self, table: str) -> list[Row]:
        found = [message.value for message in self.kafka.consume(f"{self.prefix}.{table}")]
        return [{**row, "moved": row["moved"] and datetime.fromisoformat(row["moved"])} for row in found]

    def log(self, table: str) -> list[Batch]:
        found = [message.value for message in self.kafka.consume(self.positions)]
        return [Batch.from_json(json.dumps(held["batch"])) for held in found if held["table"] == table]

    def watch(self, patch: pytest.MonkeyPatch, reach: Reach) -> None:
        watched(patch, KafkaWrite, "_rows", reach, after=False)
        watched(patch, TableProducer, "_produce", reach, after=False)
        watched(patch, TableProducer, "_commit", reach)


def memory_state(_: pytest.FixtureRequest) -> State:
    return MemoryState()


def sqlite_state(request: pytest.FixtureRequest) -> State:
    return open_state(Endpoint.parse(f"sqlite:///{request.getfixturevalue('tmp_path')}/state.db"))


def postgres_state(request: pytest.FixtureRequest) -> State:
    return open_state(Endpoint.parse(request.getfixturevalue("pg_database")))


def mariadb_state(request: pytest.FixtureRequest) -> State:
    return open_state(Endpoint.parse(request.getfixturevalue("mariadb_database")))


def directory_state(request: pytest.FixtureRequest) -> State:
    """Not flushed to the disk: what a process has written outlives it all the same."""
    request.getfixturevalue("monkeypatch").setattr("os.fsync", lambda _: None)
    return open_state(Endpoint.parse(f"{request.getfixturevalue('tmp_path')}/state"))


def delta_state(request: pytest.FixtureRequest) -> State:
    request.getfixturevalue("monkeypatch").setattr("os.fsync", lambda _: None)
    return open_state(Endpoint.parse(f"delta:{request.getfixturevalue('tmp_path')}/state"))


TARGETS: dict[str, Callable[[pytest.FixtureRequest], Target]] = {
    "delta": DeltaTarget,
    "postgres": PostgresTarget,
    "mariadb": MariadbTarget,
    "redshift": RedshiftTarget,
    "snowflake": SnowflakeTarget,
}
STATES: dict[str, Callable[[pytest.FixtureRequest], State]] = {
    "memory": memory_state,
    "sqlite": sqlite_state,
    "postgres": postgres_state,
    "mariadb": mariadb_state,
    "directory": directory_state,
}
SLOW_STATES = {"delta": delta_state}  # a commit of some 20 ms per write: where one test is enough


def watched(
    patch: pytest.MonkeyPatch, owner: object, method: str, reach: Reach, *, before: bool = True, after: bool = True
) -> None:
    """A process can die before and after each call of this method."""
    real = getattr(owner, method)

    def call(*given: Any, **named: Any) -> Any:
        if before:
            reach(f"before {method}")
        result = real(*given, **named)
        if after:
            reach(f"after {method}")
        return result

    patch.setattr(owner, method, call)

"""The same cases on every way to a Spark: our own, in one process and on a cluster; the warm one; somebody else's."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import psycopg
import pytest
import yaml
from deltalake import DeltaTable, QueryBuilder

from strandline.spark import daemon
from strandline.testing.kafka import Consumed, Kafka, current
from strandline.testing.servers import Postgres

CHILD = Path(__file__).with_name("spark_child.py")
PIPELINES = ("lake", "copy", "staged")
TOPICS = ("at_least_once", "exactly_once")
OWN = {"master": "local[2]", "conf": {"spark.driver.memory": "1g"}}


class Line:
    """One table on PostgreSQL; a lake, a copy on PostgreSQL, one that went through a stage and two topics, in step."""

    def __init__(self, url: str, folder: Path, spark: dict[str, Any], kafka: Kafka) -> None:
        self.folder = folder
        self._kafka, self._prefix = kafka, uuid.uuid4().hex[:12]
        self.database = psycopg.connect(url, autocommit=True)
        self.database.execute(
            "CREATE SCHEMA copied; CREATE SCHEMA loaded;"
            "CREATE TABLE orders (id bigint PRIMARY KEY, status text NOT NULL, amount numeric(12,2), gone boolean,"
            " updated_at timestamptz NOT NULL)"
        )
        common = {"source": url, "guard": "0s", "defaults": {"cursor": "updated_at", "deleted": "gone"}}
        ends: dict[str, dict[str, Any]] = {
            "lake": {"target": f"delta:{folder}/lake"},
            "copy": {"target": {"url": url, "schema": "copied"}},
            "staged": {"target": {"url": url, "schema": "loaded"}, "stage": f"{folder}/stage"},
        }
        for name in TOPICS:
            topic = {"topic": f"{self._prefix}.{name}", "create": True, "exactly_once": name == "exactly_once"}
            ends[name] = {"target": {"url": kafka.url(), **topic}}
        pipelines = {name: {**common, "tables": ["orders"], **end} for name, end in ends.items()}
        self.config = folder / "strandline.yml"
        self.config.write_text(yaml.safe_dump({"spark": spark, "pipelines": pipelines}))
        self._child: subprocess.Popen[str] | None = None

    def close(self) -> None:
        self.database.close()
        if self._child is not None:
            self._child.communicate()

    def write(self, number: int, status: str, *, gone: bool = False) -> None:
        self.database.execute(
            "INSERT INTO orders (id, status, amount, gone, updated_at) VALUES (%s, %s, %s, %s, clock_timestamp())"
            " ON CONFLICT (id) DO UPDATE SET (status, gone, updated_at) ="
            " (excluded.status, excluded.gone, excluded.updated_at)",
            (number, status, f"{number}.25", gone),
        )

    def sync(self, pipeline: str, die_at: str = "") -> dict[str, Any]:
        """In one process for all, so that a Spark of our own is started once. Nothing is told where it died."""
        if self._child is None:
            with (self.folder / "stderr").open("a") as errors:
                self._child = subprocess.Popen(
                    [sys.executable, str(CHILD), str(self.config)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                )
        told = self._ask(self._child.stdin, self._child.stdout, f"{pipeline} {die_at}\n")
        if not told:
            assert self._child.wait() == -signal.SIGKILL, (self.folder / "stderr").read_text()
            self._child.communicate()
            self._child = None
            return {}
        found: dict[str, Any] = json.loads(told)
        assert not found["errors"]
        return found

    @staticmethod
    def _ask(asked: IO[str] | None, told: IO[str] | None, line: str) -> str:
        assert asked is not None and told is not None
        asked.write(line)
        asked.flush()
        return told.readline()

    def check(self) -> None:
        """Every target holds each row of the source once, and none that was deleted."""
        kept = self.kept()
        assert kept
        for schema in ("copied", "loaded"):
            assert self._rows(f"SELECT * FROM {schema}.orders") == kept, schema
        lake = DeltaTable(f"{self.folder}/lake/orders")
        found = QueryBuilder().register("t", lake).execute("SELECT * FROM t").read_all()
        names = found.schema.names
        columns = [found[name].to_pylist() for name in names]
        there = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
        assert sorted(there, key=lambda row: row["id"]) == kept, "lake"

    def kept(self) -> list[dict[str, Any]]:
        return self._rows("SELECT * FROM orders WHERE gone IS NOT TRUE")

    def published(self, name: str) -> list[Consumed]:
        return self._kafka.consume(f"{self._prefix}.{name}")

    def _rows(self, sql: str) -> list[dict[str, Any]]:
        with self.database.cursor(row_factory=psycopg.rows.dict_row) as cursor:
            return cursor.execute(f"{sql} ORDER BY id".encode()).fetchall()


@pytest.fixture(scope="module", params=["own", "cluster", "warm", "remote"])
def line(
    request: pytest.FixtureRequest, postgres: Postgres, kafka: Kafka, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Line]:
    request.getfixturevalue("own_cache")
    name = f"three_{uuid.uuid4().hex[:12]}"
    with postgres.connect() as server:
        server.execute(f"CREATE DATABASE {name}")
        spark: dict[str, Any] = OWN | ({"warm": "10m"} if request.param == "warm" else {})
        if request.param == "remote":
            spark = {"remote": request.getfixturevalue("connect").remote()}
        elif request.param == "cluster":
            spark = request.getfixturevalue("cluster").settings()
        line = Line(postgres.url(name), tmp_path_factory.mktemp("line"), spark, kafka)
        yield line
        line.close()
        servers = daemon.seen()
        assert len(servers) == (request.param == "warm")
        for each in servers:
            os.kill(each.record.pid, signal.SIGKILL)
        server.execute(f"DROP DATABASE {name} WITH (FORCE)")


def test_a_first_load(line: Line, request: pytest.FixtureRequest) -> None:
    for number in (1, 2, 3):
        line.write(number, "new")
    told = [line.sync(pipeline) for pipeline in PIPELINES]
    assert [each["status"] for each in told] == ["COMPLETED"] * 3
    connect = not {"own", "cluster"} & set(request.node.name.strip("]").split("["))
    assert all(each["spark"].startswith("pyspark.sql.connect") is connect for each in told)
    line.check()


def test_an_increment_with_deletes(line: Line) -> None:
    line.write(1, "paid")
    line.write(2, "new", gone=True)
    line.write(4, "new")
    assert [line.sync(pipeline)["status"] for pipeline in PIPELINES] == ["COMPLETED"] * 3
    line.check()
    assert [line.sync(pipeline)["status"] for pipeline in PIPELINES] == ["SKIPPED"] * 3


def test_a_column_that_was_added(line: Line) -> None:
    line.database.execute("ALTER TABLE orders ADD COLUMN note text")
    line.write(5, "new")
    line.database.execute("UPDATE orders SET note = 'of five', updated_at = clock_timestamp() WHERE id = 5")
    assert [line.sync(pipeline)["status"] for pipeline in PIPELINES] == ["COMPLETED"] * 3
    line.check()


def test_a_crash_with_the_batch_in_the_target_and_not_in_the_state(line: Line) -> None:
    line.write(1, "sent")
    line.write(6, "new")
    assert line.sync("lake", die_at="BatchApplied") == {}
    assert "Adopted" in line.sync("lake")["events"]
    for pipeline in PIPELINES:
        line.sync(pipeline)
    line.check()


@pytest.mark.parametrize("topic", TOPICS)
def test_changes_published_to_kafka(line: Line, topic: str) -> None:
    """Every change once, and what a consumer makes of them is what the source holds."""

    def sync() -> int:
        assert line.sync(topic)["status"] == "COMPLETED"
        messages = line.published(topic)
        there = sorted((row["id"], row["status"]) for row in current(messages).values())
        assert there == [(row["id"], row["status"]) for row in line.kept()]
        return len(messages)

    line.write(7, f"new for {topic}")
    before = sync()
    line.write(7, f"changed for {topic}")
    line.write(8, f"new for {topic}")
    assert sync() == before + 2
    line.write(8, "", gone=True)
    assert sync() == before + 3
    assert line.sync(topic)["status"] == "SKIPPED"

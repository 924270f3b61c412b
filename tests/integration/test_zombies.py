"""A run that is paused (SIGSTOP) in the middle of its batches, overtaken, and woken up: it commits nothing.

Into a lake, into both kinds of database and into a stage: all in one process, at work on two tables of each. One of the
two is taken over by another run while it sleeps. Of the other a person drops the plan (`watermark set`), so that nobody
has read on when it wakes: without a fence in the target its batch would go in, and then once more. The tables are
appended to: there whatever is written twice stays.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import yaml
from deltalake import DeltaTable, QueryBuilder
from gate import SECONDS, until
from test_sql_types import asked

import strandline
from strandline import operations
from strandline.config import load_config
from strandline.core.position import Status
from strandline.core.protocols import Spark
from strandline.core.run import Outcome
from strandline.core.table import EXTRACT, SYNC
from strandline.project import Project
from strandline.testing.servers import MariaDB, Postgres

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHILD = Path(__file__).with_name("zombie_child.py")
KINDS = ("delta", "postgres", "mariadb", "stage")
TAKEN, DROPPED = "taken", "dropped"
GATE = 4712
# Lets every reader pass at once, unless somebody holds the gate.
SOURCE = f"""
CREATE TABLE orders (id bigint PRIMARY KEY, at timestamptz NOT NULL DEFAULT clock_timestamp());
CREATE FUNCTION passed() RETURNS boolean LANGUAGE plpgsql AS
$$ BEGIN PERFORM pg_advisory_xact_lock_shared({GATE}); RETURN true; END $$;
CREATE VIEW {TAKEN} AS SELECT * FROM orders WHERE passed();
CREATE VIEW {DROPPED} AS SELECT * FROM orders WHERE passed();
CREATE SCHEMA copied"""


class Borrowing(Project):
    """Works with a session that is here already: a fence in a lake is a commit of Spark's."""

    def __init__(self, path: Path, spark: SparkSession) -> None:
        super().__init__(load_config(path))
        self._session = spark

    def _spark(self, *_: object) -> Spark:
        return lambda: self._session


class Ward:
    """A pipeline per kind of target, and the process that sleeps over all of them."""

    def __init__(self, folder: Path, source: str, other: str, spark: SparkSession) -> None:
        self.folder, self.source, self.other, self.spark = folder, source, other, spark
        self.database = psycopg.connect(source, autocommit=True)
        self.database.execute(SOURCE.encode())
        self.config = folder / "strandline.yml"
        targets: dict[str, dict[str, Any]] = {
            "delta": {"target": "delta:lake"},
            "postgres": {"target": {"url": source, "schema": "copied"}},
            "mariadb": {"target": other},
            "stage": {"target": "delta:staged", "stage": "stage"},
        }
        common = {"source": source, "guard": "0s", "defaults": {"cursor": "at", "key": "id", "mode": "append"}}
        pipelines = {kind: {**common, **targets[kind], "tables": [TAKEN, DROPPED]} for kind in KINDS}
        self.config.write_text(yaml.safe_dump({"pipelines": pipelines}))
        self.told: dict[str, str] = {}

    def insert(self, *ids: int) -> None:
        for number in ids:
            self.database.execute("INSERT INTO orders (id) VALUES (%s)", [number])

    def sync(self, kind: str, *tables: str) -> dict[str, Outcome]:
        """The table's outcome, in the last stage."""
        with strandline.load(self.config) as project:
            found = project.sync(kind, tables=tables, spark=self.spark).tables
        return {outcome.table: outcome for outcome in found}

    def ids(self, kind: str, table: str) -> list[int]:
        if kind in ("postgres", "mariadb"):
            url, place = (self.source, f"copied.{table}") if kind == "postgres" else (self.other, table)
            return sorted(int(number) for (number,) in asked(url)(f"SELECT id FROM {place}"))
        lake = DeltaTable(str(self.folder / ("lake" if kind == "delta" else "staged") / table))
        found = QueryBuilder().register("t", lake).execute("SELECT id FROM t ORDER BY id").read_all()
        return [int(number) for number in found["id"].to_pylist()]

    def sleepers(self) -> subprocess.Popen[str]:
        """Every table's batch has begun, its Spark job waits for rows, and the whole process is paused."""
        tables = 2 * len(KINDS)
        child = subprocess.Popen(
            [sys.executable, str(CHILD), str(self.config), str(tables)],
            env={**os.environ, "PYTHONPATH": str(Path(strandline.__file__).parents[1])},
            cwd=self.folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert child.stdout is not None and child.stdin is not None
        assert child.stdout.readline() == "ready\n", child.communicate()
        self.database.execute(f"SELECT pg_advisory_lock({GATE})".encode())
        child.stdin.write("go\n")
        child.stdin.flush()
        waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        until(lambda: self.database.execute(waiting.encode()).fetchall() >= [(tables,)] or child.poll() is not None)
        os.killpg(child.pid, signal.SIGSTOP)
        return child

    def overtake(self) -> None:
        """Their leases run out; what they waited for is there."""
        with sqlite3.connect(self.folder / ".strandline" / "state.db") as state:
            state.execute("UPDATE strandline_leases SET expires_at = '2000-01-01T00:00:00.000Z'")
        self.database.execute(b"SELECT pg_advisory_unlock_all()")
        for kind in KINDS:
            outcome = self.sync(kind, TAKEN)[TAKEN]
            assert (outcome.status, outcome.applied.rows_inserted) == (Status.COMPLETED, 3), outcome.error
            with Borrowing(self.config, self.spark) as project:
                stage = EXTRACT if kind == "stage" else SYNC
                before = project.books.positions(kind)[kind, DROPPED, stage].watermark
                change = operations.set_watermark(project, kind, DROPPED, str(before))
                operations.apply(project, [change], why="a test")


@pytest.fixture(scope="module")
def ward(
    tmp_path_factory: pytest.TempPathFactory, postgres: Postgres, mariadb: MariaDB, spark: SparkSession
) -> Iterator[Ward]:
    """When they have woken up and ended."""
    name = f"z_{uuid.uuid4().hex[:8]}"
    with postgres.connect() as one, mariadb.connect() as two, two.cursor() as cursor:
        one.execute(f"CREATE DATABASE {name}".encode())
        cursor.execute(f"CREATE DATABASE {name}")
        ward = Ward(tmp_path_factory.mktemp("ward"), postgres.url(name), mariadb.url(name), spark)
        ward.insert(1, 2)
        for kind in KINDS:
            assert {outcome.status for outcome in ward.sync(kind).values()} == {Status.COMPLETED}
        ward.insert(3, 4, 5)
        child = ward.sleepers()
        try:
            ward.overtake()
            os.killpg(child.pid, signal.SIGCONT)
            said, errors = child.communicate(timeout=SECONDS)
            assert child.returncode == 0, errors
            ward.told = json.loads(said)
            yield ward
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.communicate()
            ward.database.close()
            one.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())
            cursor.execute(f"DROP DATABASE {name}")


@pytest.mark.parametrize("kind", KINDS)
def test_overtaken_by_another_run(ward: Ward, kind: str) -> None:
    told = ward.told[f"{kind}.{TAKEN}"]
    assert "lease was lost" in told or "has moved past" in told
    assert ward.ids(kind, TAKEN) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("kind", KINDS)
def test_its_plan_was_dropped_by_watermark_set(ward: Ward, kind: str) -> None:
    assert ward.told[f"{kind}.{DROPPED}"]
    assert ward.ids(kind, DROPPED) == [1, 2]
    assert ward.sync(kind, DROPPED)[DROPPED].applied.rows_inserted == 3
    assert ward.ids(kind, DROPPED) == [1, 2, 3, 4, 5]
    assert ward.sync(kind, DROPPED)[DROPPED].status is Status.SKIPPED

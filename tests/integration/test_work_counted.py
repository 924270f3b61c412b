"""What a plan, a poll, a slice, a batch and a command cost, counted instead of timed, so that a regression shows on any
machine. Requests to object stores are counted beside what makes them: test_state_objects.py, test_stage.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from lake_shop import Shop

from strandline.core.position import Status
from strandline.spark.java import find_java
from strandline.spark.session import set_all
from strandline.state.sql import SqlState
from strandline.testing.servers import Postgres

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MANY = 40
_MARK = "counted|"


class Ledger:
    """What a server was asked since the last look, by its own log."""

    def __init__(self, server: Postgres) -> None:
        self._server = server
        self._seen = 0

    def statements(self) -> list[str]:
        log = self._server.log()
        new, self._seen = log[self._seen :], len(log)
        asked = ("statement: ", "execute ")
        lines = [line.partition("LOG:  ")[2] for line in new.splitlines() if line.startswith(_MARK)]
        return [line for line in lines if line.startswith(asked)]


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with Postgres(settings={"autovacuum": "off", "log_statement": "all", "log_line_prefix": _MARK}) as server:
        yield server


@pytest.fixture
def ledger(server: Postgres) -> Ledger:
    return Ledger(server)


@pytest.fixture
def shop(server: Postgres, request: pytest.FixtureRequest, tmp_path: Path, spark: SparkSession) -> Iterator[Shop]:
    name = f"d{abs(hash(request.node.name))}"
    with server.connect() as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    shop = Shop(server.url(name), tmp_path, spark)
    yield shop
    shop.close()


def _many(shop: Shop) -> None:
    for number in range(MANY):
        shop.execute(f"CREATE TABLE t{number} (LIKE orders INCLUDING ALL)")
        shop.execute(f"INSERT INTO t{number} VALUES (1, 'new', 1, clock_timestamp())")
    shop.tables = ["orders", *(f"t{number}" for number in range(MANY))]


def test_a_plan_asks_the_source_as_often_for_many_tables_as_for_one(shop: Shop, ledger: Ledger) -> None:
    def asked() -> list[str]:
        ledger.statements()
        with shop.load() as project:
            assert len(project.plan("shop").tables) == len(shop.tables)
        return ledger.statements()

    shop.insert(1)
    one = asked()
    _many(shop)
    many = asked()
    assert len(one) == len(many) <= 14, many


def test_a_poll_that_finds_nothing_asks_and_writes_as_often_for_many_tables_as_for_one(
    shop: Shop, ledger: Ledger, written: Callable[[], list[str]]
) -> None:
    def idle() -> tuple[int, list[str]]:
        shop.sync()
        ledger.statements(), written()
        assert {outcome.status for outcome in shop.sync().tables} == {Status.SKIPPED}
        return len(ledger.statements()), written()

    defaults = shop.pipeline["defaults"]
    shop.pipeline["defaults"] = {**defaults, "initial": "latest"}
    shop.insert(1)
    one = idle()
    _many(shop)
    many = idle()
    assert one == many
    assert many[0] <= 14 and many[1] == ["put"]


def test_a_table_that_moves_inside_the_server_takes_a_few_statements_and_no_connection_of_its_own(
    shop: Shop, ledger: Ledger, written: Callable[[], list[str]]
) -> None:
    shop.execute("CREATE SCHEMA copied")
    shop.pipeline |= {"target": shop.url, "via": "server", "parallel": 2}
    shop.insert(1)
    _many(shop)
    shop.tables = [{"name": name, "target": f"copied.{name}"} for name in shop.tables]

    def moved(tables: int) -> tuple[list[str], list[str]]:
        shop.tables = shop.tables[:tables]
        for table in shop.tables:
            shop.execute(f"UPDATE {table['name']} SET updated_at = clock_timestamp()")
        ledger.statements(), written()
        assert {outcome.status for outcome in shop.sync().tables} == {Status.COMPLETED}
        return ledger.statements(), written()

    def connected(statements: list[str]) -> int:
        return sum("SET TIME ZONE" in text for text in statements)  # each says so once

    shop.sync()
    (many, wrote), (few, wrote_few) = moved(MANY), moved(MANY // 2)
    assert len(wrote) - len(wrote_few) == 2 * MANY // 2  # plan and lease; watermark and lease
    assert (len(many) - len(few)) / (MANY // 2) <= 9, many
    assert connected(many) <= 4, many  # two that plan, two that move


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """Each write to the state since the last look, but for leases that are renewed."""
    seen: list[str] = []
    for name in ("put", "append", "delete", "prune"):
        real = getattr(SqlState, name)

        def counted(state: Any, *given: Any, _name: str = name, _real: Any = real) -> Any:
            if _name != "put" or {record.kind for record in given[0]} != {"lease"}:  # renewed by the clock
                seen.append(_name)
            return _real(state, *given)

        monkeypatch.setattr(SqlState, name, counted)

    def taken() -> list[str]:
        new = seen[:]
        seen.clear()
        return new

    return taken


def test_a_slice_is_one_write_to_the_state_and_reads_the_source_once(
    shop: Shop, ledger: Ledger, written: Callable[[], list[str]]
) -> None:
    def cost(slices: int) -> tuple[int, int]:
        shop.execute(
            f"INSERT INTO orders SELECT i + coalesce((SELECT max(id) FROM orders), 0), 'new', 1, clock_timestamp() "
            f"FROM generate_series(1, {slices * 100}) i"
        )
        shop.execute("ANALYZE orders")
        ledger.statements(), written()
        outcome = shop.one()
        assert outcome.batches == slices
        by_jdbc = [text for text in ledger.statements() if text.startswith("execute ") and '"orders"' in text]
        return len(written()), sum("SELECT * FROM" not in text for text in by_jdbc)  # that one asks for columns only

    shop.tables = [{"name": "orders", "slice_rows": 100, "mode": "append"}]
    shop.insert(1)
    shop.sync()
    few, many = cost(2), cost(4)
    assert (few[1], many[1]) == (2, 4)
    assert many[0] - few[0] == 2 and few[0] <= 8, (few, many)


@pytest.fixture
def compiled(spark: SparkSession) -> Iterator[SparkSession]:
    """The tests' Spark, which is one for the least work, as one for much is."""
    much = {"spark.sql.codegen.factoryMode": "FALLBACK", "spark.sql.adaptive.enabled": "true"}
    least = {name: spark.conf.get(name) or "" for name in much}
    set_all(spark, much)
    yield spark
    set_all(spark, least)


def test_a_batch_takes_as_many_jobs_of_spark_for_many_rows_as_for_few(shop: Shop, compiled: SparkSession) -> None:
    def jobs(first: int, rows: int) -> int:
        shop.execute(
            f"INSERT INTO orders SELECT i, 'new', 1, clock_timestamp() FROM generate_series({first}, {first + rows}) i"
        )
        scheduler = compiled.sparkContext._jsc.sc().dagScheduler()
        before = scheduler.numTotalJobs()
        assert shop.one().batches == 1
        return int(scheduler.numTotalJobs() - before)

    first = jobs(1, 10)
    few, many = jobs(100, 10), jobs(1000, 5000)
    assert first <= 2 and few == many <= 16


def test_batches_share_the_queries_that_were_compiled(shop: Shop, compiled: SparkSession) -> None:
    """Each has a session of its own; what Spark compiled for one serves the next."""
    assert compiled._jvm is not None
    classes = compiled._jvm.org.apache.spark.metrics.source.CodegenMetrics.METRIC_COMPILATION_TIME()

    def increment(number: int) -> int:
        shop.insert(number)
        shop.update(1, f"seen {number}")
        before = classes.getCount()
        assert shop.one().batches == 1
        return int(classes.getCount() - before)

    shop.insert(1)
    shop.sync()
    counts = [increment(number) for number in (2, 3, 4)]
    assert counts[0] > 0 and counts[-1] <= 5, counts  # 2: a value is part of some queries


@pytest.fixture
def java(tmp_path: Path) -> tuple[Path, Path]:
    """A Java that keeps count of how often it is started: its home, and the count."""
    real, home, count = Path(find_java()), tmp_path / "java", tmp_path / "starts"
    (home / "bin").mkdir(parents=True)
    for part in real.iterdir():
        if part.name != "bin":
            (home / part.name).symlink_to(part)
    program = home / "bin" / "java"
    program.write_text(f'#!/bin/sh\necho "$*" >> {count}\nexec {real}/bin/java "$@"\n')
    program.chmod(0o755)
    return home, count


@pytest.fixture
def started(shop: Shop, java: tuple[Path, Path]) -> Callable[..., list[str]]:
    """Carries out a command; how each Java was started."""
    home, count = java

    def started(*command: str) -> list[str]:
        count.write_text("")
        environment = {**os.environ, "JAVA_HOME": str(home)}
        environment.pop("SPARK_SUBMIT_OPTS", None)
        program = [sys.executable, "-m", "strandline", *command, "--config", str(shop.config)]
        subprocess.run(program, check=True, env=environment, capture_output=True)
        begun = count.read_text().splitlines()
        return [line for line in begun if "spark.launcher.Main" not in line]  # that one spells the command out

    return started


def test_only_what_moves_rows_starts_java_and_starts_it_once(shop: Shop, started: Callable[..., list[str]]) -> None:
    shop.insert(1)
    assert started("plan", "-p", "shop") == []
    assert len(started("sync", "-p", "shop")) == 1
    for command in ("plan -p shop", "sync -p shop", "status", "watermark get -p shop -t orders", "runs list", "doctor"):
        assert started(*command.split()) == [], command


def test_java_and_spark_compile_for_a_little_work_what_is_soon_done_and_for_much_what_lasts(
    shop: Shop, started: Callable[..., list[str]]
) -> None:
    quickly, log = "-XX:TieredStopAtLevel=1", shop.folder / "log"
    log.mkdir()
    told = {"enabled": "true", "dir": log.as_uri(), "rolling.enabled": "false", "compress": "false"}
    shop.top = {"spark": {"conf": {f"spark.eventLog.{name}": value for name, value in told.items()}}}

    def settings() -> dict[str, str]:
        """What the newest Spark was told, by its own log."""
        newest = max(log.iterdir(), key=lambda path: path.stat().st_mtime_ns)
        events = map(json.loads, newest.read_text().splitlines())
        (environment,) = (each for each in events if each["Event"] == "SparkListenerEnvironmentUpdate")
        return dict(environment["Spark Properties"])

    shop.insert(1)
    (few,) = started("sync", "-p", "shop")
    for_few = settings()
    shop.execute("INSERT INTO orders SELECT n, 'new', 1, clock_timestamp() FROM generate_series(2, 100100) n")
    shop.execute("ANALYZE orders")
    (many,) = started("sync", "-p", "shop")
    for_many = settings()
    assert quickly in few and quickly not in many
    interpreted, planned_once = ("spark.sql.codegen.factoryMode", "NO_CODEGEN"), ("spark.sql.adaptive.enabled", "false")
    assert {interpreted, planned_once} <= for_few.items()
    assert {interpreted, planned_once}.isdisjoint(for_many.items())
    shop.insert(200_000)
    (few,) = started("sync", "-p", "shop", "--verify")  # it reads all that was ever moved
    assert quickly not in few


@pytest.mark.parametrize("staged", [False, True])
def test_a_command_that_starts_spark_imports_no_pandas(shop: Shop, server: Postgres, staged: bool) -> None:
    """PySpark imports it wherever it wants to know whether it is there: for a value, for a map over Arrow."""
    if staged:
        with server.connect() as connection:
            connection.execute("CREATE DATABASE staged")
        shop.pipeline |= {"stage": str(shop.folder / "stage"), "target": server.url("staged")}
    shop.insert(1, 2)
    program = [sys.executable, "-X", "importtime", "-m", "strandline", "sync", "-p", "shop"]
    program += ["--config", str(shop.config)]
    done = subprocess.run(program, check=True, capture_output=True, text=True)
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    imported = [line.rpartition("|")[2].strip() for line in lines]
    assert imported.index("strandline.spark.gateway") < imported.index("pyspark"), "Java starts first"
    needless = {"pandas"} if staged else {"pandas", "numpy"}  # a stage reads files by Arrow, which wants NumPy
    assert needless.isdisjoint(imported)

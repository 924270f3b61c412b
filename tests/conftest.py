"""Real servers and one Spark per test process, started when the first test asks for them."""

from __future__ import annotations

import fcntl
import os
import shlex
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from strandline.spark.jars import jars
from strandline.testing.cluster import Cluster
from strandline.testing.connect import SparkConnect
from strandline.testing.kafka import Kafka
from strandline.testing.servers import MariaDB, Postgres
from strandline.testing.snowflake import Fakesnow
from strandline.testing.stores import Moto, Seaweed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

os.environ["STRANDLINE_CLASS_ARCHIVE"] = "off"  # no work in the background while tests run
# Little data passes through much code: Java's second compiler would take a third of the time and win nothing back.
# Alone, the first one would get a fifth of the room for its code and throw away what it had just compiled.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m")
# The same examples everywhere and every time, however slow the machine is. New ones are `make soak`'s to find.
settings.register_profile(
    "steady",
    derandomize="STRANDLINE_EXAMPLES" not in os.environ,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.function_scoped_fixture],
)
settings.load_profile("steady")
_LONGEST = (
    "test_verify_repair",
    "test_three_sparks",
    "test_sink",
    "test_kafka",
    "test_kafka_sink",
    "test_traps",
    "test_traps_failures",
    "test_crash_stages",
    "test_two_stages",
    "test_sql_sink",
    "test_stage",
    "test_sync",
    "test_state_catalog",
    "test_delta_source",
    "test_warm_spark",
    "test_connect",
    "test_demo",
    "test_failures",
    "test_examples",
    "test_tracker_spark",
    "test_kills",
    "test_zombies",
    "test_strategies",
    "test_cuts",
    "test_cuts_warehouses",
    "test_crash_matrix",
    "test_serve",
    "test_recipes",
    "test_cli_end_to_end",
    "test_soak",
    "test_traps_into_mariadb",
)
_CALM = {"autovacuum": "off"}  # the barrier waits for a worker that has just begun, and a statement more is asked
_NO_MARIADB = "MariaDB is not installed and cannot be (not root, or no apt-get): apt-get install mariadb-server"


@pytest.fixture(scope="module")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """XDG_CACHE_HOME of this module alone, and so its warm Sparks; jars and class archive are everybody's."""
    everybodys, folder = jars(["delta", "postgresql", "kafka"])[0].parent, tmp_path_factory.mktemp("cache")
    (folder / "strandline").mkdir(mode=0o700)
    for name in ("classes", "conf"):  # an archive is good for one class path, which the folder `conf` is on
        (everybodys.parent / name).mkdir(exist_ok=True)
        (folder / "strandline" / name).symlink_to(everybodys.parent / name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STRANDLINE_JARS", str(everybodys))
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield folder


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """STRANDLINE_POSTGRES=16: any test on the older one."""
    with Postgres(settings=_CALM, version=int(os.environ.get("STRANDLINE_POSTGRES", "18"))) as server:
        yield server


@pytest.fixture(scope="session")
def postgres16() -> Iterator[Postgres]:
    """It has no MERGE that says what it did."""
    with Postgres(settings=_CALM, version=16) as server:
        yield server


def _install_mariadb() -> None:
    """Tests run in several processes: the first one installs, the others wait for it."""
    with (Path(tempfile.gettempdir()) / "strandline-tests.lock").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        subprocess.run([Path(__file__).parents[1] / "tools" / "setup.sh", "mariadb"], check=True, capture_output=True)


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariaDB]:
    _install_mariadb()
    if not MariaDB.installed():
        pytest.skip(_NO_MARIADB)
    with MariaDB() as server:
        yield server


@pytest.fixture(scope="session")
def fakesnow() -> Iterator[Fakesnow]:
    with Fakesnow() as server:
        yield server


@pytest.fixture(scope="session")
def kafka() -> Iterator[Kafka]:
    with Kafka() as server:
        yield server


@pytest.fixture(scope="session")
def connect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkConnect]:
    """Its Python workers have what comes with Python and Spark, and nothing else."""
    python = tmp_path_factory.mktemp("python") / "bare"
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -S "$@"\n')
    python.chmod(0o755)
    server = SparkConnect(["delta", "postgresql", "kafka"], {"spark.driver.memory": "1g"})
    with pytest.MonkeyPatch.context() as patch:  # for this server alone
        patch.setenv("PYSPARK_PYTHON", str(python))
        server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    with Cluster() as running:
        yield running


@pytest.fixture(scope="session")
def seaweed() -> Iterator[Seaweed]:
    with Seaweed() as server:
        yield server


@pytest.fixture(scope="session")
def moto() -> Iterator[Moto]:
    with Moto() as server:
        yield server


@pytest.fixture
def pg_database(postgres: Postgres) -> Iterator[str]:
    """The URL of a database of this test's own."""
    with _own_database(postgres) as url:
        yield url


@pytest.fixture
def pg16_database(postgres16: Postgres) -> Iterator[str]:
    with _own_database(postgres16) as url:
        yield url


@contextmanager
def _own_database(postgres: Postgres) -> Iterator[str]:
    name = f"t_{uuid.uuid4().hex[:12]}"
    with postgres.connect() as connection:
        connection.execute(f"CREATE DATABASE {name}")
        yield postgres.url(name)
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def mariadb_database(mariadb: MariaDB) -> Iterator[str]:
    """The URL of a database of this test's own."""
    name = f"t_{uuid.uuid4().hex[:12]}"
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name}")
        yield mariadb.url(name)
        cursor.execute(f"DROP DATABASE {name}")


@pytest.fixture
def snowflake_database(fakesnow: Fakesnow) -> str:
    """The URL of a database of this test's own."""
    return fakesnow.url(f"T_{uuid.uuid4().hex[:12]}/PUBLIC")


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    from strandline.spark.session import local_session, stop
    from strandline.spark.work import Work

    needs = ["delta", "postgresql", "mysql", "kafka", "s3"]
    work = Work(os.environ.get("STRANDLINE_WORK", "least"))
    session = local_session(needs, {"spark.driver.memory": "1g"}, "local[2]", "tests", work=work)
    yield session
    stop(session)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Quick tests first, so that a mistake shows before servers and Spark start. Where several processes share the work
    (`make test`), the longest files first and quick ones last, so that all processes end at about the same time."""
    quick = ("unit", "property", "cli")
    shared = hasattr(config, "workerinput")

    def turn(item: pytest.Item) -> int:
        if shared and item.path.stem in _LONGEST:
            return _LONGEST.index(item.path.stem) - len(_LONGEST)
        return int(shared == any(folder in item.path.parts for folder in quick))

    items.sort(key=turn)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = [report for report in terminalreporter.stats.get("skipped", []) if _NO_MARIADB in str(report.longrepr)]
    if skipped:
        terminalreporter.write_line(f"!!! {len(skipped)} TESTS DID NOT RUN: {_NO_MARIADB}", red=True, bold=True)

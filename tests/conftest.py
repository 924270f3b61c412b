"""Real servers and one Spark per test process, started when the first test asks for them."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from strandline.testing.servers import MariaDB, Postgres
from strandline.testing.stores import Moto, Seaweed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

os.environ["STRANDLINE_CLASS_ARCHIVE"] = "off"  # no work in the background while tests run
_NO_MARIADB = "MariaDB is not installed and cannot be (not root, or no apt-get): apt-get install mariadb-server"


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    with Postgres() as server:
        yield server


def _install_mariadb() -> None:
    """Tests run in several processes: the first one installs, the others wait for it."""
    with (Path(tempfile.gettempdir()) / "strandline-tests.lock").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        if not MariaDB.installed():
            quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
            install = "apt-get update -q && apt-get install -qy --no-install-recommends mariadb-server"
            subprocess.run(["sh", "-c", install], check=True, env=quiet, capture_output=True)


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariaDB]:
    if os.geteuid() == 0 and shutil.which("apt-get"):
        _install_mariadb()
    if not MariaDB.installed():
        pytest.skip(_NO_MARIADB)
    with MariaDB() as server:
        yield server


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


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    from strandline.spark.session import local_session, stop

    session = local_session(["delta", "postgresql", "mysql", "s3"], {"spark.driver.memory": "1g"}, "local[2]", "tests")
    yield session
    stop(session)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Quick tests first, so that a mistake shows before servers and Spark start."""
    quick = ("unit", "property", "cli")
    items.sort(key=lambda item: not any(folder in item.path.parts for folder in quick))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = [report for report in terminalreporter.stats.get("skipped", []) if _NO_MARIADB in str(report.longrepr)]
    if skipped:
        terminalreporter.write_line(f"!!! {len(skipped)} TESTS DID NOT RUN: {_NO_MARIADB}", red=True, bold=True)

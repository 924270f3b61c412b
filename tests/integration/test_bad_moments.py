"""A real `strandline sync` in a process of its own, met at a bad moment: Ctrl-C, and a second one beside it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from lake_shop import Shop

import strandline
from strandline.cli.app import execute

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GATE = 4711
# Lets every reader pass at once, unless somebody holds the gate.
SLOW = f"""
CREATE FUNCTION passed() RETURNS boolean LANGUAGE plpgsql AS
$$ BEGIN PERFORM pg_advisory_xact_lock_shared({GATE}); RETURN true; END $$;
CREATE VIEW slow_orders AS SELECT * FROM orders WHERE passed()"""
SECONDS = 120


@pytest.fixture
def shop(pg_database: str, tmp_path: Path) -> Iterator[Shop]:
    """Orders that can be read only while the gate is open."""
    shop = Shop(pg_database, tmp_path)
    shop.execute(SLOW)
    shop.tables = [{"name": "slow_orders", "target": "orders", "key": "id"}]
    shop.insert(*range(1, 6))
    yield shop
    shop.close()


@pytest.fixture
def at_work(shop: Shop) -> Iterator[subprocess.Popen[str]]:
    """A sync that has begun its batch and waits at the gate, which this test holds."""
    environment = {**os.environ, "PYTHONPATH": str(Path(strandline.__file__).parents[1])}
    errors = (shop.folder / "stderr").open("w")
    child = subprocess.Popen(
        [sys.executable, "-m", "strandline", "sync", "-c", str(shop.config)],
        env=environment,
        cwd=shop.folder,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        start_new_session=True,
    )
    errors.close()
    until(lambda: "slice 1 of 1" in told(shop) or child.poll() is not None)
    shop.execute(f"SELECT pg_advisory_lock({GATE})")
    until(lambda: waiting(shop) or child.poll() is not None)
    yield child
    shop.execute("SELECT pg_advisory_unlock_all()")
    child.kill()
    child.communicate()


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def waiting(shop: Shop) -> bool:
    found = shop.database.execute("SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
    return bool(found.fetchall())


def told(shop: Shop) -> str:
    return (shop.folder / "stderr").read_text()


def test_a_second_sync_names_the_first_and_ctrl_c_gives_its_table_back_with_nothing_half_written(
    shop: Shop, at_work: subprocess.Popen[str], spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    assert at_work.poll() is None, told(shop)

    assert execute(["sync", "-c", str(shop.config)]) == 1
    second = capsys.readouterr()
    assert f"pid {at_work.pid}" in second.out + second.err
    assert at_work.poll() is None

    os.killpg(at_work.pid, signal.SIGINT)  # a terminal's Ctrl-C reaches the whole group, Spark's JVM too
    at_work.communicate(timeout=SECONDS)
    assert at_work.returncode == 130
    assert "Traceback" not in told(shop)
    assert "stopped by Ctrl-C; what was committed stays" in told(shop)
    assert not list((shop.folder / "lake").rglob("_delta_log/*.json")) or shop.target() == []

    shop.execute("SELECT pg_advisory_unlock_all()")
    shop.update(2, "paid")
    assert execute(["plan", "-c", str(shop.config)]) == 0
    assert "resumed" in capsys.readouterr().out
    shop.spark = spark
    assert [shop.one().error, shop.one().error] == [None, None]  # what was planned, then what came since
    assert shop.statuses() == dict(shop.database.execute("SELECT id, status FROM orders").fetchall())

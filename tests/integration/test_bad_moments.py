"""A real `strandline sync` in a process of its own, met at a bad moment: Ctrl-C, and a second one beside it."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from gate import SECONDS, GatedShop

from strandline.cli.app import execute

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def shop(pg_database: str, tmp_path: Path) -> Iterator[GatedShop]:
    shop = GatedShop(pg_database, tmp_path)
    shop.insert(*range(1, 6))
    yield shop
    shop.close()


@pytest.fixture
def at_work(shop: GatedShop) -> Iterator[subprocess.Popen[str]]:
    with shop.syncing() as child:
        yield child


def test_a_second_sync_names_the_first_and_ctrl_c_gives_its_table_back_with_nothing_half_written(
    shop: GatedShop, at_work: subprocess.Popen[str], spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(["sync", "-c", str(shop.config)]) == 1
    second = capsys.readouterr()
    assert f"pid {at_work.pid}" in second.out + second.err
    assert at_work.poll() is None

    os.killpg(at_work.pid, signal.SIGINT)  # a terminal's Ctrl-C reaches the whole group, Spark's JVM too
    at_work.communicate(timeout=SECONDS)
    assert at_work.returncode == 130
    assert "Traceback" not in shop.told()
    assert "stopped by Ctrl-C; what was committed stays" in shop.told()
    assert not list((shop.folder / "lake").rglob("_delta_log/*.json")) or shop.target() == []

    shop.release()
    shop.update(2, "paid")
    assert execute(["plan", "-c", str(shop.config)]) == 0
    assert "resumed" in capsys.readouterr().out
    shop.spark = spark
    assert [shop.one().error, shop.one().error] == [None, None]  # what was planned, then what came since
    assert shop.statuses() == dict(shop.database.execute("SELECT id, status FROM orders").fetchall())

"""A sync that is paused (SIGSTOP) in the middle of its batch, overtaken, and woken up: it commits nothing."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from gate import SECONDS, GatedShop

from strandline.core.position import Status

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def shop(pg_database: str, tmp_path: Path, spark: SparkSession) -> Iterator[GatedShop]:
    """In append mode: there whatever is written twice stays."""
    shop = GatedShop(pg_database, tmp_path, spark, mode="append")
    shop.insert(1, 2)
    assert shop.one().status is Status.COMPLETED
    shop.insert(3, 4, 5)
    yield shop
    shop.close()


@pytest.fixture
def zombie(shop: GatedShop) -> Iterator[subprocess.Popen[str]]:
    """Its Spark job is reading, and its lease runs out while it sleeps. What it waited for is there when it wakes."""
    with shop.syncing() as child:
        os.killpg(child.pid, signal.SIGSTOP)
        with sqlite3.connect(shop.folder / ".strandline" / "state.db") as state:
            state.execute("UPDATE strandline_leases SET expires_at = '2000-01-01T00:00:00.000Z'")
        shop.release()
        yield child


def wake(zombie: subprocess.Popen[str]) -> None:
    os.killpg(zombie.pid, signal.SIGCONT)
    zombie.communicate(timeout=SECONDS)
    assert zombie.returncode == 1


def test_overtaken_by_another_run(shop: GatedShop, zombie: subprocess.Popen[str]) -> None:
    taken_over = shop.one()
    assert (taken_over.status, taken_over.applied.rows_inserted) == (Status.COMPLETED, 3)
    wake(zombie)
    assert "lease" in shop.told()
    assert shop.target_ids() == [1, 2, 3, 4, 5]
    shop.insert(6)
    assert shop.one().status is Status.COMPLETED
    assert shop.target_ids() == [1, 2, 3, 4, 5, 6]


def test_its_plan_was_dropped_by_watermark_set(shop: GatedShop, zombie: subprocess.Popen[str]) -> None:
    """Nobody has read on when it wakes up: without a fence in the target its batch would go in, and then once more."""
    with shop.load() as project:
        (position,) = project.books.positions().values()
    moved = shop.command("watermark", "set", "-t", "slow_orders", "--timestamp", str(position.watermark), "--yes")
    subprocess.run(moved, env=shop.environment, cwd=shop.folder, check=True, timeout=SECONDS)
    wake(zombie)
    assert shop.target_ids() == [1, 2]
    assert shop.one().applied.rows_inserted == 3
    assert shop.target_ids() == [1, 2, 3, 4, 5]

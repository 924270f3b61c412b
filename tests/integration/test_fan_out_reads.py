"""Several targets of one PostgreSQL, on Spark: what the server itself logged says how often it was asked and read."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from lake_shop import Shop

from strandline.core.events import BatchApplied, Event
from strandline.core.position import Position, Reason, Status
from strandline.operations.status import status
from strandline.testing.servers import Postgres

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHILD = Path(__file__).with_name("crash_child.py")
COPY, LAKE, PRINTED = "load:copy", "load:lake", "load:printed"


class FanShop(Shop):
    """The shop with two targets, a schema of the database and a lake; the server logs every statement."""

    def __init__(self, url: str, folder: Path, spark: Any, server: Postgres) -> None:
        super().__init__(url, folder, spark)
        self.server = server
        self.execute("CREATE SCHEMA copy")
        self.execute(f"ALTER DATABASE \"{self.database.info.dbname}\" SET log_statement = 'all'")
        self.tables = [{"name": "orders", "slice_rows": 3}]
        self.pipeline["targets"] = {"copy": {"url": url, "schema": "copy"}, "lake": "delta:lake"}
        self._read_to = len(server.log())
        self.before = set(_kept(spark))

    def said(self) -> list[str]:
        """The statements since the last look, without those that Spark only asks for the columns by."""
        log = self.server.log()
        new, self._read_to = log[self._read_to :], len(log)
        return [text for text in new.split("LOG:") if "WHERE 1=0" not in text]

    def reads(self) -> int:
        return sum("/* strandline reader */" in text for text in self.said())

    def ends(self, **options: Any) -> dict[str, Any]:
        return {outcome.stage: outcome for outcome in self.sync(**options).tables}

    def positions(self) -> dict[str, Position]:
        with self.load() as project:
            return {key[2]: position for key, position in project.books.positions("shop", "orders").items()}

    def left_in_spark(self) -> list[str]:
        """Frames that are still kept, but for Delta's own and those of tests before; views that all sessions see."""
        kept = [name for key, name in _kept(self.spark).items() if key not in self.before]
        return [name for name in kept if not name.startswith("Delta Table State")]

    def check(self) -> None:
        """Source, lake and copy hold the same rows, each once."""
        asked = b"SELECT id, status FROM %s ORDER BY id"
        rows = self.database.execute(asked % b"orders").fetchall()
        assert self.database.execute(asked % b"copy.orders").fetchall() == rows
        assert [(row["id"], row["status"]) for row in self.target()] == rows


def _kept(spark: SparkSession) -> dict[int | str, str]:
    frames = {number: rdd.name() or "" for number, rdd in spark.sparkContext._jsc.getPersistentRDDs().items()}
    return frames | {view.viewName: view.viewName for view in spark.sql("SHOW VIEWS IN global_temp").collect()}


@pytest.fixture
def shop(pg_database: str, postgres: Postgres, tmp_path: Path, spark: SparkSession) -> Iterator[FanShop]:
    shop = FanShop(pg_database, tmp_path, spark, postgres)
    yield shop
    shop.close()


def test_targets_at_the_same_place_share_one_read_of_each_slice(
    shop: FanShop, capsys: pytest.CaptureFixture[str]
) -> None:
    shop.pipeline["targets"]["printed"] = "stdout:"
    shop.insert(*range(1, 6))
    first = shop.ends()
    assert {stage: (end.batches, end.applied.rows_inserted) for stage, end in first.items()} == dict.fromkeys(
        (COPY, LAKE, PRINTED), (2, 5)
    )
    assert shop.reads() == 2, "two slices, three targets"
    assert sorted(json.loads(line)["row"]["id"] for line in capsys.readouterr().out.splitlines()) == list(range(1, 6))
    shop.update(2, "paid")
    shop.insert(6)
    assert {end.applied.rows_read for end in shop.ends().values()} == {2}
    assert shop.reads() == 1
    shop.check()
    assert {end.status for end in shop.ends().values()} == {Status.SKIPPED}
    assert shop.left_in_spark() == []


def test_the_source_is_asked_as_often_for_two_targets_as_for_one(shop: FanShop) -> None:
    shop.insert(1)
    asked = []
    for lakes in (["lake"], ["lake", "far"]):
        shop.pipeline["targets"] = {name: f"delta:{name}" for name in lakes}
        shop.said()
        with shop.load() as project:
            plan = project.plan("shop")
        asked.append(len(shop.said()))
    assert [table.reason for table in plan.tables] == [Reason.FIRST_LOAD] * 2
    assert asked[0] == asked[1] > 3


@pytest.mark.parametrize("table", [{"name": "orders", "deleted": "gone"}, {"name": "orders", "mode": "snapshot"}])
def test_deletes_and_snapshots_are_read_once_for_all(shop: FanShop, table: dict[str, Any]) -> None:
    shop.execute("ALTER TABLE orders ADD gone boolean NOT NULL DEFAULT false")
    shop.tables = [table]
    shop.insert(1, 2, 3)
    shop.sync()
    if "deleted" in table:
        shop.execute("UPDATE orders SET gone = true, updated_at = clock_timestamp() WHERE id = 2")
    else:
        shop.execute("DELETE FROM orders WHERE id = 2")
    shop.reads()
    assert not shop.sync().failed
    assert shop.reads() == 1
    shop.execute("DELETE FROM orders WHERE id = 2")
    shop.check()


def test_rows_that_one_target_refuses_reach_the_others_by_the_same_read(shop: FanShop) -> None:
    shop.insert(1, 2)
    shop.sync()
    shop.execute("ALTER TABLE copy.orders ADD CHECK (status <> 'odd')")
    shop.insert(3, status="odd")
    shop.reads()
    result = shop.sync()
    assert result.failed
    assert {end.stage: end.status for end in result.tables} == {COPY: Status.FAILED, LAKE: Status.COMPLETED}
    assert shop.target_ids() == [1, 2, 3] and shop.reads() == 1
    positions = shop.positions()
    assert positions[COPY].watermark != positions[LAKE].watermark
    with shop.load() as project:
        (found,) = status(project)
        assert [(part.stage, bool(part.error)) for part in found.tables] == [(COPY, True), (LAKE, False)]
    shop.execute("ALTER TABLE copy.orders DROP CONSTRAINT orders_status_check")
    shop.insert(4)
    assert {stage: end.plan.reason for stage, end in shop.ends().items()} == {
        COPY: Reason.RESUMED,
        LAKE: Reason.INCREMENTAL,
    }
    shop.sync()  # the one that lagged reads up to where the other is
    shop.reads()
    shop.insert(5)
    shop.sync()
    assert shop.reads() == 1, "and shares from then on"
    shop.check()


def test_a_target_that_is_away_leaves_the_others_their_work(shop: FanShop) -> None:
    shop.insert(1, 2)
    copy = shop.pipeline["targets"]["copy"]
    shop.pipeline["targets"]["copy"] = "postgresql://nobody@127.0.0.1:9/gone?connect_timeout=1"
    result = shop.sync()
    assert result.failed and [(end.stage, end.status) for end in result.tables] == [(LAKE, Status.COMPLETED)]
    assert [error.where for error in result.errors] == [f"shop: {COPY}"]
    shop.pipeline["targets"]["copy"] = copy
    ends = shop.ends()
    assert (ends[COPY].applied.rows_inserted, ends[LAKE].status) == (2, Status.SKIPPED)
    shop.check()


def test_a_backfill_reads_once_for_all_targets(shop: FanShop) -> None:
    shop.insert(1, 2)
    shop.sync()
    shop.execute("UPDATE orders SET status = 'silent' WHERE id = 1")
    shop.reads()
    with shop.load() as project:
        result = project.backfill("shop", "orders", spark=shop.spark)
    assert not result.failed and len(result.tables) == 2
    assert shop.reads() == 1
    shop.check()


def test_interrupted_between_two_targets_nothing_stays_behind_in_spark(shop: FanShop) -> None:
    shop.insert(1, 2)

    def interrupt(event: Event) -> None:
        if isinstance(event, BatchApplied):
            raise KeyboardInterrupt

    with shop.load() as project, pytest.raises(KeyboardInterrupt):
        project.sync("shop", spark=shop.spark, listener=interrupt)
    assert shop.left_in_spark() == []


def test_killed_between_the_commits_of_two_targets(shop: FanShop) -> None:
    shop.insert(*range(1, 8))
    command = [sys.executable, str(CHILD), str(shop.config), f"{COPY}:Committed"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == -9 and f"{LAKE}:BatchApplied" not in done.stdout, done.stderr
    positions = shop.positions()
    assert (positions[COPY].batches, positions[LAKE].batches) == (1, 0)
    shop.update(1, "after the kill")
    for _ in range(2):  # what was planned, then what came since
        assert not shop.sync().failed
    shop.check()
    positions = shop.positions()
    assert positions[COPY].watermark == positions[LAKE].watermark
    assert {position.totals.rows_inserted for position in positions.values()} == {7}

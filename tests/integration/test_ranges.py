"""Ranges looked at again, on a real database and a real lake: stalls passed over, lookback, backfill, clocks."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
from deltalake import DeltaTable
from lake_shop import Shop

from strandline import operations
from strandline.core.errors import SourceError
from strandline.core.position import Position, Reason, Status

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def shop(pg_database: str, tmp_path: Path, spark: SparkSession) -> Iterator[Shop]:
    shop = Shop(pg_database, tmp_path, spark)
    yield shop
    shop.close()


def position(shop: Shop) -> Position:
    with shop.load() as project:
        (found,) = project.books.positions().values()
    return found


def version(shop: Shop) -> int:
    return DeltaTable(str(shop.folder / "lake" / "orders")).version()


def test_a_table_held_for_too_long_fails_and_names_who_is_in_the_way(shop: Shop) -> None:
    shop.tables = [{"name": "orders", "max_stall": {"after": "1s", "then": "fail"}}]
    shop.insert(1)
    with psycopg.connect(shop.url) as slow:
        slow.execute("INSERT INTO orders VALUES (2, 'late', 1, clock_timestamp())")
        failed = shop.one()
        assert isinstance(failed.error, SourceError)
        assert f"transaction {slow.info.backend_pid} ({slow.info.user})" in failed.error.message
        with shop.load() as project:
            (entry,) = project.books.state.read("table_run")
            assert str(slow.info.backend_pid) in str(entry.fields["held_by"])
        slow.commit()
    assert shop.one().status is Status.COMPLETED
    assert shop.target_ids() == [1, 2]


def test_a_stall_is_passed_over_shown_and_its_rows_are_brought_when_they_appear(shop: Shop) -> None:
    shop.tables = [{"name": "orders", "max_stall": {"after": "1s", "then": "skip"}}]
    shop.insert(1)
    with psycopg.connect(shop.url) as slow:
        slow.execute("INSERT INTO orders VALUES (2, 'late', 1, clock_timestamp())")
        shop.insert(3)
        assert shop.one().status is Status.COMPLETED
        assert shop.target_ids() == [1, 3]
        with shop.load() as project:
            ((table,),) = (part.tables for part in operations.status(project))
        assert f"transaction {slow.info.backend_pid}" in table.held
        assert position(shop).gap is not None
        slow.commit()
    assert shop.one().status is Status.COMPLETED
    assert shop.target_ids() == [1, 2, 3]
    assert (position(shop).gap, position(shop).stall) == (None, None)


def test_an_overlap_that_has_not_changed_is_not_applied_again(shop: Shop) -> None:
    shop.tables = [{"name": "orders", "lookback": "1h"}]
    shop.insert(1, 2)
    shop.sync()
    before = version(shop)
    assert shop.one().plan.reason is Reason.NOTHING_NEW
    assert version(shop) == before
    shop.execute("UPDATE orders SET status = 'in place' WHERE id = 1")
    assert shop.one().status is Status.COMPLETED
    assert shop.statuses() == {1: "in place", 2: "new"}
    after = version(shop)
    assert shop.one().plan.reason is Reason.NOTHING_NEW
    assert version(shop) == after


def test_a_backfill_brings_lost_rows_back_and_is_a_run_of_its_own(shop: Shop, spark: SparkSession) -> None:
    shop.insert(1, at="2026-01-01 00:00:00+00")
    shop.insert(2, at="2026-01-02 00:00:00+00")
    shop.insert(3, at="2026-01-03 00:00:00+00")
    shop.sync()
    spark.sql(f"DELETE FROM delta.`{shop.folder}/lake/orders` WHERE id < 3").collect()
    mark = position(shop).watermark
    with shop.load() as project:
        result = project.backfill("shop", "orders", start="2026-01-02", end="2026-01-03", spark=spark)
        assert result.applied.rows_inserted == 1
        entries = project.books.state.read("table_run", [result.run_id])
        assert [entry.fields["reason"] for entry in entries] == ["backfill"]
    assert shop.target_ids() == [2, 3]
    assert position(shop).watermark == mark
    shop.insert(4)
    assert shop.one().status is Status.COMPLETED
    assert shop.target_ids() == [2, 3, 4]


def test_a_clock_behind_what_was_seen_of_it_holds_the_table_and_the_overlap_is_read(shop: Shop) -> None:
    """The server's clock cannot be set here, so the state is told that it had seen a later one."""
    shop.insert(1)
    shop.sync()
    set_observed(shop, "now() + interval '1 hour'")
    shop.insert(2)
    held = shop.one()
    assert held.plan.reason is Reason.HELD
    assert "clock went back" in held.plan.note
    assert position(shop).gap is not None
    set_observed(shop, "now()")
    assert shop.one().status is Status.COMPLETED
    assert shop.target_ids() == [1, 2]
    assert position(shop).gap is None


def set_observed(shop: Shop, at: str) -> None:
    stamp = shop.database.execute(f"SELECT (({at}) AT TIME ZONE 'UTC')::text".encode()).fetchall()[0][0]
    with sqlite3.connect(shop.folder / ".strandline" / "state.db") as state:
        state.execute("UPDATE strandline_positions SET observed = ?", (stamp,))


def test_ids_that_start_again_are_noticed_and_read(shop: Shop) -> None:
    shop.execute("CREATE TABLE log (id bigserial PRIMARY KEY, note text)")
    shop.tables = [{"name": "log", "cursor": "id"}]
    shop.execute("INSERT INTO log (note) SELECT 'old' FROM generate_series(1, 5)")
    shop.sync()
    shop.execute("TRUNCATE log RESTART IDENTITY; INSERT INTO log (note) VALUES ('new')")
    assert "started again" in shop.one().plan.note
    shop.execute("INSERT INTO log (note) SELECT 'new' FROM generate_series(1, 6)")
    assert shop.one().status is Status.COMPLETED
    assert {row["id"]: row["note"] for row in shop.target("log")} == dict.fromkeys(range(1, 8), "new")

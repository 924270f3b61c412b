"""The whole hop on real PostgreSQL, Spark and Delta."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from lake_shop import Shop

from strandline.core.errors import ChangedError, ConfigError, SourceError, TargetError
from strandline.core.events import Adopted, Committed, Event, Planned
from strandline.core.position import Reason, Status
from strandline.result import error_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CHILD = Path(__file__).with_name("crash_child.py")


@pytest.fixture
def shop(pg_database: str, tmp_path: Path, spark: SparkSession) -> Iterator[Shop]:
    shop = Shop(pg_database, tmp_path, spark)
    yield shop
    shop.close()


def test_first_load_then_increment_then_nothing_new(shop: Shop) -> None:
    shop.insert(1, 2, 3)
    first = shop.one()
    assert (first.status, first.plan.reason, first.applied.rows_inserted) == (Status.COMPLETED, Reason.FIRST_LOAD, 3)
    shop.update(2, "paid")
    shop.insert(4)
    second = shop.one()
    assert (second.applied.rows_read, second.applied.rows_inserted, second.applied.rows_updated) == (2, 1, 1)
    assert shop.statuses() == {1: "new", 2: "paid", 3: "new", 4: "new"}
    third = shop.one()
    assert (third.status, third.plan.reason) == (Status.SKIPPED, Reason.NOTHING_NEW)


def test_last_value_is_the_highest_cursor_really_moved(shop: Shop) -> None:
    shop.insert(1, at="2026-01-01 00:00:00.000001+00")
    shop.insert(2, at="2026-01-02 03:04:05.678901+00")
    shop.sync()
    with shop.load() as project:
        (position,) = project.books.positions().values()
    assert str(position.last_value) == "2026-01-02 03:04:05.678901"
    assert position.watermark is not None and position.last_value is not None
    assert position.watermark > position.last_value


def test_slices_commit_one_by_one_and_hold_every_row(shop: Shop) -> None:
    shop.tables = [{"name": "orders", "slice_rows": 3}]
    shop.insert(*range(1, 11))
    shop.execute("ANALYZE orders")
    outcome = shop.one()
    assert outcome.batches >= 3
    assert shop.target_ids() == list(range(1, 11))
    assert sum(isinstance(event, Committed) for event in shop.events) == outcome.batches


def test_waiting_rows_are_counted_whatever_the_statistics_say(shop: Shop) -> None:
    shop.execute("ANALYZE orders")
    shop.execute("INSERT INTO orders SELECT i, 'new', 1, clock_timestamp() FROM generate_series(1, 777) i")
    with shop.load() as project:
        (table,) = project.plan("shop").tables
    assert table.estimated_rows == 777


def test_initial_latest_moves_only_what_is_new(shop: Shop) -> None:
    shop.tables = [{"name": "orders", "initial": "latest"}]
    shop.insert(1)
    assert shop.one().status is Status.SKIPPED
    shop.insert(2)
    shop.sync()
    assert shop.target_ids() == [2]


def test_append_snapshot_and_soft_delete(shop: Shop) -> None:
    shop.execute("CREATE TABLE log (n int, updated_at timestamptz NOT NULL)")
    shop.execute("CREATE TABLE fees (id int PRIMARY KEY, gone boolean, updated_at timestamptz NOT NULL)")
    shop.tables = [
        {"name": "log", "mode": "append"},
        {"name": "orders", "mode": "snapshot"},
        {"name": "fees", "deleted": "gone"},
    ]
    shop.insert(1, 2)
    shop.execute("INSERT INTO log SELECT i, clock_timestamp() FROM generate_series(1, 3) i")
    shop.execute("INSERT INTO fees SELECT i, false, clock_timestamp() FROM generate_series(1, 3) i")
    assert not shop.sync().failed
    shop.execute("DELETE FROM orders WHERE id = 1")
    shop.execute("INSERT INTO log VALUES (4, clock_timestamp())")
    shop.execute("UPDATE fees SET gone = true, updated_at = clock_timestamp() WHERE id = 2")
    result = shop.sync()
    assert not result.failed
    assert sorted(row["n"] for row in shop.target("log")) == [1, 2, 3, 4]
    assert shop.target_ids() == [2]
    assert [row["id"] for row in shop.target("fees")] == [1, 3]
    assert [outcome.applied.rows_deleted for outcome in result.tables if outcome.table == "fees"] == [1]


def test_views_queries_globs_filters_and_awkward_names(shop: Shop) -> None:
    shop.execute('CREATE SCHEMA "Über Fach"')
    shop.execute(
        'CREATE TABLE "Über Fach"."order" ("select" int PRIMARY KEY, "a ""b""" text, "updated_at" timestamptz NOT NULL)'
    )
    shop.execute("""INSERT INTO "Über Fach"."order" VALUES (1, 'ä', clock_timestamp())""")
    shop.execute("CREATE VIEW big AS SELECT * FROM orders WHERE amount > 2")
    shop.execute("CREATE TABLE order_a (id int PRIMARY KEY, updated_at timestamptz NOT NULL)")
    shop.execute("CREATE TABLE order_b (id int PRIMARY KEY, updated_at timestamptz NOT NULL)")
    shop.execute("INSERT INTO order_a VALUES (7, clock_timestamp())")
    shop.insert(1, 2, 3)
    shop.pipeline["exclude"] = ["order_b"]
    shop.tables = [
        {"name": "Über Fach.order", "target": "odd"},
        {"name": "big", "key": "id"},
        {
            "name": "sums",
            "query": "SELECT id, (amount * 2)::numeric(13,2) AS twice, updated_at FROM orders",
            "key": "id",
        },
        {"name": "orders", "where": "id > 1", "columns": ["id", "updated_at"]},
        "order_*",
    ]
    shop.tables[2]["cursor"] = "updated_at"
    result = shop.sync()
    assert [str(outcome.error) for outcome in result.tables if outcome.error] == []
    assert [outcome.table for outcome in result.tables] == ["Über Fach.order", "big", "sums", "orders", "order_a"]
    assert shop.target("odd")[0]['a "b"'] == "ä"
    assert [row["id"] for row in shop.target("big")] == [2, 3]
    assert [int(row["twice"]) for row in shop.target("sums")] == [3, 5, 7]
    assert [sorted(row) for row in shop.target("orders")] == [["id", "updated_at"]] * 2


def only_even(frame: DataFrame) -> DataFrame:
    return frame.where("id % 2 = 0").withColumnRenamed("status", "state")


def test_transform_runs_on_the_frame(shop: Shop) -> None:
    shop.tables = [{"name": "orders", "transform": f"{__name__}:only_even"}]
    shop.insert(1, 2, 3, 4)
    shop.sync()
    assert [(row["id"], row["state"]) for row in shop.target()] == [(2, "new"), (4, "new")]


def test_a_tables_failure_leaves_the_others_alone(shop: Shop) -> None:
    shop.tables = ["orders", "no_such_table"]
    shop.insert(1)
    result = shop.sync()
    good, bad = result.tables
    assert (good.status, bad.status, result.status) == (Status.COMPLETED, Status.FAILED, Status.FAILED)
    assert isinstance(bad.error, SourceError) and "no_such_table" in str(bad.error)
    assert shop.target_ids() == [1]


def test_table_dropped_between_plan_and_read_fails_with_its_name(shop: Shop) -> None:
    shop.insert(1)

    def drop(event: Event) -> None:
        if isinstance(event, Planned):
            shop.execute("DROP TABLE orders")

    with shop.load() as project:
        (outcome,) = project.sync("shop", spark=shop.spark, listener=drop).tables
    assert outcome.status is Status.FAILED
    assert "shop.orders" in str(outcome.error) and "exist" in str(outcome.error)


def test_second_sync_of_a_table_says_who_holds_it(shop: Shop) -> None:
    shop.insert(1)
    seen: list[str | None] = []

    def meanwhile(event: Event) -> None:
        if isinstance(event, Planned) and not seen:
            seen.append(error_text(shop.one()))

    with shop.load() as project:
        project.sync("shop", spark=shop.spark, listener=meanwhile)
    assert seen[0] is not None and f"pid {os.getpid()}" in seen[0]
    assert shop.target_ids() == [1]


def test_changed_filter_stops_with_the_choices(shop: Shop) -> None:
    shop.insert(1)
    shop.sync()
    shop.tables = [{"name": "orders", "where": "id > 0"}]
    shop.insert(2)
    error = shop.one().error
    assert isinstance(error, ChangedError)
    assert "where: (none) → id > 0" in str(error) and "sync --full" in error.remedy
    assert shop.target_ids() == [1]


def test_lost_state_with_a_living_target_stops_and_can_be_rebuilt(shop: Shop) -> None:
    from strandline import operations

    shop.insert(1, 2)
    shop.sync()
    for file in (shop.folder / ".strandline").iterdir():
        file.unlink()
    shop.insert(3)
    error = shop.one().error
    assert isinstance(error, TargetError) and "no position" in str(error)
    with shop.load() as project:
        operations.apply(project, [operations.import_from_target(project, "shop", "orders")], why="test")
    assert shop.one().applied.rows_inserted == 1
    assert shop.target_ids() == [1, 2, 3]


def test_lost_target_stops_and_full_rebuilds_it_in_one_commit(shop: Shop) -> None:
    import shutil

    shop.insert(1, 2)
    shop.sync()
    shutil.rmtree(shop.folder / "lake" / "orders")
    shop.insert(3)
    error = shop.one().error
    assert isinstance(error, TargetError) and "lost its batches" in str(error)
    assert not shop.sync(full=True).failed
    assert shop.target_ids() == [1, 2, 3]
    shop.insert(4)
    assert shop.one().applied.rows_inserted == 1


def test_full_drops_rows_that_the_source_no_longer_has(shop: Shop) -> None:
    shop.insert(1, 2)
    shop.sync()
    shop.execute("DELETE FROM orders WHERE id = 1")
    assert shop.one(full=True).plan.replace
    assert shop.target_ids() == [2]


def test_integer_cursor_that_is_null_in_every_row_is_no_empty_table(shop: Shop) -> None:
    shop.execute("CREATE TABLE log (id int PRIMARY KEY, seq bigint GENERATED BY DEFAULT AS IDENTITY)")
    shop.execute("ALTER TABLE log ALTER seq DROP IDENTITY, ALTER seq DROP NOT NULL")
    shop.execute("CREATE SEQUENCE log_seq OWNED BY log.seq")
    shop.tables = [{"name": "log", "cursor": "seq"}]
    assert shop.one().status is Status.SKIPPED
    shop.execute("INSERT INTO log VALUES (1, NULL)")
    error = shop.one().error
    assert isinstance(error, SourceError) and 'no value in the cursor column "seq"' in str(error)


def test_one_table_under_two_names_is_refused(shop: Shop) -> None:
    shop.tables = ["orders", {"name": "public.orders", "target": "other"}]
    with pytest.raises(ConfigError, match=r"one table, public\.orders"):
        shop.sync()


def test_two_tables_on_one_target_are_refused(shop: Shop) -> None:
    shop.execute("CREATE TABLE orders_b (LIKE orders INCLUDING ALL)")
    shop.tables = ["orders", {"name": "orders_b", "target": "orders"}]
    with pytest.raises(ConfigError, match="orders"):
        shop.sync()


def test_killed_at_every_event_and_resumed_the_target_equals_the_source(pg_database: str, tmp_path: Path) -> None:
    """SIGKILL of a real process at each kind of event; in a soak at every single one, until a run gets through."""
    kinds = ("Planned", "Intended", "BatchApplied", "Committed", "Intended", "TableFinished")
    points = [str(at) for at in range(1, 40)] if os.environ.get("STRANDLINE_SOAK") else kinds
    shop = Shop(pg_database, tmp_path)
    shop.tables = [{"name": "orders", "slice_rows": 4}]
    shop.pipeline["parallel"] = 1
    shop.insert(*range(1, 8))
    shop.execute("ANALYZE orders")
    seen: list[str] = []

    def run(at: str) -> int:
        child = [sys.executable, str(CHILD), str(shop.config), at]
        done = subprocess.run(child, capture_output=True, text=True, check=False)
        seen.extend(done.stdout.split())
        assert done.returncode in (0, -9), done.stderr
        return done.returncode

    for at in points:
        if run(at) == 0:
            break
        expire_leases(shop)
        shop.update(1, f"after kill {at}")
    assert run("none") == 0, "what was written after the plan that was found open"
    with shop.database.cursor() as cursor:
        rows = cursor.execute("SELECT id, status FROM orders").fetchall()
    shop.close()
    assert shop.statuses() == dict(rows)
    assert {"Planned", "Intended", "BatchApplied", "Committed", Adopted.__name__} <= set(seen)


def expire_leases(shop: Shop) -> None:
    """What a minute's wait does: the dead process's lease runs out."""
    with shop.load() as project:
        state = project.books.state
        for record in state.read("lease"):
            state.put([type(record)(record.kind, record.key, {**record.fields, "expires_at": ""}, record.revision)])

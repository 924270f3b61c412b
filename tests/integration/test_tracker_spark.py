"""A job of somebody's own on their own Spark session: Delta tables, a database, any DataFrame."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from strandline import Frame, Tracker, compat
from strandline.core.errors import SourceError
from strandline.core.events import Event, Planned
from strandline.testing.lake import Lake
from strandline.tracking.names import Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from strandline.tracking.run import TrackedRun


@pytest.fixture
def session(spark: SparkSession) -> Iterator[SparkSession]:
    """Somebody else's session: its settings are theirs."""
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    yield spark
    left = spark.conf.getAll
    assert left["spark.sql.session.timeZone"] == "Asia/Tokyo" and not any("txn" in name for name in left)
    assert spark.range(3).count() == 3, "and running"
    spark.conf.set("spark.sql.session.timeZone", "UTC")


def test_a_job_over_delta_tables_fails_is_repeated_and_its_writes_happen_once(
    tmp_path: Path, session: SparkSession
) -> None:
    """Changes with deletes, merged under a txn of SQL's, are in `test_examples`."""
    lake, target = Lake(tmp_path / "lake"), str(tmp_path / "target")
    lake.create()
    lake.insert(1, 2, 3)
    tracker = Tracker(f"delta:{tmp_path}/state", pipeline="nightly", source=f"delta:{lake.root}", key="id")

    def write(run: TrackedRun, rows: DataFrame, name: str) -> None:
        rows.write.format("delta").mode("append").options(**run.txn("orders", write=name).options).save(target)

    with pytest.raises(OSError), tracker.run("orders", spark=session) as run:
        for table in run:
            write(run, table.read(), "facts")
            raise OSError("no room for the second write")
    lake.insert(4)
    with tracker.run("orders") as run, ThreadPoolExecutor(1) as another:  # the active session, whatever the thread
        for table in run:  # the same plan, whose first write is in already
            assert str(table.window) == "[beginning, 2)" and table.whole
            write(run, another.submit(table.read).result(), "facts")
            write(run, table.read().where("id = 1").selectExpr("id + 99 AS id", "note", "price"), "more")
    assert sorted(row["id"] for row in session.read.format("delta").load(target).collect()) == [1, 2, 3, 100]
    assert [str(plan.window) for plan in tracker.plan("orders").tables] == ["[2, 3)"]
    tracker.close()


def test_without_a_source_the_tables_are_those_of_the_sessions_catalog(tmp_path: Path, session: SparkSession) -> None:
    schema = f"wos_{uuid.uuid4().hex[:8]}"
    session.sql(f"CREATE SCHEMA {schema}")
    try:
        feed = "TBLPROPERTIES (delta.enableChangeDataFeed = true)"
        session.sql(f"CREATE TABLE {schema}.orders USING delta {feed} AS SELECT 1 AS id, 'new' AS note")
        session.sql(f"CREATE TABLE {schema}.log USING delta AS SELECT 'keyless' AS note")
        session.sql(f"CREATE TABLE {schema}.plain USING parquet AS SELECT 1 AS id")
        overrides: dict[str, Settings] = {f"{schema}.log": {"key": (), "mode": "append"}}
        tracker = Tracker(f"sqlite:///{tmp_path}/state.db", pipeline="wos", key="id", overrides=overrides)

        def read() -> dict[str, list[tuple[object, ...]]]:
            with tracker.run(schemas=[schema], spark=session) as run:
                return {table.name: [tuple(row) for row in table.read().collect()] for table in run}

        assert read() == {f"{schema}.orders": [(1, "new")], f"{schema}.log": [("keyless",)]}
        session.sql(f"DELETE FROM {schema}.orders")
        assert compat.get_latest_versions(tracker, f"{schema}.orders", spark=session) == {f"{schema}.orders": 1}
        assert read() == {f"{schema}.orders": [(1, "new", "delete")]}
        with pytest.raises(SourceError, match="is not a Delta table but"):
            tracker.run(f"{schema}.plain", spark=session).__enter__()
        tracker.close()
    finally:
        session.sql(f"DROP SCHEMA {schema} CASCADE")


def test_rows_from_spark_and_the_watermark_go_into_one_transaction_of_a_database(
    pg_database: str, session: SparkSession
) -> None:
    with psycopg.connect(pg_database, autocommit=True) as database:
        database.execute("CREATE TABLE orders (id bigint PRIMARY KEY, updated_at timestamptz NOT NULL DEFAULT now())")
        database.execute("CREATE TABLE totals (orders bigint)")
        database.execute("INSERT INTO orders SELECT n, now() - interval '1 hour' FROM generate_series(1, 4) n")
    tracker = Tracker(pg_database, pipeline="totals", source=pg_database, cursor="updated_at")
    for end in ("rollback", "commit"):
        with tracker.run("orders", spark=session) as run, psycopg.connect(pg_database) as mine:
            for table in run:
                mine.execute("INSERT INTO totals VALUES (%s)", [table.read().count()])
                table.commit_in(mine, rows=4)
                getattr(mine, end)()
    with psycopg.connect(pg_database) as database:
        assert database.execute("SELECT orders FROM totals").fetchall() == [(4,)]
    assert tracker.positions()["orders"].watermark is not None
    with tracker.run("orders") as run:
        assert run.tables == ()
    tracker.close()


def test_a_column_of_any_dataframe_is_read_by_ranges_and_a_late_row_is_found(
    tmp_path: Path, session: SparkSession
) -> None:
    path, events = str(tmp_path / "events"), list[Event]()

    def write(*rows: tuple[int, str]) -> None:
        made = session.createDataFrame(list(rows), "id int, at string")
        made.selectExpr("id", "to_timestamp(at || ' UTC', 'yyyy-MM-dd HH:mm:ss VV') AS at").write.mode(
            "append"
        ).parquet(path)

    def read() -> list[int]:
        with tracker.run(spark=session) as run:
            return sorted(row["id"] for table in run for row in table.read().collect())

    source = Frame("events", lambda spark: spark.read.parquet(path), "at", lookback=timedelta(minutes=10))
    tracker = Tracker(f"sqlite:///{tmp_path}/state.db", pipeline="events", source=source, listener=events.append)
    write((1, "2026-11-15 08:00:00"), (2, "2026-11-15 08:05:00"))
    assert read() == [1, 2]
    assert read() == [], "what is read again has not changed"
    write((3, "2026-11-15 08:01:00"))  # late
    assert read() == [1, 2, 3]
    write((4, "2026-11-15 09:00:00"))
    assert read() == [4], "ten minutes below the watermark nothing has changed"
    assert read() == []
    (plan, *_) = [event.plan for event in events if isinstance(event, Planned)]
    assert plan.window is not None and plan.window.high.text == "2026-11-15 08:05:00.000001", (
        "in UTC, whatever the zone"
    )
    write((5, "2999-01-01 00:00:00"))
    write((6, "2026-11-15 09:05:00"))
    assert read() == [6]
    mark = tracker.positions()["events"].watermark
    assert str(mark) == "2026-11-15 09:05:00.000001", "a row that is stamped ahead does not take it along"
    write((7, "2026-11-15 09:04:00"))
    tracker.close()
    nulls = session.createDataFrame([(8, None)], "id int, at timestamp")
    lacking = Frame("events", lambda spark: spark.read.parquet(path).union(nulls), "at", lookback=timedelta(minutes=10))
    tracker = Tracker(f"sqlite:///{tmp_path}/state.db", pipeline="events", source=lacking)
    with pytest.raises(SourceError, match="events: 1 rows have NULL in at"):
        tracker.run(spark=session).__enter__()
    tracker.close()
    tracker = Tracker(f"sqlite:///{tmp_path}/state.db", pipeline="events", source=lacking, nulls="include")
    assert read() == [4, 6, 7, 8]
    tracker.close()
    wrong = Frame("events", lambda spark: spark.range(3).selectExpr("cast(id as string) AS at"), "at", lookback=1)
    with pytest.raises(SourceError, match='cursor column "at" is string'):
        Tracker(f"sqlite:///{tmp_path}/state.db", pipeline="wrong", source=wrong).run(spark=session).__enter__()

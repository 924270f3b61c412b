"""Delta tables copied on, by real Spark: into every kind of target, exactly once, and what stops a copy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import yaml
from deltalake import DeltaTable, QueryBuilder, write_deltalake

import strandline
from strandline.core.batch import How
from strandline.core.errors import ChangedError, ConfigError, SourceError, StrandlineError
from strandline.core.events import Adopted, BatchApplied, Event
from strandline.core.position import Status
from strandline.core.table import LOAD, Mode, Table
from strandline.core.window import Slice
from strandline.endpoint import Endpoint
from strandline.operations.status import status
from strandline.project import Project
from strandline.result import RunResult
from strandline.sources.delta import DeltaSource
from strandline.sources.delta_changes import DeltaChanges
from strandline.sources.snowflake_session import SnowflakeSession
from strandline.testing.lake import Lake, arrow, edges, rows_of, versions
from strandline.testing.shops import MariadbShop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Rows = list[tuple[int, str]]


class Copy:
    """A lake, a config that copies it, and a look into the copies."""

    def __init__(self, folder: Path, spark: SparkSession) -> None:
        self.folder = folder
        self.spark = spark
        self.lake = Lake(folder / "lake")
        self.pipeline: dict[str, Any] = {"target": "delta:copy", "defaults": {"key": "id"}}
        self.tables: list[Any] = ["orders"]
        self.events: list[Event] = []

    def project(self) -> Project:
        path = self.folder / "strandline.yml"
        pipeline = {"source": "delta:lake", "tables": self.tables, **self.pipeline}
        path.write_text(yaml.safe_dump({"pipelines": {"shop": pipeline}}))
        return strandline.load(path)

    def sync(self, listener: Callable[[Event], None] | None = None, **options: Any) -> RunResult:
        with self.project() as project:
            return project.sync("shop", spark=self.spark, listener=listener or self.events.append, **options)

    def forget_leases(self) -> None:
        with self.project() as project:
            project.books.state.delete(project.books.state.read("lease"))

    def error(self) -> Exception:
        (outcome,) = self.sync().tables
        assert outcome.error is not None
        return outcome.error

    def rows(self, table: str = "orders") -> Rows:
        found = QueryBuilder().register("t", DeltaTable(str(self.folder / "copy" / table)))
        read = found.execute("SELECT id, note FROM t").read_all()
        return sorted(zip(read["id"].to_pylist(), read["note"].to_pylist(), strict=True))

    def read(self, source: DeltaSource, table: Table, part: Slice) -> list[tuple[int, str, str]]:
        """What a slice comes to, with what is to be done."""
        changes = source.changes(table, part)
        assert changes.operation is not None
        found = changes.frame(self.spark).select("id", "note", changes.operation).collect()
        return sorted((row[0], row[1], row[2]) for row in found)


def told(changes: DeltaChanges, spark: SparkSession) -> StrandlineError:
    """What a read that fails is told as."""
    with pytest.raises(Exception, match=r".") as caught:
        changes.frame(spark).collect()
    found = changes.translate(caught.value)
    assert found is not None, caught.value
    return found


@pytest.fixture
def copy(tmp_path: Path, spark: SparkSession) -> Copy:
    copy = Copy(tmp_path, spark)
    copy.lake.create()
    return copy


def die_after_loading(event: Event) -> None:
    if isinstance(event, BatchApplied) and event.stage == LOAD:
        raise KeyboardInterrupt


def test_inserts_updates_and_deletes_reach_every_kind_of_target_once_though_each_dies_unrecorded(
    copy: Copy, pg_database: str, mariadb_database: str, snowflake_database: str
) -> None:
    copy.pipeline = {
        "defaults": {"key": "id"},
        "targets": {
            "lake": "delta:copy",
            "postgres": pg_database,
            "maria": mariadb_database,
            "snow": snowflake_database,
        },
    }
    copy.lake.insert(1, 2, 3, 4)
    assert not copy.sync().failed
    copy.lake.update(1, "paid")
    copy.lake.delete(2)
    copy.lake.insert(5)
    copy.lake.delta().update(new_values={"id": 40}, predicate="id = 4")
    copy.lake.compact()
    died: set[str] = set()

    def die(event: Event) -> None:
        copy.events.append(event)
        if isinstance(event, BatchApplied) and event.stage not in died:
            died.add(event.stage)
            raise KeyboardInterrupt

    loads = {f"load:{name}" for name in copy.pipeline["targets"]}
    while died != loads:
        with pytest.raises(KeyboardInterrupt):
            copy.sync(die)
        copy.forget_leases()
    assert not copy.sync().failed
    assert {event.stage for event in copy.events if isinstance(event, Adopted)} == loads
    with copy.project() as project:
        totals = {stage: found.totals for (_, _, stage), found in project.books.positions("shop").items()}
    counts = {stage: (told.rows_inserted, told.rows_updated, told.rows_deleted) for stage, told in totals.items()}
    assert counts == dict.fromkeys(loads, (6, 1, 2))
    expected = [(1, "paid"), (3, "new"), (5, "new"), (40, "new")]
    asked = "SELECT id, note FROM orders ORDER BY id"
    with psycopg.connect(pg_database) as postgres:
        assert postgres.execute(asked).fetchall() == expected
    maria = MariadbShop(mariadb_database)
    assert maria.execute(asked) == expected
    maria.__exit__()
    snow = SnowflakeSession(Endpoint.parse(snowflake_database))
    assert [(int(id), note) for id, note in snow.rows(asked)] == expected
    snow.close()
    assert copy.rows() == expected
    third = copy.sync()
    assert {part.status for part in third.tables} == {Status.SKIPPED}
    copy.pipeline["targets"] = {name: copy.pipeline["targets"][name] for name in ("lake", "postgres")}
    with copy.project() as project:
        verdicts = project.verify("shop", spark=copy.spark)
        (shown,) = [found for found in status(project) if found.pipeline == "shop"]
    assert [(verdict.answer.value, verdict.rows) for verdict in verdicts] == [("equal", 4), ("equal", 4)]
    lags = [table.lag_seconds for table in shown.tables]
    assert all(lag is not None and 0 <= lag < 600 for lag in lags)


def test_a_batch_that_was_applied_but_not_recorded_is_adopted(copy: Copy) -> None:
    copy.pipeline["stage"] = "stage"
    copy.lake.insert(1, 2, 3)
    with pytest.raises(KeyboardInterrupt):
        copy.sync(die_after_loading)
    copy.forget_leases()
    assert not copy.sync().failed
    assert any(isinstance(event, Adopted) for event in copy.events)
    assert copy.rows() == [(1, "new"), (2, "new"), (3, "new")]
    copy.lake.delete(1)
    copy.lake.update(2, "paid")
    assert not copy.sync().failed
    assert copy.rows() == [(2, "paid"), (3, "new")]


def test_what_differs_from_the_version_that_was_read_is_found_and_repaired(copy: Copy) -> None:
    copy.lake.insert(*range(1, 21))
    copy.sync()
    copy.spark.sql(f"UPDATE delta.`{copy.folder}/copy/orders` SET note = 'wrong' WHERE id = 7")
    copy.lake.insert(99)  # not read yet: not compared
    with copy.project() as project:
        (verdict,) = project.verify("shop", spark=copy.spark, repair=True)
    assert (verdict.answer.value, verdict.differences.different, verdict.differences.missing) == ("repaired", 1, 0)
    assert copy.rows() == [(number, "new") for number in range(1, 21)]


def test_without_the_feed_added_files_are_merged_whatever_the_layout(copy: Copy) -> None:
    spark = copy.spark
    path = copy.lake.path("events")
    spark.sql(
        f"CREATE TABLE delta.`{path}` (id BIGINT, note STRING, `the day` DATE, part STRUCT<a: INT>) USING delta "
        "PARTITIONED BY (`the day`) TBLPROPERTIES ('delta.columnMapping.mode' = 'name')"
    )
    copy.tables = ["events"]
    copy.sync()

    def add(*ids: int, note: str, day: str) -> None:
        values = ", ".join(f"({number}, '{note}', {day}, named_struct('a', {number}))" for number in ids)
        spark.sql(f"INSERT INTO delta.`{path}` VALUES {values}").collect()

    add(1, 2, note="new", day="DATE'2026-01-01'")
    add(2, 3, note="again", day="NULL")
    spark.sql(f"OPTIMIZE delta.`{path}`").collect()
    assert not copy.sync().failed
    found = spark.read.format("delta").load(str(copy.folder / "copy" / "events")).orderBy("id").collect()
    assert [(row["id"], row["note"], str(row["the day"]), row["part"]["a"]) for row in found] == [
        (1, "new", "2026-01-01", 1),
        (2, "again", "None", 2),
        (3, "again", "None", 3),
    ]
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')").collect()
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')").collect()
    add(4, note="fed", day="DATE'2026-01-02'")
    spark.sql(f"DELETE FROM delta.`{path}` WHERE id < 3").collect()
    assert not copy.sync().failed
    assert copy.rows("events") == [(3, "again"), (4, "fed")]
    spark.sql(f"ALTER TABLE delta.`{path}` RENAME COLUMN note TO remark").collect()
    assert "column note was renamed to remark" in str(copy.error())
    copy.tables = [{"name": "events", "schema": "reload"}]
    (outcome,) = copy.sync().tables
    assert (outcome.error, outcome.plan.replace) == (None, True)
    assert "new column remark" in outcome.plan.columns


def test_a_feed_that_was_on_for_a_while_is_read_for_that_while(copy: Copy) -> None:
    lake = copy.lake
    lake.insert(1, 2)
    lake.delete(1)
    copy.spark.sql(f"RESTORE TABLE delta.`{lake.path()}` TO VERSION AS OF 1").collect()
    lake.turn_feed(on=False)
    lake.insert(3, 4)
    source = lake.source()
    table = lake.table(source)
    parts = source.slices(table, versions(2, 6), 4, None)
    assert edges(parts) == [("2", "4"), ("4", "6")]
    assert [copy.read(source, table, part) for part in parts] == [
        [(1, "new", "upsert"), (2, "new", "upsert")],  # deleted and brought back, with the file that both are in
        [(3, "new", "upsert"), (4, "new", "upsert")],
    ]


def test_a_snapshot_is_the_whole_table_whatever_the_window(copy: Copy) -> None:
    copy.lake.insert(1, 2)
    copy.lake.delete(1)
    copy.lake.insert(3)
    source = copy.lake.source()
    changes = source.changes(copy.lake.table(source, mode=Mode.SNAPSHOT), Slice(versions(3, 4)))
    assert changes.how is How.REPLACE
    assert sorted(row["id"] for row in changes.frame(copy.spark).collect()) == [2, 3]


def test_a_snapshot_follows_what_no_feed_tells(copy: Copy) -> None:
    copy.tables = [{"name": "orders", "mode": "snapshot"}]
    copy.lake.turn_feed(on=False)
    copy.lake.insert(1, 2, 3)
    assert not copy.sync().failed
    copy.lake.update(1, "paid")
    copy.lake.delete(2)
    assert not copy.sync().failed
    assert copy.rows() == [(1, "paid"), (3, "new")]
    copy.lake.compact()
    (outcome,) = copy.sync().tables
    assert outcome.status is Status.SKIPPED


def test_new_columns_stop_the_table_or_are_taken_as_it_says_and_are_told(copy: Copy) -> None:
    copy.lake.insert(1)
    copy.sync()
    wide = rows_of(2).append_column("extra", arrow.array([7]))
    write_deltalake(copy.lake.path(), wide, mode="append", schema_mode="merge")
    copy.tables = [{"name": "orders", "schema": "stop"}]
    with copy.project() as project:
        (planned,) = project.plan("shop").tables
    assert planned.columns == "new column extra (bigint)"
    assert "the columns changed: new column extra (bigint)" in str(copy.error())
    assert copy.rows() == [(1, "new")]
    copy.tables = [{"name": "orders", "schema": "evolve"}]
    assert not copy.sync().failed
    found = copy.spark.read.format("delta").load(str(copy.folder / "copy" / "orders"))
    assert sorted((row["id"], row["extra"]) for row in found.collect()) == [(1, None), (2, 7)]
    with copy.project() as project:
        reasons = [str(part.fields["reason"]) for part in project.books.state.read("table_run")]
    assert [reason.endswith("; new column extra (bigint)") for reason in reasons] == [False, True, True]


def test_a_table_replaced_in_place_is_another_one_and_one_without_a_column_is_loaded_anew(copy: Copy) -> None:
    feed = "'delta.enableChangeDataFeed' = 'true'"
    vectors = f"{feed}, 'delta.enableDeletionVectors' = 'true', 'delta.columnMapping.mode' = 'name'"
    copy.tables = ["thinned", "replaced"]

    def run(table: str, *statements: str) -> None:
        for statement in statements:
            copy.spark.sql(statement.format(f"delta.`{copy.lake.path(table)}`")).collect()

    run(
        "thinned",
        f"CREATE TABLE {{}} (id BIGINT, note STRING, extra INT) USING delta TBLPROPERTIES ({vectors})",
        "INSERT INTO {} SELECT id, 'old', 1 FROM range(5)",
        "DELETE FROM {} WHERE id = 4",
    )
    made = f"USING delta TBLPROPERTIES ({feed}) AS SELECT id, '%s' AS note FROM range(%d)"
    run("replaced", f"CREATE TABLE {{}} {made % ('old', 3)}")
    assert not copy.sync().failed
    run("thinned", "DELETE FROM {} WHERE id = 3", "ALTER TABLE {} DROP COLUMN extra")
    run("replaced", f"CREATE OR REPLACE TABLE {{}} {made % ('new', 2)}")
    thinned, replaced = (part.error for part in copy.sync().tables)
    assert isinstance(thinned, SourceError) and "column extra was dropped in version 4" in thinned.message
    assert isinstance(replaced, ChangedError) and "table: " in replaced.message
    for name, error in (("thinned", thinned), ("replaced", replaced)):
        assert f"sync --full -t {name}" in error.remedy
    assert not copy.sync(full=True).failed
    assert copy.rows("thinned") == [(0, "old"), (1, "old"), (2, "old")]
    assert copy.rows("replaced") == [(0, "new"), (1, "new")]


def test_rows_that_no_longer_meet_the_condition_leave_the_copy(copy: Copy) -> None:
    copy.lake.insert(1, 2)
    copy.lake.update(1, "old")
    copy.lake.insert(3)
    source = copy.lake.source()
    table = copy.lake.table(source, where="note = 'new'")
    read = copy.read(source, table, Slice(versions(2, 4)))
    assert [(id, operation) for id, _, operation in read] == [(1, "delete"), (3, "upsert")]


def test_a_log_of_changes_is_ordered_by_a_column_of_its_own(copy: Copy) -> None:
    copy.lake.insert(9, 4, note="a")
    copy.lake.insert(8, note="a")
    copy.lake.insert(5, note="b")
    source = copy.lake.source()
    table = copy.lake.table(source, key=("note",), cursor="id")
    changes = source.changes(table, Slice(versions(1, 4)))
    assert (changes.order, changes.unique) == (("id",), False)
    assert copy.read(source, table, Slice(versions(1, 4))) == [(5, "b", "upsert"), (9, "a", "upsert")]


def test_rows_that_cannot_be_told_apart_stop_the_table_and_equal_ones_are_one(copy: Copy) -> None:
    copy.lake.insert(2, 2)
    copy.lake.insert(3, 4)
    source = copy.lake.source()
    assert copy.read(source, copy.lake.table(source), Slice(versions(1, 2))) == [(2, "new", "upsert")]
    twins = source.changes(copy.lake.table(source, key=("note",)), Slice(versions(2, 3)))
    assert "several different rows of one key (note)" in told(twins, copy.spark).message


def test_files_that_vacuum_removed_are_told_with_the_way_out(copy: Copy) -> None:
    copy.lake.insert(1)
    copy.lake.overwrite(3)
    copy.lake.overwrite(4)
    for version in range(3):
        copy.lake.stamp(version, 3600 * version)
    source = copy.lake.source()
    table = copy.lake.table(source)
    assert copy.read(source, table, Slice(versions(1, 3))) == [(1, "new", "delete"), (3, "new", "upsert")]
    copy.lake.delta().vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    error = told(source.changes(table, Slice(versions(1, 3))), copy.spark)
    assert "files of versions 1 to 2 are gone" in error.message
    assert "sync --full -t orders" in error.remedy


def test_a_table_replaced_between_plan_and_read_is_not_read(copy: Copy) -> None:
    copy.lake.insert(1)
    source = copy.lake.source()
    table = copy.lake.table(source)
    Path(copy.lake.path()).rename(copy.folder / "away")
    copy.lake.create()
    copy.lake.insert(1)
    with pytest.raises(ChangedError, match="was replaced by another table"):
        source.changes(table, Slice(versions(1, 2)))


def test_tables_of_a_catalog_are_found_by_name_and_read_through_it(copy: Copy) -> None:
    spark = copy.spark
    endpoint = Endpoint.parse("catalog:spark_catalog.shop_floor")
    spark.sql("CREATE DATABASE shop_floor").collect()
    try:
        spark.sql(
            "CREATE TABLE shop_floor.orders (id BIGINT, note STRING) USING delta "
            "TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')"
        ).collect()
        spark.sql("CREATE TABLE shop_floor.plain (id BIGINT) USING parquet").collect()
        spark.sql("INSERT INTO shop_floor.orders VALUES (1, 'a'), (2, 'b')").collect()
        source = DeltaSource(endpoint, spark=lambda: spark)
        found = source.tables(["o*", "plain", "missing"], {})
        assert isinstance(found["plain"], SourceError)
        assert isinstance(found["missing"], SourceError)
        table = copy.lake.table(source, "orders", mode=Mode.APPEND)
        frame = source.changes(table, Slice(versions(1, 2))).frame(spark)
        assert sorted(row["id"] for row in frame.collect()) == [1, 2]
        assert source.changes(table, Slice(versions(None, 2))).frame(spark).count() == 2
    finally:
        spark.sql("DROP DATABASE shop_floor CASCADE").collect()
    with pytest.raises(ConfigError, match="needs a Spark session"):
        DeltaSource(endpoint).places.place("orders")

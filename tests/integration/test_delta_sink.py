"""What the Delta sink promises beyond the contract: no JVM to look, one read, maintenance, strangers, lost logs."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from strandline.core.batch import How
from strandline.core.errors import ConfigError, SchemaError, SourceError, TargetError
from strandline.core.position import Position
from strandline.core.reconcile import Apply, reconcile
from strandline.endpoint import Endpoint
from strandline.sinks.delta import DeltaSink
from strandline.testing.sink import ORDERS, RowChanges, at, batch, orders

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def no_spark() -> SparkSession:
    raise AssertionError("Spark was asked for")


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


@pytest.fixture
def sink(lake: Path, spark: SparkSession) -> DeltaSink:
    return DeltaSink(Endpoint.parse(f"delta:{lake}"), lambda: spark)


@pytest.fixture
def looking(lake: Path) -> DeltaSink:
    """A sink that cannot start Spark."""
    return DeltaSink(Endpoint.parse(f"delta:{lake}"), no_spark)


def load(sink: DeltaSink, number: int, *rows: tuple[object, ...]) -> None:
    sink.apply(orders(), batch(number), RowChanges(rows), how=How.CHANGES)


def test_looking_and_adopting_need_no_spark(sink: DeltaSink, looking: DeltaSink) -> None:
    assert looking.applied(orders()) is None
    load(sink, 1, (1, "one", at(0)))
    receipt = looking.applied(orders())
    assert receipt is not None and receipt.batch == batch(1)
    again = looking.apply(orders(), batch(1, attempt="b"), RowChanges([]), how=How.CHANGES)
    assert again == receipt.applied


def test_a_folder_with_something_else_in_it_is_refused(looking: DeltaSink, lake: Path) -> None:
    (lake / "shop" / "orders").mkdir(parents=True)
    assert looking.applied(orders()) is None
    (lake / "shop" / "orders" / "letters.txt").write_text("mine")
    with pytest.raises(TargetError, match="not a Delta table"):
        looking.applied(orders())


def test_a_first_commit_that_was_killed_leaves_nothing_in_the_way(sink: DeltaSink, lake: Path) -> None:
    """Delta makes the folder of its log, then the files with rows, before the commit appears. They stay: a process that
    was only slow would commit files that are gone."""
    log = lake / "shop" / "orders" / "_delta_log"
    log.mkdir(parents=True)
    (log / ".00000000000000000000.json.1b2c.tmp").write_text("{}")
    left = log.parent / "part-00000-1b2c-c000.snappy.parquet"
    left.write_text("half of a file")
    assert sink.applied(orders()) is None
    sink.apply(orders(), batch(1), RowChanges([(1, "one", at(0))]), how=How.FRESH)
    receipt = sink.applied(orders())
    assert receipt is not None and receipt.batch == batch(1)
    assert left.exists() and sink._spark().read.format("delta").load(str(log.parent)).count() == 1


def test_a_first_batch_makes_its_table_in_one_commit(sink: DeltaSink, looking: DeltaSink, lake: Path) -> None:
    """No table without its rows, and Delta need not read the log of one before it writes to it."""
    sink.apply(orders(), batch(1), RowChanges([(1, "one", at(0))]), how=How.FRESH)
    table = DeltaTable(lake / "shop" / "orders")
    assert [commit["version"] for commit in table.history()] == [0]
    assert table.metadata().configuration["delta.enableDeletionVectors"] == "true"
    assert looking.applied(orders()) is not None
    with pytest.raises(TargetError, match=r"belongs to shop\.orders"):
        looking.applied(orders("items", target="shop.orders"))


def test_a_table_is_ours_still_when_its_target_is_one_of_several(sink: DeltaSink, looking: DeltaSink) -> None:
    """Its batches are then counted under another name."""
    sink.apply(orders(), batch(1), RowChanges([(1, "one", at(0))]), how=How.FRESH)
    assert looking.applied(replace(orders(), stage="load:lake")) is None


def test_what_a_source_notes_beside_a_column_does_not_come_into_the_table(sink: DeltaSink, lake: Path) -> None:
    """A length that Spark knows of a text would be the table's for ever, and longer texts be refused."""

    class Bounded(RowChanges):
        def frame(self, session: SparkSession) -> DataFrame:
            return super().frame(session).withMetadata("name", {"__CHAR_VARCHAR_TYPE_STRING": "varchar(3)"})

    sink.apply(orders(), batch(1), Bounded([(1, "one", at(0))]), how=How.FRESH)
    assert [field.metadata for field in DeltaTable(lake / "shop" / "orders").schema().fields] == [{}, {}, {}]
    load(sink, 2, (1, "longer", at(1)))


def test_two_writers_of_a_first_batch_make_the_table_once(sink: DeltaSink, lake: Path, spark: SparkSession) -> None:
    """The later one was past its look when the table came: Delta skips its commit, and the other's is taken for it."""
    other = DeltaSink(Endpoint.parse(f"delta:{lake}"), lambda: spark)

    class Overtaken(RowChanges):
        def frame(self, session: SparkSession) -> DataFrame:
            other.apply(orders(), batch(1, attempt="b"), RowChanges([(1, "one", at(0))]), how=How.FRESH)
            return super().frame(session)

    mine = Overtaken([(1, "one", at(0))])
    sink.apply(orders(), batch(1), mine, how=How.FRESH)
    assert spark.read.format("delta").load(str(lake / "shop" / "orders")).count() == 1


def test_a_delta_table_that_strandline_did_not_make_is_refused(
    looking: DeltaSink, lake: Path, spark: SparkSession
) -> None:
    spark.range(3).write.format("delta").save(str(lake / "shop" / "orders"))
    with pytest.raises(TargetError, match="somebody else") as refused:
        looking.applied(orders())
    assert "shared: true" in refused.value.remedy
    assert looking.applied(orders(shared=True)) is None


def test_a_table_inside_another_one_is_refused(sink: DeltaSink) -> None:
    sink.apply(orders(target="shop"), batch(1), RowChanges([(1, "", at(0))]), how=How.FRESH)
    with pytest.raises(TargetError, match="inside the Delta table"):
        sink.apply(orders("items"), batch(1), RowChanges([(1, "", at(0))]), how=How.FRESH)


def test_the_identity_outlives_maintenance_and_other_writers(
    sink: DeltaSink, looking: DeltaSink, lake: Path, spark: SparkSession
) -> None:
    for number in (1, 2, 3):
        load(sink, number, (number, "", at(number)))
    before = looking.applied(orders())
    path = str(lake / "shop" / "orders")
    sink.maintain(orders())
    assert looking.applied(orders()) == before
    assert DeltaTable(path).history(1)[0]["operation"] != "MERGE"
    for number in range(4):
        spark.range(number, number + 1).write.format("delta").mode("append").save(path)
    assert looking.applied(orders()) == before


def test_maintenance_carries_the_identity_over_a_log_that_was_cleaned(
    sink: DeltaSink, looking: DeltaSink, lake: Path
) -> None:
    load(sink, 1, (1, "", at(1)))
    load(sink, 2, (2, "", at(2)))
    before = looking.applied(orders())
    sink.maintain(orders())
    forget_log(lake / "shop" / "orders", keep=1)
    assert looking.applied(orders()) == before


def test_where_the_log_forgot_the_batch_its_number_is_still_proven(
    sink: DeltaSink, looking: DeltaSink, lake: Path, spark: SparkSession
) -> None:
    load(sink, 1, (1, "", at(1)))
    path = lake / "shop" / "orders"
    spark.range(9, 10).write.format("delta").mode("append").save(str(path))
    forget_log(path, keep=1)
    receipt = looking.applied(orders())
    assert receipt is not None and not receipt.exact
    assert receipt.agrees(batch(1)) and not receipt.agrees(batch(2))
    position = Position("shop", "orders", "load", batch=batch(1))
    assert reconcile(receipt, position) == Apply()
    with pytest.raises(TargetError):
        reconcile(receipt, replace(position, batch=None, intent=batch(1)))


def forget_log(path: Path, keep: int) -> None:
    """Clean the log as Delta does after its retention: a checkpoint, and only the newest commits."""
    DeltaTable(path).create_checkpoint()
    commits = sorted((path / "_delta_log").glob("*.json"))
    for commit in commits[:-keep]:
        commit.unlink()


def test_a_restored_table_says_what_it_held_then(
    sink: DeltaSink, looking: DeltaSink, lake: Path, spark: SparkSession
) -> None:
    load(sink, 1, (1, "", at(1)))
    version = DeltaTable(lake / "shop" / "orders").version()
    load(sink, 2, (2, "", at(2)))
    spark.sql(f"RESTORE TABLE delta.`{lake}/shop/orders` TO VERSION AS OF {version}")
    receipt = looking.applied(orders())
    assert receipt is not None and receipt.batch == batch(1)


def test_maintenance_keeps_what_the_change_feed_needs(sink: DeltaSink, looking: DeltaSink) -> None:
    load(sink, 1, (1, "", at(1)))
    with pytest.raises(ConfigError, match="less than the 168"):
        looking.maintain(orders(), retain_hours=24)


def test_a_lost_column_is_reported_once(sink: DeltaSink) -> None:
    load(sink, 1, (1, "one", at(1)))
    for number in (2, 3):
        changes = RowChanges([(number, at(number))], "id bigint, at timestamp")
        sink.apply(orders(), batch(number), changes, how=How.CHANGES)
    assert [name for name, _ in sink.warnings] == ["orders"]
    assert "column name" in sink.warnings[0][1]


@dataclass
class WatchedChanges(RowChanges):
    """Notes every row that is really read from the source."""

    notes: str = ""

    def frame(self, spark: SparkSession) -> DataFrame:
        from pyspark.sql.functions import udf

        notes = Path(self.notes)

        def noted(name: str) -> str:
            with notes.open("a") as file:
                file.write(f"{name}\n")
            return name

        return super().frame(spark).withColumn("name", udf(lambda name: noted(name), "string")("name"))


def test_a_merge_reads_its_source_exactly_once(sink: DeltaSink, tmp_path: Path) -> None:
    load(sink, 1, (1, "one", at(1)))
    notes = tmp_path / "notes"
    rows = [(1, "eins", at(2)), (2, "zwei", at(2)), (2, "deux", at(3))]
    changes = WatchedChanges(rows, unique=False, order=("at",), notes=str(notes))
    sink.apply(orders(), batch(2), changes, how=How.CHANGES)
    assert sorted(notes.read_text().split()) == ["deux", "eins", "zwei"]


def test_the_callers_session_is_left_as_it_was(sink: DeltaSink, spark: SparkSession) -> None:
    before, tables = dict(spark.conf.getAll), spark.sql("SHOW TABLES").collect()
    load(sink, 1, (1, "one", at(1)))
    load(sink, 2, (2, "two", at(2)))
    assert dict(spark.conf.getAll) == before
    assert spark.sql("SHOW TABLES").collect() == tables


def test_tables_run_side_by_side(sink: DeltaSink, looking: DeltaSink) -> None:
    def fill(name: str) -> list[int]:
        table = orders(name)
        for number in (1, 2):
            rows = [(number, name, at(number))]
            sink.apply(table, batch(number), RowChanges(rows), how=How.CHANGES)
        receipt = looking.applied(table)
        assert receipt is not None
        return [receipt.batch.number, receipt.applied.rows_inserted]

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(fill, ["a", "b", "c"])) == [[2, 1]] * 3


def test_what_the_source_says_about_a_failed_read_reaches_the_user(sink: DeltaSink) -> None:
    @dataclass
    class Gone(RowChanges):
        def frame(self, spark: SparkSession) -> DataFrame:
            return spark.sql("SELECT CAST(raise_error('source is gone') AS bigint) AS id, 'x' AS name, now() AS at")

    with pytest.raises(SourceError, match=r"shop\.orders: the source is gone"):
        sink.apply(orders(), batch(1), Gone([]), how=How.FRESH)


def test_a_column_without_a_type_is_refused(sink: DeltaSink) -> None:
    with pytest.raises(SchemaError, match="note"):
        sink.apply(orders(), batch(1), RowChanges([], f"{ORDERS}, note void"), how=How.FRESH)


def test_a_target_that_was_dropped_holds_nothing(sink: DeltaSink, looking: DeltaSink, lake: Path) -> None:
    load(sink, 1, (1, "one", at(1)))
    shutil.rmtree(lake / "shop")
    assert looking.applied(orders()) is None

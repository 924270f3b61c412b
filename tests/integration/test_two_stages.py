"""Two stages, two watermarks: PostgreSQL → a folder of Parquet → Delta, each hop with its own position."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from lake_shop import Shop

from strandline import operations
from strandline.core.batch import How
from strandline.core.errors import ConfigError, ConnectError, SourceError, StrandlineError, TargetError
from strandline.core.position import Position, Reason, Status
from strandline.core.run import Outcome
from strandline.sinks.delta import DeltaSink
from strandline.stage.layout import Layout
from strandline.stage.ledger import Ledger
from strandline.stage.source import StageSource
from strandline.verify.verdict import Answer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class StagedShop(Shop):
    """The shop with a stage between the database and the lake."""

    def __init__(self, url: str, folder: Path, spark: Any = None) -> None:
        super().__init__(url, folder, spark)
        self.pipeline["stage"] = "stage"

    def both(self, **options: Any) -> tuple[Outcome, Outcome]:
        extract, load = self.sync(**options).tables
        assert (extract.stage, load.stage) == ("extract", "load")
        return extract, load

    def positions(self) -> dict[str, Position]:
        with self.load() as project:
            return {key[2]: position for key, position in project.books.positions("shop", "orders").items()}

    def manifests(self) -> list[dict[str, Any]]:
        return [json.loads(path.read_bytes()) for path in sorted(self.folder.glob("stage/shop/orders/batches/*"))]

    def verify(self, **options: Any) -> Any:
        with self.load() as project:
            (verdict,) = project.verify("shop", spark=self.spark, **options)
            return verdict

    def change(self, change: str, **options: Any) -> None:
        with self.load() as project:
            operations.apply(project, [getattr(operations, change)(project, "shop", "orders", **options)], why="test")


@pytest.fixture
def shop(pg_database: str, tmp_path: Path, spark: SparkSession) -> Iterator[StagedShop]:
    shop = StagedShop(pg_database, tmp_path, spark)
    yield shop
    shop.close()


def failing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise TargetError("the warehouse is away")

    monkeypatch.setattr(DeltaSink, "apply", refuse)


def test_each_stage_has_its_own_status_rows_and_watermark(shop: StagedShop) -> None:
    shop.insert(1, 2, 3)
    extract, load = shop.both()
    assert (extract.applied.rows_inserted, load.applied.rows_inserted) == (3, 3)
    assert shop.target_ids() == [1, 2, 3]
    positions = shop.positions()
    assert str(positions["load"].watermark) == "2"
    assert positions["load"].last_value == positions["extract"].last_value
    assert positions["extract"].totals.files == 1
    shop.update(2, "paid")
    shop.insert(4)
    extract, load = shop.both()
    assert (load.applied.rows_inserted, load.applied.rows_updated) == (1, 1)
    assert shop.statuses() == {1: "new", 2: "paid", 3: "new", 4: "new"}
    assert [outcome.plan.reason for outcome in shop.both()] == [Reason.NOTHING_NEW, Reason.NOTHING_NEW]


def test_a_failed_load_is_made_up_for_without_the_source(shop: StagedShop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.insert(1, 2)
    with monkeypatch.context() as patch:
        failing(patch)
        extract, load = shop.both()
        assert (extract.status, load.status) == (Status.COMPLETED, Status.FAILED)
        positions = shop.positions()
        assert (positions["extract"].error, positions["load"].error != "") == ("", True)
    shop.execute("DROP TABLE orders")
    (load,) = shop.sync(stages=["load"]).tables
    assert (load.status, load.applied.rows_inserted) == (Status.COMPLETED, 2)
    assert shop.target_ids() == [1, 2]


def test_what_is_staged_is_loaded_while_the_source_is_away(shop: StagedShop) -> None:
    shop.insert(1, 2)
    shop.sync(stages=["extract"])
    shop.url = "postgresql://nobody@127.0.0.1:9/gone?connect_timeout=1"
    result = shop.sync()
    assert ([load.stage for load in result.tables], result.applied.rows_inserted) == (["load"], 2)
    assert (result.status, [type(error) for error in result.errors]) == (Status.FAILED, [ConnectError])
    assert shop.target_ids() == [1, 2]
    with pytest.raises(ConnectError):
        shop.sync(stages=["extract"])


def test_extract_and_load_alone(shop: StagedShop) -> None:
    shop.insert(1, 2)
    (extract,) = shop.sync(stages=["extract"]).tables
    assert (extract.stage, extract.applied.rows_inserted) == ("extract", 2)
    assert not (shop.folder / "lake").exists()
    shop.insert(3)
    shop.sync(stages=["extract"])
    (load,) = shop.sync(stages=["load"]).tables
    assert (load.stage, load.applied.rows_inserted) == ("load", 3)
    assert shop.target_ids() == [1, 2, 3]


def test_a_stage_that_does_not_exist_is_refused_by_name(shop: StagedShop) -> None:
    with pytest.raises(ConfigError, match='no stage "lode"'):
        shop.sync(stages=["lode"])
    del shop.pipeline["stage"]
    with pytest.raises(ConfigError, match='no stage "extract"'):
        shop.sync(stages=["extract"])


def test_a_load_that_is_reset_applies_every_staged_batch_again(shop: StagedShop) -> None:
    shop.insert(1, 2)
    shop.sync()
    shop.update(2, "paid")
    shop.sync()
    shop.change("reset", stage="load")
    extract, load = shop.both()
    assert extract.plan.reason is Reason.NOTHING_NEW
    assert load.applied.rows_read >= 2
    assert shop.statuses() == {1: "new", 2: "paid"}
    assert shop.positions()["load"].epoch == 2


def test_an_extract_that_is_reset_stages_everything_again_and_it_is_loaded(shop: StagedShop) -> None:
    shop.insert(1, 2)
    shop.sync()
    shop.execute("UPDATE orders SET status = 'silent' WHERE id = 1")  # the cursor does not see it
    shop.change("reset")
    extract, load = shop.both()
    assert (extract.applied.rows_read, load.applied.rows_read) == (2, 2)
    assert shop.statuses() == {1: "silent", 2: "new"}
    assert [manifest["batch"]["number"] for manifest in shop.manifests()] == [1, 2]


def test_a_full_sync_replaces_the_target_through_the_stage(shop: StagedShop) -> None:
    shop.insert(1, 2, 3)
    shop.sync()
    shop.execute("DELETE FROM orders WHERE id = 2")
    extract, load = shop.both(full=True)
    assert (extract.applied.rows_read, load.applied.rows_read) == (2, 2)
    assert shop.manifests()[-1]["how"] == How.REPLACE
    assert shop.target_ids() == [1, 3]


def test_a_snapshot_is_loaded_only_when_another_one_is_staged(shop: StagedShop) -> None:
    shop.tables = [{"name": "orders", "mode": "snapshot"}]
    shop.insert(1, 2)
    shop.sync()
    shop.execute("DELETE FROM orders WHERE id = 1")
    shop.sync(stages=["extract"])
    (load,) = shop.sync(stages=["load"]).tables
    assert (load.status, shop.target_ids()) == (Status.COMPLETED, [2])
    (load,) = shop.sync(stages=["load"]).tables
    assert load.plan.reason is Reason.NOTHING_NEW


def test_a_backfill_goes_through_the_stage_and_newer_rows_stay(shop: StagedShop) -> None:
    shop.insert(1, at="2026-01-01 00:00:00+00")
    shop.insert(2, at="2026-01-02 00:00:00+00")
    shop.sync()
    shop.execute("UPDATE orders SET status = 'silent' WHERE id = 1")
    with shop.load() as project:
        result = project.backfill("shop", "orders", start="2026-01-01", end="2026-01-02", spark=shop.spark)
    assert [outcome.stage for outcome in result.tables] == ["extract", "load"]
    assert shop.statuses() == {1: "silent", 2: "new"}


def test_verify_compares_with_the_database_as_far_as_was_loaded(shop: StagedShop) -> None:
    shop.insert(1, 2, 3)
    shop.sync()
    shop.insert(4)
    shop.sync(stages=["extract"])
    assert shop.verify().answer is Answer.EQUAL, "what is staged and not loaded yet is not missing"
    shop.execute("UPDATE orders SET status = 'silent' WHERE id = 2")
    assert shop.verify().differences.different == 1


def test_a_repair_goes_through_the_stage_and_spares_what_is_on_its_way(shop: StagedShop) -> None:
    shop.insert(1, 2, 3)
    shop.sync()
    shop.execute("DELETE FROM orders WHERE id = 3")
    shop.execute("UPDATE orders SET status = 'silent' WHERE id = 2")
    shop.insert(4)
    shop.sync(stages=["extract"])
    verdict = shop.verify(repair=True, delete=True, delete_fraction=0.9)
    assert (verdict.answer, verdict.repaired) == (Answer.REPAIRED, 3), "what was on its way came along"
    assert shop.statuses() == {1: "new", 2: "silent", 4: "new"}
    assert shop.verify().answer is Answer.EQUAL


def test_several_targets_are_loaded_each_by_its_own_position(shop: StagedShop) -> None:
    shop.pipeline["targets"] = {"near": "delta:lake", "far": "delta:far"}
    shop.insert(1, 2)
    assert [outcome.stage for outcome in shop.sync().tables] == ["extract", "load:far", "load:near"]
    shop.insert(3)
    assert [outcome.stage for outcome in shop.sync(stages=["extract", "load:far"]).tables] == ["extract", "load:far"]
    assert shop.target_ids() == [1, 2]
    assert [outcome.applied.rows_inserted for outcome in shop.sync(stages=["load"]).tables] == [0, 1]
    assert shop.target_ids() == [1, 2, 3]


def test_a_repair_that_deletes_is_one_that_every_target_takes(shop: StagedShop, pg_database: str) -> None:
    shop.execute("CREATE SCHEMA near; CREATE SCHEMA far")
    shop.pipeline["targets"] = {name: {"url": pg_database, "schema": name} for name in ("near", "far")}
    shop.insert(*range(1, 11))
    shop.sync()
    for name, extra in (("near", [90]), ("far", [90, 91, 92])):
        for number in extra:
            shop.execute(f"INSERT INTO {name}.orders SELECT {number}, status, amount, updated_at FROM orders LIMIT 1")

    def repaired(fraction: float) -> list[Answer]:
        with shop.load() as project:
            options: dict[str, Any] = {"repair": True, "delete": True, "delete_fraction": fraction}
            return [verdict.answer for verdict in project.verify("shop", spark=shop.spark, **options)]

    assert repaired(0.2) == [Answer.FAILED, Answer.FAILED], "far would lose 3 of 13 rows, and near's batch is far's too"
    assert len(shop.manifests()) == 1
    assert repaired(0.25) == [Answer.REPAIRED, Answer.REPAIRED]
    shop.sync(stages=["load"])
    for name in ("near", "far"):
        assert shop.database.execute(f"SELECT count(*) FROM {name}.orders".encode()).fetchone() == (10,)


@pytest.mark.parametrize("stage", ["extract", "load"])
def test_a_run_that_fails_is_told_with_its_stage(shop: StagedShop, stage: str) -> None:
    shop.insert(1)
    shop.sync()
    shop.insert(2)
    broken = shop.folder / ("stage/shop/orders/batches" if stage == "extract" else "lake/orders/_delta_log")
    for path in broken.glob("*.json"):
        path.write_text("not what it was")
    outcomes = {outcome.stage: outcome for outcome in shop.sync().tables}
    assert isinstance(outcomes[stage].error, StrandlineError)
    assert outcomes[stage].status is Status.FAILED


def test_a_load_whose_batches_were_cleaned_away_is_not_reset(shop: StagedShop) -> None:
    shop.insert(1)
    shop.sync()
    with shop.load() as project, project.opened("shop", "load") as opened:
        assert isinstance(opened.source, StageSource)
        Ledger(opened.source.objects, Layout("shop", "orders")).raise_floor(2)
    with pytest.raises(SourceError, match="cleaned away") as caught:
        shop.change("reset", stage="load")
    assert "watermark reset -p shop -t orders" in caught.value.remedy


def test_types_and_comments_of_the_source_come_through_the_stage(shop: StagedShop, pg_database: str) -> None:
    shop.execute("CREATE SCHEMA copied")
    shop.execute("ALTER TABLE orders ADD tags varchar(30), ADD details jsonb")
    shop.execute("COMMENT ON TABLE orders IS 'what was sold'")
    shop.execute("INSERT INTO orders VALUES (1, 'new', 1.50, now(), 'a', '{}')")
    shop.pipeline["target"] = {"url": pg_database, "schema": "copied"}
    shop.sync()
    found = shop.database.execute(
        "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute "
        "WHERE attrelid = 'copied.orders'::regclass AND attnum > 0 ORDER BY attnum"
    ).fetchall()
    types: dict[str, str] = dict(found)
    assert (types["tags"], types["details"]) == ("character varying(30)", "jsonb")
    (comment,) = shop.database.execute("SELECT obj_description('copied.orders'::regclass)").fetchall()
    assert comment == ("what was sold",)

"""A batch none of whose rows is older than the target's replaces them in one pass; anything else goes through MERGE.
Either way the rows and the counts are the same."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from strandline.core.batch import Applied, How
from strandline.core.table import Table
from strandline.core.watermark import Cursor, Kind
from strandline.endpoint import Endpoint
from strandline.sinks import delta_write
from strandline.sinks.delta import DeltaSink
from strandline.testing.sink import ORDERS, RowChanges, at, batch, orders

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Rows = list[tuple[Any, ...]]


class Lake:
    def __init__(self, folder: Path, spark: SparkSession) -> None:
        self.path = folder / "shop" / "orders"
        self.sink = DeltaSink(Endpoint.parse(f"delta:{folder}"), lambda: spark)
        self.spark = spark
        self.number = 0

    def apply(self, changes: RowChanges, table: Table | None = None, how: How = How.CHANGES) -> Applied:
        self.number += 1
        return self.sink.apply(table or orders(), batch(self.number), changes, how=how)

    def way(self) -> str:
        """How the last commit was made."""
        (commit,) = DeltaTable(self.path).history(1)
        return "replaced" if "replaceOnCond" in commit["operationParameters"] else str(commit["operation"])

    def rows(self, *columns: str) -> Rows:
        frame = self.spark.read.format("delta").load(str(self.path)).select(*columns or ("id", "name"))
        return sorted(tuple(row) for row in frame.collect())


@pytest.fixture
def lake(tmp_path: Path, spark: SparkSession) -> Lake:
    lake = Lake(tmp_path / "lake", spark)
    lake.apply(RowChanges([(1, "one", at(1)), (2, "two", at(1)), (3, "three", at(1))]), how=How.FRESH)
    return lake


def test_rows_replace_older_ones_in_one_commit_that_counts_them(lake: Lake) -> None:
    before = DeltaTable(lake.path).version()
    applied = lake.apply(RowChanges([(2, "zwei", at(2)), (4, "vier", at(3))]))
    assert lake.way() == "replaced"
    assert DeltaTable(lake.path).version() == before + 1
    assert (applied.rows_read, applied.rows_inserted, applied.rows_updated) == (2, 1, 1)
    assert lake.rows() == [(1, "one"), (2, "zwei"), (3, "three"), (4, "vier")]


def test_a_row_as_old_as_the_target_s_is_refreshed(lake: Lake) -> None:
    lake.apply(RowChanges([(1, "eins", at(1)), (9, "neun", at(2))]))
    assert lake.rows() == [(1, "eins"), (2, "two"), (3, "three"), (9, "neun")]


@pytest.mark.parametrize(
    ("changes", "settings", "left"),
    [
        (RowChanges([(1, "old", at(0)), (4, "vier", at(2))]), {}, [(1, "one"), (2, "two"), (3, "three"), (4, "vier")]),
        (
            RowChanges([(1, "", at(2), "delete"), (4, "vier", at(2), "")], f"{ORDERS}, op string", "op"),
            {},
            [(2, "two"), (3, "three"), (4, "vier")],
        ),
        (RowChanges([(1, "eins", None)]), {"nulls": "include"}, [(1, "eins"), (2, "two"), (3, "three")]),
        (RowChanges([(1, "eins", at(2))]), {"shared": True}, [(1, "eins"), (2, "two"), (3, "three")]),
    ],
    ids=["older", "deletes", "no cursor value", "shared"],
)
def test_these_are_merged(lake: Lake, changes: RowChanges, settings: dict[str, Any], left: Rows) -> None:
    lake.apply(changes, orders(**settings))
    assert lake.way() == "MERGE"
    assert lake.rows() == left


def test_what_files_tell_of_a_time_is_cut_to_milliseconds(lake: Lake) -> None:
    """The target's rows are stamped .120003, their files say .120."""
    lake.apply(RowChanges([(1, "old", at(1).replace(microsecond=120001))]))
    assert lake.way() == "MERGE"
    assert lake.rows() == [(1, "one"), (2, "two"), (3, "three")]


def test_files_without_statistics_may_hold_anything(lake: Lake) -> None:
    lake.spark.sql(f"ALTER TABLE delta.`{lake.path}` SET TBLPROPERTIES ('delta.dataSkippingNumIndexedCols' = '0')")
    for name, minute in (("vier", 9), ("old", 8)):
        lake.apply(RowChanges([(4, name, at(minute))]))
        assert lake.way() == "MERGE"
        assert lake.rows()[-1] == (4, "vier")


@pytest.mark.parametrize(("kind", "older", "newer"), [("date", "2026-01-01", "2026-01-02"), ("integer", "6", "10")])
def test_dates_and_whole_numbers(tmp_path: Path, spark: SparkSession, kind: str, older: str, newer: str) -> None:
    def rows(text: str, cursor: str) -> RowChanges:
        value = date.fromisoformat(cursor) if kind == "date" else int(cursor)
        return RowChanges([(1, text, value)], f"id bigint, name string, at {'date' if kind == 'date' else 'int'}")

    lake, table = Lake(tmp_path / "lake", spark), orders(cursor=Cursor("at", Kind(kind)))
    lake.apply(rows("one", older), table, How.FRESH)
    lake.apply(rows("two", newer), table)
    assert (lake.way(), lake.rows()) == ("replaced", [(1, "two")])
    lake.apply(rows("old", older), table)
    assert (lake.way(), lake.rows()) == ("MERGE", [(1, "two")])


def test_changes_without_a_delete_among_them_replace(lake: Lake) -> None:
    lake.apply(RowChanges([(1, "eins", at(2), "upsert")], f"{ORDERS}, op string", "op"))
    assert lake.way() == "replaced"
    assert lake.rows() == [(1, "eins"), (2, "two"), (3, "three")]


def test_a_column_that_the_source_lost_keeps_its_values(lake: Lake) -> None:
    lake.apply(RowChanges([(1, at(2))], "id bigint, at timestamp"))
    assert lake.way() == "MERGE"
    assert lake.rows() == [(1, "one"), (2, "two"), (3, "three")]


def test_readers_of_the_change_feed_see_updates(lake: Lake) -> None:
    lake.spark.sql(f"ALTER TABLE delta.`{lake.path}` SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')")
    lake.apply(RowChanges([(1, "eins", at(2))]))
    assert lake.way() == "MERGE"
    version = DeltaTable(lake.path).version()
    feed = lake.spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", version)
    told = sorted(row["_change_type"] for row in feed.load(str(lake.path)).collect())
    assert told == ["update_postimage", "update_preimage"]


def test_a_delta_that_does_not_know_how_is_not_asked_to(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would take no notice of the condition and overwrite the table."""
    monkeypatch.setattr(delta_write, "_REPLACE", "spark.databricks.delta.replaceOn.of.tomorrow")
    lake.apply(RowChanges([(1, "eins", at(2))]))
    assert lake.way() == "MERGE"
    assert lake.rows() == [(1, "eins"), (2, "two"), (3, "three")]


def _named(changes: RowChanges) -> RowChanges:
    return replace(changes, schema="`t.id` bigint, `a``b` string, name string, at timestamp")


def test_keys_of_several_columns_and_odd_names(tmp_path: Path, spark: SparkSession) -> None:
    lake, table = Lake(tmp_path / "lake", spark), orders(key=("t.id", "a`b"))
    lake.apply(_named(RowChanges([(1, "x", "one", at(1)), (1, "y", "two", at(1))])), table, How.FRESH)
    applied = lake.apply(_named(RowChanges([(1, "y", "zwei", at(2)), (2, "y", "drei", at(2))])), table)
    assert lake.way() == "replaced"
    assert (applied.rows_inserted, applied.rows_updated) == (1, 1)
    assert lake.rows("`t.id`", "`a``b`", "name") == [(1, "x", "one"), (1, "y", "zwei"), (2, "y", "drei")]


def test_columns_named_like_the_sides_of_a_merge(tmp_path: Path, spark: SparkSession) -> None:
    lake, schema = Lake(tmp_path / "lake", spark), "id bigint, s string, t string, at timestamp"
    lake.apply(RowChanges([(1, "a", "b", at(1))], schema), how=How.FRESH)
    lake.apply(RowChanges([(1, "c", "d", at(2)), (2, "e", "f", at(2))], schema))
    assert (lake.way(), lake.rows("id", "s", "t")) == ("replaced", [(1, "c", "d"), (2, "e", "f")])

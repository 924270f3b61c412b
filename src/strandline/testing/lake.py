"""A lake of small Delta tables, written by delta-rs: what a source with versions must keep, as a pytest suite.

Every table has `id`, `note` and `price`. Writing needs no Spark; only tests that read rows take the fixture `spark`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable, write_deltalake

from strandline.core.errors import SourceError, StrandlineError
from strandline.core.position import Horizon
from strandline.core.protocols import Source
from strandline.core.table import Mode, Table, TableInfo
from strandline.core.watermark import Cursor, Kind, Watermark
from strandline.core.window import Slice, Window
from strandline.endpoint import Endpoint
from strandline.sources.delta import DeltaSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

arrow: Any = import_module("pyarrow")  # it has no types to name
FEED = {"delta.enableChangeDataFeed": "true"}
SCHEMA = arrow.schema([("id", arrow.int64()), ("note", arrow.string()), ("price", arrow.float64())])


def versions(low: int | None, high: int) -> Window:
    return Window(None if low is None else Watermark(Kind.VERSION, str(low)), Watermark(Kind.VERSION, str(high)))


def rows_of(*ids: int, note: str = "new") -> Any:
    columns = [list(ids), [note] * len(ids), [number / 2 for number in ids]]
    return arrow.table(columns, schema=SCHEMA)


class Lake:
    """Tables under one folder. What is said of `orders` may be said of another table by its name."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, table: str = "orders") -> str:
        return str(self.root.joinpath(*table.split(".")))

    def delta(self, table: str = "orders") -> DeltaTable:
        return DeltaTable(self.path(table))

    def create(self, table: str = "orders", *, feed: bool = True, **options: Any) -> None:
        """An empty table: version 0."""
        properties = {**(FEED if feed else {}), **options.pop("configuration", {})}
        DeltaTable.create(self.path(table), SCHEMA, configuration=properties, **options)

    def insert(self, *ids: int, note: str = "new", table: str = "orders") -> None:
        write_deltalake(self.path(table), rows_of(*ids, note=note), mode="append")

    def overwrite(self, *ids: int, table: str = "orders") -> None:
        write_deltalake(self.path(table), rows_of(*ids), mode="overwrite")

    def update(self, number: int, note: str, table: str = "orders") -> None:
        self.delta(table).update(new_values={"note": note}, predicate=f"id = {number}")

    def delete(self, number: int, table: str = "orders") -> None:
        self.delta(table).delete(f"id = {number}")

    def compact(self, table: str = "orders") -> None:
        self.delta(table).optimize.compact()

    def turn_feed(self, on: bool, table: str = "orders") -> None:
        self.delta(table).alter.set_table_properties({"delta.enableChangeDataFeed": str(on).lower()})

    def commit_file(self, version: int, table: str = "orders") -> Path:
        return Path(self.path(table)) / "_delta_log" / f"{version:020}.json"

    def stamp(self, version: int, seconds: int, table: str = "orders") -> None:
        """Make a version one that was committed at this second of 1970."""
        os.utime(self.commit_file(version, table), (seconds, seconds))

    def forget(self, below: int, table: str = "orders") -> None:
        """As Delta cleans its log: a checkpoint stays, commits below it go."""
        self.delta(table).create_checkpoint()
        for version in range(below):
            self.commit_file(version, table).unlink()

    def source(self, **options: Any) -> DeltaSource:
        return DeltaSource(Endpoint.parse(f"delta:{self.root}"), **options)

    def table(self, source: Source, name: str = "orders", **wanted: Any) -> Table:
        """The table as `resolve` settles it; `cursor` is a column's name."""
        info = source.tables([name], {})[name]
        if isinstance(info, StrandlineError):
            raise info
        cursor = wanted.pop("cursor", None)
        typed = None if cursor is None else Cursor(cursor, Kind.TIMESTAMP)
        asked = {"mode": Mode.MERGE, "source": name, "target": name, "stage": "sync", "key": ("id",), **wanted}
        return source.resolve(Table(pipeline="shop", name=name, cursor=typed, **asked), info, None)


def waiting(source: Source, table: Table, asked: Window) -> int | None:
    found = source.pending({table.name: (table, asked)})[table.name]
    if isinstance(found, StrandlineError):
        raise found
    return found


def horizon(source: Source, table: Table) -> Horizon:
    found = source.horizons([table])[table.name]
    if isinstance(found, StrandlineError):
        raise found
    return found


def refusal(answer: object) -> SourceError:
    assert isinstance(answer, SourceError), answer
    return answer


def edges(parts: Sequence[Slice]) -> list[tuple[str, str]]:
    return [(str(part.window.low), str(part.window.high)) for part in parts]


class VersionContract:
    """What a source keeps whose windows are versions."""

    @pytest.fixture
    def lake(self) -> Lake:
        """To override: a lake with an empty table `orders`, its change feed on."""
        raise NotImplementedError

    # --- What is there

    def test_names_are_folders_and_globs_match_those_that_are_tables(self, lake: Lake) -> None:
        lake.create("order_lines")
        lake.create("customers")
        lake.create("sales.orders")
        (lake.root / "order_exports").mkdir()
        found = lake.source().tables(["order*", "sales.*", "nothing_*", "customers"], {})
        assert sorted(found) == ["customers", "order_lines", "orders", "sales.orders"]
        orders = found["orders"]
        assert isinstance(orders, TableInfo)
        assert [(column.name, column.type) for column in orders.columns] == [
            ("id", "bigint"),
            ("note", "string"),
            ("price", "double"),
        ]

    def test_what_is_no_table_is_told_with_the_nearest_names_and_the_others_are_found(self, lake: Lake) -> None:
        (lake.root / "exports").mkdir()
        (lake.root / "exports" / "a.csv").write_text("1")
        found = lake.source().tables(["ordesr", "exports", "../orders", "orders"], {"recent": "SELECT 1"})
        assert "orders" in refusal(found["ordesr"]).remedy
        assert "is not a Delta table" in refusal(found["exports"]).message
        assert "not a table name" in refusal(found["../orders"]).message
        assert "not queries" in refusal(found["recent"]).message
        assert isinstance(found["orders"], TableInfo)

    def test_the_same_lake_has_the_same_identity_whoever_asks(self, lake: Lake) -> None:
        again = DeltaSource(Endpoint.parse(f"delta:{lake.root}/../{lake.root.name}/").resolved(lake.root))
        assert lake.source().identity() == again.identity() != ""

    @pytest.mark.parametrize(
        ("wanted", "said"),
        [
            ({"cursor": "att"}, "cursor column"),
            ({"cursor": "note"}, "cannot order changes"),
            ({"key": ("idd",)}, "key column"),
            ({"key": ()}, "no key"),
            ({"select": ("id", "att")}, "column"),
            ({"select": ("note",)}, "not among columns"),
            ({"deleted": "gone"}, "soft-delete column"),
            ({"lookback": 3}, "lookback"),
        ],
    )
    def test_what_the_table_does_not_have_is_refused_by_name(
        self, lake: Lake, wanted: dict[str, Any], said: str
    ) -> None:
        with pytest.raises(SourceError, match=said) as caught:
            lake.table(lake.source(), **wanted)
        assert caught.value.where == "shop.orders"
        assert caught.value.remedy

    def test_append_and_snapshot_need_no_key(self, lake: Lake) -> None:
        for mode in (Mode.APPEND, Mode.SNAPSHOT):
            assert lake.table(lake.source(), key=(), mode=mode).key == ()

    # --- How far, and how much

    def test_the_horizon_is_one_above_the_last_version_and_tells_when_that_was_committed(self, lake: Lake) -> None:
        source = lake.source()
        table = lake.table(source)
        assert horizon(source, table).high == Watermark(Kind.VERSION, "1")
        lake.insert(1)
        lake.stamp(1, 3600)
        found = horizon(source, table)
        assert (str(found.high), found.observed, found.proven) == ("2", "1970-01-01 01:00:00.000", True)

    def test_columns_and_horizon_are_those_of_one_version(self, lake: Lake) -> None:
        source = lake.source()
        table = lake.table(source)
        wide = rows_of(1).append_column("extra", arrow.array([1]))
        write_deltalake(lake.path(), wide, mode="append", schema_mode="merge")
        assert (len(table.columns), str(horizon(source, table).high)) == (3, "1")
        assert (len(lake.table(source).columns), str(horizon(source, table).high)) == (4, "2")

    def test_what_is_waiting_is_counted_from_the_log_and_nothing_is_where_rows_only_moved(self, lake: Lake) -> None:
        source = lake.source()
        lake.insert(1, 2, 3)
        lake.insert(4)
        lake.compact()
        lake.delete(2)
        table = lake.table(source)
        assert waiting(source, table, versions(None, 5)) == 3
        assert waiting(source, table, versions(1, 3)) == 4
        assert waiting(source, table, versions(3, 4)) == 0
        assert waiting(source, table, versions(4, 5)) == 1

    def test_one_table_that_is_gone_does_not_disturb_the_others(self, lake: Lake) -> None:
        lake.create("doomed")
        source = lake.source()
        tables = [lake.table(source), lake.table(source, "doomed")]
        Path(lake.path("doomed")).rename(lake.path("elsewhere"))
        lake.insert(1)
        found = {**source.horizons(tables), **source.horizons(tables)}
        refusal(found["doomed"])
        assert isinstance(found["orders"], Horizon)

    def test_a_fingerprint_tells_one_window_of_one_table(self, lake: Lake) -> None:
        source = lake.source()
        table = lake.table(source)
        asked = {"one": (table, versions(0, 1)), "same": (table, versions(0, 1)), "other": (table, versions(0, 2))}
        found = source.fingerprints(asked)
        assert found["one"] == found["same"] != found["other"]

    # --- Slices

    def test_windows_are_cut_between_versions_and_tile(self, lake: Lake) -> None:
        for start in range(0, 20, 2):
            lake.insert(start, start + 1)
        source = lake.source()
        table = replace(lake.table(source), slice_rows=6)
        parts = source.slices(table, versions(1, 11), 20, None)
        assert edges(parts) == [("1", "4"), ("4", "7"), ("7", "10"), ("10", "11")]
        assert edges(source.slices(replace(table, slice_rows=1), versions(9, 11), 4, None)) == [
            ("9", "10"),
            ("10", "11"),
        ]
        assert len(source.slices(table, versions(None, 11), 20, None)) == 1

    def test_a_limit_takes_whole_versions(self, lake: Lake) -> None:
        for start in range(0, 6, 2):
            lake.insert(start, start + 1)
        source = lake.source()
        table = lake.table(source)
        assert edges(source.slices(table, versions(1, 4), 6, 3)) == [("1", "3")]
        assert edges(source.slices(table, versions(1, 4), 6, 99)) == [("1", "4")]

    # --- Reading

    def test_a_window_comes_to_the_last_change_of_each_key(self, lake: Lake, spark: SparkSession) -> None:
        lake.insert(1, 2, 3, 4)
        lake.update(1, "paid")
        lake.delete(2)
        lake.delete(3)
        lake.insert(3, note="back")
        lake.delta().update(new_values={"id": 40}, predicate="id = 4")
        source = lake.source()
        changes = source.changes(lake.table(source), Slice(versions(2, 7)))
        assert changes.unique
        assert changes.operation is not None
        found = {row["id"]: (row["note"], row[changes.operation]) for row in changes.frame(spark).collect()}
        assert found == {
            1: ("paid", "upsert"),
            2: ("new", "delete"),
            3: ("back", "upsert"),
            4: ("new", "delete"),  # its key was updated
            40: ("new", "upsert"),
        }

    def test_a_first_load_reads_one_version_and_knows_if_keys_repeat(self, lake: Lake, spark: SparkSession) -> None:
        lake.insert(1, 2)
        lake.delete(1)
        lake.insert(3)
        source = lake.source()
        table = lake.table(source, select=("note", "id"), where="id <> 3 -- or")
        changes = source.changes(table, Slice(versions(None, 4)))
        assert [tuple(row) for row in changes.frame(spark).collect()] == [("new", 2)]
        assert changes.unique
        lake.insert(2)
        twice = source.changes(table, Slice(versions(None, 5)))
        assert twice.frame(spark).count() == 2
        assert not twice.unique

    def test_a_table_dropped_between_plan_and_read_is_named(self, lake: Lake, spark: SparkSession) -> None:
        lake.insert(1)
        source = lake.source()
        table = lake.table(source)
        changes = source.changes(table, Slice(versions(1, 2)))
        Path(lake.path()).rename(lake.path("elsewhere"))
        with pytest.raises(Exception, match=r"(?i)orders") as caught:
            changes.frame(spark).collect()
        assert refusal(changes.translate(caught.value)).where == "shop.orders"
        assert changes.translate(ValueError("something else")) is None
        with pytest.raises(SourceError, match="is not there"):
            source.changes(table, Slice(versions(1, 2)))

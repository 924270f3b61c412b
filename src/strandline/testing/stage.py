"""What a stage must keep, wherever it lies, as a pytest suite: subclass StageContract and say where.

class TestMyStage(StageContract):
    @pytest.fixture
    def endpoint(self, tmp_path):
        return Endpoint.parse(str(tmp_path / "stage"))

The parts of SinkContract about identity, fences and zombies hold here too; those about merging do not, since a stage
keeps every version of a row.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from strandline.core.batch import Applied, Batch, How
from strandline.core.errors import BatchConflictError, SourceError, StrandlineError, TransientError
from strandline.core.table import Column, Mode, Table
from strandline.core.watermark import Kind, Watermark
from strandline.core.window import KeyRange, Repair, Slice, Window
from strandline.endpoint import Endpoint
from strandline.stage.clean import Cleaning, orphans
from strandline.stage.layout import Layout
from strandline.stage.manifest import Manifest
from strandline.stage.sink import StageSink
from strandline.stage.source import NOTHING, StageSource
from strandline.testing.sink import ORDERS, InterruptedChanges, Row, RowChanges, at, batch, ids, names, orders

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Connect = Callable[[], StageSink]
Load = Callable[..., list[Row]]


def versions(low: int | None, high: int) -> Window:
    return Window(None if low is None else Watermark(Kind.VERSION, str(low)), Watermark(Kind.VERSION, str(high)))


class Rows(RowChanges):
    """In one piece, so that they are written once."""

    def frame(self, spark: SparkSession) -> DataFrame:
        return super().frame(spark).coalesce(1)


class StageContract:
    @pytest.fixture
    def endpoint(self) -> Endpoint:
        """To override: a stage that is empty at first."""
        raise NotImplementedError

    @pytest.fixture
    def connect(self, endpoint: Endpoint, spark: SparkSession) -> Connect:
        return lambda: StageSink(endpoint, lambda: spark)

    @pytest.fixture
    def sink(self, connect: Connect) -> StageSink:
        return connect()

    @pytest.fixture
    def source(self, endpoint: Endpoint) -> StageSource:
        return StageSource(endpoint, "shop")

    @pytest.fixture
    def load(self, source: StageSource, spark: SparkSession) -> Load:
        """The rows of a table's batches, all of them or a window, as one sink after the other would get them."""

        def load(table: Table, low: int | None = None, high: int | None = None) -> list[Row]:
            horizon = source.horizons([table])[table.name]
            assert not isinstance(horizon, StrandlineError)
            assert horizon.high is not None
            window = versions(low, high or int(horizon.high.text))
            rows: list[Row] = []
            for part in source.slices(table, window, None, None):
                found = source.changes(table, part).frame(spark.newSession()).collect()
                rows += [row.asDict() for row in found]
            return rows

        return load

    def test_nothing_is_there_where_nothing_was_staged(self, sink: StageSink, source: StageSource) -> None:
        assert sink.applied(orders()) is None
        (found,) = source.tables(["orders"], {}).values()
        assert not isinstance(found, StrandlineError)
        assert found.columns == ()
        horizon = source.horizons([source.resolve(orders(), found, None)])["orders"]
        assert not isinstance(horizon, StrandlineError)
        assert (horizon.high, horizon.note) == (None, NOTHING)

    def test_a_staged_batch_is_told_to_whoever_asks_later_and_read_as_it_was(
        self, sink: StageSink, connect: Connect, load: Load
    ) -> None:
        changes = Rows([(1, "one", at(0)), (2, "two", at(0))])
        applied = sink.apply(orders(), batch(1), changes, how=How.FRESH)
        assert applied == Applied(2, 2, 0, 0, Watermark(Kind.TIMESTAMP, f"{at(0)}"), files=1)
        receipt = connect().applied(orders())
        assert receipt is not None
        assert (receipt.batch, receipt.applied, receipt.epoch) == (batch(1), applied, 1)
        assert names(load(orders())) == {1: "one", 2: "two"}

    def test_every_type_comes_back_exactly(self, sink: StageSink, load: Load) -> None:
        schema = (
            "id bigint, at timestamp, wall timestamp_ntz, day date, price decimal(38,10), small tinyint, x double, "
            "bits binary, yes boolean, many array<struct<a:int,b:string>>, `a b``c` string, op string"
        )
        row = (
            1,
            datetime(1500, 2, 28, 23, 59, 59, 999999, tzinfo=UTC),
            datetime(2026, 3, 29, 2, 30, 0, 1),
            date(1, 1, 1),
            Decimal("1234567890123456789012345678.0123456789"),
            -128,
            float("inf"),
            b"\x00\xff",
            True,
            [(1, "ä"), (None, None)],
            "x",
            "delete",
        )
        sink.apply(orders(), batch(1), Rows([row, (2, *[None] * 11)], schema, "op"), how=How.FRESH)
        first, second = sorted(load(orders()), key=lambda found: int(found["id"]))
        assert first["at"].astimezone(UTC) == row[1]
        assert (first["wall"], first["day"], first["price"], first["small"]) == row[2:6]
        assert (first["x"], bytes(first["bits"]), first["yes"], first["a b`c"], first["op"]) == (
            *row[6:7],
            b"\x00\xff",
            True,
            "x",
            "delete",
        )
        assert [tuple(each) for each in first["many"]] == row[9]
        assert set(second.values()) == {2, None}

    def test_the_same_batch_again_changes_nothing_and_counts_the_same(self, sink: StageSink, load: Load) -> None:
        applied = sink.apply(orders(), batch(1), Rows([(1, "one", at(0))]), how=How.FRESH)
        again = sink.apply(orders(), batch(1, attempt="b"), Rows([(9, "WRONG", at(0))] * 3), how=How.FRESH)
        assert again == applied
        assert ids(load(orders())) == [1]

    def test_two_writers_of_one_batch_leave_one_and_the_other_adopts_it(
        self, sink: StageSink, connect: Connect, load: Load
    ) -> None:
        other = connect()

        def overtake() -> None:
            other.apply(orders(), batch(1, attempt="b"), Rows([(1, "one", at(0))]), how=How.FRESH)

        slow = InterruptedChanges([(1, "one", at(0)), (2, "two", at(0))], meanwhile=overtake)
        assert sink.apply(orders(), batch(1), slow, how=How.FRESH).rows_read == 1
        assert ids(load(orders())) == [1]
        data = [entry.key for entry in sink.objects.list("shop/orders/data") if entry.key.endswith(".parquet")]
        assert len(data) == 1

    def test_two_writers_of_different_batches_under_one_number_are_a_conflict(
        self, sink: StageSink, connect: Connect, load: Load
    ) -> None:
        other = connect()

        def overtake() -> None:
            other.apply(orders(), batch(1, store="another"), Rows([(1, "one", at(0))]), how=How.FRESH)

        slow = InterruptedChanges([(2, "two", at(0))], meanwhile=overtake)
        with pytest.raises(BatchConflictError):
            sink.apply(orders(), batch(1), slow, how=How.FRESH)
        assert ids(load(orders())) == [1]

    @pytest.mark.parametrize("other", [batch(1), batch(2, high=9), batch(2, store="another")])
    def test_an_older_or_another_batch_is_refused(self, sink: StageSink, load: Load, other: Batch) -> None:
        for number in (1, 2):
            sink.apply(orders(), batch(number), Rows([(number, "", at(number))]), how=How.CHANGES)
        with pytest.raises(BatchConflictError):
            sink.apply(orders(), other, Rows([(7, "", at(9))]), how=How.CHANGES)
        assert ids(load(orders())) == [1, 2]

    def test_a_zombie_that_wakes_up_past_its_checks_stages_nothing(
        self, sink: StageSink, connect: Connect, load: Load
    ) -> None:
        zombie = connect()
        sink.apply(orders(), batch(1), Rows([(1, "one", at(0))]), how=How.FRESH)

        def take_over() -> None:
            sink.apply(orders(), batch(2, epoch=2), Rows([(2, "two", at(1))]), how=How.CHANGES)

        asleep = InterruptedChanges([(3, "ZOMBIE", at(9))], meanwhile=take_over)
        with pytest.raises((BatchConflictError, TransientError)):
            zombie.apply(orders(), batch(2), asleep, how=How.CHANGES)
        with pytest.raises(BatchConflictError):
            zombie.apply(orders(), batch(3), Rows([(3, "ZOMBIE", at(9))]), how=How.CHANGES)
        assert ids(load(orders())) == [1, 2]
        receipt = connect().applied(orders())
        assert receipt is not None and receipt.batch == batch(2, epoch=2)

    def test_a_fence_shuts_out_a_batch_that_is_on_its_way_and_the_number_is_free(
        self, sink: StageSink, connect: Connect, load: Load
    ) -> None:
        zombie = connect()
        sink.apply(orders(), batch(1), Rows([(1, "one", at(0))]), how=How.FRESH)

        def shut_out() -> None:
            receipt = sink.fence(orders(), 2)
            assert receipt is not None and (receipt.batch, receipt.epoch) == (batch(1), 2)

        asleep = InterruptedChanges([(3, "ZOMBIE", at(9))], meanwhile=shut_out)
        with pytest.raises(BatchConflictError):
            zombie.apply(orders(), batch(2), asleep, how=How.CHANGES)
        held = connect().applied(orders())
        assert held is not None and held.batch == batch(1)  # the zombie's manifest is there, and void
        sink.apply(orders(), batch(2, epoch=2), Rows([(2, "two", at(1))]), how=How.CHANGES)
        assert ids(load(orders())) == [1, 2]

    def test_a_fence_before_the_first_batch_shuts_out_a_first_load_given_up(
        self, sink: StageSink, connect: Connect, load: Load
    ) -> None:
        zombie = connect()

        def shut_out() -> None:
            assert sink.fence(orders(), 2) is None

        asleep = InterruptedChanges([(1, "ZOMBIE", at(0))], meanwhile=shut_out)
        with pytest.raises(BatchConflictError):
            zombie.apply(orders(), batch(1), asleep, how=How.FRESH)
        assert sink.applied(orders()) is None
        sink.apply(orders(), batch(1, epoch=2), Rows([(1, "one", at(0))]), how=How.FRESH)
        assert names(load(orders())) == {1: "one"}

    def test_a_batch_without_rows_is_remembered_and_has_no_files(self, sink: StageSink, source: StageSource) -> None:
        sink.apply(orders(), batch(1), Rows([(1, "one", at(0))]), how=How.FRESH)
        assert sink.apply(orders(), batch(2), Rows([]), how=How.CHANGES) == Applied()
        receipt = sink.applied(orders())
        assert receipt is not None and receipt.batch == batch(2)
        assert source.pending({"orders": (orders(), versions(2, 3))}) == {"orders": 0}
        sink.apply(orders(), batch(3), Rows([]), how=How.REPLACE)  # the source was emptied: that is to be loaded
        assert source.pending({"orders": (orders(), versions(2, 4))}) == {"orders": None}
        changes = source.changes(orders(), Slice(versions(2, 4)))
        assert (changes.how, changes.files) == (How.REPLACE, [])

    def test_a_table_is_known_from_its_newest_batch(self, sink: StageSink, source: StageSource) -> None:
        columns = (Column("id", "bigint", False), Column("name", "text"), Column("at", "timestamptz"))
        table = orders("Größe 1.x", columns=columns, key_enforced=True)
        sink.apply(table, batch(1), Rows([(1, "one", at(0))]), how=How.FRESH)
        found = source.tables(["G*", "none"], {})
        assert set(found) == {"Größe 1.x", "none"}
        info = found["Größe 1.x"]
        assert not isinstance(info, StrandlineError)
        assert (info.columns, info.key, info.unique) == (columns, ("id",), (("id",),))
        bare = orders("Größe 1.x", cursor=None, key=())
        resolved = source.resolve(bare, info, None)
        assert (resolved.cursor, resolved.key, resolved.columns) == (table.cursor, ("id",), columns)
        horizon = source.horizons([resolved])["Größe 1.x"]
        assert not isinstance(horizon, StrandlineError)
        assert horizon.high == Watermark(Kind.VERSION, "2")

    def test_batches_are_read_together_as_if_applied_one_after_the_other(
        self, sink: StageSink, source: StageSource, spark: SparkSession
    ) -> None:
        sink.apply(orders(), batch(1), Rows([(1, "first", at(0)), (2, "", at(0))]), how=How.FRESH)
        given = [
            [(1, "older", at(1)), (3, "three", at(1)), (4, "equal, first", at(1))],
            [(1, "newest", at(5)), (4, "equal, later", at(1))],
            [(1, "read again, older", at(2))],
        ]
        for number, rows in enumerate(given, 2):
            sink.apply(orders(), batch(number), Rows(rows), how=How.CHANGES)
        first, rest = source.slices(orders(), versions(None, 5), 8, None)
        assert (first.window, rest.window) == (versions(None, 2), versions(2, 5))
        assert source.changes(orders(), first).how is How.FRESH
        together = source.changes(orders(), rest)
        assert (together.how, together.unique, together.files) == (How.CHANGES, True, None)
        frame = together.frame(spark.newSession())
        assert frame.columns == ["id", "name", "at"]
        assert {row.id: row.name for row in frame.collect()} == {1: "newest", 3: "three", 4: "equal, later"}
        log = orders(mode=Mode.APPEND)
        every = source.changes(log, rest)
        assert len(every.files or []) == 3
        assert len(every.frame(spark.newSession()).collect()) == 6

    def test_slices_are_of_whole_batches_of_about_slice_rows_and_a_limit_ends_them(
        self, sink: StageSink, source: StageSource
    ) -> None:
        for number in range(1, 7):
            rows = [(number * 10 + each, "", at(number)) for each in range(2)]
            sink.apply(orders(), batch(number), Rows(rows), how=How.CHANGES)
        table, window = orders(slice_rows=4), versions(2, 7)
        assert source.pending({"orders": (table, window)}) == {"orders": 10}
        cut = [part.window for part in source.slices(table, window, 10, None)]
        assert cut == [versions(2, 4), versions(4, 6), versions(6, 7)]
        assert [part.window for part in source.slices(table, window, 10, 3)] == [versions(2, 4)]
        nulls = orders(nulls="include")
        assert len(source.slices(nulls, window, 10, None)) == 5

    def test_what_replaces_everything_makes_what_came_before_superfluous(
        self, sink: StageSink, source: StageSource, load: Load
    ) -> None:
        part = Repair(KeyRange("id", None, 9), deletes=2)
        kinds = [How.FRESH, How.CHANGES, How.REPLACE, How.CHANGES, How.REPAIR, How.CHANGES]
        for number, how in enumerate(kinds, 1):
            repair = part if how is How.REPAIR else None
            sink.apply(orders(), batch(number), Rows([(number, "", at(1))]), how=how, repair=repair)
        slices = source.slices(orders(), versions(None, 7), None, None)
        assert [each.window for each in slices] == [versions(None, 4), versions(4, 5), versions(5, 6), versions(6, 7)]
        found = [source.changes(orders(), each) for each in slices]
        assert [each.how for each in found] == kinds[2:]
        assert [each.repair for each in found] == [None, None, part, None]
        assert ids(load(orders())) == [3, 4, 5, 6]

    def test_other_columns_begin_another_slice(self, sink: StageSink, source: StageSource, load: Load) -> None:
        sink.apply(orders(), batch(1), Rows([(1, "one", at(0))]), how=How.CHANGES)
        wider = Rows([(2, "two", at(1), Decimal("1.50"))], f"{ORDERS}, price decimal(10,2)")
        sink.apply(orders(), batch(2), wider, how=How.CHANGES)
        assert len(source.slices(orders(), versions(None, 3), 2, None)) == 2
        assert [row.get("price") for row in load(orders())] == [None, Decimal("1.50")]

    def test_a_crash_before_the_manifest_leaves_files_that_are_never_loaded_and_found(
        self, sink: StageSink, connect: Connect, load: Load, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        crashing = connect()
        monkeypatch.setattr(crashing, "_add", _crash)
        with pytest.raises(KeyboardInterrupt):
            crashing.apply(orders(), batch(1), Rows([(1, "LOST", at(0))]), how=How.FRESH)
        assert sink.applied(orders()) is None
        assert orphans(sink.objects, Layout("shop", "orders")) == []  # it may be at work still
        sink.apply(orders(), batch(1, attempt="b"), Rows([(1, "one", at(0))]), how=How.FRESH)
        assert names(load(orders())) == {1: "one"}
        left = orphans(sink.objects, Layout("shop", "orders"))
        assert left
        Cleaning(sink.objects, "shop", {}).plan(["orders"]).carry_out()
        assert orphans(sink.objects, Layout("shop", "orders")) == []
        assert names(load(orders())) == {1: "one"}

    def test_a_lost_or_forged_hint_changes_nothing(self, sink: StageSink, connect: Connect) -> None:
        for number in (1, 2):
            sink.apply(orders(), batch(number), Rows([(number, "", at(number))]), how=How.CHANGES)
        for hint in (b"", b"{", b'{"epoch": 1, "number": 1}', b'{"epoch": 9, "number": 99}'):
            sink.objects.replace("shop/orders/head.json", hint)
            receipt = connect().applied(orders())
            assert receipt is not None and receipt.batch == batch(2)
        sink.objects.delete(["shop/orders/head.json"])
        receipt = connect().applied(orders())
        assert receipt is not None and receipt.batch == batch(2)

    def test_a_missing_or_shortened_file_is_named_with_its_batch_and_nothing_is_read(
        self, sink: StageSink, source: StageSource
    ) -> None:
        for number in (1, 2):
            sink.apply(orders(), batch(number), Rows([(number, "", at(number))]), how=How.CHANGES)
        first, second = (entry for entry in sink.objects.list("shop/orders/data") if entry.key.endswith(".parquet"))
        sink.objects.replace(second.key, (sink.objects.get(second.key) or b"")[:-1])
        with pytest.raises(SourceError, match=r"of batch 2 has [\d,]+ bytes") as caught:
            source.changes(orders(), Slice(versions(None, 3)))
        assert second.key in caught.value.message
        assert "--full" in caught.value.remedy
        sink.objects.delete([first.key])
        with pytest.raises(SourceError, match="of batch 1 is missing"):
            source.changes(orders(), Slice(versions(None, 2)))

    def test_a_missing_or_edited_manifest_is_an_error(self, sink: StageSink, endpoint: Endpoint) -> None:
        for number in (1, 2, 3):
            sink.apply(orders(), batch(number), Rows([(number, "", at(number))]), how=How.CHANGES)
        key = Layout("shop", "orders").manifest(1, 2)
        raw = json.loads(sink.objects.get(key) or b"")
        sink.objects.replace(key, json.dumps({**raw, "source": "public.other"}).encode())
        asked = {"orders": (orders(), versions(None, 4))}
        (answer,) = StageSource(endpoint, "shop").pending(asked).values()
        assert isinstance(answer, SourceError)
        assert "checksum" in answer.message and key in answer.message
        sink.objects.delete([key])
        (answer,) = StageSource(endpoint, "shop").pending(asked).values()
        assert isinstance(answer, SourceError)
        assert "is missing" in answer.message and key in answer.message

    def test_cleaned_batches_cannot_be_read_and_numbers_go_on(
        self, sink: StageSink, endpoint: Endpoint, load: Load
    ) -> None:
        for number in (1, 2, 3):
            sink.apply(orders(), batch(number), Rows([(number, "", at(number))]), how=How.CHANGES)
        plan = Cleaning(sink.objects, "shop", {"orders": {"": 2}}).plan(["orders"])
        assert [(each.number, each.files) for each in plan.batches] == [(1, 1), (2, 1)]
        plan.carry_out()
        source = StageSource(endpoint, "shop")
        with pytest.raises(SourceError, match="batch 1 is no longer in the stage") as caught:
            source.changes(orders(), Slice(versions(None, 4)))
        assert "--full" in caught.value.remedy
        assert ids(load(orders(), 3)) == [3]
        receipt = sink.applied(orders())
        assert receipt is not None and receipt.batch == batch(3)
        sink.apply(orders(), batch(4), Rows([(4, "", at(4))]), how=How.CHANGES)
        assert ids(load(orders(), 3)) == [3, 4]

    def test_what_not_every_target_has_loaded_is_cleaned_only_when_told(self, sink: StageSink) -> None:
        for number in (1, 2, 3):
            sink.apply(orders(), batch(number), Rows([(number, "", at(number))]), how=How.CHANGES)

        def cleaned(loaded: dict[str, int], **options: Any) -> list[int]:
            plan = Cleaning(sink.objects, "shop", {"orders": loaded}).plan(["orders"], **options)
            return [each.number for each in plan.batches]

        assert cleaned({}) == []
        assert cleaned({"dw": 3, "lake": 1}) == [1]
        assert cleaned({"dw": 3, "lake": 3}, keep_last=1) == [1, 2]
        assert cleaned({"dw": 0}, unloaded=True) == [1, 2, 3]
        assert cleaned({"dw": 3}, older_than_seconds=3600) == []

    def test_a_small_batch_of_many_parts_becomes_one_file_and_a_large_one_several(
        self, endpoint: Endpoint, spark: SparkSession
    ) -> None:
        few = RowChanges([(number, "", at(0)) for number in range(100)])
        sink = StageSink(endpoint, lambda: spark)
        assert sink.apply(orders(), batch(1), few, how=How.FRESH).files == 1
        (manifest,) = _manifests(sink)
        assert [file.rows for file in manifest.files] == [100]
        small = StageSink(replace(endpoint, options={**endpoint.options, "file_mb": "1"}), lambda: spark)
        for number in (2, 3):
            large = LargeChanges([], ORDERS)
            assert small.apply(orders(), batch(number), large, how=How.CHANGES).rows_read == large.count
        guessed, measured = _manifests(sink)[1:]
        assert guessed.rows == measured.rows == LargeChanges.count
        assert len(measured.files) > len(guessed.files) > 1
        assert max(file.bytes for file in measured.files) < 1.2 * (1 << 20)


class LargeChanges(RowChanges):
    """Some megabytes that do not compress."""

    count = 60_000

    def frame(self, spark: SparkSession) -> Any:
        text = "concat(sha2(cast(id as string), 512), uuid()) AS name"
        return spark.range(0, self.count, 1, 2).selectExpr("id", text, "timestamp '2026-11-15 08:00:00' AS at")


def _crash(*_: object) -> Applied:
    raise KeyboardInterrupt


def _manifests(sink: StageSink) -> list[Manifest]:
    keys = [entry.key for entry in sink.objects.list("shop/orders/batches")]
    return [Manifest.from_json(sink.objects.get(key) or b"") for key in keys]

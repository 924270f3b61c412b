"""What a stage must keep, wherever it lies, as two pytest suites: subclass them and say where.

class TestMyStage(StageContract):
    @pytest.fixture
    def endpoint(self, tmp_path):
        return Endpoint.parse(str(tmp_path / "stage"))

LedgerContract needs no Spark: it puts manifests and files of its own. StageContract writes and reads rows. The parts of
SinkContract about identity, fences and zombies hold here too; those about merging do not, since a stage keeps every
version of a row.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from strandline.core.batch import Applied, Batch, How
from strandline.core.errors import BatchConflictError, SourceError, StrandlineError, TransientError
from strandline.core.protocols import Changes
from strandline.core.table import Column, Mode, Table
from strandline.core.watermark import Kind, Watermark
from strandline.core.window import KeyRange, Repair, Slice, Window
from strandline.endpoint import Endpoint
from strandline.objects import Objects, open_objects
from strandline.stage.clean import Cleaning, orphans, stage_list
from strandline.stage.layout import Layout
from strandline.stage.ledger import Ledger, now
from strandline.stage.manifest import DataFile, Manifest
from strandline.stage.sink import StageSink
from strandline.stage.source import NOTHING, StageSource
from strandline.testing.sink import ORDERS, InterruptedChanges, Row, RowChanges, at, batch, ids, names, orders

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Connect = Callable[[], StageSink]
Load = Callable[..., list[Row]]
LAYOUT = Layout("shop", "orders")
ID = {"name": "id", "type": "long", "nullable": True, "metadata": {}}
SCHEMA = {"type": "struct", "fields": [ID]}


class Rows(RowChanges):
    """In one piece, so that they are written once."""

    def frame(self, spark: SparkSession) -> DataFrame:
        return super().frame(spark).coalesce(1)


class LargeChanges(RowChanges):
    """Some megabytes that do not compress."""

    count = 60_000

    def frame(self, spark: SparkSession) -> DataFrame:
        text = "concat(sha2(cast(id as string), 512), uuid()) AS name"
        return spark.range(0, self.count, 1, 2).selectExpr("id", text, "timestamp '2026-11-15 08:00:00' AS at")


def versions(low: int | None, high: int) -> Window:
    return Window(None if low is None else Watermark(Kind.VERSION, str(low)), Watermark(Kind.VERSION, str(high)))


def file_count(changes: Changes) -> int | None:
    return None if changes.files is None else len(changes.files.sizes)


def staged(objects: Objects, of: Batch, *, rows: int = 1, how: How = How.CHANGES, **more: Any) -> Manifest:
    """Add a batch as a sink does, with one file of no real rows."""
    ledger = Ledger(objects, LAYOUT)
    last = ledger.last()
    ledger.fence(of.epoch, last.number if last else 0)
    path = f"{LAYOUT.attempt(of.number, of.attempt)}/part-0.parquet"
    if rows:
        objects.create(path, f"{of.attempt}, {rows} rows".encode())
    file = DataFile(path.removeprefix(f"{LAYOUT.folder}/"), len(f"{of.attempt}, {rows} rows"), rows)
    table = orders()
    manifest = Manifest(
        table.pipeline,
        table.name,
        table.source,
        of,
        last.number if last else 0,
        how,
        None,
        (file,) if rows else (),
        json.dumps(SCHEMA),
        table.columns,
        table.key,
        key_enforced=True,
        family="postgresql",
        comment="",
        unique=True,
        order=("at",),
        operation=None,
        cursor=table.cursor,
        applied=Applied(rows, rows, files=1 if rows else 0),
        written_at=now(),
    )
    return ledger.add(replace(manifest, **more))


class LedgerContract:
    @pytest.fixture
    def endpoint(self) -> Endpoint:
        """To override: a stage that is empty at first."""
        raise NotImplementedError

    @pytest.fixture
    def objects(self, endpoint: Endpoint) -> Objects:
        return open_objects(endpoint)

    @pytest.fixture
    def source(self, endpoint: Endpoint) -> StageSource:
        return StageSource(endpoint, "shop")

    def test_nothing_is_there_where_nothing_was_staged(self, objects: Objects, source: StageSource) -> None:
        assert Ledger(objects, LAYOUT).last() is None
        (found,) = source.tables(["orders"], {}).values()
        assert not isinstance(found, StrandlineError)
        assert found.columns == ()
        horizon = source.horizons([source.resolve(orders(), found, None)])["orders"]
        assert not isinstance(horizon, StrandlineError)
        assert (horizon.high, horizon.note) == (None, NOTHING)

    def test_a_manifest_comes_back_as_it_was_written(self, objects: Objects) -> None:
        table = orders(columns=(Column("id", "numeric(38,10)", False, "text"),))
        part = Repair(KeyRange("id", None, 9), deletes=2)
        last_value = Watermark(Kind.TIMESTAMP, f"{at(0)}")
        given = staged(
            objects,
            batch(1),
            how=How.REPAIR,
            repair=part,
            columns=table.columns,
            operation="op",
            applied=Applied(1, 1, last_value=last_value, files=1),
        )
        read = Ledger(objects, LAYOUT).last()
        assert read is not None
        assert replace(read, schema="") == replace(given, schema="")
        assert json.loads(read.schema) == SCHEMA

    def test_a_void_manifest_neither_counts_nor_takes_the_number(self, objects: Objects) -> None:
        staged(objects, batch(1))
        Ledger(objects, LAYOUT).fence(2, after=1)
        staged(objects, batch(2))  # a zombie's, past all its checks
        last = Ledger(objects, LAYOUT).last()
        assert last is not None and last.batch == batch(1)
        staged(objects, batch(2, epoch=2))
        staged(objects, batch(3))
        staged(objects, batch(3, epoch=2))
        found = Ledger(objects, LAYOUT).between(1, 9)
        assert [each.batch.order for each in found] == [(1, 1), (2, 2), (2, 3)]

    def test_of_two_fences_of_one_epoch_the_first_counts_and_none_goes_back(self, objects: Objects) -> None:
        ledger = Ledger(objects, LAYOUT)
        assert ledger.fence(3, after=5).owner(6) == 3
        assert Ledger(objects, LAYOUT).fence(3, after=9).owner(6) == 3
        assert Ledger(objects, LAYOUT).fence(2, after=0).epoch == 3
        assert ledger.fences().owner(5) is None

    def test_a_lost_or_forged_hint_changes_nothing(self, objects: Objects) -> None:
        for number in (1, 2):
            staged(objects, batch(number))
        for hint in (b"", b"{", b'{"epoch": 1, "number": 1}', b'{"epoch": 9, "number": 99}', None):
            if hint is None:
                objects.delete([LAYOUT.head])
            else:
                objects.replace(LAYOUT.head, hint)
            last = Ledger(objects, LAYOUT).last()
            assert last is not None and last.batch == batch(2)

    def test_slices_are_of_whole_batches_of_about_slice_rows_and_a_limit_ends_them(
        self, objects: Objects, source: StageSource
    ) -> None:
        for number in range(1, 7):
            staged(objects, batch(number), rows=2)
        table, window = orders(slice_rows=4), versions(2, 7)
        assert source.pending({"orders": (table, window)}) == {"orders": 10}
        cut = [part.window for part in source.slices(table, window, 10, None)]
        assert cut == [versions(2, 4), versions(4, 6), versions(6, 7)]
        assert [part.window for part in source.slices(table, window, 10, 3)] == [versions(2, 4)]
        assert len(source.slices(orders(nulls="include"), window, 10, None)) == 5
        source.one_by_one = True
        assert len(source.slices(table, window, 10, None)) == 5

    def test_what_replaces_everything_makes_what_came_before_superfluous(
        self, objects: Objects, source: StageSource
    ) -> None:
        part = Repair(KeyRange("id", None, 9), deletes=2)
        kinds = [How.FRESH, How.CHANGES, How.REPLACE, How.CHANGES, How.REPAIR, How.CHANGES, How.CURRENT]
        for number, how in enumerate(kinds, 1):
            staged(objects, batch(number), how=how, repair=part if how is How.REPAIR else None)
        slices = source.slices(orders(), versions(None, 8), None, None)
        assert [int(each.window.high.text) for each in slices] == [4, 5, 6, 7, 8]
        found = [source.changes(orders(), each) for each in slices]
        assert [each.how for each in found] == kinds[2:]
        assert [each.repair for each in found] == [None, None, part, None, None]
        assert [file_count(each) for each in found] == [1, 1, 1, 1, 1]

    def test_batches_without_rows_are_passed_over_unless_they_do_something(
        self, objects: Objects, source: StageSource
    ) -> None:
        staged(objects, batch(1))
        staged(objects, batch(2), rows=0)
        assert source.pending({"orders": (orders(), versions(2, 3))}) == {"orders": 0}
        staged(objects, batch(3), rows=0, how=How.REPLACE)  # the source was emptied: that is to be loaded
        assert source.pending({"orders": (orders(), versions(2, 4))}) == {"orders": None}
        changes = source.changes(orders(), Slice(versions(2, 4)))
        assert (changes.how, file_count(changes)) == (How.REPLACE, 0)

    def test_other_columns_begin_another_slice(self, objects: Objects, source: StageSource) -> None:
        staged(objects, batch(1))
        staged(objects, batch(2), schema=json.dumps({**SCHEMA, "fields": [ID, {**ID, "name": "price"}]}))
        assert len(source.slices(orders(), versions(None, 3), 2, None)) == 2

    def test_a_missing_or_shortened_file_is_named_with_its_batch_and_nothing_is_read(
        self, objects: Objects, source: StageSource
    ) -> None:
        for number in (1, 2):
            staged(objects, batch(number))
        first, second = (entry.key for entry in objects.list(LAYOUT.data))
        objects.replace(second, b"short")
        with pytest.raises(SourceError, match=r"of batch 2 has 5 bytes") as caught:
            source.changes(orders(), Slice(versions(None, 3)))
        assert second in caught.value.message
        assert "--full" in caught.value.remedy
        objects.delete([first])
        with pytest.raises(SourceError, match="of batch 1 is missing"):
            source.changes(orders(), Slice(versions(None, 2)))

    def test_a_missing_or_edited_manifest_is_an_error_until_a_whole_reload(
        self, objects: Objects, endpoint: Endpoint
    ) -> None:
        for number in (1, 2, 3):
            staged(objects, batch(number))
        key = LAYOUT.manifest(1, 2)
        raw = json.loads(objects.get(key) or b"")
        objects.replace(key, json.dumps({**raw, "source": "public.other"}).encode())
        asked = {"orders": (orders(), versions(None, 4))}
        (answer,) = StageSource(endpoint, "shop").pending(asked).values()
        assert isinstance(answer, SourceError)
        assert "checksum" in answer.message and key in answer.message
        objects.delete([key])
        (answer,) = StageSource(endpoint, "shop").pending(asked).values()
        assert isinstance(answer, SourceError)
        assert "is missing" in answer.message and key in answer.message
        staged(objects, batch(4), how=How.REPLACE)
        assert StageSource(endpoint, "shop").pending({"orders": (orders(), versions(None, 5))}) == {"orders": 1}

    def test_cleaned_batches_cannot_be_read_and_numbers_go_on(self, objects: Objects, source: StageSource) -> None:
        for number in (1, 2, 3):
            staged(objects, batch(number))
        plan = Cleaning(objects, "shop", {"orders": {"": 2}}).plan(["orders"])
        assert [(each.number, each.files) for each in plan.batches] == [(1, 1), (2, 1)]
        plan.carry_out()
        assert [LAYOUT.data_number(entry.key) for entry in objects.list(LAYOUT.data)] == [3]
        with pytest.raises(SourceError, match="batch 1 is no longer in the stage") as caught:
            source.changes(orders(), Slice(versions(None, 4)))
        assert "--full" in caught.value.remedy
        assert file_count(source.changes(orders(), Slice(versions(3, 4)))) == 1
        staged(objects, batch(4))
        shown = stage_list(objects, "shop", "orders", {"": 2})
        assert [(each.number, each.cleaned, each.loaded) for each in shown] == [
            (1, True, ("",)),
            (2, True, ("",)),
            (3, False, ()),
            (4, False, ()),
        ]
        assert Cleaning(objects, "shop", {"orders": {"": 2}}).plan(["orders"]).batches == ()

    def test_what_not_every_target_has_loaded_is_cleaned_only_when_told(self, objects: Objects) -> None:
        for number in (1, 2, 3):
            staged(objects, batch(number))

        def cleaned(loaded: dict[str, int], **options: Any) -> list[int]:
            plan = Cleaning(objects, "shop", {"orders": loaded}).plan(["orders"], **options)
            return [each.number for each in plan.batches]

        assert cleaned({}) == []
        assert cleaned({"dw": 3, "lake": 1}) == [1]
        assert cleaned({"dw": 3, "lake": 3}, keep_last=1) == [1, 2]
        assert cleaned({"dw": 0}, unloaded=True) == [1, 2, 3]
        assert cleaned({"dw": 3}, older_than=timedelta(hours=1)) == []

    def test_files_that_no_manifest_names_are_orphans_once_they_cannot_be_at_work(self, objects: Objects) -> None:
        staged(objects, batch(1))
        dead, young = (f"{LAYOUT.attempt(number, 'dead')}/part-0.parquet" for number in (1, 2))
        for key in (dead, young, f"{LAYOUT.attempt(1, 'dead')}/_temporary/0/part-1.parquet"):
            objects.create(key, b"rows")
        found = orphans(objects, LAYOUT)
        assert len(found) == 2 and dead in found
        assert young in orphans(objects, LAYOUT, datetime.now(UTC) + timedelta(hours=25))
        Cleaning(objects, "shop", {}).plan(["orders"]).carry_out()
        kept = [entry.key for entry in objects.list(LAYOUT.data)]
        assert len(kept) == 2 and young in kept


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
        """The rows of a table's batches, slice after slice, as a sink gets them."""

        def load(table: Table) -> list[Row]:
            horizon = source.horizons([table])[table.name]
            assert not isinstance(horizon, StrandlineError)
            assert horizon.high is not None
            rows: list[Row] = []
            for part in source.slices(table, versions(None, int(horizon.high.text)), None, None):
                found = source.changes(table, part).frame(spark.newSession()).collect()
                rows += [row.asDict() for row in found]
            return rows

        return load

    def test_a_staged_batch_is_told_to_whoever_asks_later_and_read_as_it_was(
        self, sink: StageSink, connect: Connect, load: Load
    ) -> None:
        applied = sink.apply(orders(), batch(1), Rows([(1, "one", at(0)), (2, "two", at(0))]), how=How.FRESH)
        assert applied == Applied(2, 2, 0, 0, Watermark(Kind.TIMESTAMP, f"{at(0)}"), files=1)
        receipt = connect().applied(orders())
        assert receipt is not None
        assert (receipt.batch, receipt.applied, receipt.epoch) == (batch(1), applied, 1)
        again = sink.apply(orders(), batch(1, attempt="b"), Rows([(9, "WRONG", at(0))] * 3), how=How.FRESH)
        assert again == applied
        assert sink.apply(orders(), batch(2), Rows([]), how=How.CHANGES) == Applied()
        receipt = connect().applied(orders())
        assert receipt is not None and receipt.batch == batch(2)
        for other in (batch(1), batch(2, high=9), batch(2, store="another")):
            with pytest.raises(BatchConflictError):
                sink.apply(orders(), other, Rows([(7, "", at(9))]), how=How.CHANGES)
        assert names(load(orders())) == {1: "one", 2: "two"}

    def test_every_type_comes_back_exactly_and_any_name(self, sink: StageSink, source: StageSource, load: Load) -> None:
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
            bytearray(b"\x00\xff"),
            True,
            [(1, "ä"), (None, None)],
            "x",
            "delete",
        )
        columns = (Column("id", "bigint", False), Column("at", "timestamptz"))
        table = orders("Größe 1.x", columns=columns, key_enforced=True, family="postgresql", comment="orders")
        sink.apply(table, batch(1), Rows([row, (2, *[None] * 11)], schema, "op"), how=How.FRESH)
        info = source.tables(["G*"], {})["Größe 1.x"]
        assert not isinstance(info, StrandlineError)
        resolved = source.resolve(orders("Größe 1.x", cursor=None, key=()), info, None)
        assert (resolved.cursor, resolved.key, resolved.columns) == (table.cursor, ("id",), columns)
        assert (resolved.key_enforced, resolved.family, resolved.comment) == (True, "postgresql", "orders")
        first, second = sorted(load(resolved), key=lambda found: int(found["id"]))
        first["at"] = first["at"].astimezone(UTC)
        first["many"] = [tuple(each) for each in first["many"]]
        assert tuple(first.values()) == row
        assert set(second.values()) == {2, None}

    @pytest.mark.parametrize("same", [True, False])
    def test_of_two_writers_under_one_number_one_stages_and_the_other_adopts_it_or_stops(
        self, sink: StageSink, connect: Connect, load: Load, same: bool
    ) -> None:
        other = connect()

        def overtake() -> None:
            winner = batch(1, attempt="b", store="s" if same else "another")
            other.apply(orders(), winner, Rows([(1, "one", at(0))]), how=How.FRESH)

        slow = InterruptedChanges([(1, "one", at(0)), (2, "two", at(0))], meanwhile=overtake)
        if same:
            assert sink.apply(orders(), batch(1), slow, how=How.FRESH).rows_read == 1
        else:
            with pytest.raises(BatchConflictError):
                sink.apply(orders(), batch(1), slow, how=How.FRESH)
        assert ids(load(orders())) == [1]
        data = [entry.key for entry in sink.objects.list(LAYOUT.data) if entry.key.endswith(".parquet")]
        assert len(data) == 1

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

    def test_a_fence_shuts_out_a_first_load_on_its_way_and_its_number_is_free(
        self, sink: StageSink, connect: Connect, load: Load
    ) -> None:
        zombie = connect()

        def shut_out() -> None:
            assert sink.fence(orders(), 2) is None

        asleep = InterruptedChanges([(1, "ZOMBIE", at(0))], meanwhile=shut_out)
        with pytest.raises(BatchConflictError):
            zombie.apply(orders(), batch(1), asleep, how=How.FRESH)
        assert connect().applied(orders()) is None  # the zombie's manifest is there, and void
        sink.apply(orders(), batch(1, epoch=2), Rows([(1, "one", at(0))]), how=How.FRESH)
        assert names(load(orders())) == {1: "one"}
        receipt = sink.fence(orders(), 3)
        assert receipt is not None and (receipt.batch, receipt.epoch) == (batch(1, epoch=2), 3)

    def test_batches_are_read_together_as_if_applied_one_after_the_other(
        self, sink: StageSink, source: StageSource, spark: SparkSession
    ) -> None:
        given = [
            [(1, "first", at(0)), (2, "", at(0))],
            [(1, "older", at(1)), (3, "three", at(1)), (4, "equal, first", at(1))],
            [(1, "newest", at(5)), (4, "equal, later", at(1))],
            [(1, "read again, older", at(2))],
        ]
        for number, rows in enumerate(given, 1):
            how = How.FRESH if number == 1 else How.CHANGES
            sink.apply(orders(), batch(number), Rows(rows), how=how)
        first, rest = source.slices(orders(), versions(None, 5), 8, None)
        assert (first.window, rest.window) == (versions(None, 2), versions(2, 5))
        assert source.changes(orders(), first).how is How.FRESH
        together = source.changes(orders(), rest)
        assert (together.how, together.unique, together.files) == (How.CHANGES, True, None)
        frame = together.frame(spark.newSession())
        assert frame.columns == ["id", "name", "at"]
        assert {row["id"]: row["name"] for row in frame.collect()} == {1: "newest", 3: "three", 4: "equal, later"}
        every = source.changes(orders(mode=Mode.APPEND), rest)
        assert file_count(every) == 3
        assert len(every.frame(spark.newSession()).collect()) == 6

    def test_a_crash_before_the_manifest_leaves_files_that_are_never_loaded_and_found(
        self, sink: StageSink, connect: Connect, load: Load, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        crashing = connect()
        monkeypatch.setattr(crashing, "_add", _crash)
        with pytest.raises(KeyboardInterrupt):
            crashing.apply(orders(), batch(1), Rows([(1, "LOST", at(0))]), how=How.FRESH)
        assert sink.applied(orders()) is None
        assert orphans(sink.objects, LAYOUT) == []  # it may be at work still
        sink.apply(orders(), batch(1, attempt="b"), Rows([(1, "one", at(0))]), how=How.FRESH)
        assert orphans(sink.objects, LAYOUT)
        Cleaning(sink.objects, "shop", {}).plan(["orders"]).carry_out()
        assert orphans(sink.objects, LAYOUT) == []
        assert names(load(orders())) == {1: "one"}

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
        for manifest in _manifests(sink)[1:]:  # of the first the width was a guess, and far too low
            assert manifest.rows == LargeChanges.count
            assert max(file.bytes for file in manifest.files) < 1.5 * (1 << 20)
            assert len(manifest.files) < 1.5 * manifest.size / (1 << 20)
            assert orphans(sink.objects, LAYOUT) == []


def _crash(*_: object) -> Applied:
    raise KeyboardInterrupt


def _manifests(sink: StageSink) -> list[Manifest]:
    keys = [entry.key for entry in sink.objects.list(LAYOUT.batches)]
    return [Manifest.from_json(sink.objects.get(key) or b"") for key in keys]

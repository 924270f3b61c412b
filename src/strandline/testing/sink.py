"""What every Sink must keep, as a pytest suite: subclass SinkContract and say how to open your sink and read a target.

class TestMySink(SinkContract):
    @pytest.fixture
    def connect(self, tmp_path, spark):
        return lambda: MySink(tmp_path, lambda: spark)

    @pytest.fixture
    def read(self, tmp_path, spark):
        return lambda table: [row.asDict() for row in spark.read.…(tmp_path / table.target).collect()]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest

from strandline.core.batch import Applied, Batch, How
from strandline.core.errors import (
    BatchConflictError,
    SchemaError,
    SourceError,
    StrandlineError,
    TargetError,
    TransientError,
)
from strandline.core.protocols import Files, Sink
from strandline.core.table import Mode, Table
from strandline.core.watermark import Cursor, Kind, Watermark
from strandline.core.window import KeyRange, Repair

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Connect = Callable[[], Sink]
Row = dict[str, Any]
Read = Callable[[Table], list[Row]]

ORDERS = "id bigint, name string, at timestamp"


@dataclass
class RowChanges:
    """Changes made of plain rows."""

    rows: Sequence[tuple[Any, ...]]
    schema: str = ORDERS
    operation: str | None = None
    unique: bool = True
    order: tuple[str, ...] = ()
    query: str | None = None
    files: Files | None = None
    how: How | None = None
    repair: Repair | None = None

    def frame(self, spark: SparkSession) -> DataFrame:
        return spark.createDataFrame(list(self.rows), self.schema)

    def translate(self, error: Exception) -> StrandlineError | None:
        return None if "source is gone" not in str(error) else SourceError("the source is gone")


@dataclass
class InterruptedChanges(RowChanges):
    """Something else happens between the sink's first look at its target and its write."""

    meanwhile: Callable[[], None] = lambda: None

    def frame(self, spark: SparkSession) -> DataFrame:
        self.meanwhile()
        return super().frame(spark)


def at(minute: int) -> datetime:
    return datetime(2026, 11, 15, 8, minute, 0, 120003)


def orders(name: str = "orders", **settings: Any) -> Table:
    cursor = Cursor("at", Kind.TIMESTAMP)
    table = Table("shop", name, f"public.{name}", f"shop.{name}", "load", Mode.MERGE, cursor, key=("id",))
    return replace(table, **settings)


def batch(number: int, *, epoch: int = 1, high: int | None = None, attempt: str = "a", store: str = "s") -> Batch:
    """Batch N covers minutes N − 1 to N."""
    low, end = (Watermark(Kind.TIMESTAMP, f"{at(minute)}") for minute in (number - 1, high or number))
    return Batch(store, epoch, number, low, end, end, attempt)


def ids(rows: list[Row]) -> list[int]:
    return sorted(row["id"] for row in rows)


def names(rows: list[Row]) -> dict[int, str | None]:
    return {row["id"]: row["name"] for row in rows}


class SinkContract:
    keys_enforced = False
    """To override: the target itself keeps the key of a merged table unique."""

    @pytest.fixture
    def connect(self) -> Connect:
        """To override: each call opens the same target, empty at first, once more."""
        raise NotImplementedError

    @pytest.fixture
    def read(self) -> Read:
        """To override: all rows of a table's target."""
        raise NotImplementedError

    @pytest.fixture
    def sink(self, connect: Connect) -> Sink:
        return connect()

    def test_nothing_is_applied_where_nothing_was(self, sink: Sink) -> None:
        assert sink.applied(orders()) is None

    def test_an_applied_batch_is_told_to_whoever_asks_later(self, sink: Sink, connect: Connect, read: Read) -> None:
        changes = RowChanges([(1, "one", at(0)), (2, "two", at(0))])
        applied = sink.apply(orders(), batch(1), changes, how=How.FRESH)
        assert applied == Applied(2, 2, 0, 0, Watermark(Kind.TIMESTAMP, f"{at(0)}"))
        receipt = connect().applied(orders())
        assert receipt is not None
        assert receipt.batch == batch(1)
        assert replace(receipt.applied, last_value=applied.last_value) == applied
        assert names(read(orders())) == {1: "one", 2: "two"}

    def test_a_merge_counts_what_it_did(self, sink: Sink, connect: Connect, read: Read) -> None:
        sink.apply(orders(), batch(1), RowChanges([(1, "one", at(0)), (2, "two", at(0))]), how=How.FRESH)
        changes = RowChanges([(2, "zwei", at(1)), (3, "drei", at(1))])
        applied = sink.apply(orders(), batch(2), changes, how=How.CHANGES)
        assert applied == Applied(2, 1, 1, 0, Watermark(Kind.TIMESTAMP, f"{at(1)}"))
        receipt = connect().applied(orders())
        assert receipt is not None and (receipt.batch, receipt.applied) == (batch(2), applied)
        assert names(read(orders())) == {1: "one", 2: "zwei", 3: "drei"}

    def test_the_same_batch_again_changes_nothing_and_counts_the_same(self, sink: Sink, read: Read) -> None:
        sink.apply(orders(), batch(1), RowChanges([(1, "one", at(0))]), how=How.FRESH)
        changes = RowChanges([(1, "eins", at(1)), (2, "zwei", at(1))])
        applied = sink.apply(orders(), batch(2), changes, how=How.CHANGES)
        other_rows = RowChanges([(1, "WRONG", at(2)), (9, "WRONG", at(2))])
        again = sink.apply(orders(), batch(2, attempt="b"), other_rows, how=How.CHANGES)
        assert again == applied
        assert names(read(orders())) == {1: "eins", 2: "zwei"}

    def test_another_attempt_at_an_append_is_adopted(self, sink: Sink, connect: Connect, read: Read) -> None:
        table = orders(mode=Mode.APPEND, key=())
        sink.apply(table, batch(1), RowChanges([(1, "one", at(0))]), how=How.FRESH)
        again = sink.apply(table, batch(1, attempt="b"), RowChanges([(1, "one", at(0))]), how=How.FRESH)
        assert (again.rows_read, again.rows_inserted) == (1, 1)
        receipt = connect().applied(table)
        assert receipt is not None and receipt.batch.attempt == "a"
        assert ids(read(table)) == [1]

    def test_an_older_batch_is_refused(self, sink: Sink, read: Read) -> None:
        for number in (1, 2):
            sink.apply(orders(), batch(number), RowChanges([(number, "", at(number))]), how=How.CHANGES)
        with pytest.raises(BatchConflictError):
            sink.apply(orders(), batch(1), RowChanges([(7, "", at(9))]), how=How.CHANGES)
        assert ids(read(orders())) == [1, 2]

    @pytest.mark.parametrize("other", [batch(1, high=9), batch(1, store="another")], ids=["window", "store"])
    def test_another_batch_under_the_same_number_is_a_conflict(self, sink: Sink, read: Read, other: Batch) -> None:
        sink.apply(orders(), batch(1), RowChanges([(1, "one", at(0))]), how=How.FRESH)
        with pytest.raises(BatchConflictError):
            sink.apply(orders(), other, RowChanges([(7, "", at(9))]), how=How.CHANGES)
        assert ids(read(orders())) == [1]

    def test_a_zombie_of_an_older_epoch_commits_nothing(self, sink: Sink, connect: Connect, read: Read) -> None:
        zombie = connect()
        sink.apply(orders(), batch(4), RowChanges([(1, "one", at(0))]), how=How.FRESH)
        sink.apply(orders(), batch(5, epoch=2), RowChanges([(1, "eins", at(1))]), how=How.CHANGES)
        with pytest.raises(BatchConflictError):
            zombie.apply(orders(), batch(6), RowChanges([(1, "ZOMBIE", at(9))]), how=How.CHANGES)
        assert names(read(orders())) == {1: "eins"}
        receipt = sink.applied(orders())
        assert receipt is not None and receipt.batch == batch(5, epoch=2)

    @pytest.mark.parametrize("mode", [Mode.MERGE, Mode.APPEND, Mode.SNAPSHOT])
    def test_a_zombie_that_wakes_up_past_its_checks_commits_nothing(
        self, sink: Sink, connect: Connect, read: Read, mode: Mode
    ) -> None:
        table = orders(mode=mode)
        zombie = connect()
        sink.apply(table, batch(1), RowChanges([(1, "one", at(0))]), how=How.FRESH)

        def take_over() -> None:
            newer = batch(2, epoch=2)
            sink.apply(table, newer, RowChanges([(2, "two", at(1))]), how=How.CHANGES)

        asleep = InterruptedChanges([(3, "ZOMBIE", at(9))], meanwhile=take_over)
        with pytest.raises((BatchConflictError, TransientError)):
            zombie.apply(table, batch(2), asleep, how=How.CHANGES)
        assert ids(read(table)) == ([2] if mode is Mode.SNAPSHOT else [1, 2])
        receipt = sink.applied(table)
        assert receipt is not None and receipt.batch == batch(2, epoch=2)

    @pytest.mark.parametrize("mode", [Mode.MERGE, Mode.APPEND])
    def test_a_fence_shuts_out_a_batch_that_is_on_its_way(
        self, sink: Sink, connect: Connect, read: Read, mode: Mode
    ) -> None:
        table, zombie = orders(mode=mode), connect()
        sink.apply(table, batch(1), RowChanges([(1, "one", at(0))]), how=How.FRESH)

        def shut_out() -> None:
            receipt = sink.fence(table, 2)
            assert receipt is not None and (receipt.batch, receipt.epoch) == (batch(1), 2)

        asleep = InterruptedChanges([(3, "ZOMBIE", at(9))], meanwhile=shut_out)
        with pytest.raises((BatchConflictError, TransientError)):
            zombie.apply(table, batch(2), asleep, how=How.CHANGES)
        with pytest.raises(BatchConflictError):
            zombie.apply(table, batch(2), RowChanges([(3, "ZOMBIE", at(9))]), how=How.CHANGES)
        assert ids(read(table)) == [1]
        held = connect().applied(table)
        assert held is not None and held.batch == batch(1)
        sink.apply(table, batch(2, epoch=2), RowChanges([(2, "two", at(1))]), how=How.CHANGES)
        assert ids(read(table)) == [1, 2]

    def test_a_fence_before_the_first_batch_makes_nothing(self, sink: Sink, read: Read) -> None:
        assert sink.fence(orders(), 2) is None
        assert sink.applied(orders()) is None
        sink.apply(orders(), batch(1, epoch=2), RowChanges([(1, "one", at(0))]), how=How.FRESH)
        receipt = sink.applied(orders())
        assert receipt is not None and receipt.batch == batch(1, epoch=2)
        assert ids(read(orders())) == [1]

    def test_a_first_load_given_up_and_committed_late_does_not_add_to_the_next(
        self, sink: Sink, connect: Connect, read: Read
    ) -> None:
        """There was nothing to fence when it was given up; it wakes up between the next one's look and its write."""
        table, zombie = orders(mode=Mode.APPEND), connect()

        def wake_up() -> None:
            zombie.apply(table, batch(1), RowChanges([(1, "one", at(0))]), how=How.FRESH)

        again = InterruptedChanges([(1, "one", at(0))], meanwhile=wake_up)
        with pytest.raises(BatchConflictError):
            sink.apply(table, batch(1, epoch=2), again, how=How.FRESH)
        assert ids(read(table)) == [1]

    def test_a_newer_row_is_never_overwritten_and_an_equal_one_is_refreshed(self, sink: Sink, read: Read) -> None:
        rows = [(1, "newer", at(5)), (2, "equal", at(1)), (3, "no cursor", None)]
        sink.apply(orders(), batch(1), RowChanges(rows), how=How.FRESH)
        changes = RowChanges([(1, "older", at(1)), (2, "refreshed", at(1)), (3, "stamped", at(1))])
        applied = sink.apply(orders(), batch(2), changes, how=How.CHANGES)
        assert names(read(orders())) == {1: "newer", 2: "refreshed", 3: "stamped"}
        assert (applied.rows_read, applied.rows_updated) == (3, 2)

    def test_where_the_source_went_back_a_row_replaces_one_with_a_higher_cursor(self, sink: Sink, read: Read) -> None:
        sink.apply(orders(), batch(1), RowChanges([(1, "stamped ahead", at(5)), (2, "two", at(0))]), how=How.FRESH)
        applied = sink.apply(
            orders(), batch(2), RowChanges([(1, "current", at(1)), (3, "three", at(1))]), how=How.CURRENT
        )
        assert names(read(orders())) == {1: "current", 2: "two", 3: "three"}
        assert (applied.rows_inserted, applied.rows_updated) == (1, 1)

    def test_a_row_that_lost_its_cursor_is_current_where_such_rows_are_read(self, sink: Sink, read: Read) -> None:
        table = orders(nulls="include")
        sink.apply(table, batch(1), RowChanges([(1, "stamped", at(1))]), how=How.FRESH)
        sink.apply(table, batch(2), RowChanges([(1, "no cursor", None)]), how=How.CHANGES)
        assert names(read(table)) == {1: "no cursor"}

    def test_deletes_go_by_the_operation_and_respect_newer_rows(self, sink: Sink, read: Read) -> None:
        rows = [(1, "gone", at(0)), (2, "stays", at(0)), (3, "newer", at(5))]
        sink.apply(orders(), batch(1), RowChanges(rows), how=How.FRESH)
        changes = RowChanges(
            [(1, "", at(1), "delete"), (2, "new", at(1), "upsert"), (3, "", at(1), "delete"), (4, "", at(1), "delete")],
            f"{ORDERS}, op string",
            operation="op",
        )
        applied = sink.apply(orders(), batch(2), changes, how=How.CHANGES)
        assert names(read(orders())) == {2: "new", 3: "newer"}
        assert (applied.rows_inserted, applied.rows_updated, applied.rows_deleted) == (0, 1, 1)
        assert "op" not in read(orders())[0]

    def test_a_first_load_leaves_deleted_rows_out(self, sink: Sink, read: Read) -> None:
        changes = RowChanges([(1, "", at(0), "delete"), (2, "", at(0), "upsert")], f"{ORDERS}, op string", "op")
        applied = sink.apply(orders(), batch(1), changes, how=How.FRESH)
        assert ids(read(orders())) == [2]
        assert (applied.rows_read, applied.rows_inserted) == (2, 1)

    @pytest.mark.parametrize("key", [(), ("id",)])
    def test_append_keeps_every_version(self, sink: Sink, read: Read, key: tuple[str, ...]) -> None:
        table = orders(mode=Mode.APPEND, key=key)
        sink.apply(table, batch(1), RowChanges([(1, "one", at(0))]), how=How.FRESH)
        sink.apply(table, batch(2), RowChanges([(1, "uno", at(1))]), how=How.CHANGES)
        assert sorted(row["name"] for row in read(table)) == ["one", "uno"]

    @pytest.mark.parametrize("mode", [Mode.MERGE, Mode.APPEND, Mode.SNAPSHOT])
    def test_a_batch_without_rows_is_remembered(self, sink: Sink, connect: Connect, read: Read, mode: Mode) -> None:
        table = orders(mode=mode)
        sink.apply(table, batch(1), RowChanges([(1, "one", at(0))]), how=How.FRESH)
        applied = sink.apply(table, batch(2), RowChanges([]), how=How.CHANGES)
        assert applied == Applied()
        receipt = connect().applied(table)
        assert receipt is not None and receipt.batch == batch(2)
        assert ids(read(table)) == ([] if mode is Mode.SNAPSHOT else [1])

    def test_replace_takes_the_place_of_everything(self, sink: Sink, read: Read) -> None:
        sink.apply(orders(), batch(1), RowChanges([(1, "", at(0)), (2, "", at(0))]), how=How.FRESH)
        applied = sink.apply(orders(), batch(2), RowChanges([(3, "", at(1))]), how=How.REPLACE)
        assert ids(read(orders())) == [3]
        assert (applied.rows_read, applied.rows_inserted) == (1, 1)

    def test_replace_takes_columns_of_another_type(self, sink: Sink, connect: Connect, read: Read) -> None:
        sink.apply(orders(), batch(1), RowChanges([(1, "one", at(0))]), how=How.FRESH)
        changed = RowChanges([(1, 11, at(1))], "id bigint, name int, at timestamp")
        sink.apply(orders(), batch(2), changed, how=How.REPLACE)
        assert [row["name"] for row in read(orders())] == [11]
        receipt = connect().applied(orders())
        assert receipt is not None and receipt.batch == batch(2)

    def test_the_last_of_several_changes_of_a_key_wins(self, sink: Sink, read: Read) -> None:
        sink.apply(orders(), batch(1), RowChanges([(1, "one", at(0))]), how=How.FRESH)
        rows = [(1, "second", at(2)), (1, "first", at(1)), (2, "only", at(1)), (1, "second", at(2))]
        changes = RowChanges(rows, unique=False, order=("at",))
        applied = sink.apply(orders(), batch(2), changes, how=How.CHANGES)
        assert names(read(orders())) == {1: "second", 2: "only"}
        assert applied.rows_read == 4

    @pytest.mark.parametrize("first", [True, False])
    @pytest.mark.parametrize("order", [("at",), ()], ids=["tied order", "no order"])
    def test_duplicate_keys_that_nothing_orders_are_refused(
        self, sink: Sink, read: Read, first: bool, order: tuple[str, ...]
    ) -> None:
        sink.apply(orders(), batch(1), RowChanges([(1, "one", at(0))]), how=How.FRESH)
        changes = RowChanges([(2, "a", at(1)), (2, "b", at(1))], unique=False, order=order)
        with pytest.raises(SourceError, match="1 keys") as refused:
            sink.apply(orders(), batch(2), changes, how=How.FRESH if first else How.CHANGES)
        assert "HAVING count(*) > 1" in refused.value.remedy
        assert ids(read(orders())) == [1]

    def test_a_repair_makes_its_part_equal_past_newer_rows_and_leaves_the_rest(self, sink: Sink, read: Read) -> None:
        rows = [(1, "right", at(0)), (2, "newer", at(9)), (4, "extra", at(0)), (5, "twice", at(0)), (50, "far", at(0))]
        sink.apply(orders(), batch(1), RowChanges(rows), how=How.FRESH)
        if not self.keys_enforced:
            sink.apply(orders(), batch(2), RowChanges([(5, "twice", at(0))]), how=How.FRESH)
            assert ids(read(orders())) == [1, 2, 4, 5, 5, 50]
        given = RowChanges([(1, "right", at(0)), (2, "older", at(1)), (3, "missing", at(0)), (5, "twice", at(0))])
        part = KeyRange("id", None, 10)
        applied = sink.apply(orders(), batch(3), given, how=How.REPAIR, repair=Repair(part))
        assert names(read(orders())) == {1: "right", 2: "older", 3: "missing", 4: "extra", 5: "twice", 50: "far"}
        assert ids(read(orders())) == [1, 2, 3, 4, 5, 50]
        assert (applied.rows_read, applied.rows_updated) == (4, 1)
        with pytest.raises(TargetError, match="1 rows"):
            sink.apply(orders(), batch(4), given, how=How.REPAIR, repair=Repair(part, deletes=0))
        applied = sink.apply(orders(), batch(4), given, how=How.REPAIR, repair=Repair(part, deletes=1))
        again = sink.apply(orders(), batch(4, attempt="b"), RowChanges([]), how=How.REPAIR, repair=Repair(part, 99))
        assert ids(read(orders())) == [1, 2, 3, 5, 50]
        assert applied == again and (applied.rows_inserted, applied.rows_updated, applied.rows_deleted) == (0, 0, 1)
        receipt = sink.applied(orders())
        assert receipt is not None and receipt.batch == batch(4)

    def test_a_repair_deletes_what_the_source_marks_and_in_append_mode_nothing(self, sink: Sink, read: Read) -> None:
        everything = KeyRange("id", None, None)
        sink.apply(orders(), batch(1), RowChanges([(1, "gone", at(0)), (2, "kept", at(0))]), how=How.FRESH)
        marked = RowChanges([(1, "", at(5), "delete"), (3, "", at(5), "delete")], f"{ORDERS}, op string", "op")
        sink.apply(orders(), batch(2), marked, how=How.REPAIR, repair=Repair(everything))
        assert names(read(orders())) == {2: "kept"}
        log = orders("log", mode=Mode.APPEND)
        sink.apply(log, batch(1), RowChanges([(1, "old", at(0)), (2, "two", at(0))]), how=How.FRESH)
        given = RowChanges([(1, "new", at(1)), (2, "two!", at(0))])
        sink.apply(log, batch(2), given, how=How.REPAIR, repair=Repair(everything, deletes=9))
        assert sorted(row["name"] for row in read(log)) == ["new", "old", "two!"]

    def test_a_null_key_is_refused(self, sink: Sink, read: Read) -> None:
        sink.apply(orders(), batch(1), RowChanges([(1, "one", at(0))]), how=How.FRESH)
        with pytest.raises(SourceError, match="NULL in the key"):
            changes = RowChanges([(None, "nobody", at(1)), (2, "b", at(1))], unique=False)
            sink.apply(orders(), batch(2), changes, how=How.CHANGES)
        assert ids(read(orders())) == [1]

    def test_new_and_wider_columns_evolve_and_lost_ones_are_kept(self, sink: Sink, read: Read) -> None:
        old = "id int, name string, at timestamp, price decimal(10,2)"
        sink.apply(orders(), batch(1), RowChanges([(1, "one", at(0), None)], old), how=How.FRESH)
        new = "id bigint, at timestamp, price decimal(20,2), note string"
        changes = RowChanges([(2**40, at(1), None, "hello"), (1, at(1), None, "again")], new)
        sink.apply(orders(), batch(2), changes, how=How.CHANGES)
        stored = {row["id"]: (row["name"], row["note"]) for row in read(orders())}
        assert stored == {1: ("one", "again"), 2**40: (None, "hello")}

    @pytest.mark.parametrize("changed", ["id bigint, name int, at timestamp", "id int, name string, at timestamp"])
    def test_a_changed_or_narrower_type_stops_the_table(self, sink: Sink, read: Read, changed: str) -> None:
        sink.apply(orders(), batch(1), RowChanges([(1, "one", at(0))]), how=How.FRESH)
        with pytest.raises(SchemaError) as refused:
            sink.apply(orders(), batch(2), RowChanges([], changed), how=How.CHANGES)
        assert "--full" in refused.value.remedy
        assert names(read(orders())) == {1: "one"}

    def test_a_table_that_says_stop_takes_no_new_column(self, sink: Sink, read: Read) -> None:
        table = orders(schema="stop")
        sink.apply(table, batch(1), RowChanges([(1, "one", at(0))]), how=How.FRESH)
        with pytest.raises(SchemaError, match="note"):
            changes = RowChanges([(2, "two", at(1), "x")], f"{ORDERS}, note string")
            sink.apply(table, batch(2), changes, how=How.CHANGES)
        assert set(read(table)[0]) == {"id", "name", "at"}

    def test_any_identifier_is_taken_as_it_is(self, sink: Sink, read: Read) -> None:
        schema = "`the id` bigint, `se``lect` string, `ÿber-Größe` string, at timestamp"
        table = orders(key=("the id",))
        sink.apply(table, batch(1), RowChanges([(1, "a", "b", at(0))], schema), how=How.FRESH)
        sink.apply(table, batch(2), RowChanges([(1, "c", "d", at(1))], schema), how=How.CHANGES)
        assert [tuple(row.values())[:3] for row in read(table)] == [(1, "c", "d")]

    def test_tables_side_by_side_do_not_see_each_other(self, sink: Sink, read: Read) -> None:
        orders_, items = orders(), orders("items")
        sink.apply(orders_, batch(1), RowChanges([(1, "order", at(0))]), how=How.FRESH)
        assert sink.applied(items) is None
        sink.apply(items, batch(1), RowChanges([(1, "item", at(0))]), how=How.FRESH)
        sink.apply(items, batch(2), RowChanges([(2, "item", at(1))]), how=How.CHANGES)
        receipt = sink.applied(orders_)
        assert receipt is not None and receipt.batch == batch(1)
        assert names(read(orders_)) == {1: "order"}
        assert ids(read(items)) == [1, 2]

    def test_another_pipelines_target_is_refused_unless_shared(self, sink: Sink, read: Read) -> None:
        sink.apply(orders(), batch(1), RowChanges([(1, "one", at(0))]), how=How.FRESH)
        stranger = orders(pipeline="warehouse")
        with pytest.raises(TargetError, match=r"shop\.orders"):
            sink.applied(stranger)
        shared = replace(stranger, shared=True)
        assert sink.applied(shared) is None
        sink.apply(shared, batch(1), RowChanges([(2, "two", at(0))]), how=How.CHANGES)
        assert ids(read(orders())) == [1, 2]
        receipt = sink.applied(orders())
        assert receipt is not None and receipt.batch == batch(1)

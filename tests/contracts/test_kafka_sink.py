"""The Sink contract on Kafka, as far as a topic can keep it: it holds changes, so what a consumer makes of them is
compared, and nothing that depends on the rows that are there already (which of two is newer, what is replaced)."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

import pytest

from strandline.core.batch import Applied, How
from strandline.core.errors import BatchConflictError
from strandline.core.protocols import Sink
from strandline.core.table import Mode, Table
from strandline.core.watermark import Kind, Watermark
from strandline.endpoint import Endpoint
from strandline.sinks import open_sink
from strandline.testing.kafka import Kafka, current
from strandline.testing.sink import (
    ORDERS,
    Connect,
    InterruptedChanges,
    Read,
    Row,
    RowChanges,
    SinkContract,
    at,
    batch,
    names,
    orders,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class OnKafka:
    exactly_once = "true"

    @pytest.fixture
    def topic(self) -> str:
        return f"t{uuid.uuid4().hex[:12]}.{{table}}"

    @pytest.fixture
    def connect(self, kafka: Kafka, topic: str, spark: SparkSession) -> Iterator[Connect]:
        options = {"topic": topic, "create": "true", "exactly_once": self.exactly_once}
        endpoint = Endpoint.parse(kafka.url(), options)
        with ExitStack() as opened:
            yield lambda: opened.enter_context(closing(open_sink(endpoint, lambda: spark)))

    @pytest.fixture
    def read(self, kafka: Kafka, topic: str) -> Read:
        def rows(table: Table) -> list[Row]:
            found = kafka.consume(topic.replace("{table}", table.target))
            return [each.value for each in found] if table.mode is Mode.APPEND else list(current(found).values())

        return rows


class TestKafkaSink(OnKafka, SinkContract):
    """With transactions."""

    def test_a_merge_counts_what_it_did(self, sink: Sink, connect: Connect, read: Read) -> None:
        """A topic cannot tell a new row from a changed one: what is published counts as inserted."""
        sink.apply(orders(), batch(1), RowChanges([(1, "one", at(0)), (2, "two", at(0))]), how=How.FRESH)
        changes = RowChanges([(2, "zwei", at(1)), (3, "drei", at(1))])
        applied = sink.apply(orders(), batch(2), changes, how=How.CHANGES)
        assert applied == Applied(2, 2, 0, 0, Watermark(Kind.TIMESTAMP, f"{at(1)}"))
        receipt = connect().applied(orders())
        assert receipt is not None and (receipt.batch, receipt.applied) == (batch(2), applied)
        assert names(read(orders())) == {1: "one", 2: "zwei", 3: "drei"}

    def test_deletes_go_by_the_operation_and_respect_newer_rows(self, sink: Sink, read: Read) -> None:
        """They go by the operation; that the row may be newer is for consumers to see, in `cursor`."""
        sink.apply(orders(), batch(1), RowChanges([(1, "gone", at(0)), (2, "stays", at(0))]), how=How.FRESH)
        rows = [(1, "", at(1), "delete"), (2, "new", at(1), "upsert"), (4, "", at(1), "delete")]
        applied = sink.apply(orders(), batch(2), RowChanges(rows, f"{ORDERS}, op string", "op"), how=How.CHANGES)
        assert names(read(orders())) == {2: "new"}
        assert (applied.rows_inserted, applied.rows_updated, applied.rows_deleted) == (1, 0, 2)
        assert "op" not in read(orders())[0]

    @pytest.mark.parametrize("mode", [Mode.MERGE, Mode.APPEND])
    def test_a_batch_without_rows_is_remembered(self, sink: Sink, connect: Connect, read: Read, mode: Mode) -> None:
        super().test_a_batch_without_rows_is_remembered(sink, connect, read, mode)

    @pytest.mark.parametrize("mode", [Mode.MERGE, Mode.APPEND])
    def test_a_zombie_that_wakes_up_past_its_checks_commits_nothing(
        self, sink: Sink, connect: Connect, read: Read, mode: Mode
    ) -> None:
        super().test_a_zombie_that_wakes_up_past_its_checks_commits_nothing(sink, connect, read, mode)


for name in (
    "test_a_newer_row_is_never_overwritten_and_an_equal_one_is_refreshed",
    "test_where_the_source_went_back_a_row_replaces_one_with_a_higher_cursor",
    "test_replace_takes_the_place_of_everything",
    "test_a_repair_makes_its_part_equal_past_newer_rows_and_leaves_the_rest",
    "test_a_repair_deletes_what_the_source_marks_and_in_append_mode_nothing",
    "test_new_and_wider_columns_evolve_and_lost_ones_are_kept",
    "test_a_changed_or_narrower_type_stops_the_table",
):
    assert hasattr(SinkContract, name)
    setattr(TestKafkaSink, name, None)  # of a target that holds rows


class TestKafkaSinkAtLeastOnce(OnKafka):
    """Rows of a batch that was given up may come, and consumers drop them by their headers; no position of it does."""

    exactly_once = "false"

    @pytest.fixture
    def sink(self, connect: Connect) -> Sink:
        return connect()

    test_an_applied_batch_is_told_to_whoever_asks_later = (
        SinkContract.test_an_applied_batch_is_told_to_whoever_asks_later
    )
    test_the_last_of_several_changes_of_a_key_wins = SinkContract.test_the_last_of_several_changes_of_a_key_wins
    test_a_first_load_leaves_deleted_rows_out = SinkContract.test_a_first_load_leaves_deleted_rows_out
    test_deletes_go_by_the_operation = TestKafkaSink.test_deletes_go_by_the_operation_and_respect_newer_rows

    def test_the_same_batch_again_publishes_nothing(self, sink: Sink, kafka: Kafka, topic: str) -> None:
        table = orders(mode=Mode.APPEND)
        applied = sink.apply(table, batch(1), RowChanges([(1, "one", at(0)), (1, "uno", at(0))]), how=How.FRESH)
        again = sink.apply(table, batch(1, attempt="b"), RowChanges([(9, "WRONG", at(2))]), how=How.FRESH)
        assert again == applied
        assert len(kafka.consume(topic.replace("{table}", table.target))) == 2

    def test_a_zombie_that_wakes_up_past_its_checks_tells_nobody(
        self, sink: Sink, connect: Connect, read: Read
    ) -> None:
        zombie = connect()
        sink.apply(orders(), batch(1), RowChanges([(1, "one", at(0))]), how=How.FRESH)

        def take_over() -> None:
            sink.apply(orders(), batch(2, epoch=2), RowChanges([(1, "two", at(1))]), how=How.CHANGES)

        asleep = InterruptedChanges([(1, "ZOMBIE", at(9))], meanwhile=take_over)
        with pytest.raises(BatchConflictError):
            zombie.apply(orders(), batch(2), asleep, how=How.CHANGES)
        assert names(read(orders())) == {1: "two"}
        receipt = sink.applied(orders())
        assert receipt is not None and receipt.batch == batch(2, epoch=2)

    def test_a_fence_shuts_out_a_batch_that_is_on_its_way(self, sink: Sink, connect: Connect, read: Read) -> None:
        sink.apply(orders(), batch(1), RowChanges([(1, "one", at(0))]), how=How.FRESH)

        def shut_out() -> None:
            sink.fence(orders(), 2)

        asleep = InterruptedChanges([(1, "ZOMBIE", at(9))], meanwhile=shut_out)
        with pytest.raises(BatchConflictError):
            connect().apply(orders(), batch(2), asleep, how=How.CHANGES)
        held = connect().applied(orders())
        assert held is not None and (held.batch, held.epoch) == (batch(1), 2)
        sink.apply(orders(), batch(2, epoch=2), RowChanges([(1, "two", at(1))]), how=How.CHANGES)
        assert names(read(orders())) == {1: "two"}

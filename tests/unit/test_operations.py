"""What a person does to positions: refusals, what is shown, and that it is written as shown."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from strandline import operations
from strandline.config import load_config
from strandline.core.batch import Batch
from strandline.core.books import Books, Lease
from strandline.core.errors import (
    ConfigError,
    LeaseError,
    SourceError,
    StateError,
    StrandlineError,
    TargetError,
    WindowError,
)
from strandline.core.events import Event, Intended
from strandline.core.position import Gap, Position, Status
from strandline.core.protocols import Record
from strandline.core.run import Hop
from strandline.core.table import Mode
from strandline.core.watermark import Kind, Watermark
from strandline.operations import Change
from strandline.pipeline import Pipeline
from strandline.project import Project
from strandline.state.memory import MemoryState
from strandline.testing.world import Killed, World

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONFIG = """
pipelines:
  shop:
    source: postgresql://reader@127.0.0.1/shop
    target: delta:lake
    tables:
      - {name: orders, cursor: moved}
      - {name: events, cursor: moved, mode: append}
      - {name: rates, mode: snapshot}
  other:
    source: postgresql://reader@127.0.0.1/shop
    target: delta:elsewhere
    tables:
      - {name: orders, cursor: moved}
"""


class Shop(Project):
    """A project whose source, sink and state live in memory; everything between them is the product's own."""

    def __init__(self, folder: Path) -> None:
        file = folder / "strandline.yml"
        file.write_text(CONFIG)
        super().__init__(load_config(file))
        self.world = World()
        for name in ("orders", "events", "rates"):
            self.world.table(name)
        self.world.change("events", mode=Mode.APPEND, key=())
        self.world.change("rates", mode=Mode.SNAPSHOT, cursor=None)

    @property
    def books(self) -> Books:
        return self.world.books()

    @contextmanager
    def opened(self, name: str, stage: str = "", spark: SparkSession | None = None) -> Iterator[Pipeline]:
        def no_spark() -> SparkSession:
            raise AssertionError(f"no operation on positions needs Spark, not even {spark}")

        pipeline = Pipeline(self.pipeline(name), stage or "sync", no_spark)
        pipeline._source, pipeline._sink = self.world.source, self.world.sink
        yield pipeline

    def crash_before_commit(self) -> None:
        """The sink took a batch, and the process died before the state heard of it."""

        def die() -> None:
            raise Killed

        self.world.sink.at_commit(after=die)
        with pytest.raises(Killed):
            self.world.poll()
        self.world.expire_leases()

    def ids(self, table: str = "orders") -> list[int]:
        return [row["id"] for row in self.world.target_rows(table)]

    def apply(self, change: Change) -> Position:
        return operations.apply(self, [change], why="a test", who="ann@host")[0]


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


@pytest.fixture
def loaded(shop: Shop) -> Shop:
    """Three orders, each written two seconds after the other, all in the target."""
    for number in (1, 2, 3):
        shop.world.write(number)
        shop.world.write(number, table="events")
    shop.world.poll()
    return shop


def moved_at(shop: Shop, number: int, table: str = "orders") -> str:
    return str(next(row["moved"] for row in shop.world.source.rows(table) if row["id"] == number).replace(tzinfo=None))


def test_set_shows_old_new_and_the_rows_to_be_read_again_and_writes_nothing(loaded: Shop) -> None:
    before = loaded.world.position()
    change = operations.set_watermark(loaded, "shop", "orders", moved_at(loaded, 2))
    assert change.old == before.watermark
    assert change.new == Watermark(Kind.TIMESTAMP, moved_at(loaded, 2))
    assert (change.effect, change.rows) == ("re-read", 2)
    assert loaded.world.position() == before
    assert operations.history(loaded) == []


def test_rows_are_read_again_after_set_and_merged(loaded: Shop) -> None:
    loaded.apply(operations.set_watermark(loaded, "shop", "orders", moved_at(loaded, 2)))
    outcome = loaded.world.poll()["orders"]
    assert outcome.applied.rows_read == 2
    assert loaded.ids() == [1, 2, 3]


def test_set_forward_says_how_many_rows_will_be_skipped(shop: Shop) -> None:
    shop.world.write(1)
    shop.world.write(2)
    change = operations.set_watermark(shop, "shop", "orders", moved_at(shop, 2))
    assert (change.old, change.effect, change.rows) == (None, "skipped", 1)
    shop.apply(change)
    shop.world.poll()
    assert shop.ids() == [2]


def test_set_raises_the_epoch_and_records_who_and_why(loaded: Shop) -> None:
    before = loaded.world.position()
    after = loaded.apply(operations.set_watermark(loaded, "shop", "orders", moved_at(loaded, 1)))
    assert after.epoch == before.epoch + 1
    (entry,) = operations.history(loaded, "shop", "orders")
    assert (entry.action, entry.who, entry.why) == ("set", "ann@host", "a test")
    assert (entry.old, entry.new) == (str(before.watermark), moved_at(loaded, 1))


def test_a_value_in_the_future_is_refused(loaded: Shop) -> None:
    with pytest.raises(WindowError, match="in the future"):
        operations.set_watermark(loaded, "shop", "orders", "2031-01-01")


def test_a_value_above_an_open_transaction_is_refused_like_the_future(loaded: Shop) -> None:
    transaction = loaded.world.source.begin()
    loaded.world.clock.advance(60)
    late = str(loaded.world.clock.now().replace(tzinfo=None))
    with pytest.raises(WindowError, match="in the future"):
        operations.set_watermark(loaded, "shop", "orders", late)
    transaction.commit()


def test_a_table_whose_first_horizon_is_held_cannot_be_set_yet(shop: Shop) -> None:
    shop.world.source.begin()
    with pytest.raises(SourceError, match="cannot be told now: transaction 1"):
        operations.set_watermark(shop, "shop", "orders", "2026-01-01")


@pytest.mark.parametrize("text", ["4711", "yesterday", "2026-13-01", "2026-11-15 25:00:00"])
def test_a_value_of_the_wrong_type_is_refused(loaded: Shop, text: str) -> None:
    with pytest.raises(WindowError):
        operations.set_watermark(loaded, "shop", "orders", text)


def test_a_version_for_a_timestamp_cursor_names_the_right_flag(loaded: Shop) -> None:
    with pytest.raises(WindowError) as caught:
        operations.set_watermark(loaded, "shop", "orders", "2026-11-15", kind=Kind.VERSION)
    assert caught.value.remedy == "Use --timestamp"


def test_a_snapshot_has_no_watermark_to_set(loaded: Shop) -> None:
    with pytest.raises(ConfigError, match="snapshot"):
        operations.set_watermark(loaded, "shop", "rates", "2026-11-15")


def test_set_during_a_run_is_refused_and_names_the_run(loaded: Shop) -> None:
    lease = hold(loaded)
    with pytest.raises(LeaseError, match=f"{lease.holder}, run r1"):
        operations.set_watermark(loaded, "shop", "orders", moved_at(loaded, 1))


def test_set_waits_for_the_end_of_the_run(loaded: Shop) -> None:
    lease = hold(loaded)
    ended = threading.Timer(0.2, lambda: loaded.world.state.put([replace(lease, expires_at="").record()]))
    ended.start()
    change = operations.set_watermark(loaded, "shop", "orders", moved_at(loaded, 1), wait=True)
    ended.join()
    assert str(loaded.apply(change).watermark) == moved_at(loaded, 1)


def hold(shop: Shop, table: str = "orders") -> Lease:
    books = shop.books
    lease = books.take(books.leases("shop").get(table) or Lease("shop", table), "r1")
    return replace(lease, revision=books.state.put([lease.record()])[0].revision)


def test_a_run_that_planned_before_the_change_cannot_start_after_it(loaded: Shop) -> None:
    loaded.world.write(4)
    planned = loaded.world.plan(run_id="r1")
    leases = loaded.books.leases("shop")
    loaded.apply(operations.set_watermark(loaded, "shop", "orders", moved_at(loaded, 1)))
    hop = Hop("r1", "shop", loaded.world.source, loaded.world.sink, loaded.books, lambda _: None)
    work = next(part for part in planned if part.table.name == "orders")
    (outcome,) = hop.run([work], leases)
    assert isinstance(outcome.error, LeaseError)
    assert loaded.ids() == [1, 2, 3]


def test_what_moved_since_it_was_shown_is_not_overwritten(loaded: Shop) -> None:
    change = operations.reset(loaded, "shop", "orders")
    loaded.world.write(4)
    loaded.world.poll()
    after_run = loaded.world.position()
    with pytest.raises(LeaseError, match="since it was shown"):
        loaded.apply(change)
    assert loaded.world.position() == after_run
    assert operations.history(loaded) == []


def test_a_batch_the_target_took_before_the_crash_counts_as_done(loaded: Shop) -> None:
    loaded.world.write(4)
    loaded.crash_before_commit()
    change = operations.set_watermark(loaded, "shop", "orders", moved_at(loaded, 4))
    assert change.before.intent is None
    assert change.old is not None and change.old > Watermark(Kind.TIMESTAMP, moved_at(loaded, 4))
    assert any("counts as done" in note for note in change.notes)
    loaded.apply(change)
    assert loaded.world.poll()["orders"].status is Status.COMPLETED
    assert loaded.ids() == [1, 2, 3, 4]


def test_a_plan_given_up_halfway_shuts_out_the_batches_that_may_be_on_their_way(loaded: Shop) -> None:
    """With `commit_every` its next batch needs no word from the state; the target refuses it."""
    world, table = loaded.world, loaded.world.change("orders", slice_rows=1)
    world.commit_every = 3
    for number in (4, 5, 6):
        world.write(number)
    loaded.crash_before_commit()
    change = operations.set_watermark(loaded, "shop", "orders", moved_at(loaded, 1))
    assert change.fence and any("counts as done" in note for note in change.notes)
    after = loaded.apply(change)
    receipt = world.sink.applied(table)
    assert receipt is not None and receipt.epoch == after.epoch
    assert loaded.ids() == [1, 2, 3, 4]
    assert world.poll()["orders"].status is Status.COMPLETED
    assert loaded.ids() == [1, 2, 3, 4, 5, 6]


def test_reset_reads_everything_again_and_touches_no_target_data(loaded: Shop) -> None:
    change = operations.reset(loaded, "shop", "orders")
    assert (change.new, change.effect, change.rows) == (None, "re-read", 3)
    loaded.apply(change)
    assert loaded.ids() == [1, 2, 3]
    assert loaded.world.poll()["orders"].applied.rows_read == 3
    assert loaded.ids() == [1, 2, 3]


def test_one_tables_reset_leaves_the_other_alone(loaded: Shop) -> None:
    events = loaded.world.position("events")
    loaded.apply(operations.reset(loaded, "shop", "orders"))
    assert loaded.world.position("events") == events


def test_append_mode_goes_back_only_where_the_person_says_so_by_name(loaded: Shop) -> None:
    with pytest.raises(ConfigError) as caught:
        operations.reset(loaded, "shop", "events")
    assert "--allow-duplicates" in caught.value.remedy
    with pytest.raises(ConfigError):
        operations.set_watermark(loaded, "shop", "events", moved_at(loaded, 1, "events"))
    loaded.apply(operations.reset(loaded, "shop", "events", allow_duplicates=True))
    loaded.world.poll()
    assert loaded.ids("events") == [1, 1, 2, 2, 3, 3]


@pytest.fixture
def half_loaded(shop: Shop) -> Shop:
    """An append table whose first load by key died after one of its three slices: no watermark, but rows."""
    world = shop.world
    world.source.key_slices = True
    world.change("events", key=("id",), slice_rows=1)
    for number in (1, 2, 3):
        world.write(number, table="events")
    del world.tables["orders"], world.tables["rates"]
    assert world.poll_killed(4)
    world.expire_leases()
    assert (shop.ids("events"), world.position("events").watermark) == ([1], None)
    return shop


def test_append_mode_does_not_start_anew_over_half_a_first_load(half_loaded: Shop) -> None:
    run_id = half_loaded.world.position("events").run_id
    for again in (
        lambda: operations.reset(half_loaded, "shop", "events"),
        lambda: operations.set_watermark(half_loaded, "shop", "events", moved_at(half_loaded, 1, "events")),
        lambda: operations.set_watermark(half_loaded, "shop", "events", accept=True),
        lambda: operations.replan(half_loaded, run_id),
    ):
        with pytest.raises(ConfigError, match="once more"):
            again()
    half_loaded.world.poll()
    assert half_loaded.ids("events") == [1, 2, 3]


def test_append_mode_is_not_rebuilt_from_half_a_first_load(half_loaded: Shop) -> None:
    operations.apply(half_loaded, [operations.forget(half_loaded, "shop", "events")], why="an accident")
    with pytest.raises(ConfigError, match="once more"):
        operations.import_from_target(half_loaded, "shop", "events")


def test_a_full_reload_that_died_is_not_planned_away(loaded: Shop) -> None:
    """Its watermark is gone: a sync that went on from `initial: latest` would leave out all rows since the last one."""

    def die(event: Event) -> None:
        if isinstance(event, Intended):
            raise Killed

    with pytest.raises(Killed):
        loaded.sync("shop", tables=["orders"], full=True, listener=die)
    loaded.world.expire_leases()
    position = loaded.world.position()
    assert position.plan is not None and position.watermark is None
    with pytest.raises(ConfigError, match="full reload"):
        operations.replan(loaded, position.run_id)
    with pytest.raises(ConfigError, match="full reload"):
        operations.set_watermark(loaded, "shop", "orders", accept=True)
    loaded.world.poll()
    assert loaded.ids() == [1, 2, 3]


def test_reset_says_what_initial_makes_of_the_rows(loaded: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded.world.write(4)
    spec = loaded.pipeline("shop")
    for initial, said in (("latest", ("skipped", 1)), (moved_at(loaded, 2), ("re-read", 2))):
        tables = tuple(replace(table, initial=initial) for table in spec.tables)
        monkeypatch.setitem(loaded.config.pipelines, "shop", replace(spec, tables=tables))
        change = operations.reset(loaded, "shop", "orders")
        assert (change.new, change.effect, change.rows) == (None, *said)


def test_a_lease_is_written_before_the_position_it_guards(loaded: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that is not atomic stops at the first conflict: a run that began meanwhile must be that one."""
    put = loaded.world.state.put
    order: list[list[str]] = []

    def watched(records: Sequence[Record]) -> list[Record]:
        order.append([record.kind for record in records])
        return put(records)

    change = operations.reset(loaded, "shop", "orders")
    monkeypatch.setattr(loaded.world.state, "put", watched)
    loaded.apply(change)
    assert order == [["lease", "position", "change"]]


def test_accept_keeps_the_watermark_and_names_what_it_accepts(loaded: Shop) -> None:
    loaded.world.source.name = "the new server"
    before = loaded.world.position()
    loaded.world.poll()
    assert "measures has changed" in loaded.world.plan()[0].plan.error
    change = operations.set_watermark(loaded, "shop", "orders", accept=True)
    assert any("memory → the new server" in note for note in change.notes)
    assert loaded.apply(change).watermark == before.watermark
    loaded.world.write(4)
    assert loaded.world.poll()["orders"].applied.rows_read == 1


def test_a_value_and_accept_exclude_each_other(loaded: Shop) -> None:
    with pytest.raises(ConfigError):
        operations.set_watermark(loaded, "shop", "orders", "2026-01-01", accept=True)
    with pytest.raises(ConfigError):
        operations.set_watermark(loaded, "shop", "orders")


def test_a_lost_state_is_rebuilt_from_the_target_and_goes_on_there(loaded: Shop) -> None:
    before = loaded.world.position()
    operations.apply(loaded, [operations.forget(loaded, "shop", "orders")], why="an accident")
    loaded.world.write(4)
    assert isinstance(loaded.world.poll()["orders"].error, TargetError)
    after = loaded.apply(operations.import_from_target(loaded, "shop", "orders"))
    assert (after.watermark, after.batch) == (before.watermark, before.batch)
    assert after.epoch > before.epoch
    assert loaded.world.poll()["orders"].applied.rows_read == 1
    assert loaded.ids() == [1, 2, 3, 4]


def test_a_position_that_agrees_with_the_target_is_not_imported_over(loaded: Shop) -> None:
    with pytest.raises(StateError, match="agree"):
        operations.import_from_target(loaded, "shop", "orders")


def test_an_empty_target_gives_nothing_to_rebuild_from(shop: Shop) -> None:
    with pytest.raises(TargetError, match="holds no batch"):
        operations.import_from_target(shop, "shop", "orders")


def test_a_position_that_cannot_be_read_is_rebuilt_from_the_target(loaded: Shop) -> None:
    before = loaded.world.position()
    corrupt(loaded)
    change = operations.import_from_target(loaded, "shop", "orders")
    assert any("cannot be read" in note for note in change.notes)
    assert loaded.apply(change).watermark == before.watermark


def test_a_position_that_cannot_be_read_can_be_set_and_keeps_the_targets_batch(loaded: Shop) -> None:
    before = loaded.world.position()
    corrupt(loaded)
    after = loaded.apply(operations.set_watermark(loaded, "shop", "orders", moved_at(loaded, 1)))
    assert after.batch == before.batch
    loaded.world.poll()
    assert loaded.ids() == [1, 2, 3]


def corrupt(shop: Shop) -> None:
    (record,) = shop.world.state.read("position", ["shop", "orders"])
    shop.world.state.put([replace(record, fields={**record.fields, "watermark": "garbage"})])


def test_export_and_import_carry_positions_to_another_store(loaded: Shop) -> None:
    document = json.loads(json.dumps(operations.export(loaded)))
    before = loaded.world.position()
    loaded.world.state = MemoryState(loaded.world.clock.now)
    changes = operations.import_(loaded, document)
    assert {change.where for change in changes} == {"shop.orders", "shop.events", "shop.rates"}
    assert loaded.world.position().revision == 0
    operations.apply(loaded, changes, why="moved house")
    after = loaded.world.position()
    assert (after.watermark, after.batch, after.measures) == (before.watermark, before.batch, before.measures)
    assert after.epoch == before.epoch + 1
    loaded.world.write(4)
    assert loaded.world.poll()["orders"].applied.rows_read == 1
    assert loaded.ids() == [1, 2, 3, 4]


def test_importing_a_backup_taken_in_mid_batch_settles_it_with_the_target(loaded: Shop) -> None:
    loaded.world.write(4)
    loaded.crash_before_commit()
    document = operations.export(loaded)
    operations.apply(loaded, operations.import_(loaded, document), why="restored")
    loaded.world.write(5)
    assert loaded.world.poll()["orders"].applied.rows_read == 1
    assert loaded.ids() == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("document", [[], {}, {"strandline_positions": 99, "positions": []}, {"positions": "x"}])
def test_a_document_that_is_no_export_is_refused(shop: Shop, document: object) -> None:
    with pytest.raises(ConfigError):
        operations.import_(shop, document)


def test_an_export_with_a_damaged_position_names_it(loaded: Shop) -> None:
    document = operations.export(loaded)
    document["positions"][1]["watermark"] = "garbage"
    with pytest.raises(ConfigError, match="position 2"):
        operations.import_(loaded, document)


def test_rename_is_refused_where_the_target_knows_its_batches_by_name(loaded: Shop) -> None:
    before = loaded.world.position()
    with pytest.raises(TargetError) as caught:
        operations.rename(loaded, ("shop", "orders"), ("other", "orders"))
    assert "sync --full -p other" in caught.value.remedy
    assert loaded.world.position() == before


def test_rename_moves_a_position_that_the_target_has_no_batches_of(shop: Shop) -> None:
    shop.world.poll()
    shop.apply(operations.rename(shop, ("shop", "orders"), ("other", "orders")))
    assert [key[:2] for key in shop.books.positions()] == [("other", "orders"), ("shop", "events"), ("shop", "rates")]
    (entry,) = operations.history(shop, "other")
    assert entry.action == "rename"


def test_rename_onto_a_position_is_refused(loaded: Shop) -> None:
    with pytest.raises(StateError, match="has a position already"):
        operations.rename(loaded, ("shop", "orders"), ("shop", "events"))


def test_forget_drops_position_and_lease_and_keeps_history_and_target(loaded: Shop) -> None:
    loaded.apply(operations.reset(loaded, "shop", "orders"))
    loaded.world.clock.advance(1)
    change = operations.forget(loaded, "shop", "orders")
    operations.apply(loaded, [change], why="gone")
    assert loaded.world.position().revision == 0
    assert "orders" not in loaded.books.leases("shop")
    assert [entry.action for entry in operations.history(loaded)] == ["forget", "reset"]
    assert loaded.ids() == [1, 2, 3]


def test_forgetting_what_is_not_there_is_an_error(shop: Shop) -> None:
    with pytest.raises(StateError, match="no position"):
        operations.forget(shop, "shop", "orders")


def test_replan_keeps_what_is_done_and_plans_the_rest_anew(loaded: Shop) -> None:
    loaded.world.change("orders", slice_rows=1)
    for number in (4, 5, 6):
        loaded.world.write(number)
    loaded.crash_before_commit()
    run_id = loaded.world.position().run_id
    (change,) = [change for change in operations.replan(loaded, run_id) if change.before.table == "orders"]
    assert any("1 of 3 slices" in note for note in change.notes)
    loaded.apply(change)
    assert loaded.world.position().plan is None
    loaded.world.change("orders", slice_rows=100)
    assert loaded.world.poll()["orders"].applied.rows_read == 2
    assert loaded.ids() == [1, 2, 3, 4, 5, 6]


def test_replan_of_a_run_without_a_plan_is_an_error(loaded: Shop) -> None:
    with pytest.raises(StateError, match="left no plan open"):
        operations.replan(loaded, "20260101-000000-000-abcdef")


def test_replan_of_half_a_first_load_in_append_mode_would_repeat_rows(shop: Shop) -> None:
    shop.world.source.key_slices = True
    shop.world.change("events", slice_rows=1, key=("id",))
    for number in (1, 2, 3):
        shop.world.write(number, table="events")
    shop.crash_before_commit()
    run_id = shop.world.position("events").run_id
    with pytest.raises(ConfigError) as caught:
        operations.replan(shop, run_id)
    assert "--allow-duplicates" in caught.value.remedy


def test_status_shows_lag_open_plans_and_who_is_at_work(loaded: Shop) -> None:
    loaded.world.write(4)
    loaded.crash_before_commit()
    loaded.world.clock.advance(120)
    hold(loaded, "events")
    (pipeline, other) = operations.status(loaded)
    assert (pipeline.pipeline, other.pipeline, other.tables) == ("shop", "other", ())
    tables = {table.table: table for table in pipeline.tables}
    plan = tables["orders"].plan
    assert plan is not None and plan.age_seconds is not None and plan.age_seconds > 120
    assert tables["orders"].lag_seconds is not None and tables["orders"].lag_seconds > 120
    assert tables["events"].running and not tables["orders"].running
    assert pipeline.last_run is not None and pipeline.last_run.fields["status"] == "RUNNING"
    assert json.dumps(pipeline.to_json())


def test_status_shows_a_position_that_cannot_be_read_and_the_others(loaded: Shop) -> None:
    corrupt(loaded)
    tables = {table.table: table for table in operations.status(loaded)[0].tables}
    assert tables["orders"].status == "UNREADABLE"
    assert tables["events"].status == "COMPLETED"


def test_a_batch_of_the_old_epoch_cannot_be_mistaken_for_one_of_the_new(loaded: Shop) -> None:
    before = loaded.world.position().batch
    loaded.apply(operations.reset(loaded, "shop", "orders"))
    loaded.world.poll()
    after = loaded.world.position().batch
    assert isinstance(before, Batch) and isinstance(after, Batch)
    assert after.order > before.order
    assert after.number == before.number + 1


def test_a_target_that_forgot_how_far_it_went_cannot_rebuild_a_position(loaded: Shop) -> None:
    held = loaded.world.sink.backup("orders")
    assert held is not None
    vague = {owner: replace(receipt, exact=False) for owner, receipt in held.receipts.items()}
    loaded.world.sink.restore("orders", replace(held, receipts=vague))
    operations.apply(loaded, [operations.forget(loaded, "shop", "orders")], why="an accident")
    with pytest.raises(TargetError) as caught:
        operations.import_from_target(loaded, "shop", "orders")
    assert "sync --full" in caught.value.remedy


def opened_range(shop: Shop, table: str = "orders") -> Gap:
    """A range below the watermark where rows may still appear."""
    position = shop.world.position(table)
    gap = Gap(Watermark(Kind.TIMESTAMP, moved_at(shop, 2, table)), "passed over transaction 7")
    shop.world.books().write([replace(position, gap=gap)])
    return gap


def test_accepting_a_change_keeps_an_open_range_and_setting_past_it_says_what_is_left_out(loaded: Shop) -> None:
    gap = opened_range(loaded)
    accepted = operations.set_watermark(loaded, "shop", "orders", accept=True)
    assert accepted.after is not None and accepted.after.gap == gap
    loaded.world.write(4)
    past = operations.set_watermark(loaded, "shop", "orders", moved_at(loaded, 4))
    assert past.after is not None and past.after.gap is None
    assert any("left out: passed over transaction 7" in note for note in past.notes)
    again = operations.set_watermark(loaded, "shop", "orders", moved_at(loaded, 1))
    assert again.after is not None and again.after.gap is None
    assert not any("left out" in note for note in again.notes), "all of it is read again"


def test_accepting_gives_an_open_range_up_in_append_mode_and_says_so(loaded: Shop) -> None:
    opened_range(loaded, "events")
    accepted = operations.set_watermark(loaded, "shop", "events", accept=True)
    assert accepted.after is not None and accepted.after.gap is None
    assert any("left out" in note for note in accepted.notes)


def test_a_position_rebuilt_from_the_target_keeps_the_range_it_knew_to_be_open(loaded: Shop) -> None:
    gap = opened_range(loaded)
    old = loaded.world.position()
    loaded.world.write(4)
    loaded.world.poll()
    loaded.world.books().write([replace(old, revision=loaded.world.position().revision)])
    change = operations.import_from_target(loaded, "shop", "orders")
    assert change.after is not None and change.after.gap == gap


def test_a_state_restored_from_before_a_fence_takes_its_epoch_from_the_target(loaded: Shop) -> None:
    """Both hold the same batch, and yet every batch of the old epoch is shut out."""
    loaded.world.sink.fence(loaded.world.tables["orders"], 4)
    loaded.world.write(4)
    assert loaded.world.poll()["orders"].status is Status.FAILED
    loaded.world.expire_leases()
    loaded.apply(operations.import_from_target(loaded, "shop", "orders"))
    loaded.world.poll()
    assert loaded.ids() == [1, 2, 3, 4]


FOREIGN = {
    "table_name": "settlement.orders",
    "last_mysql_data_timestamp": "2026-01-01T00:00:05Z",
    "mysql_status": "success",
    "processed_s3_files": ["s3://bucket/path/file1.parquet"],
    "last_error": None,
}


def test_a_watermark_that_another_tool_kept_is_taken_over(shop: Shop) -> None:
    """Its `>` becomes our `[low`: the value itself is read once more, and nothing above it is left out."""
    (change,) = operations.adopt(shop, FOREIGN, "shop")
    assert (change.action, change.old, str(change.new)) == ("import", None, "2026-01-01 00:00:05")
    assert any("read once more" in note for note in change.notes)
    operations.apply(shop, [change], why="moving in")
    assert str(shop.books.positions("shop")["shop", "orders", "sync"].watermark) == "2026-01-01 00:00:05"


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        ({"table_name": "settlement.unknown"}, 'no pipeline has a table "settlement.unknown" or "unknown"'),
        ({"last_mysql_data_timestamp": None}, "it has moved nothing yet"),
        ({"last_mysql_data_timestamp": "2999-01-01T00:00:00Z"}, "in the future"),
        ({"last_mysql_data_timestamp": "yesterday"}, "yesterday"),
    ],
)
def test_a_foreign_watermark_that_makes_no_sense_is_refused(shop: Shop, edit: dict[str, str], told: str) -> None:
    with pytest.raises(StrandlineError, match=told):
        operations.adopt(shop, {**FOREIGN, **edit}, "shop")


def test_documents_of_several_tables_in_one_are_told_from_our_export(shop: Shop) -> None:
    parts = {"orders": {"last_mysql_data_timestamp": "2026-01-01T00:00:05Z"}}
    assert operations.is_foreign(parts) and operations.is_foreign(FOREIGN)
    assert not operations.is_foreign(operations.export(shop)) and not operations.is_foreign({})
    assert [str(change.new) for change in operations.adopt(shop, parts, "shop")] == ["2026-01-01 00:00:05"]


def watermarks_of_pipelines(folder: Path, *rows: tuple[str, str | None, int | None, str, str]) -> str:
    """A Delta table as 001 keeps it: pipeline, last_processed_ts, last_processed_version, status, created_at."""
    from arro3.core import Array, DataType, Table
    from deltalake import write_deltalake

    def times(texts: Sequence[Any]) -> Array:
        at = [None if text is None else int(datetime.fromisoformat(text).timestamp() * 1_000_000) for text in texts]
        return Array(at, DataType.int64()).cast(DataType.timestamp("us", tz="UTC"))

    names, last, versions, status, created = ([row[place] for row in rows] for place in range(5))
    columns: dict[str, Any] = {
        "watermark_id": Array([None] * len(rows), DataType.int32()),
        "pipeline_name": Array(names, DataType.utf8()),
        "job_id": Array(["job"] * len(rows), DataType.utf8()),
        "last_processed_ts": times(last),
        "last_processed_version": Array(versions, DataType.int64()),
        "status": Array(status, DataType.utf8()),
        "created_at": times(created),
    }
    write_deltalake(folder / "watermarks", Table.from_pydict(columns), partition_by=["pipeline_name"])
    return str(folder / "watermarks")


def test_a_pipelines_time_in_a_delta_table_is_taken_over_for_each_of_its_tables(shop: Shop, tmp_path: Path) -> None:
    """The row written last counts. Its number is that time in milliseconds, and not taken for a version."""
    at = watermarks_of_pipelines(
        tmp_path,
        ("shop", "2026-01-01T00:00:04Z", 1767225604000, "READY", "2026-01-01T00:01:00Z"),
        ("shop", "2026-01-01T00:00:02Z", 1767225602000, "SUCCESS", "2026-01-01T00:00:30Z"),
        ("another", None, None, "RUNNING", "2026-01-01T00:02:00Z"),
    )
    changes = operations.adopt_delta(shop, at, "shop")
    assert [(change.where, change.action, str(change.new)) for change in changes] == [
        ("shop.orders", "import", "2026-01-01 00:00:04"),
        ("shop.events", "import", "2026-01-01 00:00:04"),
    ]
    assert all(any("1767225604000 is that time" in note for note in change.notes) for change in changes)
    operations.apply(shop, changes, why="moving in")
    with pytest.raises(ConfigError, match="notes nothing of other"):
        operations.adopt_delta(shop, at, "other")


def test_a_pipelines_time_may_be_noted_in_milliseconds_alone(shop: Shop, tmp_path: Path) -> None:
    at = watermarks_of_pipelines(tmp_path, ("theirs", None, 1767225605000, "FAILED", "2026-01-01T00:00:30Z"))
    orders, _ = operations.adopt_delta(shop, at, "shop")
    assert str(orders.new) == "2026-01-01 00:00:05"
    assert any("its last run is FAILED" in note for note in orders.notes)


def test_a_delta_table_of_something_else_is_not_taken_for_watermarks(shop: Shop, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no Delta table"):
        operations.adopt_delta(shop, str(tmp_path / "nowhere"), "shop")
    at = watermarks_of_pipelines(tmp_path, ("shop", None, None, "READY", "2026-01-01T00:00:30Z"))
    with pytest.raises(ConfigError, match="it has moved nothing yet"):
        operations.adopt_delta(shop, at, "shop")

"""Verify and repair over a source and a sink in memory, and the arithmetic of buckets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from strandline.core.books import Books
from strandline.core.compare import (
    Comparison,
    Cut,
    Form,
    Reach,
    Sum,
    coarser,
    compare,
    cut_range,
    differing,
    first_cut,
    joined,
    portions,
    spark_form,
)
from strandline.core.errors import ChangedError, SourceError, TargetError
from strandline.core.events import Comparing, Event
from strandline.core.plan import Ask, Planned, make_plan
from strandline.core.position import Gap, Position, Reason, Status
from strandline.core.run import Hop, Outcome
from strandline.core.table import Column, Mode, Table
from strandline.core.watermark import Cursor, Kind
from strandline.core.window import KeyHash, KeyRange
from strandline.state.memory import MemoryState
from strandline.testing.memory import Clock, MemorySink, MemorySource
from strandline.testing.side import MemorySourceSide
from strandline.verify import table as verify_table
from strandline.verify.run import Deleting, Verified, Verifier
from strandline.verify.scope import scope
from strandline.verify.table import compare_table
from strandline.verify.verdict import Answer, Verdict

COLUMNS = (Column("id", "bigint"), Column("name", "string"), Column("gone", "boolean"), Column("at", "timestamp"))
TABLE = Table("shop", "orders", "orders", "orders", "sync", Mode.MERGE, Cursor("at", Kind.TIMESTAMP), key=("id",))


class World:
    """A table of a source and its copy, with the state between them."""

    def __init__(self, **settings: Any) -> None:
        self.clock = Clock()
        self.source, self.sink = MemorySource(self.clock), MemorySink()
        self.source.create("orders", COLUMNS, Cursor("at", Kind.TIMESTAMP), ["id"])
        self.table = replace(TABLE, columns=COLUMNS, key_enforced=True, **settings)
        self.books = Books(MemoryState())
        self.events: list[Event] = []
        self.runs = 0

    def write(self, *ids: int, name: str = "new", gone: bool = False) -> None:
        self.clock.advance(1)
        self.source.write("orders", *({"id": id, "name": name, "gone": gone} for id in ids))
        self.clock.advance(1)

    def delete(self, *ids: int) -> None:
        transaction = self.source.begin()
        for id in ids:
            transaction.delete("orders", id)
        transaction.commit()

    def ask(self) -> Ask:
        key = ("shop", "orders", "sync")
        position = self.books.positions("shop").get(key) or Position(*key)
        return Ask(self.table, position, {})

    def carry_out(self, work: Sequence[Planned]) -> list[Outcome]:
        self.runs += 1
        hop = Hop(f"run {self.runs}", "shop", self.source, self.sink, self.books, self.events.append)
        return hop.run(list(work), self.books.leases("shop"))

    def sync(self) -> None:
        (outcome,) = self.carry_out(make_plan(self.source, [self.ask()], run_id="sync"))
        assert outcome.status is Status.COMPLETED, outcome.error

    @property
    def verifier(self) -> Verifier:
        return Verifier("verify", self.source, self.sink, self.events.append)

    def verify(self) -> Verdict:
        return self.verifier.verify(self.ask()).verdict

    def repair(self, *, delete: bool = False, fraction: float = 1.0) -> Verdict:
        found = self.verifier.verify(self.ask())
        (verdict,) = self.verifier.repair([found], Deleting(delete, fraction), self.carry_out)
        return verdict

    def damage(self, *, drop: Sequence[int] = (), add: Sequence[dict[str, Any]] = ()) -> None:
        held = self.sink.backup("orders")
        assert held is not None
        rows = tuple(row for row in held.rows if row["id"] not in drop)
        self.sink.restore("orders", replace(held, rows=(*rows, *add)))

    def row(self, id: int, **changed: Any) -> dict[str, Any]:
        (found,) = (row for row in self.sink.rows("orders") if row["id"] == id)
        return {**found, **changed}


def loaded(**settings: Any) -> World:
    world = World(**settings)
    for start in range(0, 40, 10):
        world.write(*range(start, start + 10))
    world.sync()
    return world


def agreed(world: World) -> Comparison:
    forms = world.source.forms(world.table)
    return scope(world.table, world.ask().position, forms, forms, ranged=True).comparison


def counts(verdict: Verdict) -> tuple[int, int, int, int]:
    found = verdict.differences
    return found.missing, found.extra, found.different, found.duplicate


def test_a_table_that_was_never_loaded_is_not_wrong() -> None:
    assert World().verify().answer is Answer.NOT_LOADED


@pytest.mark.parametrize("mode", list(Mode))
def test_what_was_synced_is_equal(mode: Mode) -> None:
    world = loaded(mode=mode, cursor=None if mode is Mode.SNAPSHOT else TABLE.cursor)
    verdict = world.verify()
    assert (verdict.answer, verdict.rows, counts(verdict)) == (Answer.EQUAL, 40, (0, 0, 0, 0))
    assert [event.step for event in world.events if isinstance(event, Comparing)][-1] == "differing buckets"


@pytest.mark.parametrize("key", [("id",), ("id", "name")], ids=["ranges", "hashes"])
def test_each_kind_of_damage_is_named_repaired_and_gone(key: tuple[str, ...]) -> None:
    world = loaded(key=key)
    world.damage(drop=[3, 17], add=[{"id": 99, "name": "nobody", "gone": False, "at": world.row(5)["at"]}])
    world.damage(drop=[5], add=[world.row(5, gone=True)])
    world.damage(add=[world.row(7)])
    found = world.verify()
    assert (found.answer, counts(found)) == (Answer.DIFFERENT, (2, 1, 1, 1))
    assert {key[0] for key in found.differences.examples["missing"]} == {"3", "17"}
    kept = world.repair()
    assert (kept.answer, kept.repaired) == (Answer.DIFFERENT, 4)
    assert kept.notes[-1] == "left after the repair: 1 extra"
    assert world.repair(delete=True).answer is Answer.REPAIRED
    assert counts(world.verify()) == (0, 0, 0, 0)


def test_a_repair_is_a_numbered_batch_and_leaves_the_watermark() -> None:
    world = loaded()
    before = world.ask().position
    world.damage(drop=[3])
    world.repair()
    after = world.ask().position
    assert before.batch and after.batch
    assert (after.watermark, after.batch.number, after.plan) == (before.watermark, before.batch.number + 1, None)
    parts = world.books.state.read("table_run")
    assert parts[-1].fields["reason"] == Reason.REPAIR.value
    assert parts[-1].fields["rows_inserted"] == 1


def test_a_repair_leaves_what_is_to_be_looked_at_again_as_it_was() -> None:
    world = loaded()
    before = replace(world.ask().position, gap=Gap(None, "passed over a stall"))
    world.books.write([before])
    world.damage(drop=[3])
    world.repair()
    after = world.ask().position
    assert (after.gap, after.observed, after.observed_at) == (before.gap, before.observed, before.observed_at)


def test_rows_written_since_the_last_sync_are_left_out_and_found_nowhere() -> None:
    world = loaded()
    world.write(5, 6, name="newer")
    world.write(100)
    verdict = world.verify()
    assert (verdict.answer, verdict.rows) == (Answer.EQUAL, 38)


@pytest.mark.parametrize("first", [True, False], ids=["before its sums", "after its sums"])
def test_a_row_updated_while_tables_are_compared_is_called_nothing(first: bool) -> None:
    world = loaded()
    world.damage(drop=[3])
    comparison = agreed(world)

    class Written(MemorySourceSide):
        def sums(self, cut: Cut) -> dict[int, Sum]:
            found = None if first else super().sums(cut)
            world.write(4, name="meanwhile")
            return super().sums(cut) if found is None else found

    side = Written(comparison, lambda: world.source.rows("orders"))
    found = compare_table(side, world.sink.side(comparison), comparison, lambda *_: None)
    assert (found.differences.missing, found.differences.extra, found.differences.different) == (1, 0, 0)


def test_a_repair_does_not_take_a_row_updated_meanwhile_for_deleted() -> None:
    world = loaded()
    world.damage(drop=[3])
    found = world.verifier.verify(world.ask())
    world.write(4, name="newer")
    (verdict,) = world.verifier.repair([found], Deleting(True, 1.0), world.carry_out)
    assert verdict.answer is Answer.REPAIRED
    assert world.row(4)["name"] == "newer"


def test_source_rows_that_were_deleted_are_extra_and_deleted_only_if_told_and_not_too_many() -> None:
    world = loaded()
    world.delete(*range(4))
    assert counts(world.verify()) == (0, 4, 0, 0)
    kept = world.repair()
    assert (kept.answer, kept.notes) == (Answer.DIFFERENT, ("extra rows are deleted only with --delete",))
    refused = world.repair(delete=True, fraction=0.05)
    assert refused.answer is Answer.FAILED and isinstance(refused.error, TargetError)
    assert "4 of 40 rows would be deleted" in refused.error.message
    assert "--delete-fraction 0.1" in refused.error.remedy
    assert world.repair(delete=True, fraction=0.1).answer is Answer.REPAIRED
    assert len(world.sink.rows("orders")) == 36


def test_soft_deleted_rows_are_not_missing_and_go_without_being_told() -> None:
    world = loaded(deleted="gone")
    world.write(3, gone=True)
    world.sync()
    assert world.verify().answer is Answer.EQUAL
    world.damage(add=[{**world.row(4), "id": 3}])
    assert counts(world.verify()) == (0, 1, 0, 0)
    assert world.repair().answer is Answer.REPAIRED


def test_older_versions_in_an_append_target_are_fine_and_a_lost_one_is_not() -> None:
    world = loaded(mode=Mode.APPEND)
    world.write(3, name="second")
    world.sync()
    assert world.verify().answer is Answer.EQUAL
    world.delete(8)
    assert world.verify().answer is Answer.EQUAL
    world.damage(drop=[5])
    assert counts(world.verify()) == (1, 0, 0, 0)
    assert world.repair().answer is Answer.REPAIRED
    assert len(world.sink.rows("orders")) == 41


def test_a_column_that_is_called_version_does_not_tell_which_row_is_the_last() -> None:
    """Where a table's own versions are the cursor, they are not in its rows."""
    columns = (Column("id", "bigint"), Column("version", "bigint"))
    table = replace(TABLE, mode=Mode.APPEND, cursor=Cursor("version", Kind.VERSION), columns=columns)
    forms = {column.name: spark_form(column.type) for column in columns}
    assert scope(table, Position("shop", "orders", "sync"), forms, forms, ranged=True).comparison.key == ()


def test_rows_below_initial_were_never_asked_for() -> None:
    world = World()
    world.write(1, 2)
    first = world.clock.now()
    world.write(3, 4)
    world.table = replace(world.table, initial=f"{first:%Y-%m-%d %H:%M:%S.%f}")
    world.sync()
    verdict = world.verify()
    assert (verdict.answer, verdict.rows) == (Answer.EQUAL, 2)


def test_after_initial_latest_the_comparison_begins_at_the_oldest_row() -> None:
    world = World(initial="latest")
    world.write(1, 2)
    planned = make_plan(world.source, [world.ask()])
    world.books.write([planned[0].position.skipped(planned[0].plan, {})])
    world.write(3, 4)
    world.sync()
    verdict = world.verify()
    assert (verdict.answer, verdict.rows) == (Answer.EQUAL, 2)
    assert "initial: latest" in verdict.notes[-1]


def test_a_repair_waits_for_an_open_plan_and_a_snapshot_is_taken_again() -> None:
    world = loaded()
    world.damage(drop=[3])
    (planned,) = make_plan(world.source, [world.ask()], run_id="earlier")
    found = world.verifier.verify(world.ask())
    opened = replace(found.ask, position=replace(found.ask.position, plan=planned.plan))
    (verdict,) = world.verifier.repair([replace(found, ask=opened)], Deleting(), world.carry_out)
    assert isinstance(verdict.error, ChangedError)
    snapshot = loaded(mode=Mode.SNAPSHOT, cursor=None)
    snapshot.damage(drop=[3])
    refused = snapshot.repair()
    assert isinstance(refused.error, TargetError) and "strandline sync -t orders" in refused.error.remedy


def test_a_crash_in_a_repair_leaves_a_plan_that_the_next_run_carries_out() -> None:
    class Crash(BaseException):
        pass

    def crash() -> None:
        raise Crash

    world = loaded()
    world.damage(drop=[3, 30])
    world.sink.at_commit(after=crash)
    with pytest.raises(Crash):
        world.repair()
    for record in world.books.state.read("lease"):
        world.books.state.delete([record])
    world.books = Books(world.books.state)
    assert world.ask().position.plan is not None
    world.sync()
    assert (world.verify().answer, world.ask().position.plan) == (Answer.EQUAL, None)


def test_too_many_rows_above_the_watermark_ask_for_a_sync_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify_table, "MOVED", 3)
    world = loaded()
    world.write(1, 2, 3, 4)
    error = world.verify().error
    assert isinstance(error, SourceError) and "sync --verify" in error.remedy


def test_a_table_that_differs_altogether_is_not_counted_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify_table, "_ROWS", 10)
    monkeypatch.setattr(verify_table, "_PORTION", 8)
    world = loaded()
    world.damage(drop=range(40))
    verdict = world.verify()
    assert (verdict.answer, verdict.complete) == (Answer.DIFFERENT, False)
    assert 10 < verdict.differences.missing < 40
    assert "sync --full" in (world.repair().error or SourceError("")).remedy


def test_crowded_keys_are_cut_again_until_buckets_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify_table, "LEAF", 2)
    world = World()
    world.write(*range(1000, 1200), 2**40)
    world.sync()
    world.damage(drop=[1077])
    found: Verified = world.verifier.verify(world.ask())
    assert found.findings is not None and found.findings.differences.missing == 1
    (part,) = found.findings.parts
    assert isinstance(part, KeyRange) and part.low is not None and part.high is not None
    assert part.low <= 1077 < part.high and part.high - part.low < 64


# --- arithmetic ------------------------------------------------------------------------------------------------------


def test_forms_of_types_and_what_two_of_them_share() -> None:
    assert spark_form("decimal(10,2)") == Form("number", 2)
    assert spark_form("array<timestamp_ntz>") == Form("array", element=Form("local"))
    assert spark_form("map<string,int>") is None
    assert Form("number", 2).shared(Form("number", 4)) == Form("number", 4)
    assert Form("date").shared(Form("local")) is None
    for text in ("number(3)", "array<array<text>>", "float"):
        assert str(Form.parse(text)) == text


def test_buckets_tile_the_keys() -> None:
    comparison = Comparison(TABLE, None, None, (("id", Form("number")),), (), ranged=True)
    cut = first_cut(comparison, Reach(-5, 10**6, 5_000_000))
    assert cut.part(-1) == KeyRange("id", None, -5)
    ranges = [cut.part(bucket) for bucket in range(cut.count)]
    assert all(one.high == other.low for one, other in pairwise(ranges))
    assert cut.part(cut.count).low == ranges[-1].high and (ranges[-1].high or 0) > 10**6
    assert first_cut(comparison, Reach(0, 2**63, 10)).column == ""
    assert first_cut(replace(comparison, ranged=False), Reach(None, None, 10**8)) == Cut(16_384)
    assert cut_range(KeyRange("id", 0, 3), 100).count == 3


def test_sums_differ_by_rows_or_by_total() -> None:
    here = {1: Sum(2, 5), 2: Sum(1, 1), 3: Sum(4, 4)}
    assert differing(here, {1: Sum(2, 5), 2: Sum(1, 2), 4: Sum(9, 9)}) == {2: 1, 3: 4, 4: 9}
    assert list(portions({1: 5, 2: 6, 3: 1}, rows=10, most=9)) == [([1], 5), ([2, 3], 7)]


def test_a_source_with_several_rows_of_a_key_agrees_with_any_of_them() -> None:
    comparison = Comparison(TABLE, None, None, (("id", Form("number")),), ())
    found = compare(comparison, [(("1",), "a"), (("1",), "b")], [(("1",), "b")])
    assert not found


def test_parts_beside_each_other_are_one_and_many_are_joined_over_small_gaps() -> None:
    ranges = [KeyRange("id", low, low + 10) for low in (0, 10, 30, 500, 1000)]
    assert joined(ranges, 9) == [KeyRange("id", 0, 20), KeyRange("id", 30, 40), *ranges[3:]]
    assert joined(ranges, 2) == [KeyRange("id", 0, 510), KeyRange("id", 1000, 1010)]
    assert joined([KeyRange("id", None, 0), KeyRange("id", 0, None)], 9) == [KeyRange("id", None, None)]
    assert coarser(KeyHash((), 8, (0, 3, 4, 7)), 2) == KeyHash((), 4, (0, 3))

"""The source and the sink in memory keep the contracts: what is proven with them would otherwise prove nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strandline.core.batch import Applied, Batch, How
from strandline.core.errors import BatchConflictError, SourceError, TargetError
from strandline.core.position import Horizon
from strandline.core.table import Column, Mode, Table
from strandline.core.watermark import Kind, Watermark
from strandline.core.window import Slice, Window
from strandline.testing.database import Phase
from strandline.testing.world import World

EVERYTHING = Window(None, Watermark(Kind.TIMESTAMP, "2030-01-01 00:00:00"))


@pytest.fixture
def world() -> World:
    world = World()
    world.table()
    return world


def batch(number: int, *, epoch: int = 1) -> Batch:
    return Batch("store", epoch, number, None, EVERYTHING.high, EVERYTHING.high, "attempt")


def apply(world: World, number: int, *, how: How = How.CHANGES, epoch: int = 1) -> Applied:
    table = world.tables["orders"]
    changes = world.source.changes(table, Slice(EVERYTHING))
    return world.sink.apply(table, batch(number, epoch=epoch), changes, how=how)


def high(world: World, table: Table) -> Watermark | None:
    horizon = world.source.horizons([table])[table.name]
    assert isinstance(horizon, Horizon)
    return horizon.high


# the source


def test_rows_are_seen_when_they_are_committed_and_not_before(world: World) -> None:
    transaction = world.source.begin()
    transaction.write("orders", {"id": 1, "value": "a"})
    assert world.source.rows("orders") == []
    transaction.prepare()
    assert world.source.rows("orders") == []
    transaction.commit()
    assert [row["id"] for row in world.source.rows("orders")] == [1]
    assert transaction.phase is Phase.ENDED


def test_a_rolled_back_transaction_leaves_nothing(world: World) -> None:
    transaction = world.source.begin()
    transaction.write("orders", {"id": 1, "value": "a"})
    transaction.rollback()
    assert world.source.rows("orders") == []
    with pytest.raises(ValueError, match="ended"):
        transaction.commit()


def test_a_row_is_stamped_when_its_transaction_began(world: World) -> None:
    transaction = world.source.begin()
    began_at = world.clock.now()
    world.clock.advance(60)
    assert transaction.write("orders", {"id": 1, "value": "a"})["moved"] == began_at
    assert transaction.write("orders", {"id": 2, "value": "a"}, at=world.clock.now())["moved"] > began_at


def test_a_row_has_one_writer_at_a_time(world: World) -> None:
    one, two = world.source.begin(), world.source.begin()
    one.write("orders", {"id": 1, "value": "a"})
    with pytest.raises(ValueError, match="locked"):
        two.write("orders", {"id": 1, "value": "b"})
    one.commit()
    two.write("orders", {"id": 1, "value": "b"})


def test_the_horizon_is_the_newest_moment_whose_transactions_have_all_ended(world: World) -> None:
    table = world.tables["orders"]
    open_ = world.source.begin()
    world.clock.advance(1)
    assert high(world, table) is None
    noted = world.clock.now()
    world.clock.advance(1)
    world.source.begin()
    open_.commit()
    assert high(world, table) == Watermark(Kind.TIMESTAMP, f"{noted:%Y-%m-%d %H:%M:%S}")


def test_integers_are_safe_up_to_the_highest_one_committed_before_the_barrier() -> None:
    world = World()
    table = world.table(kind=Kind.INTEGER)
    late = world.source.begin()
    late.write("orders", {"id": 1, "value": "takes 1"})
    world.write(2)
    assert high(world, table) is None
    late.commit()
    assert high(world, table) == Watermark(Kind.INTEGER, "3")


def test_a_missing_table_is_told_with_names_like_it(world: World) -> None:
    found = world.source.tables(["order", "ord*", "x*"], {})
    assert isinstance(found["order"], SourceError) and "orders" in found["order"].remedy
    assert set(found) == {"order", "orders"}


# the sink


def test_the_same_identity_again_changes_nothing_and_says_what_the_first_time_did(world: World) -> None:
    world.write(1, 2)
    first = apply(world, 1)
    world.write(3)
    assert apply(world, 1) == first
    assert len(world.target_rows()) == 2
    assert world.sink.log == [batch(1)]


@pytest.mark.parametrize(("epoch", "number"), [(1, 1), (1, 2), (0, 9)])
def test_an_older_number_or_another_batch_under_this_one_is_refused(epoch: int, number: int, world: World) -> None:
    world.write(1)
    apply(world, 2)
    other = replace(batch(number, epoch=epoch), low=Watermark(Kind.TIMESTAMP, "2020-01-01 00:00:00"))
    table = world.tables["orders"]
    changes = world.source.changes(table, Slice(EVERYTHING))
    with pytest.raises(BatchConflictError):
        world.sink.apply(table, other, changes, how=How.CHANGES)


def test_a_newer_row_is_never_overwritten_and_an_equal_one_is_refreshed(world: World) -> None:
    world.write(1, value="newer")
    apply(world, 1)
    row = world.source.rows("orders")[0]
    world.source.write("orders", {**row, "value": "refreshed"})
    assert apply(world, 2).rows_updated == 1
    world.clock.advance(-3600)
    world.source.write("orders", {"id": 1, "value": "older"})
    assert apply(world, 3).rows_updated == 0
    assert [row["value"] for row in world.target_rows()] == ["refreshed"]


def test_a_row_without_a_cursor_gives_way_to_one_that_has_it(world: World) -> None:
    world.change(nulls="include")
    table = world.tables["orders"]
    world.source.write("orders", {"id": 1, "value": "none", "moved": None})
    changes = world.source.changes(table, Slice(EVERYTHING, nulls=True))
    world.sink.apply(table, batch(1), changes, how=How.FRESH)
    world.write(1, value="stamped")
    apply(world, 2)
    assert [row["value"] for row in world.target_rows()] == ["stamped"]


def test_rows_marked_deleted_leave_the_target(world: World) -> None:
    columns = (*world.tables["orders"].columns, Column("dead", "boolean"))
    world.source.create("gone", columns, world.source.held("orders").cursor, ["id"])
    table = world.change(source="gone", columns=columns, deleted="dead")
    world.source.write("gone", {"id": 1, "value": "a", "dead": False}, {"id": 2, "value": "b", "dead": True})
    assert (apply(world, 1).rows_inserted, len(world.target_rows())) == (1, 1)
    world.clock.advance(1)
    world.source.write("gone", {"id": 1, "value": "a", "dead": True})
    assert apply(world, 2).rows_deleted == 1
    assert world.sink.rows(table.target) == []


def test_append_compares_no_keys(world: World) -> None:
    world.change(mode=Mode.APPEND)
    world.write(1)
    apply(world, 1, how=How.FRESH)
    world.write(2)
    assert apply(world, 2).rows_inserted == 2
    assert [row["id"] for row in world.target_rows()] == [1, 1, 2]


def test_first_matches_nothing_so_that_a_wrong_first_shows(world: World) -> None:
    world.write(1)
    apply(world, 1, how=How.FRESH)
    apply(world, 2, how=How.FRESH)
    assert [row["id"] for row in world.target_rows()] == [1, 1]


def test_a_replacing_batch_leaves_nothing_of_what_was_there(world: World) -> None:
    world.write(1, 2)
    apply(world, 1)
    gone = world.source.begin()
    gone.delete("orders", 1)
    gone.commit()
    apply(world, 2, how=How.REPLACE)
    assert [row["id"] for row in world.target_rows()] == [2]


def test_another_pipelines_target_is_refused_unless_both_share_it(world: World) -> None:
    world.write(1)
    apply(world, 1)
    other = replace(world.tables["orders"], pipeline="other")
    with pytest.raises(TargetError, match=r"belongs to shop\.orders\.sync"):
        world.sink.applied(other)
    assert world.sink.applied(replace(other, shared=True)) is None

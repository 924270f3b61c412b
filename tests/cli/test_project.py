"""The project above the core: what a sync leaves in the state when it cannot do what it was asked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from shop import Shop, open_shop

from strandline.core.events import Event, Maintained
from strandline.core.position import Position, Reason, Status
from strandline.core.table import Column


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shop:
    return open_shop(tmp_path, monkeypatch, capsys)


def position(shop: Shop, table: str = "orders") -> Position:
    with shop.project() as project:
        return project.books.positions("shop", table)["shop", table, "sync"]


def test_a_reload_that_cannot_start_leaves_the_position_as_it_is(shop: Shop) -> None:
    shop.write("orders", 1, 2)
    with shop.project() as project:
        project.sync("shop", tables=["orders"])
    before = position(shop)
    shop.source.write("orders", {"id": 3, "value": "refused", "moved": None})
    with shop.project() as project:
        result = project.sync("shop", tables=["orders"], full=True)
    assert result.status is Status.FAILED
    assert position(shop) == before
    assert [row["id"] for row in shop.sink.rows(shop.sink.targets()[0])] == [1, 2]


def test_a_reload_that_is_killed_is_carried_out_by_the_next_sync(shop: Shop) -> None:
    shop.write("orders", 1, 2)
    with shop.project() as project:
        project.sync("shop", tables=["orders"])
    gone = shop.source.begin()
    gone.delete("orders", 1)
    gone.commit()
    shop.clock.advance(1)

    def killed() -> None:
        raise KeyboardInterrupt

    shop.sink.at_commit(before=killed)
    with shop.project() as project, pytest.raises(KeyboardInterrupt):
        project.sync("shop", tables=["orders"], full=True)
    assert position(shop).plan is not None
    shop.forget_leases()
    with shop.project() as project:
        assert project.sync("shop", tables=["orders"]).status is Status.COMPLETED
    assert [row["id"] for row in shop.sink.rows(shop.sink.targets()[0])] == [2]


def test_columns_that_changed_are_told_and_with_reload_the_table_is_read_anew(shop: Shop) -> None:
    shop.write("orders", 1, 2)
    with shop.project() as project:
        project.sync("shop", tables=["orders"])
    lost = shop.source.begin()
    lost.delete("orders", 1)
    lost.commit()
    held = shop.source.held("orders")
    held.info = replace(held.info, columns=(*held.info.columns[:1], Column("value", "text"), *held.info.columns[2:]))
    shop.write("orders", 3)
    with shop.project() as project:
        (told,) = project.plan("shop", tables=["orders"]).tables
    assert (told.reason, told.columns) == (Reason.INCREMENTAL, "column value was string, is text")
    shop.config.write_text(shop.config.read_text().replace("slice_rows: 4", "schema: reload"))
    with shop.project() as project:
        (outcome,) = project.sync("shop", tables=["orders"]).tables
        (_, last) = project.books.state.read("table_run")
        assert project.sync("shop", tables=["orders"]).status is Status.SKIPPED
    assert (outcome.status, outcome.plan.replace) == (Status.COMPLETED, True)
    assert last.fields["reason"] == "first load; column value was string, is text"
    assert [row["id"] for row in shop.sink.rows(shop.sink.targets()[0])] == [2, 3]


def test_a_table_that_is_busy_is_in_the_history_with_who_is_at_work(shop: Shop) -> None:
    shop.write("orders", 1)

    def second() -> None:
        with shop.project() as project:
            assert project.sync("shop", tables=["orders"]).status is Status.FAILED

    shop.sink.at_commit(before=second)
    with shop.project() as project:
        assert project.sync("shop", tables=["orders"]).status is Status.COMPLETED
        errors = [str(part.fields["error"]) for part in project.books.state.read("table_run")]
    assert sorted(errors)[0] == ""
    assert sorted(errors)[1].startswith("another run is at work: ")


def test_targets_are_maintained_when_they_are_due_and_not_before(shop: Shop) -> None:
    shop.config.write_text(shop.config.read_text().replace("    parallel: 1\n", "    maintain: every 1d\n"))
    events: list[Event] = []
    for number in (1, 2):
        shop.write("orders", number)
        with shop.project() as project:
            project.sync("shop", tables=["orders"], listener=events.append)
    assert [event.table for event in events if isinstance(event, Maintained)] == ["orders"]
    with shop.project() as project:
        (mark,) = (record for record in project.books.state.read("meta") if record.key[0].startswith("maintained"))
        project.books.state.put([replace(mark, fields={"value": "2020-01-01T00:00:00.000Z"})])
    shop.write("orders", 3)
    with shop.project() as project:
        project.sync("shop", tables=["orders"], listener=events.append)
    assert len([event for event in events if isinstance(event, Maintained)]) == 2


def test_a_position_that_cannot_be_read_stops_its_table_only_and_is_not_written_over(shop: Shop) -> None:
    shop.write("orders", 1)
    shop.write("customers", 1)
    with shop.project() as project:
        project.sync("shop")
        (stored,) = project.books.state.read("position", ["shop", "orders"])
        (broken,) = project.books.state.put([replace(stored, fields={**stored.fields, "batch": "{}"})])
    shop.write("orders", 2)
    shop.write("customers", 2)
    with shop.project() as project:
        orders, customers = project.sync("shop").tables
        assert customers.status is Status.COMPLETED
        assert "stored position of stage sync cannot be read" in str(orders.error)
        assert project.books.state.read("position", ["shop", "orders"]) == [broken]

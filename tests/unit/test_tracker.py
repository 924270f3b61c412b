"""The Tracker: what a caller's own job is given to read, and when its watermark moves. All in memory, no Spark."""

from __future__ import annotations

import shutil
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from deltalake.schema import Field, PrimitiveType

from strandline import Frame, Tracker, compat
from strandline.core.errors import (
    ChangedError,
    ConfigError,
    ConnectError,
    LeaseError,
    SourceError,
    StateError,
    WindowError,
)
from strandline.core.events import (
    BatchApplied,
    Committed,
    Event,
    Intended,
    Planned,
    RunFinished,
    RunStarted,
    Skipped,
    TableFinished,
    Warned,
)
from strandline.core.position import Reason, Status
from strandline.core.protocols import State
from strandline.core.table import Column, Mode, Table, TableInfo
from strandline.core.watermark import Cursor, Kind
from strandline.endpoint import Endpoint
from strandline.sources.frame import FrameSource
from strandline.state import open_state
from strandline.state.memory import MemoryState
from strandline.testing.lake import Lake
from strandline.testing.world import World
from strandline.tracking.run import TrackedRun
from strandline.tracking.table import TrackedTable

ORDERS, ITEMS, FEES = "wos.orders", "wos.items", "pprn.fees"
OPEN, MOVED = "open", "moved"


class Upstream(Enum):
    ORDERS = ORDERS
    FEES = FEES


class Job:
    """A pipeline called `nightly` over three tables, each with one row to read."""

    def __init__(self, state: State | None = None) -> None:
        self.world = World(state=state)
        self.events: list[Event] = []
        for id, name in enumerate((ORDERS, ITEMS, FEES), 1):
            self.world.table(name)
            self.world.write(id, table=name)

    def tracker(self, **settings: Any) -> Tracker:
        """As another process would make it."""
        given: dict[str, Any] = {"source": self.world.source, "tables": [ORDERS, ITEMS, FEES], **settings}
        return Tracker(self.world.state, pipeline="nightly", listener=self.events.append, **given)

    def start(self) -> TrackedRun:
        """A job that says nothing more for as long as nobody asks it to."""
        return self.tracker().run(renew=False).__enter__()

    def read_all(self, **settings: Any) -> dict[str, list[int]]:
        found = {}
        with self.tracker(**settings).run() as run:
            for table in run:
                found[table.name] = ids(table)
                table.done(rows=len(found[table.name]))
        return found

    def stands(self) -> dict[str, str]:
        """Which tables have a plan open, in which status, and which watermarks have moved."""
        return {
            name: f"{position.status} {OPEN if position.plan else MOVED if position.watermark else ''}"
            for name, position in self.tracker().positions().items()
        }

    def history(self) -> dict[str, list[str]]:
        """What became of each table, run by run, in the order in which they ended."""
        told: dict[str, list[str]] = {}
        for record in self.world.state.read("table_run"):
            text = f"{record.fields['status']} {record.fields['error']}".strip()
            told.setdefault(record.key[1], []).append(text)
        return told

    def run_statuses(self) -> list[str]:
        return sorted(str(record.fields["status"]) for record in self.world.state.read("run"))


@pytest.fixture
def job() -> Job:
    return Job()


def ids(table: TrackedTable) -> list[int]:
    changes: Any = table.changes
    return [row["id"] for row in changes.rows()]


# plans


def test_a_plan_is_kept_as_written_until_it_is_done_and_the_next_one_goes_on_from_there(job: Job) -> None:
    first = job.tracker().plan()
    assert [plan.reason for plan in first.tables] == [Reason.FIRST_LOAD] * 3
    assert job.stands() == dict.fromkeys((ORDERS, ITEMS, FEES), f"PLANNED {OPEN}")
    job.world.write(10, table=ORDERS)
    again = job.tracker().plan()
    assert [plan.window for plan in again.tables] == [plan.window for plan in first.tables]
    assert {plan.run_id for plan in again.tables} == {plan.run_id for plan in first.tables}
    assert job.read_all() == {ORDERS: [1], ITEMS: [2], FEES: [3]}
    (orders, _, _) = job.tracker().plan().tables
    assert orders.reason is Reason.INCREMENTAL
    assert orders.window is not None and first.tables[0].window is not None
    assert orders.window.low == first.tables[0].window.high
    assert job.read_all() == {ORDERS: [10]}


def test_tables_are_named_by_name_schema_glob_or_enum(job: Job) -> None:
    tracker = job.tracker(tables=())
    assert [plan.table for plan in tracker.plan(Upstream).tables] == [ORDERS, FEES]
    assert [plan.table for plan in tracker.plan(Upstream.FEES).tables] == [FEES]
    assert [plan.table for plan in tracker.plan(schemas=["wos"]).tables] == [ORDERS, ITEMS]
    assert [plan.table for plan in tracker.plan(["*.fees", Upstream.ORDERS]).tables] == [ORDERS, FEES]
    assert len(tracker.plan().tables) == 3, "without names: every table that has a position"
    for schemas in ("nowhere", ["wos", "nowhere"]):  # misspelt, its tables would be left out in silence
        with pytest.raises(ConfigError, match=r"no table matches nowhere\.\*"):
            tracker.plan(schemas=schemas)


def test_the_baseline_of_a_new_table_is_the_callers_to_choose(job: Job) -> None:
    overrides = {ITEMS: {"initial": "latest"}, FEES: {"initial": "2026-11-15 08:00:30"}}
    assert job.read_all(overrides=overrides) == {ORDERS: [1]}
    job.world.write(20, table=ITEMS)
    assert job.read_all(overrides=overrides) == {ITEMS: [20]}


def test_a_table_that_is_missing_stops_the_run_before_it_starts_unless_told_otherwise(job: Job) -> None:
    with pytest.raises(SourceError, match=r'no table "wos\.gone"'), job.tracker().run([ORDERS, "wos.gone"]):
        raise AssertionError("not reached")
    assert job.stands() == {} and job.run_statuses() == ["FAILED"]
    (record,) = job.world.state.read("run")
    assert record.fields["error"] == 'nightly.wos.gone: no table "wos.gone"'
    assert [type(event) for event in job.events] == [RunStarted, RunFinished]
    with job.tracker().run([ORDERS, "wos.gone"], strict=False) as run:
        assert [table.name for table in run] == [ORDERS]
    assert job.history() == {ORDERS: ["COMPLETED"], "wos.gone": ['FAILED nightly.wos.gone: no table "wos.gone"']}
    assert run.result is not None and run.result.failed


def test_a_source_that_is_away_night_after_night_shows_as_failures(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    job.read_all()

    def away(*_: object) -> None:
        raise ConnectError("nobody answers")

    with monkeypatch.context() as patch:
        patch.setattr(job.world.source, "tables", away)
        for _ in range(3):
            job.world.clock.advance(3600)
            with pytest.raises(ConnectError), job.tracker().run():
                raise AssertionError("not reached")
    job.events.clear()
    job.world.clock.advance(3600)
    job.read_all()
    assert [event.message for event in job.events if isinstance(event, Warned)] == ["the last 3 runs failed"]


def test_one_instant_across_all_tables_cuts_each_at_its_version_of_then(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    for table, stamps in (("orders", (0, 100, 300)), ("fees", (0, 200, 400))):
        lake.create(table)
        for version, seconds in enumerate(stamps):
            if version:
                lake.insert(version, table=table)
            lake.stamp(version, seconds, table)
    state = MemoryState()
    for at in ("1970-01-01 00:05:00", "1970-01-01 00:02:00"):  # an earlier one reads nothing, and changes nothing
        tracker = Tracker(state, pipeline="n", source=f"delta:{tmp_path}", key="id", as_of=at)
        with tracker.run(["orders", "fees"]) as run:
            windows = {table.name: str(table.window.high) for table in run}
        assert windows == ({"orders": "3", "fees": "2"} if at.endswith("05:00") else {})
        observed = {name: position.observed for name, position in tracker.positions().items()}
        assert observed == {"orders": "1970-01-01 00:05:00.000", "fees": "1970-01-01 00:03:20.000"}


def test_a_delta_table_dropped_between_plan_and_read_fails_with_its_plan_kept(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    for table in ("orders", "fees"):
        lake.create(table)
        lake.insert(1, table=table)
    (tmp_path / "folder").mkdir()
    tracker = Tracker(MemoryState(), pipeline="nightly", source=f"delta:{tmp_path}", key="id")
    with pytest.raises(SourceError, match="folder"), tracker.run(["orders", "folder"]):
        raise AssertionError("not reached")
    with pytest.raises(SourceError, match="orders"), tracker.run(["orders", "fees"]) as run:
        shutil.rmtree(tmp_path / "orders")
        for part in run:
            assert str(part.window) == "[beginning, 2)"
            part.read()
    position = tracker.positions()["orders"]
    assert (position.status, position.watermark) == (Status.FAILED, None) and position.plan is not None
    assert tracker.positions()["fees"].status is Status.PLANNED


def test_a_table_that_a_glob_stood_for_and_that_is_gone_is_told_and_its_open_plan_stops_the_run(tmp_path: Path) -> None:
    lake, events = Lake(tmp_path), list[Event]()
    for table in ("wos.orders", "wos.fees", "wos.items"):
        lake.create(table)
        lake.insert(1, table=table)

    def tracker(**settings: Any) -> Tracker:
        return Tracker(state, pipeline="n", source=f"delta:{tmp_path}", key="id", listener=events.append, **settings)

    state = MemoryState()
    tracker().plan(schemas="wos")
    (tmp_path / "wos" / "fees").rename(tmp_path / "away")
    with pytest.raises(SourceError, match=r"n\.wos\.fees: the plan of run .* is open, and no table of this name"):
        tracker().run(schemas="wos").__enter__()
    with tracker(exclude=["*.fees"]).run(schemas="wos") as run:
        assert sorted(table.name for table in run) == ["wos.items", "wos.orders"]
    lake.commit_file(1, "wos.orders").write_text("not a commit")
    with pytest.raises(SourceError, match=r"n\.wos\.orders: .* cannot be read as a Delta table"):
        tracker(exclude=["*.fees"]).run("wos.*").__enter__()
    (tmp_path / "wos" / "orders").rename(tmp_path / "away too")
    with tracker(exclude=["*.fees"]).run("wos.*") as run:
        assert run.tables == ()
    assert [event.table for event in events if isinstance(event, Warned)] == ["wos.orders"]


def test_versions_that_go_between_plan_and_read_fail_with_a_way_out_that_a_job_has(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.create()
    lake.insert(1)
    tracker = Tracker(MemoryState(), pipeline="nightly", source=f"delta:{tmp_path}", key="id", initial=0)
    tracker.plan("orders")
    lake.insert(2)
    lake.forget(below=2)
    with pytest.raises(SourceError, match="version 0 is no longer in the log") as caught, tracker.run("orders") as run:
        run["orders"].read()
    assert 'tracker.move("orders", None)' in caught.value.remedy
    assert tracker.positions()["orders"].status is Status.FAILED
    tracker.move("orders", None)
    with Tracker(tracker.books.state, pipeline="nightly", source=f"delta:{tmp_path}", key="id").run("orders") as run:
        assert run["orders"].whole and run["orders"].changes


def test_a_snapshot_is_the_whole_table_whenever_it_has_changed(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.create(feed=False)
    tracker, seen = Tracker(MemoryState(), pipeline="n", source=f"delta:{tmp_path}", mode="snapshot"), []
    for _ in range(3):
        lake.overwrite(1, 2)
        with tracker.run("orders") as run:
            seen += [(str(table.window), table.whole) for table in run]
    assert seen == [("[beginning, 2)", True), ("[2, 3)", True), ("[3, 4)", True)]
    with tracker.run("orders") as run:
        assert run.tables == ()


# columns that change


@dataclass
class Evolving:
    """A Delta table that was read once and has something new to read."""

    lake: Lake
    state: MemoryState

    def tracker(self, schema: str, events: list[Event] | None = None) -> Tracker:
        hear = (events if events is not None else []).append
        source = f"delta:{self.lake.root}"
        return Tracker(self.state, pipeline="nightly", source=source, key="id", schema=schema, listener=hear)

    def add_column(self) -> None:
        self.lake.delta().alter.add_columns([Field("extra", PrimitiveType("long"))])


@pytest.fixture
def evolving(tmp_path: Path) -> Evolving:
    found = Evolving(Lake(tmp_path), MemoryState())
    found.lake.create()
    found.lake.insert(1)
    with found.tracker("evolve").run("orders") as run:
        run["orders"].done()
    found.lake.insert(2)
    return found


def test_a_change_of_columns_is_told_in_plan_event_and_history(evolving: Evolving) -> None:
    evolving.add_column()
    told, events = "new column extra (bigint)", list[Event]()
    tracker = evolving.tracker("evolve", events)
    assert [plan.columns for plan in tracker.plan("orders").tables] == [told]
    with tracker.run("orders") as run:
        run["orders"].done()
    assert [event.plan.columns for event in events if isinstance(event, Planned)] == [told]
    (record,) = evolving.state.read("table_run", [run.run_id])
    assert record.fields["reason"] == f"resumed; {told}"
    evolving.lake.compact()
    assert [plan.columns for plan in tracker.plan("orders").tables] == [""], "told once"


def test_schema_stop_stops_at_a_change_of_columns_until_it_is_taken(evolving: Evolving) -> None:
    evolving.add_column()
    tracker = evolving.tracker("stop")
    before = tracker.positions()["orders"].watermark
    with pytest.raises(ChangedError, match=r"orders: the columns changed: new column extra") as caught:
        tracker.run("orders").__enter__()
    assert 'schema="evolve"' in caught.value.remedy
    assert tracker.positions()["orders"].watermark == before
    assert [error.message for error in tracker.plan("orders").errors] == [caught.value.message]
    assert tracker.positions()["orders"].status is Status.FAILED, "status shows it"
    with evolving.tracker("evolve").run("orders") as run:
        run["orders"].done()
    with tracker.run("orders") as run:
        assert run.tables == ()


def test_schema_reload_reads_the_table_anew_under_numbers_that_delta_has_not_seen(evolving: Evolving) -> None:
    with evolving.tracker("reload").run("orders") as run:
        open_ = run.txn("orders", write="copy")
        assert str(run["orders"].window) == "[2, 3)"
    evolving.add_column()
    seen = []
    for _ in range(2):  # the second time it is resumed
        with evolving.tracker("reload").run("orders") as run:
            assert run["orders"].whole and str(run["orders"].window) == "[beginning, 4)"
            seen.append(run.txn("orders", write="copy"))
    assert seen[0] == seen[1] and seen[0].version > open_.version and seen[0].app_id == open_.app_id


# how far a position is behind


def test_lag_is_measured_from_the_last_version_that_was_read_where_a_plan_ends_before_the_newest(
    tmp_path: Path,
) -> None:
    """A window that would be read by files first and by the feed then is cut; so is one under a limit."""
    lake = Lake(tmp_path)
    lake.create(feed=False)
    lake.insert(1)
    lake.insert(2)
    lake.turn_feed(True)
    lake.insert(3)
    for version in range(5):
        lake.stamp(version, 100 * version)

    def observed(limit: int | None) -> list[tuple[str, str]]:
        found = []
        with Tracker(MemoryState(), pipeline="n", source=f"delta:{tmp_path}", key="id", initial=1) as tracker:
            for _ in range(2):
                with tracker.run("orders", limit=limit) as run:
                    run["orders"].done()
                position = tracker.positions()["orders"]
                found.append((str(position.watermark), position.observed))
        return found

    assert observed(None) == [("3", "1970-01-01 00:03:20.000"), ("5", "1970-01-01 00:06:40.000")]
    assert observed(1) == [("2", "1970-01-01 00:01:40.000"), ("3", "1970-01-01 00:03:20.000")]


# how a run is left


def test_leaving_cleanly_commits_what_was_iterated_past(job: Job) -> None:
    with job.tracker().run() as run:
        for table in run:
            assert job.tracker().positions()[table.name].watermark is None
    assert job.stands() == dict.fromkeys((ORDERS, ITEMS, FEES), f"COMPLETED {MOVED}")
    assert job.run_statuses() == ["COMPLETED"]
    assert job.read_all() == {}


def test_a_break_commits_neither_the_table_at_hand_nor_those_behind_it(job: Job) -> None:
    with job.tracker().run() as run:
        for table in run:
            if table.name == ITEMS:
                break
    assert job.stands() == {ORDERS: f"COMPLETED {MOVED}", ITEMS: f"PLANNED {OPEN}", FEES: f"PLANNED {OPEN}"}
    assert job.history() == {
        ORDERS: ["COMPLETED"],
        ITEMS: ["SKIPPED left before it was done"],
        FEES: ["SKIPPED not reached"],
    }
    assert job.read_all() == {ITEMS: [2], FEES: [3]}


def test_a_table_that_was_done_before_the_break_is_done(job: Job) -> None:
    with job.tracker().run() as run:
        for table in run:
            table.done(rows=1)
            break
    assert job.read_all() == {ITEMS: [2], FEES: [3]}


def test_after_an_exception_only_what_was_not_done_is_read_again(job: Job) -> None:
    with pytest.raises(ZeroDivisionError), job.tracker().run() as run:
        for table in run:
            if table.name == ITEMS:
                raise ZeroDivisionError("division by zero")
            table.done(rows=1)
    assert job.stands() == {ORDERS: f"COMPLETED {MOVED}", ITEMS: f"FAILED {OPEN}", FEES: f"PLANNED {OPEN}"}
    assert "division by zero" in job.tracker().positions()[ITEMS].error
    assert job.run_statuses() == ["FAILED"]
    job.world.write(20, table=ITEMS)
    assert job.read_all() == {ITEMS: [2], FEES: [3]}, "the plan as it was written: the new row is for the next one"
    assert job.read_all() == {ITEMS: [20]}


def test_what_was_iterated_past_is_not_done_when_the_write_after_the_loop_fails(job: Job) -> None:
    """A job may collect lazy frames and write them together at the end."""
    with pytest.raises(OSError), job.tracker().run() as run:
        assert len([ids(table) for table in run]) == 3
        raise OSError("disk full")
    assert job.stands() == dict.fromkeys((ORDERS, ITEMS, FEES), f"FAILED {OPEN}")
    assert job.read_all() == {ORDERS: [1], ITEMS: [2], FEES: [3]}


def test_a_skipped_or_failed_table_keeps_watermark_and_window_and_the_others_go_on(job: Job) -> None:
    with job.tracker().run() as run:
        for table in run:
            if table.name == ORDERS:
                table.skip("the upstream load is late")
            if table.name == ITEMS:
                table.fail(ValueError("odd row"))
    assert job.history() == {
        ORDERS: ["SKIPPED the upstream load is late"],
        ITEMS: ["FAILED nightly.wos.items: ValueError: odd row"],
        FEES: ["COMPLETED"],
    }
    assert job.stands() == {ORDERS: f"PLANNED {OPEN}", ITEMS: f"FAILED {OPEN}", FEES: f"COMPLETED {MOVED}"}
    assert job.run_statuses() == ["FAILED"]
    with pytest.raises(StateError, match="SKIPPED already"):
        run[ORDERS].done()
    assert job.read_all() == {ORDERS: [1], ITEMS: [2]}


def test_an_exception_with_nothing_to_read_is_in_the_history_all_the_same(job: Job) -> None:
    job.read_all()
    for _ in range(3):
        job.world.clock.advance(1)
        with pytest.raises(OSError), job.tracker().run():
            raise OSError("no dimensions today")
    assert job.run_statuses() == ["COMPLETED", "FAILED", "FAILED", "FAILED"]
    (latest,) = job.world.state.read("run", newest=1)
    assert "no dimensions today" in str(latest.fields["error"])
    job.events.clear()
    job.tracker().run().__enter__()
    assert [event.message for event in job.events if isinstance(event, Warned)] == ["the last 3 runs failed"]


def test_a_run_that_skips_everything_is_skipped(job: Job) -> None:
    with job.tracker().run() as run:
        for table in run:
            table.skip("a holiday")
    assert job.run_statuses() == ["SKIPPED"]


# all or nothing


def test_atomic_moves_every_watermark_in_one_write_or_none(job: Job) -> None:
    with pytest.raises(OSError), job.tracker().run(atomic=True) as run:
        for table in run:
            table.done(rows=1)
        raise OSError("disk full")
    assert job.stands() == dict.fromkeys((ORDERS, ITEMS, FEES), f"FAILED {OPEN}")
    with job.tracker().run(atomic=True) as run:
        for table in run:
            table.done(rows=1)
            if table.name == ITEMS:
                break
    assert job.stands() == dict.fromkeys((ORDERS, ITEMS, FEES), f"PLANNED {OPEN}"), "left before all were done"
    with job.tracker().run(atomic=True) as run:
        for table in run:
            table.done(rows=1)
        assert job.stands() == dict.fromkeys((ORDERS, ITEMS, FEES), f"RUNNING {OPEN}")
    assert job.stands() == dict.fromkeys((ORDERS, ITEMS, FEES), f"COMPLETED {MOVED}")


def test_in_an_atomic_run_a_table_that_is_skipped_or_failed_keeps_all_of_them(job: Job) -> None:
    words: list[Callable[[TrackedTable], None]] = [lambda one: one.skip("late"), lambda one: one.fail("odd row")]
    for say in words:
        with job.tracker().run(atomic=True) as run:
            for table in run:
                say(table) if table.name == ITEMS else table.done(rows=1)
        positions = job.tracker().positions().values()
        assert all(position.plan and position.watermark is None for position in positions)
    assert job.history()[ORDERS] == ["SKIPPED not committed: not all tables of the run were done"] * 2
    with pytest.raises(ConfigError, match="atomic=True moves all tables or none"):
        job.tracker().run([ORDERS, "wos.gone"], atomic=True, strict=False)
    assert job.read_all() == {ORDERS: [1], ITEMS: [2], FEES: [3]}


def test_atomic_is_refused_on_a_store_that_cannot() -> None:
    class OneByOne(MemoryState):
        atomic = False

    job = Job(OneByOne())
    with pytest.raises(ConfigError, match="atomic=True: this state cannot"):
        job.tracker().run(atomic=True)
    assert job.read_all() == {ORDERS: [1], ITEMS: [2], FEES: [3]}


# writes that happen once


def test_a_statement_leaves_the_callers_own_numbers_as_they_were(job: Job) -> None:
    class Conf(dict[str, str]):
        set, unset = dict.__setitem__, dict.__delitem__

    class Session:
        conf = Conf({"spark.databricks.delta.write.txnAppId": "theirs"})

    session: Any = Session()
    with job.tracker().run([ORDERS]) as run:
        txn = run.txn(ORDERS, write="facts")
    with pytest.raises(OSError), txn.on(session):
        assert session.conf == txn.confs
        raise OSError("disk full")
    assert session.conf == {"spark.databricks.delta.write.txnAppId": "theirs"}


def test_a_write_has_the_same_numbers_whenever_its_plan_is_carried_out_again(job: Job) -> None:
    with job.tracker().run([ORDERS]) as run:
        for table in run:
            first, second = run.txn(table, write="facts"), run.txn(ORDERS, write="audit")
            table.skip("not today")
    assert first.options == {"txnAppId": first.app_id, "txnVersion": str(first.version)}
    assert first.app_id != second.app_id and first.version == second.version
    with job.tracker().run([ORDERS]) as run:
        for table in run:
            assert run.txn(table, write="facts") == first
    job.world.write(10, table=ORDERS)
    with job.tracker().run([ORDERS]) as run:
        for table in run:
            later = run.txn(table, write="facts")
    assert later.app_id == first.app_id and later.version == first.version + 1
    other = Job()
    with other.tracker().run([ORDERS]) as run:
        assert run.txn(ORDERS, write="facts").app_id != first.app_id, "another state counts for itself"


def test_a_watermark_is_moved_by_hand_and_numbers_of_dropped_plans_are_not_used_again(job: Job) -> None:
    job.read_all()
    job.world.write(10, table=ORDERS)
    with job.tracker().run([ORDERS]) as run:
        dropped = run.txn(ORDERS, write="facts")
        with pytest.raises(LeaseError):
            job.tracker().move(ORDERS, None)
    job.tracker().move(ORDERS, None, why="a column was filled in")
    with job.tracker().run([ORDERS]) as run:
        assert ids(run[ORDERS]) == [1, 10]
        assert run.txn(ORDERS, write="facts").version > dropped.version
    job.world.clock.advance(1)  # changes are kept in the order of their times
    job.tracker().move(ORDERS, "2026-11-15 08:00:05")
    assert job.read_all() == {ORDERS: [10]}
    assert {record.fields["action"] for record in job.world.state.read("change")} == {"reset", "set"}


def test_a_watermark_is_not_moved_beyond_what_can_be_read(job: Job) -> None:
    job.read_all()
    with pytest.raises(WindowError, match=r"nightly\.wos\.orders: 2062-11-15 .* is in the future"):
        job.tracker().move(ORDERS, "2062-11-15")
    job.world.clock.advance(60)
    job.tracker().move(ORDERS, "2026-11-15 08:00:30", why="what lies before was brought by hand")
    del job.world.source._tables[ORDERS]
    job.world.clock.advance(1)
    assert job.tracker().move(ORDERS, "2026-11-15 08:00:01").watermark is not None, "back: the source is not asked"


def test_a_pipeline_of_the_config_is_not_the_trackers_to_move() -> None:
    world = World()
    world.table()
    world.write(1)
    assert world.poll_killed(at=2), "a sync that has applied nothing yet"
    world.expire_leases()
    before = world.position()
    assert before.plan is not None
    tracker = Tracker(world.state, pipeline="shop", source=world.source, tables=["orders"])
    deeds: list[Callable[[], object]] = [
        lambda: tracker.run().__enter__(),
        lambda: tracker.move("orders", None),
        lambda: compat.mark_run_completed(tracker),
    ]
    for deed in deeds:
        with pytest.raises(ConfigError, match='"shop" is a pipeline of a config') as caught:
            deed()
        assert "a name of its own" in caught.value.remedy
    assert world.position() == before


# two jobs


def test_two_that_plan_at_once_get_one_plan(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    horizons, others = job.world.source.horizons, list[str]()

    def meanwhile(tables: Any) -> Any:
        if not others:
            others.append("planning")
            others[:] = [plan.run_id for plan in job.tracker().plan().tables]
        return horizons(tables)

    monkeypatch.setattr(job.world.source, "horizons", meanwhile)
    assert [plan.run_id for plan in job.tracker().plan().tables] == others
    assert len(set(others)) == 1


def test_pipelines_over_the_same_tables_and_runs_over_other_tables_do_not_meet(job: Job) -> None:
    other = Tracker(job.world.state, pipeline="hourly", source=job.world.source, tables=[ORDERS, ITEMS])
    with job.tracker().run([ORDERS]) as first, job.tracker().run([ITEMS]) as second, other.run() as third:
        assert first.txn(ORDERS, write="facts").app_id != third.txn(ORDERS, write="facts").app_id
        for run in (first, second, third):
            for table in run:
                table.done()
    assert job.run_statuses() == ["COMPLETED"] * 3
    job.world.write(10, table=ORDERS)
    assert job.read_all() == {ORDERS: [10], FEES: [3]}
    with other.run() as run:
        assert {table.name: ids(table) for table in run} == {ORDERS: [10]}


def test_a_second_job_of_the_same_name_is_told_who_is_at_work(job: Job) -> None:
    with job.tracker().run([ORDERS]) as run:
        with pytest.raises(LeaseError, match=f"another run is at work: .*{run.run_id}"), job.tracker().run():
            raise AssertionError("not reached")
        (busy,) = job.tracker().plan([ORDERS]).tables
        assert busy.reason is Reason.BUSY
    assert job.run_statuses() == ["SKIPPED"], "the second one left no trace"


def test_a_job_that_never_says_how_it_ended_is_taken_over_when_its_lease_has_expired(job: Job) -> None:
    silent = job.start()
    job.world.clock.advance(61)
    assert job.read_all() == {ORDERS: [1], ITEMS: [2], FEES: [3]}
    assert job.history()[ORDERS] == ["FAILED the process ended without finishing (killed?)", "COMPLETED"]
    watermarks = {name: position.watermark for name, position in job.tracker().positions().items()}
    with pytest.raises(LeaseError, match="another run has moved the position"):
        silent[ORDERS].done()
    for _ in silent:
        continue
    with pytest.raises(LeaseError):
        silent.__exit__(None, None, None)
    assert {name: position.watermark for name, position in job.tracker().positions().items()} == watermarks
    assert job.read_all() == {}


def test_a_lease_is_renewed_while_the_caller_works(job: Job) -> None:
    tracker = job.tracker(lease_time=timedelta(seconds=0.3))
    with tracker.run([ORDERS]) as run:
        before = job.world.state.read("lease")[0].fields["expires_at"]
        job.world.clock.advance(30)
        while job.world.state.read("lease")[0].fields["expires_at"] == before:
            continue
        run[ORDERS].done()
    assert job.stands()[ORDERS] == f"COMPLETED {MOVED}"


def test_two_runs_of_one_tracker_keep_each_others_leases_alive_and_tell_what_was_lost(job: Job) -> None:
    tracker = job.tracker(lease_time=timedelta(seconds=0.3))
    with tracker.run([ORDERS]) as run, tracker.run([ITEMS], renew=False):
        (lease,) = job.world.state.read("lease", ["nightly", ITEMS])
        job.world.state.put([replace(lease, fields={**lease.fields, "holder": "somebody else"})])
        until = time.monotonic() + 120
        while not any(isinstance(event, Warned) and event.table == ITEMS for event in job.events):
            assert time.monotonic() < until
        run[ORDERS].done()
    assert job.stands()[ORDERS] == f"COMPLETED {MOVED}"


# what is told


def test_events_and_history_are_those_of_any_run(job: Job) -> None:
    with job.tracker().run([ORDERS, ITEMS]) as run:
        for table in run:
            if table.name == ORDERS:
                table.done(rows=1, inserted=1)
            else:
                table.skip("late")
    assert [type(event) for event in job.events] == [
        RunStarted,
        *([Planned, Intended] * 2),
        *[BatchApplied, Committed, TableFinished],
        *[Skipped, TableFinished],
        RunFinished,
    ]
    (record,) = job.world.state.read("run")
    told = {name: record.fields[name] for name in ("trigger_name", "tables", "rows_read", "rows_inserted")}
    assert told == {"trigger_name": "tracker", "tables": 2, "rows_read": 1, "rows_inserted": 1}
    assert not any(isinstance(event, Warned) for event in job.events)


def test_a_stuck_plan_a_missed_run_and_failure_after_failure_are_told(job: Job) -> None:
    def said() -> set[str]:
        job.events.clear()
        with job.tracker(every=timedelta(hours=1)).run([ORDERS]) as run:
            run[ORDERS].fail("odd row")
        return {event.message for event in job.events if isinstance(event, Warned)}

    assert said() == set()
    job.world.clock.advance(7 * 3600)
    stuck, missed = sorted(said(), reverse=True)
    assert stuck.endswith("has been open for 7.0 h") and stuck.startswith("stuck: the plan of run 20261115-0800")
    assert missed == "no run for 5.0 h longer than expected"
    assert len(said()) == 1 and len(said()) == 2
    assert "the last 3 runs failed" in said()


def test_a_run_that_comes_is_not_missed_whatever_its_tables_do(job: Job) -> None:
    """A table without work, for the same reason each time, is told when the next run is due like any other."""
    for _ in range(4):
        with job.tracker(every=timedelta(hours=1)).run([ORDERS, "wos.gone"], strict=False) as run:
            list(run)
        job.world.clock.advance(3600)
    assert not [event for event in job.events if isinstance(event, Warned) and "longer than expected" in event.message]


def test_planning_does_not_touch_the_position_of_a_table_that_is_at_work(job: Job) -> None:
    with job.tracker().run([ORDERS]) as run:
        job.tracker(every=timedelta(hours=1)).plan([ORDERS])
        run[ORDERS].done()
    assert job.stands() == {ORDERS: f"COMPLETED {MOVED}"}


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"schema": "stopp"}, 'there is no schema "stopp"'),
        ({"nulls": "skip"}, 'there is no nulls "skip"'),
        ({"mode": "upsert"}, 'there is no mode "upsert"'),
        ({"cursr": "at"}, 'there is no setting "cursr"'),
    ],
)
def test_a_setting_that_nobody_knows_is_refused(job: Job, settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        job.tracker(**settings).plan()


@pytest.mark.parametrize("name", ["", "a/b", "wos nightly"])
def test_a_name_that_no_pipeline_of_the_config_could_have_is_refused(name: str) -> None:
    """Without a name it would be everybody's positions."""
    with pytest.raises(ConfigError, match="cannot name a pipeline"):
        Tracker(MemoryState(), pipeline=name)


def test_what_a_watermark_measures_may_not_change_unnoticed(job: Job) -> None:
    job.read_all()
    job.world.write(10, table=ORDERS)
    job.world.source.name = "another database"
    with pytest.raises(ChangedError, match="measures has changed: source: memory → another database") as caught:
        job.read_all()
    assert f'tracker.move("{ORDERS}", None)' in caught.value.remedy
    job.tracker().move(ORDERS, str(job.tracker().positions()[ORDERS].watermark), why="it moved house")
    assert job.tracker().plan([ORDERS]).errors == ()


def test_a_column_of_a_dataframe_needs_a_lookback() -> None:
    late: Any = None
    with pytest.raises(SourceError, match="needs a lookback"):
        Frame("events", lambda spark: spark.table("events"), "at", lookback=late)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"where": "id > 1"}, "where: a frame takes no such setting"),
        ({"select": ("id",)}, "columns: a frame takes no such setting"),
        ({"cursor": Cursor("id", Kind.TIMESTAMP)}, "cursor: a frame takes no such setting"),
        ({"lookback": timedelta(minutes=1)}, "lookback: a frame takes no such setting"),
    ],
)
def test_what_a_dataframe_would_not_heed_is_refused(settings: dict[str, Any], told: str) -> None:
    frame = Frame("events", lambda spark: spark.table("events"), "at", lookback=timedelta(minutes=10))
    nobody: Any = None
    source, info = FrameSource([frame], nobody, nobody), TableInfo("events", (Column("at", "timestamp_ntz"),))
    table = Table("nightly", "events", "events", "events", "sync", Mode.MERGE, None)
    with pytest.raises(SourceError, match=told):
        source.resolve(replace(table, **settings), info, None)
    with pytest.raises(SourceError, match='"Asia/Tokio" is no time zone'):
        source.resolve(table, info, "Asia/Tokio")
    assert source.resolve(table, info, "Asia/Tokyo").lookback == frame.lookback


# in the caller's own transaction


@pytest.fixture
def shared(tmp_path: Path) -> tuple[Job, sqlite3.Connection]:
    """State and target in one SQLite file."""
    path = tmp_path / "warehouse.db"
    job = Job(open_state(Endpoint.parse(f"sqlite:///{path}")))
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE facts (id)")
    connection.commit()
    return job, connection


def test_watermark_and_rows_are_committed_together(shared: tuple[Job, sqlite3.Connection]) -> None:
    job, connection = shared
    with job.tracker().run() as run:
        for table in run:
            connection.execute("INSERT INTO facts VALUES (?)", ids(table))
        run.commit_in(connection)
        assert job.stands() == dict.fromkeys((ORDERS, ITEMS, FEES), f"RUNNING {OPEN}")
        connection.commit()
    assert job.stands() == dict.fromkeys((ORDERS, ITEMS, FEES), f"COMPLETED {MOVED}")
    assert job.run_statuses() == ["COMPLETED"]
    assert job.read_all() == {}


def test_a_rollback_leaves_the_run_unfinished(shared: tuple[Job, sqlite3.Connection]) -> None:
    job, connection = shared
    with job.tracker().run([ORDERS]) as run:
        for table in run:
            connection.execute("INSERT INTO facts VALUES (?)", ids(table))
            table.commit_in(connection, rows=1)
            connection.rollback()
    assert job.stands() == {ORDERS: f"FAILED {OPEN}"}
    assert "rolled back" in job.history()[ORDERS][0]
    with job.tracker().run([ORDERS]) as run:
        for table in run:
            connection.execute("INSERT INTO facts VALUES (?)", ids(table))
            table.commit_in(connection, rows=1)
            connection.rollback()
            connection.execute("INSERT INTO facts VALUES (?)", ids(table))
            table.commit_in(connection, rows=1)
            connection.commit()
    assert job.stands() == {ORDERS: f"COMPLETED {MOVED}"}
    assert connection.execute("SELECT id FROM facts").fetchall() == [(1,)]


def test_a_transaction_that_cannot_decide_is_refused(shared: tuple[Job, sqlite3.Connection], tmp_path: Path) -> None:
    job, connection = shared
    elsewhere = sqlite3.connect(tmp_path / "elsewhere.db")
    with job.tracker().run([ORDERS]) as run:
        for table in run:
            with pytest.raises(StateError, match="does not lead to the state"):
                run.commit_in(elsewhere)
            with pytest.raises(StateError, match="no connection of sqlite3"):
                run.commit_in("a connection")
            connection.isolation_level = None
            with pytest.raises(StateError, match="no transaction open"):
                run.commit_in(connection)
            table.done()
    assert job.stands() == {ORDERS: f"COMPLETED {MOVED}"}
    with pytest.raises(StateError, match="in no SQL database"), Job().tracker().run() as run:
        run.commit_in(connection, run.tables)


def test_a_transaction_that_is_open_has_the_last_word(shared: tuple[Job, sqlite3.Connection]) -> None:
    """Saying `done` beside it would wait for it, and it for us."""
    job, connection = shared
    with job.tracker().run([ORDERS]) as run:
        orders = run[ORDERS]
        orders.commit_in(connection, rows=1)
        words: list[Callable[[], None]] = [orders.done, lambda: orders.skip("late"), lambda: orders.fail("odd row")]
        for say in words:
            with pytest.raises(StateError, match="in a transaction of yours that is still open"):
                say()
        connection.rollback()
        orders.skip("late")
        with pytest.raises(StateError, match="SKIPPED already"):
            run.commit_in(connection, [orders])
    assert job.stands() == {ORDERS: f"PLANNED {OPEN}"}
    with job.tracker().run([ORDERS]) as run:
        run[ORDERS].commit_in(connection)
        connection.commit()
        with pytest.raises(StateError, match="COMPLETED already"):
            run[ORDERS].done()
    assert job.stands() == {ORDERS: f"COMPLETED {MOVED}"}


def test_an_atomic_run_goes_into_one_transaction_whole_or_not_at_all(shared: tuple[Job, sqlite3.Connection]) -> None:
    job, connection = shared
    with job.tracker().run(atomic=True) as run:
        for table in run:
            if table.name != FEES:
                with pytest.raises(StateError, match="atomic=True: all tables are committed in one transaction"):
                    run.commit_in(connection)
                with pytest.raises(StateError, match="is not done"):
                    table.commit_in(connection)
        connection.execute("INSERT INTO facts VALUES (1)")
        run.commit_in(connection)
        connection.commit()
    assert job.stands() == dict.fromkeys((ORDERS, ITEMS, FEES), f"COMPLETED {MOVED}")


def test_sqlite_has_one_writer_so_its_transaction_ends_before_the_run(shared: tuple[Job, sqlite3.Connection]) -> None:
    job, connection = shared
    with pytest.raises(StateError, match="one writer at a time"), job.tracker().run([ORDERS]) as run:
        run[ORDERS].commit_in(connection)
    connection.rollback()
    assert job.stands() == {ORDERS: f"RUNNING {OPEN}"}


def test_a_table_taken_over_meanwhile_is_not_committed_with_the_callers_rows(
    shared: tuple[Job, sqlite3.Connection],
) -> None:
    job, connection = shared
    silent = job.start()
    connection.execute("INSERT INTO facts VALUES (1)")
    connection.rollback()
    for record in job.world.state.read("lease"):
        job.world.state.put(
            [type(record)(record.kind, record.key, {**record.fields, "expires_at": ""}, record.revision)]
        )
    job.read_all()
    connection.execute("INSERT INTO facts VALUES (1)")
    with pytest.raises(LeaseError):
        silent[ORDERS].commit_in(connection)
    assert connection.in_transaction, "it is the caller's to roll back"
    connection.rollback()

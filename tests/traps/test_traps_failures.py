"""Traps 14 to 25: bad values, crashes, second runners, changed schemas, wrong clocks and broken connections.

Each docstring says what a peer does wrong; the test fails if we did it.
"""

from __future__ import annotations

import shutil
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from itertools import count

import pytest
from trap_shop import OLD, Killed, MariaDatabase, Shop, database, shop

from strandline import operations
from strandline.core.errors import StateError
from strandline.core.events import Adopted, BatchApplied, Event, Intended, Planned, Retrying
from strandline.core.position import Reason, Status
from strandline.result import error_text

__all__ = ["database", "shop"]  # fixtures


@pytest.mark.parametrize("database", ["mariadb"], indirect=True)
def test_trap_14_zero_dates(shop: Shop) -> None:
    """A peer reads 0000-00-00 as NULL or as a day of the year 1 BC, without a word."""
    shop.execute("SET SESSION sql_mode = ''")
    shop.table(more=", born date NOT NULL")
    shop.execute("INSERT INTO orders VALUES (1, 'new', sysdate(6), '0000-00-00')")
    said = shop.refused()
    assert "column born" in said and "0000-00-00" in said
    assert shop.ids() == []
    shop.url += "?zero_dates=null"  # asked for by name
    shop.synced()
    assert shop.target.column("orders", "born") == [None]


def test_trap_15_crash_before_and_between_the_sinks_commit_and_the_states(shop: Shop) -> None:
    """A peer applies the batch again, or takes it for done."""
    shop.table(key="", mode="append")
    shop.insert(1)
    shop.killed_at(Intended)  # nothing is committed yet
    shop.insert(2)
    shop.killed_at(BatchApplied)  # the target has it, the state does not know
    assert shop.ids() == [1]
    shop.synced()
    assert any(isinstance(event, Adopted) for event in shop.events)
    shop.synced()
    shop.check(ids=[1, 2])


def test_trap_16_two_runners_a_damaged_state_and_a_neighbours_reset(shop: Shop) -> None:
    """A peer lets the second runner apply what the first applies, and starts over where its state file is empty."""
    shop.table(key="", mode="append")
    shop.table("other", key="", mode="append")
    shop.insert(1)
    shop.insert(1, table="other")
    second: list[str] = []

    def meanwhile(event: Event) -> None:
        if isinstance(event, Planned) and event.table == "orders" and not second:
            second.append(error_text(shop.sync(tables=["orders"])["orders"]) or "")

    shop.synced(listener=meanwhile)
    assert "at work" in second[0]
    shop.check(ids=[1])

    shop.insert(2)
    state = shop.folder / ".strandline" / "state.db"
    kept = shop.folder / "kept"
    shutil.copy(state, kept)
    state.write_bytes(b"")
    assert "no position" in shop.refused()
    shutil.copy(kept, state)
    state.write_bytes(kept.read_bytes()[:5000])
    with pytest.raises(StateError):
        shop.sync()
    shutil.copy(kept, state)
    with closing(sqlite3.connect(state)) as edited, edited:
        edited.execute("UPDATE strandline_positions SET watermark = 'yesterday' WHERE table_name = 'orders'")
    assert "cannot be read" in shop.refused()
    shutil.copy(kept, state)
    assert shop.ids() == [1]

    before = shop.position("other")
    with shop.load() as project:
        change = operations.reset(project, "shop", "orders", allow_duplicates=True)
        operations.apply(project, [change], why="test")
    assert shop.position("other") == before
    assert shop.position("orders").watermark is None


def test_trap_17_a_later_slice_succeeds_and_an_earlier_one_fails(shop: Shop) -> None:
    """A peer takes the highest slice that succeeded for its watermark and leaves a gap below it."""
    never = "'0000-00-00'" if shop.database.name == "mariadb" else "'infinity'"
    if shop.database.name == "mariadb":
        shop.execute("SET SESSION sql_mode = ''")
    shop.table(key="", more=", born date", mode="append", slice_rows=1)
    for number, born in ((1, "NULL"), (2, never), (3, "NULL")):
        at = shop.database.at(f"2026-01-0{number} 00:00:00")
        shop.execute(f"INSERT INTO orders VALUES ({number}, 'new', {at}, {born})")
    assert "column born" in shop.refused()
    assert shop.ids() == [1]
    assert shop.watermark().text.startswith("2026-01-02")
    shop.execute("UPDATE orders SET born = NULL WHERE id = 2")
    shop.synced()
    shop.check(ids=[1, 2, 3])


def test_trap_18_empty_run(shop: Shop) -> None:
    """A peer stores the maximum of nothing, NULL or 0, and loads everything again."""
    shop.table()
    shop.insert(1)
    numbered(shop, "log", 1, 2)
    shop.synced()
    before = {name: shop.position(name) for name in shop.tables}
    for emptied in (False, True):
        for name in shop.tables:
            shop.execute(f"DELETE FROM {name} WHERE 1 = {int(emptied)}")
        assert {outcome.status for outcome in shop.synced().values()} == {Status.SKIPPED}
        for name, then in before.items():
            now = shop.position(name)
            assert then.watermark and now.watermark and now.watermark >= then.watermark
            assert (now.batch, now.totals, now.last_value) == (then.batch, then.totals, then.last_value)
    assert (shop.ids(), shop.ids("log")) == ([1], [1, 2])


def numbered(shop: Shop, table: str, *ids: int) -> None:
    """A log whose cursor is its id, as the database gives it out."""
    maria = shop.database.name == "mariadb"
    kind = "AUTO_INCREMENT" if maria else f"GENERATED BY DEFAULT AS IDENTITY (START {ids[0]})"
    shop.execute(f"CREATE TABLE {table} (id bigint NOT NULL {kind} PRIMARY KEY, status {shop.database.text} NOT NULL)")
    for number in ids:
        columns, values = ("id, status", f"{number}, 'new'") if maria else ("status", "'new'")
        shop.execute(f"INSERT INTO {table} ({columns}) VALUES ({values})")
    shop.tables[table] = {"name": table, "cursor": "id", "mode": "append"}


def test_trap_19_integers_at_their_limits(shop: Shop) -> None:
    """A peer keeps numbers as floats, for which 2^53 and 2^53 + 1 are one, or overflows above the last."""
    exact, most = 2**53, 2**63 - 1
    numbered(shop, "large", exact, exact + 1, exact + 2)
    numbered(shop, "largest", most - 1, most)
    shop.synced(limit=1)
    assert (shop.watermark("large").text, shop.watermark("largest").text) == (str(exact + 1), str(most))
    assert (shop.ids("large"), shop.ids("largest")) == ([exact], [most - 1])
    shop.synced()
    assert {outcome.plan.reason for outcome in shop.synced().values()} == {Reason.NOTHING_NEW}
    shop.check("large", ids=[exact, exact + 1, exact + 2])
    shop.check("largest", ids=[most - 1, most])


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
def test_trap_19_wrap_around(shop: Shop) -> None:
    """A peer never sees the ids that a sequence gives out after it began again."""
    numbered(shop, "log", 1)
    shop.execute("ALTER TABLE log ALTER id SET MAXVALUE 3 SET CYCLE")
    assert "CYCLE" in shop.refused("log")


def test_trap_20_backward_and_future_cursors(shop: Shop) -> None:
    """A peer stores the highest value it saw: one row of tomorrow, and everything until then is skipped."""
    shop.table()
    now = shop.database.now
    shop.insert(1, 2)
    shop.execute(f"INSERT INTO orders VALUES (9, 'future', {now} + interval '2' day)")
    shop.synced()
    before = shop.watermark()
    assert shop.execute(f"SELECT {shop.database.at(before.text)} <= {now}") in ([(True,)], [(1,)])
    shop.execute(f"UPDATE orders SET updated_at = {now} - interval '1' hour WHERE id = 2")
    shop.insert(3)
    shop.synced()
    assert shop.watermark() > before
    assert shop.ids() == [1, 2, 3]


def test_trap_21_null_and_repeated_merge_keys(shop: Shop) -> None:
    """A peer merges two rows of a key in an order that does not exist, and inserts NULL keys again with every run."""
    for name, key in (("orders", ""), ("ties", ""), ("empty", "NULL")):
        shop.table(name, key=key)
        shop.tables[name]["key"] = "id"  # which no constraint keeps unique
    shop.insert(1, status="older", at=OLD)
    shop.insert(1, status="newer", at="2026-01-02 00:00:00")
    for status in ("one", "two"):
        shop.insert(1, status=status, at=OLD, table="ties")
    shop.execute(f"INSERT INTO empty VALUES (NULL, 'no key', {shop.database.at(OLD)})")
    shop.tables["asked"] = {"name": "asked", "query": "SELECT * FROM empty", "key": "id", "cursor": "updated_at"}
    outcomes = shop.sync()
    assert outcomes["orders"].error is None and shop.copied() == [(1, "newer")]
    assert "several different rows" in str(outcomes["ties"].error)
    assert 'key column "id" may be NULL' in str(outcomes["empty"].error)
    assert "NULL in the key" in str(outcomes["asked"].error)
    assert shop.ids("ties") == shop.ids("asked") == []


def test_trap_22_schema_changes_between_runs_and_inside_a_window(shop: Shop) -> None:
    """A peer goes on with the columns it knew: new ones stay empty for ever, a dropped one loses the window."""
    text = shop.database.text
    shop.table(more=f", amount int, gone {text}, note {text}")
    shop.insert(1)
    shop.synced()
    modify = "MODIFY amount bigint" if shop.database.name == "mariadb" else "ALTER amount TYPE bigint"
    shop.execute(f"ALTER TABLE orders {modify}")
    shop.execute(f"ALTER TABLE orders ADD extra {text}")
    now = shop.database.now
    shop.execute(f"INSERT INTO orders (id, status, updated_at, amount, extra) VALUES (2, 'n', {now}, {2**40}, 'x')")

    def drop(event: Event) -> None:
        if isinstance(event, Planned):
            shop.execute("ALTER TABLE orders DROP COLUMN gone")

    assert "gone" in shop.refused(listener=drop)
    assert shop.ids() == [1]
    rename = f"CHANGE note remark {text}" if shop.database.name == "mariadb" else "RENAME note TO remark"
    shop.execute(f"ALTER TABLE orders {rename}")
    shop.execute(f"INSERT INTO orders (id, status, updated_at, remark) VALUES (3, 'n', {now}, 'y')")
    shop.synced()  # what was planned
    shop.synced()  # what came since
    shop.check(ids=[1, 2, 3])
    rows = {row["id"]: row for row in shop.target.rows("orders")}
    assert (rows[2]["amount"], rows[2]["extra"], rows[3]["remark"]) == (2**40, "x", "y")


@contextmanager
def an_hour_behind(shop: Shop) -> Iterator[None]:
    """The database's clock, as everybody who asks it sees it."""
    shop.database.now = f"{shop.database.now} - interval '1' hour"
    name = shop.url.rpartition("/")[2]
    if not isinstance(shop.database, MariaDatabase):
        shop.execute("CREATE SCHEMA behind")
        for clock in ("now", "clock_timestamp", "statement_timestamp", "transaction_timestamp"):
            body = f"$$ SELECT pg_catalog.{clock}() - interval '1 hour' $$"
            shop.execute(f"CREATE FUNCTION behind.{clock}() RETURNS timestamptz LANGUAGE sql AS {body}")
        shop.execute(f"ALTER DATABASE {name} SET search_path = behind, pg_catalog, public")
        yield
        return
    shop.execute("CREATE OR REPLACE USER behind IDENTIFIED BY 'pw'")
    shop.execute(f"GRANT SELECT ON {name}.* TO behind")
    shop.execute("GRANT PROCESS ON *.* TO behind")
    shop.execute("SET GLOBAL init_connect = 'SET timestamp = UNIX_TIMESTAMP(NOW(6)) - 3600'")
    shop.url = shop.database.server.url(name, "behind", "pw")
    try:
        yield
    finally:
        shop.execute("SET GLOBAL init_connect = ''")


def test_trap_23_clock_skew(shop: Shop) -> None:
    """A peer asks its own clock how far to read: an hour ahead, and the next hour of rows is skipped."""
    shop.table()
    with an_hour_behind(shop):
        shop.insert(1)
        shop.synced()
        lag = shop.watermark().seconds_before(datetime.now(UTC))
        assert lag is not None and lag > 3500
        shop.insert(2)
        shop.synced()
    shop.check(ids=[1, 2])


def test_trap_24_resume_of_a_window_partly_applied_and_after_watermark_set(shop: Shop) -> None:
    """A peer plans a wider window and applies its start again, or goes on with the old plan after `set`."""
    shop.table(slice_rows=2)
    shop.insert(1, 2, 3, 4, 5, at=OLD)
    shop.killed_at(Intended, 2)
    assert shop.ids() == [1, 2]
    plan = shop.position().plan
    shop.insert(6)
    resumed = shop.synced()["orders"].plan
    assert plan and plan.window and (resumed.reason, resumed.window) == (Reason.RESUMED, plan.window)
    shop.check(ids=[1, 2, 3, 4, 5])
    epoch = shop.position().epoch
    shop.killed_at(Intended)
    shop.update(2, "changed")
    with shop.load() as project:
        change = operations.set_watermark(project, "shop", "orders", OLD)
        operations.apply(project, [change], why="test")
    assert (shop.position().plan, shop.position().epoch) == (None, epoch + 1)
    shop.synced()
    shop.check(ids=[1, 2, 3, 4, 5, 6])


def test_trap_25_killed_at_every_step(shop: Shop) -> None:
    """A peer has a step at which its death loses a batch or repeats one."""
    shop.table(key="", mode="append", slice_rows=2)
    for number in range(1, 5):
        shop.insert(number, at=f"2026-01-0{number} 00:00:00")
    kills = 0
    for step in count(1):
        steps = count(1)

        def kill(_: Event, at: int = step, steps: Iterator[int] = steps) -> None:
            if next(steps) == at:
                raise Killed

        try:
            shop.synced(listener=kill)
            break
        except Killed:
            kills += 1
            shop.expire_leases()
    assert kills > 6
    shop.synced()
    shop.check(ids=[1, 2, 3, 4])
    assert shop.position().totals.rows_inserted == 4


def test_trap_25_source_connection_lost_in_the_middle_of_a_batch(shop: Shop) -> None:
    """A peer takes the end of a connection for the end of the rows."""
    shop.table(key="", mode="append")
    shop.execute(f"INSERT INTO orders SELECT i, 'new', {shop.database.at(OLD)} FROM {shop.database.series(500)}")
    cut: list[threading.Thread] = []

    def meanwhile(event: Event) -> None:
        if isinstance(event, Intended):
            locked = threading.Event()
            cut.append(threading.Thread(target=cut_readers, args=(shop, locked)))
            cut[0].start()
            assert locked.wait(240)

    shop.synced(listener=meanwhile)
    cut[0].join()
    assert any(isinstance(event, Retrying) for event in shop.events)
    shop.check(ids=list(range(1, 501)))


def cut_readers(shop: Shop, locked: threading.Event) -> None:
    """Wait until somebody reads a table that is locked, and cut the connection."""
    with shop.database.locked("orders"):
        locked.set()
        deadline = time.monotonic() + 240
        while not (waiting := shop.database.readers_waiting()) and time.monotonic() < deadline:
            time.sleep(0.05)
        for session in waiting:
            shop.database.cut(session)


def test_trap_25_no_room_in_the_target(shop: Shop) -> None:
    """A peer leaves half a batch behind, or takes it for whole."""
    shop.table(key="", mode="append", more=", noise text")
    digest = "md5(i * {})" if shop.database.name == "mariadb" else "md5((i * {})::text)"
    noise = ", ".join(digest.format(salt) for salt in range(3, 53))
    values = f"i, 'new', {shop.database.at(OLD)}, concat({noise})"
    shop.execute(f"INSERT INTO orders SELECT {values} FROM {shop.database.series(1000)}")
    with shop.target.crowded():
        said = shop.refused()
        assert "full" in said and "Nothing was committed" in said
        assert shop.ids() == []
    shop.synced()
    shop.check(ids=list(range(1, 1001)))

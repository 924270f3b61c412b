"""Traps 1 to 13: how far a window reaches, and what falls in it. Each on every database and every sink there is.

Each docstring says what a peer does wrong; the test fails if we did it.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from datetime import datetime
from itertools import count

import pytest
from trap_shop import OLD, Shop, database, shop

from strandline.core.errors import SourceError
from strandline.core.events import Committed, Event, Planned
from strandline.core.position import Reason, Status

__all__ = ["database", "shop"]  # fixtures

# trap 1


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 240
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@contextmanager
def open_transaction(shop: Shop, number: int) -> Iterator[None]:
    with closing(shop.database.connect(autocommit=False)) as late:
        late.execute(shop.insertion(number))
        yield
        late.commit()


@contextmanager
def savepoint(shop: Shop, number: int) -> Iterator[None]:
    with closing(shop.database.connect(autocommit=False)) as late:
        late.execute("SAVEPOINT a")
        late.execute(shop.insertion(number))
        late.execute("RELEASE SAVEPOINT a")
        yield
        late.commit()


@contextmanager
def two_phase(shop: Shop, number: int) -> Iterator[None]:
    with closing(shop.database.connect()) as late:
        for statement in ("BEGIN", shop.insertion(number), "PREPARE TRANSACTION 'late'"):
            late.execute(statement)
    yield
    shop.execute("COMMIT PREPARED 'late'")


@contextmanager
def xa(shop: Shop, number: int) -> Iterator[None]:
    with closing(shop.database.connect()) as late:
        for statement in ("XA START 'late'", shop.insertion(number), "XA END 'late'", "XA PREPARE 'late'"):
            late.execute(statement)
        yield
        late.execute("XA COMMIT 'late'")


@contextmanager
def frozen_backend(shop: Shop, number: int) -> Iterator[None]:
    with closing(shop.database.connect(autocommit=False)) as late:
        late.execute(shop.insertion(number))
        pid = int(late.value("SELECT pg_backend_pid()"))
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)
        late.commit()


@contextmanager
def slow_statement(shop: Shop, number: int) -> Iterator[None]:
    """One statement that has stamped its row and waits at a gate before it ends."""
    maria = shop.database.name == "mariadb"
    take = "SELECT get_lock('gate', 600)" if maria else "SELECT pg_advisory_lock(1)"
    give = "SELECT release_lock('gate')" if maria else "SELECT pg_advisory_unlock(1)"
    gate = "get_lock('gate', 600) >= 0" if maria else "pg_advisory_lock(1) IS NOT NULL"
    shop.execute(take)
    now = "now(6)" if maria else "now()"
    with closing(shop.database.connect()) as late:
        sql = f"INSERT INTO orders SELECT {number}, 'late', {now} FROM (SELECT 1 AS one) o WHERE {gate}"
        statement = threading.Thread(target=late.execute, args=(sql,))
        statement.start()
        until(lambda: _at_gate(shop))
        yield
        shop.execute(give)
        statement.join()


@contextmanager
def event_worker(shop: Shop, number: int) -> Iterator[None]:
    shop.execute("SET GLOBAL event_scheduler = ON")
    shop.execute("SELECT get_lock('gate', 600)")
    shop.execute(
        "CREATE EVENT late ON SCHEDULE AT now() DO INSERT INTO orders (id, status, updated_at) "
        f"SELECT {number}, 'late', now(6) FROM (SELECT 1 AS one) o WHERE get_lock('gate', 600) >= 0"
    )
    until(lambda: _at_gate(shop))
    try:
        yield
    finally:
        shop.execute("SELECT release_lock('gate')")
        shop.execute("SET GLOBAL event_scheduler = OFF")
    until(lambda: shop.execute(f"SELECT id FROM orders WHERE id = {number}"))


def _at_gate(shop: Shop) -> bool:
    if shop.database.name == "mariadb":
        waiting = "SELECT 1 FROM information_schema.processlist WHERE state = 'User lock'"
    else:
        waiting = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    return bool(shop.execute(waiting))


WAYS: dict[str, list[Callable[[Shop, int], AbstractContextManager[None]]]] = {
    "postgres": [open_transaction, savepoint, two_phase, frozen_backend, slow_statement],
    "mariadb": [open_transaction, savepoint, xa, slow_statement, event_worker],
}


def test_trap_01_late_commit(shop: Shop) -> None:
    """A peer reads up to now and moves past a row that is stamped and not yet committed."""
    shop.table()
    ways = WAYS[shop.database.name]
    for number, late in enumerate(ways, 1):
        with late(shop, number):
            shop.insert(100 + number)
            assert shop.synced()["orders"].plan.held_by is not None, f"way {number}"
    shop.synced()
    assert shop.ids() == [*range(1, len(ways) + 1), *range(101, 101 + len(ways))]


@pytest.mark.parametrize("database", ["mariadb"], indirect=True)
def test_trap_01_late_commit_on_a_replica(shop: Shop) -> None:
    """A peer polls a replica, on which nothing in flight on the primary can be seen."""
    shop.table()
    shop.insert(1)
    shop.execute("SET GLOBAL read_only = ON")
    try:
        with shop.load() as project, pytest.raises(SourceError, match="replica"):
            project.sync("shop")
    finally:
        shop.execute("SET GLOBAL read_only = OFF")
    assert shop.ids() == []


def test_trap_02_maximum_and_read_in_different_snapshots(shop: Shop) -> None:
    """A peer asks for the maximum and reads without it as a bound: rows between come twice, or never."""
    shop.table("log", key="", mode="append")
    shop.table()
    shop.insert(1, 2)
    shop.insert(1, 2, table="log")

    def meanwhile(event: Event) -> None:
        if isinstance(event, Planned) and event.table == "orders":
            shop.update(2, "changed")
            shop.insert(3)
        elif isinstance(event, Planned):
            shop.insert(3, table="log")

    shop.synced(listener=meanwhile)
    assert shop.ids("log") == [1, 2]
    shop.synced()
    shop.check(ids=[1, 2, 3])


def test_trap_03_new_row_at_exactly_the_watermark(shop: Shop) -> None:
    """A peer goes on with `> watermark` and never sees a row that appears at it."""
    shop.table()
    shop.insert(1)
    shop.synced()
    shop.insert(2, at=str(shop.watermark()))
    shop.synced()
    shop.check(ids=[1, 2])


def test_trap_04_one_deleted_and_one_inserted_at_the_watermark(shop: Shop) -> None:
    """A peer counts the rows at its watermark and takes an equal count for the same rows."""
    shop.table()
    shop.insert(1, at=OLD)
    shop.insert(2, at="2026-01-02 00:00:00")
    shop.synced(limit=1)
    assert shop.watermark().text.startswith("2026-01-02 00:00:00")
    shop.execute("DELETE FROM orders WHERE id = 2")
    shop.insert(3, at="2026-01-02 00:00:00")
    shop.synced()
    shop.check(ids=[1, 3])


def test_trap_05_limit_in_the_middle_of_a_tie_and_a_tie_larger_than_the_batch(shop: Shop) -> None:
    """A peer cuts a tie by its batch size and goes on behind it."""
    shop.table()
    shop.table("large", slice_rows=2, key="", mode="append")
    shop.insert(1, 2, 3, at=OLD)
    shop.insert(4, at="2026-01-02 00:00:00")
    shop.insert(*range(1, 8), at=OLD, table="large")
    shop.insert(8, at="2026-01-02 00:00:00", table="large")
    shop.synced(limit=2)
    assert (shop.ids(), shop.ids("large")) == ([1, 2, 3], list(range(1, 8)))
    shop.synced()
    shop.check("orders", ids=[1, 2, 3, 4])
    shop.check("large", ids=list(range(1, 9)))


def test_trap_06_limit_without_a_total_order(shop: Shop) -> None:
    """A peer pages by LIMIT and OFFSET over ties, whose order changes while it reads."""
    shop.table(key="", mode="append", slice_rows=4)
    for number in (7, 3, 9, 1, 8, 5, 2, 6, 4):
        shop.insert(number, at=f"2026-01-0{number % 3 + 1} 00:00:00")

    def shuffle(event: Event) -> None:
        if isinstance(event, Committed):  # rows written anew stand elsewhere in the heap
            shop.execute("UPDATE orders SET status = 'moved' WHERE id > 4")
            shop.execute("UPDATE orders SET status = 'new' WHERE id > 4")

    assert shop.synced(listener=shuffle)["orders"].batches > 1
    shop.check(ids=list(range(1, 10)))


def test_trap_07_second_update_within_the_same_cursor_tick(shop: Shop) -> None:
    """A peer has seen the tick and skips what else happens in it."""
    shop.table(stamp=shop.database.stamp(0))
    tick = "date_trunc('second', clock_timestamp())" if shop.database.name == "postgres" else "now(0)"
    for number in count(1):  # until both fall in one second
        await_next(shop, tick)
        shop.execute(f"INSERT INTO orders VALUES ({number}, 'first', {tick})")
        first = shop.execute("SELECT max(updated_at) FROM orders")
        shop.synced()
        shop.execute(f"UPDATE orders SET status = 'second', updated_at = {tick} WHERE id = {number}")
        if first == shop.execute("SELECT max(updated_at) FROM orders"):
            break
    await_next(shop, tick)
    shop.synced()
    shop.check()
    assert {status for _, status in shop.copied()} == {"second"}


def await_next(shop: Shop, tick: str) -> None:
    now = shop.execute(f"SELECT {tick}")
    until(lambda: shop.execute(f"SELECT {tick}") > now)


def test_trap_08_a_million_rows_on_one_cursor_value(shop: Shop) -> None:
    """A peer holds a tie in memory, or pages through it in an order that does not exist."""
    rows = 200_000  # more than one reader takes, more than a slice: a million is only slower
    shop.table(slice_rows=50_000)
    at = shop.database.at(OLD)
    shop.execute(f"INSERT INTO orders SELECT i, 'x', {at} FROM {shop.database.series(rows)}")
    shop.synced()
    found = shop.target.column("orders", "id")
    assert (len(found), len(set(found)), max(found)) == (rows, rows, rows)
    assert shop.synced()["orders"].plan.reason is Reason.NOTHING_NEW


def test_trap_09_null_cursor(shop: Shop) -> None:
    """A peer compares NULL with its watermark and never says that the rows did not come."""
    for name in ("some", "every", "later", "asked"):
        shop.table(f"{name}_null", null=True, **({"nulls": "include"} if name == "asked" else {}))
    null = "INSERT INTO {}_null VALUES ({}, 'null', NULL)"
    for name, number in (("some", 1), ("every", 1), ("every", 2), ("asked", 1)):
        shop.execute(null.format(name, number))
    for name in ("some", "later", "asked"):
        shop.insert(9, table=f"{name}_null")
    first = shop.sync()
    assert "1 row has no value" in str(first["some_null"].error)
    assert "2 rows have no value" in str(first["every_null"].error)
    assert first["later_null"].error is None and first["asked_null"].error is None
    shop.execute(null.format("later", 1))
    shop.execute(null.format("asked", 2))
    second = shop.sync()
    assert [second[f"{name}_null"].status for name in ("some", "every", "later")] == [Status.FAILED] * 3
    assert (shop.ids("later_null"), shop.ids("asked_null")) == ([9], [1, 2, 9])


def test_trap_10_lookback(shop: Shop) -> None:
    """A peer appends what it re-reads, or takes the start of its lookback for the watermark."""
    shop.table("log", key="", mode="append", lookback="1h")
    shop.table(lookback="1h")
    shop.insert(1)
    shop.insert(1, table="log")
    assert "append mode would add them again" in shop.refused("log")
    before = shop.watermark()
    clock, hour = (f"{shop.database.now} - interval {word}" for word in ("'10' minute", "'59' minute"))
    shop.execute(f"INSERT INTO orders VALUES (2, 'late', {clock}), (3, 'late', {hour})")
    del shop.tables["log"]
    shop.synced()
    shop.check(ids=[1, 2, 3])
    marks = [before, shop.watermark()]
    for _ in range(2):  # nothing new but the overlap
        shop.synced()
        marks.append(shop.watermark())
    assert marks == sorted(marks)
    shop.check(ids=[1, 2, 3])


def test_trap_11_precision(shop: Shop) -> None:
    """A peer keeps its watermark in milliseconds, or in a float, and jumps over rows or repeats them."""
    ticks = {6: ("123456", "123457"), 3: ("123", "124"), 0: ("0", "0")}
    for digits, (first, second) in ticks.items():
        name = f"digits_{digits}"
        shop.table(name, stamp=shop.database.stamp(digits), key="", mode="append")
        shop.insert(1, at=f"{OLD}.{first}", table=name)
        shop.insert(2, at=f"2026-01-01 00:00:0{0 if digits else 1}.{second}", table=name)
    shop.table("digits_7", key="", mode="append", initial=f"{OLD}.1234565")
    shop.insert(2, at=f"{OLD}.123457", table="digits_7")
    shop.synced(limit=1)
    assert [shop.ids(f"digits_{digits}") for digits in (6, 3, 0, 7)] == [[1], [1], [1], [2]]
    kept = [shop.watermark(f"digits_{digits}").text.rstrip("0") for digits in (6, 3)]
    assert kept == [f"{OLD}.123457", f"{OLD}.124"]
    shop.synced()
    for digits in ticks:
        shop.check(f"digits_{digits}", ids=[1, 2])


def test_trap_12_slice_edges(shop: Shop) -> None:
    """A peer slices by days that end at 23:59:59 and leaves out the last second, or reads midnight twice."""
    shop.table(key="", mode="append", slice_rows=1)
    times = ("01 23:59:59", "01 23:59:59.412", "01 23:59:59.999999", "02 00:00:00")
    for number, at in enumerate(times, 1):
        shop.insert(number, at=f"2026-01-{at}")
    assert shop.synced()["orders"].batches == len(times)
    shop.check(ids=[1, 2, 3, 4])


def test_trap_13_zones(shop: Shop) -> None:
    """A peer renders its watermark in whatever zone the session, the driver or Spark happens to have."""
    shop.table()
    shop.table("local", stamp=shop.database.naive(), zone="Europe/Berlin", key="", mode="append")
    shop.table("unsaid", stamp=shop.database.naive())
    stamps = ["2026-03-29 02:30:00", "2026-10-25 02:30:00", "2026-10-25 02:30:00.000001"]  # a gap; twice in a fold
    for number, at in enumerate(stamps, 1):
        shop.execute(f"INSERT INTO local VALUES ({number}, 'new', timestamp '{at}')")
    shop.insert(1, at="2026-03-29 01:30:00")
    with elsewhere(shop, "America/New_York"):
        assert "has no time zone" in str(shop.sync()["unsaid"].error)
    del shop.tables["unsaid"]
    with elsewhere(shop, "Asia/Tokyo"):
        shop.insert(2)
        shop.synced()
    shop.insert(3)
    shop.synced()
    shop.check("orders", ids=[1, 2, 3])
    shop.check("local", ids=[1, 2, 3])
    assert sorted(row["updated_at"] for row in shop.target.rows("local")) == [
        datetime.fromisoformat(at) for at in stamps
    ]
    first = min(shop.target.column("orders", "updated_at"))
    assert first.isoformat().removesuffix("+00:00") == "2026-03-29T01:30:00"  # PyMySQL leaves the zone out


@contextmanager
def elsewhere(shop: Shop, zone: str) -> Iterator[None]:
    """Sessions of the database, and Spark's, live in another zone."""
    offset = {"America/New_York": "-05:00", "Asia/Tokyo": "+09:00"}[zone]
    maria = shop.database.name == "mariadb"
    name = shop.url.rpartition("/")[2]
    before = shop.spark.conf.get("spark.sql.session.timeZone") or "UTC"
    shop.execute(f"SET GLOBAL time_zone = '{offset}'" if maria else f"ALTER DATABASE {name} SET timezone = '{zone}'")
    shop.spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        yield
    finally:
        shop.spark.conf.set("spark.sql.session.timeZone", before)
        shop.execute("SET GLOBAL time_zone = '+00:00'" if maria else f"ALTER DATABASE {name} RESET timezone")

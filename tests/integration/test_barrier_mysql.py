"""The commit barrier on MariaDB against everything that can commit late, and the servers it cannot work on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest

from strandline.core.errors import SourceError, StrandlineError
from strandline.core.protocols import Source
from strandline.core.table import Table
from strandline.core.watermark import Kind, Watermark
from strandline.core.window import Window
from strandline.endpoint import Endpoint
from strandline.sources.mysql import MySqlSource
from strandline.testing.servers import MariaDB
from strandline.testing.shops import MariadbShop
from strandline.testing.source import horizon, waiting

LONG = timedelta(seconds=120)
GATE = "GET_LOCK('gate', 600)"


@pytest.fixture
def shop(mariadb_database: str) -> Iterator[MariadbShop]:
    with MariadbShop(mariadb_database) as shop:
        yield shop


def below(shop: MariadbShop, high: Watermark | None) -> int:
    assert high is not None
    return int(shop.execute(f"SELECT count(*) FROM orders WHERE at < '{high.text}'")[0][0])


def seen(shop: MariadbShop, condition: str) -> None:
    """Wait until the process list shows it."""
    sql = f"SELECT 1 FROM information_schema.processlist WHERE id <> CONNECTION_ID() AND ({condition})"
    while not shop.execute(sql):
        time.sleep(0.005)


@contextmanager
def running(shop: MariadbShop, sql: str) -> Iterator[threading.Thread]:
    """A statement on a connection of its own, seen to wait at the gate, which is closed until `release`."""
    shop.execute(f"SELECT {GATE}")
    connection = shop.connect()
    thread = threading.Thread(target=shop.execute, args=(sql, connection))
    thread.start()
    seen(shop, f"id = {connection.thread_id()} AND state IN ('User lock', 'User sleep')")
    try:
        yield thread
    finally:
        release(shop)
        thread.join()
        connection.close()


def release(shop: MariadbShop) -> None:
    shop.execute("SELECT RELEASE_LOCK('gate')")


def released(shop: MariadbShop, **options: Any) -> Source:
    """A source that opens the gate as soon as it waits for anything."""

    def sleep(seconds: float) -> None:
        release(shop)
        time.sleep(seconds)

    return shop.source(sleep=sleep, max_wait=LONG, **options)


def test_a_slow_statement_is_waited_for(shop: MariadbShop) -> None:
    source = released(shop)
    table = shop.table(source)
    with running(shop, f"INSERT INTO orders (note) SELECT {GATE}"):
        assert below(shop, horizon(source, table).high) == 1


def test_a_statement_is_not_over_when_a_function_it_calls_goes_from_one_step_to_the_next(shop: MariadbShop) -> None:
    shop.execute(
        "CREATE FUNCTION slow() RETURNS int NOT DETERMINISTIC NO SQL"
        f" BEGIN DO {GATE}; DO SLEEP(0.3); DO SLEEP(0.3); RETURN 1; END"
    )
    source = released(shop, guard=LONG)
    table = shop.table(source)
    with running(shop, "INSERT INTO orders (note) VALUES (slow())"):
        assert horizon(source, table).held_by is None
        assert shop.execute("SELECT count(*) FROM orders") == [(1,)]


def test_a_procedure_that_runs_for_long_holds_no_longer_than_the_guard(shop: MariadbShop) -> None:
    shop.execute("CREATE PROCEDURE batch() BEGIN WHILE NOT IS_FREE_LOCK('gate') DO DO SLEEP(0.05); END WHILE; END")
    source = shop.source(max_wait=LONG, guard=timedelta(milliseconds=300))
    table = shop.table(source)
    with running(shop, "CALL batch()") as caller:
        assert horizon(source, table).held_by is None
        assert caller.is_alive()


def test_a_connection_that_hardly_rests_is_soon_seen_at_rest(shop: MariadbShop) -> None:
    source = shop.source(max_wait=LONG, guard=2 * LONG)  # it would be held sooner than the guard has passed
    table = shop.table(source)
    stop = threading.Event()

    def write() -> None:
        connection = shop.connect()
        while not stop.is_set():
            shop.execute("INSERT INTO orders (note) VALUES ('busy')", connection)
        connection.close()

    writers = [threading.Thread(target=write) for _ in range(4)]
    for writer in writers:
        writer.start()
    found = [horizon(source, table).held_by for _ in range(3)]
    stop.set()
    for writer in writers:
        writer.join()
    assert found == [None, None, None]


def test_an_event_worker_is_waited_for(shop: MariadbShop) -> None:
    source = released(shop)
    table = shop.table(source)
    shop.execute(f"SELECT {GATE}")
    shop.execute("SET GLOBAL event_scheduler = ON")
    try:
        shop.execute(f"CREATE EVENT stamp ON SCHEDULE AT CURRENT_TIMESTAMP DO INSERT INTO orders (note) SELECT {GATE}")
        seen(shop, "command = 'Connect' AND state = 'User lock'")
        assert below(shop, horizon(source, table).high) == 1
    finally:
        release(shop)
        shop.execute("SET GLOBAL event_scheduler = OFF")


def test_an_idle_transaction_is_named_with_its_user_and_only_where_allowed_its_statement(shop: MariadbShop) -> None:
    source, open_ = shop.source(), shop.source(statements=True)
    table = shop.table(source)
    with shop.begun("INSERT INTO orders (note) VALUES ('a secret')"):
        held = horizon(open_, table).held_by
        assert held is not None
        assert held.user == Endpoint.parse(shop.url).user
        assert held.statement == "", "the server does not tell what an idle connection ran last"
    with running(shop, 'INSERT INTO orders (note) SELECT CONCAT("a secret", GET_LOCK("gate", 600))'):
        quiet, shown = horizon(source, table).held_by, horizon(open_, table).held_by
    assert quiet is not None
    assert shown is not None
    assert (quiet.statement, shown.statement) == ("", "INSERT INTO orders (note) SELECT CONCAT(?, GET_LOCK(?, ?))")


def test_an_xa_transaction_prepared_and_left_holds_until_anybody_commits_it(shop: MariadbShop) -> None:
    source = shop.source()
    table = shop.table(source)
    connection = shop.connect()
    for statement in ("XA START 'x'", "INSERT INTO orders (note) VALUES ('xa')", "XA END 'x'", "XA PREPARE 'x'"):
        shop.execute(statement, connection)
    number = connection.thread_id()
    connected = horizon(source, table).held_by
    connection.close()
    seen(shop, f"NOT EXISTS (SELECT 1 FROM information_schema.processlist WHERE id = {number})")
    left = horizon(source, table).held_by
    shop.execute("XA COMMIT 'x'")
    assert connected is not None
    assert left is not None
    assert (connected.pid, left.pid.split()[0]) == (str(number), "prepared")
    assert below(shop, horizon(source, table).high) == 1


def test_an_xa_transaction_prepared_and_left_while_it_is_waited_for_is_waited_for_further(shop: MariadbShop) -> None:
    def leave(seconds: float) -> None:
        time.sleep(seconds)
        if connection.open:
            for statement in ("XA END 'y'", "XA PREPARE 'y'"):
                shop.execute(statement, connection)
            connection.close()

    source = shop.source(sleep=leave, max_wait=timedelta(seconds=3))
    table = shop.table(source)
    connection = shop.connect()
    for statement in ("XA START 'y'", "INSERT INTO orders (note) VALUES ('xa')"):
        shop.execute(statement, connection)
    try:
        held = horizon(source, table).held_by
    finally:
        shop.execute("XA ROLLBACK 'y'")
    assert held is not None
    assert held.pid.startswith("prepared")


def test_short_transactions_of_one_connection_within_a_second_are_told_apart(shop: MariadbShop) -> None:
    """InnoDB shows whole seconds: by them alone, a connection that always writes would be waited for until the next."""

    def again(seconds: float) -> None:
        time.sleep(seconds)
        shop.execute("COMMIT", connection)
        write()
        rounds.append(1)

    def write() -> None:
        shop.execute("BEGIN", connection)
        shop.execute("INSERT INTO orders (note) VALUES ('short')", connection)

    rounds: list[int] = []
    source = shop.source(sleep=again, max_wait=LONG)
    table = shop.table(source)
    connection = shop.connect()
    for _ in range(3):
        rounds.clear()
        write()
        assert horizon(source, table).held_by is None
        shop.execute("COMMIT", connection)
        assert len(rounds) <= 4
    connection.close()


def test_a_list_that_somebody_keeps_stale_is_not_believed(shop: MariadbShop) -> None:
    stop = threading.Event()

    def poll() -> None:
        connection = shop.connect()
        while not stop.is_set():
            shop.execute("SELECT COUNT(*) FROM information_schema.INNODB_TRX", connection)
        connection.close()

    source = shop.source()
    table = shop.table(source)
    poller = threading.Thread(target=poll)
    poller.start()
    try:
        with shop.begun("INSERT INTO orders (note) VALUES ('hidden')"):
            found: object
            try:
                found = horizon(source, table)
            except SourceError as error:
                found = error
    finally:
        stop.set()
        poller.join()
    if isinstance(found, SourceError):
        assert "does not show a transaction" in found.message
        assert "barrier: lookback" in found.remedy
    else:
        assert getattr(found, "high", None) is None, "the open transaction was overlooked"
    assert horizon(shop.source(max_wait=LONG), table).held_by is None


def test_barriers_that_wait_side_by_side_do_not_hide_the_list_from_each_other(shop: MariadbShop) -> None:
    sources = [shop.source(max_wait=timedelta(seconds=3)) for _ in range(5)]
    table = shop.table(sources[0])
    with shop.begun("INSERT INTO orders (note) VALUES ('held')"), ThreadPoolExecutor(5) as pool:
        found = list(pool.map(lambda source: horizon(source, table), sources))
    assert all(one.held_by for one in found)
    sources = [shop.source(max_wait=LONG) for _ in range(5)]
    with ThreadPoolExecutor(5) as pool:
        found = list(pool.map(lambda source: horizon(source, table), sources))
    assert not any(one.held_by for one in found)


# --- Ids and rounding ------------------------------------------------------------------------------------------------


def test_ids_go_on_behind_an_explicit_one_so_it_may_move_the_horizon(shop: MariadbShop) -> None:
    source = shop.source()
    table = shop.table(source, cursor="id")
    shop.execute("INSERT INTO orders (note) VALUES ('1')")
    with shop.begun("INSERT INTO orders (note) VALUES ('2, late')") as commit:
        shop.execute("INSERT INTO orders (id, note) VALUES (1000, 'far ahead')")
        assert horizon(source, table).high is None
        commit()
    first = horizon(source, table).high
    shop.execute("INSERT INTO orders (note) VALUES ('next')")
    shop.execute("UPDATE orders SET id = 5000 WHERE note = 'next'")
    shop.execute("INSERT INTO orders (note) VALUES ('after')")
    second = horizon(source, table).high
    assert (first, second) == (Watermark(Kind.INTEGER, "1001"), Watermark(Kind.INTEGER, "5002"))
    assert second is not None
    assert waiting(source, table, Window(first, second)) == 2


def test_ids_given_out_in_steps_are_refused(shop: MariadbShop) -> None:
    shop.execute("SET GLOBAL auto_increment_increment = 2")
    try:
        source = shop.source()
        error = source.horizons([shop.table(source, cursor="id")])["orders"]
    finally:
        shop.execute("SET GLOBAL auto_increment_increment = 1")
    assert isinstance(error, SourceError)
    assert "auto_increment_increment is 2" in error.message
    assert "lookback" in error.remedy


@pytest.mark.parametrize("mode", ["", "TIME_ROUND_FRACTIONAL"], ids=["cut", "rounded"])
@pytest.mark.parametrize(
    ("kind", "unit"), [("datetime", 1.0), ("datetime(3)", 0.001), ("datetime(6)", 0.0), ("timestamp", 1.0)]
)
def test_a_row_written_after_the_barrier_never_lands_below_it_however_it_is_rounded(
    shop: MariadbShop, kind: str, unit: float, mode: str
) -> None:
    shop.execute(f"CREATE TABLE coarse (id int AUTO_INCREMENT PRIMARY KEY, at {kind} NOT NULL, exact datetime(6))")
    source = shop.source(guard=timedelta(0))
    table = shop.table(source, "coarse", zone=None if kind == "timestamp" else "UTC")
    shop.execute(f"SET sql_mode = '{mode}'")
    down = False
    for _ in range(100):
        high = horizon(source, table).high
        assert high is not None
        shop.execute("INSERT INTO coarse (at, exact) SELECT n, n FROM (SELECT NOW(6) AS n) q")
        (landed, rounded_down), *_ = shop.execute(
            f"SELECT at >= '{high.text}', at < exact FROM coarse ORDER BY id DESC LIMIT 1"
        )
        assert landed
        down = down or bool(rounded_down)
        if down or not unit:
            break
        time.sleep(0.11)
    assert down or not unit, "no row was rounded down: nothing was tried"


# --- Where the barrier cannot work -----------------------------------------------------------------------------------


@pytest.fixture
def user(shop: MariadbShop) -> Iterator[str]:
    """The URL of somebody who may read the table, and globally has USAGE alone: others remain unseen."""
    end = Endpoint.parse(shop.url)
    shop.execute("CREATE OR REPLACE USER plain@'127.0.0.1' IDENTIFIED BY 'pw'")
    shop.execute(f"GRANT SELECT ON {end.path}.orders TO plain@'127.0.0.1'")
    yield f"mysql://plain:pw@{end.host}:{end.port}/{end.path}"
    shop.execute("DROP USER plain@'127.0.0.1'")


def opened(shop: MariadbShop, url: str, **options: Any) -> Source:
    own, shop.url = shop.url, url
    source = shop.source(**options)
    shop.url = own
    return source


def refused(source: Source, table: Table) -> StrandlineError:
    with pytest.raises(SourceError) as caught:
        source.horizons([table])
    return caught.value


def test_a_user_without_the_privilege_is_told_the_grant_and_the_grant_is_enough(shop: MariadbShop, user: str) -> None:
    table = shop.table(shop.source())
    error = refused(opened(shop, user), table)
    assert "lacks PROCESS" in error.message
    grant, otherwise = error.remedy.splitlines()
    assert grant == "GRANT PROCESS ON *.* TO 'plain'@'127.0.0.1';"
    assert "barrier: lookback 10m" in otherwise
    shop.execute(grant)
    source = opened(shop, user)
    with shop.begun("INSERT INTO orders (note) VALUES ('late')"):
        assert horizon(source, table).held_by is not None


def test_process_by_a_role_counts_only_while_the_role_is_active(shop: MariadbShop, user: str) -> None:
    table = shop.table(shop.source())
    shop.execute("CREATE OR REPLACE ROLE watcher")
    shop.execute("GRANT PROCESS ON *.* TO watcher")
    shop.execute("GRANT watcher TO plain@'127.0.0.1'")
    assert "lacks PROCESS" in refused(opened(shop, user), table).message
    shop.execute("SET DEFAULT ROLE watcher FOR plain@'127.0.0.1'")
    source = opened(shop, user)
    with shop.begun("INSERT INTO orders (note) VALUES ('late')"):
        assert horizon(source, table).held_by is not None
    shop.execute("DROP ROLE watcher")


def test_without_the_privilege_only_the_fallback_that_the_config_names_is_taken(shop: MariadbShop, user: str) -> None:
    table = shop.table(shop.source())
    source = opened(shop, user, barrier="lookback 10m")
    found = horizon(source, table)
    assert found.high is not None
    assert not found.proven
    assert "lookback" in found.note


def test_a_replica_is_refused_while_it_follows_and_while_it_only_pauses() -> None:
    log = {"log-bin": "log", "server-id": "1"}
    with MariaDB(settings=log) as primary, MariaDB(settings={"server-id": "2"}) as replica:
        run(
            primary,
            "CREATE DATABASE shop",
            "CREATE USER copy IDENTIFIED BY 'pw'",
            "GRANT REPLICATION SLAVE ON *.* TO copy",
        )
        with MariadbShop(primary.url("shop")) as shop:
            run(
                replica,
                f"CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT={primary.port}, MASTER_USER='copy',"
                " MASTER_PASSWORD='pw', MASTER_LOG_FILE='log.000001', MASTER_LOG_POS=4",
                "SET GLOBAL replicate_do_db = 'shop'",
                "START SLAVE",
            )
            shop.execute("INSERT INTO orders (note) VALUES ('copied')")
            awaited(
                lambda: run(replica, "SELECT table_name FROM information_schema.tables WHERE table_schema = 'shop'")
            )
            with FollowingShop(replica.url("shop")) as follower:
                awaited(lambda: follower.execute("SELECT 1 FROM orders"))
                source = follower.source()
                table = follower.table(source)
                error = refused(source, table)
                assert "replica" in error.message
                assert "Read from the primary" in error.remedy
                run(replica, "STOP SLAVE")
                assert "replica" in refused(source, table).message
                run(replica, "RESET SLAVE ALL")
                assert horizon(source, table).high is not None


class FollowingShop(MariadbShop):
    create = ()


def run(server: MariaDB, *statements: str) -> list[tuple[Any, ...]]:
    with server.connect() as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        return list(cursor.fetchall())


def awaited(condition: Callable[[], object]) -> None:
    while not condition():
        time.sleep(0.05)


class Clustered(MySqlSource):
    """A server that answers as a member of a cluster does: no cluster can be started here."""

    answers: tuple[str, str]

    def variables(self) -> dict[str, str]:
        return {**super().variables(), self.answers[0]: self.answers[1]}


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        (("wsrep_on", "ON"), "Galera"),
        (("group_replication_group_name", "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa"), "replication group"),
    ],
)
def test_a_member_of_a_cluster_is_refused(shop: MariadbShop, answers: tuple[str, str], said: str) -> None:
    source = Clustered(Endpoint.parse(shop.url), guard=timedelta(0))
    source.answers = answers
    error = refused(source, shop.table(shop.source()))
    source.close()
    assert said in error.message
    assert "barrier: lookback 10m" in error.remedy

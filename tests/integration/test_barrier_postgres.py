"""PostgreSQL's commit barrier against everything that can commit late, and against what only looks like it."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from strandline.core.errors import SourceError
from strandline.core.position import Horizon
from strandline.core.protocols import Source
from strandline.core.table import Table
from strandline.core.watermark import Kind, Watermark
from strandline.core.window import Window
from strandline.endpoint import Endpoint
from strandline.testing.servers import Postgres
from strandline.testing.shops import PostgresShop
from strandline.testing.source import horizon, waiting

LONG = timedelta(seconds=120)
GATE = "pg_advisory_xact_lock_shared(1)"


@pytest.fixture
def shop(pg_database: str) -> Iterator[PostgresShop]:
    with PostgresShop(pg_database) as shop:
        yield shop


def below(shop: PostgresShop, high: Watermark | None) -> int:
    assert high is not None
    return int(shop.execute(f"SELECT count(*) FROM orders WHERE at < '{high.text}+00'")[0][0])


@contextmanager
def running(shop: PostgresShop, sql: str) -> Iterator[int]:
    """A statement on a connection of its own, seen to wait at the gate, which is closed until `release`; its pid."""
    shop.execute("SELECT pg_advisory_lock(1)")
    with shop.connect() as connection:
        pid = connection.info.backend_pid
        thread = threading.Thread(target=connection.execute, args=(sql.encode(),))
        thread.start()
        while not shop.execute(f"SELECT 1 FROM pg_locks WHERE pid = {pid} AND locktype = 'advisory' AND NOT granted"):
            time.sleep(0.01)
        try:
            yield pid
        finally:
            shop.execute("SELECT pg_advisory_unlock_all()")
            thread.join()


def released(shop: PostgresShop, **options: Any) -> Source:
    """A source that opens the gate as soon as it waits for anything."""

    def release(seconds: float) -> None:
        shop.execute("SELECT pg_advisory_unlock_all()")
        time.sleep(seconds)

    return shop.source(sleep=release, **options)


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_frozen_backend_holds_until_it_has_thawed_and_committed(shop: PostgresShop) -> None:
    source = shop.source()
    table = shop.table(source)
    with shop.connect() as writer:
        writer.execute("BEGIN; INSERT INTO orders (note) VALUES ('cold')")
        with frozen(writer.info.backend_pid):
            held = horizon(source, table).held_by
        assert held is not None
        assert held.pid == str(writer.info.backend_pid)
        writer.execute("COMMIT")
    assert below(shop, horizon(source, table).high) == 1


def test_a_backend_frozen_in_the_middle_of_a_statement_holds(shop: PostgresShop) -> None:
    source = shop.source()
    table = shop.table(source)
    with running(shop, f"INSERT INTO orders (note) SELECT 'cold' FROM {GATE}") as pid, frozen(pid):
        assert horizon(source, table).held_by is not None
    assert below(shop, horizon(source, table).high) == 1


def test_a_slow_statement_is_waited_for(shop: PostgresShop) -> None:
    source = released(shop, max_wait=LONG)
    table = shop.table(source)
    with running(shop, f"INSERT INTO orders (note) SELECT 'slow' FROM {GATE}"):
        assert below(shop, horizon(source, table).high) == 1


def test_a_transaction_that_reads_first_and_writes_late_stamps_its_begin(shop: PostgresShop) -> None:
    source = shop.source()
    table = shop.table(source)
    with shop.connect() as writer:
        writer.execute("BEGIN")
        writer.execute("SELECT count(*) FROM orders")
        assert horizon(source, table).high is None
        writer.execute("INSERT INTO orders (note) VALUES ('late')")
        writer.execute("COMMIT")
    high = horizon(source, table).high
    assert high is not None
    assert waiting(source, table, Window(None, high)) == 1


@pytest.mark.parametrize(
    "message",
    [
        f"BEGIN; INSERT INTO orders (note) SELECT '1' FROM {GATE}; COMMIT;"
        "BEGIN; INSERT INTO orders (note) SELECT '2' FROM pg_sleep(0.3); COMMIT",
        f"DO $$ BEGIN INSERT INTO orders (at) SELECT statement_timestamp() FROM {GATE}; COMMIT;"
        " INSERT INTO orders (at) SELECT statement_timestamp() FROM pg_sleep(0.3); END $$",
    ],
    ids=["two transactions in one message", "a block that commits"],
)
def test_every_transaction_of_a_message_is_waited_for_because_all_bear_its_time(
    shop: PostgresShop, message: str
) -> None:
    source = released(shop, max_wait=LONG)
    table = shop.table(source)
    with running(shop, message):
        assert below(shop, horizon(source, table).high) == 2


def test_a_transaction_that_a_message_leaves_open_holds(shop: PostgresShop) -> None:
    source = released(shop, max_wait=timedelta(seconds=1))
    table = shop.table(source)
    message = f"BEGIN; SELECT {GATE}; COMMIT; BEGIN; INSERT INTO orders (note) VALUES ('open')"
    with running(shop, message):
        assert horizon(source, table).held_by is not None


def test_two_phase_traffic_under_one_name_does_not_starve_the_barrier(shop: PostgresShop) -> None:
    def again(_: float) -> None:
        """Whenever the barrier looks again, the name stands for another transaction."""
        shop.execute("COMMIT PREPARED 'always'")
        prepare()
        rounds.append(1)

    def prepare() -> None:
        with shop.begun("INSERT INTO orders (note) VALUES ('2pc')", "PREPARE TRANSACTION 'always'"):
            pass

    rounds: list[int] = []
    prepare()
    source = shop.source(sleep=again, max_wait=LONG)
    assert horizon(source, shop.table(source)).held_by is None
    assert len(rounds) == 1
    shop.execute("COMMIT PREPARED 'always'")


def test_ids_still_to_come_below_an_explicit_one_arrive(shop: PostgresShop) -> None:
    source = shop.source()
    table = shop.table(source, cursor="id")
    shop.execute("INSERT INTO orders (note) VALUES ('1')")
    shop.execute("INSERT INTO orders (id, note) VALUES (1000000, 'far ahead')")
    first = horizon(source, table).high
    shop.execute("INSERT INTO orders (note) VALUES ('2')")
    second = horizon(source, table).high
    assert (first, second) == (Watermark(Kind.INTEGER, "2"), Watermark(Kind.INTEGER, "3"))
    assert second is not None
    assert waiting(source, table, Window(first, second)) == 1


def test_an_id_given_out_and_not_yet_inserted_holds(shop: PostgresShop) -> None:
    source = shop.source()
    table = shop.table(source, cursor="id")
    with shop.connect() as writer:
        writer.execute("BEGIN")
        (mine,) = writer.execute("SELECT nextval('orders_id_seq')").fetchone() or (0,)
        shop.execute("INSERT INTO orders (note) VALUES ('early')")
        assert horizon(source, table).high is None
        writer.execute(f"INSERT INTO orders (id, note) VALUES ({mine}, 'late')".encode())
        writer.execute("COMMIT")
    assert horizon(source, table).high == Watermark(Kind.INTEGER, str(mine + 2))


def test_a_date_is_held_like_a_time(shop: PostgresShop) -> None:
    shop.execute("CREATE TABLE days (id int PRIMARY KEY, at date NOT NULL DEFAULT current_date)")
    source = shop.source()
    table = shop.table(source, "days", zone="UTC")
    with shop.begun("INSERT INTO days (id) VALUES (1)") as commit:
        assert horizon(source, table).high is None
        commit()
    found = horizon(source, table)
    assert found.high == Watermark(Kind.DATE, found.observed[:10])


@pytest.mark.parametrize(("digits", "unit"), [(0, 1.0), (3, 0.001)])
def test_a_row_written_after_the_barrier_never_lands_below_it_however_it_is_rounded(
    shop: PostgresShop, digits: int, unit: float
) -> None:
    shop.execute(f"CREATE TABLE coarse (id serial PRIMARY KEY, at timestamptz({digits}) NOT NULL DEFAULT now())")
    source = shop.source(guard=timedelta(0))
    table = shop.table(source, "coarse")
    seen = set()
    for _ in range(200):
        high = horizon(source, table).high
        assert high is not None
        shop.execute("INSERT INTO coarse DEFAULT VALUES")
        (landed, rounded_down), *_ = shop.execute(
            f"SELECT at >= '{high.text}+00', at < now() FROM coarse ORDER BY id DESC LIMIT 1"
        )
        assert landed
        seen.add(rounded_down)
        if seen == {True, False}:
            break
        time.sleep(unit / 7)
    assert True in seen, "no row was rounded down: nothing was tried"


# --- What is said about the holder -----------------------------------------------------------------------------------


def test_the_holders_statement_is_shown_only_where_allowed_and_without_literals(shop: PostgresShop) -> None:
    quiet, open_ = shop.source(), shop.source(statements=True)
    table = shop.table(quiet)
    with shop.begun("INSERT INTO orders (note) VALUES ('a secret')"):
        held, shown = horizon(quiet, table).held_by, horizon(open_, table).held_by
    assert held is not None
    assert shown is not None
    assert (held.statement, shown.statement) == ("", "INSERT INTO orders (note) VALUES (?)")
    assert shown.user == "postgres"
    assert shown.seconds is not None


@pytest.fixture
def reader(shop: PostgresShop) -> Iterator[str]:
    """The URL of a user who may read the table and nothing else."""
    shop.execute("DROP ROLE IF EXISTS plain")
    shop.execute("CREATE ROLE plain LOGIN PASSWORD 'pw'")
    shop.execute("GRANT SELECT ON orders TO plain")
    end = Endpoint.parse(shop.url)
    yield f"postgresql://plain:pw@{end.host}:{end.port}/{end.path}"
    shop.execute("DROP OWNED BY plain")
    shop.execute("DROP ROLE plain")


def as_reader(shop: PostgresShop, url: str, **options: Any) -> Source:
    own, shop.url = shop.url, url
    source = shop.source(**options)
    shop.url = own
    return source


def test_to_an_unprivileged_reader_a_holder_is_a_pid_and_a_user(shop: PostgresShop, reader: str) -> None:
    source = as_reader(shop, reader, statements=True)
    table = shop.table(source)
    with shop.begun("INSERT INTO orders (note) VALUES ('a secret')"):
        held = horizon(source, table).held_by
    assert held is not None
    assert held.pid.isdigit()
    assert (held.user, held.statement, held.seconds) == ("postgres", "", None)
    source.close()


def test_an_unprivileged_reader_waits_for_prepared_transactions_too(shop: PostgresShop, reader: str) -> None:
    source = as_reader(shop, reader)
    table = shop.table(source)
    with shop.begun("INSERT INTO orders (note) VALUES ('2pc')", "PREPARE TRANSACTION 'theirs'"):
        held = horizon(source, table).held_by
    assert held is not None
    assert held.pid == "prepared theirs"
    shop.execute("COMMIT PREPARED 'theirs'")
    assert horizon(source, table).held_by is None
    source.close()


def test_a_guard_of_zero_is_warned_about_once(shop: PostgresShop) -> None:
    shop.execute("CREATE TABLE other (id int PRIMARY KEY, at timestamptz NOT NULL)")
    shop.execute("CREATE INDEX ON other (at)")
    for guard, warnings in ((timedelta(0), 1), (timedelta(seconds=1), 0)):
        source = shop.source(guard=guard)
        for name in ("orders", "other"):
            shop.table(source, name)
        assert len(source.warnings) == warnings
        assert all("guard is 0" in message for _, message in source.warnings)


# --- Standby ---------------------------------------------------------------------------------------------------------


class Standby(Postgres):
    """A copy of a primary that follows it."""

    def __init__(self, primary: Postgres) -> None:
        super().__init__(version=primary.version)
        self.primary = primary
        self.password = primary.password

    def _create(self) -> None:
        programs = self._programs()
        self._run([f"{programs}/pg_basebackup", "-D", "data", "-R", "-X", "stream", "-c", "fast", "-d", self._origin])

    @property
    def _origin(self) -> str:
        return self.primary.url("postgres")

    def _ready(self) -> bool:
        state = self.folder / "data" / "postmaster.pid"
        return super()._ready() or (state.exists() and state.read_text().split()[-1:] == ["standby"])


class FollowingShop(PostgresShop):
    create = ()


def test_a_standby_that_follows_its_primary_is_refused_and_a_promoted_one_is_not() -> None:
    with (
        Postgres() as primary,
        PostgresShop(primary.url()) as shop,
        Standby(primary) as standby,
        FollowingShop(standby.url()) as follower,
    ):
        with shop.begun("INSERT INTO orders (note) VALUES ('late')") as commit:
            shop.execute("INSERT INTO orders (note) VALUES ('early')")
            while follower.execute("SELECT count(*) FROM orders") != [(1,)]:
                time.sleep(0.02)
            source = follower.source()
            table = follower.table(source)
            with pytest.raises(SourceError, match="standby") as caught:
                source.horizons([table])
            assert "barrier: lookback" in caught.value.remedy
            unproven = follower.source(barrier="lookback 10m").horizons([table])[table.name]
            assert isinstance(unproven, Horizon)
            assert not unproven.proven
            commit()
        while follower.execute("SELECT count(*) FROM orders") != [(2,)]:
            time.sleep(0.02)
        follower.execute("SELECT pg_promote()")
        assert settled(source, table).high is not None


def settled(source: Source, table: Table) -> Horizon:
    """A server just promoted has work of its own in flight for a moment."""
    found = horizon(source, table)
    while found.held_by:
        found = horizon(source, table)
    return found


def test_a_connection_lost_while_the_barrier_waits_is_an_error_not_an_answer(shop: PostgresShop) -> None:
    def cut(_: float) -> None:
        shop.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'strandline%'")

    source = shop.source(sleep=cut, max_wait=LONG)
    table = shop.table(source)
    with shop.begun("INSERT INTO orders (note) VALUES ('late')"), pytest.raises(Exception, match="terminat"):
        source.horizons([table])


def test_psycopg_keeps_a_message_whole(shop: PostgresShop) -> None:
    """The tests above rest on it: several statements without parameters travel as one message."""
    with psycopg.connect(shop.url, autocommit=True) as connection:
        connection.execute("CREATE TEMP TABLE stamps (at timestamptz)")
        connection.execute(
            "BEGIN; INSERT INTO stamps VALUES (now()); SELECT pg_sleep(0.05); COMMIT;"
            "BEGIN; INSERT INTO stamps VALUES (now()); COMMIT"
        )
        assert connection.execute("SELECT count(DISTINCT at) FROM stamps").fetchone() == (1,)

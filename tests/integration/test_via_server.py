"""Source and target are one database: with `via: server` no row leaves it and no Spark starts; `via: spark` ends with
the same rows and the same counts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from server_shop import NOW, Shop, opened

from strandline import operations
from strandline.core.errors import ConfigError, SchemaError, StrandlineError
from strandline.core.events import BatchApplied, Committed, Event, Intended
from strandline.core.position import Status
from strandline.core.stopping import Stopping
from strandline.endpoint import Endpoint
from strandline.running import Unattended
from strandline.sinks.sql import SqlSink
from strandline.sinks.sql_stage import Staging
from strandline.testing.servers import MariaDB, Postgres
from strandline.testing.wire import Wire
from strandline.warm import Warm


@pytest.fixture(params=["postgres", "mariadb"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    kind = request.param.removesuffix("16")
    with opened(Shop, kind, request.getfixturevalue(request.param), tmp_path) as shop:
        yield shop


older_too = pytest.mark.parametrize("shop", ["postgres", "postgres16", "mariadb"], indirect=True)


@pytest.fixture(params=["server", "spark"])
def either(request: pytest.FixtureRequest, shop: Shop) -> Shop:
    """The shop by both ways, for what must be the same by either."""
    shop.pipeline["via"] = request.param
    if request.param == "spark":
        shop.spark = request.getfixturevalue("spark")
    return shop


@older_too
def test_inserted_and_updated_rows_are_counted_by_the_database(either: Shop) -> None:
    shop = either
    shop.insert(1, 2, 3)
    assert shop.sync().applied.rows_inserted == 3
    shop.execute(f"UPDATE orders SET status = 'paid', at = {NOW[shop.kind]} WHERE id = 2")
    shop.insert(4)
    outcome = shop.sync()
    applied = outcome.applied
    assert (applied.rows_read, applied.rows_inserted, applied.rows_updated) == (2, 1, 1)
    assert applied.last_value is not None
    shop.check()
    assert shop.sync().status is Status.SKIPPED


@older_too
def test_marked_rows_go_and_a_newer_row_stays(either: Shop) -> None:
    shop = either
    shop.settings = {"deleted": "gone"}
    shop.insert(1, 2)
    shop.sync()
    shop.execute(f"UPDATE orders SET gone = true, at = {NOW[shop.kind]} WHERE id = 1")
    assert shop.sync().applied.rows_deleted == 1
    assert [row[0] for row in shop.rows()] == [2]


@pytest.mark.parametrize("mode", ["append", "snapshot"])
def test_other_modes(either: Shop, mode: str) -> None:
    shop = either
    shop.settings = {"mode": mode}
    shop.insert(1, 2)
    shop.sync()
    shop.insert(3)
    if mode == "snapshot":
        shop.execute("DELETE FROM orders WHERE id = 1")
    shop.sync()
    shop.check()


def test_large_change_sets_go_in_slices(either: Shop) -> None:
    shop = either
    shop.settings = {"slice_rows": 3}
    shop.insert(*range(1, 12))
    shop.execute("ANALYZE orders" if shop.kind == "postgres" else "ANALYZE TABLE orders")
    assert shop.sync().batches >= 3
    shop.check()


def test_a_new_column_is_added_and_another_type_is_refused(either: Shop) -> None:
    shop = either
    shop.insert(1)
    shop.sync()
    shop.execute("ALTER TABLE orders ADD note varchar(30)")
    shop.execute(f"UPDATE orders SET note = 'hello', at = {NOW[shop.kind]}")
    assert shop.sync().status is Status.COMPLETED
    assert shop.execute(f"SELECT note FROM {shop.copy}.orders") == [("hello",)]
    shop.execute(f"ALTER TABLE {shop.copy}.orders DROP COLUMN status")
    shop.execute(f"ALTER TABLE {shop.copy}.orders ADD status bigint")
    shop.execute(f"UPDATE orders SET at = {NOW[shop.kind]}")
    failed = shop.sync()
    assert isinstance(failed.error, SchemaError) and "status" in failed.error.message


@pytest.mark.parametrize("event", [Intended, BatchApplied, Committed])
def test_killed_and_resumed_each_row_is_there_once(either: Shop, event: type[Event]) -> None:
    """Before the batch, and after it is in the target and in the state."""
    shop = either
    shop.settings = {"mode": "append", "slice_rows": 2}
    shop.insert(1, 2, 3, 4, 5)
    shop.execute("ANALYZE orders" if shop.kind == "postgres" else "ANALYZE TABLE orders")
    shop.killed(event)
    assert shop.sync().status is Status.COMPLETED
    shop.check()


@pytest.mark.parametrize("every", [1, 5])
def test_a_batch_whose_rows_the_merge_read_itself_is_adopted_with_its_counts(
    shop: Shop, every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the source keeps the key unique, PostgreSQL stages nothing; what was counted is what was merged."""
    shop.pipeline["commit_every"] = every
    shop.insert(1, 2, 3)
    shop.sync()
    shop.settings = {"slice_rows": 1}
    shop.execute(f"UPDATE orders SET status = 'paid', at = {NOW[shop.kind]} WHERE id < 3")
    shop.insert(4)
    if shop.kind == "postgres" and shop.connection.info.server_version >= 17_00_00:
        monkeypatch.setattr(Staging, "create", lambda *_: pytest.fail("rows were staged"))
    shop.killed(BatchApplied)
    applied = shop.sync().applied
    assert (applied.rows_read, applied.rows_inserted, applied.rows_updated) == (3, 1, 2)
    assert shop.execute(f"SELECT max(at) FROM {shop.copy}.orders") == shop.execute("SELECT max(at) FROM orders")
    ((moved,),) = shop.execute(f"SELECT last_moved FROM {shop.copy}.strandline_ledger")
    assert applied.last_value is not None and moved == f"timestamp {applied.last_value.text}"
    shop.check()


@older_too
def test_rows_whose_key_nothing_keeps_unique_are_staged_and_the_last_one_wins(either: Shop) -> None:
    shop = either
    shop.settings = {"key": "status"}
    shop.execute(
        "ALTER TABLE orders MODIFY status varchar(20) NOT NULL"
        if shop.kind == "mariadb"
        else "ALTER TABLE orders ALTER status SET NOT NULL"
    )
    shop.insert(1, 2, status="a")
    shop.insert(3, status="b")
    assert shop.sync().status is Status.COMPLETED
    assert sorted(row[:2] for row in shop.rows()) == [(2, "a"), (3, "b")]
    shop.insert(4, 5, status="a")
    assert shop.sync().applied.rows_updated == 1
    assert sorted(row[:2] for row in shop.rows()) == [(3, "b"), (5, "a")]


def test_one_database_is_known_by_what_it_says_of_itself_whatever_its_address(
    shop: Shop, pg_database: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shop.insert(1, 2)
    with Wire.to(shop.url) as wire:
        shop.pipeline["target"] = wire.url(shop.url).replace("127.0.0.1", "localhost")
        assert shop.sync().applied.rows_inserted == 2
        shop.check()
        assert shop.run("plan") == 0 and "inside the server, without Spark" in capsys.readouterr().out
        assert shop.run("status") == 0 and "inside the server, without Spark" in capsys.readouterr().out
        shop.pipeline["via"] = "spark"
        shop.load().close()
        assert shop.run("plan") == 0 and "inside the server" not in capsys.readouterr().out
    shop.pipeline |= {"target": pg_database, "via": "server"}
    with pytest.raises(ConfigError, match="are not one database"):
        shop.sync()


@pytest.mark.parametrize("kind", ["postgres", "mariadb"])
def test_one_address_behind_which_the_server_changes_is_refused_and_nothing_is_written(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Source and target have one URL, and are looked at one after the other. Login and tables are the same there."""
    server: Postgres | MariaDB = request.getfixturevalue(kind)
    other, look = type(server)(), SqlSink.server
    other.password = server.password
    with other, opened(Shop, kind, server, tmp_path) as shop, Wire.to(shop.url) as wire:
        shop.insert(1, 2)
        shop.url = wire.url(shop.url)
        assert shop.sync().applied.rows_inserted == 2, "as long as it leads to one server"
        name = Endpoint.parse(shop.url).path
        with other.connect() as first, first.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {name}")
        with other.connect(name) as connection:
            there = Shop(kind, connection, shop.url, shop.copy, tmp_path)
            there.execute(f"CREATE SCHEMA {shop.copy}")
            there.insert(3)

            def turned(sink: SqlSink) -> str:
                wire.server = ("127.0.0.1", other.port)
                return look(sink)

            monkeypatch.setattr(SqlSink, "server", turned)
            shop.insert(4)
            with pytest.raises(ConfigError, match="are not one database") as refused:
                shop.sync()
            assert refused.value.why.count(f"{server.scheme}:") == 2 and "via: server" in refused.value.remedy
            asked = f"SELECT count(*) FROM information_schema.tables WHERE table_schema = '{shop.copy}'"
            assert there.execute(asked) == [(0,)]
            assert [row[0] for row in shop.rows()] == [1, 2]


def test_what_cannot_run_in_the_server_is_refused(shop: Shop) -> None:
    shop.insert(1)
    shop.settings = {"transform": "shop:clean"}
    failed = shop.sync()
    assert "no transform can run" in str(failed.error)
    shop.settings = {}
    shop.pipeline["stage"] = "stage"
    with pytest.raises(ConfigError, match="takes no stage"):
        shop.sync()
    del shop.pipeline["stage"]
    shop.pipeline["target"] = "delta:lake"
    with pytest.raises(ConfigError, match="needs a database"):
        shop.sync()


def test_no_row_of_the_source_is_waited_for_or_locked(shop: Shop) -> None:
    """Production holds a row that is being read: whoever locked what it reads would wait for that transaction."""
    shop.insert(1, 2)

    def meanwhile(event: Event) -> None:
        if isinstance(event, Intended):
            shop.execute("BEGIN")
            shop.execute("UPDATE orders SET status = 'busy' WHERE id = 1")

    outcome = shop.sync(listener=meanwhile)  # whoever waits for the lock waits for ever
    shop.execute("ROLLBACK")
    assert outcome.status is Status.COMPLETED
    shop.check()


CONTROL = """
CREATE TABLE {copy}.sync_control (sync_run_id bigint PRIMARY KEY, table_name varchar(100), sync_status varchar(10),
                                  watermark_from {stamp} NULL, watermark_to {stamp} NULL)"""


def test_what_a_stored_procedure_filled_is_taken_over_with_its_control_table(
    either: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its last good sync says where to go on, its `>` becomes our `>=`, and its rows are merged into, not loaded
    again. Without that the table is a stranger's."""
    shop = either
    stamp = "timestamp" if shop.kind == "postgres" else "datetime(6)"
    shop.execute(CONTROL.format(copy=shop.copy, stamp=stamp))
    for number in (1, 2, 3, 4):
        shop.execute(f"INSERT INTO orders VALUES ({number}, 'new', 1, false, '2026-01-01 10:0{number}:00')")
    shop.filled("id < 3")
    shop.execute("UPDATE orders SET status = 'paid', at = '2026-01-01 10:05:00' WHERE id = 1")
    for number, (status, to) in enumerate(
        [("SUCCESS", "2026-01-01 10:01:00"), ("SUCCESS", "2026-01-01 10:02:00"), ("FAILED", "2026-01-01 10:04:00")]
    ):
        shop.execute(f"INSERT INTO {shop.copy}.sync_control VALUES ({number}, 'ORDERS', '{status}', NULL, '{to}')")
    refused = shop.sync()
    assert refused.error is not None and "belongs to somebody else" in refused.error.message

    words = ("watermark", "import", "--from-control", f"{shop.copy}.sync_control", "-p", "shop")
    assert shop.run(*words) == 2
    said = capsys.readouterr().err
    assert "beginning → 01-01 10:02:00" in said and "the next sync merges into them" in said and "--yes" in said
    assert shop.sync().error is not None, "a dry run changes nothing"
    assert shop.run(*words, "--yes", "--why", "moving in") == 0
    applied = shop.sync().applied
    assert (applied.rows_read, applied.rows_inserted, applied.rows_updated) == (4, 2, 2)
    shop.check()
    assert shop.sync().status is Status.SKIPPED


def test_what_was_taken_over_is_merged_into_by_a_load_in_slices_too(shop: Shop) -> None:
    """A first load inserts without looking; here it must not, in none of its slices."""
    shop.insert(1, 2, 3, 4, 5)
    shop.execute("ANALYZE orders" if shop.kind == "postgres" else "ANALYZE TABLE orders")
    shop.filled("id <> 2")
    shop.settings = {"slice_rows": 2}
    with shop.load() as project:
        change = operations.set_watermark(project, "shop", "orders", "2026-01-01")
        operations.apply(project, [replace(change, claims=("sync",))], why="")
        operations.apply(project, [operations.forget(project, "shop", "orders")], why="")
    outcome = shop.sync()
    assert (outcome.batches, outcome.applied.rows_inserted, outcome.applied.rows_updated) == (3, 1, 4)
    shop.check()


def test_a_control_table_that_says_nothing_is_refused(shop: Shop) -> None:
    shop.execute(CONTROL.format(copy=shop.copy, stamp="date"))
    with shop.load() as project:
        with pytest.raises(ConfigError, match="not the name of a table"):
            operations.adopt_control(project, "shop", "x; DROP TABLE orders")
        with pytest.raises(ConfigError, match="notes no sync"):
            operations.adopt_control(project, "shop", f"{shop.copy}.sync_control")


BYTES = {"postgres": "bytea", "mariadb": "varbinary(200)"}


def number_ids(shop: Shop) -> None:
    """Ids come from the database, so that they order what is new."""
    if shop.kind == "postgres":
        shop.execute("ALTER TABLE orders ALTER id ADD GENERATED BY DEFAULT AS IDENTITY (START 5)")
        shop.execute("SELECT nextval(pg_get_serial_sequence('orders', 'id'))")
    else:
        shop.execute("ALTER TABLE orders MODIFY id bigint AUTO_INCREMENT")


@pytest.mark.parametrize(
    ("cursor", "held", "new", "left"),
    [
        ("id", '{"seq": 2}', "3", 2),
        ("id", '{"id": 2, "seen": "2026-01-01"}', "3", 2),
        ("id", "2", "3", 2),
        ("at", '{"seq": "2026-01-01 10:02:00"}', "2026-01-01 10:02:00", 3),
    ],
)
def test_a_pollers_cache_table_is_taken_over(shop: Shop, cursor: str, held: str, new: str, left: int) -> None:
    """A whole number's `> 2` is exactly `>= 3`; a time's is read once more."""
    shop.settings = {"cursor": cursor}
    for number in (1, 2, 3, 4):
        shop.execute(f"INSERT INTO orders VALUES ({number}, 'new', 1, false, '2026-01-01 10:0{number}:00')")
    number_ids(shop)
    kind = BYTES[shop.kind]
    shop.execute(f"CREATE TABLE poller_state (k {kind} PRIMARY KEY, val {kind})")
    shop.execute(f"INSERT INTO poller_state VALUES ('table_cursor', '{held}')")
    with shop.load() as project:
        change = operations.adopt_cache(project, "shop", "orders", "poller_state")
        assert (change.action, str(change.new)) == ("import", new)
        operations.apply(project, [change], why="moving in")
    assert shop.sync().applied.rows_inserted == left


def test_a_cache_that_does_not_say_what_is_meant_is_refused(shop: Shop) -> None:
    shop.settings = {"cursor": "id"}
    number_ids(shop)
    shop.insert(1)
    shop.execute("CREATE TABLE poller_state (k varchar(40) PRIMARY KEY, val varchar(40))")
    with shop.load() as project:
        for cache, told in (
            ("x; DROP TABLE orders", "not the name of a table"),
            ("poller_state", "several keys, or none"),
            ("poller_state:a", 'holds no key "a"'),
            ("orders", "no cache"),
            ("nowhere", "nowhere"),
        ):
            with pytest.raises(StrandlineError, match=told):
                operations.adopt_cache(project, "shop", "orders", cache)
        shop.execute("INSERT INTO poller_state VALUES ('a', '{\"x\": 1, \"y\": 2}'), ('b', 'true'), ('c', '99')")
        for at, told in (("a", "no value of id"), ("b", "no value of id"), ("c", "in the future|above")):
            with pytest.raises(StrandlineError, match=told):
                operations.adopt_cache(project, "shop", "orders", f"poller_state:{at}")


def test_between_two_polls_a_service_keeps_one_connection_to_each_end(shop: Shop) -> None:
    """What moved rows is closed with the run: a server takes few connections, and a service has many pipelines."""
    seen = "pg_stat_activity WHERE datname = current_database()"
    if shop.kind == "mariadb":
        seen = "information_schema.PROCESSLIST WHERE DB = DATABASE()"
    unattended = Unattended(Warm(), Stopping())
    ((before,),) = shop.execute(f"SELECT count(*) FROM {seen}")
    with shop.load() as project:
        for number in (1, 2):
            shop.insert(number)
            assert project.sync("shop", unattended=unattended).status is Status.COMPLETED
            _until(lambda: shop.execute(f"SELECT count(*) FROM {seen}") == [(before + 2,)])
    unattended.warm.close()
    _until(lambda: shop.execute(f"SELECT count(*) FROM {seen}") == [(before,)])
    shop.check()


def _until(true: Callable[[], bool]) -> None:
    """A server takes a moment to see that a connection was closed."""
    deadline = time.monotonic() + 10
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)

"""What no barrier can see, `doctor` looks for: on real servers, one table made ill at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import psycopg
import pytest
from clinic import HEALTHY, HEALTHY_MARIADB, configured, examine, found, only

from strandline.core.batch import Applied, Batch
from strandline.core.books import Lease
from strandline.core.position import Position
from strandline.core.watermark import Kind, Watermark
from strandline.doctor import Level
from strandline.endpoint import Endpoint
from strandline.project import Project
from strandline.testing.servers import MariaDB, Postgres

Connection = psycopg.Connection[tuple[object, ...]]
LOG = "CREATE TABLE log (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY); INSERT INTO log DEFAULT VALUES"


@pytest.fixture
def shop(pg_database: str) -> Iterator[Connection]:
    with psycopg.connect(pg_database, autocommit=True) as connection:
        connection.execute(HEALTHY)
        yield connection


@pytest.fixture
def project(shop: Connection, pg_database: str, tmp_path: Path) -> Callable[[], Project]:
    del shop
    return configured(tmp_path, pg_database)


def test_a_trigger_that_fires_for_some_updates_only_is_named(project: Callable[[], Project], shop: Connection) -> None:
    shop.execute("ALTER TABLE orders ADD status text; DROP TRIGGER touch_orders ON orders")
    shop.execute("CREATE TRIGGER now_and_then BEFORE UPDATE OF status ON orders FOR EACH ROW EXECUTE FUNCTION touch()")
    assert any("trigger now_and_then, only for updates of status" in text for text in found(project, Level.WARN))
    shop.execute("DROP TRIGGER now_and_then ON orders")
    shop.execute(
        "CREATE TRIGGER each_time BEFORE UPDATE ON orders FOR EACH ROW "
        "WHEN (OLD.* IS DISTINCT FROM NEW.*) EXECUTE FUNCTION touch()"
    )
    assert found(project, Level.WARN) == []


@pytest.mark.parametrize(
    "illness",
    [
        "ALTER TABLE orders DISABLE TRIGGER touch_orders",
        "ALTER TABLE orders ENABLE REPLICA TRIGGER touch_orders",
        "CREATE OR REPLACE FUNCTION touch() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN IF NEW.updated_at = OLD.updated_at THEN NULL; END IF; /* NEW.updated_at := 1; */ RETURN NEW; END $$",
    ],
    ids=["disabled", "for replicas only", "reads the cursor"],
)
def test_a_trigger_that_does_not_set_the_cursor_does_not_count(
    project: Callable[[], Project], shop: Connection, illness: str
) -> None:
    shop.execute(illness.encode())
    assert only(examine(project), "the application must set it").docs == "docs/doctor.md#updates"


def test_rows_stamped_by_the_application_come_with_the_default_that_would_do_it(
    project: Callable[[], Project], shop: Connection
) -> None:
    shop.execute("ALTER TABLE orders ALTER updated_at SET DEFAULT '2000-01-01'")
    shop.execute(only(examine(project), "stamped by the application").remedy.encode())
    assert found(project, Level.WARN) == []


def test_infinity_and_the_year_9999_never_arrive_and_fail(
    project: Callable[[], Project], shop: Connection, pg_database: str, tmp_path: Path
) -> None:
    shop.execute("INSERT INTO orders VALUES (9, '9999-12-31 23:59:59+00')")
    assert any("in the future in 1 rows" in text for text in found(project))
    shop.execute("INSERT INTO orders VALUES (10, 'infinity'), (11, '10000-01-01')")
    assert any("lies after every window in 3 rows, up to infinity" in text for text in found(project))
    left_out = configured(tmp_path, pg_database, "{name: orders, cursor: updated_at, where: id < 9}")
    assert found(left_out) == []


@pytest.mark.parametrize("never", ["-infinity", "0044-03-15 00:00:00+00 BC"])
def test_a_time_before_all_times_is_none(project: Callable[[], Project], shop: Connection, never: str) -> None:
    shop.execute(f"INSERT INTO orders VALUES (9, '{never}')".encode())
    assert any("which is no time" in text for text in found(project))


def test_a_zone_that_puts_new_rows_below_the_watermark_is_doubted(
    shop: Connection, pg_database: str, tmp_path: Path
) -> None:
    shop.execute("CREATE TABLE local (id bigint PRIMARY KEY, updated_at timestamp NOT NULL)")
    shop.execute("CREATE INDEX ON local (updated_at)")
    shop.execute("INSERT INTO local VALUES (1, now() AT TIME ZONE 'America/Bogota'); ANALYZE")
    wrong = configured(tmp_path, pg_database, "{name: local, cursor: updated_at, zone: UTC}")
    doubt = only(examine(wrong), "may be stamped in another zone")
    assert "5 hours old read as UTC" in doubt.text and doubt.docs == "docs/doctor.md#zones"
    right = configured(tmp_path, pg_database, "{name: local, cursor: updated_at, zone: America/Bogota}")
    assert not any("zone" in text for text in found(right, Level.WARN))


def test_milliseconds_and_dates_are_noted(shop: Connection, pg_database: str, tmp_path: Path) -> None:
    shop.execute("ALTER TABLE orders ALTER updated_at TYPE timestamptz(3), ADD day date NOT NULL DEFAULT now()")
    notes = found(configured(tmp_path, pg_database), Level.NOTE)
    assert any("keeps milliseconds" in text for text in notes)
    notes = found(configured(tmp_path, pg_database, "{name: orders, cursor: day}"), Level.NOTE)
    assert any("a day's rows are read when the day is over" in text for text in notes)


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("id > 0 AND length('status') > 0", ""),
        ("\\\"status\\\" = 'open'", "where filters by status"),
        ("updated_at < NOW()", "where uses now"),
        ("updated_at < current_date", "where uses current_date"),
        ("random() < 2", "where uses random"),
        ("id >= eve()", "where uses eve"),
        ("id IN (SELECT 1)", "where looks into other rows"),
    ],
)
def test_a_filter_whose_verdict_can_change_is_pointed_out(
    shop: Connection, pg_database: str, tmp_path: Path, where: str, said: str
) -> None:
    shop.execute("ALTER TABLE orders ADD status text NOT NULL DEFAULT 'open'")
    shop.execute("CREATE FUNCTION eve() RETURNS int STABLE LANGUAGE sql AS 'SELECT 1'")
    table = f'{{name: orders, cursor: updated_at, where: "{where}"}}'
    warnings = found(configured(tmp_path, pg_database, table), Level.WARN)
    assert [text.startswith(f"orders: {said}") for text in warnings] == ([True] if said else [])


def test_a_view_is_noted_for_what_moves_its_cursor_cannot_be_seen(
    shop: Connection, pg_database: str, tmp_path: Path
) -> None:
    shop.execute("CREATE VIEW few AS SELECT * FROM orders")
    view = configured(tmp_path, pg_database, "{name: few, cursor: updated_at, key: id}")
    assert any("comes from a view" in text for text in found(view, Level.NOTE))


def test_an_id_that_updates_do_not_move_and_a_sequence_nearly_used_up_are_pointed_out(
    shop: Connection, pg_database: str, tmp_path: Path
) -> None:
    shop.execute(LOG)
    log = configured(tmp_path, pg_database, "{name: log, cursor: id}")
    (text,) = found(log, Level.WARN)
    assert "new rows are seen, changed ones are not" in text
    assert found(configured(tmp_path, pg_database, "{name: log, cursor: id, mode: append}"), Level.WARN) == []
    shop.execute("ALTER TABLE log ALTER id RESTART WITH 2100000000; INSERT INTO log DEFAULT VALUES")
    assert any("has used 2,100,000,000 of 2,147,483,647 numbers" in text for text in found(log, Level.WARN))


def test_a_lookback_shorter_than_a_sequences_cache_is_too_short(
    shop: Connection, pg_database: str, tmp_path: Path
) -> None:
    shop.execute("CREATE TABLE log (id bigint GENERATED ALWAYS AS IDENTITY (CACHE 50 CYCLE) PRIMARY KEY)")
    short = found(configured(tmp_path, pg_database, "{name: log, cursor: id, lookback: 10}"), Level.WARN)
    assert any("in blocks of 50 per connection, and lookback is 10" in text for text in short)
    assert any("CYCLE" in text for text in short)
    enough = found(configured(tmp_path, pg_database, "{name: log, cursor: id, lookback: 5000}"), Level.WARN)
    assert not any("blocks of" in text for text in enough)
    assert any("CACHE 50" in text for text in found(configured(tmp_path, pg_database, "{name: log, cursor: id}")))


def test_what_a_reader_may_not_read_or_cannot_see_is_said_with_the_grant(
    shop: Connection, postgres: Postgres, pg_database: str, tmp_path: Path
) -> None:
    shop.execute("DROP ROLE IF EXISTS doctors_reader; CREATE ROLE doctors_reader LOGIN PASSWORD 'pw'")
    url = postgres.url(Endpoint.parse(pg_database).path, user="doctors_reader", password="pw")
    project = configured(tmp_path, url)
    try:
        (denied,) = [finding for finding in examine(project) if "GRANT SELECT" in finding.remedy]
        assert denied.level is Level.FAIL and "orders" in denied.text
        shop.execute(denied.remedy.encode())
        assert found(project) == [] and found(project, Level.WARN) == []
        assert any("without its age and statement" in text for text in found(project, Level.NOTE))
        shop.execute("ALTER TABLE orders ENABLE ROW LEVEL SECURITY")
        assert any("row-level security hides rows" in text for text in found(project, Level.WARN))
    finally:
        shop.execute("DROP OWNED BY doctors_reader; DROP ROLE doctors_reader")


def test_rows_that_another_server_feeds_in_are_pointed_out(
    project: Callable[[], Project], shop: Connection, postgres: Postgres
) -> None:
    """A subscription that is made but never connected: the catalog alone tells."""
    where = f"host=127.0.0.1 port={postgres.port} dbname=postgres"
    shop.execute(f"CREATE SUBSCRIPTION s CONNECTION '{where}' PUBLICATION p WITH (connect = false)".encode())
    try:
        shop.execute(
            "INSERT INTO pg_subscription_rel (srsubid, srrelid, srsubstate) "
            "SELECT oid, 'orders'::regclass, 'r' FROM pg_subscription WHERE subname = 's'"
        )
        assert only(examine(project), "is fed by a subscription").docs == "docs/doctor.md#clocks"
    finally:
        shop.execute("ALTER SUBSCRIPTION s SET (slot_name = NONE); DROP SUBSCRIPTION s")


def test_a_large_table_without_an_index_is_not_read_through_and_that_is_said(
    project: Callable[[], Project], shop: Connection
) -> None:
    shop.execute("DROP INDEX orders_updated_at_idx; ALTER TABLE orders ALTER updated_at DROP NOT NULL")
    shop.execute("UPDATE pg_class SET reltuples = 5e7 WHERE relname = 'orders'")
    notes = found(project, Level.NOTE)
    assert any("not looked into" in text and "~50,000,000 rows" in text for text in notes)
    assert not any("may be NULL" in text for text in found(project, Level.WARN))


def test_positions_that_stand_where_the_source_never_was_are_found(project: Callable[[], Project]) -> None:
    at, later = (Watermark(Kind.TIMESTAMP, text) for text in ("2026-01-01 00:00:00", "2026-01-02 00:00:00"))
    with project() as opened:
        batch = Batch(opened.books.store, 1, 1, None, at, at, "a")
        edited = Position("shop", "orders", "sync", at, later, batch, epoch=0, totals=Applied(-3), batches=-1)
        opened.books.write([replace(edited, observed=f"{datetime.now(UTC).year + 1}-01-01 00:00:00.000000")])
    findings = examine(project)
    counts = only(findings, "somebody edited it")
    assert "rows_read -3, -1 batches, epoch 0" in counts.text and counts.level is Level.FAIL
    assert "clock stood at" in only(findings, "behind that now").text
    assert "2026-01-02 00:00:00 was moved" in only(findings, "the watermark is only at").text


def test_ids_that_began_again_below_the_watermark_are_found(shop: Connection, pg_database: str, tmp_path: Path) -> None:
    shop.execute(LOG)
    log = configured(tmp_path, pg_database, "{name: log, cursor: id, mode: append}")
    with log() as opened:
        opened.books.write([Position("shop", "log", "sync", watermark=Watermark(Kind.INTEGER, "2"))])
    assert found(log, Level.WARN) == []
    shop.execute("DELETE FROM log")
    assert found(log, Level.WARN) == []  # the last row is gone, but its number is not given out again
    shop.execute("INSERT INTO log DEFAULT VALUES; INSERT INTO log DEFAULT VALUES")
    with log() as opened:
        (position,) = opened.books.positions().values()
        opened.books.write([replace(position, watermark=Watermark(Kind.INTEGER, "4"))])
    assert found(log, Level.WARN) == []
    shop.execute("TRUNCATE log RESTART IDENTITY; INSERT INTO log DEFAULT VALUES")
    assert any("is above every id there is (1): ids began again" in text for text in found(log, Level.WARN))


def test_a_lease_from_the_future_is_found(project: Callable[[], Project]) -> None:
    with project() as opened:
        lease = opened.books.take(Lease("shop", "orders"), "2020")
        opened.books.state.put([replace(lease, expires_at="2999-01-01T00:00:00.000Z").record()])
        assert any("the state's clock went back" in text for text in found(project, Level.WARN))


class MariaShop:
    """A healthy table on MariaDB, to be made ill."""

    def __init__(self, server: MariaDB, url: str, folder: Path) -> None:
        self.server, self.url, self.folder = server, url, folder
        self.name = Endpoint.parse(url).path
        self.execute(*HEALTHY_MARIADB)

    def execute(self, *statements: str) -> None:
        with self.server.connect(self.name) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def found(self, level: Level, table: str = "{name: orders, cursor: updated_at}") -> list[str]:
        return found(configured(self.folder, self.url, table), level)


@pytest.fixture
def maria(mariadb: MariaDB, mariadb_database: str, tmp_path: Path) -> MariaShop:
    return MariaShop(mariadb, mariadb_database, tmp_path)


def test_a_mariadb_trigger_that_sets_the_cursor_counts_and_one_that_reads_it_does_not(maria: MariaShop) -> None:
    maria.execute(
        "ALTER TABLE orders MODIFY updated_at timestamp(6) NOT NULL DEFAULT now(6), ADD seen timestamp(6) NULL",
        "CREATE TRIGGER touch BEFORE UPDATE ON orders FOR EACH ROW SET NEW.seen = NEW.updated_at",
    )
    assert any("the application must set it" in text for text in maria.found(Level.WARN))
    maria.execute(
        "DROP TRIGGER touch",
        "CREATE TRIGGER touch BEFORE UPDATE ON orders FOR EACH ROW SET NEW.`updated_at` = now(6)",
    )
    assert maria.found(Level.WARN) == []


def test_a_mariadb_foreign_key_that_changes_rows_behind_the_cursors_back_is_named(maria: MariaShop) -> None:
    maria.execute(
        "CREATE TABLE customers (id int PRIMARY KEY)",
        "ALTER TABLE orders ADD customer int, ADD CONSTRAINT of_customer FOREIGN KEY (customer) "
        "REFERENCES customers (id) ON DELETE SET NULL",
        "INSERT INTO customers VALUES (1)",
        "UPDATE orders SET customer = 1",
        "CREATE TABLE before_it AS SELECT updated_at FROM orders",
        "DELETE FROM customers",
        "INSERT INTO before_it SELECT updated_at FROM orders WHERE customer IS NULL",
    )
    (text,) = maria.found(Level.WARN)
    assert "foreign key of_customer" in text
    with maria.server.connect(maria.name) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT count(*), count(DISTINCT updated_at) FROM before_it")
        assert cursor.fetchall() == ((2, 1),)  # it is true: the row changed and its cursor did not move


def test_mariadb_nulls_seconds_futures_and_filters(maria: MariaShop) -> None:
    maria.execute(
        "ALTER TABLE orders MODIFY updated_at datetime NULL, ADD status int DEFAULT 1",
        "INSERT INTO orders VALUES (2, NULL, 1), (3, '9999-12-31', 1)",
        "CREATE FUNCTION eve() RETURNS int NOT DETERMINISTIC RETURN 1",
    )
    where = "status = 1 and id < year(curdate()) and id >= eve()"
    table = f"{{name: orders, cursor: updated_at, zone: UTC, where: '{where}'}}"
    failures, warnings = maria.found(Level.FAIL, table), maria.found(Level.WARN, table)
    assert any("is NULL in 1 rows" in text for text in failures)
    assert any("in the future in 1 rows" in text for text in failures)
    for said in ("is stamped by the application", "keeps whole seconds", "filters by status", "uses curdate, eve"):
        assert any(said in text for text in warnings), said


def test_a_mariadb_zero_date_is_no_cursor(maria: MariaShop) -> None:
    maria.execute("SET sql_mode = ''", "INSERT INTO orders VALUES (2, '0000-00-00 00:00:00')")
    assert any("0000-00-00 00:00:00.000000 somewhere, which is no time" in text for text in maria.found(Level.FAIL))


def test_a_mariadb_id_that_is_nearly_used_up_is_pointed_out(maria: MariaShop) -> None:
    maria.execute("CREATE TABLE log (id tinyint AUTO_INCREMENT PRIMARY KEY)", "INSERT INTO log VALUES (120)")
    warnings = maria.found(Level.WARN, "{name: log, cursor: id}")
    assert any("has used 120 of 127 numbers" in text for text in warnings)
    assert any("changed ones are not" in text for text in warnings)


def test_a_database_whose_clock_is_an_hour_behind_ours_and_the_states_is_said(
    maria: MariaShop, mariadb: MariaDB, tmp_path: Path
) -> None:
    """A real skew: every connection of this user lives an hour ago."""
    maria.execute("CREATE OR REPLACE USER past IDENTIFIED BY 'pw'", "GRANT PROCESS ON *.* TO past")
    maria.execute(f"GRANT SELECT ON {maria.name}.* TO past")
    maria.execute("SET GLOBAL init_connect = 'SET timestamp = UNIX_TIMESTAMP() - 3600'")
    try:
        warnings = found(configured(tmp_path, mariadb.url(maria.name, "past", "pw")), Level.WARN)
    finally:
        maria.execute("SET GLOBAL init_connect = ''")
    assert any("the database's clock is 36" in text and "behind ours" in text for text in warnings)
    assert any("the state's clock is 36" in text and "ahead of the clock of the source" in text for text in warnings)
    assert any("lies in the future in 1 rows" in text for text in warnings)

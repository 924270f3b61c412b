"""MySQL's protocol as a source, on MariaDB: exact values, the commit barrier under real statements, and refusals."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Self

import pymysql
import pytest

from strandline.core.errors import ConfigError, ConnectError, SourceError, StrandlineError, TransientError
from strandline.core.position import Horizon
from strandline.core.protocols import Source
from strandline.core.table import Mode, Table, TableInfo
from strandline.core.watermark import Cursor, Kind, Watermark
from strandline.core.window import Slice, Window
from strandline.endpoint import Endpoint
from strandline.sources import open_source
from strandline.testing.servers import MariaDB

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ALL = Slice(Window(None, Watermark(Kind.TIMESTAMP, "2037-01-01 00:00:00")))


class Database:
    """A database of one test, and a source on it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.connection = self.connect()
        self.sources: list[Source] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for source in self.sources:
            source.close()
        self.connection.close()

    def connect(self) -> Any:
        end = Endpoint.parse(self.url)
        return pymysql.connect(
            host=end.host,
            port=end.port or 0,
            user=end.user,
            password=end.password,
            database=end.path,
            autocommit=True,
            charset="utf8mb4",
            ssl_disabled=True,
        )

    def run(self, sql: str, connection: Any = None) -> list[tuple[Any, ...]]:
        with (connection or self.connection).cursor() as cursor:
            cursor.execute(sql)
            return list(cursor.fetchall())

    def source(self, url: str | None = None, **options: Any) -> Source:
        given: dict[str, Any] = {"guard": timedelta(0), "max_wait": timedelta(milliseconds=250), **options}
        self.sources.append(open_source(Endpoint.parse(url or self.url), **given))
        return self.sources[-1]

    def table(
        self, source: Source, name: str, cursor: str | None = "at", zone: str | None = None, **wanted: Any
    ) -> Table:
        query = wanted.get("query")
        found = source.tables([] if query else [name], {name: query} if query else {})[name]
        if isinstance(found, StrandlineError):
            raise found
        typed = None if cursor is None else Cursor(cursor, Kind.TIMESTAMP)
        asked = {"mode": Mode.MERGE, "target": name, **wanted}
        return source.resolve(Table("p", name, name, stage="sync", cursor=typed, **asked), found, zone)

    @contextmanager
    def another(self, *statements: str) -> Iterator[Any]:
        connection = self.connect()
        try:
            for statement in statements:
                self.run(statement, connection)
            yield connection
        finally:
            connection.close()

    def await_statement(self, like: str) -> None:
        """Until some connection is seen to run a statement like this."""
        seen = f"SELECT 1 FROM information_schema.processlist WHERE id <> CONNECTION_ID() AND info LIKE '{like}'"
        while not self.run(seen):
            pass


@pytest.fixture
def database(mariadb_database: str) -> Iterator[Database]:
    with Database(mariadb_database) as database:
        database.run(
            "CREATE TABLE t (id bigint AUTO_INCREMENT PRIMARY KEY,"
            " at timestamp(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6), v int)"
        )
        yield database


def horizon(source: Source, table: Table) -> Horizon:
    found = source.horizons([table])[table.name]
    if isinstance(found, StrandlineError):
        raise found
    return found


# --- The barrier -----------------------------------------------------------------------------------------------------


def test_an_open_transaction_holds_and_is_named(database: Database) -> None:
    source = database.source()
    table = database.table(source, "t")
    with database.another("BEGIN", "INSERT INTO t (v) VALUES (1)") as late:
        held = horizon(source, table)
        assert held.high is None
        assert held.held_by is not None
        assert held.held_by.pid == str(late.thread_id())
        database.run("COMMIT", late)
        assert horizon(source, table).held_by is None


def test_a_slow_statement_that_stamped_early_holds_although_innodb_does_not_list_it(database: Database) -> None:
    source = database.source(max_wait=timedelta(seconds=20))
    table = database.table(source, "t")
    with database.another() as slow:
        insert = "INSERT INTO t (v) SELECT SLEEP(1)"
        writer = threading.Thread(target=lambda: database.run(insert, slow))
        writer.start()
        database.await_statement("INSERT INTO t%")
        high = horizon(source, table).high
        writer.join()
    assert high is not None
    assert database.run("SELECT count(*) FROM t") == [(1,)]
    assert source.pending({"t": (table, Window(None, high))})["t"]


def test_a_statement_that_waits_for_a_metadata_lock_holds(database: Database) -> None:
    source = database.source()
    table = database.table(source, "t")
    with database.another("LOCK TABLES t READ") as locker, database.another() as blocked:
        writer = threading.Thread(target=lambda: database.run("INSERT INTO t (v) VALUES (1)", blocked))
        writer.start()
        database.await_statement("INSERT INTO t%")
        held = horizon(source, table).held_by
        database.run("UNLOCK TABLES", locker)
        writer.join()
    assert held is not None
    assert horizon(source, table).held_by is None


def test_a_statement_that_ends_but_leaves_its_transaction_open_holds_on(database: Database) -> None:
    source = database.source(max_wait=timedelta(seconds=2))
    table = database.table(source, "t")
    with database.another("BEGIN") as late:
        writer = threading.Thread(target=lambda: database.run("INSERT INTO t (v) SELECT SLEEP(0.7)", late))
        writer.start()
        database.await_statement("INSERT INTO t%")
        held = horizon(source, table).held_by
        writer.join()
        assert held is not None
        assert held.pid == str(late.thread_id())


def test_a_prepared_xa_transaction_holds_even_without_its_connection(database: Database) -> None:
    source = database.source()
    table = database.table(source, "t")
    with database.another("XA START 'x'", "INSERT INTO t (v) VALUES (1)", "XA END 'x'", "XA PREPARE 'x'"):
        assert horizon(source, table).held_by is not None
    assert horizon(source, table).held_by is not None
    database.run("XA COMMIT 'x'")
    assert horizon(source, table).held_by is None


def test_a_busy_connection_does_not_starve_the_barrier(database: Database) -> None:
    source = database.source(max_wait=timedelta(seconds=20))
    table = database.table(source, "t")
    stop = threading.Event()
    with database.another() as busy:

        def write() -> None:
            while not stop.is_set():
                database.run("INSERT INTO t (v) VALUES (1)", busy)

        writer = threading.Thread(target=write)
        writer.start()
        found = [horizon(source, table).held_by for _ in range(3)]
        stop.set()
        writer.join()
    assert found == [None, None, None]


def test_read_only_transactions_and_our_own_readers_do_not_hold(database: Database) -> None:
    source = database.source()
    table = database.table(source, "t")
    with database.another("START TRANSACTION READ ONLY", "SELECT * FROM t"):
        assert horizon(source, table).held_by is None
    with database.another() as reading:
        select = "SELECT /* strandline reader */ SLEEP(1)"
        reader = threading.Thread(target=lambda: database.run(select, reading))
        reader.start()
        database.await_statement("%strandline reader%SLEEP%")
        assert horizon(source, table).held_by is None
        reader.join()


def test_without_the_process_privilege_the_barrier_refuses_with_the_grant(database: Database) -> None:
    end = Endpoint.parse(database.url)
    database.run("CREATE OR REPLACE USER reader@'127.0.0.1' IDENTIFIED BY 'pw'")
    database.run(f"GRANT SELECT ON {end.path}.* TO reader@'127.0.0.1'")
    url = f"mysql://reader:pw@{end.host}:{end.port}/{end.path}"
    source = database.source(url)
    table = database.table(source, "t")
    with pytest.raises(SourceError, match="lacks PROCESS") as caught:
        horizon(source, table)
    assert not horizon(database.source(url, barrier="lookback 10m"), table).proven
    database.run(caught.value.remedy.splitlines()[0])
    assert horizon(database.source(url), table).proven
    database.run("DROP USER reader@'127.0.0.1'")


def test_a_read_only_server_is_refused(database: Database) -> None:
    source = database.source()
    table = database.table(source, "t")
    database.run("SET GLOBAL read_only = 1")
    try:
        with pytest.raises(SourceError, match="read-only"):
            horizon(source, table)
    finally:
        database.run("SET GLOBAL read_only = 0")


# --- Cursors ---------------------------------------------------------------------------------------------------------


def test_an_id_that_the_server_does_not_give_out_is_refused_unless_it_is_re_read(database: Database) -> None:
    database.run("CREATE TABLE s (id int PRIMARY KEY)")
    database.run("INSERT INTO s VALUES (7)")
    source = database.source()
    table = database.table(source, "s", cursor="id")
    with pytest.raises(SourceError, match="AUTO_INCREMENT"):
        horizon(source, table)
    again = horizon(source, replace(table, lookback=100))
    assert (again.high, again.proven) == (Watermark(Kind.INTEGER, "8"), False)


def test_a_datetime_needs_a_zone_where_the_server_is_not_in_utc() -> None:
    with MariaDB(settings={"default-time-zone": "+09:00"}) as server:
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("CREATE DATABASE z")
        with Database(server.url("z")) as database:
            database.run("CREATE TABLE z (id int PRIMARY KEY, at datetime(3) NOT NULL)")
            database.run("INSERT INTO z VALUES (1, NOW(3) - INTERVAL 3 MINUTE)")
            source = database.source()
            with pytest.raises(SourceError, match="has no time zone") as caught:
                database.table(source, "z")
            assert "3 minutes old read as +09:00, 9 hours ahead read as UTC" in caught.value.why
            table = database.table(source, "z", zone="Asia/Tokyo")
            assert table.cursor == Cursor("at", Kind.TIMESTAMP, 3, "Asia/Tokyo", False)
            high = horizon(source, table).high
            assert high is not None
            assert source.pending({"z": (table, Window(None, high))})["z"]


# --- Values ----------------------------------------------------------------------------------------------------------

EXACT: list[tuple[str, Any, Any]] = [
    ("decimal(38,10)", "9999999999999999999999999999.9999999999", Decimal("9999999999999999999999999999.9999999999")),
    ("decimal(38,0)", "-" + "9" * 38, Decimal("-" + "9" * 38)),
    ("tinyint", -128, -128),
    ("tinyint(1)", 5, 5),
    ("tinyint unsigned", 255, 255),
    ("smallint unsigned", 65535, 65535),
    ("mediumint unsigned", 16777215, 16777215),
    ("int unsigned", 4294967295, 4294967295),
    ("bigint", -(2**63), -(2**63)),
    ("bigint unsigned", 2**64 - 1, Decimal(2**64 - 1)),
    ("double", "0.1", 0.1),
    ("double", "1.7976931348623157e308", 1.7976931348623157e308),
    ("float", "16777215", 16777215.0),
    ("bit(1)", 1, True),
    ("bit(9)", 257, Decimal(257)),
    ("bit(64)", 2**64 - 1, Decimal(2**64 - 1)),
    ("year", 1901, 1901),
    ("char(5)", "ab", "ab"),
    ("varchar(40)", "ünïcode 😀 'quoted' \\ ", "ünïcode 😀 'quoted' \\ "),
    ("longtext", "", ""),
    ("enum('a','b')", "b", "b"),
    ("set('a','b')", "a,b", "a,b"),
    ("json", '{"b": 1.10, "a": [1, 2]}', '{"b": 1.10, "a": [1, 2]}'),
    ("blob", bytes(range(256)), bytes(range(256))),
    ("varbinary(9)", b"\x00\xff", b"\x00\xff"),
    ("time(6)", "-838:59:58.999999", "-838:59:58.999999"),
    ("uuid", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    ("inet6", "::1", "::1"),
]
TIMES = [
    "0001-01-01 00:00:00",
    "1582-10-10 12:00:00",
    "1883-11-18 12:03:58",
    "2026-03-08 02:30:00",
    "2026-10-25 01:30:00.000001",
    "9999-12-31 23:59:59.999999",
]


def test_values_arrive_as_they_are(database: Database, spark: SparkSession) -> None:
    columns = ", ".join(f"c{at} {kind}" for at, (kind, _, _) in enumerate(EXACT))
    database.run(f"CREATE TABLE e (id int PRIMARY KEY, at timestamp(6) NOT NULL DEFAULT NOW(6), {columns})")
    names, marks = ", ".join(f"c{at}" for at in range(len(EXACT))), ", ".join("%s" for _ in EXACT)
    with database.connection.cursor() as cursor:
        cursor.execute(f"INSERT INTO e (id, {names}) VALUES (1, {marks})", [value for _, value, _ in EXACT])
    database.run("INSERT INTO e (id) VALUES (2)")
    source = database.source()
    full, empty = source.changes(database.table(source, "e"), ALL).frame(spark).orderBy("id").collect()
    for at, (kind, _, expected) in enumerate(EXACT):
        assert full[f"c{at}"] == expected, kind
        assert empty[f"c{at}"] is None, kind


def test_times_of_all_ages_arrive_as_they_are(database: Database, spark: SparkSession) -> None:
    database.run("CREATE TABLE e (id int PRIMARY KEY, at timestamp(6), ts datetime(6), d date)")
    for number, stamp in enumerate(TIMES):
        database.run(f"INSERT INTO e VALUES ({number}, '2026-11-15 08:12:44.120003', '{stamp}', '{stamp[:10]}')")
    source = database.source()
    frame = source.changes(database.table(source, "e"), ALL).frame(spark)
    assert [field.dataType.simpleString() for field in frame.schema] == ["int", "timestamp", "timestamp_ntz", "date"]
    shown = frame.selectExpr("cast(at as string)", "cast(ts as string)", "cast(d as string)").orderBy(frame["id"])
    expected = [("2026-11-15 08:12:44.120003", stamp, stamp[:10]) for stamp in TIMES]
    assert [tuple(row) for row in shown.collect()] == expected


@pytest.mark.parametrize("value", ["0000-00-00", "2026-00-00"])
def test_a_date_that_is_none_stops_the_read_unless_null_is_asked_for(
    database: Database, spark: SparkSession, value: str
) -> None:
    database.run("SET sql_mode = ''")
    database.run("CREATE TABLE e (id int PRIMARY KEY, at timestamp(6) NOT NULL DEFAULT NOW(6), day date)")
    database.run(f"INSERT INTO e (id, day) VALUES (1, '{value}')")
    source = database.source()
    changes = source.changes(database.table(source, "e"), ALL)
    with pytest.raises(Exception, match="strandline refuses") as caught:
        changes.frame(spark).collect()
    error = changes.translate(caught.value)
    assert isinstance(error, SourceError)
    assert f"column day with the value {value}" in error.message
    assert "::char" in error.remedy
    as_text = database.table(source, "e", select=("id", "day::char"))
    assert source.changes(as_text, ALL).frame(spark).collect()[0]["day"] == value
    lenient = database.source(f"{database.url}?zero_dates=null")
    frame = lenient.changes(database.table(lenient, "e"), ALL).frame(spark)
    if value == "0000-00-00":
        assert frame.collect()[0]["day"] is None
    else:
        with pytest.raises(Exception, match="strandline refuses"):
            frame.collect()


@pytest.mark.parametrize(("kind", "said"), [("decimal(50,2)", "decimal"), ("point", "no Spark counterpart")])
def test_a_type_that_cannot_be_carried_is_refused_by_name(database: Database, kind: str, said: str) -> None:
    database.run(f"CREATE TABLE e (id int PRIMARY KEY, at timestamp(6) NOT NULL, odd {kind})")
    source = database.source()
    with pytest.raises(SourceError, match=said) as caught:
        database.table(source, "e")
    assert "odd" in caught.value.message
    assert caught.value.remedy
    assert [column.name for column in database.table(source, "e", select=("id",)).columns] == ["id"]


def test_a_query_and_a_cast_are_typed_by_the_server(database: Database, spark: SparkSession) -> None:
    database.run("CREATE TABLE e (id int PRIMARY KEY, at timestamp(6) NOT NULL DEFAULT NOW(6), n decimal(50,2))")
    database.run("INSERT INTO e (id, n) VALUES (1, 1.5)")
    source = database.source()
    query = "SELECT id, at, CAST(id AS UNSIGNED) AS big FROM e"
    table = database.table(source, "q", query=query, key=("id",))
    assert [column.type for column in table.columns] == ["int", "timestamp(6)", "bigint unsigned"]
    assert source.changes(table, ALL).frame(spark).collect()[0]["big"] == Decimal(1)
    cast = database.table(source, "e", select=("id", "n::decimal(38,10)"))
    assert source.changes(cast, ALL).frame(spark).collect()[0]["n"] == Decimal("1.5")


# --- Catalog and connections -----------------------------------------------------------------------------------------


def test_tables_of_other_databases_are_found_by_their_full_name(database: Database) -> None:
    database.run("CREATE OR REPLACE DATABASE elsewhere")
    database.run("CREATE TABLE elsewhere.o (id int PRIMARY KEY)")
    found = database.source().tables(["elsewhere.*", "elsewhere.o", "t"], {})
    assert sorted(found) == ["elsewhere.o", "t"]
    assert all(isinstance(info, TableInfo) for info in found.values())
    database.run("DROP DATABASE elsewhere")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda url: url.replace("@127", "wrong@127"), "was refused"),
        (lambda url: url.rpartition("/")[0] + "/nowhere", "nowhere"),
        (lambda url: f"{url.rpartition(':')[0]}:1/x", "connect"),
    ],
)
def test_a_server_that_cannot_be_used_is_named_without_the_password(
    database: Database, change: Callable[[str], str], said: str
) -> None:
    url = change(database.url)
    with pytest.raises(ConnectError, match=said) as caught:
        database.source(url).identity()
    assert caught.value.remedy
    assert Endpoint.parse(url).password not in caught.value.explain()


def test_unknown_options_are_errors(database: Database) -> None:
    with pytest.raises(ConfigError, match="zero_date"):
        database.source(f"{database.url}?zero_date=null")
    with pytest.raises(ConfigError, match="refuse, null"):
        database.source(f"{database.url}?zero_dates=maybe")


def test_a_lost_connection_is_transient_and_the_next_question_is_answered(database: Database) -> None:
    source = database.source()
    source.tables(["t"], {})
    own = "SELECT id FROM information_schema.processlist WHERE id <> CONNECTION_ID() AND db = DATABASE()"
    for (number,) in database.run(own):
        database.run(f"KILL {number}")
    with pytest.raises(TransientError):
        source.tables(["t"], {})
    assert isinstance(source.tables(["t"], {})["t"], TableInfo)

"""PostgreSQL as a source: exact values, the commit barrier under real transactions, and what it refuses."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Self

import psycopg
import pytest

from strandline.core.errors import ConfigError, ConnectError, SourceError, StrandlineError, TransientError
from strandline.core.position import Horizon
from strandline.core.protocols import Source
from strandline.core.table import Mode, Table, TableInfo
from strandline.core.watermark import Cursor, Kind, Watermark
from strandline.core.window import Slice, Window
from strandline.endpoint import Endpoint
from strandline.sources import open_source
from strandline.sources.postgres import PostgresSource
from strandline.testing.servers import Postgres

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ALL = Slice(Window(None, Watermark(Kind.TIMESTAMP, "2037-01-01 00:00:00")))


class Database:
    """A database of one test, and a source on it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.connection = psycopg.connect(url, autocommit=True)
        self.sources: list[Source] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for source in self.sources:
            source.close()
        self.connection.close()

    def run(self, sql: str) -> None:
        self.connection.execute(sql.encode())

    def source(self, url: str | None = None, **options: Any) -> Source:
        given: dict[str, Any] = {"guard": timedelta(0), "max_wait": timedelta(milliseconds=250), **options}
        self.sources.append(open_source(Endpoint.parse(url or self.url), **given))
        return self.sources[-1]

    def table(
        self, source: Source, name: str, cursor: str | None = "at", zone: str | None = None, **wanted: Any
    ) -> Table:
        found = source.tables([name], {})[name]
        if isinstance(found, StrandlineError):
            raise found
        typed = None if cursor is None else Cursor(cursor, Kind.TIMESTAMP)
        asked = {"mode": Mode.MERGE, "target": name, **wanted}
        return source.resolve(Table("p", name, name, stage="sync", cursor=typed, **asked), found, zone)

    @contextmanager
    def begun(self, *statements: str) -> Iterator[psycopg.Connection[Any]]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            for statement in ("BEGIN", *statements):
                connection.execute(statement.encode())
            yield connection


@pytest.fixture
def database(pg_database: str) -> Iterator[Database]:
    with Database(pg_database) as database:
        database.run("CREATE TABLE t (id bigserial PRIMARY KEY, at timestamptz NOT NULL DEFAULT now(), v int)")
        yield database


def horizon(source: Source, table: Table) -> Horizon:
    found = source.horizons([table])[table.name]
    if isinstance(found, StrandlineError):
        raise found
    return found


# --- The barrier -----------------------------------------------------------------------------------------------------


def test_a_row_stamped_early_and_committed_late_is_in_the_next_window(database: Database) -> None:
    source = database.source()
    table = database.table(source, "t")
    with database.begun("INSERT INTO t (v) VALUES (1)") as late:
        database.run("INSERT INTO t (v) VALUES (2)")
        held = horizon(source, table)
        assert held.high is None
        assert held.held_by is not None
        assert held.held_by.pid == str(late.info.backend_pid)
        assert held.held_by.user == "postgres"
        assert held.held_by.seconds is not None
        late.execute("COMMIT")
        high = horizon(source, table).high
    assert high is not None
    assert database.connection.execute("SELECT count(*) FROM t WHERE at < %s::timestamp", [high.text]).fetchone() == (
        2,
    )


def test_the_barrier_waits_for_a_transaction_that_ends_in_time(database: Database) -> None:
    source = database.source(max_wait=timedelta(seconds=30))
    table = database.table(source, "t")
    with database.begun("INSERT INTO t (v) VALUES (1)") as late:
        found: list[Horizon] = []
        planner = threading.Thread(target=lambda: found.append(horizon(source, table)))
        planner.start()
        planner.join(0.2)
        assert planner.is_alive()
        late.execute("COMMIT")
        planner.join(30)
    assert found[0].high is not None


def test_savepoints_do_not_hide_a_transaction(database: Database) -> None:
    source = database.source()
    table = database.table(source, "t")
    with database.begun("SAVEPOINT a", "INSERT INTO t (v) VALUES (1)", "RELEASE a", "SAVEPOINT b", "ROLLBACK TO b"):
        assert horizon(source, table).held_by is not None


def test_a_transaction_that_has_only_read_may_still_write(database: Database) -> None:
    source = database.source()
    table = database.table(source, "t")
    with database.begun("SELECT now()"):
        assert horizon(source, table).held_by is not None


def test_a_prepared_transaction_holds_until_it_is_committed(database: Database) -> None:
    source = database.source()
    table = database.table(source, "t")
    with database.begun("INSERT INTO t (v) VALUES (1)", "PREPARE TRANSACTION 'two''phase'"):
        held = horizon(source, table).held_by
        assert held is not None
        assert "two'phase" in held.pid
        database.run("COMMIT PREPARED 'two''phase'")
        assert horizon(source, table).held_by is None


def test_a_transaction_prepared_while_it_is_waited_for_is_waited_for_further(database: Database) -> None:
    def prepare(_: float) -> None:
        if not prepared:
            prepared.append(late.execute("PREPARE TRANSACTION 'meanwhile'"))

    prepared: list[object] = []
    source = database.source(sleep=prepare)
    table = database.table(source, "t")
    with database.begun("INSERT INTO t (v) VALUES (1)") as late:
        held = horizon(source, table).held_by
    assert held is not None
    assert "meanwhile" in held.pid
    database.run("ROLLBACK PREPARED 'meanwhile'")


def test_steady_two_phase_traffic_does_not_starve_the_barrier(database: Database) -> None:
    def more(_: float) -> None:
        """Whenever the barrier looks again, one prepared transaction has gone and another has come."""
        gone, come = f"x{len(rounds)}", f"x{len(rounds) + 1}"
        database.run(f"BEGIN; INSERT INTO t (v) VALUES (1); PREPARE TRANSACTION '{come}'")
        database.run(f"COMMIT PREPARED '{gone}'")
        rounds.append(come)

    rounds: list[str] = []
    database.run("BEGIN; INSERT INTO t (v) VALUES (1); PREPARE TRANSACTION 'x0'")
    source = database.source(sleep=more, max_wait=timedelta(seconds=20))
    assert horizon(source, database.table(source, "t")).held_by is None
    assert len(rounds) == 1
    database.run(f"COMMIT PREPARED '{rounds[-1]}'")


def test_another_databases_transaction_does_not_hold(database: Database, postgres: Postgres) -> None:
    source = database.source()
    table = database.table(source, "t")
    with postgres.connect() as elsewhere:
        elsewhere.execute("BEGIN; SELECT txid_current()")
        assert horizon(source, table).held_by is None
        elsewhere.execute("PREPARE TRANSACTION 'elsewhere'")
        assert horizon(source, table).held_by is None
        elsewhere.execute("ROLLBACK PREPARED 'elsewhere'")


def test_our_own_readers_do_not_hold_but_their_name_alone_is_no_pass(database: Database) -> None:
    source = database.source()
    table = database.table(source, "t")
    with database.begun("SET application_name = 'strandline reader'", "SELECT 1"):
        assert horizon(source, table).held_by is None
    database.run("DROP ROLE IF EXISTS other; CREATE ROLE other LOGIN PASSWORD 'pw'")
    theirs: dict[str, Any] = {"user": "other", "password": "pw", "application_name": "strandline reader"}
    with psycopg.connect(database.url, autocommit=True, **theirs) as other:
        other.execute("BEGIN; SELECT 1")
        assert horizon(source, table).held_by is not None
    database.run("DROP ROLE other")


def test_autovacuum_does_not_hold_not_even_for_an_unprivileged_reader() -> None:
    slow = {"autovacuum_naptime": "1s", "autovacuum_vacuum_cost_delay": "100ms", "autovacuum_vacuum_cost_limit": "1"}
    working = (
        "SELECT 1 FROM pg_stat_activity a JOIN pg_locks l ON l.pid = a.pid AND l.locktype = 'virtualxid' "
        "WHERE a.backend_type = 'autovacuum worker' AND a.query LIKE '%public.t%'"
    )
    with Postgres(settings=slow) as server, Database(server.url()) as database:
        database.run("CREATE TABLE t (id int PRIMARY KEY, at timestamptz NOT NULL DEFAULT now())")
        database.run("CREATE ROLE reader LOGIN PASSWORD 'pw'; GRANT SELECT ON t TO reader")
        sources = [database.source(), database.source(server.url(user="reader", password="pw"))]
        tables = [database.table(source, "t") for source in sources]
        database.run("INSERT INTO t SELECT generate_series(1, 100000)")
        database.run("DELETE FROM t")
        while not database.connection.execute(working.encode()).fetchall():
            time.sleep(0.05)
        held = [horizon(source, table).held_by for source, table in zip(sources, tables, strict=True)]
        assert database.connection.execute(working.encode()).fetchall(), "autovacuum ended too early to tell"
        assert held == [None, None]


def test_an_unprivileged_reader_sees_enough(database: Database) -> None:
    database.run("DROP ROLE IF EXISTS reader; CREATE ROLE reader LOGIN PASSWORD 'pw'; GRANT SELECT ON t TO reader")
    parts = Endpoint.parse(database.url)
    source = database.source(f"postgresql://reader:pw@{parts.host}:{parts.port}/{parts.path}")
    table = database.table(source, "t")
    with database.begun("INSERT INTO t (v) VALUES (1)") as late:
        held = horizon(source, table).held_by
        assert held is not None
        assert held.pid == str(late.info.backend_pid)
    assert horizon(source, table).held_by is None
    assert source.identity()
    source.close()
    database.run("DROP OWNED BY reader; DROP ROLE reader")


def test_without_a_barrier_the_horizon_is_not_proven_and_says_so(database: Database) -> None:
    source = database.source(barrier="lookback 10m")
    table = database.table(source, "t")
    with database.begun("INSERT INTO t (v) VALUES (1)"):
        found = horizon(source, table)
    assert found.high is not None
    assert not found.proven
    assert "lookback" in found.note
    with pytest.raises(ConfigError, match="barrier"):
        database.source(barrier="prayer")


# --- Integers --------------------------------------------------------------------------------------------------------


def test_an_explicit_huge_id_does_not_drag_the_watermark_past_ids_to_come(database: Database) -> None:
    source = database.source()
    table = database.table(source, "t", cursor="id")
    database.run("INSERT INTO t (v) VALUES (1), (2); INSERT INTO t (id, v) VALUES (1000000, 3)")
    assert horizon(source, table).high == Watermark(Kind.INTEGER, "3")


@pytest.mark.parametrize(
    ("create", "said"),
    [
        ("id int PRIMARY KEY", "no sequence"),
        ("id int GENERATED ALWAYS AS IDENTITY (CACHE 20) PRIMARY KEY", "CACHE 20"),
        ("id int GENERATED ALWAYS AS IDENTITY (INCREMENT 50) PRIMARY KEY", "INCREMENT 50"),
        ("id int GENERATED ALWAYS AS IDENTITY (CYCLE) PRIMARY KEY", "CYCLE"),
    ],
)
def test_ids_that_do_not_come_in_order_are_refused_unless_they_are_re_read(
    database: Database, create: str, said: str
) -> None:
    database.run(f"CREATE TABLE s ({create}); INSERT INTO t (v) VALUES (1)")
    source = database.source()
    refused, fine = database.table(source, "s", cursor="id"), database.table(source, "t", cursor="id")
    found = source.horizons([refused, fine])
    error = found["s"]
    assert isinstance(error, SourceError)
    assert said in error.message
    assert "lookback" in error.remedy
    assert isinstance(found["t"], Horizon)
    database.run(
        "INSERT INTO s OVERRIDING SYSTEM VALUE VALUES (7)" if "ALWAYS" in create else "INSERT INTO s VALUES (7)"
    )
    again = horizon(source, replace(refused, lookback=100))
    assert (again.high, again.proven) == (Watermark(Kind.INTEGER, "8"), False)


# --- Cursors and zones -----------------------------------------------------------------------------------------------


def test_a_zone_less_cursor_needs_a_zone_and_the_error_shows_the_evidence() -> None:
    with Postgres(settings={"timezone": "Asia/Tokyo"}) as server, Database(server.url()) as database:
        database.run("CREATE TABLE z (id int PRIMARY KEY, at timestamp NOT NULL)")
        database.run("INSERT INTO z VALUES (1, now() - interval '3 minutes')")
        source = database.source()
        with pytest.raises(SourceError, match="has no time zone") as caught:
            database.table(source, "z")
        assert "The server runs in Asia/Tokyo" in caught.value.why
        assert "3 minutes old read as Asia/Tokyo, 9 hours ahead read as UTC" in caught.value.why
        assert "zone: Asia/Tokyo" in caught.value.remedy
        table = database.table(source, "z", zone="Asia/Tokyo")
        high = horizon(source, table).high
        assert high is not None
        row = database.connection.execute("SELECT at < %s::timestamp, %s::timestamp < now() FROM z", [high.text] * 2)
        assert row.fetchone() == (True, True)
        with pytest.raises(SourceError, match="Tokio") as caught:
            database.table(source, "z", zone="Asia/Tokio")
        assert "Asia/Tokyo" in caught.value.remedy


def test_timestamptz_of_whole_seconds_never_yields_a_bound_it_may_still_reach(database: Database) -> None:
    database.run("CREATE TABLE s (id int PRIMARY KEY, at timestamptz(0) NOT NULL)")
    source = database.source()
    table = database.table(source, "s")
    assert table.cursor is not None
    assert table.cursor.precision == 0
    found = horizon(source, table)
    assert found.high == Watermark(Kind.TIMESTAMP, found.observed[:19])


def test_a_view_can_be_read_and_a_materialized_view_only_again(database: Database) -> None:
    database.run("CREATE VIEW v AS SELECT * FROM t; CREATE MATERIALIZED VIEW m AS SELECT * FROM t")
    source = database.source()
    assert not database.table(source, "v", key=("id",)).key_enforced
    with pytest.raises(SourceError, match="materialized view"):
        database.table(source, "m", key=("id",))
    assert database.table(source, "m", key=("id",), lookback=timedelta(days=1)).cursor


# --- Values ----------------------------------------------------------------------------------------------------------

EXACT: list[tuple[str, str, Any]] = [
    ("numeric(38,10)", "9999999999999999999999999999.9999999999", Decimal("9999999999999999999999999999.9999999999")),
    ("numeric(38,10)", "-0.0000000001", Decimal("-1E-10")),
    ("numeric(38,0)", "9" * 38, Decimal("9" * 38)),
    ("smallint", "-32768", -32768),
    ("integer", "2147483647", 2147483647),
    ("bigint", "-9223372036854775808", -(2**63)),
    ("double precision", "0.1", 0.1),
    ("double precision", "Infinity", float("inf")),
    ("real", "-Infinity", float("-inf")),
    ("boolean", "true", True),
    ("text", "", ""),
    ("text", "ünïcode 😀 'quoted' \"double\" \\ back", "ünïcode 😀 'quoted' \"double\" \\ back"),
    ("varchar(9)", "trailing ", "trailing "),
    ("char(5)", "ab", "ab   "),
    ("bytea", "\\x" + bytes(range(256)).hex(), bytes(range(256))),
    ("json", '{"b": 1.10, "a": [1,2]}', '{"b": 1.10, "a": [1,2]}'),
    ("jsonb", '{"b": 1.10}', '{"b": 1.10}'),
    ("uuid", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    ("interval", "1 year 2 mons 3 days 04:05:06.789", "1 year 2 mons 3 days 04:05:06.789"),
    ("inet", "10.0.0.1/8", "10.0.0.1/8"),
    ("money", "1234.56", "$1,234.56"),
    ("time(6)", "23:59:59.999999", "23:59:59.999999"),
    ("timetz", "12:00:00+09", "12:00:00+09"),
    ("bit(3)", "101", "101"),
    ("bit varying", "1", "1"),
    ("oid", "4294967295", 4294967295),
    ("int[]", "{1,NULL,3}", [1, None, 3]),
    ("bigint[]", "{}", []),
    ("text[]", '{a,NULL,"b,c",""}', ["a", None, "b,c", ""]),
    ("boolean[]", "{t,NULL}", [True, None]),
    ("float8[]", "{1.5,Infinity}", [1.5, float("inf")]),
    ("numeric(5,2)[]", "{1.10}", "{1.10}"),
    ("int4range", "[1,5)", "[1,5)"),
    ("mood", "ok", "ok"),
    ("posint", "7", 7),
]
DATES = ["0001-01-01", "1000-02-28", "1582-10-04", "1582-10-15", "1900-01-01", "1970-01-01", "2026-03-29", "9999-12-31"]
TIMES = [
    "0001-01-01 00:00:00",
    "1582-10-04 23:59:59.999999",
    "1883-11-18 12:03:58",
    "1969-12-31 23:59:59.999999",
    "2026-03-08 02:30:00",
    "2026-03-29 02:30:00.000001",
    "2026-10-25 01:30:00.5",
    "9999-12-31 23:59:59.999999",
]


def read(database: Database, spark: SparkSession, name: str, cursor: str | None = "at") -> list[Any]:
    source = database.source()
    return list(source.changes(database.table(source, name, cursor), ALL).frame(spark).orderBy("id").collect())


def test_values_arrive_as_they_are(database: Database, spark: SparkSession) -> None:
    database.run("CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE DOMAIN posint AS int CHECK (VALUE > 0)")
    columns = ", ".join(f"c{at} {kind}" for at, (kind, _, _) in enumerate(EXACT))
    database.run(f"CREATE TABLE e (id int PRIMARY KEY, at timestamptz NOT NULL DEFAULT now(), {columns})")
    marks = ", ".join("%s" for _ in EXACT)
    names = ", ".join(f"c{at}" for at in range(len(EXACT)))
    insert = f"INSERT INTO e (id, {names}) VALUES (1, {marks})"
    with psycopg.ClientCursor(database.connection) as cursor:
        cursor.execute(insert.encode(), [text for _, text, _ in EXACT])
    database.run("INSERT INTO e (id) VALUES (2)")
    full, empty = read(database, spark, "e")
    for at, (kind, text, expected) in enumerate(EXACT):
        assert full[f"c{at}"] == expected, (kind, text)
        assert empty[f"c{at}"] is None, kind


@pytest.mark.parametrize("told", [True, False], ids=["JVM told to run in UTC", "JVM's zone unknown"])
def test_times_of_all_ages_arrive_as_they_are(
    database: Database, spark: SparkSession, told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strandline.sources.jdbc._runs_in_utc", lambda _: told)
    database.run("CREATE TABLE e (id int PRIMARY KEY, at timestamptz, ts timestamp, tz timestamptz, d date)")
    for number, (stamp, day) in enumerate(zip(TIMES, DATES, strict=True)):
        database.run(f"INSERT INTO e VALUES ({number}, now(), '{stamp}', '{stamp}+00', '{day}')")
    source = database.source()
    frame = source.changes(database.table(source, "e"), ALL).frame(spark)
    assert [field.dataType.simpleString() for field in frame.schema][2:] == ["timestamp_ntz", "timestamp", "date"]
    shown = frame.selectExpr("cast(ts as string)", "cast(tz as string)", "cast(d as string)").orderBy(frame["id"])
    assert [tuple(row) for row in shown.collect()] == [(s, s, d) for s, d in zip(TIMES, DATES, strict=True)]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("timestamptz", "infinity"),
        ("timestamp", "-infinity"),
        ("date", "0044-03-15 BC"),
        ("date", "1582-10-10"),
        ("date", "12026-01-01"),
        ("int[]", "{{1},{2}}"),
        ("int[]", "[2:3]={1,2}"),
        ("numeric(9,2)", "NaN"),
    ],
)
def test_a_value_that_spark_would_change_stops_the_read(
    database: Database, spark: SparkSession, kind: str, value: str
) -> None:
    database.run(f"CREATE TABLE e (id int PRIMARY KEY, at timestamptz NOT NULL DEFAULT now(), odd {kind})")
    database.run(f"INSERT INTO e (id, odd) VALUES (1, '{value}')")
    source = database.source()
    changes = source.changes(database.table(source, "e"), ALL)
    with pytest.raises(Exception, match=r"odd|NaN") as caught:
        changes.frame(spark).collect()
    error = changes.translate(caught.value)
    assert isinstance(error, SourceError)
    assert "::text" in error.remedy
    as_text = database.table(source, "e", select=("id", "odd::text"))
    assert source.changes(as_text, ALL).frame(spark).collect()[0]["odd"]


@pytest.mark.parametrize("kind", ["numeric", "numeric(50,10)"])
def test_a_number_no_decimal_can_hold_is_refused_by_name_unless_cast(
    database: Database, spark: SparkSession, kind: str
) -> None:
    database.run(f"CREATE TABLE e (id int PRIMARY KEY, at timestamptz NOT NULL DEFAULT now(), amount {kind})")
    database.run("INSERT INTO e (id, amount) VALUES (1, 1.5)")
    source = database.source()
    with pytest.raises(SourceError, match="amount") as caught:
        database.table(source, "e")
    assert "amount::numeric(38,10)" in caught.value.remedy
    table = database.table(source, "e", select=("id", "amount::numeric(38,10)"))
    (row,) = source.changes(table, ALL).frame(spark).collect()
    assert row["amount"] == Decimal("1.5")


def test_columns_that_differ_only_in_case_are_refused(database: Database) -> None:
    database.run('CREATE TABLE e (id int PRIMARY KEY, at timestamptz NOT NULL, "A" int, a int)')
    source = database.source()
    with pytest.raises(SourceError, match="cannot be read exactly"):
        database.table(source, "e")
    assert database.table(source, "e", select=("id", "A")).columns[1].name == "A"


# --- Catalog ---------------------------------------------------------------------------------------------------------


def test_schemas_partitions_and_foreign_names_are_found(database: Database) -> None:
    database.run('CREATE SCHEMA sales; CREATE TABLE sales.o (id int PRIMARY KEY); CREATE TABLE sales."a.b" (id int)')
    database.run("CREATE TABLE p (id int, at date) PARTITION BY RANGE (at)")
    database.run("CREATE TABLE p1 PARTITION OF p FOR VALUES FROM ('2026-01-01') TO ('2027-01-01')")
    source = database.source()
    found = source.tables(["sales.*", "p", "sales.o", 'sales."a.b"'], {})
    assert sorted(found) == ["p", 'sales."a.b"', "sales.o"]
    assert all(isinstance(info, TableInfo) for info in found.values())
    missing = source.tables(["o"], {})["o"]
    assert isinstance(missing, SourceError)
    assert "sales.o" in missing.remedy
    in_sales = database.source(f"{database.url}?schema=sales")
    assert isinstance(in_sales.tables(["o"], {})["o"], TableInfo)


def test_what_has_no_pages_is_sampled_by_rows(database: Database) -> None:
    """Nor are pages of much use where few of their rows are looked for."""
    database.run("CREATE TABLE plain AS SELECT i AS id, i AS n FROM generate_series(1, 300000) i; ANALYZE plain")
    database.run('CREATE SCHEMA sales; CREATE TABLE sales."A b" (id int, n int) PARTITION BY RANGE (n)')
    database.run('CREATE TABLE p1 PARTITION OF sales."A b" FOR VALUES FROM (0) TO (1000000)')
    database.run('INSERT INTO sales."A b" SELECT * FROM plain')
    database.run("CREATE VIEW seen AS SELECT * FROM plain; CREATE MATERIALIZED VIEW kept AS SELECT * FROM plain")
    database.run("CREATE FOREIGN DATA WRAPPER none; CREATE SERVER far FOREIGN DATA WRAPPER none")
    database.run("CREATE TABLE mixed (id int, n int) PARTITION BY RANGE (n)")
    database.run("CREATE FOREIGN TABLE away PARTITION OF mixed FOR VALUES FROM (0) TO (1000000) SERVER far")
    source = database.source()
    assert isinstance(source, PostgresSource)
    top = Watermark(Kind.INTEGER, "300001")
    for name, by_pages in {"plain": True, 'sales."A b"': True, "kept": True, "seen": False}.items():
        table = replace(database.table(source, name, cursor="n", mode=Mode.APPEND, lookback=1), slice_rows=100_000)
        assert ("TABLESAMPLE" in source.sample(table, 0.4, 300_000)[0]) is by_pages
        assert len(source.slices(table, Window(None, top), 300_000, None)) == 3
        assert "TABLESAMPLE" not in source.sample(table, 0.4, 1000)[0]
    plain = database.table(source, "plain", cursor="n", mode=Mode.APPEND, lookback=1)
    for other in (replace(plain, query="SELECT * FROM plain"), replace(plain, source="public.mixed")):
        assert "random()" in source.sample(other, 0.4, 300_000)[1]


# --- Connections -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda url: url.replace("postgres:", "postgres:wrong"), "was refused"),
        (lambda url: url.rpartition("/")[0] + "/nowhere", "does not exist"),
        (lambda url: f"{url.rpartition(':')[0]}:1/x", "onnection"),
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
    with pytest.raises(ConfigError, match="sslmod") as caught:
        database.source(f"{database.url}?sslmod=require")
    assert "sslmode" in caught.value.remedy


def test_tls_settings_reach_both_drivers(database: Database) -> None:
    source = database.source(f"{database.url}?sslmode=require")
    with pytest.raises(ConnectError, match="SSL"):
        source.identity()
    assert isinstance(source, PostgresSource)
    assert source.reader.properties["sslmode"] == "require"
    assert source.reader.properties["password"] not in source.reader.url
    assert source.reader.properties["password"] not in repr(source.reader)


def test_a_lost_connection_is_transient_and_the_next_question_is_answered(database: Database) -> None:
    source = database.source()
    source.identity()
    database.run(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE application_name = 'strandline reader' AND datname = current_database()"
    )
    with pytest.raises(TransientError):
        source.identity()
    assert source.identity()


def test_a_connection_lost_while_spark_reads_is_transient(database: Database, spark: SparkSession) -> None:
    database.run("INSERT INTO t (v) VALUES (1)")
    source = database.source()
    table = database.table(source, "t", where="pg_terminate_backend(pg_backend_pid())")
    changes = source.changes(table, ALL)
    with pytest.raises(Exception, match="terminat") as caught:
        changes.frame(spark).collect()
    assert isinstance(changes.translate(caught.value), TransientError)


class Standby(Postgres):
    """A server that follows a primary which never writes to it: in recovery for ever, open to readers."""

    def _ready(self) -> bool:
        state = self.folder / "data" / "postmaster.pid"
        return super()._ready() or (state.exists() and state.read_text().split()[-1:] == ["standby"])


def test_a_standby_is_refused_because_it_does_not_see_its_primarys_transactions() -> None:
    with Standby() as server:
        with Database(server.url()) as primary:
            primary.run("CREATE TABLE t (id int PRIMARY KEY, at timestamptz NOT NULL)")
        server.halt()
        (server.folder / "data" / "standby.signal").touch()
        server.launch()
        with Database(server.url()) as standby:
            source = standby.source()
            table = standby.table(source, "t")
            with pytest.raises(SourceError, match="standby") as caught:
                source.horizons([table])
            assert "barrier: lookback" in caught.value.remedy
            assert not horizon(standby.source(barrier="lookback 10m"), table).proven

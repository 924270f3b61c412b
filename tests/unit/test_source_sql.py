"""What sources render: names, literals, predicates, zones. No server is needed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

import pytest

from strandline.core.errors import SourceError
from strandline.core.table import Column, Mode, Table
from strandline.core.watermark import Cursor, Kind, Watermark
from strandline.core.window import KeyRange, Slice, Window
from strandline.endpoint import Endpoint
from strandline.sources import mysql_session, names, postgres_session
from strandline.sources.dialect import Carried, Dialect, in_slice, refusal
from strandline.sources.jdbc import JdbcChanges, Reader, Tiles
from strandline.sources.mysql import server_identity
from strandline.sources.mysql_dialect import MySqlDialect
from strandline.sources.postgres_dialect import PostgresDialect
from strandline.sources.zones import age, local

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DIALECTS: list[Dialect] = [PostgresDialect(), MySqlDialect()]


_EVERYTHING = Slice(Window(None, Watermark(Kind.INTEGER, "1")))


def table(cursor: Cursor | None) -> Table:
    return Table("p", "t", "s.t", "t", "sync", Mode.MERGE, cursor, key=("id",))


def stamp(text: str) -> Watermark:
    return Watermark(Kind.TIMESTAMP, text)


@pytest.mark.parametrize("name", ["plain", "UPPER", "two words", "do.t", 'quo"te', "ünï", "a*b", "*", "[x]"])
def test_rendered_names_are_read_back(name: str) -> None:
    assert names.split(names.render("s", name)) == ("s", name)
    found = names.pattern(names.render("s", name))
    assert not found.wild
    assert found.matches("s", name, default="public")


@pytest.mark.parametrize("text", ["", ".", "a.", ".a", "a.b.c", '"a', 'a"b', '"a"b'])
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(SourceError, match="is not a table name"):
        names.pattern(text)


@pytest.mark.parametrize(
    ("pattern", "schema", "name", "matches"),
    [
        ("order*", "public", "orders", True),
        ("order*", "sales", "orders", False),
        ("*.orders", "sales", "orders", True),
        ("sales.*", "sales", "any.thing", True),
        ("sales.?", "sales", "ab", False),
        ('sales."*"', "sales", "ab", False),
        ("Orders", "public", "orders", False),
    ],
)
def test_globs_match_part_by_part(pattern: str, schema: str, name: str, matches: bool) -> None:
    assert names.pattern(pattern).matches(schema, name, default="public") is matches


def test_quotes_cannot_be_broken_out_of() -> None:
    postgres, mysql = DIALECTS
    assert postgres.quote('a"; DROP') == '"a""; DROP"'
    assert mysql.quote("a`; DROP") == "`a``; DROP`"
    assert mysql.string("\\'") == "'\\\\'''"


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_literals_keep_every_digit(dialect: Dialect) -> None:
    cursor = Cursor("at", Kind.TIMESTAMP)
    assert "2026-11-15 08:12:44.120003" in dialect.literal(cursor, stamp("2026-11-15 08:12:44.120003"))
    number = Cursor("id", Kind.INTEGER)
    assert dialect.literal(number, Watermark(Kind.INTEGER, str(2**63 - 1))) == str(2**63 - 1)
    assert dialect.literal(number, Watermark(Kind.INTEGER, "-1")) == "(-1)"


def test_a_slice_is_its_window_its_key_range_its_filter_and_its_nulls() -> None:
    cursor = Cursor("at", Kind.TIMESTAMP, zone="UTC")
    window = Window(stamp("2026-01-01 00:00:00"), stamp("2026-01-02 00:00:00"))
    keys = KeyRange("id", 5, None)
    part = Slice(window, keys=keys, read_from=stamp("2025-12-31 00:00:00"), nulls=True)
    assert in_slice(PostgresDialect(), replace(table(cursor), where="v > 1 -- x"), part) == (
        "(v > 1 -- x\n) AND (t.\"at\" >= '2025-12-31 00:00:00'::timestamp AND "
        't."at" < \'2026-01-02 00:00:00\'::timestamp OR t."at" IS NULL) AND t."id" >= 5'
    )
    assert in_slice(PostgresDialect(), table(None), Slice(window)) == "1 = 1"


def test_tiles_leave_no_gap() -> None:
    assert Tiles.cut("k", ["5", "9"], steady=True).conditions == (
        "p < 5 OR p IS NULL",
        "p >= 5 AND p < 9",
        "p >= 9",
    )
    assert Tiles.cut("k", [], steady=False) == Tiles()


@pytest.mark.parametrize(("width", "fetched"), [(0, "10000"), (1_000, "10000"), (20_000, "838"), (50 << 20, "100")])
def test_fewer_rows_come_at_a_time_where_they_are_large(width: int, fetched: str) -> None:
    """What a reader holds of the source is bounded by bytes, not by rows."""
    reader = postgres_session.reader(Endpoint.parse("postgresql://u@h/d"))
    assert JdbcOptions(reader, width).fetchsize == fetched
    streaming = mysql_session.reader(Endpoint.parse("mysql://u@h/d"))
    assert JdbcOptions(streaming, width).fetchsize == streaming.properties["fetchsize"]


class JdbcOptions:
    """Stands for Spark's `read.jdbc`, and keeps what it is told."""

    def __init__(self, reader: Reader, width: int) -> None:
        tiles = Tiles(fetched=reader.fetched(width))
        self.fetchsize = ""
        changes = JdbcChanges(reader, PostgresDialect(), table(None), _EVERYTHING, lambda: tiles)
        changes.read(cast("SparkSession", self), [Carried("1", "INT")])

    @property
    def read(self) -> JdbcOptions:
        return self

    def jdbc(self, *_: str, properties: dict[str, str], **__: list[str]) -> None:
        self.fetchsize = properties["fetchsize"]


@pytest.mark.parametrize(
    ("kind", "spark"),
    [
        ("bigint", "BIGINT"),
        ("numeric(38,10)", "DECIMAL(38,10)"),
        ("timestamp(3) with time zone", "TIMESTAMP"),
        ("timestamp without time zone", "TIMESTAMP_NTZ"),
        ("integer[]", "ARRAY<INT>"),
        ("character varying(3)[]", "ARRAY<STRING>"),
        ("numeric(5,2)[]", "STRING"),
        ("some_enum", "STRING"),
    ],
)
def test_postgres_types(kind: str, spark: str) -> None:
    assert PostgresDialect().carry(Column("c", kind)).spark == spark


@pytest.mark.parametrize("kind", ["numeric", "numeric(39,0)", "numeric(5,-2)", "numeric(2,5)"])
def test_postgres_numbers_no_decimal_holds(kind: str) -> None:
    with pytest.raises(SourceError, match='column "c"'):
        PostgresDialect().carry(Column("c", kind))


@pytest.mark.parametrize(
    ("kind", "spark"),
    [
        ("bigint(20) unsigned", "DECIMAL(20,0)"),
        ("int(10) unsigned zerofill", "BIGINT"),
        ("tinyint(1)", "TINYINT"),
        ("decimal(38,10)", "DECIMAL(38,10)"),
        ("enum('a,(b)','c')", "STRING"),
        ("bit(8)", "DECIMAL(20,0)"),
    ],
)
def test_mysql_types(kind: str, spark: str) -> None:
    assert MySqlDialect().carry(Column("c", kind)).spark == spark


@pytest.mark.parametrize(
    ("zone", "utc", "shown"),
    [
        ("Asia/Tokyo", "2026-07-01 12:00:00.120003", "2026-07-01 21:00:00.120003"),
        ("-03:30", "2026-07-01 12:00:00", "2026-07-01 08:30:00"),
        ("Europe/Berlin", "2026-07-01 12:00:00", "2026-07-01 14:00:00"),
        ("Europe/Berlin", "2026-10-24 23:59:59", "2026-10-25 01:59:59"),
        ("Europe/Berlin", "2026-10-25 00:30:00", "2026-10-25 02:00:00"),  # 02:30, and 02:00 is still to come again
        ("Europe/Berlin", "2026-10-25 01:30:00", "2026-10-25 02:30:00"),
        ("Europe/Berlin", "2026-03-29 01:00:00", "2026-03-29 03:00:00"),  # straight after the gap
        ("Antarctica/Troll", "2026-10-25 00:59:59", "2026-10-25 01:00:00"),  # two hours back
    ],
)
def test_no_time_is_passed_that_the_zones_clocks_will_show_again(zone: str, utc: str, shown: str) -> None:
    assert local(stamp(utc), zone) == stamp(shown)


def test_ages_are_told_in_words() -> None:
    assert age("2026-01-01 09:00:00", "Asia/Tokyo", "2026-01-01 00:03:00") == "3 minutes old"
    assert age("2026-01-01 09:00:00", "UTC", "2026-01-01 00:00:00") == "9 hours ahead"
    assert age("2026-01-01 00:00:00.5", "UTC", "2026-01-03 00:00:00") == "2 days old"


def test_a_guards_refusal_is_found_in_whatever_spark_says() -> None:
    said = 'PSQLException: ERROR: invalid input: "strandline refuses column at with the value infinity"\n\tat org.x'
    found = refusal(said, "char")
    assert found is not None
    assert found.message == "strandline refuses column at with the value infinity"
    assert "name::char" in found.remedy
    assert refusal("anything else", "char") is None


def test_drivers_errors_are_told_apart() -> None:
    gone = "x org.postgresql.util.PSQLException: FATAL: terminating connection due to administrator command\n\tat y"
    assert type(postgres_session.translate(gone)).__name__ == "TransientError"
    missing = 'org.postgresql.util.PSQLException: ERROR: relation "x" does not exist\n  Position: 3'
    assert type(postgres_session.translate(missing)).__name__ == "SourceError"
    assert postgres_session.translate("java.lang.OutOfMemoryError") is None


def test_a_guards_words_in_the_statement_that_failed_are_not_its_refusal() -> None:
    """Spark shows the statement with any error; only a value behind the words means that the guard stopped the read."""
    statement = "SELECT CASE WHEN x THEN 'strandline refuses column at with the value ' || t.\"at\" END"
    assert (
        refusal(f'ERROR: column t.gone does not exist\n{statement}\nraise_error(concat("value ", c2))', "text") is None
    )
    refused = f'invalid input syntax: "strandline refuses column at with the value infinity"\n{statement}'
    for text in (refused, f"{statement}\n{refused}"):
        found = refusal(text, "text")
        assert found is not None and found.message == "strandline refuses column at with the value infinity"


def test_two_servers_with_one_hardware_address_and_port_are_two() -> None:
    """As containers on two machines have them: MariaDB's own id is made of nothing else."""
    one = {"server_uid": "tVHz8Ba7", "hostname": "8d9f", "datadir": "/var/lib/mysql/"}
    assert server_identity(one) == server_identity(dict(one))
    assert server_identity(one) != server_identity({**one, "hostname": "c01a"})
    mysql = {"server_uuid": "88e4e8ea-be45-11e9-b3d0-000c29c8d0f8", "hostname": "db"}
    assert server_identity(mysql) == server_identity({**mysql, "hostname": "renamed"}), "it has an id of its own"

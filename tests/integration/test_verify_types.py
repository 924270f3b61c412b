"""Every type compares equal with its copy, and not with another value, on real PostgreSQL and MariaDB."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
from test_mysql_source import EXACT as MYSQL_EXACT
from test_mysql_source import TIMES as MYSQL_TIMES
from test_postgres_source import DATES, EXACT, TIMES
from verify_shop import Lake

from strandline.testing.servers import MariaDB
from strandline.verify.verdict import Answer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FLOATS = [
    0.1, 0.30000000000000004, -0.0, 1 / 3, -1e-7, 123456789.123456789, 2.0**53 + 2, 1e16, -1e22, 1e100, 4.5e-100,
    1.7976931348623157e308, 2.2250738585072014e-308, 1e-300, 5e-17, 9007199254740991.0, 0.1 + 2**40,
]  # fmt: skip
ROWS = 60  # more than columns


@pytest.fixture
def lake(pg_database: str, tmp_path: Path, spark: SparkSession) -> Iterator[Lake]:
    lake = Lake(pg_database, tmp_path, spark)
    columns = [*(kind for kind, _, _ in EXACT), "timestamp", "timestamptz", "date", "double precision", "real"]
    names = ", ".join(f"c{at}" for at, _ in enumerate(columns))
    with psycopg.connect(pg_database, autocommit=True) as database, psycopg.ClientCursor(database) as cursor:
        cursor.execute(b"CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE DOMAIN posint AS int CHECK (VALUE > 0)")
        listed = ", ".join(f"c{at} {kind}" for at, kind in enumerate(columns))
        cursor.execute(f"CREATE TABLE e (id int PRIMARY KEY, at timestamptz NOT NULL DEFAULT now(), {listed})".encode())
        for at in range(ROWS):
            stamp, day = TIMES[at % len(TIMES)], DATES[at % len(DATES)]
            values = [*(text for _, text, _ in EXACT), stamp, f"{stamp}+00", day, FLOATS[at % len(FLOATS)]]
            marks = ", ".join("%s" for _ in values)
            insert = f"INSERT INTO e (id, {names}) VALUES ({at}, {marks}, 0.1)"
            cursor.execute(insert.encode(), values)
        cursor.execute(b"INSERT INTO e (id) VALUES (99)")
    lake.tables = [{"name": "e", "cursor": "at"}]
    lake.sync()
    yield lake


def test_every_type_of_postgresql_compares_equal_and_each_change_is_seen(lake: Lake) -> None:
    verdict = lake.verify()
    assert (verdict.answer, verdict.rows, verdict.notes) == (Answer.EQUAL, ROWS + 1, ())
    _each_change_is_seen(lake)


@pytest.fixture
def maria_lake(mariadb: MariaDB, mariadb_database: str, tmp_path: Path, spark: SparkSession) -> Lake:
    lake = Lake(mariadb_database, tmp_path, spark)
    columns = [*(kind for kind, _, _ in MYSQL_EXACT), "datetime(6)", "datetime(3)", "date", "double", "float"]
    columns.append("varchar(20) character set latin1")
    names, marks = ", ".join(f"c{at}" for at, _ in enumerate(columns)), ", ".join("%s" for _ in columns)
    with mariadb.connect(mariadb_database.rpartition("/")[2]) as database, database.cursor() as cursor:
        listed = ", ".join(f"c{at} {kind}" for at, kind in enumerate(columns))
        cursor.execute(f"CREATE TABLE e (id int PRIMARY KEY, at timestamp(6) NOT NULL DEFAULT NOW(6), {listed})")
        for at in range(ROWS):
            stamp = MYSQL_TIMES[at % len(MYSQL_TIMES)]
            row = [
                *(each for _, each, _ in MYSQL_EXACT),
                stamp,
                stamp[:23],
                stamp[:10],
                repr(FLOATS[at % len(FLOATS)]),
                "0.1",
                "Größe",
            ]
            cursor.execute(f"INSERT INTO e (id, {names}) VALUES ({at}, {marks})", row)
        cursor.execute("INSERT INTO e (id) VALUES (99)")
    lake.tables = [{"name": "e", "cursor": "at"}]
    lake.sync()
    return lake


def test_every_type_of_mariadb_compares_equal_and_each_change_is_seen(maria_lake: Lake) -> None:
    verdict = maria_lake.verify()
    assert (verdict.answer, verdict.rows, verdict.notes) == (Answer.EQUAL, ROWS + 1, ())
    _each_change_is_seen(maria_lake)


def _each_change_is_seen(lake: Lake) -> None:
    """In each row another column is changed, by the least it can be, and in the last a NULL is now an empty text."""
    fields = [field for field in lake.spark.table(lake.target("e")).schema.fields if field.name not in ("id", "at")]
    least = {
        "double": "CASE WHEN abs({0}) = double('Infinity') THEN 0D ELSE {0} + abs({0}) * 1.2e-16D + 5e-324D END",
        "string": "concat({0}, ' ')",
        "boolean": "NOT {0}",
        "binary": "{0} || x'00'",
    }
    changes = []
    for number, field in enumerate(fields):
        kind = field.dataType.simpleString()
        changed = least.get(kind, "{0} - 1" if kind.endswith("int") else "NULL").format(field.name)
        if kind.endswith("int"):
            changed = f"CASE WHEN {field.name} < 0 THEN {field.name} + 1 ELSE {changed} END"
        empty = "WHEN id = 99 THEN ''" if kind == "string" else ""
        changes.append(
            f"{field.name} = CASE {empty} WHEN id % {len(fields)} = {number} AND id < 99 THEN {changed} "
            f"ELSE {field.name} END"
        )
    lake.damage(f"UPDATE {{e}} SET {', '.join(changes)}")
    verdict = lake.verify()
    assert (verdict.differences.different, verdict.rows) == (ROWS + 1, ROWS + 1)

"""What verify compares of tables that are not plain copies, and the numbers that rows are summed by."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from verify_shop import Lake

from strandline.core.compare import Form
from strandline.core.table import Column
from strandline.sinks import delta_canonical
from strandline.sources.dialect import marked
from strandline.sources.mysql_dialect import MySqlDialect
from strandline.sources.postgres_dialect import PostgresDialect
from strandline.testing.servers import MariaDB
from strandline.verify.canonical import row_number
from strandline.verify.verdict import Answer, Verdict

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NUMBERS = [f"n{at}" for at in range(20)]  # more than are weighed together
ODD = [  # the first and the last that a copy can hold, and the edges of what a float holds exactly
    "0001-01-01", "1582-10-04", "1901-12-31 23:59:59.999999", "2099-12-31 23:59:59.999999",
    "2242-03-16 12:56:32.000001", "9999-12-31",
]  # fmt: skip
TEXTS = ["plain", "", "Größe 🐟", "a\\b'c", "x" * 5000]
CREATE = f"""
CREATE TABLE wide (id int PRIMARY KEY, at timestamptz NOT NULL DEFAULT now(), name text NOT NULL DEFAULT 'same',
  day date, stamp timestamptz, local timestamp, yes boolean, {", ".join(f"{name} bigint" for name in NUMBERS)});
INSERT INTO wide (id, n0, n1, yes, n19) SELECT i, i, 1000 - i, i % 2 = 0, -9223372036854775808 + i
  FROM generate_series(0, 40) i;
CREATE TABLE days (id int PRIMARY KEY, day date NOT NULL, name text);
INSERT INTO days SELECT i, date '2026-01-01' + i % 5, 'd' FROM generate_series(1, 20) i;
CREATE TABLE log (id bigserial PRIMARY KEY, name text);
INSERT INTO log (name) SELECT 'l' || i FROM generate_series(1, 20) i;
CREATE TABLE gaps (id int PRIMARY KEY, at timestamptz, name text);
INSERT INTO gaps SELECT i, CASE WHEN i > 5 THEN now() END, 'g' FROM generate_series(1, 20) i;
CREATE TABLE moving (id int PRIMARY KEY, at timestamptz NOT NULL DEFAULT now(), old text, name text);
INSERT INTO moving SELECT i, now(), 'o', 'm' FROM generate_series(1, 20) i;
CREATE TABLE shaped (id int PRIMARY KEY, at timestamptz NOT NULL DEFAULT now(), name text);
INSERT INTO shaped SELECT i, now(), 's' FROM generate_series(1, 20) i;
"""


def louder(frame: DataFrame) -> DataFrame:
    return frame.selectExpr("id", "at", "upper(name) AS loud")


class Town(Lake):
    def execute(self, statement: str) -> None:
        with psycopg.connect(self.url, autocommit=True) as database:
            database.execute(statement.encode())

    def verdicts(self) -> dict[str, Verdict]:
        with self.load() as project:
            return {verdict.table: verdict for verdict in project.verify("shop", spark=self.spark)}


@pytest.fixture
def town(pg_database: str, tmp_path: Path, spark: SparkSession) -> Iterator[Town]:
    town = Town(pg_database, tmp_path, spark)
    town.execute(CREATE)
    for at, stamp in enumerate(ODD):
        town.execute(f"UPDATE wide SET day = '{stamp}', stamp = '{stamp}+00', local = '{stamp}' WHERE id = {at}")
    town.tables = [
        {"name": "wide", "cursor": "at"},
        {"name": "days", "cursor": "day", "zone": "UTC"},
        {"name": "log", "cursor": "id"},
        {"name": "gaps", "cursor": "at", "nulls": "include"},
        {"name": "moving", "cursor": "at", "shared": True},
        {"name": "shaped", "cursor": "at", "transform": f"{__name__}:louder"},
    ]
    town.sync()
    yield town


def test_every_kind_of_table_is_equal_and_what_is_not_compared_is_said(town: Town) -> None:
    town.execute("ALTER TABLE moving DROP COLUMN old, ADD COLUMN fresh text")
    found = town.verdicts()
    assert {name: (verdict.answer, verdict.error) for name, verdict in found.items()} == dict.fromkeys(
        found, (Answer.EQUAL, None)
    )
    assert (found["wide"].rows, found["days"].rows, found["log"].rows) == (41, 20, 20)
    said = {name: " | ".join(verdict.notes) for name, verdict in found.items()}
    assert said["wide"] == said["days"] == said["log"] == ""
    assert "rows without a cursor value are not compared" in said["gaps"]
    assert "only keys are compared" in said["shaped"]
    for note in ("no longer in the source, not compared: old", "not compared: fresh", "may be another's"):
        assert note in said["moving"]

    town.damage("DELETE FROM {days} WHERE id = 3")
    town.damage("DELETE FROM {log} WHERE id = 7")
    town.damage("UPDATE {gaps} SET name = 'other' WHERE id IN (2, 9)")
    town.damage("INSERT INTO {moving} (id, at, name) VALUES (99, now(), 'of another')")
    town.damage("UPDATE {shaped} SET loud = 'other' WHERE id = 4")
    town.damage("DELETE FROM {shaped} WHERE id = 5")
    wrong = {name: verdict.differences for name, verdict in town.verdicts().items()}
    assert (wrong["days"].missing, wrong["log"].missing, wrong["gaps"].different) == (1, 1, 1)
    assert (wrong["moving"].extra, wrong["shaped"].missing, wrong["shaped"].different) == (0, 1, 0)


def test_numbers_swapped_between_rows_moved_between_columns_or_beyond_any_copy_are_seen(town: Town) -> None:
    town.tables = town.tables[:1]
    town.damage(
        """
        UPDATE {wide} SET
          n0 = CASE id WHEN 12 THEN n0 + 10 ELSE n0 END,
          n1 = CASE WHEN id IN (10, 11) THEN 1000 - (21 - id) -- one has what the other had
                    WHEN id IN (12, 14) THEN n1 - 10 WHEN id = 13 THEN n1 + 10 ELSE n1 END,
          n7 = CASE id WHEN 15 THEN 0 END, -- it was NULL
          n19 = CASE id WHEN 16 THEN n19 + 1 ELSE n19 END,
          yes = CASE id WHEN 17 THEN NOT yes ELSE yes END,
          stamp = CASE WHEN id IN (0, 2, 3, 4) THEN stamp + INTERVAL 0.000001 SECOND ELSE stamp END,
          day = CASE id WHEN 5 THEN day - 1 ELSE day END
        """
    )
    town.execute("UPDATE wide SET stamp = 'infinity', day = '-infinity', local = '-infinity' WHERE id = 18")
    verdict = town.verify()
    assert (verdict.error, verdict.differences.different, verdict.differences.missing) == (None, 14, 0)


@pytest.mark.parametrize("hash", ["crc32", "md5"])
def test_every_system_makes_the_same_number_of_the_same_texts(
    hash: str, pg_database: str, mariadb: MariaDB, spark: SparkSession
) -> None:
    joined = "\x1f".join(TEXTS).encode()
    digest = hashlib.md5(joined, usedforsecurity=False).hexdigest()
    expected = zlib.crc32(joined) if hash == "crc32" else int(digest[:8], 16)
    numbers = [f"({number})" for number in (-(10**12), *range(2**62, 2**62 + 30))]
    rows = [row_number(numbers, ["{0}"], None)]
    rows += [row_number(numbers, ["{0}", "{0}"], f"({key})") for key in (-(2**62), 2**40, 2**62)]
    row = ", ".join(rows)
    postgres, mysql = PostgresDialect(), MySqlDialect()
    texts = {dialect.name: [dialect.string(text) for text in TEXTS] for dialect in (postgres, mysql)}
    found: list[Any] = []
    with psycopg.connect(pg_database) as database:
        number = postgres.number(texts[postgres.name], hash)
        found.append(database.execute(f"SELECT {number}, {row.format(number)}".encode()).fetchone())
    with mariadb.connect("mysql") as connection, connection.cursor() as cursor:
        number = mysql.number(texts[mysql.name], hash)
        cursor.execute(f"SELECT {number}, {row.format(number)}")
        found.append(cursor.fetchone())
    quoted = [f"'{text}'" for text in (each.replace("\\", "\\\\").replace("'", "\\'") for each in TEXTS)]
    number = delta_canonical.number(quoted, hash)
    found.append(tuple(spark.sql(f"SELECT {number}, {row.format(number)}").first() or ()))
    assert {each[0] for each in found} == {expected}
    assert len({tuple(map(int, each[1:])) for each in found}) == 1


def test_columns_that_may_be_null_are_marked_and_others_are_not() -> None:
    assert marked(PostgresDialect(), Column("a", "text", nullable=False), Form("text")) == 't."a"'
    assert "COALESCE" in marked(PostgresDialect(), Column("a", "text"), Form("text"))

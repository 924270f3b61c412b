"""Every type arrives in a database exactly, or is refused by name: through a real sync, and as `verify` sees it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from test_mysql_source import EXACT as MYSQL_EXACT
from test_postgres_source import DATES, EXACT, TIMES
from test_verify_types import FLOATS
from verify_shop import Lake

from strandline.testing.servers import Postgres
from strandline.verify.verdict import Answer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 20
Execute = Callable[..., list[tuple[Any, ...]]]
PG_TYPES = [kind for kind, _, _ in EXACT] + ["timestamp", "timestamptz", "date", "double precision", "real"]
MYSQL_TYPES = [kind for kind, _, _ in MYSQL_EXACT] + ["datetime(6)", "datetime(3)", "timestamp(6)", "date", "double"]


class Copied(Lake):
    """A database and its copy in another one."""

    def __init__(self, url: str, target: str, folder: Path, spark: Any) -> None:
        super().__init__(url, folder, spark)
        self.copy = target

    @property
    def target_url(self) -> str:
        return self.copy


@pytest.fixture
def other_pg_database(postgres: Postgres) -> Iterator[str]:
    name = f"t_{uuid.uuid4().hex[:12]}"
    with postgres.connect() as connection:
        connection.execute(f"CREATE DATABASE {name}")
        yield postgres.url(name)
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def asked(url: str) -> Execute:
    def execute(sql: str, values: Any = None) -> list[tuple[Any, ...]]:
        with psycopg.connect(url, autocommit=True) as database, psycopg.ClientCursor(database) as cursor:
            cursor.execute(sql.encode(), values)
            return cursor.fetchall() if cursor.description else []

    return execute


def fill_postgres(execute: Execute) -> None:
    names = ", ".join(f"c{at}" for at, _ in enumerate(PG_TYPES))
    execute("CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE DOMAIN posint AS int CHECK (VALUE > 0)")
    listed = ", ".join(f"c{at} {kind}" for at, kind in enumerate(PG_TYPES))
    execute(f"CREATE TABLE e (id int PRIMARY KEY, at timestamptz NOT NULL DEFAULT now(), {listed})")
    execute("COMMENT ON TABLE e IS 'every ''type'''; COMMENT ON COLUMN e.c0 IS 'the first'")
    for at in range(ROWS):
        stamp, day = TIMES[at % len(TIMES)], DATES[at % len(DATES)]
        values = [*(text for _, text, _ in EXACT), stamp, f"{stamp}+00", day, FLOATS[at % len(FLOATS)], 0.1]
        execute(f"INSERT INTO e (id, {names}) VALUES ({at}, {', '.join('%s' for _ in values)})", values)
    execute("INSERT INTO e (id) VALUES (99)")


def test_postgresql_to_postgresql_keeps_types_values_and_comments(
    pg_database: str, other_pg_database: str, tmp_path: Path, spark: SparkSession
) -> None:
    here, there = asked(pg_database), asked(other_pg_database)
    fill_postgres(here)
    there("CREATE TYPE mood AS ENUM ('sad', 'ok')")
    copied = Copied(pg_database, other_pg_database, tmp_path, spark)
    copied.tables = [{"name": "e", "cursor": "at"}]
    copied.sync()
    names = ", ".join(f"c{at}::text" for at, _ in enumerate(PG_TYPES))
    values = f"SELECT id, at, {names} FROM e ORDER BY id"
    assert there(values) == here(values)
    types = (
        "SELECT attname, CASE typtype WHEN 'd' THEN format_type(typbasetype, typtypmod) "
        "ELSE format_type(atttypid, atttypmod) END, col_description(attrelid, attnum), obj_description(attrelid) "
        "FROM pg_attribute JOIN pg_type t ON t.oid = atttypid WHERE attrelid = 'e'::regclass AND attnum > 0"
    )
    assert there(types) == here(types)
    verdict = copied.verify()
    assert (verdict.answer, verdict.rows, verdict.notes) == (Answer.EQUAL, ROWS + 1, ())

"""Every type arrives in a database exactly, or is refused by name: through a real sync, and as `verify` sees it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pymysql
import pytest
from test_mysql_source import EXACT as MYSQL_EXACT
from test_mysql_source import TIMES as MYSQL_TIMES
from test_postgres_source import DATES, EXACT, TIMES
from test_verify_types import FLOATS
from verify_shop import Lake

from strandline.core.errors import StrandlineError
from strandline.endpoint import Endpoint
from strandline.testing.servers import MariaDB, Postgres
from strandline.verify.verdict import Answer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 20
IN_RANGE = "2026-10-25 01:30:00.123457"  # of MySQL's TIMESTAMP
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


@pytest.fixture
def other_mariadb_database(mariadb: MariaDB) -> Iterator[str]:
    name = f"t_{uuid.uuid4().hex[:12]}"
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name}")
        yield mariadb.url(name)
        cursor.execute(f"DROP DATABASE {name}")


def asked(url: str) -> Execute:
    """A way to ask a database anything."""
    end = Endpoint.parse(url)

    def execute_mysql(sql: str, values: Any = None) -> list[tuple[Any, ...]]:
        login: dict[str, Any] = {"host": end.host, "port": end.port, "user": end.user, "password": end.password}
        with pymysql.connect(**login, database=end.path, autocommit=True) as database, database.cursor() as cursor:
            cursor.execute(sql, values)
            return list(cursor.fetchall())

    def execute(sql: str, values: Any = None) -> list[tuple[Any, ...]]:
        with psycopg.connect(url, autocommit=True) as database, psycopg.ClientCursor(database) as cursor:
            cursor.execute(sql.encode(), values)
            return cursor.fetchall() if cursor.description else []

    return execute if end.scheme == "postgresql" else execute_mysql


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


def fill_mariadb(execute: Execute) -> None:
    names = ", ".join(f"c{at}" for at, _ in enumerate(MYSQL_TYPES))
    listed = ", ".join(f"c{at} {kind} NULL" for at, kind in enumerate(MYSQL_TYPES))
    execute(
        f"CREATE TABLE e (id int PRIMARY KEY, at timestamp(6) NOT NULL DEFAULT NOW(6) COMMENT 'it''s', {listed}) "
        "COMMENT = 'every type'"
    )
    for at in range(ROWS):
        stamp, double = MYSQL_TIMES[at % len(MYSQL_TIMES)], repr(FLOATS[at % len(FLOATS)])
        values = [*(each for _, each, _ in MYSQL_EXACT), stamp, stamp[:23], IN_RANGE, stamp[:10], double]
        execute(f"INSERT INTO e (id, {names}) VALUES ({at}, {', '.join('%s' for _ in values)})", values)
    execute("INSERT INTO e (id) VALUES (99)")


@pytest.mark.parametrize("copy", [True, False])
def test_postgresql_to_postgresql_keeps_types_values_and_comments(
    pg_database: str, other_pg_database: str, tmp_path: Path, spark: SparkSession, copy: bool
) -> None:
    here, there = asked(pg_database), asked(other_pg_database)
    fill_postgres(here)
    there("CREATE TYPE mood AS ENUM ('sad', 'ok')")
    copied = Copied(pg_database, f"{other_pg_database}?copy={copy}", tmp_path, spark)
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


def test_mariadb_to_mariadb_keeps_types_values_and_comments(
    mariadb_database: str, other_mariadb_database: str, tmp_path: Path, spark: SparkSession
) -> None:
    here, there = asked(mariadb_database), asked(other_mariadb_database)
    fill_mariadb(here)
    copied = Copied(mariadb_database, other_mariadb_database, tmp_path, spark)
    copied.tables = [{"name": "e", "cursor": "at"}]
    copied.sync()
    values = "SELECT * FROM e ORDER BY id"
    assert there(values) == here(values)
    types = (
        "SELECT COLUMN_NAME, COLUMN_TYPE, COLUMN_COMMENT, (SELECT TABLE_COMMENT FROM information_schema.TABLES t "
        "WHERE t.TABLE_SCHEMA = c.TABLE_SCHEMA AND t.TABLE_NAME = 'e') FROM information_schema.COLUMNS c "
        "WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = 'e' ORDER BY ORDINAL_POSITION"
    )
    assert there(types) == here(types)
    verdict = copied.verify()
    assert (verdict.answer, verdict.rows, verdict.notes) == (Answer.EQUAL, ROWS + 1, ())


def test_mariadb_to_postgresql_keeps_values(
    mariadb_database: str, pg_database: str, tmp_path: Path, spark: SparkSession
) -> None:
    fill_mariadb(asked(mariadb_database))
    copied = Copied(mariadb_database, pg_database, tmp_path, spark)
    copied.tables = [{"name": "e", "cursor": "at"}]
    copied.sync()
    verdict = copied.verify()
    assert (verdict.answer, verdict.rows, verdict.notes) == (Answer.EQUAL, ROWS + 1, ())
    there = asked(pg_database)
    unsigned = MYSQL_TYPES.index("bigint unsigned")
    assert there(f"SELECT c{unsigned}::text FROM e WHERE id = 1") == [(str(2**64 - 1),)]


def test_postgresql_to_mariadb_keeps_values_and_microseconds(
    pg_database: str, mariadb_database: str, tmp_path: Path, spark: SparkSession
) -> None:
    here, there = asked(pg_database), asked(mariadb_database)
    fill_postgres(here)
    zoned = PG_TYPES.index("timestamptz")
    here(f"UPDATE e SET c{zoned} = '{IN_RANGE}+00', at = '{IN_RANGE}+00'")
    arrays = [
        at for at, kind in enumerate(PG_TYPES) if kind in ("int[]", "bigint[]", "text[]", "boolean[]", "float8[]")
    ]
    infinite = [at for at, (_, text, _) in enumerate(EXACT) if "Infinity" in text]
    copied = Copied(pg_database, mariadb_database, tmp_path, spark)
    copied.tables = [{"name": "e", "cursor": "at"}]
    with pytest.raises(StrandlineError) as refused:
        copied.sync()
    assert f'column "c{arrays[0]}" (array<int>) cannot be stored in MySQL' in str(refused.value)
    kept = [f"c{at}" for at, _ in enumerate(PG_TYPES) if at not in (*arrays, *infinite)]
    copied.folder = tmp_path / "again"
    copied.folder.mkdir()
    copied.tables = [{"name": "e", "cursor": "at", "columns": ["id", "at", *kept]}]
    copied.sync()
    verdict = copied.verify()
    assert (verdict.answer, verdict.rows, verdict.notes) == (Answer.EQUAL, ROWS + 1, ())
    times = there(f"SELECT CAST(at AS CHAR), CAST(c{zoned} AS CHAR), CAST(c{zoned - 1} AS CHAR) FROM e WHERE id = 1")
    assert times == [(IN_RANGE, IN_RANGE, TIMES[1])]

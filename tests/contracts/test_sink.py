"""The Sink contract on every sink there is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg.rows import dict_row
from pymysql.cursors import DictCursor

from strandline.core.errors import ConfigError
from strandline.core.table import Table
from strandline.endpoint import Endpoint
from strandline.sinks import open_sink
from strandline.testing.servers import MariaDB
from strandline.testing.sink import Connect, Read, Row, SinkContract

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class TestDeltaSink(SinkContract):
    @pytest.fixture
    def connect(self, tmp_path: Path, spark: SparkSession) -> Connect:
        return lambda: open_sink(Endpoint.parse(f"delta:{tmp_path}/the lake"), lambda: spark)

    @pytest.fixture
    def read(self, tmp_path: Path, spark: SparkSession) -> Read:
        def rows(table: Table) -> list[Row]:
            folder = tmp_path / "the lake" / Path(*table.target.split("."))
            return [row.asDict() for row in spark.read.format("delta").load(str(folder)).collect()]

        return rows


class TestPostgresSink(SinkContract):
    keys_enforced = True

    @pytest.fixture
    def connect(self, pg_database: str, spark: SparkSession) -> Iterator[Connect]:
        with psycopg.connect(pg_database, autocommit=True) as connection:
            connection.execute("CREATE SCHEMA shop")
        with ExitStack() as opened:
            yield lambda: opened.enter_context(closing(open_sink(Endpoint.parse(pg_database), lambda: spark)))

    @pytest.fixture
    def read(self, pg_database: str) -> Read:
        def rows(table: Table) -> list[Row]:
            with psycopg.connect(pg_database, row_factory=dict_row) as connection:
                return connection.execute(f"SELECT * FROM {table.target}").fetchall()

        return rows


class TestMySqlSink(SinkContract):
    keys_enforced = True

    @pytest.fixture
    def connect(self, mariadb: MariaDB, spark: SparkSession) -> Iterator[Connect]:
        with mariadb.connect() as connection, connection.cursor() as cursor, ExitStack() as opened:
            cursor.execute("CREATE DATABASE shop")
            endpoint = Endpoint.parse(mariadb.url("shop"))
            yield lambda: opened.enter_context(closing(open_sink(endpoint, lambda: spark)))
            cursor.execute("DROP DATABASE shop")

    @pytest.fixture
    def read(self, mariadb: MariaDB) -> Read:
        def rows(table: Table) -> list[Row]:
            with mariadb.connect("shop") as connection, connection.cursor(DictCursor) as cursor:
                cursor.execute(f"SELECT * FROM {table.target}")
                return list(cursor.fetchall())

        return rows


def test_a_target_cannot_be_just_anything() -> None:
    def no_spark() -> SparkSession:
        raise AssertionError("no session is needed to refuse")

    with pytest.raises(ConfigError, match="sqlite"):
        open_sink(Endpoint.parse("sqlite:///x.db"), no_spark)

"""What Spark's readers are told reaches the database's driver: a setting that a driver ignores is silent."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from strandline.core.table import Mode, Table, TableInfo
from strandline.core.watermark import Kind, Watermark
from strandline.core.window import Slice, Window
from strandline.endpoint import Endpoint
from strandline.sources import open_source
from strandline.sources.database import DatabaseSource
from strandline.testing.servers import MariaDB

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def read(url: str, sql: str, spark: SparkSession) -> dict[str, object]:
    """The one row of a query, read as a sync reads."""
    source = open_source(Endpoint.parse(url), guard=timedelta(0), barrier=None, readers=1)
    assert isinstance(source, DatabaseSource)
    try:
        info = source.tables([], {"q": sql})["q"]
        assert isinstance(info, TableInfo)
        table = source.resolve(Table("p", "q", "q", "q", "sync", Mode.SNAPSHOT, None, query=sql), info, None)
        whole = Slice(Window(None, Watermark(Kind.TIMESTAMP, "2030-01-01 00:00:00")))
        (row,) = source.changes(table, whole).frame(spark).collect()
    finally:
        source.close()
    found: dict[str, object] = row.asDict()
    return found


def test_postgresql_readers_are_named_read_only_and_in_the_schema_asked_for(
    pg_database: str, spark: SparkSession
) -> None:
    sql = (
        "SELECT current_setting('application_name') AS name, current_setting('transaction_read_only') AS closed, "
        "current_setting('TimeZone') AS zone, current_schema()::text AS place"
    )
    told = read(f"{pg_database}?schema=pg_catalog", sql, spark)
    assert told == {"name": "strandline reader", "closed": "on", "zone": "UTC", "place": "pg_catalog"}


def test_mariadb_readers_are_in_utc_and_strict_whatever_the_server_is(
    mariadb: MariaDB, mariadb_database: str, spark: SparkSession
) -> None:
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET GLOBAL time_zone = '+09:00'")
        try:
            sql = "SELECT @@session.time_zone AS zone, @@session.sql_mode LIKE '%STRICT_ALL_TABLES%' AS strict"
            told = read(mariadb_database, sql, spark)
        finally:
            cursor.execute("SET GLOBAL time_zone = '+00:00'")
    assert told == {"zone": "+00:00", "strict": 1}

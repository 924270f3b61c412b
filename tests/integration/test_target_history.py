"""`history: target`: every sync as a row in the target, for the queries that people watch it with."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from lake_shop import Shop

from strandline.core.errors import ConfigError
from strandline.core.events import Warned
from strandline.core.position import Status
from strandline.testing.servers import MariaDB, Postgres

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RECENT = "SELECT * FROM strandline_history ORDER BY SYNC_RUN_ID DESC LIMIT 20"
FAILED = "SELECT SYNC_RUN_ID, ERROR_MESSAGE FROM strandline_history WHERE SYNC_STATUS = 'FAILED'"
DAILY = """
SELECT
    DATE(SYNC_START_TIMESTAMP) AS SYNC_DATE,
    COUNT(*) AS TOTAL_RUNS,
    SUM(CASE WHEN SYNC_STATUS = 'SUCCESS' THEN 1 ELSE 0 END) AS SUCCESS_COUNT,
    SUM(CASE WHEN SYNC_STATUS = 'FAILED' THEN 1 ELSE 0 END) AS FAILED_COUNT,
    SUM(ROWS_INSERTED) AS TOTAL_INSERTED,
    SUM(ROWS_UPDATED) AS TOTAL_UPDATED,
    AVG({seconds}) AS AVG_DURATION_SEC
FROM strandline_history
WHERE SYNC_STATUS IN ('SUCCESS', 'FAILED')
GROUP BY DATE(SYNC_START_TIMESTAMP)
ORDER BY SYNC_DATE DESC"""
WATERMARK = "SELECT MAX(WATERMARK_TO) FROM strandline_history WHERE SYNC_STATUS = 'SUCCESS'"
SECONDS = {
    "postgres": "EXTRACT(EPOCH FROM SYNC_END_TIMESTAMP - SYNC_START_TIMESTAMP)",
    "mariadb": "TIMESTAMPDIFF(SECOND, SYNC_START_TIMESTAMP, SYNC_END_TIMESTAMP)",
}


class Watched(Shop):
    """The shop kept in step with a database that is watched there."""

    def __init__(self, url: str, folder: Path, spark: SparkSession, kind: str, target: str, there: Any) -> None:
        super().__init__(url, folder, spark)
        self.pipeline |= {"target": target, "history": "target"}
        self.kind = kind
        self.there = there

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        with self.there.cursor() as cursor:
            cursor.execute(sql)
            return list(cursor.fetchall()) if cursor.description else []


@pytest.fixture(params=["postgres", "mariadb"])
def shop(request: pytest.FixtureRequest, pg_database: str, tmp_path: Path, spark: SparkSession) -> Iterator[Watched]:
    name, kind = f"t_{uuid.uuid4().hex[:12]}", request.param
    server: Postgres | MariaDB = request.getfixturevalue(kind)
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name}".encode() if kind == "postgres" else f"CREATE DATABASE {name}")
        with server.connect(name) as there:
            shop = Watched(pg_database, tmp_path, spark, kind, server.url(name), there)
            yield shop
            shop.close()


def test_the_usual_queries_find_every_sync(shop: Watched) -> None:
    shop.insert(1, 2)
    shop.sync()
    shop.update(2, "paid")
    shop.insert(3)
    shop.sync()
    shop.execute("ALTER TABLE orders DROP updated_at")
    failed = shop.one()
    assert failed.status is Status.FAILED

    assert [row[0] for row in shop.rows(RECENT)] == [3, 2, 1]
    ((number, error),) = shop.rows(FAILED)
    assert (number, "updated_at" in error) == (3, True)
    ((_, total, good, bad, inserted, updated, seconds),) = shop.rows(DAILY.format(seconds=SECONDS[shop.kind]))
    assert (total, good, bad, inserted, updated) == (3, 2, 1, 3, 1)
    assert seconds is not None
    ((latest,),) = shop.rows(WATERMARK)
    with shop.load() as project:
        (position,) = project.books.positions().values()
    assert position.watermark is not None
    assert f"{latest:%Y-%m-%d %H:%M:%S}" == position.watermark.text[:19]


def test_a_history_that_cannot_be_written_is_told_and_the_rows_are_in(shop: Watched) -> None:
    shop.rows("CREATE TABLE strandline_history (something int)")
    shop.insert(1)
    assert shop.one().status is Status.COMPLETED
    assert any("history was not written" in event.message for event in shop.events if isinstance(event, Warned))


def test_a_lake_has_no_such_history(pg_database: str, tmp_path: Path) -> None:
    shop = Shop(pg_database, tmp_path)
    shop.pipeline["history"] = "target"
    with pytest.raises(ConfigError, match="needs a database as target"):
        shop.sync()
    shop.close()

"""Spark to a staging table beside plain Spark JDBC without batching options: the same rows, one warm session.

python benchmarks/staging.py [--rows N] [--rounds N] [--database postgresql|mariadb]

Twice: Spark's write alone, and all of it, the table made, counted and dropped.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness import compare, save

from strandline.core.batch import Batch
from strandline.core.table import Column, Mode, Table
from strandline.core.watermark import Kind, Watermark
from strandline.endpoint import Endpoint
from strandline.sinks.mysql import MySqlTarget
from strandline.sinks.postgres import PostgresTarget
from strandline.sinks.sql_dialect import Field, Place
from strandline.sinks.sql_stage import Staging
from strandline.spark.session import local_session, stop
from strandline.testing.servers import MariaDB, Postgres
from strandline.testing.sink import RowChanges

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ORDERS = """
SELECT id, CAST(id % 100000 AS INT) AS customer,
  element_at(array('new', 'paid', 'sent', 'done'), CAST(1 + id % 4 AS INT)) AS status,
  CAST(id % 100000 / 100.0 AS DECIMAL(12,2)) AS amount, concat('note ', id) AS note,
  timestamp_micros(1790000000000000 + id) AS updated_at FROM range({rows})"""
OURS, PLAIN = "strandline", "plain Spark JDBC"
TABLE = Table("bench", "orders", "orders", "orders", "sync", Mode.APPEND, None)


@dataclass
class Bench:
    """One set of rows and a database to stage it in."""

    database: PostgresTarget | MySqlTarget
    rows: DataFrame
    count: int

    def ours(self) -> float:
        """Seconds of the write."""
        now = Watermark(Kind.VERSION, "1")
        place = Place(self.database.schema, "orders")
        staging = Staging(self.database, place, TABLE, Batch("", 1, 1, None, now, now, "bench"), RowChanges([]))
        staging.create([Column(field.name, kind) for field, kind in zip(self.rows.schema, self.types, strict=True)])
        started = time.perf_counter()
        self.database.fill(staging.shaped(self.rows), staging.place)
        written = time.perf_counter() - started
        assert staging.rows().read.rows_read == self.count
        staging.drop()
        return written

    def plain(self) -> float:
        """What a person writes who does not know the driver's options."""
        writer = self.database.writer
        login = {name: writer.properties[name] for name in ("user", "password", "driver")}
        name = self.database.dialect.place(Place(self.database.schema, "plain"))
        listed = ", ".join(f"{field.name} {kind}" for field, kind in zip(self.rows.schema, self.types, strict=True))
        self.database.run(f"CREATE TABLE {name} ({listed})")
        started = time.perf_counter()
        self.rows.write.jdbc(writer.url.partition("?")[0], name, "append", login)
        written = time.perf_counter() - started
        assert self.database.rows(f"SELECT count(*) FROM {name}") == [(self.count,)]
        self.database.run(f"DROP TABLE {name}")
        return written

    @property
    def types(self) -> list[str]:
        kinds = [self.database.dialect.sql_type(Field(field.dataType.simpleString())) for field in self.rows.schema]
        return [kind or "" for kind in kinds]


def timing(run: Callable[[], float], writes: list[float]) -> Callable[[], tuple[float, float]]:
    def timed() -> tuple[float, float]:
        started = time.perf_counter()
        writes.append(run())
        return time.perf_counter() - started, 0.0

    return timed


def bench(database: PostgresTarget | MySqlTarget, spark: SparkSession, rows: int, rounds: int) -> dict[str, object]:
    frame = spark.sql(ORDERS.format(rows=rows)).cache()
    assert frame.count() == rows
    warm = Bench(database, frame.limit(20_000), 20_000)
    warm.ours()
    warm.plain()
    contest = Bench(database, frame, rows)
    print(f"{rows:,} rows to a staging table (one warm session, rows held by Spark)")
    writes: dict[str, list[float]] = {OURS: [], PLAIN: []}
    done = compare(rounds, {OURS: timing(contest.ours, writes[OURS]), PLAIN: timing(contest.plain, writes[PLAIN])})
    ratio = done[PLAIN].median / done[OURS].median
    written = {name: statistics.median(seconds) for name, seconds in writes.items()}
    alone = written[PLAIN] / written[OURS]
    print(f"  plain Spark JDBC takes {ratio:.2f} times as long")
    print(f"  Spark's write alone: {written[OURS]:.2f} s, plain {written[PLAIN]:.2f} s, {alone:.2f} times as long")
    figures = {name: series.seconds for name, series in done.items()}
    return {"rows": rows, "ratio": ratio, "ratio of the writes": alone, "writes": writes, **figures}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--database", choices=["postgresql", "mariadb"], default="postgresql")
    given = parser.parse_args()
    spark = local_session(["delta", "postgresql", "mysql"], {"spark.driver.memory": "2g"}, None, "staging")
    if given.database == "postgresql":
        with Postgres() as server:
            target: PostgresTarget | MySqlTarget = PostgresTarget(Endpoint.parse(server.url()))
            figures = bench(target, spark, given.rows, given.rounds)
            target.close()
    else:
        with MariaDB() as maria:
            with maria.connect() as connection, connection.cursor() as cursor:
                cursor.execute("CREATE DATABASE bench")
            target = MySqlTarget(Endpoint.parse(maria.url("bench")))
            figures = bench(target, spark, given.rows, given.rounds)
            target.close()
    stop(spark)
    save(f"staging-{given.database}-{given.rows}", figures)


if __name__ == "__main__":
    main()

"""Verify beside re-reading the table through Spark, to nowhere and to compare it: equal rows, one warm session.

python benchmarks/verify.py [--rows N] [--rounds N] [--warm N] [--database postgresql|mariadb]

Beside the time it takes the processors' time of all processes, the database's too: the machine may be busy otherwise.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from foundation import FILL, ORDERS, config
from harness import Peak, compare, processor_seconds, save

import strandline
from strandline.core.window import Slice, Window
from strandline.project import Project
from strandline.spark.session import local_session, stop
from strandline.testing.servers import MariaDB, Postgres
from strandline.verify.verdict import Answer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

VERIFY, AGAIN, COMPARED = "strandline verify", "re-read through Spark", "re-read and compare"
MARIADB_FILL = """
INSERT INTO orders SELECT seq, seq % 100000, ELT(1 + seq % 4, 'new','paid','sent','done'), (seq % 100000) / 100.0,
  CONCAT('note ', seq), NOW(6) - INTERVAL 1 DAY + INTERVAL seq MICROSECOND FROM seq_1_to_{rows}"""


def fill_postgres(server: Postgres, rows: int) -> str:
    with server.connect() as connection:
        connection.execute(ORDERS)
        connection.execute(FILL.format(rows=rows))
        connection.execute("CREATE INDEX ON orders (updated_at)")
        connection.execute("VACUUM ANALYZE orders")
    return server.url()


def fill_mariadb(server: MariaDB, rows: int) -> str:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE bench")
        cursor.execute("USE bench")
        cursor.execute(ORDERS.replace("timestamptz", "timestamp(6)"))
        cursor.execute(MARIADB_FILL.format(rows=rows))
        cursor.execute("CREATE INDEX at ON orders (updated_at)")
        cursor.execute("ANALYZE TABLE orders")
        connection.commit()
    return server.url("bench")


def verify(project: Project, spark: SparkSession, rows: int) -> None:
    (verdict,) = project.verify("shop", spark=spark)
    assert (verdict.answer, verdict.rows) == (Answer.EQUAL, rows), verdict


@contextmanager
def rows_again(project: Project, spark: SparkSession) -> Iterator[DataFrame]:
    """Every column of every row below the watermark, through the same readers that a sync uses."""
    (position,) = project.books.positions("shop").values()
    assert position.watermark is not None
    with project.opened("shop", spark=spark) as opened:
        (resolved,) = opened.tables()
        whole = Slice(Window(None, position.watermark))
        yield opened.source.changes(resolved.table, whole).frame(spark)


def read_again(project: Project, spark: SparkSession) -> None:
    with rows_again(project, spark) as rows:
        rows.write.format("noop").mode("overwrite").save()


def compare_again(project: Project, spark: SparkSession, lake: Path) -> None:
    """What a person would write instead: both copies joined by key, rows that differ counted."""
    with rows_again(project, spark) as rows:
        copy = spark.read.format("delta").load(str(lake / "orders"))
        both = rows.alias("s").join(copy.alias("t"), on="id", how="full_outer")
        same = " AND ".join(f"s.{name} <=> t.{name}" for name in rows.columns if name != "id")
        assert both.where(f"NOT ({same})").count() == 0


def bench(url: str, folder: Path, rows: int, rounds: int, warm: int) -> dict[str, object]:
    path = config(folder, url, "orders")
    spark = local_session(["delta", "postgresql", "mysql"], {"spark.driver.memory": "2g"}, None, "verify")

    spent: dict[str, list[float]] = {}

    def timing(name: str, run: Callable[[], None]) -> Callable[[], tuple[float, float]]:
        def timed() -> tuple[float, float]:
            peak, before, started = Peak(os.getpid()), processor_seconds(os.getpid()), time.perf_counter()
            run()
            seconds = time.perf_counter() - started
            spent.setdefault(name, []).append(processor_seconds(os.getpid()) - before)
            peak.stop()
            return seconds, peak.megabytes

        return timed

    with strandline.load(path) as project:
        project.sync("shop", spark=spark, raise_on_failure=True)
        print(f"{rows:,} equal rows (one warm session)")
        runs = {
            VERIFY: lambda: verify(project, spark, rows),
            AGAIN: lambda: read_again(project, spark),
            COMPARED: lambda: compare_again(project, spark, path.parent / "lake"),
        }
        for _ in range(warm):
            for run in runs.values():
                run()
        done = compare(rounds, {name: timing(name, run) for name, run in runs.items()})
    stop(spark)
    ratios = {name: done[name].median / done[VERIFY].median for name in (AGAIN, COMPARED)}
    busy = {name: statistics.median(each) for name, each in spent.items()}
    for name, ratio in ratios.items():
        print(
            f"  {name}: {ratio:.2f} times as long as verify, {busy[name] / busy[VERIFY]:.2f} times the processors' time"
        )
    print("  processors' time: " + ", ".join(f"{name} {seconds:.1f} s" for name, seconds in busy.items()))
    return {"rows": rows, "ratio": ratios, "spent": spent, **{name: series.seconds for name, series in done.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warm", type=int, default=2, help="rounds before those that count")
    parser.add_argument("--database", choices=["postgresql", "mariadb"], default="postgresql")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if given.database == "postgresql":
            with Postgres() as server:
                url = fill_postgres(server, given.rows)
                figures = bench(url, Path(folder) / "bench", given.rows, given.rounds, given.warm)
        else:
            with MariaDB() as maria:
                url = fill_mariadb(maria, given.rows)
                figures = bench(url, Path(folder) / "bench", given.rows, given.rounds, given.warm)
    save(f"verify-{given.database}-{given.rows}", figures)


if __name__ == "__main__":
    main()

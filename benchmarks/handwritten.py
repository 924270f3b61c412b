"""The job people write by hand: a watermark file, four JDBC predicates, Spark's default settings, MERGE into Delta.

    handwritten.py load|merge JDBC_URL USER TARGET [--warm N]
    handwritten.py all JDBC_URL USER TARGET --tables FILE


`--warm N` repeats the merge in one session (touching the rows before each, untimed) and prints the seconds of each
but the first. `all` goes through the tables named in a file: loads a table without a watermark, merges into the others.
"""

from __future__ import annotations

import argparse
import os
import time
from itertools import pairwise
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from strandline.spark.jars import jars


def session() -> SparkSession:
    files = ",".join(str(path) for path in jars(["delta", "postgresql"]))
    return (
        SparkSession.builder.appName("hand-written")
        .config("spark.jars", files)
        .config("spark.driver.memory", "2g")
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )


def read(spark: SparkSession, url: str, user: str, since: str, rows: int, table: str = "orders") -> DataFrame:
    edges = [None, *(rows * part // 4 for part in (1, 2, 3)), None]
    predicates = []
    for low, high in pairwise(edges):
        keys = [f"id > {low}"] if low is not None else []
        keys += [f"id <= {high}"] if high is not None else []
        predicates.append(" AND ".join([*keys, f"updated_at > timestamptz '{since}'"]))
    properties = {"user": user, "password": os.environ["PGPASSWORD"], "driver": "org.postgresql.Driver"}
    return spark.read.jdbc(url, table, predicates=predicates, properties=properties)


def merge(spark: SparkSession, frame: DataFrame, target: str) -> None:
    frame.createOrReplaceTempView("changes")
    spark.sql(
        f"MERGE INTO delta.`{target}` t USING changes s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("step", choices=("load", "merge", "all"))
    parser.add_argument("url")
    parser.add_argument("user")
    parser.add_argument("target")
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--warm", type=int, default=0)
    parser.add_argument("--touch", default="")
    parser.add_argument("--tables", type=Path)
    given = parser.parse_args()
    if given.step == "all":
        every_table(given.url, given.user, Path(given.target), given.rows, given.tables.read_text().split())
        return
    mark = Path(given.target + ".watermark")
    spark = session()
    if given.step == "load":
        read(spark, given.url, given.user, "1970-01-01", given.rows).write.format("delta").save(given.target)
    else:
        for turn in range(given.warm + 1):
            if given.warm:
                _touch(given.touch)
            started = time.perf_counter()
            merge(spark, read(spark, given.url, given.user, mark.read_text(), given.rows), given.target)
            if turn:
                print(f"{time.perf_counter() - started:.3f}", flush=True)
    high = spark.read.format("delta").load(given.target).selectExpr("cast(max(updated_at) as string)").collect()[0][0]
    mark.write_text(str(high))
    spark.stop()


def every_table(url: str, user: str, lake: Path, rows: int, tables: list[str]) -> None:
    spark = session()
    for table in tables:
        target, mark = lake / table, lake / f"{table}.watermark"
        if mark.exists():
            merge(spark, read(spark, url, user, mark.read_text(), rows, table), str(target))
        else:
            read(spark, url, user, "1970-01-01", rows, table).write.format("delta").save(str(target))
        newest = spark.read.format("delta").load(str(target)).selectExpr("cast(max(updated_at) as string)")
        mark.write_text(str(newest.collect()[0][0]))
    spark.stop()


def _touch(dsn: str) -> None:
    import psycopg

    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("UPDATE orders SET amount = amount + 1, updated_at = now() WHERE id % 100 = 7")


if __name__ == "__main__":
    main()

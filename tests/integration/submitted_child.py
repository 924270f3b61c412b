"""A job as people hand it to spark-submit: `submitted_child.py LAKE`.

The session is theirs, and so is its catalog, where the state lives. It reads what is new, and says what it read and
whether its session outlived the run.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession

from strandline import Tracker


def main(lake: str) -> None:
    spark = SparkSession.builder.getOrCreate()
    spark.sql("CREATE SCHEMA IF NOT EXISTS spark_catalog.ops")
    before = spark.conf.getAll
    tracker = Tracker("catalog:spark_catalog.ops", pipeline="nightly", source=f"delta:{lake}", key="id", spark=spark)
    with tracker.run("orders") as run:
        read = {table.name: sorted(row["id"] for row in table.read().collect()) for table in run}
    kept = spark.table("spark_catalog.ops.strandline_state").where("record = 'position'").orderBy("seq").collect()
    tracker.close()
    said = [read, kept[-1]["watermark"], kept[-1]["status"], spark.range(3).count(), spark.conf.getAll == before]
    print(json.dumps(said), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])

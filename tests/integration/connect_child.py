"""Two syncs on a Spark Connect session that the caller owns: `connect_child.py CONFIG REMOTE DSN`."""

from __future__ import annotations

import json
import sys
from datetime import timedelta

import psycopg
from pyspark.sql import SparkSession

import strandline


def main(config: str, remote: str, dsn: str) -> None:
    spark = SparkSession.builder.remote(remote).create()
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")  # ours to keep, whatever a sync needs
    counts = []
    with strandline.load(config) as project:
        for change in ("SELECT 1", "UPDATE orders SET status = 'paid', updated_at = clock_timestamp() WHERE id = 2"):
            with psycopg.connect(dsn, autocommit=True) as database:
                database.execute(change.encode())
            applied = project.sync("shop", spark=spark, raise_on_failure=True).applied
            counts.append([applied.rows_inserted, applied.rows_updated])
    tracker = strandline.Tracker(
        f"sqlite:///{config}.db", pipeline="own", source=dsn, cursor="updated_at", guard=timedelta(0)
    )
    with tracker.run("orders") as run:  # the active session
        counts.append([table.read().count() for table in run])
    zone = spark.conf.get("spark.sql.session.timeZone")
    print(json.dumps({"kind": type(spark).__module__, "counts": counts, "zone": zone, "rows": spark.range(4).count()}))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])

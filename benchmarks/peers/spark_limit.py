"""The least that a job on Spark can do: start it as Strandline starts it, read rows, write or replace them in the lake.

    PGPASSWORD=… spark_limit.py URL JDBC_URL USER LAKE ROWS SINCE TABLE…

It plans nothing, keeps no watermark, checks nothing, and would apply a batch twice. SINCE "": a first load.
"""

from __future__ import annotations

import os
import sys

import psycopg

from strandline.spark.session import local_session


def main(url: str, jdbc: str, user: str, lake: str, rows: str, since: str, *tables: str) -> None:
    if since:
        with psycopg.connect(url) as connection:
            look = "SELECT 1 FROM {} WHERE updated_at >= %s LIMIT 1"
            tables = tuple(name for name in tables if connection.execute(look.format(name), [since]).fetchone())
    spark = local_session(["delta", "postgresql"], {"spark.driver.memory": "2g"})
    properties = {
        "user": user,
        "password": os.environ["PGPASSWORD"],
        "driver": "org.postgresql.Driver",
        "fetchsize": "10000",
        "prepareThreshold": "-1",
    }
    middle = int(rows) // 2
    predicates = [f"updated_at >= '{since}'"] if since else [f"id < {middle}", f"id >= {middle}"]
    for name in tables:
        found = spark.read.jdbc(f"{jdbc}?prepareThreshold=-1", name, predicates=predicates, properties=properties)
        if since:
            writer = found.alias("s").hint("broadcast").write.format("delta").mode("overwrite")
            writer.option("replaceOn", "t.id = s.id").option("targetAlias", "t").save(f"{lake}/{name}")
        else:
            found.write.format("delta").save(f"{lake}/{name}")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])

"""The least that a job on Spark can do: start it as Strandline starts it, read rows, and write or replace them.

    PGPASSWORD=… spark_limit.py lake URL JDBC_URL USER LAKE ROWS SINCE TABLE…
    PGPASSWORD=… spark_limit.py stage SOURCE_URL TARGET_URL JDBC_URL SCHEMA FOLDER ROWS SINCE

It plans nothing, keeps no watermark, checks nothing, and would apply a batch twice. SINCE "": a first load.
"""

from __future__ import annotations

import os
import sys

import psycopg
from limit import MERGE

from strandline.endpoint import Endpoint
from strandline.sources.mysql_session import reader
from strandline.spark.session import local_session
from strandline.spark.work import Work

HEAP = {"spark.driver.memory": "2g"}
TABLE = """
CREATE {kind} TABLE {name} (id bigint {key}, customer_id integer, status text, amount numeric(12,2), note text,
  updated_at timestamp)"""


def into_lake(url: str, jdbc: str, user: str, lake: str, rows: str, since: str, *tables: str) -> None:
    if since:
        with psycopg.connect(url) as connection:
            look = "SELECT 1 FROM {} WHERE updated_at >= %s LIMIT 1"
            tables = tuple(name for name in tables if connection.execute(look.format(name), [since]).fetchone())
    spark = local_session(["delta", "postgresql"], HEAP, work=work(rows, since))
    properties = {"fetchsize": "10000", "prepareThreshold": "-1", **postgresql(user)}
    for name in tables:
        found = spark.read.jdbc(
            f"{jdbc}?prepareThreshold=-1", name, predicates=parts(rows, since), properties=properties
        )
        if since:
            writer = found.alias("s").hint("broadcast").write.format("delta").mode("overwrite")
            writer.option("replaceOn", "t.id = s.id").option("targetAlias", "t").save(f"{lake}/{name}")
        else:
            found.write.format("delta").option("delta.enableDeletionVectors", "true").save(f"{lake}/{name}")
    spark.stop()


def over_stage(source: str, url: str, jdbc: str, schema: str, folder: str, rows: str, since: str) -> None:
    """From MariaDB to Parquet, and from there into PostgreSQL: a first load as it is, an increment by one MERGE."""
    maria = reader(Endpoint.parse(source))
    spark = local_session(["postgresql", "mysql"], HEAP, work=work("0", since))
    files = f"{folder}/{'more' if since else 'first'}"
    found = spark.read.jdbc(maria.url, "orders", predicates=parts(rows, since), properties=dict(maria.properties))
    found.write.parquet(files)
    name = f"{schema}.{'more' if since else 'orders'}"
    with psycopg.connect(url, autocommit=True) as connection:
        kind, key = ("UNLOGGED", "") if since else ("", "PRIMARY KEY")
        connection.execute(TABLE.format(kind=kind, key=key, name=name))
        into = {"reWriteBatchedInserts": "true", "stringtype": "unspecified", **postgresql(Endpoint.parse(url).user)}
        spark.read.parquet(files).write.jdbc(jdbc, name, "append", into)
        if since:
            connection.execute(MERGE.format(schema=schema, rows=name))
            connection.execute(f"DROP TABLE {name}")
    spark.stop()


def work(rows: str, since: str) -> Work:
    """As Strandline chooses for these: an increment is 1 % of the rows, into as many as there are in the lake."""
    return Work.MUCH if not since else Work.LEAST if int(rows) <= 1000 else Work.LITTLE


def parts(rows: str, since: str) -> list[str]:
    middle = int(rows) // 2
    return [f"updated_at >= '{since}'"] if since else [f"id < {middle}", f"id >= {middle}"]


def postgresql(user: str) -> dict[str, str]:
    return {"user": user, "password": os.environ["PGPASSWORD"], "driver": "org.postgresql.Driver"}


if __name__ == "__main__":
    {"lake": into_lake, "stage": over_stage}[sys.argv[1]](*sys.argv[2:])

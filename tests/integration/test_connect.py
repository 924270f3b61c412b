"""Spark Connect: the same sync as on a classic session, on a session that the caller owns and keeps."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from lake_shop import Shop

from strandline.testing.connect import SparkConnect

CHILD = Path(__file__).with_name("connect_child.py")
# In a process of its own: PySpark is either classic or Connect once a session has been made.
_BATCHES = """
import sys
from pyspark.sql import SparkSession
from strandline.spark.session import batch_session, end_batch
caller = SparkSession.builder.remote(sys.argv[1]).create()
caller.conf.set("spark.sql.shuffle.partitions", "5")
caller.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
caller.conf.set("spark.databricks.delta.write.txnVersion", "9")
first, second = batch_session(caller), batch_session(caller)
first.conf.set("spark.databricks.delta.write.txnAppId", "first")
print(first.conf.get("spark.sql.shuffle.partitions"), first.conf.get("spark.sql.session.timeZone"))
print(first.conf.get("spark.databricks.delta.write.txnVersion", None),
      second.conf.get("spark.databricks.delta.write.txnAppId", None), caller.conf.get("spark.sql.session.timeZone"))
end_batch(first)
end_batch(second)
print(caller.range(3).count())
caller.stop()
"""


@pytest.fixture(scope="module")
def connect() -> Iterator[SparkConnect]:
    with SparkConnect(["delta", "postgresql"], {"spark.driver.memory": "1g"}) as server:
        yield server


def run(*command: str) -> str:
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_batch_has_the_callers_settings_and_keeps_its_own(connect: SparkConnect) -> None:
    assert run("-c", _BATCHES, connect.remote()).splitlines() == ["5 UTC", "None None Asia/Tokyo", "3"]


def test_a_sync_on_spark_connect_does_what_it_does_on_a_classic_session(
    connect: SparkConnect, pg_database: str, tmp_path: Path
) -> None:
    shop = Shop(pg_database, tmp_path)
    shop.insert(1, 2, 3)
    told = json.loads(run(str(CHILD), str(shop.config), connect.remote(), pg_database))
    assert told["kind"].startswith("pyspark.sql.connect")
    assert told["counts"] == [[3, 0], [0, 1]]
    assert (told["zone"], told["rows"]) == ("Asia/Tokyo", 4)
    assert shop.statuses() == {1: "new", 2: "paid", 3: "new"}
    shop.close()

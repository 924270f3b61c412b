"""Pipelines `least` and `exactly` at once, each of which stops in the middle of its batch: `kafka_child.py CONFIG`.

The one with a task of Spark's that is done and one that sleeps, the other after a few rows of its transaction. It is
for others to kill it.
"""

from __future__ import annotations

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as sql

import strandline
from strandline.sinks.kafka_producer import Message, TableProducer
from strandline.sinks.kafka_rows import with_headers
from strandline.spark.session import local_session

ROWS = 20
PASSING = 150  # ids up to this one are published by the first task


def halved(told: DataFrame) -> DataFrame:
    def sleep(key: str) -> str:
        time.sleep(600)
        return key

    passing = sql.get_json_object("key", "$.id").cast("bigint") <= PASSING
    waiting = told.where(~passing).withColumn("key", sql.udf(sleep, "string", useArrow=False)("key"))
    return told.where(passing).unionByName(waiting)


def main(config: str) -> None:
    real, sent = TableProducer._produce, iter(range(ROWS))

    def produce(producer: TableProducer, message: Message) -> None:
        if next(sent, None) is None:
            producer._producer.flush(30)  # what was sent by now is with the brokers
            threading.Event().wait()
        real(producer, message)

    patch = pytest.MonkeyPatch()
    patch.setattr(TableProducer, "_produce", produce)
    patch.setattr("strandline.sinks.kafka_write.with_headers", lambda *given: halved(with_headers(*given)))
    spark = local_session(["postgresql", "kafka"], {"spark.driver.memory": "1g"}, "local[4]", "killed")
    with strandline.load(config) as project, ThreadPoolExecutor(2) as pool:
        for run in [pool.submit(project.sync, name, spark=spark) for name in ("least", "exactly")]:
            print(run.result())


if __name__ == "__main__":
    main(sys.argv[1])

"""The process of a warm Spark: `daemon_process RECORD LOG TURN TELLING`, its order on standard input.

It starts Spark with a Spark Connect server, leaves a record, and ends when nobody has used it for long enough, when its
record was taken away and nobody uses it, or when Spark has died. Should it die itself, Spark ends too: it reads our end
of a pipe.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from strandline import __version__
from strandline.spark import daemon
from strandline.spark.daemon import Order, Record
from strandline.spark.session import MARK, local_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOOK_SECONDS = 0.5
_SERVER = {
    "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.grpc.binding.port": "0",
}


def main(path: Path, log: Path, turn: int, telling: int) -> None:
    order = Order(**json.load(sys.stdin))
    if os.fork():
        os._exit(0)
    os.environ["SPARK_CONNECT_AUTHENTICATE_TOKEN"] = token = secrets.token_urlsafe(32)
    os.environ["STRANDLINE_SPARK_LOG"] = str(log)
    conf = {**order.conf, **_SERVER}
    if theirs := order.conf.get("spark.plugins"):
        conf["spark.plugins"] = f"{theirs},{_SERVER['spark.plugins']}"
    spark = local_session(order.needs, conf, order.master, "strandline warm")
    record = Record(
        os.getpid(),
        _port(spark),
        token,
        spark.conf.get(MARK) or "",
        order.config,
        str(log),
        version("pyspark"),
        __version__,
        order.idle_seconds,
        datetime.now(UTC).isoformat(timespec="seconds"),
    )
    file = daemon.write(path, record)
    os.write(telling, b"ready")
    os.close(telling)
    os.close(turn)
    try:
        _watch(spark, path, file, order.idle_seconds)
    finally:
        daemon.withdraw(path, file)
    spark.stop()


def _port(spark: SparkSession) -> int:
    service = "org.apache.spark.sql.connect.service.SparkConnectService$"
    return int(getattr(getattr(spark._jvm, service), "MODULE$").localPort())


def _watch(spark: SparkSession, path: Path, file: int, idle_seconds: float) -> None:
    """Returns when it is time to end; then nobody can begin to use it any more."""
    tracker, used = spark.sparkContext.statusTracker(), False
    while True:
        time.sleep(_LOOK_SECONDS)
        at_work = tracker.getActiveJobsIds()  # raises if Spark has died
        if not daemon.unused(file):
            used = True
            os.utime(file)
            continue
        if used:
            if at_work:
                spark.sparkContext.cancelAllJobs()  # of somebody who died
            spark.catalog.clearCache()
            used = False
        if not daemon.current(path, file) or time.time() - os.fstat(file).st_mtime > idle_seconds:
            return
        daemon.used_again(file)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))

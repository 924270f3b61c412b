"""Our own Spark: what it is started with, what it keeps to itself, and sessions for single batches."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from socketserver import StreamRequestHandler, TCPServer
from threading import Thread
from types import SimpleNamespace
from typing import Any, cast

import psycopg
import pyspark
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sql

from strandline.core.errors import SetupError
from strandline.endpoint import Endpoint
from strandline.spark.columns import constant
from strandline.spark.gateway import end_accumulators
from strandline.spark.java import find_java
from strandline.spark.session import WORKERS, batch_session, local_session, settings
from strandline.spark.work import Work
from strandline.testing.servers import MariaDB

_FAILS = """
import numpy
from pyspark.sql import functions as sql
from strandline.core.errors import SetupError
from strandline.spark.session import local_session, stop
try:
    local_session([], {"spark.driver.extraJavaOptions": "-javaagent:/no/such.jar"}, "local[1]")
except SetupError as error:
    print(error.why.splitlines()[0], "/no/such.jar" in error.why)
try:
    local_session([], {}, "nowhere[1]")
except SetupError as error:
    print(error.why.splitlines()[0])
spark = local_session([], {}, "local[1]")
print(spark.range(5).where(sql.col("id") >= numpy.int64(3)).count())
print(spark.range(5).where(sql.col("id").isin(list(numpy.array([1, 2])))).count())
stop(spark)
"""
_START = """
import os
from contextlib import suppress
from strandline.spark.session import local_session, stop
spark = local_session([], {"spark.hadoop.fs.s3a.secret.key": os.environ["HUSH"], "spark.sql.shuffle.partitions": "7",
                           "spark.driver.memory": "512m"}, "local[1]")
assert spark.conf.get("spark.hadoop.fs.s3a.secret.key") == os.environ["HUSH"]
processes = ""
for pid in filter(str.isdigit, os.listdir("/proc")):
    with suppress(OSError):  # it has ended
        processes += open(f"/proc/{pid}/cmdline").read()
print(spark.conf.get("spark.sql.shuffle.partitions"), os.environ["HUSH"] in processes, "-Xmx512m" in processes)
stop(spark)
again = local_session([], {"spark.sql.shuffle.partitions": "3"}, "local[1]")
print(again.conf.get("spark.sql.shuffle.partitions"), again.range(5).count())
stop(again)
"""


def test_delta_merges_with_the_two_pinned_jars(spark: SparkSession, tmp_path: Path) -> None:
    table = f"delta.`{tmp_path}`"
    spark.sql(f"CREATE TABLE {table} (id INT, name STRING) USING delta")
    spark.sql(f"INSERT INTO {table} VALUES (1, 'one')")
    counts = spark.sql(
        f"MERGE INTO {table} t USING (VALUES (1, 'eins'), (2, 'zwei') AS v(id, name)) s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    ).first()
    assert counts is not None
    assert (counts.num_updated_rows, counts.num_inserted_rows) == (1, 1)
    assert sorted(map(tuple, spark.table(table).collect())) == [(1, "eins"), (2, "zwei")]


def test_the_postgresql_driver_is_found_without_naming_it(spark: SparkSession, pg_database: str) -> None:
    with psycopg.connect(pg_database) as connection:
        connection.execute("CREATE TABLE t AS SELECT 7 AS id")
    at = Endpoint.parse(pg_database)
    url = f"jdbc:postgresql://{at.host}:{at.port}/{at.path}"
    rows = spark.read.jdbc(url, "t", properties={"user": at.user, "password": at.password}).collect()
    assert [row.id for row in rows] == [7]


def test_the_mysql_driver_is_found_without_naming_it(
    spark: SparkSession, mariadb: MariaDB, mariadb_database: str
) -> None:
    at = Endpoint.parse(mariadb_database)
    with mariadb.connect(at.path) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE t AS SELECT 7 AS id")
    url = f"jdbc:mysql://{at.host}:{at.port}/{at.path}"
    rows = spark.read.jdbc(url, "t", properties={"user": at.user, "password": at.password}).collect()
    assert [row.id for row in rows] == [7]


def test_python_workers_take_pyspark_from_files_that_python_keeps_compiled(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New ones: Spark keeps those of other environments, and with them what tests before this one imported there."""
    monkeypatch.setitem(spark.sparkContext.environment, "TEST", uuid.uuid4().hex)

    def seen(batches: Iterator[Any]) -> Iterator[Any]:
        import sys

        import pyspark

        here = {"of": [pyspark.__file__], "psycopg": ["psycopg" in sys.modules], "pandas": ["pandas" in sys.modules]}
        yield from (import_module("pyarrow").RecordBatch.from_pydict(here) for batch in batches if batch.num_rows)

    found = spark.range(1, numPartitions=1).mapInArrow(seen, "of string, psycopg boolean, pandas boolean").first()
    assert found is not None
    assert found.of == pyspark.__file__
    assert (found.psycopg, found.pandas) == (True, False)


def test_a_spark_that_is_not_installed_as_a_package_keeps_its_zips() -> None:
    spec = spec_from_file_location("strandline_workers", WORKERS / "strandline_workers.py")
    assert spec is not None
    assert spec.loader is not None
    workers = module_from_spec(spec)
    spec.loader.exec_module(workers)
    zips = ["/py/pyspark/python/lib/pyspark.zip", "/py/pyspark/python/lib/py4j-src.zip"]
    assert workers.unpacked(["", *zips, "/mine.zip", "/py"]) == ["", "/mine.zip", "/py"]
    assert workers.unpacked(["", *zips, "/elsewhere"]) == ["", *zips, "/elsewhere"]


def test_our_spark_is_bound_to_this_machine_with_its_page_off_and_in_utc(spark: SparkSession) -> None:
    assert spark.conf.get("spark.driver.bindAddress") == "127.0.0.1"
    assert spark.conf.get("spark.ui.enabled") == "false"
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    zones = spark.sql("SELECT reflect('java.lang.System', 'getProperty', 'user.timezone')").first()
    assert zones is not None
    assert zones[0] == "UTC"


def test_a_batch_has_the_callers_settings_and_keeps_its_own(spark: SparkSession) -> None:
    caller = spark.newSession()
    caller.conf.set("spark.sql.shuffle.partitions", "5")
    caller.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    caller.conf.set("spark.databricks.delta.write.txnVersion", "9")
    first, second = batch_session(caller), batch_session(caller)
    first.conf.set("spark.databricks.delta.write.txnAppId", "first")
    assert first.conf.get("spark.sql.shuffle.partitions") == "5"
    assert first.conf.get("spark.sql.session.timeZone") == "UTC"
    assert first.conf.get("spark.databricks.delta.write.txnVersion", None) is None
    assert second.conf.get("spark.databricks.delta.write.txnAppId", None) is None
    assert caller.conf.get("spark.sql.session.timeZone") == "Asia/Tokyo"


def test_a_second_spark_in_one_process_is_refused(spark: SparkSession) -> None:
    assert spark.range(1).count() == 1
    with pytest.raises(SetupError, match="already running") as caught:
        local_session()
    assert "spark=" in caught.value.remedy


def test_what_a_small_run_saves_itself_is_saved_on_this_machine_alone_and_only_if_the_user_did_not_choose() -> None:
    ours = {"spark.sql.adaptive.enabled", "spark.buffer.pageSize", "spark.sql.codegen.factoryMode"}

    def saved(work: Work, **theirs: str) -> set[str]:
        return ours & settings((), {f"spark.{name}": value for name, value in theirs.items()}, find_java(), work).keys()

    assert (saved(Work.MUCH), saved(Work.LEAST)) == (set(), ours)
    assert saved(Work.LITTLE) == ours - {"spark.sql.codegen.factoryMode"}
    assert saved(Work.LEAST, master="spark://elsewhere:7077") == set()
    chosen = settings((), {"spark.sql.codegen.factoryMode": "CODEGEN_ONLY"}, find_java(), Work.LEAST)
    assert chosen["spark.sql.codegen.factoryMode"] == "CODEGEN_ONLY"


def test_users_settings_win_secrets_stay_off_the_process_list_and_the_terminal_stays_clean(tmp_path: Path) -> None:
    log = tmp_path / "spark.log"
    environment = {**os.environ, "STRANDLINE_SPARK_LOG": str(log), "HUSH": uuid.uuid4().hex}
    done = subprocess.run([sys.executable, "-c", _START], capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["7 False True", "3 5"]
    assert "incubator" in log.read_text()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["spark.log"]


def test_a_java_that_ends_at_once_says_why_and_the_next_start_is_a_new_one(tmp_path: Path) -> None:
    """NumPy's values, where somebody imported it, reach Java as ever."""
    done = subprocess.run([sys.executable, "-c", _FAILS], capture_output=True, text=True, cwd=tmp_path)
    assert done.stderr == ""
    ended = "Java ended with exit code 1 before Spark was there"
    assert done.stdout.splitlines() == [f"{ended} True", ended, "2", "2"]


@pytest.mark.parametrize(
    "value", [0, -7, 1 << 40, True, False, None, "", "it's", 'a "b" \\ c', "two\nlines", "ä€😀", "%_`"]
)
def test_a_constant_is_what_pysparks_own_would_be(spark: SparkSession, value: str | int | None) -> None:
    ours, theirs = spark.range(1).select(constant(value).alias("v")), spark.range(1).select(sql.lit(value).alias("v"))
    assert ours.schema == theirs.schema
    assert ours.collect() == theirs.collect()


def test_spark_is_stopped_without_waiting_for_the_next_look_of_its_accumulators() -> None:
    class Server(TCPServer):
        server_shutdown = False

        def shutdown(self) -> None:
            time.sleep(0.05)  # the first caller comes before it knows that it is to end
            super().shutdown()
            self.server_close()

    server = Server(("127.0.0.1", 0), StreamRequestHandler)
    looking = Thread(target=server.serve_forever, args=(600,))
    looking.start()
    context = SimpleNamespace(_accumulatorServer=server)
    end_accumulators(cast(Any, context))
    looking.join(60)
    assert not looking.is_alive()
    assert context._accumulatorServer is None

"""The class archive: what Java has loaded and checked once, kept for every later start of Spark.

Built in the background the first time it is missed, by a small job of the usual kind in a process of its own, under a
temporary name (a truncated archive would crash Java), and renamed when Java has ended. Nobody waits for it, and nothing
depends on it. `STRANDLINE_CLASS_ARCHIVE=off` does without.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from strandline.spark.jars import jars, spark_home
from strandline.spark.java import find_java
from strandline.spark.session import class_archive, conf_folder, launcher_options, settings, write_properties

_GIVE_UP_SECONDS = 900
_KEPT_SECONDS = 30 * 24 * 3600
_FAILED_SECONDS = 24 * 3600
_ROWS = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
place = f"{sys.argv[1]}/table"
rows = "SELECT id, timestamp_micros(id) AS at, cast(id AS decimal(12,2)) AS amount, cast(id AS string) AS note FROM "
"""
_DELTA_JOB = (
    _ROWS
    + """
target = f"delta.`{place}`"
spark.sql(f"CREATE TABLE {target} (id bigint, at timestamp, amount decimal(12,2), note string) USING delta "
          "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
spark.sql(rows + "range(1000)").write.format("delta").mode("append").save(place)
spark.sql(rows + "range(500, 1500)").persist().hint("broadcast").createOrReplaceTempView("changes")
spark.sql("SELECT count(1), max(at) FROM changes").collect()
spark.sql(f"MERGE INTO {target} t USING changes s ON t.id = s.id WHEN MATCHED AND s.at >= t.at THEN UPDATE SET * "
          "WHEN NOT MATCHED THEN INSERT *").collect()
rows = spark.table("changes").alias("s").hint("broadcast").write.format("delta").mode("overwrite")
rows.option("replaceOn", "t.id = s.id").option("targetAlias", "t").save(place)
spark.stop()
"""
)
# Without Delta, rows go through Parquet files or straight into a database, by Python workers where they can.
_PLAIN_JOB = (
    _ROWS
    + """
from contextlib import suppress
spark.sql(rows + "range(1000)").write.parquet(place)
staged = spark.read.parquet(place).persist()
staged.createOrReplaceTempView("staged")
spark.sql("SELECT count(1), max(at) FROM staged").collect()
spark.sql("SELECT * FROM (SELECT *, row_number() OVER (PARTITION BY id ORDER BY at DESC) AS n FROM staged) "
          "WHERE n = 1").write.format("noop").mode("overwrite").save()
with suppress(ImportError):
    staged.mapInArrow(lambda batches: batches, staged.schema).write.format("noop").mode("overwrite").save()
spark.stop()
"""
)


def build_in_background(needs: Iterable[str]) -> None:
    """Start building the archive that a session with these needs would use, unless it is there or being built."""
    wanted = sorted(needs)
    archive = class_archive(find_java(), jars(wanted))
    if archive.exists() or os.environ.get("STRANDLINE_CLASS_ARCHIVE") == "off" or _failed_lately(archive):
        return
    archive.parent.mkdir(parents=True, exist_ok=True)
    mark = archive.with_suffix(".building")
    if mark.exists() and time.time() - mark.stat().st_mtime > _GIVE_UP_SECONDS:
        mark.unlink(missing_ok=True)  # whoever was at it is gone
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return
    subprocess.Popen(
        ["nice", "-n", "19", sys.executable, "-m", "strandline.spark.archive", *wanted],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd="/",
    )


def build(needs: Iterable[str]) -> Path:
    """Build the archive, unless it is there, and wait for it. Raises CalledProcessError if Spark's job failed."""
    wanted, java = tuple(sorted(needs)), find_java()
    archive = class_archive(java, jars(wanted))
    if archive.exists():
        return archive
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="strandline-archive-") as name:
        folder, unfinished = Path(name), archive.with_suffix(f".{os.getpid()}.tmp")
        job, properties = folder / "job.py", folder / "settings.properties"
        job.write_text(_DELTA_JOB if "delta" in wanted else _PLAIN_JOB)
        dump = f"-XX:TieredStopAtLevel=1 -XX:ArchiveClassesAtExit={unfinished}"  # so short a job wins nothing by C2
        write_properties(properties, settings(wanted, {"spark.driver.extraJavaOptions": dump}, java))
        environment = {
            "JAVA_HOME": java,
            "SPARK_HOME": str(spark_home()),
            "SPARK_CONF_DIR": str(conf_folder(spark_home() / "conf")),
            "STRANDLINE_SPARK_LOG": str(folder / "spark.log"),
            "SPARK_LAUNCHER_OPTS": launcher_options(spark_home()),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
        }
        submit = [str(spark_home() / "bin" / "spark-submit"), "--properties-file", str(properties), str(job), name]
        try:
            subprocess.run(submit, env={**os.environ, **environment}, check=True)
            unfinished.rename(archive)
            _forget_old(archive)
        except subprocess.CalledProcessError:
            _failed(archive).touch()
            raise
        finally:
            unfinished.unlink(missing_ok=True)
            archive.with_suffix(".building").unlink(missing_ok=True)
    return archive


def _failed(archive: Path) -> Path:
    """What a job leaves that failed: another of the same kind would fail too, after every sync."""
    return archive.with_suffix(".failed")


def _failed_lately(archive: Path) -> bool:
    mark = _failed(archive)
    return mark.exists() and time.time() - mark.stat().st_mtime < _FAILED_SECONDS


def _forget_old(archive: Path) -> None:
    """Each is of some version of Java, Spark and jars, and large; a start of Spark dates the one it uses."""
    _failed(archive).unlink(missing_ok=True)
    for other in [*archive.parent.glob("*.jsa"), *archive.parent.glob("*.failed")]:
        if other != archive and time.time() - other.stat().st_mtime > _KEPT_SECONDS:
            other.unlink(missing_ok=True)


if __name__ == "__main__":
    build(sys.argv[1:])

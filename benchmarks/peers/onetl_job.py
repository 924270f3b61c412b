"""onETL by its documentation: `DBReader` with `AutoDetectHWM` in an `IncrementalStrategy`; runs in onETL's environment.

The argument is a file with what to do. onETL writes no Delta and merges nowhere: it adds Parquet files to a folder. The
reader's partitioning by ranges of the key is what its documentation has for a large table; Spark's settings are the
hand-written job's.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from onetl.connection import Postgres, SparkLocalFS
from onetl.db import DBReader
from onetl.file import FileDFWriter
from onetl.file.format import Parquet
from onetl.hwm.store import YAMLHWMStore
from onetl.strategy import IncrementalStrategy
from pyspark.sql import SparkSession


def main(job: dict[str, Any]) -> None:
    folder = Path(job["folder"])
    spark = (
        SparkSession.builder.appName("onetl")
        .config("spark.jars", ",".join(job["jars"]))
        .config("spark.driver.memory", "2g")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    url = urlsplit(job["source"])
    postgres = Postgres(
        host=url.hostname,
        port=url.port,
        user=url.username,
        password=url.password,
        database=url.path.strip("/"),
        spark=spark,
    )
    large = {"partitionColumn": "id", "numPartitions": 4} if job["rows"] > 100_000 else {}
    with YAMLHWMStore(path=str(folder / "hwm")):
        for table in job["tables"]:
            reader = DBReader(
                connection=postgres,
                source=f"public.{table}",
                hwm=DBReader.AutoDetectHWM(name=table, expression="updated_at"),
                options=Postgres.ReadOptions(**large),
            )
            writer = FileDFWriter(
                connection=SparkLocalFS(spark=spark),
                format=Parquet(),
                target_path=str(folder / "lake" / table),
                options=FileDFWriter.Options(if_exists="append"),
            )
            with IncrementalStrategy():
                writer.run(reader.run())
    spark.stop()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))

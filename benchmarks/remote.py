"""One sync on a Spark Connect server that runs already, as a process: `remote.py CONFIG sc://…`."""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

import strandline


def main(config: str, remote: str) -> None:
    spark = SparkSession.builder.remote(remote).create()
    try:
        with strandline.load(config) as project:
            project.sync("shop", spark=spark, raise_on_failure=True)
    finally:
        spark.stop()  # its channel's threads would keep the process


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])

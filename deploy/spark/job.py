"""One sync as a Spark job, on the session that the cluster gives: spark-submit, Databricks, EMR, Dataproc.

A table that fails raises, so that the job fails; the next one carries out the plan that was left.
"""

import argparse
import json

from pyspark.sql import SparkSession

import strandline


def sync(config: str, pipeline: str, spark: SparkSession | None) -> strandline.RunResult:
    with strandline.load(config, spark=spark) as project:
        return project.sync(pipeline, raise_on_failure=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pipeline")
    parser.add_argument("--config", default="strandline.yml")
    given = parser.parse_args()
    spark = SparkSession.builder.appName(f"strandline {given.pipeline}").getOrCreate()
    print(json.dumps(sync(given.config, given.pipeline, spark).to_json(), indent=2))


if __name__ == "__main__":
    main()

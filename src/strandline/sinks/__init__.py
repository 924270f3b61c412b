"""Sinks: one file per technology, loaded when a target names it."""

from __future__ import annotations

from strandline.core.errors import ConfigError
from strandline.core.protocols import Sink, Spark
from strandline.endpoint import Endpoint


def loads_files(endpoint: Endpoint) -> bool:
    """Whether the target's database loads a stage's files by itself: one staged batch at a time, and without Spark."""
    return endpoint.scheme in ("redshift", "snowflake")


def open_sink(endpoint: Endpoint, spark: Spark, via: str = "spark") -> Sink:
    """The sink for a target's address. Nothing is connected and no Spark started yet."""
    if via == "server" and endpoint.scheme not in ("postgresql", "mysql"):
        raise ConfigError(f"via: server needs a database that is source and target, not {endpoint}")
    if endpoint.scheme == "delta":
        from strandline.sinks.delta import DeltaSink

        return DeltaSink(endpoint, spark)
    if endpoint.scheme == "postgresql":
        from strandline.sinks.postgres import PostgresTarget
        from strandline.sinks.sql import SparkSink

        return SparkSink(endpoint, PostgresTarget(endpoint), spark, via)
    if endpoint.scheme == "mysql":
        from strandline.sinks.mysql import MySqlTarget
        from strandline.sinks.sql import SparkSink

        return SparkSink(endpoint, MySqlTarget(endpoint), spark, via)
    if endpoint.scheme == "redshift":
        from strandline.sinks.redshift import RedshiftTarget
        from strandline.sinks.sql_files import FileSink

        return FileSink(endpoint, RedshiftTarget(endpoint))
    if endpoint.scheme == "snowflake":
        from strandline.sinks.snowflake import SnowflakeTarget
        from strandline.sinks.snowflake_load import SnowflakeSink

        return SnowflakeSink(endpoint, SnowflakeTarget(endpoint), spark)
    if endpoint.scheme == "kafka":
        from strandline.sinks.kafka import KafkaSink

        return KafkaSink(endpoint, spark)
    if endpoint.scheme == "stdout":
        from strandline.sinks.lines import LineSink

        return LineSink(endpoint, spark)
    raise ConfigError(
        f"{endpoint} cannot be a target",
        remedy="Write delta:FOLDER, delta:s3://bucket/prefix, kafka://host:9092, stdout:,\n"
        "or a PostgreSQL, MySQL, Redshift or Snowflake database.",
    )

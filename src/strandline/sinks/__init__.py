"""Sinks: one file per technology, loaded when a target names it."""

from __future__ import annotations

from strandline.core.errors import ConfigError
from strandline.core.protocols import Sink, Spark
from strandline.endpoint import Endpoint


def open_sink(endpoint: Endpoint, spark: Spark, via: str = "spark") -> Sink:
    """The sink for a target's address. Nothing is connected and no Spark started yet."""
    if via == "server" and endpoint.scheme not in ("postgresql", "mysql"):
        raise ConfigError(f"via: server needs a database that is source and target, not {endpoint}")
    if endpoint.scheme == "delta":
        from strandline.sinks.delta import DeltaSink

        return DeltaSink(endpoint, spark)
    if endpoint.scheme == "postgresql":
        from strandline.sinks.postgres import PostgresTarget
        from strandline.sinks.sql import SqlSink

        return SqlSink(endpoint, PostgresTarget(endpoint), spark, via)
    if endpoint.scheme == "mysql":
        from strandline.sinks.mysql import MySqlTarget
        from strandline.sinks.sql import SqlSink

        return SqlSink(endpoint, MySqlTarget(endpoint), spark, via)
    raise ConfigError(
        f"{endpoint} cannot be a target",
        remedy="Write delta:FOLDER, delta:s3://bucket/prefix, or a PostgreSQL or MySQL database as the target.",
    )

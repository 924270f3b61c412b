"""Sinks: one file per technology, loaded when a target names it."""

from __future__ import annotations

from strandline.core.errors import ConfigError
from strandline.core.protocols import Sink, Spark
from strandline.endpoint import Endpoint


def open_sink(endpoint: Endpoint, spark: Spark) -> Sink:
    """The sink for a target's address. Nothing is connected and no Spark started yet."""
    if endpoint.scheme == "delta":
        from strandline.sinks.delta import DeltaSink

        return DeltaSink(endpoint, spark)
    raise ConfigError(
        f"{endpoint} cannot be a target", remedy="Write delta:FOLDER or delta:s3://bucket/prefix as the target."
    )

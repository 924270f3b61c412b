"""Sources: one file per technology, loaded when its URL is used."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

from strandline.core.errors import ConfigError
from strandline.core.protocols import Source, Spark
from strandline.endpoint import Endpoint

MAX_WAIT = timedelta(seconds=10)
_KNOWN = "Sources are postgresql://, mysql://, snowflake://, delta:PATH and catalog:CATALOG.SCHEMA"


def open_source(
    endpoint: Endpoint,
    *,
    guard: timedelta,
    barrier: str | None = None,
    readers: int | None = None,
    statements: bool = False,
    sleep: Callable[[float], None] = time.sleep,
    max_wait: timedelta = MAX_WAIT,
    as_of: str | None = None,
    spark: Spark | None = None,
) -> Source:
    """The source behind an endpoint. Nothing is connected yet.

    `barrier`: None for the database's own, or `lookback SPAN`: none, late commits are found by re-reading.
    `statements`: whether the statement of a transaction that is waited for may be shown, its literals removed.
    `max_wait`: how long transactions in flight are waited for before the horizon counts as held.
    `as_of`: Delta tables are read up to what was committed at this moment. `spark`: for a catalog's names, and to
    compare Delta tables.
    """
    if barrier is not None and not barrier.startswith("lookback"):
        raise ConfigError(f'barrier "{barrier}" is unknown', remedy="Leave it out, or write   barrier: lookback 10m")
    if endpoint.scheme in ("delta", "catalog"):
        from strandline.sources.delta import DeltaSource

        return DeltaSource(endpoint, as_of=as_of, spark=spark)
    if as_of is not None:
        raise ConfigError("as_of reads a table as it was, which only Delta tables can be", remedy="Leave as_of out.")
    if endpoint.scheme == "postgresql":
        from strandline.sources.postgres import PostgresSource

        return PostgresSource(
            endpoint,
            guard=guard,
            barrier=barrier is None,
            readers=readers,
            statements=statements,
            sleep=sleep,
            max_wait=max_wait,
        )
    if endpoint.scheme == "mysql":
        from strandline.sources.mysql import MySqlSource

        return MySqlSource(
            endpoint,
            guard=guard,
            barrier=barrier is None,
            readers=readers,
            statements=statements,
            sleep=sleep,
            max_wait=max_wait,
        )
    if endpoint.scheme == "snowflake":
        from strandline.sources.snowflake import SnowflakeSource

        return SnowflakeSource(endpoint, guard=guard)
    raise ConfigError(f"{endpoint.scheme}: is no source", remedy=_KNOWN)

"""Sources: one file per technology, loaded when its URL is used."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

from strandline.core.errors import ConfigError
from strandline.core.protocols import Source
from strandline.endpoint import Endpoint

MAX_WAIT = timedelta(seconds=10)


def open_source(
    endpoint: Endpoint,
    *,
    guard: timedelta,
    barrier: str | None = None,
    readers: int | None = None,
    statements: bool = False,
    sleep: Callable[[float], None] = time.sleep,
    max_wait: timedelta = MAX_WAIT,
) -> Source:
    """The source behind an endpoint. Nothing is connected yet.

    `barrier`: None for the database's own, or `lookback SPAN`: none, late commits are found by re-reading.
    `statements`: whether the statement of a transaction that is waited for may be shown, its literals removed.
    `max_wait`: how long transactions in flight are waited for before the horizon counts as held.
    """
    if barrier is not None and not barrier.startswith("lookback"):
        raise ConfigError(f'barrier "{barrier}" is unknown', remedy="Leave it out, or write   barrier: lookback 10m")
    if endpoint.scheme == "postgresql":
        from strandline.sources.postgres import PostgresSource

        return PostgresSource(
            endpoint,
            guard=guard,
            barrier=barrier,
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
            barrier=barrier,
            readers=readers,
            statements=statements,
            sleep=sleep,
            max_wait=max_wait,
        )
    raise ConfigError(f"{endpoint.scheme}: is no source", remedy="Sources are postgresql:// and mysql://")

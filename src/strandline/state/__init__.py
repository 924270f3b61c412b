"""State stores: where positions, leases and history are kept. A store's driver is loaded when one is opened."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from strandline.core.errors import ConfigError
from strandline.core.protocols import Spark, State
from strandline.endpoint import Endpoint

if TYPE_CHECKING:
    from strandline.state.sql import SqlState


def open_state(endpoint: Endpoint, spark: Spark | None = None) -> State:
    """The store at this address, made if it is not there yet and brought to this version if it is older. `spark` is
    asked for a session only by a store in a catalog.

    Raises ConnectError if it cannot be reached, StateError if it is damaged, not ours or of a newer version.
    """
    if endpoint.scheme in ("s3", "file"):
        from strandline.state.objects import object_state

        return object_state(endpoint)
    if endpoint.scheme == "delta":
        from strandline.state.delta_files import delta_state

        return delta_state(endpoint)
    if endpoint.scheme == "catalog":
        if spark is None:
            raise ConfigError(
                f"the state {endpoint} is reached through a Spark session, and none was given",
                remedy="Give yours: strandline.load(spark=spark), or sync(…, spark=spark).",
                docs="docs/state.md#catalog",
            )
        from strandline.state.delta_catalog import catalog_state

        return catalog_state(endpoint, spark)
    endpoint, state = _cached(endpoint)
    match endpoint.scheme:
        case "sqlite":
            from strandline.state.sqlite import dialect
        case "postgresql":
            from strandline.state.postgres import dialect
        case "mysql":
            from strandline.state.mysql import dialect
        case scheme:
            raise ConfigError(
                f"a state cannot live in {scheme!r}",
                remedy="Give sqlite:///FILE, postgresql:// or mysql://USER@HOST/DATABASE, "
                "s3://BUCKET/…, delta:PATH, catalog:CATALOG.SCHEMA or a folder.",
            )
    return state(dialect(endpoint))


def _cached(endpoint: Endpoint) -> tuple[Endpoint, type[SqlState]]:
    """The address without the option `cache`, and what it asks for."""
    from strandline.state.cached import CachedState
    from strandline.state.sql import SqlState

    options = dict(endpoint.options)
    cache = options.pop("cache", None)
    if cache not in (None, "memory"):
        raise ConfigError(f'{endpoint}: cache: {cache} is not known; there is "memory"')
    return replace(endpoint, options=options), CachedState if cache else SqlState

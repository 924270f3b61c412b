"""State stores: where positions, leases and history are kept. A store's driver is loaded when one is opened."""

from __future__ import annotations

from strandline.core.errors import ConfigError
from strandline.core.protocols import State
from strandline.endpoint import Endpoint


def open_state(endpoint: Endpoint) -> State:
    """The store at this address, made if it is not there yet and brought to this version if it is older.

    Raises ConnectError if it cannot be reached, StateError if it is damaged, not ours or of a newer version.
    """
    if endpoint.scheme in ("s3", "file"):
        from strandline.state.objects import object_state

        return object_state(endpoint)
    from strandline.state.sql import SqlState

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
                remedy="Give sqlite:///FILE, postgresql:// or mysql://USER@HOST/DATABASE, s3://BUCKET/… or a folder.",
            )
    return SqlState(dialect(endpoint))

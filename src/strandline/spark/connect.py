"""Sessions on a Spark Connect server: somebody else's (`spark: {remote: sc://…}`), or the warm one of this user.

Owns how a server is reached and how long its silence is borne. The server is never ended here.
"""

from __future__ import annotations

import atexit
import os
import re
import warnings
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakSet

from strandline.core.errors import ConfigError, ConnectError, SetupError
from strandline.spark.later import pandas_later

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# How often a call that finds nobody is made again, each time after four times as long: a second in all, or 17.
# Spark's own would be 15 times and over ten minutes, and a run tries a batch again by itself.
_RETRIES_NEARBY, _RETRIES = 3, 5
_READY_SECONDS = 10
_SAID = re.compile(r'details = "([^"]+)"')
_unclosed: WeakSet[SparkSession] = WeakSet()


def remote_session(address: str, conf: Mapping[str, str]) -> SparkSession:
    """A session on somebody else's server, with these settings. ConnectError if it cannot be reached, or refuses."""
    _check_packages()
    from pyspark.sql import SparkSession

    server = address.partition("/;")[0]
    session = None
    try:
        session = closed_at_exit(SparkSession.builder.remote(address).create())
        patience(session, _RETRIES_NEARBY)
        session.conf.get("spark.sql.session.timeZone")
        patience(session, _RETRIES)
    except Exception as error:
        if session is not None:
            leave(session)
        raise _told(server, error) from error
    for key, value in conf.items():
        try:
            session.conf.set(key, value)
        except Exception as error:
            leave(session)
            raise ConfigError(
                f"spark: conf: {key} cannot be set on the Spark Connect server {server}",
                why=str(error).strip().partition("\n")[0],
                remedy="Start the server with it, and leave it out here.",
            ) from error
    return session


def local_server_session(port: int, token: str) -> SparkSession:
    """A session on a server of this machine that knows the token. Whatever is wrong is raised as it comes."""
    _check_packages()
    from pyspark.sql.connect.client import ChannelBuilder
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    grpc = import_module("grpc")

    def channel(builder: ChannelBuilder) -> Any:
        # By number: the name "localhost" may be somebody else's ::1, and with any other name PySpark insists on TLS.
        trusted = grpc.composite_channel_credentials(
            grpc.local_channel_credentials(), grpc.access_token_call_credentials(token)
        )
        opened = builder._secure_channel(f"ipv4:127.0.0.1:{port}", trusted)
        grpc.channel_ready_future(opened).result(_READY_SECONDS)  # what holds the port may be no server at all
        return opened

    here = type("Here", (ChannelBuilder,), {"host": "127.0.0.1", "toChannel": channel})
    os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"  # as PySpark's own builder does, for its functions
    session = closed_at_exit(cast("SparkSession", ConnectSession.builder.channelBuilder(here()).create()))
    patience(session, _RETRIES_NEARBY)
    return session


def closed_at_exit(session: SparkSession) -> SparkSession:
    """A session that nobody closed keeps a process from ending: gRPC waits for a thread that is gone by then."""
    _unclosed.add(session)
    return session


@atexit.register
def _close_all() -> None:
    for session in list(_unclosed):
        leave(session)


def patience(session: SparkSession, retries: int) -> None:
    from pyspark.sql.connect.client.retries import DefaultPolicy

    session.client.set_retry_policies([DefaultPolicy(max_retries=retries)])


def answers(session: SparkSession) -> bool:
    """Whether the server still knows this session: it may have been ended, or have forgotten one not used for long."""
    try:
        session.conf.get("spark.sql.session.timeZone")
    except Exception:  # whatever it fails with, it does not answer
        return False
    return True


def leave(session: SparkSession) -> None:
    """Give a session back; whether the server still hears it is all the same."""
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    assert isinstance(session, ConnectSession)
    patience(session, 0)
    with suppress(Exception):  # its server may be dead
        session.client.release_session()
    session.client.close()
    _unclosed.discard(session)
    if session is ConnectSession._default_session:
        ConnectSession._default_session = None
    if session is getattr(ConnectSession._active_session, "session", None):
        ConnectSession._active_session.session = None


def _check_packages() -> None:
    warnings.filterwarnings("ignore", r"\[RETRIES_EXCEEDED\]", UserWarning)  # the error itself is told
    try:
        with pandas_later():
            import_module("pyspark.sql.connect.session")
    except ImportError as error:
        raise SetupError(
            "PySpark cannot speak to a Spark Connect server here",
            why=str(error).strip().partition("\n")[0],
            remedy="pip install 'strandline[spark]'",
        ) from error


def _told(server: str, error: Exception) -> ConnectError:
    text = str(error)
    if "UNAUTHENTICATED" in text:
        return ConnectError(
            f"the Spark Connect server {server} refuses the token",
            remedy="Give the server's own: spark: {remote: sc://host:15002/;token=${SPARK_TOKEN}}",
        )
    return ConnectError(
        f"the Spark Connect server {server} cannot be reached",
        why=found[1] if (found := _SAID.search(text)) else text.strip().partition("\n")[0],
        remedy="Check that it runs there. With a token, TLS is used, except where the host is spelled localhost.",
        docs="docs/spark.md#remote",
    )

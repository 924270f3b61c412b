"""The Java that the Spark of this process runs in: how it comes up, and how it is left.

PySpark would import itself, then start Java, then look ten times a second whether it is there. Here Java starts beside
the import.
"""

from __future__ import annotations

import os
import shlex
import struct
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from socket import create_connection
from subprocess import PIPE, Popen
from threading import Thread
from typing import TYPE_CHECKING, Any, cast

from strandline.spark.later import numpy_only_where_it_is

if TYPE_CHECKING:
    from pyspark import SparkContext

_LOOK_SECONDS = 0.01
_NOT_INTERRUPTED = 'trap "" INT; exec "$0" "$@"'  # Ctrl-C is for us, who stop Spark in order


@contextmanager
def java_started(spark_submit: Path) -> Iterator[None]:
    """Within it PySpark meets a Java that is there already: an earlier one of this process, or one that is started here
    as the environment says. Raises RuntimeError if it does not come up."""
    if "PYSPARK_GATEWAY_PORT" in os.environ or _java_there():
        yield
        return
    with tempfile.TemporaryDirectory(prefix="strandline-java-") as folder:
        answer = Path(folder) / "answer"
        java = _start(spark_submit, answer)
        try:
            from pyspark import SparkContext

            numpy_only_where_it_is()
            port, secret = _read(java, answer)
        except BaseException:
            _end(java)
            raise
    try:
        with environment(PYSPARK_GATEWAY_PORT=str(port), PYSPARK_GATEWAY_SECRET=secret):
            yield
    finally:
        if SparkContext._gateway is None:
            _end(java)
        else:
            SparkContext._gateway.proc = java  # kept: it ends as soon as the pipe to it is closed


def end_accumulators(context: SparkContext) -> None:
    """Before Spark is stopped. PySpark would wait until their server looks whether it is to end, twice a second; a
    caller wakes it, and another one if the first came too early."""
    server: Any = getattr(context, "_accumulatorServer", None)
    if server is None or not isinstance(server.server_address, tuple):
        return
    server.server_shutdown = True  # whoever calls has nothing to say
    ending = Thread(target=server.shutdown, daemon=True)
    ending.start()
    while ending.is_alive():
        with suppress(OSError):
            create_connection(server.server_address, 1).close()
        ending.join(_LOOK_SECONDS)
    cast(Any, context)._accumulatorServer = None


@contextmanager
def environment(**variables: str) -> Iterator[None]:
    """Set for the moment in which Java is started and found."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _java_there() -> bool:
    module = sys.modules.get("pyspark.core.context")
    return module is not None and module.SparkContext._gateway is not None


def _start(spark_submit: Path, answer: Path) -> Popen[bytes]:
    arguments = shlex.split(os.environ["PYSPARK_SUBMIT_ARGS"])
    told = {"SPARK_CONNECT_MODE": "0", "_PYSPARK_DRIVER_CONN_INFO_PATH": str(answer)}
    command = ["/bin/sh", "-c", _NOT_INTERRUPTED, str(spark_submit), *arguments]
    return Popen(command, stdin=PIPE, env={**os.environ, **told})


def _end(java: Popen[bytes]) -> None:
    with java:  # its pipe is closed, and it is waited for
        java.kill()


def _read(java: Popen[bytes], answer: Path) -> tuple[int, str]:
    """The port and the secret, which Java writes under another name and renames."""
    while not answer.exists():
        if java.poll() is not None:
            raise RuntimeError(f"Java ended with exit code {java.returncode} before Spark was there")
        time.sleep(_LOOK_SECONDS)
    port, length = struct.unpack_from("!ii", said := answer.read_bytes())
    return port, said[8 : 8 + length].decode()

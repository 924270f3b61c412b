"""Between this process and the Java that Spark runs in: how it comes up, and how values are handed to it.

PySpark would import itself, then start Java, look ten times a second whether it is there, and import pandas to find out
that a text is no array of NumPy's. Here Java starts beside the import, and pandas stays where it is.
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
from importlib import import_module
from pathlib import Path
from socket import create_connection
from subprocess import PIPE, Popen
from threading import Thread
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from pyspark import SparkContext

_LOOK_SECONDS = 0.01
_NOT_INTERRUPTED = 'trap "" INT; exec "$0" "$@"'  # Ctrl-C is for us, who stop Spark in order
_OF_NUMPY = {"NumpyScalarConverter": "generic", "NumpyArrayConverter": "ndarray"}


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

            _lighten()
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
    caller wakes it."""
    server: Any = getattr(context, "_accumulatorServer", None)
    if server is None or not isinstance(server.server_address, tuple):
        return
    server.server_shutdown = True  # it does not listen to us
    ending = Thread(target=server.shutdown, daemon=True)
    ending.start()
    with suppress(OSError):
        create_connection(server.server_address, 1).close()
    ending.join()
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


def _lighten() -> None:
    """PySpark looks for NumPy's values in whatever is handed to Java, and to know whether there is a NumPy it imports
    its tools for tests, and with them pandas. Who has such a value has imported NumPy."""
    import_module("pyspark.sql")  # it adds them
    converters = import_module("py4j.protocol").INPUT_CONVERTER
    converters[:] = [
        _OfNumpy(each, _OF_NUMPY[type(each).__name__]) if type(each).__name__ in _OF_NUMPY else each
        for each in converters
    ]


class _OfNumpy:
    def __init__(self, converter: Any, kind: str) -> None:
        self._converter = converter
        self._kind = kind

    def can_convert(self, value: object) -> bool:
        kind = getattr(sys.modules.get("numpy"), self._kind, ())
        return isinstance(value, kind) and bool(self._converter.can_convert(value))

    def convert(self, value: object, client: object) -> object:
        return self._converter.convert(value, client)

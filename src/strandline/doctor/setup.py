"""Checks of this machine: Java, Spark, jars and drivers; or of the Spark Connect server. Starts nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from strandline.core.errors import ConnectError, SetupError
from strandline.doctor.finding import Finding, Level, fail, ok, warn
from strandline.endpoint import Endpoint
from strandline.spark.jars import PINNED, absent
from strandline.spark.java import find_java
from strandline.spark.storage import needs

_AREA = "setup"
_SHOWN = 6
_DRIVERS = {
    "postgresql": ("psycopg", "postgres"),
    "mysql": ("PyMySQL", "mysql"),
    "delta": ("deltalake", "delta"),
    "s3": ("obstore", "s3"),
    "kafka": ("confluent-kafka", "kafka"),
}


def check_setup(
    moved: Iterable[Endpoint], state: Endpoint | None = None, remote: str | None = None
) -> Iterator[Finding]:
    """`moved`: the ends between which Spark moves rows; the state needs no jar. `remote`: the server that has Java and
    jars instead of this machine."""
    jars = needs(moved)
    yield from _remote(remote) if remote else _java()
    yield from _package("pyspark", "Spark", "spark")
    for need in sorted({*jars, *(needs([state]) if state else ())}):
        package, extra = _DRIVERS[need]
        yield from _package(package, package, extra)
    yield from () if remote else _jars(jars)


def _remote(address: str) -> Iterator[Finding]:
    from strandline.spark.connect import leave, remote_session

    try:
        session = remote_session(address, {})
    except (ConnectError, SetupError) as error:
        yield fail(_AREA, error)
        return
    yield ok(_AREA, f"a Spark Connect server with Spark {session.version} at {address.partition('/;')[0]}")
    leave(session)


def _java() -> Iterator[Finding]:
    try:
        home = Path(find_java())
    except SetupError as error:
        yield fail(_AREA, error)
        return
    found = re.search(r'^JAVA_VERSION="(.*)"', (home / "release").read_text(), re.MULTILINE)
    yield ok(_AREA, f"Java {found[1] if found else 'of an unknown version'} in {home}")


def _package(package: str, name: str, extra: str) -> Iterator[Finding]:
    try:
        yield ok(_AREA, f"{name} {version(package)}")
    except PackageNotFoundError:
        remedy = f"pip install 'strandline[{extra}]'"
        yield Finding(Level.FAIL, _AREA, f"the package {package} is not installed", remedy)


def _jars(wanted_for: list[str]) -> Iterator[Finding]:
    if not wanted_for:
        return
    missing = absent(wanted_for)
    if missing:
        names = _listed([jar.coordinates for jar in missing])
        yield warn(_AREA, f"jars to be fetched at the first sync: {names}", "Without network, set STRANDLINE_JARS.")
    else:
        names = _listed([jar.file.removesuffix(".jar") for need in wanted_for for jar in PINNED[need]])
        yield ok(_AREA, f"jars {names}")


def _listed(names: list[str]) -> str:
    """S3A alone needs dozens."""
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")

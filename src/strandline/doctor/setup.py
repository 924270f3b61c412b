"""Checks of this machine: Java, Spark, jars and drivers. Starts nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from strandline.core.errors import SetupError
from strandline.doctor.finding import Finding, Level, fail, ok, warn
from strandline.spark.jars import PINNED, absent
from strandline.spark.java import find_java

_AREA = "setup"
_DRIVERS = {
    "postgresql": ("psycopg", "postgres"),
    "mysql": ("PyMySQL", "mysql"),
    "delta": ("deltalake", "delta"),
}


def check_setup(schemes: Iterable[str]) -> Iterator[Finding]:
    needs = [scheme for scheme in schemes if scheme in PINNED]
    yield from _java()
    yield from _package("pyspark", "Spark", "spark")
    for scheme in needs:
        yield from _package(_DRIVERS[scheme][0], _DRIVERS[scheme][0], _DRIVERS[scheme][1])
    yield from _jars(needs)


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


def _jars(needs: list[str]) -> Iterator[Finding]:
    if not needs:
        return
    missing = absent(needs)
    wanted = [jar for need in needs for jar in PINNED[need]]
    if missing:
        names = ", ".join(jar.coordinates for jar in missing)
        yield warn(_AREA, f"jars to be fetched at the first sync: {names}", "Without network, set STRANDLINE_JARS.")
    else:
        yield ok(_AREA, "jars " + ", ".join(jar.file.removesuffix(".jar") for jar in wanted))

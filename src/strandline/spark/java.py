"""Java: which one Spark is started with. Knows nothing of Spark itself."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from strandline.core.errors import SetupError

OLDEST = 17
_FOLDERS = (
    "/usr/lib/jvm/*",
    "/usr/java/*",
    "/opt/java/*",
    "/opt/homebrew/opt/openjdk*/libexec/openjdk.jdk/Contents/Home",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
)


def find_java() -> str:
    """The home folder of a Java that Spark can run on: JAVA_HOME, then PATH, then the usual folders."""
    seen: list[str] = []
    for home in _homes():
        fault = _fault(home)
        if fault is None:
            return str(home)
        seen.append(f"{home}: {fault}")
    raise SetupError(
        f"Java {OLDEST} or newer was not found",
        why="\n".join(seen) or "Spark runs on Java; none is in JAVA_HOME, on the PATH or in the usual folders.",
        remedy=(
            f"Install one (Debian, Ubuntu: apt-get install openjdk-{OLDEST}-jre-headless; Fedora: dnf install "
            f"java-{OLDEST}-openjdk-headless; macOS: brew install openjdk@{OLDEST}), or point JAVA_HOME at one."
        ),
    )


def _homes() -> Iterator[Path]:
    if named := os.environ.get("JAVA_HOME"):
        yield Path(named)
    if program := shutil.which("java"):
        yield Path(program).resolve().parent.parent
    for pattern in _FOLDERS:
        yield from sorted(Path("/").glob(pattern.removeprefix("/")))


def _fault(home: Path) -> str | None:
    """Why Spark cannot use this home; the `release` file spares starting a JVM to ask."""
    if not os.access(home / "bin" / "java", os.X_OK):
        return "has no bin/java"
    try:
        release = (home / "release").read_text()
    except OSError:
        return "has no release file, so its version is unknown"
    found = re.search(r'^JAVA_VERSION="(?:1\.)?(\d+)', release, re.MULTILINE)
    if not found or int(found[1]) < OLDEST:
        return f"is Java {found[1] if found else 'of an unknown version'}"
    modules = re.search(r'^MODULES="(.*)"', release, re.MULTILINE)
    if modules and "jdk.incubator.vector" not in modules[1].split():
        return "lacks the module jdk.incubator.vector, without which Spark does not start"
    return None

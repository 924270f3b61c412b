"""Jars: the pinned files Spark needs beside its own, per need, and where they come from.

Owns versions, checksums and the cache. Spark's own resolver fetches them once by their coordinates, so mirrors, proxies
and repositories are configured where Spark's users already do it; afterwards Spark is handed plain files.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from strandline.core.errors import SetupError
from strandline.spark.jars_s3 import AWS_PARTS, AWS_SDK, OTHERS
from strandline.spark.java import find_java


@dataclass(frozen=True)
class Jar:
    coordinates: str  # group:module:version
    sha256: str

    @property
    def file(self) -> str:
        _, module, version = self.coordinates.split(":")
        return f"{module}-{version}.jar"

    @property
    def module(self) -> str:
        return self.coordinates.rpartition(":")[0]

    @property
    def retrieved(self) -> str:
        """The name Spark's resolver gives the file."""
        return f"{self.coordinates.split(':')[0]}_{self.file}"


PINNED: dict[str, tuple[Jar, ...]] = {
    "delta": (
        Jar(
            "io.delta:delta-spark_4.2_2.13:4.4.0",
            "27d4fd8b1f879535c573ed1c718177d6a27f24d3e626ba02e216369725721ead",
        ),
        Jar("io.delta:delta-storage:4.4.0", "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc"),
    ),
    "postgresql": (
        Jar("org.postgresql:postgresql:42.7.14", "73914527305a40cce504b0d3d90b23caf565136912d607ae8ae7c5895512332c"),
    ),
    "mysql": (
        Jar("com.mysql:mysql-connector-j:9.7.0", "0353648eaa1c91e0f4020c959abf756bc866ffd583df22ae6b6f6e0cbd43eb44"),
    ),
    "kafka": (
        Jar(
            "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
            "64539c45e5d39f7ddb747312c239f38f5208d08c1a0ddf7d70beb2fbd9373705",
        ),
        # Not every mirror has 4.2.0 of this one; it serves Kerberos only, and has not changed.
        Jar(
            "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
            "f2be3b76f9e6cbe63379d4e4e0dc14f59dbf056ae2ad16ff15ac108004c86767",
        ),
        Jar("org.apache.kafka:kafka-clients:3.9.2", "014b4ef36884478a932641818b080c36a8f8e2e92dc771e800c9d2694f4f83d8"),
        Jar(
            "org.apache.commons:commons-pool2:2.13.1",
            "f77a5060d6936a9144023584232f9de3f2248f1abfe156e9d31795f18770674f",
        ),
    ),
    "s3": tuple(
        Jar(coordinates, sha256)
        for coordinates, sha256 in {
            **{f"software.amazon.awssdk:{part}:{AWS_SDK}": sha256 for part, sha256 in AWS_PARTS.items()},
            **OTHERS,
        }.items()
    ),
}

# What the pinned jars name as dependencies but Spark already carries, or they do without.
_EXCLUDED = (
    "io.delta:delta-kernel-*",
    "io.unitycatalog:*",
    "org.apache.hadoop:*",
    "org.apache.parquet:*",
    "org.apache.logging.log4j:*",
    "com.fasterxml.jackson.*:*",
    "org.slf4j:*",
    "org.roaringbitmap:*",
    "org.xerial.snappy:*",
    "com.github.luben:*",
    "io.airlift:*",
    "org.locationtech.jts:*",
    "com.google.*:*",
    "commons-*:*",
    "javax.annotation:*",
    "org.checkerframework:*",
    "org.apache.httpcomponents:*",
    "io.netty:*",
    "org.wildfly.openssl:*",
    "software.amazon.awssdk:bundle",
    "org.lz4:*",
    "org.scala-lang*:*",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13",
)


def jars(needs: Iterable[str], cache: Path | None = None) -> list[Path]:
    """The checked files for these needs (names in PINNED), fetched if the cache lacks any.

    With STRANDLINE_JARS set, only that folder is read and nothing is fetched. Raises SetupError.
    """
    return files([jar for need in dict.fromkeys(needs) for jar in PINNED[need]], cache)


def files(wanted: Iterable[Jar], cache: Path | None = None) -> list[Path]:
    """These jars, as `jars` gives those of a need."""
    wanted = list(wanted)
    given = os.environ.get("STRANDLINE_JARS")
    if given:
        return [_prefilled(Path(given), jar) for jar in wanted]
    folder = cache or cache_folder()
    missing = [jar for jar in wanted if not _sound(folder / jar.file, jar)]
    if missing:
        _resolve(missing, folder)
    return [folder / jar.file for jar in wanted]


def absent(needs: Iterable[str]) -> list[Jar]:
    """The jars that are not at hand, or are not the pinned files; nothing is fetched."""
    given = os.environ.get("STRANDLINE_JARS")
    folder = Path(given) if given else cache_folder()
    wanted = [jar for need in dict.fromkeys(needs) for jar in PINNED[need]]
    return [jar for jar in wanted if not _sound(folder / jar.file, jar)]


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "strandline" / "jars"


def _prefilled(folder: Path, jar: Jar) -> Path:
    file = folder / jar.file
    if not _sound(file, jar):
        state = "is not the pinned file (its SHA-256 differs)" if file.exists() else "is missing"
        raise SetupError(
            f"{file} {state}",
            why=f"STRANDLINE_JARS names the folder to take jars from, so nothing is fetched.\nSHA-256 {jar.sha256}",
            remedy=f"Put the jar of {jar.coordinates} there, or unset STRANDLINE_JARS to have it fetched.",
        )
    return file


def _sound(file: Path, jar: Jar) -> bool:
    try:
        with file.open("rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest() == jar.sha256
    except (FileNotFoundError, NotADirectoryError):
        return False


def _resolve(missing: list[Jar], folder: Path) -> None:
    """Fetch into a private folder beside the cache, check, rename: no process ever sees half a jar."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        private = tempfile.TemporaryDirectory(dir=folder, prefix=".resolving-")
    except OSError as error:
        raise SetupError(
            f"the jar cache {folder} cannot be written: {error.strerror}",
            remedy="Set XDG_CACHE_HOME to a folder that can, or STRANDLINE_JARS to a folder that holds the jars.",
        ) from error
    with private as name:
        # What others name in a version that we do not take is left out for them, and fetched by itself.
        apart = [jar for jar in missing if jar.module in _EXCLUDED]
        together = [jar for jar in missing if jar not in apart]
        log = "".join(_run_resolver(part, Path(name)) for part in (together, apart) if part)
        for jar in missing:
            fetched = Path(name) / "jars" / jar.retrieved
            if not _sound(fetched, jar):
                what = "is not the pinned file (its SHA-256 differs)" if fetched.exists() else "could not be fetched"
                raise SetupError(
                    f"{jar.coordinates} {what}",
                    why=_tail(log),
                    remedy=(
                        "Behind a mirror, set STRANDLINE_IVY_SETTINGS to an Ivy settings file (or, in "
                        "spark-defaults.conf, spark.jars.ivySettings).\n"
                        "Without network, set STRANDLINE_JARS to a folder that holds:\n"
                        + "\n".join(f"  {each.file}   ({each.coordinates})" for each in missing)
                    ),
                )
            fetched.replace(folder / jar.file)


def _run_resolver(missing: list[Jar], private: Path) -> str:
    """Have spark-submit resolve packages for the smallest program on Spark's class path; returns what it said."""
    wanted = [jar.module for jar in missing]
    excluded = [rule for rule in _EXCLUDED if not any(fnmatchcase(module, rule) for module in wanted)]
    command = [
        str(spark_home() / "bin" / "spark-submit"),
        *("--master", "local", "--packages", ",".join(jar.coordinates for jar in missing)),
        *("--conf", f"spark.jars.excludes={','.join(excluded)}", "--conf", f"spark.jars.ivy={private}"),
    ]
    if settings := os.environ.get("STRANDLINE_IVY_SETTINGS"):
        command += ["--conf", f"spark.jars.ivySettings={settings}"]
    command += ["--class", "org.apache.hadoop.util.VersionInfo", "spark-internal"]
    environment = {
        **os.environ,
        "SPARK_HOME": str(spark_home()),
        "JAVA_HOME": find_java(),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    done = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    return done.stdout


def spark_home() -> Path:
    """The installed Spark: SPARK_HOME, or the PySpark package."""
    if named := os.environ.get("SPARK_HOME"):
        return Path(named)
    from importlib.util import find_spec

    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise SetupError("PySpark is not installed", remedy="pip install 'strandline[spark]'")
    return Path(spec.origin).parent


def _tail(log: str) -> str:
    """The lines that say why, without the resolver's report table."""
    lines = [line.strip() for line in log.splitlines() if line.strip(" \t:|-=")]
    telling = [line for line in lines if any(word in line.lower() for word in ("error", "exception", "not found"))]
    return "\n".join((telling or lines)[:8])

"""Spark's daemon that forks its Python workers, started so that they begin at once. Spark runs it instead of its own.

Spark puts its Python code on their path as a zip, which Python compiles anew in every process. The same code lies
beside it as files, which Python keeps compiled. And what every worker imports is imported here once, as far as it
starts no thread: no fork takes one along. Spark ends a worker that had nothing to do for a minute.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path

_ZIPS = "pyspark/python/lib"


def unpacked(path: list[str]) -> list[str]:
    """Without the zips of a Spark that is installed on this very path."""
    return [entry for entry in path if not any(Path(entry).parent == Path(at, _ZIPS) for at in path)]


if __name__ == "__main__":
    sys.path[:] = unpacked(sys.path)
    for name in ("pyspark.worker", "psycopg"):
        with suppress(ImportError):  # who needs it will say so
            import_module(name)
    from pyspark.daemon import manager

    manager()

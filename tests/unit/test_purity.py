"""The core, and everything a sync with nothing new touches, loads neither Spark nor a driver."""

from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
import importlib, pkgutil, sys
import strandline, strandline.core
for module in pkgutil.walk_packages(strandline.core.__path__, "strandline.core."):
    importlib.import_module(module.name)
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""
_HEAVY = {"pyspark", "py4j", "pandas", "pyarrow", "psycopg", "pymysql", "deltalake", "sqlalchemy", "grpc"}


def test_importing_the_core_loads_neither_spark_nor_a_driver() -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM], check=True, capture_output=True, text=True)
    loaded = set(done.stdout.split())
    assert "strandline" in loaded
    assert not loaded & _HEAVY

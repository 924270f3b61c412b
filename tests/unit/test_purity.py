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
_SESSIONLESS = """
from strandline import Tracker
from strandline.core.errors import SetupError
from strandline.state.memory import MemoryState
try:
    Tracker(MemoryState(), pipeline="wos").run("wos.orders").__enter__()
except SetupError as error:
    print(error.remedy)
from pyspark import SparkContext
print(SparkContext._active_spark_context)
"""
_HEAVY = {"pyspark", "py4j", "pandas", "pyarrow", "psycopg", "pymysql", "deltalake", "sqlalchemy", "grpc"}


def test_a_database_as_target_loads_no_spark_before_rows_pass_through_it() -> None:
    program = (
        "import sys, strandline.project\n"
        "from strandline.sinks import mysql, postgres, sql_server\n"
        "sys.exit('pyspark' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_importing_the_core_loads_neither_spark_nor_a_driver() -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM], check=True, capture_output=True, text=True)
    loaded = set(done.stdout.split())
    assert "strandline" in loaded
    assert not loaded & _HEAVY


def test_a_tracker_makes_no_spark_session_where_there_is_none() -> None:
    """In a process of its own: another test may have made one."""
    done = subprocess.run([sys.executable, "-c", _SESSIONLESS], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["Pass yours: tracker.run(tables, spark=spark)", "None"]

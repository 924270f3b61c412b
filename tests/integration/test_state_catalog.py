"""The state in a catalog's table, through the caller's Spark session.

Each write costs Spark about a second, so what is quick to tell decides what is always run: one long story, the races,
and the refusals. STRANDLINE_SOAK=1 runs the whole contract suite.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from strandline.core.errors import ConfigError, ConflictError, StateError
from strandline.endpoint import Endpoint
from strandline.state import delta_catalog, open_state
from strandline.state.delta_catalog import TABLE
from strandline.state.delta_marks import SCHEMA_VERSION
from strandline.testing.state import Connect, StateContract, keys, position, run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def schema(spark: SparkSession) -> Iterator[str]:
    """A schema of this test's own in the session's catalog."""
    name = f"state_{uuid.uuid4().hex[:8]}"
    spark.sql(f"CREATE SCHEMA spark_catalog.{name}")
    yield f"spark_catalog.{name}"
    spark.sql(f"DROP SCHEMA spark_catalog.{name} CASCADE")


@pytest.fixture
def connect(spark: SparkSession, schema: str) -> Connect:
    return lambda: open_state(Endpoint.parse(f"catalog:{schema}"), lambda: spark)


_SOAK = bool(os.environ.get("STRANDLINE_SOAK"))


@pytest.mark.timeout(1800)
class TestCatalogState(StateContract):
    many, rounds = 200, 3 if _SOAK else 2

    @pytest.fixture
    def connect(self, connect: Connect) -> Connect:
        return connect


_ALWAYS = (
    "test_one_conflict_leaves_all_records_as_they_were",
    "test_concurrent_increments_are_never_lost",
    "test_threads_may_share_one_state",
)
if not _SOAK:
    for name in dir(StateContract):
        if name.startswith("test_") and name not in _ALWAYS:
            setattr(TestCatalogState, name, None)


def test_what_is_put_is_read_compared_and_pruned(
    spark: SparkSession, schema: str, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside a caller who has set, on the session, what makes Delta skip a write; and tidied on the way."""
    monkeypatch.setattr(delta_catalog, "_EVERY", 4)
    for name, value in (("txnAppId", "theirs"), ("txnVersion", "1")):
        spark.conf.set(f"spark.databricks.delta.write.{name}", value)
    try:
        state, other = connect(), connect()
        text = "quote ' back \\ slash\\n\n é 😀 ${spark.app.name} :p0"
        a, b, old = state.put([position("a", error=text), position("b"), run("r1", pipeline=text, tables=1)])
        assert [record.revision for record in (a, b, old)] == [1, 1, 1]
        assert other.identity() == state.identity()
        assert other.read("position") == [a, b] and other.read("run", where={"pipeline": text}) == [old]
        (newer,) = other.put([replace(b, fields={"epoch": 7})])
        with pytest.raises(ConflictError, match="shop/b/load"):
            state.put([replace(a, fields={"epoch": 9}), run("r2"), b])
        assert state.read("position") == [a, newer] and keys(state.read("run")) == [("r1",)]
        state.delete([a])
        state.append([run("r1", tables=5), run("r2", tables=2)])
        assert [record.fields["tables"] for record in other.read("run", newest=2)] == [2, 1]
        assert other.read("position") == connect().read("position") == [newer]
        assert state.prune("run", "r2") == 1 and keys(other.read("run")) == [("r2",)]
        assert other.put([position("a", epoch=1)])[0].revision == 1
        with pytest.raises(ConflictError):
            state.put([run("r2")])
        rows = spark.table(f"{schema}.{TABLE}").where("part = 'watermarks'").count()
        assert rows <= 4  # what was replaced is gone
    finally:
        for name in ("txnAppId", "txnVersion"):
            spark.conf.unset(f"spark.databricks.delta.write.{name}")


def test_of_makers_at_once_one_wins_and_nobody_is_turned_away(connect: Connect) -> None:
    making = threading.Barrier(4)

    def made(_: int) -> str:
        making.wait(timeout=600)
        own = connect()
        own.close()
        return own.identity()

    with ThreadPoolExecutor(4) as pool:
        identities = set(pool.map(made, range(4)))
    assert identities == {connect().identity()}


def test_what_is_no_state_of_ours_is_refused(spark: SparkSession, schema: str, connect: Connect) -> None:
    def refused(told: str) -> None:
        with pytest.raises(StateError, match=told) as error:
            connect()
        assert error.value.remedy

    table = f"{schema}.{TABLE}"
    spark.sql(f"CREATE TABLE {table} (id INT) USING DELTA")
    refused("a Delta table of something else")
    spark.sql(f"DROP TABLE {table}")
    spark.sql(f"CREATE TABLE {table} (id INT) USING PARQUET")
    refused("is no Delta table")
    spark.sql(f"DROP TABLE {table}")
    state = connect()
    state.put([position("orders")])
    spark.sql(f"ALTER TABLE {table} ADD COLUMNS (owner_team STRING)")
    refused("foreign columns: owner_team")
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('{SCHEMA_VERSION}' = '99')")
    refused("newer Strandline")
    columns = ", ".join("seq + 1" if name == "seq" else f"`{name}`" for name in spark.table(table).columns)
    spark.sql(f"INSERT INTO {table} SELECT {columns} FROM {table}")  # as the newer one does
    with pytest.raises(StateError, match="newer Strandline"):
        state.read("position")
    with pytest.raises(StateError, match="nowhere"):
        open_state(Endpoint.parse("catalog:spark_catalog.nowhere"), lambda: spark)


def test_without_a_session_or_a_schema_it_says_what_to_write(spark: SparkSession) -> None:
    with pytest.raises(ConfigError, match="none was given"):
        open_state(Endpoint.parse("catalog:main.ops"))
    with pytest.raises(ConfigError, match="names no schema"):
        open_state(Endpoint.parse("catalog:ops"), lambda: spark)

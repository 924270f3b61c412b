"""The traps again from PostgreSQL into Snowflake's stand-in, where rows come as files and keys are nobody's to keep."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from test_traps_failures import (
    test_trap_15_crash_before_and_between_the_sinks_commit_and_the_states,
    test_trap_21_null_and_repeated_merge_keys,
    test_trap_22_schema_changes_between_runs_and_inside_a_window,
)
from trap_shop import PostgresDatabase, Shop

from strandline.endpoint import Endpoint
from strandline.sources.snowflake_names import quoted, shown, stored
from strandline.sources.snowflake_session import SnowflakeSession
from strandline.testing.snowflake import Fakesnow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "test_trap_15_crash_before_and_between_the_sinks_commit_and_the_states",
    "test_trap_21_null_and_repeated_merge_keys",
    "test_trap_22_schema_changes_between_runs_and_inside_a_window",
]


class Snowflake:
    """A database of the test's own."""

    def __init__(self, server: Fakesnow) -> None:
        self.url = server.url(f"T_{uuid.uuid4().hex[:12]}/PUBLIC")
        self.session = SnowflakeSession(Endpoint.parse(self.url))

    def rows(self, table: str) -> list[dict[str, Any]]:
        if not self.session.rows(f"SELECT 1 FROM INFORMATION_SCHEMA.TABLES WHERE TABLE_NAME = '{stored(table)}'"):
            return []
        found = self.session.records(f"SELECT * FROM {quoted(table)}")
        return [{shown(name.upper()): value for name, value in row.items()} for row in found]

    def column(self, table: str, name: str) -> list[Any]:
        return [row[name] for row in self.rows(table)]

    @contextmanager
    def crowded(self) -> Iterator[None]:
        pytest.skip("Snowflake has no disk that could be full")
        yield

    def close(self) -> None:
        self.session.close()


@pytest.fixture
def database(pg_database: str) -> Iterator[PostgresDatabase]:
    with closing(PostgresDatabase(pg_database)) as found:
        yield found


@pytest.fixture
def shop(database: PostgresDatabase, fakesnow: Fakesnow, tmp_path: Path, spark: SparkSession) -> Iterator[Shop]:
    with closing(Snowflake(fakesnow)) as target:
        yield Shop(database, target, tmp_path, spark)

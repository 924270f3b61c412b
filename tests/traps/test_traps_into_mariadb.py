"""The traps again from MariaDB into MariaDB, where what the target is told differs from what PostgreSQL is told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from test_traps import (
    test_trap_03_new_row_at_exactly_the_watermark,
    test_trap_07_second_update_within_the_same_cursor_tick,
    test_trap_09_null_cursor,
    test_trap_10_lookback,
    test_trap_11_precision,
    test_trap_13_zones,
)
from test_traps_failures import (
    test_trap_15_crash_before_and_between_the_sinks_commit_and_the_states,
    test_trap_19_integers_at_their_limits,
    test_trap_20_backward_and_future_cursors,
    test_trap_21_null_and_repeated_merge_keys,
    test_trap_22_schema_changes_between_runs_and_inside_a_window,
    test_trap_25_killed_at_every_step,
)
from trap_shop import MariaDatabase, Shop, SqlTarget

from strandline.testing.servers import MariaDB

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "test_trap_03_new_row_at_exactly_the_watermark",
    "test_trap_07_second_update_within_the_same_cursor_tick",
    "test_trap_09_null_cursor",
    "test_trap_10_lookback",
    "test_trap_11_precision",
    "test_trap_13_zones",
    "test_trap_15_crash_before_and_between_the_sinks_commit_and_the_states",
    "test_trap_19_integers_at_their_limits",
    "test_trap_20_backward_and_future_cursors",
    "test_trap_21_null_and_repeated_merge_keys",
    "test_trap_22_schema_changes_between_runs_and_inside_a_window",
    "test_trap_25_killed_at_every_step",
]


@pytest.fixture
def database(mariadb: MariaDB, mariadb_database: str) -> Iterator[MariaDatabase]:
    with closing(MariaDatabase(mariadb_database, mariadb)) as found:
        yield found


@pytest.fixture
def shop(database: MariaDatabase, mariadb: MariaDB, tmp_path: Path, spark: SparkSession) -> Iterator[Shop]:
    with closing(SqlTarget(mariadb)) as target:
        yield Shop(database, target, tmp_path, spark)

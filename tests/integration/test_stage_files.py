"""How large the files of a table's first batch come out, from PostgreSQL: nobody knows yet how wide its rows are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from lake_shop import Shop

from strandline.stage import write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MB = 1 << 20
NOISE = "(SELECT string_agg(md5(i::text || j || {}), '') FROM generate_series(1, {}) j)"  # no codec shrinks it by much


class Depot(Shop):
    """A shop whose stage aims at files of a megabyte."""

    def __init__(self, url: str, folder: Path, spark: SparkSession) -> None:
        super().__init__(url, folder, spark)
        self.pipeline["stage"] = {"url": "stage", "file_mb": 1}
        self.pipeline["defaults"] = {"cursor": "updated_at", "key": "id"}
        self.tables = ["wide"]

    def create(self, columns: str, rows: int, values: str) -> None:
        self.execute(f"CREATE TABLE wide (id bigint PRIMARY KEY, {columns}, updated_at timestamptz DEFAULT now())")
        self.insert_wide(1, rows, values)

    def insert_wide(self, first: int, last: int, values: str) -> None:
        self.execute(f"INSERT INTO wide SELECT i, {values}, clock_timestamp() FROM generate_series({first}, {last}) i")

    def extract(self) -> int:
        """Stage a batch; how many jobs Spark ran for it."""
        before = self._jobs()
        (outcome,) = self.sync(stages=["extract"]).tables
        assert outcome.error is None, outcome.error
        return self._jobs() - before

    def files(self, batch: int) -> list[int]:
        return [path.stat().st_size for path in self._paths(batch)]

    def staged(self, batch: int, *measures: str) -> tuple[Any, ...]:
        frame = self.spark.read.parquet(*[str(path) for path in self._paths(batch)])
        return tuple(frame.selectExpr(*measures).first())

    def _paths(self, batch: int) -> list[Path]:
        return sorted(self.folder.glob(f"stage/shop/wide/data/{batch:012d}-*/*.parquet"))

    def _jobs(self) -> int:
        return int(self.spark.sparkContext._jsc.sc().dagScheduler().numTotalJobs())


@pytest.fixture
def depot(pg_database: str, tmp_path: Path, spark: SparkSession) -> Iterator[Depot]:
    depot = Depot(pg_database, tmp_path, spark)
    yield depot
    depot.close()


def near_the_aim(files: list[int]) -> bool:
    return max(files) < 1.5 * MB and len(files) < 1.5 * sum(files) / MB + 1


def test_wide_columns_of_every_sort_make_files_near_the_aim(depot: Depot) -> None:
    columns = "t text, j jsonb, a text[], b bytea"
    wide = [NOISE.format(number, 12) for number in range(4)]
    values = "{}, jsonb_build_object('k', {}), ARRAY[{}], decode({}, 'hex')".format(*wide)
    depot.create(columns, 8_000, values)
    assert depot.extract() == 2  # written, and cut
    assert near_the_aim(depot.files(1)), depot.files(1)
    found = depot.staged(1, "count(DISTINCT id)", "sum(length(t) + length(a[0]) + 2 * length(b))", "max(length(j))")
    assert found == (8_000, 8_000 * 3 * 12 * 32, 12 * 32 + len('{"k": ""}'))
    depot.insert_wide(8_001, 16_000, values)
    assert depot.extract() == 1  # the batch before tells how wide they are
    assert near_the_aim(depot.files(2)), depot.files(2)


def test_rows_that_turn_wide_on_the_way_make_files_near_the_aim(depot: Depot) -> None:
    depot.create("t text", 60_000, f"CASE WHEN i <= 20000 THEN 'x' ELSE {NOISE.format(0, 16)} END")
    assert depot.extract() == 2
    assert near_the_aim(depot.files(1)), depot.files(1)
    assert depot.staged(1, "count(DISTINCT id)", "sum(length(t))") == (60_000, 20_000 + 40_000 * 16 * 32)
    # What the batch before told is wrong for the next.
    depot.insert_wide(60_001, 62_000, NOISE.format(0, 256))
    assert depot.extract() == 2
    assert near_the_aim(depot.files(2)), depot.files(2)


def test_narrow_rows_do_not_make_many_files(depot: Depot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write, "_SMALL_BYTES", 1 << 16)
    columns = [f"t{number}" for number in range(8)]
    depot.create(" text, ".join([*columns, ""])[:-2], 150_000, ", ".join(["'new'"] * len(columns)))
    assert depot.extract() == 2
    assert len(depot.files(1)) <= 2 + sum(depot.files(1)) / MB, depot.files(1)
    assert depot.staged(1, "count(DISTINCT id)", "count(DISTINCT t7)") == (150_000, 1)


@pytest.mark.parametrize(("columns", "values"), [("n numeric(10,2), b boolean", "i, true"), ("t text", "'row ' || i")])
def test_where_nothing_is_wrong_nothing_is_written_twice(depot: Depot, columns: str, values: str) -> None:
    depot.create(columns, 1_000, values)
    assert depot.extract() == 1
    depot.insert_wide(1_001, 1_100, values)
    assert depot.extract() == 1
    assert [len(depot.files(number)) for number in (1, 2)] == [1, 1]

"""The Sink contract on every sink there is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from strandline.core.errors import ConfigError
from strandline.core.table import Table
from strandline.endpoint import Endpoint
from strandline.sinks import open_sink
from strandline.testing.sink import Connect, Read, Row, SinkContract

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class TestDeltaSink(SinkContract):
    @pytest.fixture
    def connect(self, tmp_path: Path, spark: SparkSession) -> Connect:
        return lambda: open_sink(Endpoint.parse(f"delta:{tmp_path}/the lake"), lambda: spark)

    @pytest.fixture
    def read(self, tmp_path: Path, spark: SparkSession) -> Read:
        def rows(table: Table) -> list[Row]:
            folder = tmp_path / "the lake" / Path(*table.target.split("."))
            return [row.asDict() for row in spark.read.format("delta").load(str(folder)).collect()]

        return rows


def test_a_target_cannot_be_just_anything() -> None:
    def no_spark() -> SparkSession:
        raise AssertionError("no session is needed to refuse")

    with pytest.raises(ConfigError, match="sqlite"):
        open_sink(Endpoint.parse("sqlite:///x.db"), no_spark)

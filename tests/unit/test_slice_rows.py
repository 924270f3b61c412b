"""How many rows a batch holds where the config does not say."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from strandline.config import load_config
from strandline.pipeline import Pipeline, stages

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DELTA, POSTGRES = "delta:lake", "postgresql://loader@db/dw"


def no_spark() -> SparkSession:
    raise AssertionError("no rows move here")


@pytest.mark.parametrize(
    ("ends", "given", "rows", "load_rows"),
    [
        (f"target: {DELTA}", "", 5_000_000, 20_000_000),
        (f"targets: {{a: {DELTA}, b: 'delta:other'}}", "", 5_000_000, None),
        (f"target: {POSTGRES}", "", 5_000_000, None),
        (f"stage: files, target: {DELTA}", "", 5_000_000, None),
        (f"target: {DELTA}", ", transform: 'my:own'", 5_000_000, None),
        (f"target: {DELTA}", ", slice_rows: 7", 7, None),
    ],
)
def test_a_first_load_that_streams_into_a_lake_takes_more_at_once(
    tmp_path: Path, ends: str, given: str, rows: int, load_rows: int | None
) -> None:
    path = tmp_path / "strandline.yml"
    table = f"{{name: orders{given}}}"
    path.write_text(f"pipelines: {{shop: {{source: 'postgresql://reader@db/shop', {ends}, tables: [{table}]}}}}\n")
    spec = load_config(path).pipeline("shop")
    for stage in stages(spec):
        found = Pipeline(spec, stage, no_spark).unresolved(spec.tables[0])
        assert (found.slice_rows, found.load_rows) == (rows, load_rows)

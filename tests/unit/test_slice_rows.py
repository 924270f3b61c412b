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
    ("ends", "given", "rows"),
    [
        (f"target: {DELTA}", "", 20_000_000),
        (f"targets: {{a: {DELTA}, b: 'delta:other'}}", "", 20_000_000),
        (f"target: {POSTGRES}", "", 5_000_000),
        (f"targets: {{a: {DELTA}, b: {POSTGRES}}}", "", 5_000_000),
        (f"stage: files, target: {DELTA}", "", 5_000_000),
        (f"target: {DELTA}", ", slice_rows: 7", 7),
    ],
)
def test_a_lake_takes_more_at_once_than_what_stages_or_shares_a_batch(
    tmp_path: Path, ends: str, given: str, rows: int
) -> None:
    path = tmp_path / "strandline.yml"
    table = f"{{name: orders{given}}}"
    path.write_text(f"pipelines: {{shop: {{source: 'postgresql://reader@db/shop', {ends}, tables: [{table}]}}}}\n")
    spec = load_config(path).pipeline("shop")
    for stage in stages(spec):
        assert Pipeline(spec, stage, no_spark).unresolved(spec.tables[0]).slice_rows == rows

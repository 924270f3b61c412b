"""A Delta table's side of a comparison as a source: the version below the watermark, whatever was committed since."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import functions as sql

from strandline.core.compare import Key, Reach
from strandline.core.window import Part
from strandline.sinks.delta_errors import told
from strandline.sinks.delta_side import DeltaSide
from strandline.spark.columns import column, constant


class DeltaSourceSide(DeltaSide):
    def reach(self) -> Reach:
        """One pass over the key column."""
        ranged = self._comparison.ranged
        numbered = column(self._comparison.key[0][0]) if ranged else constant(None).cast("long")
        counted = sql.count(constant(1)).alias("rows")
        with told(self._comparison.table):
            ((low, high, rows),) = self._frame.agg(sql.min(numbered), sql.max(numbered), counted).collect()
        return Reach(low, high, rows)

    def moved(self, _parts: Sequence[Part], _most: int) -> list[Key]:
        """None: a version does not move."""
        return []

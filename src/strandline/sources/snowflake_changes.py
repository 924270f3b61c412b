"""Reading a slice of Snowflake: one query, whose result lies in parts that Spark's tasks fetch, each by itself.

The query runs when the frame is made, once, so that all parts are of one moment, and a task that runs again gets the
same rows again. No more than one part is in the memory of a task.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from strandline.core.table import Table
from strandline.core.window import Slice
from strandline.sources.dialect import Carried, Dialect
from strandline.sources.jdbc import JdbcChanges, Reader, Tiles, schema_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from strandline.sources.snowflake_session import SnowflakeSession

log = logging.getLogger(__name__)
_ARROW = {
    "BIGINT": "int64",
    "STRING": "string",
    "DOUBLE": "float64",
    "BOOLEAN": "bool_",
    "BINARY": "binary",
    "DATE": "date32",
}
Batches = Iterator[Any]  # of pyarrow, which has no types to name


class SnowflakeChanges(JdbcChanges):
    def __init__(self, session: SnowflakeSession, reader: Reader, dialect: Dialect, table: Table, slice: Slice) -> None:
        super().__init__(reader, dialect, table, slice, Tiles)
        self.session = session

    def read(self, spark: SparkSession, carried: Sequence[Carried]) -> DataFrame:
        parts = [pickle.dumps(part) for part in self.session.parts(self.statement(carried))]
        log.debug("%s: %d parts", self.table.where_text, len(parts))
        numbered = spark.range(0, len(parts), 1, max(1, len(parts)))
        return numbered.mapInArrow(fetching(parts, [each.spark for each in carried]), schema_text(carried))


def fetching(parts: Sequence[bytes], kinds: Sequence[str]) -> Callable[[Batches], Batches]:
    """What a task does: self-contained, since executors need the connector, but not Strandline."""
    arrow = [_ARROW[kind] for kind in kinds]

    def fetch(numbers: Batches) -> Batches:
        import pickle
        from importlib import import_module

        pyarrow = import_module("pyarrow")
        schema = pyarrow.schema([(f"c{at}", getattr(pyarrow, kind)()) for at, kind in enumerate(arrow)])
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                found = pickle.loads(parts[number]).to_arrow()
                if found is not None and found.num_rows:
                    yield from pyarrow.table(
                        [column.cast(kind.type) for column, kind in zip(found.columns, schema, strict=True)],
                        schema=schema,
                    ).to_batches(max_chunksize=10_000)

    return fetch

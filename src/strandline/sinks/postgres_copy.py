"""Spark's rows into PostgreSQL by COPY, from Spark's Python workers: what Arrow joins goes over the wire as it is.

A worker need not know this package: the function it runs carries all it needs, and imports only psycopg and pyarrow.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from strandline.spark.later import pandas_later

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)
FAILED = r"COPY\[(\w*)\] ([^\n]*)"
"""What a worker raises: SQLSTATE, empty where the connection failed, and what the server said."""
_able: dict[str, bool] = {}  # by Spark application


def copied(rows: DataFrame, login: Mapping[str, Any], settings: str, table: str) -> bool:
    """Each partition in a transaction of its own; its task succeeds once that is committed.

    False: Spark's Python workers lack what it takes, and rows of some of them may be there. To ask them takes as long
    as to copy a few rows: they are asked where it failed.
    """
    spark = rows.sparkSession
    if _able and not _able.get(_application(spark), True):
        return False
    statement = f"COPY {table} ({', '.join(rows.columns)}) FROM STDIN"
    try:
        with pandas_later():
            counted = rows.mapInArrow(copying(login, settings, statement), "rows bigint")
        counted.write.format("noop").mode("overwrite").save()
    except Exception:
        if able(spark):
            raise
        return False
    return True


def able(spark: SparkSession) -> bool:
    """Whether Spark's Python workers have what COPY takes; asked once per Spark application."""
    application = _application(spark)
    if application not in _able:
        _able[application] = _ask(spark)
    return _able[application]


def _application(spark: SparkSession) -> str:
    return spark.conf.get("spark.app.id", "") or ""


def _ask(spark: SparkSession) -> bool:
    def imported(batches: Iterator[Any]) -> Iterator[Any]:
        from importlib import import_module

        import_module("psycopg")
        import_module("pyarrow.compute")
        yield from batches

    try:
        return spark.range(1, numPartitions=1).mapInArrow(imported, "id bigint").count() == 1
    except Exception as error:  # no psycopg, another Python, no pyarrow on either side: JDBC needs none of them
        found = re.search(r"\w+Error: .*", str(error)) or re.search(r".+", str(error))
        log.warning("Spark's Python workers cannot COPY; rows go by JDBC. %s", found[0] if found else error)
        return False


def copying(login: Mapping[str, Any], settings: str, statement: str) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """The function that a worker runs on a partition's record batches. Nested, so that it travels as it is."""

    def copy(batches: Iterator[Any]) -> Iterator[Any]:
        import re
        from importlib import import_module
        from itertools import chain
        from struct import pack, unpack_from

        import psycopg

        arrow, compute = import_module("pyarrow"), import_module("pyarrow.compute")

        def one(kind: Any, *buffers: bytes) -> Any:
            """One value. Arrow would first import pandas to see if a value of Python's is one of its kind: half a
            second."""
            return arrow.Array.from_buffers(kind, 1, [None, *map(arrow.py_buffer, buffers)])

        def constant(text: bytes) -> Any:
            return one(arrow.string(), pack("ii", 0, len(text)), text)[0]

        nothing, end, between = constant(b""), constant(b"\n"), constant(b"\t")

        def text(column: Any) -> Any:
            """As COPY takes it. Few texts hold what must be escaped: one look at all of them together tells."""
            column = column.cast(arrow.string())
            whole = bytes(column.buffers()[2] or b"")
            for found, escaped in (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r")):
                if found.encode() in whole:
                    column = compute.replace_substring(column, found, escaped)
            return column

        def lines(batch: Any) -> memoryview:
            *others, last = (text(column) for column in batch.columns)
            ended = compute.binary_join_element_wise(last, nothing, end)  # it is the partition's number, never NULL
            joined = compute.binary_join_element_wise(
                *others, ended, between, null_handling="replace", null_replacement="\\N"
            )
            _, offsets, data = joined.buffers()
            return memoryview(data)[: unpack_from("i", offsets, 4 * len(joined))[0]]

        filled = (batch for batch in batches if batch.num_rows)
        first, rows = next(filled, None), 0
        if first is None:
            return
        try:
            with psycopg.connect(**login) as connection, connection.cursor() as cursor:
                cursor.execute(settings.encode())
                with cursor.copy(statement.encode()) as stream:
                    for batch in chain([first], filled):
                        stream.write(lines(batch))
                        rows += batch.num_rows
        except psycopg.Error as error:
            column = re.search(r", column (\w+)", error.diag.context or "")
            where = f' in column "{column[1]}"' if column else ""
            said = error.diag.message_primary or str(error).strip().replace("\n", " ")
            raise OSError(f"COPY[{error.sqlstate or ''}] {said}{where}") from None
        yield arrow.RecordBatch.from_arrays([one(arrow.int64(), pack("q", rows))], ["rows"])

    return copy

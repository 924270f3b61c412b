"""Rows as messages: key, value and headers as DataFrame expressions, so that Spark makes them wherever rows are.

Owns the JSON. Exact: decimals are strings, times are ISO with microseconds and in UTC, binary is base64, NULL is there.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql
from pyspark.sql.types import ArrayType, DataType, DecimalType, MapType, StringType, StructField, StructType

from strandline.core.batch import Batch
from strandline.core.protocols import Changes
from strandline.core.table import Mode, Table
from strandline.sinks.delta_rows import cursor_column
from strandline.spark.columns import column, constant

UPSERT, DELETE = "upsert", "delete"
_PARTS = 64
_JSON = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "dateFormat": "yyyy-MM-dd",
    "ignoreNullFields": "false",
}


def messages(table: Table, changes: Changes, frame: DataFrame, *, tombstones: bool) -> DataFrame:
    """`key`, `value`, `cursor` and `operation` of every row, as text. `tombstones`: a delete has no value."""
    operation = changes.operation
    names = [name for name in frame.columns if name != operation]
    gone = constant(False) if operation is None else column(operation).eqNullSafe(DELETE)
    value = _json(frame, names)
    cursor = cursor_column(table, frame.columns)
    return frame.select(
        (_json(frame, table.key) if table.key else constant(None).cast("string")).alias("key"),
        (sql.when(~gone, value) if tombstones else value).alias("value"),
        (constant(None) if cursor is None else column(cursor)).cast("string").alias("cursor"),
        sql.when(gone, DELETE).otherwise(UPSERT).alias("operation"),
    )


def spread(table: Table, changes: Changes, frame: DataFrame, *, parts: bool) -> DataFrame:
    """Several changes of a key one after the other in one task, where the source knows their order.

    `parts`: for a driver that takes one part after the other; few rows make one, many make several.
    """
    several = not changes.unique and changes.order and table.key and table.mode is Mode.APPEND
    if several:
        return frame.repartition(_PARTS, *map(column, table.key)).sortWithinPartitions(*map(column, changes.order))
    return frame.hint("rebalance", _PARTS) if parts else frame


def headers(table: Table, batch: Batch) -> dict[str, str]:
    """Those that all messages of a batch have; `cursor` and `operation` are each row's own."""
    return {"pipeline": table.pipeline, "table": table.name, "batch": f"{batch.epoch}.{batch.number}"}


def with_headers(found: DataFrame, fixed: dict[str, str]) -> DataFrame:
    """The messages as Spark's Kafka sink takes them. A row without a cursor value has no such header."""
    all_ = [_header(name, constant(value)) for name, value in fixed.items()]
    all_ += [_header(name, sql.col(name)) for name in ("cursor", "operation")]
    present = sql.filter(sql.array(*all_), lambda header: header["value"].isNotNull())
    return found.select("key", "value", present.alias("headers"))


def _header(name: str, value: Column) -> Column:
    return sql.struct(constant(name).alias("key"), value.cast("binary").alias("value"))


def _json(frame: DataFrame, names: Sequence[str]) -> Column:
    types = {field.name: field.dataType for field in frame.schema.fields}
    parts = [column(name).cast(_exact(types[name])).alias(name) for name in names]
    return sql.to_json(sql.struct(*parts), _JSON)


def _exact(kind: DataType) -> DataType:
    """Decimals as text, at any depth: most readers of JSON would make floats of them."""
    match kind:
        case DecimalType():
            return StringType()
        case ArrayType():
            return ArrayType(_exact(kind.elementType), kind.containsNull)
        case MapType():
            return MapType(kind.keyType, _exact(kind.valueType), kind.valueContainsNull)
        case StructType():
            return StructType([StructField(part.name, _exact(part.dataType), part.nullable) for part in kind.fields])
        case _:
            return kind

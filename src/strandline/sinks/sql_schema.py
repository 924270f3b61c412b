"""Columns of a target in a database: in which types a batch is stored, and what becomes of a table that is there.

Owns which columns fit. The policy for changes and its words are those of every sink (`delta_schema`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from pyspark.sql.types import (
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StructField,
    StructType,
)

from strandline.core.errors import SchemaError
from strandline.core.table import Column, Mode, Table
from strandline.sinks.delta_schema import Evolution, allow, widens
from strandline.sinks.sql_columns import Columns, check_held, check_writable
from strandline.sinks.sql_dialect import Field, Held, TargetDialect

_NUMBERS: dict[str, DataType] = {
    kind.simpleString(): kind
    for kind in (ByteType(), ShortType(), IntegerType(), LongType(), FloatType(), DoubleType(), DateType())
}


def wanted(
    table: Table, schema: StructType, dialect: TargetDialect, knows: Callable[[str], bool]
) -> tuple[Column, ...]:
    """The columns of a new table. SchemaError names what the database cannot hold."""
    _check_names(table, schema, dialect)
    return tuple(_wanted(table, field, dialect, knows) for field in schema.fields)


def settle(
    table: Table, schema: StructType, held: Held, new: tuple[Column, ...], dialect: TargetDialect, *, replaced: bool
) -> Columns:
    """How the batch's columns fit the table that is there; `new` are those it would have if it were made now."""
    check_held(table, held)
    left = {dialect.fold(column.name): column for column in held.columns}
    chosen, added, widened, changed, words = [], [], [], [], []
    fields: list[StructField] = []
    for field, fresh in zip(schema.fields, new, strict=True):
        present = left.pop(dialect.fold(field.name), None)
        check_writable(table, held, present)
        kind = None if present is None else _held_type(dialect, present)
        if present is None:
            added.append(fresh)
            fields.append(field)
        elif dialect.bare(present.type) == dialect.bare(fresh.type) or dialect.takes(
            present.type, field.dataType.simpleString()
        ):
            chosen.append(present)
            continue
        else:
            fresh = replace(fresh, name=present.name, nullable=present.nullable, comment=present.comment)
            if kind is not None and dialect.retypes and widens(kind, field.dataType):
                widened.append(fresh)
                words.append(StructField(present.name, field.dataType))
            else:
                changed.append(fresh)
        chosen.append(fresh)
    quiet = held.generated | held.defaulted | held.numbered
    dropped = tuple(column.name for column in left.values() if column.name not in quiet)
    now = {dialect.fold(field.name): field.dataType.simpleString() for field in schema.fields}
    was = {column.name: held.column(column.name, dialect.fold) for column in changed}
    told = tuple(
        f"column {name} was {column.type if column else '?'} and is now {now[dialect.fold(name)]}"
        for name, column in was.items()
    )
    allow(table, Evolution(tuple(fields), tuple(words), dropped, told), replace=replaced)
    gone = tuple(f"column {name} is no longer in the source: kept, and NULL in new rows" for name in dropped)
    return Columns(tuple(chosen), tuple(added), tuple(widened), tuple(changed), () if replaced else gone)


def _wanted(table: Table, field: StructField, dialect: TargetDialect, knows: Callable[[str], bool]) -> Column:
    spark = field.dataType.simpleString()
    source = next((column for column in table.columns if column.name == field.name and table.transform is None), None)
    keyed = table.mode is Mode.MERGE and field.name in table.key
    wish = Field(spark, source.type if source else "", len(table.key) if keyed else 0)
    kind = None
    if source and table.family == dialect.name and dialect.spark_type(source) == spark:
        kind = dialect.own(wish)
    if kind is None or not knows(kind):
        kind = dialect.sql_type(wish)
    if kind is None:
        raise SchemaError(
            f'column "{field.name}" ({spark}) cannot be stored in {dialect.name}',
            where=table.where_text,
            remedy="Make it a text or numbers in `query:` or `transform:`, or leave it out with `columns:`.",
        )
    return Column(field.name, kind, not keyed, comment=source.comment if source else "")


def _held_type(dialect: TargetDialect, column: Column) -> DataType | None:
    spark = dialect.spark_type(column) or ""
    if found := re.fullmatch(r"decimal\((\d+),(\d+)\)", spark):
        return DecimalType(int(found[1]), int(found[2]))
    return _NUMBERS.get(spark)


def _check_names(table: Table, schema: StructType, dialect: TargetDialect) -> None:
    for field in schema.fields:
        if not dialect.fits_name(field.name):
            raise SchemaError(
                f'the name of column "{field.name}" is too long for {dialect.name}, which would cut it',
                where=table.where_text,
                remedy="Rename it in `query:` or `transform:`, or leave it out with `columns:`.",
            )

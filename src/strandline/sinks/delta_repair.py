"""A part of a Delta table made equal to a batch: which rows must change, and the one MERGE that changes them.

Only rows that differ are touched, so the change feed stays small. A key that lies there several times is deleted and
inserted in the same commit: the inserted row is one that matches nothing (`strandline_match` false).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pyspark import StorageLevel
from pyspark.sql import functions as sql

from strandline.core.errors import TargetError
from strandline.core.protocols import Changes
from strandline.core.table import Mode, Table
from strandline.core.window import KeyRange, Repair
from strandline.sinks.delta_canonical import in_part
from strandline.spark.columns import column, constant
from strandline.spark.text import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_GIVEN, _HELD, _COUNT = "strandline_given", "strandline_held", "strandline_count"
_GONE, _ACTS, _ACT, _MATCH = "strandline_gone", "strandline_acts", "strandline_act", "strandline_match"


@contextmanager
def needed(
    table: Table, changes: Changes, rows: DataFrame, target: DataFrame, columns: Sequence[str], repair: Repair
) -> Iterator[DataFrame]:
    """The rows that must change, each with what is to be done, held until it is done.

    TargetError if more rows would be deleted than the repair allows.
    """
    frame = _joined(table, changes, rows, target.where(in_part(table, repair.part)), columns)
    present, given = column(_COUNT) > 0, column(_GIVEN).isNotNull() & ~column(_GONE)
    extra = column(_GIVEN).isNull() & present
    acts = (
        sql.when(given & sql.coalesce(column(_COUNT), constant(0)).eqNullSafe(0), _acts("insert"))
        .when(given & (column(_COUNT) > 1), _acts("delete", "insert"))
        .when(given & ~column(_GIVEN).eqNullSafe(column(_HELD)), _acts("update"))
        .when(column(_GIVEN).isNotNull() & column(_GONE) & present, _acts("delete"))
        .when(extra, _acts("delete") if _may_delete(table, repair) else _acts())
        .otherwise(_acts())
    )
    frame = frame.withColumn(_ACTS, acts).where(sql.size(_ACTS) > 0).withColumn("strandline_extra", extra)
    frame = frame.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        (extras,) = frame.agg(sql.count_if(column("strandline_extra"))).collect()[0]
        if repair.deletes is not None and extras > repair.deletes:
            raise TargetError(
                f"{extras:,} rows that the source does not have would be deleted; at most {repair.deletes:,} may be",
                where=table.where_text,
                why="So many at once look like a source that lost rows, or another one.",
                remedy=f"If they are to go:   strandline verify -t {table.name} --repair --delete --delete-fraction 1",
            )
        keys = [column(name) for name in _identity(table)]
        values = [column(_GIVEN).getField(name).alias(f"c{at}") for at, name in enumerate(columns)]
        each = frame.select(
            *[key.alias(f"k{at}") for at, key in enumerate(keys)], *values, sql.explode(_ACTS).alias(_ACT)
        )
        yield each.withColumn(_MATCH, column(_ACT) != "insert")
    finally:
        frame.unpersist()


def repair_text(table: Table, target: str, columns: Sequence[str], repair: Repair) -> str:
    """The MERGE of the view `strandline_rows`, made by `needed`, into the target."""
    on = [f"t.{quoted(name)} <=> s.k{at}" for at, name in enumerate(_identity(table))]
    if isinstance(repair.part, KeyRange):  # spares files that cannot hold any of them
        key = f"t.{quoted(repair.part.column)}"
        on += [f"{key} >= {repair.part.low}"] if repair.part.low is not None else []
        on += [f"{key} < {repair.part.high}"] if repair.part.high is not None else []
    names = [quoted(name) for name in columns]
    return (
        f"MERGE INTO {target} AS t USING strandline_rows AS s ON {' AND '.join(on)} AND s.{_MATCH}\n"
        f"WHEN MATCHED AND s.{_ACT} = 'delete' THEN DELETE\n"
        f"WHEN MATCHED THEN UPDATE SET {', '.join(f't.{name} = s.c{at}' for at, name in enumerate(names))}\n"
        f"WHEN NOT MATCHED AND s.{_ACT} = 'insert' THEN INSERT ({', '.join(names)}) "
        f"VALUES ({', '.join(f's.c{at}' for at, _ in enumerate(names))})"
    )


def _joined(table: Table, changes: Changes, rows: DataFrame, target: DataFrame, columns: Sequence[str]) -> DataFrame:
    """Every key of the part, with the row the batch gives and one that the target holds, and how many it holds."""
    types = {field.name.lower(): field.dataType for field in target.schema.fields}
    cast = [column(name).cast(types[name.lower()]).alias(name) for name in columns]
    keys = _identity(table)
    gone = column(changes.operation).eqNullSafe("delete") if changes.operation else constant(False)
    gone = constant(False) if table.mode is Mode.APPEND else gone
    given = rows.select(
        *[column(name).cast(types[name.lower()]).alias(f"k{at}") for at, name in enumerate(keys)],
        sql.struct(*cast).alias(_GIVEN),
        gone.alias(_GONE),
    )
    named = [column(name).alias(f"k{at}") for at, name in enumerate(keys)]
    held = target.select(*named, sql.struct(*[column(name).alias(name) for name in columns]).alias(_HELD))
    held = held.groupBy(*[f"k{at}" for at, _ in enumerate(keys)]).agg(
        sql.count(constant(1)).alias(_COUNT), sql.first(_HELD).alias(_HELD)
    )
    same = [given[f"k{at}"].eqNullSafe(held[f"k{at}"]) for at, _ in enumerate(keys)]
    both = [sql.coalesce(given[f"k{at}"], held[f"k{at}"]).alias(name) for at, name in enumerate(keys)]
    return given.join(held, same, "full_outer").select(*both, _GIVEN, _HELD, _COUNT, _GONE)


def _identity(table: Table) -> tuple[str, ...]:
    """What a row is known by; where versions are kept, each by its cursor too."""
    versions = table.mode is Mode.APPEND and table.cursor is not None
    return (*table.key, table.cursor.column) if versions and table.cursor else table.key


def _may_delete(table: Table, repair: Repair) -> bool:
    return repair.deletes is not None and table.mode is not Mode.APPEND


def _acts(*names: str) -> Column:
    return sql.array(*[constant(name) for name in names]).cast("array<string>")

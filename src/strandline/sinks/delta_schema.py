"""Columns: how a batch's columns differ from the target's, and what the table's `schema:` policy makes of it.

Owns which changes of type lose nothing. Knows PySpark's types, but no session.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql.types import (
    ByteType,
    CharType,
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
    TimestampNTZType,
    VarcharType,
)

from strandline.core.errors import SchemaError
from strandline.core.table import Table

_NEEDS_MAPPING = frozenset(" ,;{}()\n\t=")
_FEATURES = {"timestamp_ntz": "timestampNtz", "variant": "variantType"}
_JSON = {"tinyint": "byte", "smallint": "short", "int": "integer", "bigint": "long"}  # Spark's other name for a type
_DIGITS: dict[type[DataType], int] = {ByteType: 3, ShortType: 5, IntegerType: 10, LongType: 20}  # as Delta counts them


@dataclass(frozen=True)
class Evolution:
    """What a batch's columns change about the target's."""

    added: tuple[StructField, ...] = ()
    widened: tuple[StructField, ...] = ()
    dropped: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()  # in words

    @property
    def nothing(self) -> bool:
        return not (self.added or self.widened or self.changed or self.dropped)

    def words(self) -> list[str]:
        """What the next batch would do."""
        said = [f"column {field.name} ({field.dataType.simpleString()}) is not there yet" for field in self.added]
        said += [f"column {field.name} becomes {field.dataType.simpleString()}" for field in self.widened]
        return said + [f"column {name} is no longer in the source" for name in self.dropped]

    def __str__(self) -> str:
        words = [f"new column {field.name} ({field.dataType.simpleString()})" for field in self.added]
        words += [f"column {field.name} is now {field.dataType.simpleString()}" for field in self.widened]
        words += [f"column {name} is gone" for name in self.dropped]
        return "; ".join([*words, *self.changed])


def schema_of(types: Mapping[str, str]) -> StructType:
    """Columns by their Spark types, as `simpleString` spells them."""
    fields = [{"name": name, "type": _json(kind), "nullable": True, "metadata": {}} for name, kind in types.items()]
    return StructType.fromJson({"type": "struct", "fields": fields})


def _json(kind: str) -> str | dict[str, object]:
    if kind.startswith("array<"):
        return {"type": "array", "elementType": _json(kind[6:-1]), "containsNull": True}
    return _JSON.get(kind, kind)


def plain(schema: StructType) -> StructType:
    """The columns as a target stores them: nullable, without metadata, of any length."""
    return StructType([StructField(field.name, _unbounded(field.dataType)) for field in schema.fields])


def compare(incoming: StructType, target: StructType) -> Evolution:
    """Columns are matched as Delta matches them, whatever their case."""
    present = {field.name.lower(): field for field in target.fields}
    added, widened, changed = [], [], []
    for field in incoming.fields:
        held = present.pop(field.name.lower(), None)
        if held is None:
            added.append(field)
        elif _same(field.dataType, held.dataType):
            continue
        elif widens(held.dataType, field.dataType):
            widened.append(StructField(held.name, field.dataType))
        else:
            was, now = held.dataType.simpleString(), field.dataType.simpleString()
            changed.append(f"column {held.name} was {was} and is now {now}")
    return Evolution(tuple(added), tuple(widened), tuple(field.name for field in present.values()), tuple(changed))


def allow(table: Table, evolution: Evolution, *, replace: bool) -> None:
    """SchemaError where the policy or the data forbid the change."""
    if evolution.nothing:
        return
    full = f"Load the table again with its new columns:   strandline sync --full -t {table.name}"
    if table.schema == "stop" or (table.schema == "reload" and not replace):
        raise SchemaError(
            f"the columns changed: {evolution}",
            where=table.where_text,
            why=f"The table says `schema: {table.schema}`.",
            remedy=full if table.schema == "reload" else "Set `schema: evolve` to take such changes, or undo them.",
        )
    if evolution.changed and not replace:
        raise SchemaError(
            "; ".join(evolution.changed),
            where=table.where_text,
            why="The rows already stored cannot be read as the new type without loss.",
            remedy=f"Cast the column in `query:` or `transform:`, or leave it out with `columns:`.\n{full}",
        )


def check_columns(table: Table, schema: StructType, sink: str = "Delta") -> None:
    """Refuse what a sink would mix up or drop: names that differ in case only, and columns without a type."""
    seen: dict[str, str] = {}
    for field in schema.fields:
        if "void" in field.dataType.simpleString():
            raise SchemaError(
                f'column "{field.name}" has no type',
                where=table.where_text,
                why="It holds nothing but NULL, so Spark cannot tell what it is meant to hold.",
                remedy="Cast it in `query:` or `transform:`, or leave it out with `columns:`.",
            )
        twin = seen.setdefault(field.name.lower(), field.name)
        if twin != field.name or [other.name for other in schema.fields].count(field.name) > 1:
            raise SchemaError(
                f'columns "{twin}" and "{field.name}" are one name to {sink}',
                where=table.where_text,
                remedy="Leave one out with `columns:`, or rename it in `query:` or `transform:`.",
            )


def properties_for(schema: StructType) -> dict[str, str]:
    """Table properties without which Delta refuses these columns."""
    needed = {}
    if any(_NEEDS_MAPPING & set(field.name) for field in schema.fields):
        needed["delta.columnMapping.mode"] = "name"
    for word, feature in _FEATURES.items():
        if any(word in field.dataType.simpleString() for field in schema.fields):
            needed[f"delta.feature.{feature}"] = "supported"
    return needed


def _unbounded(kind: DataType) -> DataType:
    from pyspark.sql.types import StringType

    return StringType() if isinstance(kind, CharType | VarcharType) else kind


def _same(one: DataType, other: DataType) -> bool:
    return one.simpleString() == other.simpleString()


def widens(old: DataType, new: DataType) -> bool:
    """Whether every value of the old type is exactly one of the new, and Delta can read old files as the new."""
    kinds = (ByteType, ShortType, IntegerType, LongType)
    if isinstance(old, DecimalType) and isinstance(new, DecimalType):
        return new.scale >= old.scale and new.precision - new.scale >= old.precision - old.scale
    if isinstance(old, kinds):
        if isinstance(new, kinds):
            return kinds.index(type(old)) < kinds.index(type(new))
        if isinstance(new, DecimalType):
            return new.precision - new.scale >= max(_DIGITS[type(old)], 10)
        return isinstance(new, DoubleType) and not isinstance(old, LongType)
    if isinstance(old, FloatType):
        return isinstance(new, DoubleType)
    return isinstance(old, DateType) and isinstance(new, TimestampNTZType)

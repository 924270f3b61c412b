"""Snowflake as a target, in text: types, staging, COPY, and a merge as statements that each count their rows.

Snowflake keeps no key unique, hybrid tables aside, and DDL ends a transaction there. A MERGE would count all it does
together; an UPDATE and an INSERT are what it amounts to.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from strandline.core.errors import SchemaError
from strandline.core.table import Column
from strandline.sinks.sql_dialect import Field, Matched, Place, Step
from strandline.sinks.sql_files import FileColumn
from strandline.sources.snowflake_dialect import SnowflakeDialect
from strandline.sources.snowflake_names import settled
from strandline.spark.text import quoted as spark_quoted

_TYPES = {
    "boolean": "BOOLEAN",
    "tinyint": "NUMBER(3,0)",
    "smallint": "NUMBER(5,0)",
    "int": "NUMBER(10,0)",
    "bigint": "NUMBER(19,0)",
    "float": "FLOAT",
    "double": "FLOAT",
    "string": "VARCHAR",
    "binary": "BINARY",
    "date": "DATE",
    "timestamp": "TIMESTAMP_TZ(6)",
    "timestamp_ntz": "TIMESTAMP_NTZ(6)",
}
_SPARK = {
    **{kind: spark for spark, kind in _TYPES.items() if kind.startswith("NUMBER")},
    "BOOLEAN": "boolean",
    "FLOAT": "double",
    "VARCHAR": "string",
    "BINARY": "binary",
    "DATE": "date",
    "TIMESTAMP_TZ": "timestamp",
    "TIMESTAMP_LTZ": "timestamp",
    "TIMESTAMP_NTZ": "timestamp_ntz",
}
_WHOLE = ("tinyint", "smallint", "int", "bigint")
_SHORT = re.compile(r"TIMESTAMP_\w+\([0-5]\)")
_FILES = 1000
"""So many names one COPY takes."""
_PARQUET = "FILE_FORMAT = (TYPE = PARQUET USE_LOGICAL_TYPE = TRUE BINARY_AS_TEXT = FALSE) ON_ERROR = ABORT_STATEMENT"


class SnowflakeTargetDialect(SnowflakeDialect):
    transactional_ddl = False
    retypes = True
    now = "CURRENT_TIMESTAMP()"
    stamp = "TIMESTAMP_TZ(6)"
    serial = "NUMBER(38,0) AUTOINCREMENT"
    long_text = "VARCHAR"
    exact_text = ""
    overriding = ""
    hashes: tuple[str, ...] = ("md5",)

    def __init__(self, *, hybrid: bool = False) -> None:
        """`hybrid`: tables that keep their keys, and lock rows."""
        self.hybrid = hybrid
        self.keys = hybrid

    def fold(self, name: str) -> str:
        return settled(name)

    def fits_name(self, name: str) -> bool:
        return len(name) <= 255

    def place(self, place: Place) -> str:
        return f"{self.quote(place.schema)}.{self.quote(place.table)}"

    def name_type(self, length: int) -> str:
        return f"VARCHAR({length})"

    def sql_type(self, field: Field) -> str | None:
        if field.spark.startswith("decimal("):
            return f"NUMBER{field.spark.removeprefix('decimal')}"
        return _TYPES.get(field.spark)

    def own(self, field: Field) -> str | None:
        return field.source

    def spark_type(self, column: Column) -> str | None:
        kind = column.type
        found = _SPARK.get(kind) or _SPARK.get(kind.partition("(")[0])
        return f"decimal{kind.removeprefix('NUMBER')}" if found is None and kind.startswith("NUMBER(") else found

    def bare(self, type_text: str) -> str:
        return "VARCHAR" if type_text.startswith("VARCHAR") else type_text

    def takes(self, held: str, spark: str) -> bool:
        if held == "NUMBER(38,0)" and spark in _WHOLE:
            return True
        return not _SHORT.fullmatch(held) and self.spark_type(Column("", held)) == spark

    def staged(self, name: str, _spark: str, /) -> str:
        return spark_quoted(name)

    def file_type(self, spark: str, held: str) -> str:
        return self.sql_type(Field(spark)) or held

    def from_file(self, value: str, _spark: str, /) -> str:
        return value

    def create(self, place: Place, columns: Sequence[Column], key: Sequence[str], comment: str) -> list[str]:
        if self.hybrid and not key:
            raise SchemaError(
                f"{place}: a hybrid table needs a primary key",
                remedy="Use mode: merge with a `key:`, or leave `hybrid` out of the target's options.",
            )
        lines = [self._column(column) for column in columns]
        if key:
            lines.append(f"PRIMARY KEY ({', '.join(self.quote(name) for name in key)})")
        told = f" COMMENT = {self.string(comment)}" if comment else ""
        kind = "HYBRID TABLE" if self.hybrid else "TABLE"
        return [f"CREATE {kind} IF NOT EXISTS {self.place(place)} (\n  " + ",\n  ".join(lines) + f"){told}"]

    def create_stage(self, place: Place, columns: Sequence[tuple[str, str]], comment: str) -> list[str]:
        listed = ", ".join(f"{name} {kind}" for name, kind in columns)
        return [
            f"CREATE TRANSIENT TABLE {self.place(place)} ({listed}) "
            f"DATA_RETENTION_TIME_IN_DAYS = 0 COMMENT = {self.string(comment)}"
        ]

    def put(self, path: str, stage: Place) -> str:
        """Send a file into the stage that every table has: it goes with the table."""
        return f"PUT {self.string(f'file://{path}')} {self._own_stage(stage)} AUTO_COMPRESS = FALSE"

    def copy(self, stage: Place, columns: Sequence[FileColumn]) -> str:
        """Load what was put into the staging table's own stage."""
        return self._copy(stage, columns, self._own_stage(stage))

    def copy_external(self, stage: Place, columns: Sequence[FileColumn], name: str, files: Sequence[str]) -> list[str]:
        """Load files, by their paths below the address of a stage that is there already."""
        listed = [", ".join(map(self.string, files[at : at + _FILES])) for at in range(0, len(files), _FILES)]
        return [self._copy(stage, columns, f"@{name}", f"FILES = ({names}) ") for names in listed]

    def _copy(self, stage: Place, columns: Sequence[FileColumn], place: str, files: str = "") -> str:
        names = ", ".join(column.staged for column in columns)
        values = ", ".join(f"$1[{self.string(column.name)}]::{column.type}" for column in columns)
        return f"COPY INTO {self.place(stage)} ({names}) FROM (SELECT {values} FROM {place}) {files}{_PARQUET}"

    def _own_stage(self, stage: Place) -> str:
        """Names of staging tables are plain: nothing to quote."""
        return f"@{self.quote(stage.schema)}.%{stage.table.upper()}"

    def add(self, place: Place, columns: Sequence[Column]) -> list[str]:
        table = self.place(place)
        return [f"ALTER TABLE {table} ADD COLUMN IF NOT EXISTS {self._column(column)}" for column in columns]

    def retype(self, place: Place, columns: Sequence[Column]) -> list[str]:
        """More digits are all that Snowflake gives a column that is there."""
        for column in columns:
            if not column.type.startswith("NUMBER("):
                raise SchemaError(
                    f"column {column.name} of {place} cannot be made {column.type}",
                    why="Snowflake widens numbers only in their digits.",
                    remedy="Cast it in `query:` or `transform:`, or load the table anew:   strandline sync --full",
                )
        table = self.place(place)
        return [
            f"ALTER TABLE {table} ALTER COLUMN {self.quote(column.name)} SET DATA TYPE {column.type}"
            for column in columns
        ]

    def retype_empty(self, place: Place, columns: Sequence[Column]) -> list[str]:
        """A column's type stays what it is: it is dropped, and added with another."""
        if fixed := [column.name for column in columns if not column.nullable]:
            raise SchemaError(
                f"column {', '.join(fixed)} of {place} cannot be given another type",
                why="Snowflake changes no column's type, and a key's column cannot be dropped.",
                remedy=f"DROP TABLE {self.place(place)}, and then load it again:   strandline sync --full",
            )
        dropped = [f"ALTER TABLE {self.place(place)} DROP COLUMN {self.quote(column.name)}" for column in columns]
        return [*dropped, *self.add(place, columns)]

    def unless_there(self, into: str, values: Mapping[str, str], keys: Sequence[Sequence[str]], /) -> str:
        """Whoever runs this holds the lock."""
        same = [" AND ".join(f"{name} = {values[name]}" for name in key) for key in keys]
        there = f"SELECT 1 FROM {into} WHERE {' OR '.join(f'({text})' for text in same)}"
        names, listed = ", ".join(values), ", ".join(values.values())
        return f"INSERT INTO {into} ({names}) SELECT {listed} WHERE NOT EXISTS ({there})"

    def lock(self, table: str, /) -> str:
        """There is no LOCK TABLE. An UPDATE locks what it rewrites until the transaction ends: whoever comes second
        waits. An empty ledger holds nobody back; should two claim their first target at once, `move` finds both."""
        return f"UPDATE {table} SET changed_at = changed_at"

    def last_first(self, value: str) -> str:
        return f"{value} DESC NULLS LAST"

    def count_different(self, rows: str, columns: Sequence[str]) -> str:
        return f"SELECT COUNT(*) FROM (SELECT DISTINCT {', '.join(columns)} FROM {rows} s) d"

    def twins(self, rows: str, keys: Sequence[str], columns: Sequence[str]) -> str:
        listed = ", ".join(keys)
        different = f"SELECT DISTINCT {', '.join(columns)} FROM {rows} c"
        return f"SELECT {listed} FROM ({different}) e GROUP BY {listed} HAVING COUNT(*) > 1"

    def differs(self, pairs: Sequence[tuple[str, str, str]]) -> str:
        return f"({' OR '.join(f'{one} IS DISTINCT FROM {other}' for one, other, _ in pairs)})"

    def same(self, one: str, other: str) -> str:
        return f"{one} IS NOT DISTINCT FROM {other}"

    def equal(self, one: str, other: str, _kind: str, /) -> str:
        return f"{one} = {other}"

    def apart(self, value: str, _kind: str, /) -> list[str]:
        return [value]

    def update(self, target: str, sets: Sequence[tuple[str, str]], rows: str, on: str) -> str:
        listed = ", ".join(f"{name} = {value}" for name, value in sets)
        return f"UPDATE {target} AS t SET {listed} FROM {rows} AS s WHERE {on}"

    def delete(self, target: str, rows: str, on: str, _known: Sequence[Column], /) -> str:
        return f"DELETE FROM {target} AS t USING {rows} AS s WHERE {on}"

    def delete_where(self, target: str, where: str, _known: Sequence[Column], /) -> str:
        return f"DELETE FROM {target} AS t WHERE {where}"

    def merge(self, _matched: Matched, /) -> Step | None:
        return None

    def analyze(self, _place: Place, /) -> str:
        """Snowflake looks after its statistics by itself."""
        return "SELECT 1"

    def _column(self, column: Column) -> str:
        told = f" COMMENT {self.string(column.comment)}" if column.comment else ""
        return f"{self.quote(column.name)} {column.type}{'' if column.nullable else ' NOT NULL'}{told}"

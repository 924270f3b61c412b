"""PostgreSQL as a target, in text: types, staging, merge. From version 17 on a merge is one MERGE that counts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from strandline.core.errors import SourceError
from strandline.core.table import Column
from strandline.sinks.sql_dialect import Field, Matched, Place, Step
from strandline.sources import postgres_canonical
from strandline.sources.dialect import REFUSED
from strandline.sources.postgres_dialect import PostgresDialect
from strandline.spark.text import literal as spark_literal
from strandline.spark.text import quoted as spark_quoted

_TYPES = {
    "boolean": "boolean",
    "tinyint": "smallint",
    "smallint": "smallint",
    "int": "integer",
    "bigint": "bigint",
    "float": "real",
    "double": "double precision",
    "string": "text",
    "binary": "bytea",
    "date": "date",
    "timestamp": "timestamp with time zone",
    "timestamp_ntz": "timestamp without time zone",
}
_TIMES = ("date", "timestamp", "timestamp_ntz")
# A row that is updated is fetched by itself in any case; a plan that reads the whole target first only adds to that.
_BY_INDEX = "SELECT set_config('random_page_cost', least(current_setting('random_page_cost')::float8, 1.1)::text, true)"
_NO_EQUALITY = re.compile(r"(json|xml|point|polygon|box|line|lseg|path|circle)(\[\])?")
_ROUNDS = re.compile(r"(timestamp|time|interval)\S*\([0-5]\).*")


class PostgresTargetDialect(PostgresDialect):
    transactional_ddl = True
    retypes = True
    keys = True
    long_text = "text"
    now = "now()"
    stamp = "timestamptz"
    serial = "bigint GENERATED ALWAYS AS IDENTITY"
    exact_text = 'COLLATE "C"'
    overriding = " OVERRIDING SYSTEM VALUE"

    def __init__(self, version: int = 17) -> None:
        """`version`: the server's, as in 17.2."""
        self.version = version
        self.hashes = postgres_canonical.hashes(version)

    def fold(self, name: str) -> str:
        return name

    def fits_name(self, name: str) -> bool:
        return len(name.encode()) <= 63

    def place(self, place: Place) -> str:
        return f"{self.quote(place.schema)}.{self.quote(place.table)}"

    def name_type(self, length: int) -> str:
        return f'varchar({length}) COLLATE "C"'

    def sql_type(self, field: Field) -> str | None:
        spark = field.spark
        if spark.startswith("decimal("):
            return f"numeric{spark.removeprefix('decimal')}"
        if spark.startswith("array<"):
            element = self.sql_type(Field(spark[6:-1]))
            return None if element is None or element.endswith("]") else f"{element}[]"
        return _TYPES.get(spark)

    def own(self, field: Field) -> str | None:
        return field.source

    def spark_type(self, column: Column) -> str | None:
        try:
            return self.carry(column).type
        except SourceError:
            return None

    def bare(self, type_text: str) -> str:
        return type_text

    def takes(self, held: str, spark: str) -> bool:
        if held == "numeric" and spark.startswith("decimal("):
            return True
        if _ROUNDS.fullmatch(held) or held.startswith("character("):  # pads
            return False
        return self.spark_type(Column("", held)) == spark

    def staged(self, name: str, spark: str) -> str:
        """What no driver shall touch travels as text: times, bytes, arrays. A text with NUL is refused by name."""
        value = spark_quoted(name)
        if spark != "string":
            return _as_text(value, spark)
        refused = spark_literal(f"{REFUSED} column {name} with a NUL character")
        return f"CASE WHEN contains({value}, chr(0)) THEN raise_error({refused}) ELSE {value} END"

    def create(self, place: Place, columns: Sequence[Column], key: Sequence[str], comment: str) -> list[str]:
        lines = [
            f"{self.quote(column.name)} {column.type}{'' if column.nullable else ' NOT NULL'}" for column in columns
        ]
        if key:
            lines.append(f"PRIMARY KEY ({', '.join(self.quote(name) for name in key)})")
        table = self.place(place)
        made = [f"CREATE TABLE IF NOT EXISTS {table} (\n  " + ",\n  ".join(lines) + ")"]
        if comment:
            made.append(f"COMMENT ON TABLE {table} IS {self.string(comment)}")
        return made + self._comments(table, columns)

    def create_stage(self, place: Place, columns: Sequence[tuple[str, str]], comment: str) -> list[str]:
        listed = ", ".join(f"{name} {kind}" for name, kind in columns)
        table = self.place(place)
        return [
            f"CREATE UNLOGGED TABLE {table} ({listed}, part integer, tag xid8 DEFAULT pg_current_xact_id()) "
            "WITH (autovacuum_enabled = off)",
            f"COMMENT ON TABLE {table} IS {self.string(comment)}",
        ]

    def add(self, place: Place, columns: Sequence[Column]) -> list[str]:
        listed = ", ".join(f"ADD COLUMN IF NOT EXISTS {self.quote(column.name)} {column.type}" for column in columns)
        return [f"ALTER TABLE {self.place(place)} {listed}", *self._comments(self.place(place), columns)]

    def retype(self, place: Place, columns: Sequence[Column]) -> list[str]:
        listed = ", ".join(f"ALTER COLUMN {self.quote(column.name)} TYPE {column.type}" for column in columns)
        return [f"ALTER TABLE {self.place(place)} {listed}"]

    def retype_empty(self, place: Place, columns: Sequence[Column]) -> list[str]:
        listed = ", ".join(
            f"ALTER COLUMN {self.quote(column.name)} TYPE {column.type} USING NULL" for column in columns
        )
        return [f"ALTER TABLE {self.place(place)} {listed}"]

    def unless_there(self, into: str, values: Mapping[str, str], _keys: Sequence[Sequence[str]], /) -> str:
        return f"INSERT INTO {into} ({', '.join(values)}) VALUES ({', '.join(values.values())}) ON CONFLICT DO NOTHING"

    def lock(self, _table: str, /) -> str:
        return ""

    def last_first(self, value: str) -> str:
        return f"{value} DESC NULLS LAST"

    def count_different(self, rows: str, columns: Sequence[str]) -> str:
        return f"SELECT count(DISTINCT ({', '.join(columns)})) FROM {rows} s"

    def twins(self, rows: str, keys: Sequence[str], columns: Sequence[str]) -> str:
        different = f"count(DISTINCT md5(ROW({', '.join(columns)})::text))"
        return f"SELECT {', '.join(keys)} FROM {rows} c GROUP BY {', '.join(keys)} HAVING {different} > 1"

    def differs(self, pairs: Sequence[tuple[str, str, str]]) -> str:
        def text(value: str, kind: str) -> str:
            return f"{value}::text" if _NO_EQUALITY.fullmatch(kind) else value

        listed = [f"{text(one, kind)} IS DISTINCT FROM {text(other, kind)}" for one, other, kind in pairs]
        return f"({' OR '.join(listed)})"

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

    def merge(self, matched: Matched, /) -> Step | None:
        if self.version < 17:
            return None
        gone, newer = matched.gone, matched.newer
        alive = f" AND ({gone}) IS NOT TRUE" if gone else ""
        clauses = [f"WHEN MATCHED AND {gone} AND {newer} THEN DELETE"] if gone else []
        if matched.sets:
            listed = ", ".join(f"{name} = {value}" for name, value in matched.sets)
            clauses.append(f"WHEN MATCHED{alive} AND {newer} THEN UPDATE SET {listed}")
        names = ", ".join(name for name, _ in matched.columns)
        values = ", ".join(f"s.{staged}" for _, staged in matched.columns)
        override = self.overriding if matched.numbered else ""
        clauses.append(f"WHEN NOT MATCHED{alive} THEN INSERT ({names}){override} VALUES ({values})")
        merge = f"MERGE INTO {matched.target} AS t USING {matched.rows} AS s ON {matched.on}"
        done = "\n".join([f"done AS ({merge}", *clauses, "RETURNING merge_action() AS act)"])
        counts = ", ".join(f"count(*) FILTER (WHERE act = '{act}')" for act in ("INSERT", "UPDATE", "DELETE"))
        counted = ("inserted", "updated", "deleted")
        if not matched.query:
            return Step(f"WITH {done} SELECT {counts} FROM done", counted)
        # Read once: what is counted is what is merged.
        brought = f"{matched.rows} AS MATERIALIZED ({matched.query})"
        read = f"(SELECT count(*) FROM {matched.rows}), (SELECT {matched.last} FROM {matched.rows})"
        return Step(
            f"WITH {brought},\n{done} SELECT {counts}, {read} FROM done", (*counted, "read"), last=True, first=_BY_INDEX
        )

    def analyze(self, place: Place) -> str:
        return f"ANALYZE {self.place(place)}"

    def _comments(self, table: str, columns: Sequence[Column]) -> list[str]:
        return [
            f"COMMENT ON COLUMN {table}.{self.quote(column.name)} IS {self.string(column.comment)}"
            for column in columns
            if column.comment
        ]


def _as_text(value: str, spark: str) -> str:
    """A Spark expression whose text PostgreSQL reads as the value."""
    if spark in _TIMES:
        return f"CAST({value} AS STRING)"
    if spark == "binary":
        return f"concat(chr(92), 'x', hex({value}))"
    if spark.startswith("array<"):
        element = f"CAST({_as_text('e', spark[6:-1])} AS STRING)"
        escaped = f"replace(replace({element}, chr(92), repeat(chr(92), 2)), '\"', concat(chr(92), '\"'))"
        quoted = f"coalesce(concat('\"', {escaped}, '\"'), 'NULL')"
        return f"concat('{{', array_join(transform({value}, e -> {quoted}), ','), '}}')"
    return value

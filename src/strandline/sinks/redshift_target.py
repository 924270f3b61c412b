"""Redshift as a target, in text: its types, and its statements within what it supports.

What it shares with PostgreSQL is inherited. Redshift keeps no key unique, so whoever moves the ledger locks it. Its own
MERGE takes no conditions and no subquery, and does not tell what it inserted from what it updated; it runs an UPDATE
and an INSERT itself. Here these are statements of their own, which count.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from strandline.core.compare import Form
from strandline.core.errors import SchemaError
from strandline.core.protocols import Files
from strandline.core.table import Column
from strandline.sinks import redshift_canonical
from strandline.sinks.postgres_target import PostgresTargetDialect
from strandline.sinks.sql_dialect import Field, Matched, Place, Step
from strandline.sources.dialect import column_of

TEXT_BYTES = 65535
BINARY_BYTES = 1_024_000
_TEXT = f"character varying({TEXT_BYTES})"
_TYPES = {
    "boolean": "boolean",
    "tinyint": "smallint",
    "smallint": "smallint",
    "int": "integer",
    "bigint": "bigint",
    "float": "real",
    "double": "double precision",
    "date": "date",
    "timestamp": "timestamp with time zone",
    "timestamp_ntz": "timestamp without time zone",
}
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
_LENGTH = re.compile(r"(?:character varying|varchar|character|char)\((\d+)\)")
_BINARY = re.compile(r"(?:binary varying|bytea).*")
_FOREIGN = re.compile(r"(?:super|geometry|geography|hllsketch|interval|time)\b.*")
_LAST_NAME = re.compile(r'"(?:[^"]|"")*"$')


class RedshiftDialect(PostgresTargetDialect):
    name = "Redshift"
    text_type = "varchar"
    no_rows = ""
    transactional_ddl = False
    retypes = False
    keys = False
    long_text = _TEXT
    now = "getdate()"
    serial = "bigint IDENTITY(1, 1)"
    exact_text = ""
    overriding = ""
    binary = f"binary varying({BINARY_BYTES})"

    def __init__(self) -> None:
        super().__init__(8)
        self.hashes = ("md5",)

    def quote(self, identifier: str) -> str:
        """Redshift folds names to lower case even in quotes."""
        return super().quote(self.fold(identifier))

    def string(self, text: str) -> str:
        """A backslash escapes what follows it, as in PostgreSQL before 9.1."""
        return super().string(text.replace("\\", "\\\\"))

    def fold(self, name: str) -> str:
        return name.lower()

    def fits_name(self, name: str) -> bool:
        return len(name.encode()) <= 127

    def name_type(self, length: int) -> str:
        """Lengths are in bytes."""
        return f"character varying({4 * length})"

    def sql_type(self, field: Field) -> str | None:
        """A text is as long as the source says, in bytes of UTF-8, or as long as can be."""
        if field.spark == "string":
            found = _LENGTH.match(field.source)
            length = 4 * int(found[1]) if found else 36 if field.source == "uuid" else TEXT_BYTES
            return f"character varying({min(length, TEXT_BYTES)})"
        if found := _DECIMAL.fullmatch(field.spark):
            return f"numeric({found[1]},{found[2]})" if int(found[2]) <= 37 else None
        return self.binary if field.spark == "binary" else _TYPES.get(field.spark)

    def spark_type(self, column: Column) -> str | None:
        if _BINARY.fullmatch(column.type):
            return "binary"
        return None if _FOREIGN.fullmatch(column.type) else super().spark_type(column)

    def file_type(self, spark: str, held: str) -> str:
        """What Parquet holds: COPY brings its moments, which are in UTC, into columns without a zone only."""
        if spark == "timestamp":
            return _TYPES["timestamp_ntz"]
        return self.sql_type(Field(spark)) or held

    def from_file(self, value: str, spark: str) -> str:
        return f"{value} AT TIME ZONE 'UTC'" if spark == "timestamp" else value

    def form(self, column: Column) -> Form | None:
        return redshift_canonical.form(column.type)

    def canonical(self, column: Column, form: Form) -> str:
        return redshift_canonical.text(column_of(self, column.name), column.type, form)

    def counted(self, column: Column, form: Form, _hash: str, /) -> str:
        return redshift_canonical.counted(column_of(self, column.name), form)

    def hashed(self, texts: Sequence[str]) -> str:
        return redshift_canonical.hashed(texts)

    def number(self, texts: Sequence[str], _hash: str, /) -> str:
        return redshift_canonical.number(texts)

    def create_stage(self, place: Place, columns: Sequence[tuple[str, str]], comment: str) -> list[str]:
        listed = ", ".join(f"{name} {kind}" for name, kind in columns)
        table = self.place(place)
        return [f"CREATE TABLE {table} ({listed})", f"COMMENT ON TABLE {table} IS {self.string(comment)}"]

    def copy(self, place: Place, manifest: str, role: str) -> str:
        """Load a manifest's files. Columns go by their order, and must be as many."""
        trusted = "default" if role == "default" else self.string(role)
        return f"COPY {self.place(place)} FROM {self.string(manifest)} IAM_ROLE {trusted} FORMAT AS PARQUET MANIFEST"

    def add(self, place: Place, columns: Sequence[Column]) -> list[str]:
        """One column per ALTER TABLE."""
        table = self.place(place)
        added = [f"ALTER TABLE {table} ADD COLUMN {self.quote(column.name)} {column.type}" for column in columns]
        return [*added, *self._comments(table, columns)]

    def retype_empty(self, place: Place, columns: Sequence[Column]) -> list[str]:
        """Only the length of a text can be changed in Redshift: a column is dropped, and added with its new type."""
        if fixed := [column.name for column in columns if not column.nullable]:
            raise SchemaError(
                f"column {', '.join(fixed)} of {place} cannot be given another type",
                why="Redshift changes no column's type, and one that is NOT NULL cannot be added anew.",
                remedy=f"DROP TABLE {self.place(place)}, and then load it again:   strandline sync --full",
            )
        table = self.place(place)
        dropped = [f"ALTER TABLE {table} DROP COLUMN {self.quote(column.name)}" for column in columns]
        return [*dropped, *self.add(place, columns)]

    def unless_there(self, into: str, values: Mapping[str, str], keys: Sequence[Sequence[str]], /) -> str:
        """Whoever runs this holds the lock. NULL is what a column is that is left out."""
        same = [" AND ".join(f"{name} = {values[name]}" for name in key) for key in keys]
        there = f"SELECT 1 FROM {into} WHERE {' OR '.join(f'({text})' for text in same)}"
        given = {name: value for name, value in values.items() if value != "NULL"}
        names, listed = ", ".join(given), ", ".join(given.values())
        return f"INSERT INTO {into} ({names}) SELECT {listed} WHERE NOT EXISTS ({there})"

    def lock(self, table: str, /) -> str:
        return f"LOCK TABLE {table}"

    def count_different(self, rows: str, columns: Sequence[str]) -> str:
        return f"SELECT count(*) FROM (SELECT DISTINCT {', '.join(columns)} FROM {rows} s) d"

    def twins(self, rows: str, keys: Sequence[str], columns: Sequence[str]) -> str:
        listed = ", ".join(keys)
        different = f"SELECT DISTINCT {', '.join(columns)} FROM {rows} c"
        return f"SELECT {listed} FROM ({different}) e GROUP BY {listed} HAVING count(*) > 1"

    def differs(self, pairs: Sequence[tuple[str, str, str]]) -> str:
        listed = [
            f"NOT {self.equal(one, other, kind)} OR ({one} IS NULL AND {other} IS NOT NULL) "
            f"OR ({one} IS NOT NULL AND {other} IS NULL)"
            for one, other, kind in pairs
        ]
        return f"({' OR '.join(listed)})"

    def same(self, one: str, other: str) -> str:
        return f"({one} = {other} OR ({one} IS NULL AND {other} IS NULL))"

    def equal(self, one: str, other: str, kind: str, /) -> str:
        """Texts that differ in blanks at their end are equal to Redshift, but not equally long."""
        both = zip(self.apart(one, kind), self.apart(other, kind), strict=True)
        return f"({' AND '.join(f'{a} = {b}' for a, b in both)})"

    def apart(self, value: str, kind: str, /) -> list[str]:
        return [value, f"length({value})"] if kind.startswith("character varying") else [value]

    def delete(self, target: str, rows: str, on: str, known: Sequence[Column], /) -> str:
        return self._delete(target, f"{target} AS t, {rows} AS s", on, known)

    def delete_where(self, target: str, where: str, known: Sequence[Column], /) -> str:
        return self._delete(target, f"{target} AS t", where, known)

    def merge(self, _matched: Matched, /) -> Step | None:
        return None

    def _delete(self, target: str, relation: str, where: str, known: Sequence[Column]) -> str:
        """A DELETE gives its table no other name, so that a row of it is found by what it is known by."""
        found = _LAST_NAME.search(target)
        assert found is not None
        named = [(self.quote(column.name), column.type) for column in known]
        itself = " AND ".join(self.equal(f"t.{name}", f"{found[0]}.{name}", kind) for name, kind in named)
        return f"DELETE FROM {target} WHERE EXISTS (SELECT 1 FROM {relation} WHERE {where} AND {itself})"


def manifest(files: Files) -> bytes:
    """What COPY reads instead of a prefix: exactly these files, each of exactly this length, or it fails."""
    entries = [
        {"url": address, "mandatory": True, "meta": {"content_length": size}} for address, size in files.sizes.items()
    ]
    return json.dumps({"entries": entries}, indent=1).encode()

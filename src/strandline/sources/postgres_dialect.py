"""PostgreSQL in text: quoting, literals, and how each of its types is read exactly.

Types without a Spark counterpart are read in PostgreSQL's own text form, which loses nothing. Values that a Spark type
would change silently (infinite or ancient times, arrays with odd bounds) make the read fail with a text that says so.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from strandline.core.compare import Form
from strandline.core.errors import SourceError
from strandline.core.table import Column, Table
from strandline.core.watermark import Cursor, Kind, Watermark
from strandline.sources import postgres_canonical
from strandline.sources.dialect import REFUSED, Carried, column_of, integer
from strandline.sources.names import split

_PLAIN = {
    "boolean": "BOOLEAN",
    "smallint": "SMALLINT",
    "integer": "INT",
    "bigint": "BIGINT",
    "real": "FLOAT",
    "double precision": "DOUBLE",
    "bytea": "BINARY",
    "text": "STRING",
}
_ARRAYS = {name: _PLAIN[name] for name in ("boolean", "smallint", "integer", "bigint", "real", "double precision")}
_TIMESTAMP = re.compile(r"timestamp(?:\((\d)\))? (with|without) time zone")
_NUMERIC = re.compile(r"numeric\((\d+),(-?\d+)\)")
_CHAR = re.compile(r"character\((\d+)\)")


class PostgresDialect:
    name = "PostgreSQL"
    text_type = "text"
    # Taking every key for a bucket of its own, the planner would neither hash nor share the work: this hides the key.
    no_rows = " UNION ALL SELECT 0::bigint, 0::bigint WHERE false"

    def quote(self, identifier: str) -> str:
        return '"' + identifier.replace('"', '""') + '"'

    def string(self, text: str) -> str:
        return "'" + text.replace("'", "''") + "'"

    def literal(self, cursor: Cursor, value: Watermark) -> str:
        if cursor.kind is Kind.INTEGER:
            return integer(value)
        if cursor.kind is Kind.DATE:
            return f"'{value.text}'::date"
        return f"'{value.text}'::timestamp" if cursor.zone is not None else f"'{value.text}+00'::timestamptz"

    def text(self, cursor: Cursor, expression: str) -> str:
        if cursor.kind is Kind.TIMESTAMP and cursor.zone is None:
            return f"({expression} AT TIME ZONE 'UTC')::text"
        return f"({expression})::text"

    def relation(self, table: Table) -> str:
        if table.query is not None:
            return f"({table.query}\n) t"
        return ".".join(self.quote(part) for part in split(table.source)) + " t"

    def cursor(self, column: Column) -> Cursor | None:
        if found := _TIMESTAMP.fullmatch(column.type):
            digits, zoned = found.groups()
            zone = None if zoned == "with" else ""
            return Cursor(column.name, Kind.TIMESTAMP, int(digits or 6), zone, column.nullable)
        if column.type == "date":
            return Cursor(column.name, Kind.DATE, 0, "", column.nullable)
        if self.whole(column):
            return Cursor(column.name, Kind.INTEGER, 0, None, column.nullable)
        return None

    def whole(self, column: Column) -> bool:
        if column.cast:
            return False
        numeric = _NUMERIC.fullmatch(column.type)
        return column.type in ("smallint", "integer", "bigint") or bool(numeric and numeric[2] == "0")

    def carry(self, column: Column) -> Carried:
        value = column_of(self, column.name)
        if column.cast:
            value = f"CAST({value} AS {column.cast})"
        kind = column.type
        if kind in _PLAIN:
            return Carried(value, _PLAIN[kind])
        if re.fullmatch(r"numeric(\(.*\))?", kind):
            return Carried(value, _decimal(column))
        if kind == "date":
            return Carried(_dated(column, value, "date"), "DATE")
        if found := _TIMESTAMP.fullmatch(kind):
            return _timestamp(column, value, found[2] == "with")
        if found := _CHAR.fullmatch(kind):
            return Carried(f"rpad({value}::text, {found[1]})", "STRING")
        if kind == "oid":
            return Carried(f"{value}::bigint", "BIGINT")
        element = kind.removesuffix("[]")
        if kind != element and (element in _ARRAYS or element == "text" or element.startswith("character varying")):
            array = "text" if element not in _ARRAYS else element
            return Carried(_flat(column, value, array), f"ARRAY<{_ARRAYS.get(element, 'STRING')}>")
        return Carried(f"{value}::text", "STRING")

    def checksum(self, columns: Sequence[str]) -> str:
        row = ", ".join(column_of(self, name) for name in columns)
        return f"sum(('x' || substr(md5(ROW({row})::text), 1, 15))::bit(60)::bigint)"

    def deleted(self, column: Column) -> str:
        value = column_of(self, column.name)
        return value if column.type == "boolean" else f"{value} IS NOT NULL"

    def form(self, column: Column) -> Form | None:
        return postgres_canonical.form(column.type)

    def canonical(self, column: Column, form: Form) -> str:
        value = column_of(self, column.name)
        value = f"CAST({value} AS {column.cast})" if column.cast else value
        return postgres_canonical.text(
            self.carry(column).expression if form.kind == "text" else value, column.type, form
        )

    def counted(self, column: Column, form: Form, hash: str, /) -> str:
        value = column_of(self, column.name)
        return postgres_canonical.counted(f"CAST({value} AS {column.cast})" if column.cast else value, form, hash)

    def hashed(self, texts: Sequence[str]) -> str:
        return postgres_canonical.hashed(texts)

    def number(self, texts: Sequence[str], hash: str) -> str:
        return postgres_canonical.number(texts, hash)

    def bucket(self, column: Column, low: int, width: int) -> str:
        value = column_of(self, column.name)
        return f"(({value}::bigint - ({low})) / {width})"


def _decimal(column: Column) -> str:
    found = _NUMERIC.fullmatch(column.type)
    if found and 0 <= int(found[2]) <= int(found[1]) <= 38:
        return f"DECIMAL({found[1]},{found[2]})"
    raise SourceError(
        f'column "{column.name}" ({column.type}) does not fit a Spark decimal',
        why="A Spark decimal has at most 38 digits and one fixed scale; rounding would change values silently.",
        remedy=f'Cast it, columns: ["{column.name}::numeric(38,10)"] or ["{column.name}::text"], or leave it out.',
        docs="docs/types.md#numbers",
    )


def _timestamp(column: Column, value: str, zoned: bool) -> Carried:
    """The driver builds timestamps in the JVM's zone; where that may not be UTC, they travel as microseconds."""
    exact = _dated(column, value, "timestamptz" if zoned else "timestamp")
    since = "timestamp_micros({})" if zoned else "TIMESTAMP_NTZ '1970-01-01 00:00:00' + {} * INTERVAL '0.000001' SECOND"
    portable = Carried(f"(extract(epoch FROM {exact}) * 1000000)::bigint", "BIGINT", since)
    return Carried(exact, "TIMESTAMP" if zoned else "TIMESTAMP_NTZ", portable=portable)


def _dated(column: Column, value: str, kind: str) -> str:
    """The cast of a text that is no time raises, and the driver's error carries the text.

    Outside years 1 to 9999, infinity included, Spark has no value; ten days of 1582 do not exist in Java's calendar.
    """
    refusal = _refusal(column, f"{value}::text")
    odd = f"{value} < '0001-01-01' OR {value} >= '10000-01-01' OR ({value} >= '1582-10-05' AND {value} < '1582-10-15')"
    return f"CASE WHEN {odd} THEN ({refusal})::{kind} ELSE {value} END"


def _flat(column: Column, value: str, element: str) -> str:
    refusal = _refusal(column, f"array_dims({value})")
    return (
        f"CASE WHEN array_ndims({value}) > 1 OR array_lower({value}, 1) <> 1 "
        f"THEN ({refusal})::{element}[] ELSE {value}::{element}[] END"
    )


def _refusal(column: Column, shown: str) -> str:
    name = column.name.replace("'", "''")
    return f"'{REFUSED} column {name} with the value ' || {shown}"

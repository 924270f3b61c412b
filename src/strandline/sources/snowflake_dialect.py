"""Snowflake in text: quoting, literals, and how each of its types is read exactly.

Numbers beyond 64 bits, decimals and times of day travel as text, other times as microseconds: the connector turns them
into floats and nanoseconds that cannot hold them. Values that Spark would change silently (nanoseconds, a year 0) make
the read fail with a text that says so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from strandline.core.compare import Form
from strandline.core.errors import SourceError
from strandline.core.table import Column, Table
from strandline.core.watermark import Cursor, Kind, Watermark
from strandline.sources import snowflake_canonical
from strandline.sources.dialect import REFUSED, Carried, column_of, integer
from strandline.sources.names import split
from strandline.sources.snowflake_names import quoted
from strandline.verify.canonical import NULL

_PLAIN = {"BOOLEAN": "BOOLEAN", "FLOAT": "DOUBLE", "VARCHAR": "STRING", "BINARY": "BINARY"}
_WORDS = {
    "TEXT": "VARCHAR",
    "REAL": "FLOAT",
    "DOUBLE": "FLOAT",
    "FIXED": "NUMBER",
    "DECIMAL": "NUMBER",
    "TIMESTAMP": "TIMESTAMP_NTZ",
}
_TIMESTAMP = re.compile(r"TIMESTAMP_(NTZ|LTZ|TZ)\((\d)\)")
_NUMBER = re.compile(r"NUMBER\((\d+),(\d+)\)")
_STAMP = "YYYY-MM-DD HH24:MI:SS.FF"


def type_text(described: Mapping[str, Any]) -> str:
    """A type in one spelling, from how the catalog or a result describes it."""
    name = str(described["data_type"]).upper()
    name = _WORDS.get(name, name)
    if name == "NUMBER":
        return f"NUMBER({described.get('numeric_precision') or 38},{described.get('numeric_scale') or 0})"
    if name == "TIME" or name.startswith("TIMESTAMP_"):
        digits = described.get("datetime_precision")
        return f"{name}({9 if digits is None else digits})"
    if name == "VARCHAR" and (length := described.get("character_maximum_length")):
        return f"VARCHAR({length})"
    return name


class SnowflakeDialect:
    name = "Snowflake"
    text_type = "varchar"
    no_rows = ""

    def quote(self, identifier: str) -> str:
        return quoted(identifier)

    def string(self, text: str) -> str:
        return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"

    def literal(self, cursor: Cursor, value: Watermark) -> str:
        if cursor.kind is Kind.INTEGER:
            return integer(value)
        if cursor.kind is Kind.DATE:
            return f"'{value.text}'::DATE"
        if cursor.zone is not None:
            return f"'{value.text}'::TIMESTAMP_NTZ"
        return f"'{value.text} +00:00'::TIMESTAMP_TZ"

    def text(self, cursor: Cursor, expression: str) -> str:
        if cursor.kind is Kind.INTEGER:
            return f"TO_VARCHAR({expression})"
        if cursor.kind is Kind.DATE:
            return f"TO_VARCHAR({expression}, 'YYYY-MM-DD')"
        if cursor.zone is None:
            expression = f"CONVERT_TIMEZONE('UTC', {expression})::TIMESTAMP_NTZ"
        return f"TO_VARCHAR({expression}, '{_STAMP}{max(cursor.precision, 1)}')"

    def relation(self, table: Table) -> str:
        if table.query is not None:
            return f"({table.query}\n) t"
        return ".".join(self.quote(part) for part in split(table.source)) + " t"

    def cursor(self, column: Column) -> Cursor | None:
        if found := _TIMESTAMP.fullmatch(column.type):
            zone = "" if found[1] == "NTZ" else None
            return Cursor(column.name, Kind.TIMESTAMP, int(found[2]), zone, column.nullable)
        if column.type == "DATE":
            return Cursor(column.name, Kind.DATE, 0, "", column.nullable)
        if self.whole(column):
            return Cursor(column.name, Kind.INTEGER, 0, None, column.nullable)
        return None

    def whole(self, column: Column) -> bool:
        number = _NUMBER.fullmatch(column.type)
        return not column.cast and bool(number and number[2] == "0")

    def carry(self, column: Column) -> Carried:
        value = self._value(column)
        kind = column.type
        name = kind.partition("(")[0]
        if name in _PLAIN:
            return Carried(value, _PLAIN[name])
        if found := _NUMBER.fullmatch(kind):
            if found[2] == "0" and int(found[1]) <= 18:
                return Carried(value, "BIGINT")
            return Carried(f"TO_VARCHAR({value})", "STRING", f"CAST({{}} AS DECIMAL({found[1]},{found[2]}))")
        if kind == "DATE":
            return Carried(_guarded(column, value, f"YEAR({value}) < 1", "DATE"), "DATE")
        if found := _TIMESTAMP.fullmatch(kind):
            return _timestamp(column, value, found[1], int(found[2]))
        if name == "TIME":
            return Carried(f"TO_VARCHAR({value}, 'HH24:MI:SS.FF{max(int(kind[5:-1]), 1)}')", "STRING")
        if name in ("VARIANT", "OBJECT", "ARRAY"):
            return Carried(f"TO_JSON({value})", "STRING")
        raise SourceError(
            f'column "{column.name}" ({column.type}) has no Spark type that holds it exactly',
            remedy=f'Read it as text, columns: ["{column.name}::varchar"], or leave it out.',
            docs="docs/snowflake.md#types",
        )

    def checksum(self, columns: Sequence[str]) -> str:
        texts = [f"COALESCE(TO_VARCHAR({column_of(self, name)}), '{NULL}')" for name in columns]
        return f"SUM(MD5_NUMBER_LOWER64({snowflake_canonical.joined(texts)}))"

    def deleted(self, column: Column) -> str:
        value = column_of(self, column.name)
        return value if column.type == "BOOLEAN" else f"{value} IS NOT NULL"

    def form(self, column: Column) -> Form | None:
        return snowflake_canonical.form(column.type)

    def canonical(self, column: Column, form: Form) -> str:
        text = form.kind == "text"
        return snowflake_canonical.text(self.carry(column).expression if text else self._value(column), form)

    def counted(self, column: Column, form: Form, _hash: str, /) -> str:
        return snowflake_canonical.counted(self._value(column), form)

    def hashed(self, texts: Sequence[str]) -> str:
        return f"MD5({snowflake_canonical.joined(texts)})"

    def number(self, texts: Sequence[str], hash: str) -> str:
        return snowflake_canonical.number(texts, hash)

    def bucket(self, column: Column, low: int, width: int) -> str:
        return f"FLOOR(({self._value(column)} - ({low})) / {width})::NUMBER(38,0)"

    def _value(self, column: Column) -> str:
        value = column_of(self, column.name)
        return f"CAST({value} AS {column.cast})" if column.cast else value


def _timestamp(column: Column, value: str, zone: str, digits: int) -> Carried:
    odd = f"YEAR({value}) < 1" + (f" OR DATE_TRUNC('MICROSECOND', {value}) <> {value}" if digits > 6 else "")
    exact = f"DATE_PART(EPOCH_MICROSECOND, {_guarded(column, value, odd, f'TIMESTAMP_{zone}')})"
    if zone == "NTZ":
        return Carried(exact, "BIGINT", "TIMESTAMP_NTZ '1970-01-01 00:00:00' + {} * INTERVAL '0.000001' SECOND")
    return Carried(exact, "BIGINT", "timestamp_micros({})")


def _guarded(column: Column, value: str, odd: str, kind: str) -> str:
    """The cast of a text that is no time raises, and the server's error carries the text."""
    name = column.name.replace("\\", "\\\\").replace("'", "''")
    refusal = f"'{REFUSED} column {name} with the value ' || TO_VARCHAR({value})"
    return f"CASE WHEN {odd} THEN ({refusal})::{kind} ELSE {value} END"

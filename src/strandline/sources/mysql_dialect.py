"""MySQL and MariaDB in text: quoting, literals, and how each of their types is read exactly.

Dates and times travel as the text the server renders and become Spark values in Spark: no driver's zone or calendar
touches them, and a zero date is an error, never another date.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from strandline.core.compare import Form
from strandline.core.errors import SourceError
from strandline.core.table import Column, Table
from strandline.core.watermark import Cursor, Kind, Watermark
from strandline.sources.dialect import REFUSED, Carried, column_of, integer
from strandline.sources.names import split
from strandline.verify.canonical import BETWEEN, HASHED, float_text

_INTEGERS = {  # signed, unsigned
    "tinyint": ("TINYINT", "SMALLINT"),
    "smallint": ("SMALLINT", "INT"),
    "mediumint": ("INT", "INT"),
    "int": ("INT", "BIGINT"),
    "bigint": ("BIGINT", "DECIMAL(20,0)"),
}
_TEXT = {"varchar", "tinytext", "text", "mediumtext", "longtext", "enum", "set", "json"}
_AS_TEXT = {"char", "time", "uuid", "inet4", "inet6"}  # Spark would pad what it takes for a CHAR
_BINARY = {"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"}
_TIMES = {"date": "DATE", "datetime": "TIMESTAMP_NTZ", "timestamp": "TIMESTAMP"}
_FORMS = {"float": "float", "double": "float", "date": "date", "datetime": "local", "timestamp": "timestamp"}
_DAYS = 719_528  # from the year 0, where TO_DAYS begins, to 1970
_TYPE = re.compile(r"(\w+)(?:\(([^)]*)\))?(.*)", re.DOTALL)


class MySqlDialect:
    name = "MySQL"
    text_type = "char"
    no_rows = ""

    def __init__(self, zero_dates: str = "refuse") -> None:
        self.zero_dates = zero_dates

    def quote(self, identifier: str) -> str:
        return "`" + identifier.replace("`", "``") + "`"

    def string(self, text: str) -> str:
        return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"

    def literal(self, cursor: Cursor, value: Watermark) -> str:
        if cursor.kind is Kind.INTEGER:
            return integer(value)
        return f"DATE'{value.text}'" if cursor.kind is Kind.DATE else f"TIMESTAMP'{value.text}'"

    def text(self, cursor: Cursor, expression: str) -> str:
        return expression if cursor.kind is Kind.INTEGER else f"CAST({expression} AS CHAR)"

    def relation(self, table: Table) -> str:
        if table.query is not None:
            return f"({table.query}\n) t"
        return ".".join(self.quote(part) for part in split(table.source)) + " t"

    def cursor(self, column: Column) -> Cursor | None:
        name, size, _ = _parts(column.type)
        if name in ("datetime", "timestamp"):
            zone = None if name == "timestamp" else ""
            return Cursor(column.name, Kind.TIMESTAMP, int(size or 0), zone, column.nullable)
        if name == "date":
            return Cursor(column.name, Kind.DATE, 0, "", column.nullable)
        return Cursor(column.name, Kind.INTEGER, 0, None, column.nullable) if self.whole(column) else None

    def whole(self, column: Column) -> bool:
        name, size, _ = _parts(column.type)
        return not column.cast and (name in _INTEGERS or (name == "decimal" and size.endswith(",0")))

    def carry(self, column: Column) -> Carried:
        value = column_of(self, column.name)
        if column.cast:
            value = f"CAST({value} AS {column.cast})"
        name, size, rest = _parts(column.type)
        if name in _INTEGERS:
            return Carried(value, _INTEGERS[name]["unsigned" in rest or "zerofill" in rest])
        if name == "decimal":
            return Carried(value, _decimal(column, size))
        if name == "double":
            return Carried(value, "DOUBLE")
        if name == "float":  # as a float the server would show six digits only
            return Carried(f"({value} + 0e0)", "DOUBLE", "CAST({} AS FLOAT)", made="FLOAT")
        if name == "bit":
            one = size in ("", "1")
            return (
                Carried(f"({value} = 1)", "BOOLEAN") if one else Carried(f"CAST({value} AS UNSIGNED)", "DECIMAL(20,0)")
            )
        if name == "year":
            return Carried(f"CAST({value} AS UNSIGNED)", "INT")
        if name in _TIMES:
            return self._time(column, value, _TIMES[name])
        if name in _BINARY:
            return Carried(value, "BINARY")
        if name in _TEXT or name in _AS_TEXT:
            return Carried(value if name in _TEXT else f"CAST({value} AS CHAR)", "STRING")
        raise SourceError(
            f'column "{column.name}" ({column.type}) has no Spark counterpart',
            remedy="Leave it out by columns, or convert it in a query of your own.",
            docs="docs/types.md#mysql",
        )

    def _time(self, column: Column, value: str, kind: str) -> Carried:
        shown = self._shown(value)
        parsed = "try_cast(concat({0}, '+00:00') AS TIMESTAMP)" if kind == "TIMESTAMP" else f"try_cast({{0}} AS {kind})"
        named = column.name.replace("\\", "\\\\").replace("'", "\\'").replace("{", "{{").replace("}", "}}")
        refused = f"raise_error(concat('{REFUSED} column {named} with the value ', {{0}}))"
        checked = f"CASE WHEN {{0}} IS NOT NULL AND {parsed} IS NULL THEN {refused} ELSE {parsed} END"
        return Carried(shown, "STRING", checked, made=kind)

    def checksum(self, columns: Sequence[str]) -> str:
        row = ", ',', ".join(f"QUOTE({column_of(self, name)})" for name in columns)  # QUOTE(NULL) is the word NULL
        # A sum over text would be one of floating point.
        return f"sum(CAST(CONV(LEFT(MD5(CONCAT({row})), 15), 16, 10) AS UNSIGNED))"

    def _shown(self, value: str) -> str:
        shown = f"CAST({value} AS CHAR)"
        return f"IF({shown} LIKE '0000-00-00%', NULL, {shown})" if self.zero_dates == "null" else shown

    def deleted(self, column: Column) -> str:
        value = column_of(self, column.name)
        name, size, _ = _parts(column.type)
        return f"{value} = 1" if (name, size) in (("tinyint", "1"), ("bit", "1")) else f"{value} IS NOT NULL"

    def form(self, column: Column) -> Form | None:
        name, size, rest = _parts(column.type)
        if name in _INTEGERS or name == "year":
            return Form("number" if name == "bigint" and ("unsigned" in rest or "zerofill" in rest) else "whole")
        if name == "decimal":
            return Form("number", int(size.partition(",")[2] or 0))
        if name == "bit":
            return Form("boolean") if size in ("", "1") else Form("number")
        if name in _FORMS:
            return Form(_FORMS[name])
        return Form("binary") if name in _BINARY else Form("text") if name in _TEXT | _AS_TEXT else None

    def canonical(self, column: Column, form: Form) -> str:
        value = column_of(self, column.name)
        value = f"CAST({value} AS {column.cast})" if column.cast else value
        own = self.form(column)
        match form.kind:
            case "whole":
                return f"CAST(({value} + 0) AS CHAR)"
            case "number":
                wider = own is not None and own.scale != form.scale
                exact = f"CAST({value} AS DECIMAL(65,{form.scale}))" if wider else f"({value} + 0)"
                return f"CAST({exact} AS CHAR)"
            case "float":
                return float_text(f"({value} + 0e0)", _double, lambda whole: f"CAST({whole} AS SIGNED)")
            case "boolean":
                return f"CAST({value} = 1 AS CHAR)"
            case "binary":
                return f"LOWER(HEX({value}))"
            case "date":
                return self._shown(value)
            case "timestamp" | "local":
                since = f"TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'2000-01-01 00:00:00', {value})"
                return f"LPAD(LOWER(HEX({since})), 16, '0')"
        return f"CONVERT({value} USING utf8mb4)"

    def counted(self, column: Column, form: Form, _hash: str, /) -> str:
        value = column_of(self, column.name)
        value = f"CAST({value} AS {column.cast})" if column.cast else value
        match form.kind:
            case "boolean":
                return f"({value} = 1)"
            case "date":
                return f"(TO_DAYS({value}) - {_DAYS})"
            case "timestamp" | "local":
                return f"TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'2000-01-01 00:00:00', {value})"
        return f"CAST({value} AS SIGNED)"

    def hashed(self, texts: Sequence[str]) -> str:
        return f"MD5({_joined(texts)})"

    def number(self, texts: Sequence[str], hash: str) -> str:
        number = (
            f"CRC32({_joined(texts)})" if hash == "crc32" else f"CONV(LEFT({self.hashed(texts)}, {HASHED}), 16, 10)"
        )
        return f"CAST({number} AS SIGNED)"

    def bucket(self, column: Column, low: int, width: int) -> str:
        value = column_of(self, column.name)
        return f"((CAST({value} AS SIGNED) - ({low})) DIV {width})"


def _joined(texts: Sequence[str]) -> str:
    return f"CONCAT_WS('{BETWEEN}', {', '.join(texts)})"


def _parts(type_text: str) -> tuple[str, str, str]:
    """Name, size and the rest of a type as the catalog spells it."""
    found = _TYPE.match(type_text.lower())
    return (found[1], (found[2] or "").replace(" ", ""), found[3]) if found else (type_text, "", "")


def _double(value: float) -> str:
    return f"{value:.17e}"


def _decimal(column: Column, size: str) -> str:
    digits, _, scale = size.partition(",")
    if int(digits) <= 38:
        return f"DECIMAL({digits},{scale or '0'})"
    raise SourceError(
        f'column "{column.name}" ({column.type}) does not fit a Spark decimal',
        why="A Spark decimal has at most 38 digits; rounding would change values silently.",
        remedy=f'Cast it, columns: ["{column.name}::decimal(38,10)"] or ["{column.name}::char"], or leave it out.',
        docs="docs/types.md#numbers",
    )

"""Spark values as canonical text (`verify.canonical`), and parts of a key as conditions. SQL text only, no session."""

from __future__ import annotations

from collections.abc import Sequence

from strandline.core.compare import Form
from strandline.core.table import Table
from strandline.core.window import KeyRange, Part
from strandline.spark.text import quoted
from strandline.verify.canonical import BETWEEN, EPOCH, HASHED, NOTHING, NULL, float_text

_NOT_FINITE = (("isnan({0})", "NaN"), ("{0} = double('Infinity')", "Inf"), ("{0} = double('-Infinity')", "-Inf"))


def text(value: str, form: Form, own: Form | None = None) -> str:
    """SQL for the canonical text of a value; NULL stays NULL. `own`: the form of its type, where that is known."""
    match form.kind:
        case "whole":
            return f"CAST({value} AS STRING)"
        case "number":
            return f"CAST({value if form in (own, Form('number')) else _scaled(value, form.scale)} AS STRING)"
        case "float":
            exact = f"CAST({value} AS DOUBLE)"
            odd = [(condition.format(exact), name) for condition, name in _NOT_FINITE]
            return float_text(exact, _double, lambda whole: f"CAST({whole} AS STRING)", odd)
        case "boolean":
            return f"CAST(CAST({value} AS INT) AS STRING)"
        case "binary":
            return f"lower(hex({value}))"
        case "timestamp":
            return _micros(value)
        case "local":
            return _micros(f"CAST({value} AS TIMESTAMP)")  # the session is in UTC
        case "date":
            return f"CAST({value} AS STRING)"
        case "array":
            assert form.element is not None
            element = f"coalesce({text('e', form.element)}, '{NULL}')"
            return f"concat(size({value}), array_join(transform({value}, e -> concat(',', {element})), ''))"
    return value


def _scaled(value: str, scale: int) -> str:
    return f"CAST({value} AS DECIMAL(38,{scale}))"


def _micros(value: str) -> str:
    return f"lpad(lower(hex(unix_micros({value}) - {EPOCH}L)), 16, '0')"


def counted(value: str, form: Form) -> str:
    """SQL for a value as a number of 64 bits, or what stands for NULL."""
    match form.kind:
        case "date":
            exact = f"CAST(unix_date({value}) AS BIGINT)"
        case "timestamp":
            exact = f"(unix_micros({value}) - {EPOCH}L)"
        case "local":
            exact = f"(unix_micros(CAST({value} AS TIMESTAMP)) - {EPOCH}L)"
        case _:
            exact = f"CAST({value} AS BIGINT)"
    return f"coalesce({exact}, {NOTHING}L)"


def hashed(texts: Sequence[str]) -> str:
    return f"md5({_joined(texts)})"


def number(texts: Sequence[str], hash: str) -> str:
    if hash == "crc32":
        return f"crc32({_joined(texts)})"
    return f"CAST(conv(left({hashed(texts)}, {HASHED}), 16, 10) AS BIGINT)"


def _joined(texts: Sequence[str]) -> str:
    marked = [f"coalesce({each}, '{NULL}')" for each in texts]
    return f"concat_ws('{BETWEEN}', {', '.join(marked)})" if len(marked) > 1 else marked[0]


def in_part(table: Table, part: Part) -> str:
    if isinstance(part, KeyRange):
        column = quoted(part.column)
        bounds = [f"{column} >= {part.low}"] if part.low is not None else []
        bounds += [f"{column} < {part.high}"] if part.high is not None else []
        return " AND ".join(bounds) or "true"
    texts = [text(quoted(name), Form.parse(form)) for name, form in zip(table.key, part.forms, strict=True)]
    return f"({number(texts, part.hash)} & {part.modulo - 1}) IN ({', '.join(map(str, part.remainders))})"


def _double(value: float) -> str:
    return f"{value:.17e}D"

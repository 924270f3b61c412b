"""PostgreSQL's values as canonical text (`verify.canonical`), by the words of its catalog for a type. Text only."""

from __future__ import annotations

import re
from collections.abc import Sequence

from strandline.core.compare import Form
from strandline.verify.canonical import BETWEEN, EPOCH, HASHED, NULL, float_text

_FORMS = {
    **dict.fromkeys(("smallint", "integer", "bigint", "oid"), Form("whole")),
    **dict.fromkeys(("real", "double precision"), Form("float")),
    "boolean": Form("boolean"),
    "bytea": Form("binary"),
    "date": Form("date"),
}
_ARRAYS = ("boolean", "smallint", "integer", "bigint", "real", "double precision", "text")
_NOT_FINITE = (("{0} = 'NaN'", "NaN"), ("{0} = 'Infinity'", "Inf"), ("{0} = '-Infinity'", "-Inf"))


def form(kind: str) -> Form:
    if kind in _FORMS:
        return _FORMS[kind]
    if found := re.fullmatch(r"numeric\(\d+,(\d+)\)", kind):
        return Form("number", int(found[1]))
    if kind.startswith("timestamp"):
        return Form("timestamp" if kind.endswith("with time zone") else "local")
    element = kind.removesuffix("[]")
    if kind != element and (element in _ARRAYS or element.startswith("character varying")):
        return Form("array", element=form(element))
    return Form("text")


def text(value: str, kind: str, shared: Form) -> str:
    """SQL for the canonical text of a value of this type, in a form that it shares."""
    match shared.kind:
        case "whole":
            return f"{value}::text"
        case "number":
            return f"{value}::text" if form(kind).scale == shared.scale else f"round({value}, {shared.scale})::text"
        case "float":
            exact = f"{value}::float8"
            odd = [(condition.format(exact), name) for condition, name in _NOT_FINITE]
            return float_text(exact, _double, lambda whole: f"({whole})::bigint", odd)
        case "boolean":
            return f"({value})::int::text"
        case "binary":
            return f"encode({value}, 'hex')"
        case "timestamp":
            return f"encode(timestamptz_send({value}), 'hex')"
        case "local":
            return f"encode(timestamp_send({value}), 'hex')"
        case "date":
            return f"{value}::text"
        case "array":
            assert shared.element is not None
            element = text("e", kind.removesuffix("[]"), shared.element)
            listed = f"SELECT string_agg(',' || coalesce({element}, '{NULL}'), '' ORDER BY n)"
            return f"cardinality({value}) || coalesce(({listed} FROM unnest({value}) WITH ORDINALITY AS a (e, n)), '')"
    return value


def counted(value: str, shared: Form, hash: str) -> str:
    """SQL for a value as a number. What lies outside years 1 to 9999 is in no target, and any number will do."""
    match shared.kind:
        case "boolean":
            return f"({value})::int::bigint"
        case "date":
            finite = f"CASE WHEN isfinite({value}) THEN ({value} - '1970-01-01'::date)::bigint"
            return f"{finite} WHEN {value} IS NOT NULL THEN 1 END"
        case "timestamp" | "local" if hash == "crc32":  # a server that knows it takes bytes for a number, too
            return f"timestamp{'tz' if shared.kind == 'timestamp' else ''}_send({value})::bigint"
        case "timestamp" | "local":
            # A float holds the microseconds of two centuries exactly, and is made quickly.
            near = f"{value} >= '1902-01-01' AND {value} < '2100-01-01'"
            far = f"{value} >= '0001-01-01' AND {value} < '10000-01-01'"
            return (
                f"CASE WHEN {near} THEN (date_part('epoch', {value}) * 1000000)::bigint - {EPOCH} "
                f"WHEN {far} THEN (extract(epoch FROM {value}) * 1000000)::bigint - {EPOCH} "
                f"WHEN {value} IS NOT NULL THEN 1 END"
            )
    return f"{value}::bigint"


def hashes(version: int) -> tuple[str, ...]:
    """Those of texts that a server of this version knows, the cheapest first."""
    return ("crc32", "md5") if version >= 18 else ("md5",)


def hashed(texts: Sequence[str]) -> str:
    return f"md5({_joined(texts)})"


def number(texts: Sequence[str], hash: str) -> str:
    if hash == "crc32":
        return f"crc32({_joined(texts)})"
    return f"('x' || left({hashed(texts)}, {HASHED}))::bit({4 * HASHED})::bigint"


def _joined(texts: Sequence[str]) -> str:
    # The bytes that a client would get: sessions speak UTF-8. `convert_to` would look for its encoding at every row.
    joined = f"concat_ws('{BETWEEN}', {', '.join(texts)})" if len(texts) > 1 else texts[0]
    return f"textsend({joined})"


def _double(value: float) -> str:
    return f"'{value:.17e}'::float8"

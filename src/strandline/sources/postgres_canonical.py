"""PostgreSQL's values as canonical text (`verify.canonical`), by the words of its catalog for a type. Text only."""

from __future__ import annotations

import re
from collections.abc import Sequence

from strandline.core.compare import Form
from strandline.verify.canonical import BETWEEN, NULL, float_text

_FORMS = {
    **dict.fromkeys(("smallint", "integer", "bigint", "oid"), Form("number")),
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


def hashed(texts: Sequence[str]) -> str:
    joined = ", ".join(f"coalesce({each}, '{NULL}')" for each in texts)
    return f"md5(convert_to(concat_ws('{BETWEEN}', {joined}), 'UTF8'))"


def _double(value: float) -> str:
    return f"'{value:.17e}'::float8"

"""Redshift's values as canonical text (`verify.canonical`), by the words of its catalog for a type. Text only.

No `::text` here where a value may be long: that is varchar(256) in Redshift, and cuts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from strandline.core.compare import Form
from strandline.verify.canonical import BETWEEN, EPOCH, HASHED

_FORMS = {
    **dict.fromkeys(("smallint", "integer", "bigint"), Form("whole")),
    "boolean": Form("boolean"),
    "date": Form("date"),
    "timestamp with time zone": Form("timestamp"),
    "timestamp without time zone": Form("local"),
}


def form(kind: str) -> Form | None:
    """None for floats: that two systems agree on all their digits was never seen here."""
    if kind in _FORMS:
        return _FORMS[kind]
    if found := re.fullmatch(r"numeric\(\d+,(\d+)\)", kind):
        return Form("number", int(found[1]))
    if kind.startswith("character"):
        return Form("text")
    return Form("binary") if kind.startswith(("binary varying", "bytea")) else None


def text(value: str, kind: str, shared: Form) -> str:
    """SQL for the canonical text of a value of this type, in a form that it shares."""
    match shared.kind:
        case "number":
            held = form(kind)
            exact = held is not None and held.scale == shared.scale and held.kind == "number"
            return f"{value}::varchar" if exact else f"CAST({value} AS numeric(38,{shared.scale}))::varchar"
        case "boolean":
            return f"({value})::int::varchar"
        case "whole" | "date":
            return f"{value}::varchar"
        case "binary":
            return f"to_hex({value})"
        case "timestamp" | "local":
            return f"lpad(to_hex({_micros(value)} - {EPOCH}), 16, '0')"
    return value


def counted(value: str, shared: Form) -> str:
    match shared.kind:
        case "boolean":
            return f"({value})::int::bigint"
        case "date":
            return f"({value} - '1970-01-01'::date)::bigint"
        case "timestamp" | "local":
            return f"({_micros(value)} - {EPOCH})"
    return f"{value}::bigint"


def hashed(texts: Sequence[str]) -> str:
    return f"md5({_joined(texts)})"


def number(texts: Sequence[str]) -> str:
    return f"strtol(left({hashed(texts)}, {HASHED}), 16)"


def _joined(texts: Sequence[str]) -> str:
    return f" || '{BETWEEN}' || ".join(texts)


def _micros(value: str) -> str:
    """Since 1970. Whole seconds and the rest of one by themselves: whether `epoch` has a fraction, and `microseconds`
    the seconds, differs between Redshift and PostgreSQL."""
    seconds = f"extract(epoch FROM date_trunc('second', {value}))::bigint"
    return f"({seconds} * 1000000 + mod(extract(microseconds FROM {value})::bigint, 1000000))"

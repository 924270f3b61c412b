"""Snowflake's values as canonical text (`verify.canonical`), by the words of its catalog for a type. Text only."""

from __future__ import annotations

import re
from collections.abc import Sequence

from strandline.core.compare import Form
from strandline.verify.canonical import BETWEEN, EPOCH, HASHED, float_text

_FORMS = {
    "FLOAT": Form("float"),
    "BOOLEAN": Form("boolean"),
    "BINARY": Form("binary"),
    "DATE": Form("date"),
    "TIMESTAMP_NTZ": Form("local"),
    "TIMESTAMP_LTZ": Form("timestamp"),
    "TIMESTAMP_TZ": Form("timestamp"),
}
_NOT_FINITE = (("{0} = 'NaN'::FLOAT", "NaN"), ("{0} = 'inf'::FLOAT", "Inf"), ("{0} = '-inf'::FLOAT", "-Inf"))
_HEX = "FM0" + "x" * 15
_BITS = 18_446_744_073_709_551_616


def form(kind: str) -> Form:
    if found := re.fullmatch(r"NUMBER\(\d+,(\d+)\)", kind):
        return Form("number", int(found[1])) if int(found[1]) else Form("whole")
    return _FORMS.get(kind.partition("(")[0], Form("text"))


def text(value: str, shared: Form) -> str:
    """SQL for the canonical text of a value, in a form that it shares."""
    match shared.kind:
        case "whole":
            return f"TO_VARCHAR({value})"
        case "number":
            return f"TO_VARCHAR({value}::NUMBER(38,{shared.scale}))"
        case "float":
            odd = [(condition.format(value), name) for condition, name in _NOT_FINITE]
            return float_text(value, _double, lambda whole: f"TO_VARCHAR(({whole})::NUMBER(38,0))", odd)
        case "boolean":
            return f"CASE WHEN {value} THEN '1' WHEN NOT {value} THEN '0' END"
        case "binary":
            return f"LOWER(HEX_ENCODE({value}))"
        case "date":
            return f"TO_VARCHAR({value}, 'YYYY-MM-DD')"
        case "timestamp" | "local":
            since = f"(DATE_PART(EPOCH_MICROSECOND, {value}) - {EPOCH})"
            return f"TO_CHAR(CASE WHEN {since} < 0 THEN {since} + {_BITS} ELSE {since} END, '{_HEX}')"
    return value


def counted(value: str, shared: Form) -> str:
    match shared.kind:
        case "boolean":
            return f"CASE WHEN {value} THEN 1 WHEN NOT {value} THEN 0 END"
        case "date":
            return f"DATEDIFF(day, '1970-01-01'::DATE, {value})"
        case "timestamp" | "local":
            return f"(DATE_PART(EPOCH_MICROSECOND, {value}) - {EPOCH})"
    return value


def number(texts: Sequence[str], hash: str) -> str:
    if hash != "md5":
        raise ValueError(f"Snowflake does not know {hash}")
    return f"TO_NUMBER(SUBSTR(MD5({joined(texts)}), 1, {HASHED}), '{'X' * HASHED}')"


def joined(texts: Sequence[str]) -> str:
    """None of them NULL."""
    return f"CONCAT_WS('{BETWEEN}', {', '.join(texts)})"


def _double(value: float) -> str:
    return f"'{value:.17e}'::FLOAT"

"""Canonical text of values, as SQL that several systems share: the same text for the same value, wherever it lies.

Owns the text forms and the hash over them. Each dialect says how its own types come into these forms.

form       text
---------  -----------------------------------------------------------------------------------------------------
number     digits with the form's scale: `12`, `-1.50`
float      sign, exponent, `:`, mantissa as whole numbers: no two systems agree on a float's decimal text
boolean    `1`, `0`
text       the text
binary     hexadecimal, lower case
date       `2026-11-15`
timestamp  microseconds since 2000-01-01 in UTC, 16 hexadecimal digits: to format a date costs more than all the rest
local      the same, in the column's own terms
array      the number of elements, then each element after a `,`
NULL       the control character U+001E

A row is its columns joined by U+001F; its hash the MD5 of that in UTF-8, as a number its first 60 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log

NULL, BETWEEN = "\x1e", "\x1f"
EPOCH = 946_684_800_000_000
"""Microseconds from 1970 to 2000, where PostgreSQL begins to count."""
HASHED = 15
"""Hexadecimal digits of the MD5 that make the number which is summed."""

_BITS = 52  # of a double's mantissa, behind the first


def float_text(
    value: str, double: Callable[[float], str], whole: Callable[[str], str], special: Sequence[tuple[str, str]] = ()
) -> str:
    """A double as sign, exponent and 53 bits, by arithmetic that is exact in IEEE 754.

    The logarithm may be off by one, and differently in two systems: the quotient, which is exact, puts it right.
    Powers of two are exact too. `double` spells a literal, `whole` a double without fraction as text.
    """
    size = f"abs({value})"
    exponent = f"floor(ln({size}) / {double(log(2))})"
    half = f"floor({exponent} / {double(2)})"  # a whole power could be larger than any double
    two = double(2)
    scaled = f"({size} * power({two}, -{half}) * power({two}, {half} - {exponent}))"

    def bits(shift: int) -> str:
        mantissa = f"floor({scaled} * {double(2.0 ** (_BITS - shift))})"
        return f"concat({whole(f'{exponent} + {shift}')}, ':', {whole(mantissa)})"

    odd = "".join(f"WHEN {condition} THEN '{text}' " for condition, text in special)
    sign = f"CASE WHEN {value} < {double(0)} THEN '-' ELSE '' END"
    return (
        f"CASE {odd}WHEN {value} IS NULL THEN NULL WHEN {value} = {double(0)} THEN '0' "
        f"ELSE concat({sign}, CASE WHEN {scaled} >= {two} THEN {bits(1)} "
        f"WHEN {scaled} < {double(1)} THEN {bits(-1)} ELSE {bits(0)} END) END"
    )

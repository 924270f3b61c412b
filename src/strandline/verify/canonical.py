"""Canonical text of values, as SQL that several systems share: the same text for the same value, wherever it lies.

Owns the text forms and the hash over them. Each dialect says how its own types come into these forms.

form       text
---------  -----------------------------------------------------------------------------------------------------
whole      digits: `12`
number     digits with the form's scale: `12.00`, `-1.50`
float      sign, exponent, `:`, mantissa as whole numbers: no two systems agree on a float's decimal text
boolean    `1`, `0`
text       the text
binary     hexadecimal, lower case
date       `2026-11-15`
timestamp  microseconds since 2000-01-01 in UTC, 16 hexadecimal digits: to format a date costs more than all the rest
local      the same, in the column's own terms
array      the number of elements, then each element after a `,`
NULL       the control character U+001E

A row is its columns joined by U+001F; its hash the MD5 of that in UTF-8.

Where rows are only added up, a cheaper number stands for each: what the key makes (`row_number`) times the weighted sum
of the rest: numbers and times as they are, texts hashed to 32 bits (CRC-32 where both systems know it, else the first
of the MD5). To make text of numbers and times, and MD5 of text, costs more than all the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log

NULL, BETWEEN = "\x1e", "\x1f"
EPOCH = 946_684_800_000_000
"""Microseconds from 1970 to 2000, where PostgreSQL begins to count."""
HASHED = 8
"""Hexadecimal digits of the MD5 that make a number of 32 bits."""
PRIME = 2_147_483_579
"""Below 2^31, no number that anybody stores to mean something, as 2^31 - 1 is, and such that no two numbers have one
cube modulo it."""
NOTHING = -4_611_686_018_427_387_847
"""Stands for NULL among numbers."""
# Large, and without small multiples that add up to nothing, so that changes of several columns do not cancel out.
# Products of 32 and 28 bits: 64 hold the sum of eight of these.
_WEIGHTS = (197_641_243, 256_203_161, 143_507_897, 229_784_533, 166_903_421, 211_382_681, 239_115_467, 181_060_079)

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


def row_number(numbers: Sequence[str], hashes: Sequence[str], key: str | None) -> str:
    """SQL for a row's number, from SQL for its numbers (64 bits), hashes of its texts (32 bits), and its key, where
    that is a number; else the one hash is that of the key and of whatever else is text.

    As a product it ties each value to its row: values swapped between two rows, or taken from one and given to the
    other, change the sum over both. No step overflows, and `%` has the dividend's sign everywhere.
    """
    (factor, *hashes) = hashes if key is None else (_scattered(key), *hashes)
    parts = [*(f"{number} % {PRIME}" for number in numbers), *hashes]
    return f"({_sum(parts)} % {PRIME}) * {factor}" if parts else factor


def _scattered(key: str) -> str:
    """A number of 32 bits, never 0, that steps evenly for no keys that do: the cube of it, moved away from 0."""
    moved = f"({key} % {PRIME} + {_WEIGHTS[0]})"
    return f"({moved} * {moved} % {PRIME} * {moved} % {PRIME} + {PRIME})"


def _sum(parts: Sequence[str]) -> str:
    most = len(_WEIGHTS)
    if len(parts) > most:
        return _sum([f"{_sum(parts[at : at + most])} % {PRIME}" for at in range(0, len(parts), most)])
    weighed = [f"{part} * {weight}" for part, weight in zip(parts, _WEIGHTS, strict=False)]
    return f"({' + '.join([str(PRIME // 3), *weighed])})"

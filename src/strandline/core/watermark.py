"""Watermarks and cursors: typed, ordered values that keep the exact text a database rendered.

Owns the text form and the order. Knows nothing of databases, Spark or clocks: nothing here passes through a float, a
time stamp or a local zone, so no digit is lost.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from functools import total_ordering

from strandline.core.errors import WindowError


class Kind(StrEnum):
    TIMESTAMP = "timestamp"
    DATE = "date"
    INTEGER = "integer"
    VERSION = "version"


@dataclass(frozen=True)
class Cursor:
    """The column (or version number) that orders a table's changes."""

    column: str
    kind: Kind
    precision: int = 6  # fractional digits the column stores
    zone: str | None = None  # the writers' zone of a zone-less column; None: the column carries its own
    nullable: bool = False


_DATE = r"(\d{4})-(\d{2})-(\d{2})"
_TIMESTAMP = re.compile(_DATE + r" (\d{2}):(\d{2}):(\d{2})(?:\.(\d{1,9}))?")
_INPUT = re.compile(_DATE + r"(?:[ T](\d{2}):(\d{2})(?::(\d{2})(?:\.(\d{1,9}))?)?)? ?(Z|[+-]\d{2}(?::?\d{2})?)?")


@total_ordering
@dataclass(frozen=True, eq=False)
class Watermark:
    """A cursor value: everything before it is safely in the target.

    `text` is canonical: `2026-11-15 08:12:44.120003` (UTC; zone-less columns: their own terms), `2026-11-15`, `4711`.
    """

    kind: Kind
    text: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "_order", _order(self.kind, self.text))

    @classmethod
    def parse(cls, kind: Kind, text: str) -> Watermark:
        """A value a person typed: ISO forms, with an offset or without (then taken as the column's own terms)."""
        text = text.strip()
        if kind in (Kind.INTEGER, Kind.VERSION):
            return cls(kind, text)
        found = _INPUT.fullmatch(text)
        if not found:
            raise WindowError(f'"{text}" is not a {kind}', remedy="Write it as 2026-11-15 or 2026-11-15 08:12:44.120")
        year, month, day, hour, minute, second, fraction, offset = found.groups()
        if kind is Kind.DATE:
            if hour:
                raise WindowError(f'"{text}" is a time; the cursor is a date', remedy=f"Write {year}-{month}-{day}")
            return cls(kind, f"{year}-{month}-{day}")
        clock = f"{hour or '00'}:{minute or '00'}:{second or '00'}"
        if offset and offset != "Z":
            digits = offset[1:].replace(":", "").ljust(4, "0")
            shift = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
            local = datetime.fromisoformat(f"{year}-{month}-{day} {clock}")
            stamp = f"{local - shift if offset[0] == '+' else local + shift}"
        else:
            stamp = f"{year}-{month}-{day} {clock}"
        return cls(kind, f"{stamp}.{fraction}" if fraction else stamp)

    def floor(self, digits: int) -> Watermark:
        """Cut the fraction to what the column can store, never upwards."""
        if self.kind is not Kind.TIMESTAMP or "." not in self.text:
            return self
        stamp, fraction = self.text.split(".")
        return Watermark(self.kind, f"{stamp}.{fraction[:digits]}" if digits else stamp)

    def minus(self, amount: timedelta | int) -> Watermark:
        """This value less a span (seconds for timestamps, whole days for dates, units for integers)."""
        if isinstance(amount, int):
            if self.kind not in (Kind.INTEGER, Kind.VERSION):
                raise WindowError(
                    f"a {self.kind} cursor takes a span of time, not {amount}", remedy="Write 10m, 1h or 2d"
                )
            return Watermark(self.kind, str(int(self.text) - amount))
        if self.kind is Kind.DATE:
            days = -(-int(amount.total_seconds()) // 86400)
            return Watermark(self.kind, (date.fromisoformat(self.text) - timedelta(days=days)).isoformat())
        if self.kind is not Kind.TIMESTAMP:
            raise WindowError(f"an {self.kind} cursor takes a whole number, not a span of time")
        stamp, _, fraction = self.text.partition(".")
        micros = (fraction + "000000")[:6]
        moved = datetime.fromisoformat(f"{stamp}.{micros}") - amount
        rest = fraction[6:]
        return Watermark(self.kind, f"{moved:%Y-%m-%d %H:%M:%S.%f}{rest}")

    def seconds_before(self, now: datetime) -> float | None:
        """How long before `now` this value lies; None where the cursor is no time."""
        if self.kind not in (Kind.TIMESTAMP, Kind.DATE):
            return None
        stamp = self.text if self.kind is Kind.TIMESTAMP else f"{self.text} 00:00:00"
        head, _, fraction = stamp.partition(".")
        at = datetime.fromisoformat(f"{head}.{(fraction + '000000')[:6]}").replace(tzinfo=UTC)
        return (now - at).total_seconds()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Watermark) and (self.kind, self._key) == (other.kind, other._key)

    def __lt__(self, other: Watermark) -> bool:
        if self.kind is not other.kind:
            raise WindowError(f"a {self.kind} ({self}) cannot be compared with a {other.kind} ({other})")
        return self._key < other._key

    def __hash__(self) -> int:
        return hash((self.kind, self._key))

    def __str__(self) -> str:
        return self.text

    @property
    def _key(self) -> tuple[int, ...]:
        order: tuple[int, ...] = self.__dict__["_order"]
        return order


def _order(kind: Kind, text: str) -> tuple[int, ...]:
    if kind in (Kind.INTEGER, Kind.VERSION):
        if not re.fullmatch(r"-?\d+", text):
            raise WindowError(f'"{text}" is not a whole number', remedy=f"The cursor is {kind}: write digits only")
        return (int(text),)
    found = re.fullmatch(_DATE, text) if kind is Kind.DATE else _TIMESTAMP.fullmatch(text)
    if not found:
        raise WindowError(f'"{text}" is not a {kind}')
    parts = found.groups(default="")
    try:
        year, month, day, hour, minute, second = (int(part or 0) for part in (*parts, "", "", "")[:6])
        datetime(year, month, day, hour, minute, second)
    except ValueError as error:
        raise WindowError(f'"{text}" is not a {kind}: {error}') from None
    if kind is Kind.DATE:
        return tuple(int(part) for part in parts)
    return (*(int(part) for part in parts[:6]), int(parts[6].ljust(9, "0")))

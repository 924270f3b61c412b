"""Watermarks and cursors: typed, ordered values that keep the exact text a database rendered.

Owns the text form and the order. Knows nothing of databases, Spark or clocks: nothing here passes through a float, a
time stamp or a local zone, so no digit is lost.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache, total_ordering

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


_INTEGER = re.compile(r"-?\d{1,1000}", re.ASCII)
_DATE = re.compile(r"(\d{4})-(\d{2})-(\d{2})", re.ASCII)
_TIMESTAMP = re.compile(_DATE.pattern + r" (\d{2}):(\d{2}):(\d{2})(?:\.(\d{1,9}))?", re.ASCII)
_INPUT = re.compile(
    _DATE.pattern + r"(?:[ T](\d{2}):(\d{2})(?::(\d{2})(?:\.(\d{1,9}))?)?)? ?(Z|[+-][01]\d(?::?[0-5]\d)?)?", re.ASCII
)


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
    def parse(cls, kind: Kind, text: str, zone: str | None = None) -> Watermark:
        """A value a person typed: ISO forms. Without an offset it is taken in the column's own terms; with one it is
        turned into them: `zone` for a column that carries none, else UTC."""
        text = text.strip()
        if kind in (Kind.INTEGER, Kind.VERSION):
            return cls(kind, str(_order(kind, text)[0]))
        found = _INPUT.fullmatch(text)
        if not found:
            raise WindowError(f'"{text}" is not a {kind}', remedy="Write it as 2026-11-15 or 2026-11-15 08:12:44.120")
        year, month, day, hour, minute, second, fraction, offset = found.groups()
        if kind is Kind.DATE:
            if hour or offset:
                raise WindowError(f'"{text}" is a time; the cursor is a date', remedy=f"Write {year}-{month}-{day}")
            return cls(kind, f"{year}-{month}-{day}")
        stamp = cls(kind, f"{year}-{month}-{day} {hour or '00'}:{minute or '00'}:{second or '00'}")
        if offset:
            stamp = stamp._moved(offset, zone)
        return cls(kind, f"{stamp}.{fraction}" if fraction else stamp.text)

    def _moved(self, offset: str, zone: str | None) -> Watermark:
        """This whole second, stamped at `offset`, in the terms of `zone`."""
        digits = offset[1:].replace(":", "").ljust(4, "0")
        shift = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
        try:
            at = datetime.fromisoformat(f"{self}+00:00") + (shift if offset[0] == "-" else -shift)
            if zone is not None:
                from zoneinfo import ZoneInfo  # only here: it costs more than all the rest of this module

                at = at.astimezone(ZoneInfo(zone))
        except OverflowError:
            raise WindowError(f'"{self} {offset}" lies outside the calendar') from None
        return Watermark(self.kind, at.replace(tzinfo=None).isoformat(" "))

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
            days = amount.days + bool(amount.seconds or amount.microseconds)
            whole = timedelta(days=min(days, timedelta.max.days))
            return Watermark(self.kind, _back(datetime.fromisoformat(self.text), whole).date().isoformat())
        if self.kind is not Kind.TIMESTAMP:
            raise WindowError(f"the cursor is {self.kind}: it takes a whole number, not a span of time")
        stamp, _, fraction = self.text.partition(".")
        moved = _back(datetime.fromisoformat(f"{stamp}.{fraction[:6].ljust(6, '0')}"), amount)
        rest = fraction[6:] if moved > datetime.min else ""  # the first instant is below every fraction of it
        return Watermark(self.kind, f"{moved.isoformat(' ', 'microseconds')}{rest}")

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

    def __lt__(self, other: object) -> bool:
        if not isinstance(other, Watermark):
            return NotImplemented
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


def _back(at: datetime, amount: timedelta) -> datetime:
    """`at - amount`, at most down to the calendar's first instant: nothing lies below it that could be missed."""
    try:
        return at - amount
    except OverflowError:
        if amount < timedelta(0):
            raise WindowError(f"{at} plus {-amount} lies outside the calendar") from None
        return datetime.min


@lru_cache(16)  # idle tables stand at one horizon
def _order(kind: Kind, text: str) -> tuple[int, ...]:
    if kind in (Kind.INTEGER, Kind.VERSION):
        if not _INTEGER.fullmatch(text):
            raise WindowError(f'"{text}" is not a whole number', remedy=f"The cursor is {kind}: write digits only")
        return (int(text),)
    found = _DATE.fullmatch(text) if kind is Kind.DATE else _TIMESTAMP.fullmatch(text)
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

"""Windows: half-open ranges of a cursor, `[low, high)`, and the slices they are cut into.

Owns the arithmetic of ranges. Knows nothing of databases, Spark or time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from strandline.core.errors import WindowError
from strandline.core.watermark import Kind, Watermark


@dataclass(frozen=True)
class Window:
    low: Watermark | None  # None: from the beginning
    high: Watermark

    def __post_init__(self) -> None:
        if self.low is not None and self.high < self.low:
            raise WindowError(f"window ends ({self.high}) before it starts ({self.low})")

    @property
    def empty(self) -> bool:
        return self.low == self.high

    def contains(self, value: Watermark) -> bool:
        return (self.low is None or self.low <= value) and value < self.high

    def cut(self, at: Iterable[Watermark]) -> Iterator[Window]:
        """Tile this window at the given values; whatever they are, nothing is lost and nothing overlaps."""
        low = self.low
        for value in sorted(set(at)):
            if (low is None or low < value) and value < self.high:
                yield Window(low, value)
                low = value
        yield Window(low, self.high)

    def __str__(self) -> str:
        return f"[{'beginning' if self.low is None else self.low}, {self.high})"


@dataclass(frozen=True)
class Extent:
    """What a window covers, for people to read: values of the data's cursor, and the moments that they stand for."""

    low: Watermark | None
    high: Watermark | None
    since: Watermark | None
    until: Watermark | None

    @classmethod
    def of(cls, low: Watermark | None, high: Watermark | None) -> Extent:
        """A cursor that is no time stands for no moment."""
        since, until = (value if value and value.kind in (Kind.TIMESTAMP, Kind.DATE) else None for value in (low, high))
        return cls(low, high, since, until)


@dataclass(frozen=True)
class KeyRange:
    """A half-open range of one integer key column; None is open-ended."""

    column: str
    low: int | None
    high: int | None


@dataclass(frozen=True)
class KeyHash:
    """Some of the buckets that the hash of a key falls into; for keys that have no ranges."""

    forms: tuple[str, ...]  # of each key column, as its canonical text is made (`compare.Form`)
    modulo: int  # a power of two
    remainders: tuple[int, ...]
    hash: str = "md5"


Part = KeyRange | KeyHash
"""Some of a table's keys."""


@dataclass(frozen=True)
class Repair:
    """A part of the target that is to hold exactly what the source holds there, newer rows or not."""

    part: Part
    deletes: int | None = None  # rows that the source does not have: delete at most so many, or fail; None: keep them


@dataclass(frozen=True)
class Slice:
    """What one batch reads: a window, for first loads a key range of it, and a lower read bound (lookback).

    A slice that is not `last` does not move the watermark when it commits: the rest of its window is still to come.
    A repair reads its part of the keys; in merge mode whatever the cursor says, or a row that was updated meanwhile
    would look deleted.
    """

    window: Window
    keys: KeyRange | None = None
    read_from: Watermark | None = None  # below window.low; None: read from window.low
    nulls: bool = False  # also the rows whose cursor is NULL
    last: bool = True
    repair: Repair | None = None

    @property
    def low(self) -> Watermark | None:
        """Where reading starts."""
        return self.window.low if self.read_from is None else self.read_from


def by_cursor(window: Window, cuts: Iterable[Watermark]) -> tuple[Slice, ...]:
    """Slices that tile the window by cursor value; each moves the watermark to its own end."""
    return tuple(Slice(part) for part in window.cut(cuts))


def by_key(window: Window, column: str, cuts: Iterable[int]) -> tuple[Slice, ...]:
    """Slices that tile the key line over one window, open-ended; only the last moves the watermark."""
    edges = [None, *sorted(set(cuts)), None]
    ranges = [KeyRange(column, low, high) for low, high in pairwise(edges)]
    return tuple(Slice(window, keys=keys, last=keys is ranges[-1]) for keys in ranges)

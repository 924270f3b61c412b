"""Comparing two copies of a table: which columns and in which form, how rows fall into buckets, what a difference is.

Values and arithmetic only. How a form is spelled and summed is each system's own business (`Side` in protocols).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from strandline.core.table import Table
from strandline.core.watermark import Cursor, Kind, Watermark
from strandline.core.window import KeyHash, KeyRange, Part

Key = tuple[str | None, ...]  # the canonical text of each key column
Line = tuple[Key, str]  # a row's key and the hash of everything compared

LEAF = 1024
"""About how many rows a bucket holds: few enough to fetch, so many that the sums of all buckets are no burden."""
_BUCKETS = (16, 16_384)  # so many sums fit into PostgreSQL's work_mem as it comes
_NUMBERS = ("whole", "boolean", "date", "timestamp", "local")  # forms that are a number of 64 bits at most
_RANGED = 2**62  # keys beyond it could overflow the arithmetic of buckets


@dataclass(frozen=True)
class Form:
    """The form in which a column's values are compared: one text that every system renders alike."""

    kind: str  # whole, number, float, boolean, text, binary, date, timestamp (UTC), local (one without zone), array
    scale: int = 0  # of a number
    element: Form | None = None  # of an array

    def __str__(self) -> str:
        if self.element:
            return f"array<{self.element}>"
        return f"number({self.scale})" if self.kind == "number" else self.kind

    @classmethod
    def parse(cls, text: str) -> Form:
        """What `str` wrote."""
        if text.startswith("array<"):
            return cls("array", element=cls.parse(text[6:-1]))
        found = re.fullmatch(r"number\((\d+)\)", text)
        return cls("number", int(found[1])) if found else cls(text)

    def shared(self, other: Form | None) -> Form | None:
        """The form both can be rendered in; None: values of these two cannot be compared."""
        if other is None:
            return None
        if {self.kind, other.kind} == {"whole", "number"}:
            return Form("number", max(self.scale, other.scale))
        if self.kind != other.kind:
            return None
        if self.element:
            element = self.element.shared(other.element)
            return element and replace(self, element=element)
        return replace(self, scale=max(self.scale, other.scale))


_SPARK = {
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint"), Form("whole")),
    **dict.fromkeys(("float", "double"), Form("float")),
    **{name: Form(name) for name in ("boolean", "binary", "date", "timestamp")},
    "string": Form("text"),
    "timestamp_ntz": Form("local"),
}


def spark_form(type_text: str) -> Form | None:
    """The form of a Spark type, as `simpleString` spells it; None: it has none."""
    if found := re.fullmatch(r"decimal\(\d+,(\d+)\)", type_text):
        return Form("number", int(found[1]))
    if type_text.startswith("array<"):
        element = spark_form(type_text[6:-1])
        return element and Form("array", element=element)
    return _SPARK.get(type_text)


@dataclass(frozen=True)
class Comparison:
    """What is compared of one table. Without a key a row is known by everything it holds."""

    table: Table
    low: Watermark | None  # rows below were never asked for
    high: Watermark | None  # rows from here on may still be on their way; None: every row is compared
    key: tuple[tuple[str, Form], ...]
    columns: tuple[tuple[str, Form], ...]  # beside the key
    ranged: bool = False  # the key is one whole number
    versions: bool = False  # the target keeps older versions of a row: only the last one is compared, extras are fine
    hash: str = "md5"  # of texts, where rows are summed and keys fall into buckets: one that both systems know

    @property
    def cursor(self) -> Cursor | None:
        """The column that tells which rows lie below the watermark; None: that is a version, or all rows are compared
        as they are."""
        cursor = self.table.cursor
        if cursor is None or cursor.kind is Kind.VERSION:
            return None
        return cursor if self.high is None or self.high.kind is cursor.kind else None

    @property
    def forms(self) -> tuple[str, ...]:
        """Of the key, as a repair's plan keeps them."""
        return tuple(str(form) for _, form in self.key)

    @property
    def numbered(self) -> bool:
        """Whether the key enters a row's sum as a number."""
        return self.ranged and self.key[0][1].kind in _NUMBERS

    @property
    def numbers(self) -> tuple[tuple[str, Form], ...]:
        """Columns that enter a row's sum as numbers, which is cheaper. Without a key every value is text."""
        return tuple(pair for pair in self.columns if pair[1].kind in _NUMBERS) if self.key else ()

    @property
    def texts(self) -> tuple[tuple[tuple[str, Form], ...], ...]:
        """Columns that enter a row's sum as text, those together that are hashed as one: a key that is text with
        everything else; beside one that is a number each alone, where a hash costs less than joining its texts."""
        texts = tuple(pair for pair in self.columns if pair not in self.numbers)
        if not self.numbered:
            return (self.key + texts,)
        return tuple((pair,) for pair in texts) if self.hash == "crc32" else (texts,) if texts else ()


@dataclass(frozen=True)
class Sum:
    """Of one bucket: how many rows, and their numbers (`verify.canonical`) added up."""

    rows: int
    total: int


@dataclass(frozen=True)
class Reach:
    """What a source can say of a table at no cost: the range of its whole-number key, and about how many rows."""

    low: int | None
    high: int | None
    rows: int | None


@dataclass(frozen=True)
class Cut:
    """How rows fall into buckets: by key range, `width` keys from `low` on (-1 and `count`: whatever lies outside);
    or, without a column, by the hash of the key modulo `count`, a power of two."""

    count: int
    column: str = ""
    low: int = 0
    width: int = 1
    within: KeyRange | None = None

    @property
    def high(self) -> int:
        return self.low + self.width * self.count

    @property
    def whole(self) -> bool:
        """Whether every row is in the one bucket: then nobody needs to find it."""
        return self.count == 1 and not self.column

    def part(self, bucket: int) -> KeyRange:
        if bucket < 0:
            return KeyRange(self.column, None, self.low)
        if bucket >= self.count:
            return KeyRange(self.column, self.high, None)
        start = self.low + bucket * self.width
        return KeyRange(self.column, start, start + self.width)


def first_cut(comparison: Comparison, reach: Reach) -> Cut:
    """Buckets of about LEAF rows, as far as the estimate tells."""
    least, most = _BUCKETS
    wanted = (reach.rows or 0) // LEAF
    low, high = reach.low, reach.high
    if comparison.ranged and low is not None and high is not None and -_RANGED < low <= high < _RANGED:
        return cut_range(KeyRange(comparison.key[0][0], low, high + 1), min(max(wanted, least), most))
    return Cut(1 << min(max(wanted, least), most).bit_length() - 1)


def cut_range(keys: KeyRange, count: int) -> Cut:
    """A bounded range in at most `count` buckets of equal width."""
    assert keys.low is not None and keys.high is not None
    span = keys.high - keys.low
    width = max(1, -(-span // count))
    return Cut(-(-span // width), keys.column, keys.low, width)


def differing(source: Mapping[int, Sum], target: Mapping[int, Sum]) -> dict[int, int]:
    """Buckets whose sums differ, with the rows of the larger side."""
    nothing = Sum(0, 0)
    both = sorted(source.keys() | target.keys())
    pairs = ((bucket, source.get(bucket, nothing), target.get(bucket, nothing)) for bucket in both)
    return {bucket: max(one.rows, other.rows) for bucket, one, other in pairs if one != other}


def portions(buckets: Mapping[int, int], rows: int, most: int) -> Iterator[tuple[list[int], int]]:
    """Buckets in groups of about so many rows, at most so many buckets each, and the rows of each group."""
    group: list[int] = []
    held = 0
    for bucket, count in buckets.items():
        if group and (held + count > rows or len(group) == most):
            yield group, held
            group, held = [], 0
        group.append(bucket)
        held += count
    if group:
        yield group, held


KINDS = ("missing", "extra", "different", "duplicate")
EXAMPLES = 5


@dataclass(frozen=True)
class Differences:
    """How many rows differ in which way, with a few keys of each."""

    missing: int = 0  # in the source, not in the target
    extra: int = 0  # in the target, not in the source
    different: int = 0  # in both, with other values
    duplicate: int = 0  # more than once in the target
    examples: Mapping[str, tuple[Key, ...]] = field(default_factory=dict, hash=False)

    def __bool__(self) -> bool:
        return any(getattr(self, kind) for kind in KINDS)

    def __add__(self, other: Differences) -> Differences:
        counts = {kind: getattr(self, kind) + getattr(other, kind) for kind in KINDS}
        shown = {kind: (*self.examples.get(kind, ()), *other.examples.get(kind, ()))[:EXAMPLES] for kind in KINDS}
        return Differences(**counts, examples={kind: keys for kind, keys in shown.items() if keys})


def compare(
    comparison: Comparison, source: Iterable[Line], target: Iterable[Line], moved: Collection[Key] = ()
) -> Differences:
    """What differs between the rows of one part. `moved`: keys whose row now stands at or above the watermark.

    A source may hold several rows of a key that nothing keeps unique: one of them must be in the target.
    """
    if not comparison.key:
        return _compare_rows(comparison, source, target)
    here, there = _by_key(source, moved), _by_key(target, moved)
    found: dict[str, list[Key]] = {kind: [] for kind in KINDS}
    for key, hashes in here.items():
        if key not in there:
            found["missing"].append(key)
        elif not set(there[key]) & set(hashes):
            found["different"].append(key)
    found["extra"] = [] if comparison.versions else [key for key in there if key not in here]
    found["duplicate"] = [key for key, hashes in there.items() if len(hashes) > 1]
    return Differences(
        **{kind: len(keys) for kind, keys in found.items()},
        examples={kind: tuple(keys[:EXAMPLES]) for kind, keys in found.items() if keys},
    )


def _by_key(lines: Iterable[Line], moved: Collection[Key]) -> dict[Key, list[str]]:
    found: dict[Key, list[str]] = defaultdict(list)
    for key, hashed in lines:
        if key not in moved:
            found[key].append(hashed)
    return found


def _compare_rows(comparison: Comparison, source: Iterable[Line], target: Iterable[Line]) -> Differences:
    here, there = (Counter(hashed for _, hashed in lines) for lines in (source, target))
    missing, extra = (here - there).total(), (there - here).total()
    return Differences(missing=missing, extra=0 if comparison.versions else extra)


def joined(ranges: Sequence[KeyRange], most: int) -> list[KeyRange]:
    """Ranges in order, those beside each other made one; then those with the smallest gaps, until at most so many."""
    ranges = sorted(ranges, key=lambda part: (part.low is not None, part.low or 0))
    gaps = sorted(_gap(one, other) for one, other in pairwise(ranges))
    allowed = max(gaps[len(ranges) - most - 1], 0) if len(ranges) > most else 0
    found = list(ranges[:1])
    for part in ranges[1:]:
        if _gap(found[-1], part) <= allowed:
            found[-1] = replace(found[-1], high=part.high)
        else:
            found.append(part)
    return found


def _gap(one: KeyRange, other: KeyRange) -> int:
    return (other.low or 0) - (one.high or 0)


def coarser(keys: KeyHash, most: int) -> KeyHash:
    """The same buckets, or larger ones around them, at most so many."""
    while len(keys.remainders) > most:
        modulo = keys.modulo // 2
        keys = replace(keys, modulo=modulo, remainders=tuple(sorted({each % modulo for each in keys.remainders})))
    return keys


def parts_of(comparison: Comparison, cut: Cut, buckets: Sequence[int]) -> tuple[Part, ...]:
    """The key parts that these buckets stand for."""
    if cut.column:
        return tuple(cut.part(bucket) for bucket in buckets)
    return (KeyHash(comparison.forms, cut.count, tuple(buckets), comparison.hash),)

"""Batches: the identity under which a slice is applied, and what applying it did.

The identity travels with the rows into the target, so that after a crash the target itself says what it holds.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any

from strandline.core.errors import WindowError
from strandline.core.watermark import Kind, Watermark


@dataclass(frozen=True)
class Applied:
    """What one batch, or several added up, did to the target, as the target counted it."""

    rows_read: int = 0
    rows_inserted: int = 0
    rows_updated: int = 0
    rows_deleted: int = 0
    last_value: Watermark | None = None  # the highest cursor value really moved
    files: int = 0  # that a stage holds of it

    def __add__(self, other: Applied) -> Applied:
        counts = {name: count + getattr(other, name) for name, count in self._counts().items()}
        known = [value for value in (self.last_value, other.last_value) if value is not None]
        return Applied(**counts, last_value=max(known, default=None))

    def since(self, earlier: Applied) -> Applied:
        """What was done after `earlier`, of sums over the same batches."""
        return self + Applied(**{name: -count for name, count in earlier._counts().items()}, last_value=None)

    def _counts(self) -> dict[str, int]:
        return {part.name: getattr(self, part.name) for part in fields(self) if part.name != "last_value"}

    def to_json(self) -> dict[str, Any]:
        last = self.last_value
        return {**self._counts(), "last_value": [last.kind.value, last.text] if last else None}

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Applied:
        last = raw["last_value"]
        return cls(**{**raw, "last_value": Watermark(Kind(last[0]), last[1]) if last else None})


@dataclass(frozen=True)
class Batch:
    """Numbers rise by one per table and stage and never restart; `set`, `reset` and `import` raise the epoch."""

    store: str  # identity of the state store that gave the number
    epoch: int
    number: int
    low: Watermark | None
    high: Watermark
    watermark: Watermark | None  # what the table's watermark is once this batch is committed
    attempt: str  # unique per try
    carried: Applied | None = None  # the table's totals before it, where the state was not told of all of them

    @property
    def order(self) -> tuple[int, int]:
        return (self.epoch, self.number)

    def same(self, other: Batch | None) -> bool:
        """Whether both are the same piece of work; the attempt and what it carried do not count."""
        return other is not None and replace(other, attempt=self.attempt, carried=self.carried) == self

    def to_json(self) -> str:
        kind = self.high.kind
        text = {
            name: None if value is None else value.text
            for name, value in (("low", self.low), ("high", self.high), ("watermark", self.watermark))
        }
        return json.dumps(
            {
                "store": self.store,
                "epoch": self.epoch,
                "number": self.number,
                "kind": kind.value,
                **text,
                "attempt": self.attempt,
                **({"carried": self.carried.to_json()} if self.carried else {}),
            },
            sort_keys=True,
        )

    @classmethod
    def from_json(cls, text: str) -> Batch:
        """Raises ValueError on anything that `to_json` did not write."""
        try:
            raw = json.loads(text)
            kind = Kind(raw["kind"])
            low, high, watermark = (
                None if raw[name] is None else Watermark(kind, raw[name]) for name in ("low", "high", "watermark")
            )
            if high is None:
                raise ValueError("it has no end")
            numbers = int(raw["epoch"]), int(raw["number"])
            carried = Applied.from_json(raw["carried"]) if raw.get("carried") else None
            return cls(raw["store"], *numbers, low, high, watermark, raw["attempt"], carried)
        except (ValueError, KeyError, TypeError, WindowError) as error:
            raise ValueError(f"not a batch: {error}") from error

    def __str__(self) -> str:
        return f"batch {self.epoch}.{self.number}"


class How(StrEnum):
    """How a sink applies a batch. CHANGES is the rule: by the table's mode, matched by key in merge mode."""

    CHANGES = "changes"
    CURRENT = "current"  # as CHANGES, but a row replaces any: the source went back, so its cursor compares nothing
    FRESH = "fresh"  # the target holds no row that a row of this batch could repeat: nothing need be matched
    REPLACE = "replace"  # the batch replaces the whole target in one commit (snapshot, `--full`)
    REPAIR = "repair"  # one part of the target is made equal to the batch, newer rows or not (`verify --repair`)


@dataclass(frozen=True)
class Receipt:
    """A sink's word on the last batch it holds."""

    batch: Batch
    applied: Applied
    epoch: int = 0  # batches of an earlier epoch are shut out
    exact: bool = True  # False: the target remembers epoch and number only; the batch's other fields say nothing

    def agrees(self, batch: Batch) -> bool:
        """Whether the target holds this batch, as far as it remembers. Enough to go on from, not to adopt by."""
        if self.exact:
            return self.batch.same(batch)
        if not self.batch.number:
            return True
        # A fence raises the epoch that the target remembers, and leaves the number.
        return self.batch.number == batch.number and self.batch.epoch >= batch.epoch


NO_MEMORY = Receipt(Batch("", 0, 0, None, Watermark(Kind.VERSION, "0"), None, ""), Applied(), exact=False)
"""Of a target that remembers nothing (stdout): what the position says is all that is known."""

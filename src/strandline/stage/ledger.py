"""A table's batches in the stage: which manifests count, which is the last, and how one more is added.

Owns fencing. A fence says after which number its epoch begins; number k belongs to the largest epoch that begins before
it, and a manifest of another epoch under that number is void. So a writer that was given up may still put its
manifest, and nothing changes. No request grows with the number of batches: `head.json` says where to look.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

from strandline.core.errors import StrandlineError, TargetError
from strandline.objects import Objects
from strandline.stage.layout import Layout
from strandline.stage.manifest import Manifest

READERS = 16
"""Requests under way at once where many are needed."""


class Fences:
    """From which number on each epoch counts."""

    def __init__(self, after: Mapping[int, int]) -> None:
        self._after = dict(sorted(after.items(), reverse=True))

    @property
    def epoch(self) -> int:
        """The newest; every earlier one is shut out."""
        return next(iter(self._after), 0)

    def owner(self, number: int) -> int | None:
        """The epoch that a number belongs to."""
        return next((epoch for epoch, after in self._after.items() if after < number), None)


class Ledger:
    """The manifests and fences of one table. What it has read of either is kept: neither is ever changed."""

    def __init__(self, objects: Objects, layout: Layout, damaged: type[StrandlineError] = TargetError) -> None:
        self.objects = objects
        self.layout = layout
        self._damaged = damaged
        self._manifests: dict[tuple[int, int], Manifest] = {}
        self._after: dict[int, int] = {}

    @property
    def where(self) -> str:
        return f"{self.layout.pipeline}.{self.layout.table}"

    def fences(self) -> Fences:
        """Every fence there is now. One request, and one for each fence that is new to us."""
        for entry in self.objects.list(self.layout.fences):
            epoch = self.layout.fence_epoch(entry.key)
            if epoch is not None and epoch not in self._after:
                self._after[epoch] = self._fence(entry.key)
        return self.known

    def fence(self, epoch: int, after: int) -> Fences:
        """Begin an epoch after a number, unless it was begun already or a later one was."""
        found = self.fences()
        if found.epoch >= epoch:
            return found
        content = {"after": after, "at": now()}
        self.objects.create(self.layout.fence(epoch), json.dumps(content).encode())
        return self.fences()

    @property
    def known(self) -> Fences:
        """The fences that were there at the last look."""
        return Fences(self._after)

    def last(self) -> Manifest | None:
        """The last batch that counts."""
        orders = self._orders(self._head())
        if not orders:
            orders = self._orders(None)
        return self.manifest(*orders[-1]) if orders else None

    def between(self, low: int, high: int) -> list[Manifest]:
        """Every batch that counts with low <= number < high, in order."""
        epoch = self.fences().owner(max(low, 1))
        start = None if epoch is None else (epoch, low)
        orders = [order for order in self._orders(start, high) if low <= order[1] < high]
        with ThreadPoolExecutor(READERS) as pool:
            return list(pool.map(lambda order: self.manifest(*order), orders))

    def check_chain(self, manifests: Sequence[Manifest], low: int) -> None:
        """Raise unless these are all batches from `low` on: each names the one before it."""
        numbers = [0, *(manifest.number for manifest in manifests)]
        for before, manifest in zip(numbers, manifests, strict=False):
            if manifest.previous >= low and manifest.previous != before:
                epoch = self.known.owner(manifest.previous) or 0
                raise self.broken(self.layout.manifest(epoch, manifest.previous), "is missing")

    def manifest(self, epoch: int, number: int) -> Manifest:
        order = (epoch, number)
        if order not in self._manifests:
            self._manifests[order] = self._read(self.layout.manifest(*order))
        return self._manifests[order]

    def add(self, manifest: Manifest) -> Manifest:
        """Put a manifest under its number; returns the one that is there afterwards, ours or another's."""
        batch = manifest.batch
        key = self.layout.manifest(*batch.order)
        if self.objects.create(key, manifest.to_json()):
            hint = {"epoch": batch.epoch, "number": batch.number}
            self.objects.replace(self.layout.head, json.dumps(hint).encode())
            return manifest
        return self._read(key)

    def floor(self) -> int:
        """The data of batches below this number were cleaned away."""
        data = self.objects.get(self.layout.floor)
        try:
            return 0 if data is None else int(json.loads(data)["below"])
        except (ValueError, KeyError, TypeError) as error:
            raise self.broken(self.layout.floor, "cannot be read") from error

    def raise_floor(self, below: int) -> None:
        """Say that data are gone, before they go. Never lowered."""
        while below > self.floor():
            found = self.objects.find(self.layout.floor)
            content = json.dumps({"below": below, "at": now()}).encode()
            if found is None:
                self.objects.create(self.layout.floor, content)
            else:
                self.objects.replace(self.layout.floor, content, found[1].etag)

    def _orders(self, start: tuple[int, int] | None, high: int | None = None) -> list[tuple[int, int]]:
        """Epoch and number of every manifest that counts, from `start` on, by number."""
        fences = self.fences()
        after = self.layout.manifest(start[0], max(0, start[1] - 1)) if start else ""
        found = []
        for entry in self.objects.list(self.layout.batches, after=after):
            order = self.layout.manifest_order(entry.key)
            if order is not None and fences.owner(order[1]) == order[0]:
                found.append(order)
                if high is not None and order[1] >= high - 1:
                    break
        return found

    def _head(self) -> tuple[int, int] | None:
        """A hint: whatever it says, the listing decides."""
        data = self.objects.get(self.layout.head)
        try:
            raw = json.loads(data or b"null")
            return (int(raw["epoch"]), int(raw["number"])) if raw else None
        except (ValueError, KeyError, TypeError):
            return None

    def _read(self, key: str) -> Manifest:
        data = self.objects.get(key)
        if data is None:
            raise self.broken(key, "is missing")
        try:
            return Manifest.from_json(data)
        except ValueError as error:
            raise self.broken(key, f"cannot be read ({error})") from error

    def _fence(self, key: str) -> int:
        try:
            return int(json.loads(self.objects.get(key) or b"")["after"])
        except (ValueError, KeyError, TypeError) as error:
            raise self.broken(key, "cannot be read") from error

    def broken(self, key: str, what: str) -> StrandlineError:
        return self._damaged(
            f"the stage is damaged: {self.objects.address}/{key} {what}", where=self.where, remedy=REBUILD, docs=DOCS
        )


DOCS = "docs/stage.md#damage"
REBUILD = """\
Restore it from a backup or an earlier version of the object.
Otherwise stage and load the table anew:   strandline sync --full -p PIPELINE -t TABLE"""


def now() -> str:
    return datetime.now(UTC).isoformat(" ", "microseconds").removesuffix("+00:00")

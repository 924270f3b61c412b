"""What lies in the stage of one table against what its manifests say: every file there, of its length, and named.

Reads manifests and a listing, no data. Looks at the newest batches only; what it leaves out it says.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from strandline.core.errors import SourceError
from strandline.objects import Objects
from strandline.stage.clean import SAFE_AGE
from strandline.stage.layout import Layout
from strandline.stage.ledger import Ledger
from strandline.stage.manifest import Manifest

NEWEST = 1000
"""So many batches are looked at: each is a request."""


@dataclass(frozen=True)
class Broken:
    """A file of a batch that is not as its manifest says."""

    number: int
    key: str
    wrong: str


@dataclass(frozen=True)
class Audit:
    batches: tuple[Manifest, ...] = ()  # that were looked at, by number
    floor: int = 0  # the data of batches below it were cleaned away
    broken: tuple[Broken, ...] = ()
    orphans: tuple[str, ...] = ()  # files that no manifest names, and no attempt can still be at work on
    orphan_bytes: int = 0
    unseen: int = 0  # older batches that were not looked at

    @property
    def last(self) -> int:
        return self.batches[-1].number if self.batches else 0


def audit(objects: Objects, layout: Layout, now: datetime | None = None) -> Audit:
    """SourceError where a manifest is missing or cannot be read."""
    ledger = Ledger(objects, layout, SourceError)
    last = ledger.last()
    if last is None:
        return Audit()
    floor = ledger.floor()
    low = max(last.number - NEWEST + 1, 1)
    found = ledger.between(low, last.number + 1)
    ledger.check_chain(found, low)
    kept = [manifest for manifest in found if manifest.number >= floor]
    start = max(low, floor)
    held = {entry.key: entry for entry in objects.list(layout.data, after=f"{layout.data}/{start:012d}")}
    named = {f"{layout.folder}/{file.path}": (manifest.number, file) for manifest in kept for file in manifest.files}
    broken = []
    for key, (number, file) in named.items():
        if key not in held:
            broken.append(Broken(number, key, "is missing"))
        elif held[key].size != file.bytes:
            broken.append(Broken(number, key, f"has {held[key].size:,} bytes instead of {file.bytes:,}"))
    before = (now or datetime.now(UTC)) - SAFE_AGE
    folders = {key.rpartition("/")[0] for key in named}
    numbers = {key: layout.data_number(key) for key in held if not _beside(key, folders)}
    left = [
        key
        for key, number in numbers.items()
        if number is not None and (number <= last.number or held[key].modified <= before)
    ]
    size = sum(held[key].size for key in left)
    return Audit(tuple(found), floor, tuple(broken), tuple(left), size, max(0, start - max(floor, 1)))


def _beside(key: str, folders: set[str]) -> bool:
    """Whether it lies with a batch's files, or is one of the marks that Spark leaves, also where there are no rows."""
    folder, _, name = key.rpartition("/")
    return folder in folders or name.startswith(("_", "."))

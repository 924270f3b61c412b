"""What a stage holds, and what of it can go: data of batches that every target has loaded, and files of dead attempts.

Owns the rule of what may be removed. Manifests stay, and a floor says below which number the data are gone, so numbers
never restart and nobody reads half a history. The floor is raised before anything is removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from strandline.core.position import Position
from strandline.core.watermark import Kind, Watermark
from strandline.objects import Objects
from strandline.stage.layout import Layout, folder_name, plain_name
from strandline.stage.ledger import Ledger
from strandline.stage.manifest import Manifest

SAFE_AGE = timedelta(hours=24)
"""An attempt at a batch that is still to come may be at work for so long."""


@dataclass(frozen=True)
class StagedBatch:
    """One batch as `stage list` shows it."""

    table: str
    number: int
    epoch: int
    how: str
    low: str
    high: str
    rows: int
    files: int
    bytes: int
    written_at: str
    loaded: tuple[str, ...]  # the targets that hold it
    waiting: tuple[str, ...]  # those that do not yet
    cleaned: bool = False  # its files are gone
    paths: tuple[str, ...] = ()  # of its files, in the stage


def staged_tables(objects: Objects, pipeline: str) -> list[str]:
    """The tables that have a folder in the stage."""
    return [plain_name(folder) for folder in objects.folders(folder_name(pipeline))]


def loaded_by(
    positions: Iterable[Position], tables: Iterable[str], targets: Iterable[str]
) -> dict[str, dict[str, int]]:
    """By table and target, the last number loaded: all below a load's watermark is; 0 where a target never loaded."""
    named = list(targets)
    loaded = {table: dict.fromkeys(named, 0) for table in tables}
    for position in positions:
        stage, _, target = position.stage.partition(":")
        if stage == "load" and target in named:
            loaded.setdefault(position.table, dict.fromkeys(named, 0))[target] = last_loaded(position.watermark)
    return loaded


def last_loaded(mark: Watermark | None) -> int:
    """The number of the last batch below a load's watermark; 0: there is none."""
    return int(mark.text) - 1 if mark is not None and mark.kind is Kind.VERSION else 0


def stage_list(
    objects: Objects,
    pipeline: str,
    table: str,
    loaded: Mapping[str, int],
    newest: int | None = None,
    *,
    cleaned: bool = True,
) -> list[StagedBatch]:
    """Every batch of one table, or the newest ones, by number; those that were cleaned away too, unless told.

    `loaded`: by target, the last number it holds.
    """
    layout = Layout(pipeline, table)
    ledger = Ledger(objects, layout)
    last = ledger.last()
    if last is None:
        return []
    floor = ledger.floor()
    low = max(1 if cleaned else floor, 1 if newest is None else last.number - newest + 1)
    return [_staged(manifest, layout, loaded, floor) for manifest in ledger.between(low, last.number + 1)]


def orphans(objects: Objects, layout: Layout, now: datetime | None = None) -> list[str]:
    """Files of attempts that no manifest names, and of batches below the floor.

    An attempt at a number that is still to come counts only when it is older than `SAFE_AGE`: it may be at work.
    """
    ledger = Ledger(objects, layout)
    last = ledger.last()
    highest = last.number if last else 0
    before = (now or datetime.now(UTC)) - SAFE_AGE
    named = _folders(ledger, layout, ledger.floor(), highest + 1)
    found = []
    for entry in objects.list(layout.data):
        number = layout.data_number(entry.key)
        if number is None or (number > highest and entry.modified > before):
            continue
        if not entry.key.startswith(named.get(number, ())):
            found.append(entry.key)
    return found


@dataclass(frozen=True)
class CleanPlan:
    """What would go. `carry_out` removes it."""

    objects: Objects
    pipeline: str
    batches: tuple[StagedBatch, ...]
    orphans: tuple[str, ...] = field(default=())

    @property
    def bytes(self) -> int:
        return sum(batch.bytes for batch in self.batches)

    def carry_out(self) -> None:
        """A crash on the way leaves files below the floor, which the next cleaning takes."""
        for table in dict.fromkeys(batch.table for batch in self.batches):
            layout = Layout(self.pipeline, table)
            ledger = Ledger(self.objects, layout)
            numbers = [batch.number for batch in self.batches if batch.table == table]
            ledger.raise_floor(max(numbers) + 1)
            for manifest in ledger.between(min(numbers), max(numbers) + 1):
                for folder in {file.path.rpartition("/")[0] for file in manifest.files}:
                    found = self.objects.list(f"{layout.folder}/{folder}")
                    self.objects.delete([entry.key for entry in found])
        self.objects.delete(self.orphans)


@dataclass(frozen=True)
class Cleaning:
    """One pipeline's stage and what its targets hold: by table and target, the last number loaded; every target that
    the pipeline has must be named."""

    objects: Objects
    pipeline: str
    loaded: Mapping[str, Mapping[str, int]]

    def plan(
        self,
        tables: Sequence[str],
        *,
        older_than: timedelta = timedelta(0),
        keep_last: int = 0,
        unloaded: bool = False,
        with_orphans: bool = True,
        now: datetime | None = None,
    ) -> CleanPlan:
        """What may go now: from the oldest batch on, up to the first that must stay."""
        at = now or datetime.now(UTC)
        batches: list[StagedBatch] = []
        left: list[str] = []
        for table in tables:
            found = stage_list(self.objects, self.pipeline, table, self.loaded.get(table, {}), cleaned=False)
            batches += _until_one_must_stay(found[: max(0, len(found) - keep_last)], at - older_than, unloaded=unloaded)
            left += orphans(self.objects, Layout(self.pipeline, table), at) if with_orphans else []
        return CleanPlan(self.objects, self.pipeline, tuple(batches), tuple(left))


def _until_one_must_stay(found: Sequence[StagedBatch], before: datetime, *, unloaded: bool) -> Iterator[StagedBatch]:
    for batch in found:
        loaded = batch.loaded and not batch.waiting
        young = datetime.fromisoformat(batch.written_at).replace(tzinfo=UTC) > before
        if young or not (loaded or unloaded):
            return
        yield batch


def _staged(manifest: Manifest, layout: Layout, loaded: Mapping[str, int], floor: int) -> StagedBatch:
    batch = manifest.batch
    return StagedBatch(
        manifest.table,
        batch.number,
        batch.epoch,
        manifest.how.value,
        batch.low.text if batch.low else "",
        batch.high.text,
        manifest.rows,
        len(manifest.files),
        manifest.size,
        manifest.written_at,
        tuple(target for target, number in loaded.items() if number >= batch.number),
        tuple(target for target, number in loaded.items() if number < batch.number),
        cleaned=batch.number < floor,
        paths=tuple(f"{layout.folder}/{file.path}" for file in manifest.files),
    )


def _folders(ledger: Ledger, layout: Layout, low: int, high: int) -> dict[int, tuple[str, ...]]:
    """By number, where the files of a batch lie, as its manifest says."""
    return {
        manifest.number: tuple({f"{layout.folder}/{file.path.rpartition('/')[0]}/" for file in manifest.files})
        for manifest in ledger.between(low, high)
    }

"""The stage as a source: its cursor is the batch number, and it is read without a look at the database.

Owns which batches a window means and which of them are applied together. What a batch holds is in its manifest; the
rows of several are given as if they had been applied one after the other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TypeVar

from strandline.core.batch import How
from strandline.core.compare import Comparison, Form
from strandline.core.errors import SourceError, StrandlineError
from strandline.core.position import Horizon
from strandline.core.protocols import SourceSide
from strandline.core.table import Table, TableInfo
from strandline.core.watermark import Kind, Watermark
from strandline.core.window import Extent, Slice, Window, by_cursor
from strandline.endpoint import Endpoint
from strandline.objects import open_objects
from strandline.spark.storage import storage_settings
from strandline.stage.changes import StageChanges
from strandline.stage.layout import Layout, folder_name, plain_name
from strandline.stage.ledger import DOCS, READERS, Ledger
from strandline.stage.manifest import Manifest

T = TypeVar("T")

NOTHING = "nothing is staged yet"


class StageSource:
    """The tables that one pipeline has staged. `one_by_one`: no two batches are applied as one, since the target loads
    a batch's files as they are."""

    def __init__(self, endpoint: Endpoint, pipeline: str, *, one_by_one: bool = False) -> None:
        self.endpoint = endpoint
        self.pipeline = pipeline
        self.one_by_one = one_by_one
        self.objects = open_objects(endpoint)
        self.warnings: list[tuple[str, str]] = []
        self._ledgers: dict[str, Ledger] = {}
        self._seen: dict[str, Manifest | None] = {}  # the newest batch of each table, when it was last asked for

    def identity(self) -> str:
        return f"stage:{self.objects.address}/{folder_name(self.pipeline)}"

    def tables(self, patterns: Sequence[str], queries: Mapping[str, str]) -> dict[str, TableInfo | StrandlineError]:
        """As the newest batch has them. A name that has none yet has no columns, and no rows waiting."""
        names = dict.fromkeys([*(name for name in patterns if not _glob(name)), *queries])
        if globs := [pattern for pattern in patterns if _glob(pattern)]:
            staged = [plain_name(folder) for folder in self.objects.folders(folder_name(self.pipeline))]
            names |= dict.fromkeys(name for name in staged if any(fnmatchcase(name, glob) for glob in globs))
        return self._each(names, lambda name: _info(name, self._newest(name)))

    def resolve(self, table: Table, info: TableInfo, zone: str | None) -> Table:
        """A `zone:` that is no longer the one the rows were read in shows as a change of what is measured."""
        last = self._seen[table.name] if table.name in self._seen else self._newest(table.name)
        table = replace(table, source=info.name, lookback=None, initial=None)
        if last is None:
            return table
        cursor = last.cursor
        if cursor is not None and cursor.zone is not None:
            cursor = replace(cursor, zone=zone or cursor.zone)
        return replace(
            table,
            cursor=cursor,
            key=last.key,
            key_enforced=last.key_enforced,
            columns=last.columns,
            family=last.family,
            comment=last.comment,
        )

    def horizons(self, tables: Sequence[Table]) -> dict[str, Horizon | StrandlineError]:
        """Manifests come in the order of their numbers, so all below the last one's end is there."""

        def horizon(name: str) -> Horizon:
            last = self._newest(name)
            return Horizon(_version(last.number + 1), observed=last.written_at) if last else Horizon(None, note=NOTHING)

        return self._each((table.name for table in tables), horizon)

    def pending(self, windows: Mapping[str, tuple[Table, Window]]) -> dict[str, int | StrandlineError | None]:
        """Exact. None where a batch does something without rows: an emptied table, a repair that only deletes."""

        def waiting(name: str) -> int | None:
            found = self._batches(name, windows[name][1])
            rows = sum(manifest.rows for manifest in found)
            return rows if rows or not any(manifest.alone for manifest in found) else None

        return self._each(windows, waiting)

    def fingerprints(self, windows: Mapping[str, tuple[Table, Window]]) -> dict[str, str | StrandlineError]:
        def fingerprint(name: str) -> str:
            found = self._batches(name, windows[name][1])
            text = "\n".join(manifest.batch.to_json() for manifest in found)
            return f"{sum(manifest.rows for manifest in found)}:{hashlib.sha256(text.encode()).hexdigest()[:16]}"

        return self._each(windows, fingerprint)

    def slices(self, table: Table, window: Window, rows: int | None, limit: int | None) -> tuple[Slice, ...]:
        """Whole batches: as many together as may be applied as one, of about `slice_rows`."""
        if rows == 0:
            return (Slice(window),)
        groups: list[list[Manifest]] = []
        total = 0
        for manifest in self._batches(table.name, window):
            if limit is not None and total >= max(limit, 1):
                window = Window(window.low, _version(manifest.number))
                break
            total += manifest.rows
            if groups and self._together(table, groups[-1], manifest):
                groups[-1].append(manifest)
            else:
                groups.append([manifest])
        return by_cursor(window, [_version(group[0].number) for group in groups[1:]])

    def changes(self, table: Table, slice: Slice) -> StageChanges:
        ledger = self._ledger(table.name)
        found = self._batches(table.name, slice.window)
        self._refuse_cleaned(table, ledger, found)
        return StageChanges(self.objects, storage_settings(self.endpoint), ledger.layout, table, found)

    def reached(self, table: Table, number: Watermark | None) -> Watermark | None:
        """How far into the database the batches below this number go."""
        if number is None or int(number.text) <= 1:
            return None
        ledger = self._ledger(table.name)
        last = ledger.between(int(number.text) - 1, int(number.text))
        return last[-1].batch.watermark if last else None

    def extent(self, table: Table, window: Window) -> Extent:
        """From where the batches were read in the database, and how far they go."""
        found = self._batches(table.name, window)
        return Extent.of(found[0].batch.low, found[-1].batch.watermark) if found else Extent.of(None, None)

    def floor(self, table: Table) -> int:
        """The rows of batches below this number were cleaned away: they cannot be loaded again."""
        return self._ledger(table.name).floor()

    def forms(self, table: Table) -> dict[str, Form | None]:
        raise _not_compared(table)

    def hashes(self) -> tuple[str, ...]:
        return ("md5",)

    def ranged(self, table: Table) -> bool:
        raise _not_compared(table)

    def side(self, comparison: Comparison) -> SourceSide:
        raise _not_compared(comparison.table)

    def close(self) -> None:
        """Nothing is held open."""

    def replaces(self, table: Table, since: Watermark | None) -> bool:
        """Whether a batch from this number on replaces the whole target, so that those before it do not matter."""
        last = self._newest(table.name)
        if last is None:
            return False
        staged = self._batches(table.name, Window(since, _version(last.number + 1)))
        return bool(staged) and staged[0].how is How.REPLACE

    def _newest(self, name: str) -> Manifest | None:
        self._seen[name] = last = self._ledger(name).last()
        return last

    def _batches(self, name: str, window: Window) -> list[Manifest]:
        """The batches of a window that matter: one that replaces the whole target makes those before it superfluous."""
        low = 1 if window.low is None else int(window.low.text)
        high = int(window.high.text)
        if low >= high:
            return []
        ledger = self._ledger(name)
        found = ledger.between(low, high)
        start = max((at for at, manifest in enumerate(found) if manifest.how is How.REPLACE), default=0)
        matter = found[start:]
        ledger.check_chain(matter, matter[0].number if start else low)
        return matter

    def _together(self, table: Table, group: Sequence[Manifest], manifest: Manifest) -> bool:
        if self.one_by_one or not manifest.goes_with(group[-1]) or group[-1].alone:
            return False
        if table.nulls == "include":  # a row without a cursor value counts as current when it comes: order is all
            return False
        return sum(each.rows for each in group) + manifest.rows <= table.slice_rows

    def _refuse_cleaned(self, table: Table, ledger: Ledger, found: Sequence[Manifest]) -> None:
        gone = [manifest.number for manifest in found if manifest.files]
        if gone and gone[0] < ledger.floor():
            raise SourceError(
                f"batch {gone[0]} is no longer in the stage: its files were cleaned away",
                where=table.where_text,
                remedy="Read the table anew, through the stage:   strandline sync --full -t TABLE",
                docs=DOCS,
            )

    def _ledger(self, name: str) -> Ledger:
        if name not in self._ledgers:
            self._ledgers[name] = Ledger(self.objects, Layout(self.pipeline, name), SourceError)
        return self._ledgers[name]

    def _each(self, names: Iterable[str], ask: Callable[[str], T]) -> dict[str, T | StrandlineError]:
        """One answer per table, several requests at once; one table's trouble is its own."""

        def one(name: str) -> T | StrandlineError:
            try:
                return ask(name)
            except SourceError as error:
                return error

        asked = list(names)
        with ThreadPoolExecutor(READERS) as pool:
            return dict(zip(asked, pool.map(one, asked), strict=True))


def _info(name: str, last: Manifest | None) -> TableInfo:
    if last is None:
        return TableInfo(name, (), kind="staged")
    unique = (last.key,) if last.key_enforced else ()
    return TableInfo(last.source, last.columns, last.key, unique, kind="staged")


def _version(number: int) -> Watermark:
    return Watermark(Kind.VERSION, str(number))


def _glob(name: str) -> bool:
    return any(character in name for character in "*?[")


def _not_compared(table: Table) -> SourceError:
    return SourceError("a stage is not compared: verify compares with the database", where=table.where_text)

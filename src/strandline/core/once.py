"""One source, asked for several targets at once: what was answered for one of them is not asked again for the next.

Made for one planning and dropped with it: answers are as old as the plan. Knows nothing of positions or plans.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from strandline.core.errors import StrandlineError
from strandline.core.position import Horizon
from strandline.core.protocols import Numbered, Plannable
from strandline.core.table import Table
from strandline.core.window import Extent, Slice, Window

Windows = Mapping[str, tuple[Table, Window]]


class Once:
    def __init__(self, source: Plannable, tables: Sequence[Table] = ()) -> None:
        """`tables`: all whose horizon anybody will ask for, so that one barrier stands for all of them."""
        self._source = source
        self._tables = tables
        self._horizons: dict[str, Horizon | StrandlineError] | None = None
        self._pending: dict[tuple[str, Window], int | StrandlineError | None] = {}
        self._fingerprints: dict[frozenset[tuple[str, str, Window]], dict[str, str | StrandlineError]] = {}
        self._slices: dict[tuple[str, Window, int | None, int | None], tuple[Slice, ...]] = {}

    def horizons(self, tables: Sequence[Table]) -> dict[str, Horizon | StrandlineError]:
        if self._horizons is None:
            self._horizons = self._source.horizons(self._tables)
        return {table.name: self._horizons[table.name] for table in tables}

    def pending(self, windows: Windows) -> dict[str, int | StrandlineError | None]:
        keys = {name: (table.name, window) for name, (table, window) in windows.items()}
        new = {name: windows[name] for name, key in keys.items() if key not in self._pending}
        if new:
            self._pending |= {keys[name]: rows for name, rows in self._source.pending(new).items()}
        return {name: self._pending[key] for name, key in keys.items()}

    def fingerprints(self, windows: Windows) -> dict[str, str | StrandlineError]:
        """Only all of a question together is known again. A range that is looked at twice in one planning is asked for
        twice: whoever writes there meanwhile must show."""
        key = frozenset((name, table.name, window) for name, (table, window) in windows.items())
        if key not in self._fingerprints:
            self._fingerprints[key] = self._source.fingerprints(windows)
        return self._fingerprints[key]

    def slices(self, table: Table, window: Window, rows: int | None, limit: int | None) -> tuple[Slice, ...]:
        key = (table.name, window, rows, limit)
        if key not in self._slices:
            self._slices[key] = self._source.slices(table, window, rows, limit)
        return self._slices[key]

    def extent(self, table: Table, window: Window) -> Extent:
        """Only of tables with an identity, and those are of a source whose windows are numbers."""
        assert isinstance(self._source, Numbered)
        return self._source.extent(table, window)

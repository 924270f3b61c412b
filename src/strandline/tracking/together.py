"""All tables of a pipeline under one watermark: a source of one table whose horizon is the lowest that is proven.

For jobs that read by one time window whatever the table. Owns no rows: the caller reads them by the window.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

from strandline.core.compare import Comparison, Form
from strandline.core.errors import SourceError, StrandlineError
from strandline.core.position import Horizon
from strandline.core.protocols import Changes, Source, SourceSide
from strandline.core.table import SYNC, Column, Mode, Table, TableInfo
from strandline.core.watermark import Kind, Watermark
from strandline.core.window import Slice, Window

ALL = "(pipeline)"
"""The name under which the position of all tables together is kept."""
_NEVER = Watermark(Kind.TIMESTAMP, "9999-12-31 23:59:59")


def _lowest(known: Sequence[Horizon]) -> Horizon:
    nothing = next((one for one in known if one.high is None), None)
    return nothing or min(known, key=lambda one: one.high or _NEVER)


def _highest(known: Sequence[Horizon]) -> Horizon:
    """Where nothing is proven, `lookback` says how late a row may come, whatever its table: by the newest one that is
    seen. The lowest would be that of a table that nobody writes to, for ever."""
    seen = [one for one in known if one.high is not None]
    return max(seen, key=lambda one: one.high or _NEVER) if seen else known[0]


def together(pipeline: str, tables: Sequence[Table]) -> Table:
    """One table for all of them. SourceError where they have no time in common."""
    cursors = [table.cursor for table in tables if table.cursor is not None]
    if len(cursors) < len(tables) or {(one.kind, one.zone) for one in cursors} != {(Kind.TIMESTAMP, cursors[0].zone)}:
        raise SourceError(
            "one window for all tables needs a timestamp as cursor in each of them, in one zone",
            where=pipeline,
            remedy="Plan each table by itself: tracker.plan, tracker.run.",
        )
    if any(table.nulls == "include" for table in tables):
        raise SourceError(
            "nulls: a window of time holds no row without one",
            where=pipeline,
            remedy='Leave nulls="include" out, or plan each table by itself: tracker.plan, tracker.run.',
        )
    spans = [table.lookback for table in tables if isinstance(table.lookback, timedelta)]
    initials = [table.initial for table in tables]
    return Table(
        pipeline,
        ALL,
        ALL,
        ALL,
        SYNC,
        Mode.MERGE,
        cursors[0],
        columns=(Column(cursors[0].column, Kind.TIMESTAMP),),
        lookback=max(spans, default=None),
        initial=initials[0] if len(set(initials)) == 1 else None,
    )


class Together:
    """`source` is asked for the horizons of all its `tables` at once; the lowest that is proven is theirs."""

    def __init__(self, source: Source, tables: Sequence[Table]) -> None:
        self.warnings = source.warnings
        self._source = source
        self._tables = tables

    def identity(self) -> str:
        return self._source.identity()

    def tables(self, patterns: Sequence[str], queries: Mapping[str, str]) -> dict[str, TableInfo | StrandlineError]:
        return dict.fromkeys([*patterns, *queries], SourceError("the tables are looked up one by one"))

    def resolve(self, table: Table, _info: TableInfo, _zone: str | None) -> Table:
        return table

    def horizons(self, tables: Sequence[Table]) -> dict[str, Horizon | StrandlineError]:
        found = list(self._source.horizons(self._tables).values())
        for one in found:
            if isinstance(one, StrandlineError):
                return {table.name: one for table in tables}
        known = [one for one in found if isinstance(one, Horizon)]
        held = next((one.held_by for one in known if one.held_by), None)
        proven = all(one.proven for one in known)
        together = replace(_lowest(known) if proven or held else _highest(known), proven=proven, held_by=held)
        return {table.name: together for table in tables}

    def pending(self, windows: Mapping[str, tuple[Table, Window]]) -> dict[str, int | StrandlineError | None]:
        """What keeps one of the tables from being read is said; how many rows there are is not known."""
        return {name: self._wrong(window) for name, (_, window) in windows.items()}

    def _wrong(self, window: Window) -> StrandlineError | None:
        found = self._source.pending({table.name: (table, window) for table in self._tables})
        return next((one for one in found.values() if isinstance(one, StrandlineError)), None)

    def fingerprints(self, windows: Mapping[str, tuple[Table, Window]]) -> dict[str, str | StrandlineError]:
        return dict.fromkeys(windows, SourceError("several tables have no checksum in common"))

    def slices(self, _table: Table, window: Window, _rows: int | None, _limit: int | None) -> tuple[Slice, ...]:
        return (Slice(window),)

    def changes(self, table: Table, _slice: Slice) -> Changes:
        raise SourceError("one window for all tables: read each of them by it", where=table.where_text)

    def forms(self, _table: Table) -> dict[str, Form | None]:
        return {}

    def hashes(self) -> tuple[str, ...]:
        return ("md5",)

    def ranged(self, _table: Table) -> bool:
        return False

    def side(self, comparison: Comparison) -> SourceSide:
        raise SourceError("several tables are not compared as one", where=comparison.table.where_text)

    def close(self) -> None:
        """The source is closed by whoever opened it."""

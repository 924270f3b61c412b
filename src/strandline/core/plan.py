"""Planning: positions + how far it is safe to read → what a run will do. Reads the source, writes nothing.

The same function serves `plan`, `sync` and the Tracker; a plan is data that can be printed, tested and stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from strandline.core.codec import resumed
from strandline.core.errors import ChangedError, SourceError, StateError, StrandlineError, WindowError
from strandline.core.once import Once
from strandline.core.position import Gap, Holder, Horizon, Overlap, Position, Reason, Stall, TablePlan
from strandline.core.protocols import Numbered, Plannable
from strandline.core.stall import past_stall, refuse_gap, went_back
from strandline.core.table import Mode, Table
from strandline.core.watermark import Kind, Watermark
from strandline.core.window import Slice, Window


@dataclass(frozen=True)
class Planned:
    """A table, its position and its plan; `error` where it could not be planned."""

    table: Table
    position: Position
    plan: TablePlan
    measures: Mapping[str, str]
    error: StrandlineError | None = None
    full: bool = False  # the target was to be replaced from the beginning

    def resting(self) -> Position:
        """The position as a table without work leaves it; one that was made to start anew is not kept."""
        match self.plan.reason:
            case Reason.NOTHING_NEW:
                return self.position.skipped(self.plan, self.measures)
            case Reason.HELD:
                return self.position.held(self.plan)
            case Reason.STOPPED if not isinstance(self.error, StateError):  # what cannot be read is not written over
                return self.position.failed(str(self.error), self.error.advice if self.error else "")
        return self.position


@dataclass(frozen=True)
class Ask:
    """One table to be planned.

    `busy`: who is at work on it already. `full`: replace the target from the beginning. `resume` False: a plan that
    was left unfinished stops the table. `error`: it could not even be resolved.
    """

    table: Table
    position: Position
    measures: Mapping[str, str]
    busy: str = ""
    full: bool = False
    resume: bool = True
    error: StrandlineError | None = None


def make_plans(
    source: Plannable, targets: Sequence[Sequence[Ask]], *, run_id: str = "", limit: int | None = None, now: str = ""
) -> list[list[Planned]]:
    """As `make_plan`, for several targets of one source: one barrier stands for all of them, and tables that stand at
    the same place in several are asked about, and cut, once."""
    if len(targets) > 1:
        fresh = {ask.table.name: ask.table for asks in targets for ask in asks if _standing(ask) is None}
        source = Once(source, list(fresh.values()))
    return [make_plan(source, asks, run_id=run_id, limit=limit, now=now) for asks in targets]


def make_plan(
    source: Plannable, asks: Sequence[Ask], *, run_id: str = "", limit: int | None = None, now: str = ""
) -> list[Planned]:
    """One plan per table, in the given order. One table's trouble is its own: the others are planned all the same.

    `now`: the state store's clock; a source's clock that went back is measured by it.
    """
    done: dict[str, Planned] = {}
    fresh: list[Ask] = []
    for ask in asks:
        standing = _standing(ask)
        if standing is None:
            fresh.append(ask)
        else:
            done[ask.table.name] = standing
    for planned in _plan_fresh(source, fresh, run_id, limit, now):
        done[planned.table.name] = planned
    return [done[ask.table.name] for ask in asks]


def _standing(ask: Ask) -> Planned | None:
    """What needs no look at the source: a table that is busy, has changed, or has a plan open."""
    table, position = ask.table, ask.position
    if ask.busy:  # before any error: whoever is at work would lose the position that the error is written to
        return _planned(ask, Reason.BUSY, note=ask.busy)
    if ask.error:
        return _stopped(ask, ask.error)
    if ask.full:
        return None
    try:
        check_unchanged(table, position, ask.measures)
    except ChangedError as error:
        return _stopped(ask, error)
    if position.plan is not None and not ask.resume:
        return _stopped(ask, _unfinished(position.plan))
    if position.plan is not None:
        return Planned(table, position, resumed(position.plan), ask.measures)
    return None


@dataclass(frozen=True)
class _Open:
    """A table with a window to read, and where reading starts (lookback, a gap) if that is below the window."""

    ask: Ask
    horizon: Horizon
    window: Window
    start: Watermark | None
    stall: Stall | None
    gap: Gap | None  # what stays open afterwards
    known: Window | None = None  # it was looked at again and holds what it held, so it is not read

    @property
    def read(self) -> Window:
        return self.window if self.start is None else Window(self.start, self.window.high)

    def unchanged(self) -> _Open:
        """The range to be looked at again holds what it held: nothing of it need be read."""
        mark = self.ask.position.watermark
        window = self.window if mark is None else Window(mark, self.window.high)
        return replace(self, start=None, window=window, known=_seen(self))

    def waits(self, limit: int | None) -> bool:
        """Under a limit a range that stays open is read when it can be closed: every run would read its first rows."""
        again = self.gap is not None and self.known is None and self.read.low != self.ask.position.watermark
        return limit is not None and again and not self.ask.full

    def beyond(self) -> _Open:
        """Only what lies beyond the watermark is read now; what was to be read below it stays open."""
        return replace(self.unchanged(), gap=self.gap and replace(self.gap, low=self.read.low), known=None)


def _plan_fresh(source: Plannable, asks: Sequence[Ask], run_id: str, limit: int | None, now: str) -> list[Planned]:
    horizons = source.horizons([ask.table for ask in asks]) if asks else {}
    plans: dict[str, Planned] = {}
    opened: dict[str, _Open] = {}
    for ask in asks:
        found = horizons[ask.table.name]
        try:
            if isinstance(found, StrandlineError):
                raise found
            opening = _opening(ask, found, now)
        except StrandlineError as error:
            held_by = None if isinstance(found, StrandlineError) else found.held_by
            plans[ask.table.name] = _stopped(ask, error, held_by)
            continue
        if isinstance(opening, Planned):
            plans[ask.table.name] = opening
        else:
            opened[ask.table.name] = opening
    opened = _without_unchanged(source, opened)
    opened, stopped = _without_gaps(source, opened)
    plans |= stopped
    pending = _pending(source, opened)
    for name, opening in opened.items():
        waiting = pending[name]
        try:
            if isinstance(waiting, StrandlineError):
                raise waiting
            plans[name] = _with_work(source, opening, waiting, run_id, limit, now)
        except StrandlineError as error:
            plans[name] = _stopped(opening.ask, error)
    return list(plans.values())


def _opening(ask: Ask, found: Horizon, now: str) -> _Open | Planned:
    """The window to look into; or a plan without work, where nothing can be read now."""
    table, position = ask.table, ask.position
    back = None if ask.full else went_back(table, position, found, now)
    if back is not None:
        held = table.cursor is not None and table.cursor.kind is not Kind.INTEGER
        reason = Reason.HELD if held else Reason.NOTHING_NEW
        return _planned(ask, reason, horizon=replace(found, observed=position.observed), note=back.why, gap=back)
    horizon, stall, gap = past_stall(table, position, found)
    if horizon.held_by is not None:
        gap = gap or position.gap  # closed only when nothing is in the way any more
    _check_not_behind(ask, horizon)
    window = next_window(ask, horizon)
    _check_rereading(table, horizon, gap)
    if window is None:
        reason = Reason.HELD if horizon.held_by else Reason.NOTHING_NEW
        note, gap = _behind(ask, horizon), position.gap
        if table.identity:  # what was read last is still what was read last, however early `as_of` is
            horizon = replace(horizon, observed=position.observed)
        return _planned(ask, reason, horizon=horizon, note=note, stall=stall, gap=gap, now=now)
    start, again = None, position.gap
    if gap is not None and position.watermark is None and position.gap is None:
        gap = replace(gap, low=window.low)  # what lies before `initial` was never asked for
    if table.lookback is not None and window.low is not None and not ask.full:
        start = window.low.minus(table.lookback)
    if again is not None and not ask.full and table.mode is not Mode.SNAPSHOT:
        lowest = None if again.low is None or window.low is None else min(start or window.low, again.low)
        window, start = Window(lowest, window.high), None
    return _Open(ask, horizon, window, start, stall, gap)


def next_window(ask: Ask, horizon: Horizon) -> Window | None:
    """The next tile after the watermark; None where there is nothing that could be read."""
    if horizon.high is None:
        return None
    table, low = ask.table, None if ask.full else ask.position.watermark
    if _at_once(table, horizon):
        return Window(None, horizon.high)
    if table.initial == "latest":
        if low is None and not ask.full:
            return Window(horizon.high, horizon.high)
    elif low is None and table.initial is not None:
        try:
            low = Watermark.parse(horizon.high.kind, table.initial, table.cursor.zone if table.cursor else None)
        except WindowError as error:
            raise SourceError(f"initial: {error.message}", where=table.where_text, remedy=error.remedy) from error
    if low is not None and horizon.high < low:
        return None
    return Window(low, horizon.high)


def _at_once(table: Table, horizon: Horizon) -> bool:
    """Whether every run replaces the target. A source that keeps versions says itself when there is another one."""
    versions = horizon.high is not None and horizon.high.kind is Kind.VERSION
    return table.mode is Mode.SNAPSHOT and not versions


def _check_not_behind(ask: Ask, horizon: Horizon) -> None:
    """Versions of one table only rise: if it has fewer than were read, it is a copy that was brought back."""
    mark, reach = ask.position.watermark, horizon.reach
    if ask.full or not ask.table.identity or mark is None or reach is None or reach >= mark:
        return
    raise ChangedError(
        f"it has no more than {reach} versions, and {mark} were read: an older state of it was brought back",
        where=ask.table.where_text,
        why="Versions to come will bear numbers that were read already, so nothing was moved.",
        remedy=f"Load it again from the beginning:   strandline sync --full -t {ask.table.name}",
        docs="docs/sources-delta.md#replaced",
    )


def _behind(ask: Ask, horizon: Horizon) -> str:
    if horizon.high is None or horizon.note:
        return horizon.note
    low = f"the watermark {mark}" if (mark := ask.position.watermark) else f"initial: {ask.table.initial}"
    return f"the source is behind {low}: it can be read up to {horizon.high} only"


def _without_unchanged(source: Plannable, opened: dict[str, _Open]) -> dict[str, _Open]:
    """A range that holds what it held when it was last read is not read again."""
    asked = {name: (part.ask.table, window) for name, part in opened.items() if (window := _seen(part))}
    found = source.fingerprints(asked) if asked else {}
    same = {name for name, now in found.items() if now == _fingerprint(opened[name].ask.position)}
    return {name: part.unchanged() if name in same else part for name, part in opened.items()}


def _fingerprint(position: Position) -> str | None:
    return position.overlap.fingerprint if position.overlap else None


def _seen(part: _Open) -> Window | None:
    """What was seen last time, if that is all that would be read again. Between its end and the watermark nothing was:
    there the watermark went on without rows."""
    seen, mark, low = part.ask.position.overlap, part.ask.position.watermark, part.read.low
    if seen is None or mark is None or part.ask.full or low == mark:
        return None
    covered = seen.window.low is None or (low is not None and seen.window.low <= low)
    return Window(seen.window.low, mark) if covered else None


def _without_gaps(source: Plannable, opened: dict[str, _Open]) -> tuple[dict[str, _Open], dict[str, Planned]]:
    """Append mode cannot look at a range again: it goes on if no row stands there, and stops if one does."""
    gaps = {
        name: (part.ask.table, Window(gap.low and min(gap.low, mark), mark))
        for name, part in opened.items()
        if (gap := part.ask.position.gap) and (mark := part.ask.position.watermark)
        if part.ask.table.mode is Mode.APPEND and not part.ask.full
    }
    kept, stopped = dict(opened), {}
    for name, rows in (source.pending(gaps) if gaps else {}).items():
        part = kept.pop(name)
        gap = part.ask.position.gap
        if rows == 0 or gap is None:
            kept[name] = part.unchanged()
        else:
            error = rows if isinstance(rows, StrandlineError) else refuse_gap(part.ask.table, gap, rows)
            stopped[name] = _stopped(part.ask, error)
    return kept, stopped


def _pending(source: Plannable, opened: Mapping[str, _Open]) -> Mapping[str, int | StrandlineError | None]:
    asked = {
        name: (part.ask.table, part.read)
        for name, part in opened.items()
        if not part.read.empty or _may_lack_cursor(part.ask.table)
    }
    return {**dict.fromkeys(opened, 0), **(source.pending(asked) if asked else {})}


def _may_lack_cursor(table: Table) -> bool:
    return table.cursor is not None and table.cursor.nullable


def _with_work(source: Plannable, part: _Open, rows: int | None, run_id: str, limit: int | None, now: str) -> Planned:
    waits = part.waits(limit)
    part = part.beyond() if waits else part
    ask, horizon, window = part.ask, part.horizon, part.window
    table, position = ask.table, ask.position
    whole = ask.full or _at_once(table, horizon)
    first = position.batch is None
    fresh = first and not table.shared
    if rows == 0 and not whole:
        tile = _tile(position, window)
        held = horizon.held_by is not None and tile.empty
        reason = Reason.HELD if held else Reason.NOTHING_NEW
        gap = position.gap if held else part.gap
        return _planned(ask, reason, horizon=horizon, window=tile, stall=part.stall, gap=gap, now=now)
    if whole:
        slices = _with_nulls(table, (Slice(window),))
    else:
        slices = source.slices(table if fresh else replace(table, load_rows=None), window, rows, limit)
        window = Window(window.low, slices[-1].window.high)
        slices = _with_nulls(table, (replace(slices[0], read_from=part.start), *slices[1:]))
    reason = Reason.FIRST_LOAD if (first and position.epoch == 1) or ask.full else Reason.INCREMENTAL
    plan = TablePlan(
        table.name,
        table.stage,
        window,
        slices,
        Reason.SNAPSHOT if table.mode is Mode.SNAPSHOT else reason,
        estimated_rows=rows,
        run_id=run_id,
        first=fresh,
        replace=whole,
        observed=observed_below(source, table, window.high, horizon),
        observed_at=now,
        proven=horizon.proven,
        held_by=horizon.held_by,
        stall=part.stall,
        gap=_left_open(part, window.high),
        overlap=None if whole else position.overlap if waits else _overlap(source, part, window.high),
        note=horizon.note or (part.gap.why if part.gap else ""),
        columns=table.columns_changed(position.schema),
    )
    return Planned(table, position, plan, ask.measures, full=ask.full)


def observed_below(source: Plannable, table: Table, high: Watermark, horizon: Horizon) -> str:
    """What the position remembers of the source once all below `high` is read. For a table's own versions that is the
    commit of the last one of them: lag is measured from it, and a plan may end below the horizon."""
    if not table.identity or high == horizon.high or not isinstance(source, Numbered):
        return horizon.observed
    until = source.extent(table, Window(None, high)).until
    return until.text if until else horizon.observed


def _left_open(part: _Open, high: Watermark) -> Gap | None:
    """What stays open once a window has been read up to `high`, which a limit may have put below the watermark."""
    again, mark = part.ask.position.gap, part.ask.position.watermark
    if part.gap is None and again is not None and mark is not None and high < mark:
        return replace(again, low=high)
    return part.gap


def _tile(position: Position, window: Window) -> Window:
    """An empty window as history shows it: from the watermark, whatever was looked at below it."""
    return window if position.watermark is None else Window(position.watermark, window.high)


def _overlap(source: Plannable, part: _Open, high: Watermark) -> Overlap | None:
    """What the range that the next run looks at again holds now, before it is read: whoever writes there later is
    seen by the next run. None where nothing will be looked at again, or where it cannot be told."""
    table, gap = part.ask.table, part.gap
    lows = [high.minus(table.lookback)] if table.lookback is not None else []
    if gap is not None and gap.low is not None:
        lows.append(gap.low)
    if not lows and gap is None:
        return None
    window = Window(None if gap is not None and gap.low is None else min(min(lows), high), high)
    asked = {"next": (table, window)} | ({"known": (table, part.known)} if part.known else {})
    found = source.fingerprints(asked)
    if part.known and found["known"] != _fingerprint(part.ask.position):
        return None  # somebody wrote there since we looked, and this plan does not read it
    now = found["next"]
    return None if isinstance(now, StrandlineError) else Overlap(window, now)


def _with_nulls(table: Table, slices: tuple[Slice, ...]) -> tuple[Slice, ...]:
    """Rows without a cursor come once: with the first slice, or with the slice of their key."""
    if table.nulls != "include":
        return slices
    return tuple(replace(part, nulls=part is slices[0] or part.keys is not None) for part in slices)


def check_unchanged(table: Table, position: Position, measures: Mapping[str, str]) -> None:
    """ChangedError if the position measures something else than this table now asks for."""
    if not position.measures:
        return
    differs = [
        f"{name}: {position.measures.get(name, '') or '(none)'} → {now or '(none)'}"
        for name, now in measures.items()
        if position.measures.get(name, now) != now  # what an older version did not measure has not changed
    ]
    if differs:
        raise ChangedError(
            "what its watermark measures has changed: " + "; ".join(differs),
            where=table.where_text,
            why="Going on from the old watermark could leave rows out, so nothing was moved.",
            remedy=(
                f"Load it again from the beginning:   strandline sync --full -t {table.name}\n"
                f"Or go on from the watermark as it is: strandline watermark set -t {table.name} --accept"
            ),
            docs="docs/operations.md#changed",
        )


def _unfinished(plan: TablePlan) -> StrandlineError:
    return ChangedError(
        f"run {plan.run_id} left its plan unfinished ({plan.done} of {len(plan.slices)} slices done)",
        remedy=f"Carry it out: strandline retry {plan.run_id}\nOr plan anew:  strandline retry {plan.run_id} --replan",
    )


def _check_rereading(table: Table, horizon: Horizon, gap: Gap | None) -> None:
    if table.mode is Mode.SNAPSHOT:
        return
    twice = "lookback" if table.lookback is not None else "nulls: include" if table.nulls == "include" else ""
    twice = "max_stall: {then: skip}" if gap and not horizon.proven else twice
    if table.mode is Mode.APPEND and twice:
        raise SourceError(
            f"{twice} re-reads rows, and append mode would add them again",
            where=table.where_text,
            remedy=f"Use mode: merge with a key, or drop {twice}.",
        )
    if twice:
        check_comparable(table, twice)
    if not horizon.proven and table.lookback is None and gap is None:
        raise SourceError(
            "no barrier stands behind this source, and the table names no lookback",
            where=table.where_text,
            remedy="Add to the table:   lookback: 10m",
        )


def check_comparable(table: Table, why: str) -> None:
    """SourceError where a row that is read again could overwrite a newer one: the target has no cursor to compare."""
    if table.cursor is not None and table.cursor.kind is Kind.VERSION:
        raise SourceError(
            f"{why} reads changes again, and an older one could overwrite a newer row: versions are not in the target",
            where=table.where_text,
            remedy="Name the column that tells which row is newer (cursor: COLUMN), or load the table again: "
            f"strandline sync --full -t {table.name}",
        )
    if table.cursor is None or all(column.name != table.cursor.column for column in table.columns):
        raise SourceError(
            f"{why} reads rows again, and without the cursor column in the target a newer row could be overwritten",
            where=table.where_text,
            remedy="Add the cursor column to `columns:`.",
        )


def _planned(
    ask: Ask,
    reason: Reason,
    *,
    horizon: Horizon | None = None,
    window: Window | None = None,
    note: str = "",
    stall: Stall | None = None,
    gap: Gap | None = None,
    now: str = "",
) -> Planned:
    position = ask.position
    plan = TablePlan(
        ask.table.name,
        ask.table.stage,
        window,
        (),
        reason,
        estimated_rows=0 if reason is Reason.NOTHING_NEW else None,
        observed=horizon.observed if horizon else position.observed,
        observed_at=now or position.observed_at,
        proven=horizon.proven if horizon else False,
        held_by=horizon.held_by if horizon else None,
        stall=stall,
        gap=gap,
        overlap=position.overlap,
        note=note or (horizon.note if horizon else ""),
        columns=ask.table.columns_changed(position.schema) if horizon else "",
    )
    return Planned(ask.table, position, plan, ask.measures, full=ask.full)


def _stopped(ask: Ask, error: StrandlineError, held_by: Holder | None = None) -> Planned:
    stopped = _planned(ask, Reason.STOPPED)
    plan = replace(stopped.plan, error=error.message, held_by=held_by)
    return replace(stopped, plan=plan, error=error.at(ask.table.where_text))

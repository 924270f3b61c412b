"""Planning: positions + how far it is safe to read → what a run will do. Reads the source, writes nothing.

The same function serves `plan`, `sync` and the Tracker; a plan is data that can be printed, tested and stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from strandline.core.codec import resumed
from strandline.core.errors import ChangedError, SourceError, StrandlineError, WindowError
from strandline.core.position import Horizon, Position, Reason, TablePlan
from strandline.core.protocols import Source
from strandline.core.table import Mode, Table
from strandline.core.watermark import Watermark
from strandline.core.window import Slice, Window


@dataclass(frozen=True)
class Planned:
    """A table, its position and its plan; `error` where it could not be planned."""

    table: Table
    position: Position
    plan: TablePlan
    measures: Mapping[str, str]
    error: StrandlineError | None = None


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


def make_plan(source: Source, asks: Sequence[Ask], *, run_id: str = "", limit: int | None = None) -> list[Planned]:
    """One plan per table, in the given order. One table's trouble is its own: the others are planned all the same."""
    done: dict[str, Planned] = {}
    fresh: list[Ask] = []
    for ask in asks:
        standing = _standing(ask)
        if standing is None:
            fresh.append(ask)
        else:
            done[ask.table.name] = standing
    for planned in _plan_fresh(source, fresh, run_id, limit):
        done[planned.table.name] = planned
    return [done[ask.table.name] for ask in asks]


def _standing(ask: Ask) -> Planned | None:
    """What needs no look at the source: a table that is busy, has changed, or has a plan open."""
    table, position = ask.table, ask.position
    if ask.error:
        return _stopped(ask, ask.error)
    if ask.busy:
        return _planned(ask, Reason.BUSY, note=ask.busy)
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


def _plan_fresh(source: Source, asks: Sequence[Ask], run_id: str, limit: int | None) -> list[Planned]:
    horizons = source.horizons([ask.table for ask in asks]) if asks else {}
    plans: dict[str, Planned] = {}
    open_windows: dict[str, tuple[Ask, Horizon, Window]] = {}
    for ask in asks:
        horizon = horizons[ask.table.name]
        try:
            if isinstance(horizon, StrandlineError):
                raise horizon
            window = next_window(ask, horizon)
            _check_rereading(ask.table, horizon)
        except StrandlineError as error:
            plans[ask.table.name] = _stopped(ask, error)
            continue
        if window is None:
            reason = Reason.HELD if horizon.held_by else Reason.NOTHING_NEW
            plans[ask.table.name] = _planned(ask, reason, horizon=horizon, note=_behind(ask, horizon))
        else:
            open_windows[ask.table.name] = (ask, horizon, window)
    pending = _pending(source, open_windows)
    for name, (ask, horizon, window) in open_windows.items():
        waiting = pending[name]
        try:
            if isinstance(waiting, StrandlineError):
                raise waiting
            plans[name] = _with_work(source, ask, horizon, window, waiting, run_id, limit)
        except StrandlineError as error:
            plans[name] = _stopped(ask, error)
    return list(plans.values())


def next_window(ask: Ask, horizon: Horizon) -> Window | None:
    """The next tile after the watermark; None where there is nothing that could be read."""
    if horizon.high is None:
        return None
    table, low = ask.table, None if ask.full else ask.position.watermark
    if table.mode is Mode.SNAPSHOT:
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


def _behind(ask: Ask, horizon: Horizon) -> str:
    if horizon.high is None or horizon.note:
        return horizon.note
    return f"the source is behind the watermark {ask.position.watermark}: it can be read up to {horizon.high} only"


def read_window(table: Table, window: Window) -> Window:
    """The window with its lookback: what is really read."""
    if table.lookback is None or window.low is None:
        return window
    return Window(window.low.minus(table.lookback), window.high)


def _pending(
    source: Source, windows: Mapping[str, tuple[Ask, Horizon, Window]]
) -> Mapping[str, int | StrandlineError | None]:
    asked = {
        name: (ask.table, read_window(ask.table, window))
        for name, (ask, _, window) in windows.items()
        if not window.empty or ask.table.lookback is not None or _may_lack_cursor(ask.table)
    }
    return {**dict.fromkeys(windows, 0), **(source.pending(asked) if asked else {})}


def _may_lack_cursor(table: Table) -> bool:
    return table.cursor is not None and table.cursor.nullable


def _with_work(
    source: Source, ask: Ask, horizon: Horizon, window: Window, rows: int | None, run_id: str, limit: int | None
) -> Planned:
    table, position = ask.table, ask.position
    whole = table.mode is Mode.SNAPSHOT or ask.full
    first = position.batch is None
    if rows == 0 and not whole:
        return _planned(ask, Reason.NOTHING_NEW, horizon=horizon, window=window)
    if whole:
        slices = _with_nulls(table, (Slice(window),))
    else:
        slices = source.slices(table, window, rows, limit)
        window = Window(window.low, slices[-1].window.high)
        read_from = read_window(table, window).low
        start = replace(slices[0], read_from=read_from if table.lookback is not None else None)
        slices = _with_nulls(table, (start, *slices[1:]))
    reason = Reason.FIRST_LOAD if first or ask.full else Reason.INCREMENTAL
    plan = TablePlan(
        table.name,
        table.stage,
        window,
        slices,
        Reason.SNAPSHOT if table.mode is Mode.SNAPSHOT else reason,
        estimated_rows=rows,
        run_id=run_id,
        first=first and not table.shared,
        replace=whole,
        observed=horizon.observed,
        proven=horizon.proven,
        held_by=horizon.held_by,
        note=horizon.note,
    )
    return Planned(table, position, plan, ask.measures)


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


def _check_rereading(table: Table, horizon: Horizon) -> None:
    if table.mode is Mode.SNAPSHOT:
        return
    twice = "lookback" if table.lookback is not None else "nulls: include" if table.nulls == "include" else ""
    if table.mode is Mode.APPEND and twice:
        raise SourceError(
            f"{twice} re-reads rows, and append mode would add them again",
            where=table.where_text,
            remedy=f"Use mode: merge with a key, or drop {twice}.",
        )
    if not horizon.proven and table.lookback is None:
        raise SourceError(
            "no barrier stands behind this source, and the table names no lookback",
            where=table.where_text,
            remedy="Add to the table:   lookback: 10m",
        )


def _planned(
    ask: Ask, reason: Reason, *, horizon: Horizon | None = None, window: Window | None = None, note: str = ""
) -> Planned:
    plan = TablePlan(
        ask.table.name,
        ask.table.stage,
        window,
        (),
        reason,
        estimated_rows=0 if reason is Reason.NOTHING_NEW else None,
        observed=horizon.observed if horizon else "",
        proven=horizon.proven if horizon else False,
        held_by=horizon.held_by if horizon else None,
        note=note or (horizon.note if horizon else ""),
    )
    return Planned(ask.table, ask.position, plan, ask.measures)


def _stopped(ask: Ask, error: StrandlineError) -> Planned:
    stopped = _planned(ask, Reason.STOPPED)
    return replace(stopped, plan=replace(stopped.plan, error=error.message), error=error.at(ask.table.where_text))

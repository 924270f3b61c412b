"""What to do when the horizon does not move: a transaction that stays open, or a source that went back.

Pure decisions over a position and a horizon; `plan` carries them out.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from strandline.core.errors import ChangedError, SourceError
from strandline.core.position import Gap, Horizon, Position, Stall, seconds_between
from strandline.core.table import Table
from strandline.core.watermark import Kind

_UNKNOWN = timedelta(days=1)
"""How long ago the source was last looked at, where the position does not say."""


def past_stall(table: Table, position: Position, found: Horizon) -> tuple[Horizon, Stall | None, Gap | None]:
    """The horizon to go by, since when it is held, and what stays open if it is passed over (`then: skip`).

    SourceError where it has been held for longer than the table allows (`then: fail`).
    """
    if found.held_by is None or table.cursor is None:
        return found, None, None
    stall, limit = _stall(position.stall, found), table.max_stall
    seconds = max(found.held_by.seconds or 0.0, seconds_between(stall.since, found.observed))
    if limit is None or seconds < limit.after.total_seconds():
        return found, stall, None
    if limit.then == "skip":
        low = position.gap.low if position.gap else position.watermark
        gap = Gap(low, f"passed over {found.held_by}", back=position.gap is not None and position.gap.back)
        return replace(found, high=found.reach, proven=False), stall, gap
    raise SourceError(
        f"held for {seconds:.0f} s, longer than max_stall allows, by {found.held_by}",
        where=table.where_text,
        why="Rows it has written may still appear below what could be read now.",
        remedy="End that transaction (pg_terminate_backend, KILL), wait for it, or pass over it:   "
        "max_stall: {after: 10m, then: skip}",
        docs="docs/guarantees.md#stalls",
    )


def _stall(known: Stall | None, found: Horizon) -> Stall:
    """The first look counts: who holds the horizon may change, that it is held does not."""
    assert found.held_by is not None
    if known is None:
        return Stall(found.observed, found.held_by)
    return known if known.holder.pid == found.held_by.pid else replace(known, holder=found.held_by)


def went_back(table: Table, position: Position, found: Horizon, now: str) -> Gap | None:
    """What must be looked at again because the source's clock or its ids went back; None: they did not.

    How far the clock fell below what it showed is unknown; how long it has been running since is not: by the state
    store's clock (`now`), which only ever makes the range larger.
    """
    mark, reach = position.watermark, found.reach or found.high
    if table.cursor is None or (mark is None and position.batch is None):
        return None
    if reach is not None and reach.kind is Kind.VERSION:
        return None
    if table.cursor.kind is Kind.INTEGER:
        if found.next_id is None or mark is None or mark <= found.next_id:
            return None
        why = (
            f"ids of {table.cursor.column} started again: {mark} was passed, and the next one is {found.next_id}; "
            f"they are read when they have passed it, or at once by strandline sync --full -t {table.name}"
        )
        return Gap(None, why, back=True)
    if reach is None:
        return None
    if not position.observed or seconds_between(position.observed, found.observed) >= 0:
        return None
    elapsed = (
        timedelta(seconds=seconds_between(position.observed_at, now)) if position.observed_at and now else _UNKNOWN
    )
    why = (
        f"the source's clock went back, from {position.observed} to {found.observed}: nothing is read until it has "
        f"caught up, and then what was written meanwhile; or at once by strandline sync --full -t {table.name}"
    )
    low = None if mark is None else reach.minus(max(elapsed, timedelta(0)))
    return _wider(position.gap, Gap(low, why, back=True))


def _wider(known: Gap | None, found: Gap) -> Gap:
    if known is None or (known.low is not None and (found.low is None or found.low < known.low)):
        return found
    return replace(known, back=True)


def refuse_gap(table: Table, gap: Gap, rows: int | None) -> ChangedError:
    return ChangedError(
        f"{gap.why}; {'some' if rows is None else rows} rows now stand where rows had been read already",
        where=table.where_text,
        why="Append mode cannot read them again without adding some of them twice.",
        remedy=(
            f"Load it again from the beginning:   strandline sync --full -t {table.name}\n"
            f"Or go on without them: strandline watermark set -t {table.name} --accept"
        ),
        docs="docs/guarantees.md#clocks",
    )

"""Reconciliation: what the sink holds against what the position says. The sink is the authority.

sink holds                          then
----------------------------------  ------------------------------------------------
the intended batch                  adopt it: commit the state, do not apply again
a later one of the same plan        adopt all up to it, if it says that the state was not told (`commit_every`)
what the position has               apply
something newer                     stop: another state feeds this target
something older, or nothing where   stop: the target lost batches
there was something
whatever: it has no memory          apply; what was under way as a process died is written again
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from strandline.core.batch import NO_MEMORY, Applied, Batch, Receipt
from strandline.core.errors import TargetError
from strandline.core.position import Position


@dataclass(frozen=True)
class Adopt:
    """The target holds these batches."""

    batches: tuple[Batch, ...]
    applied: Applied  # by all of them


@dataclass(frozen=True)
class Apply:
    pass


_LOST = """\
If the target was dropped or restored on purpose, load it again:   strandline sync --full -t {table}
If the state was lost or restored, take the target's word:   strandline watermark import --from-target -t {table}"""


def reconcile(receipt: Receipt | None, position: Position) -> Adopt | Apply:
    """What to do with the intended batch. TargetError where target and position cannot both be right."""
    if receipt is NO_MEMORY:
        return Apply()
    held = receipt.batch if receipt else None
    last = position.batch
    if receipt and (batches := _under_way(position, receipt.batch)):
        carried = receipt.batch.carried if len(batches) > 1 else None
        return Adopt(batches, receipt.applied + carried.since(position.totals) if carried else receipt.applied)
    if last is None and held is None:
        return Apply()
    if last is not None and receipt is not None and receipt.agrees(last):
        return Apply()
    remedy = _LOST.format(table=position.table)
    where = f"{position.pipeline}.{position.table}"
    if held is None:
        raise TargetError(
            f"the target lost its batches: the state says {last}, the target holds none",
            where=where,
            why="It was dropped, emptied or replaced, or the config points elsewhere.",
            remedy=remedy,
        )
    if last is None:
        raise TargetError(
            f"the target holds {held} (up to {held.watermark}), but the state has no position for it",
            where=where,
            why="The state was lost or is another one than the target was fed from.",
            remedy=remedy,
            docs="docs/operations.md#lost-state",
        )
    if held.order > last.order:
        raise TargetError(
            f"the target is ahead: it holds {held}, the state says {last}",
            where=where,
            why="Another state store feeds this target, or the state was restored from a backup.",
            remedy=remedy,
            docs="docs/operations.md#lost-state",
        )
    raise TargetError(
        f"the target went back: it holds {held}, the state says {last}",
        where=where,
        why="The target was restored from a backup, or another state store fed it.",
        remedy=remedy,
        docs="docs/operations.md#lost-target",
    )


def _under_way(position: Position, held: Batch) -> tuple[Batch, ...]:
    """From the intended batch to the one that is held; empty if the plan does not lead there.

    Whoever brought a later one had applied those before it, and carried in it what they did.
    """
    found: list[Batch] = []
    while (batch := position.intent) is not None:
        found.append(batch)
        if batch.same(held):
            return tuple(found)
        if held.carried is None or batch.number >= held.number:
            break
        position = position.committed(batch, Applied())
        position = position.intending_next(batch.store, batch.attempt)
    return ()


def settle(receipt: Receipt | None, position: Position) -> Position:
    """The position with its intent decided: committed if the sink holds it, dropped if not. The plan stays open."""
    if position.intent is None:
        return position
    match reconcile(receipt, position):
        case Adopt(batches, applied):
            return position.adopted(batches, applied)
        case Apply():
            return replace(position, intent=None)

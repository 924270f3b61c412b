"""The targets of one table, side by side through its slices, so that those that stand at the same slice read it once.

Owns the order only: who is behind goes first, until all stand at the same slice. Knows neither plans nor sinks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

from strandline.core.window import Slice

End = TypeVar("End")
Steps = Generator[tuple[Slice, ...], None, End]
"""One target's way: before each batch it stops and says which slices remain; its end is what it returns."""


def side_by_side(targets: Sequence[Steps[End]], sharing: Callable[[Slice], AbstractContextManager[None]]) -> list[End]:
    """Take every target to its end. While `sharing` lasts, several apply that slice, one after the other."""
    ends: dict[int, End] = {}
    remaining: dict[int, tuple[Slice, ...]] = {}

    def go_on(target: int) -> None:
        try:
            remaining[target] = next(targets[target])
        except StopIteration as stopped:
            remaining.pop(target, None)
            ends[target] = stopped.value

    for target in range(len(targets)):
        go_on(target)
    while remaining:
        due = _due(remaining.values())
        together = [target for target, slices in remaining.items() if slices[0] == due]
        with sharing(due) if len(together) > 1 else nullcontext():
            for target in together:
                go_on(target)
    return [ends[target] for target in range(len(targets))]


def _due(remaining: Collection[tuple[Slice, ...]]) -> Slice:
    """The next slice of a target that nobody else comes to later: whoever waits for others does so once."""
    nexts = [slices[0] for slices in remaining]
    if len(set(nexts)) == 1:
        return nexts[0]
    later = {slice_ for slices in remaining for slice_ in slices[1:]}
    return next((slice_ for slice_ in nexts if slice_ not in later), nexts[0])

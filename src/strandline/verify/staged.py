"""Verifying across a stage: the database is compared with the target as far as the target was loaded, and a repair is
extracted and loaded like anything else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from strandline.core.plan import Ask, Planned
from strandline.core.position import Position
from strandline.core.run import Outcome
from strandline.core.table import EXTRACT
from strandline.core.watermark import Watermark
from strandline.core.window import Window


def as_loaded(ask: Ask, load: Position, reached: Watermark | None) -> Ask:
    """An ask of the extract, as the target stands: `reached` is how far into the source its rows go."""
    position = replace(
        ask.position,
        stage=load.stage,
        watermark=reached,
        batch=load.batch,
        intent=load.intent,
        epoch=load.epoch,
        plan=load.plan or ask.position.plan,  # the intent is of the load
    )
    return replace(ask, table=replace(ask.table, stage=load.stage), position=position)


def as_extract(part: Planned, ask: Ask) -> Planned:
    """A repair of the target, as a plan of the extract. It reads up to the extract's own watermark: batches on their
    way are loaded before it, and their rows must be among its own."""
    position = ask.position
    assert position.watermark is not None
    window = Window(None, position.watermark)
    slices = tuple(replace(one, window=window) for one in part.plan.slices)
    plan = position.unmoved(replace(part.plan, stage=EXTRACT, window=window, slices=slices))
    return replace(part, table=ask.table, position=position, plan=plan)


def furthest(extracted: Sequence[Outcome], loaded: Sequence[Outcome]) -> list[Outcome]:
    """What became of each table: its load, or what kept it from being loaded."""
    return [*loaded, *(outcome for outcome in extracted if outcome.error)]

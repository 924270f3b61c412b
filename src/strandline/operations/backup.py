"""Positions as a JSON document, for backup and for moving to another state store."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from strandline.core.codec import record_position
from strandline.core.errors import ConfigError, StateError
from strandline.core.position import Position, Status
from strandline.core.protocols import Record
from strandline.core.records import KINDS
from strandline.operations.change import Change
from strandline.operations.resting import configured, free_lease, settled, stored
from strandline.project import Project

VERSION = 1
_REMEDY = "Give the file that `strandline watermark export` wrote."


def export(project: Project, pipeline: str = "") -> dict[str, Any]:
    """Every position with all its fields. Reads the state only, also positions that cannot be made sense of."""
    books = project.books
    return {
        "strandline_positions": VERSION,
        "store": books.store,
        "exported_at": books.now(),
        "positions": [
            {
                **dict(zip(("pipeline", "table", "stage"), record.key, strict=True)),
                **record.fields,
                **({"damage": record.damage} if record.damage else {}),
            }
            for record in books.state.read("position", [pipeline] if pipeline else [])
        ],
    }


def import_(project: Project, document: Any, *, wait: bool = False) -> list[Change]:
    """The positions of a document, each in a new epoch. A batch that was under way is settled with the target."""
    return [_imported(project, position, wait) for position in _read(document)]


def _imported(project: Project, position: Position, wait: bool) -> Change:
    books, key = project.books, (position.pipeline, position.table)
    before, unreadable = stored(books, *key, position.stage)
    lease = free_lease(books, *key, wait)
    notes = [unreadable] if unreadable else []
    undecided = before.intent is not None or position.intent is not None
    if position.intent is not None:
        with project.opened(position.pipeline, position.stage) as opened:
            position = settled(opened, configured(opened, position.table), position)
    if position.plan is not None:
        notes.append(f"the plan that run {position.plan.run_id} left open is dropped")
    after = replace(
        position,
        epoch=max(before.epoch, position.epoch) + 1,
        plan=None,
        intent=None,
        status=Status.COMPLETED,
        error="",
        revision=before.revision,
    )
    return Change("import", replace(before, batch=position.batch), after, lease, notes=tuple(notes), fence=undecided)


def _read(document: Any) -> list[Position]:
    if not isinstance(document, dict) or not isinstance(document.get("positions"), list):
        raise ConfigError("this is no export of positions", remedy=_REMEDY)
    version = document.get("strandline_positions")
    if version != VERSION:
        raise ConfigError(f"the export has version {version}; this Strandline reads {VERSION}", remedy=_REMEDY)
    return [_position(number, raw) for number, raw in enumerate(document["positions"], 1)]


def _position(number: int, raw: Any) -> Position:
    spec = KINDS["position"]
    try:
        if raw.get("damage"):
            raise StateError(raw["damage"])
        key = (str(raw["pipeline"]), str(raw["table"]), str(raw["stage"]))
        return record_position(Record("position", key, {name: raw.get(name) for name in (*spec.text, *spec.integers)}))
    except (KeyError, TypeError, AttributeError, StateError) as error:
        raise ConfigError(f"position {number} of the export cannot be read ({error})", remedy=_REMEDY) from error

"""When each pipeline last began a job of a kind by its schedule: kept in the state, so that a restart goes on from it
and several services make one run, not several."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime

from strandline.core.books import stamp
from strandline.core.protocols import Record, State

Slots = Mapping[tuple[str, ...], datetime]


def slot(state: State, pipeline: str, action: str) -> Record:
    """Revision 0: it never began."""
    key = _key(pipeline, action)
    return next(iter(state.read("meta", key)), Record("meta", key, {"value": ""}))


def slots(meta: Iterable[Record]) -> Slots:
    """When, by the record's key."""
    known = [record for record in meta if record.key[0].startswith("slot ")]
    return {record.key: at for record in known if (at := began(record))}


def slot_of(among: Slots, pipeline: str, action: str) -> datetime | None:
    return among.get(_key(pipeline, action))


def began(record: Record) -> datetime | None:
    text = str(record.fields["value"] or "").partition(" ")[0]
    return datetime.fromisoformat(text) if text else None


def taken(record: Record, now: datetime, who: str) -> Record:
    """As it is to be written by whoever begins now; no two of them are alike."""
    return replace(record, fields={"value": f"{stamp(now)} {who}"})


def _key(pipeline: str, action: str) -> tuple[str, ...]:
    return (f"slot {action} {pipeline}",)

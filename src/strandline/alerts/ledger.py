"""What was last told of each pipeline, and what is still to be delivered: one record of the state each.

One record, so that both change together: whoever writes a change also holds the messages that it makes, and no other
service on this state makes them again. A restart goes on with what it finds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from strandline.alerts.conditions import Condition, Message, Standing
from strandline.core.protocols import Record, State
from strandline.operations.health import Health

_PREFIX = "alert "


@dataclass(frozen=True)
class Parcel:
    """A message on its way through one channel. `due`: not to be tried before, by anybody."""

    channel: str
    message: Message
    due: str
    attempts: int = 0
    error: str = ""  # why the last try failed

    @property
    def key(self) -> tuple[str, str]:
        return self.channel, self.message.id


@dataclass(frozen=True)
class Ledger:
    record: Record
    standing: Mapping[Condition, Standing]
    outbox: tuple[Parcel, ...] = ()

    def written(self, state: State) -> Ledger:
        """ConflictError: somebody else wrote it since it was read."""
        value = {
            "standing": [[*condition, found.health.value, found.since] for condition, found in self.standing.items()],
            "outbox": [asdict(parcel) for parcel in self.outbox],
        }
        record = replace(self.record, fields={"value": json.dumps(value, ensure_ascii=False)})
        return replace(self, record=state.put([record])[0])


def ledgers(meta: Iterable[Record]) -> dict[str, Ledger]:
    """By pipeline."""
    known = [record for record in meta if record.key[0].startswith(_PREFIX)]
    return {record.key[0].removeprefix(_PREFIX): _ledger(record) for record in known}


def ledger(state: State, pipeline: str) -> Ledger:
    """An empty one where nothing was ever told."""
    key = (_PREFIX + pipeline,)
    return next((_ledger(record) for record in state.read("meta", key)), Ledger(Record("meta", key, {"value": ""}), {}))


def undelivered(meta: Iterable[Record]) -> dict[str, tuple[str, ...]]:
    """What a channel did not take yet, in words, by pipeline."""
    found = {}
    for name, known in ledgers(meta).items():
        failed = {parcel.channel: parcel for parcel in reversed(known.outbox) if parcel.error}
        said = [f"{channel}: {first.error}, try {first.attempts}" for channel, first in sorted(failed.items())]
        found[name] = tuple(said)
    return found


def _ledger(record: Record) -> Ledger:
    value: dict[str, Any] = json.loads(str(record.fields["value"]))
    standing = {
        (kind, table, stage): Standing(Health(health), at) for kind, table, stage, health, at in value["standing"]
    }
    outbox = tuple(Parcel(**{**parcel, "message": Message(**parcel["message"])}) for parcel in value["outbox"])
    return Ledger(record, standing, outbox)

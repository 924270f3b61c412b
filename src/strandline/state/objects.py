"""The state as JSON documents on an object store or in a directory.

A table's document holds its positions in all stages and its lease, so that taking a table and moving its watermark are
one write each (`layout: pipeline`: one document holds all tables of a pipeline). Runs, their tables and changes are
documents of their own; the document before them in a put carries what it owes them, so that after a crash history and
position agree. Tables of one put are written in the given order, positions in a row side by side: `atomic` is False.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import groupby

from strandline.core.errors import ConfigError, StateError
from strandline.core.protocols import Record, Value
from strandline.core.records import KINDS
from strandline.endpoint import Endpoint
from strandline.objects import Entry, Objects, open_objects
from strandline.state import schema
from strandline.state.objects_clock import StoreClock
from strandline.state.objects_document import FORMAT, DamagedError, Document, Json, checked, with_checksum
from strandline.state.objects_documents import Change, Documents
from strandline.state.objects_history import History
from strandline.state.objects_names import FAMILIES, LAYOUTS, Place

log = logging.getLogger(__name__)
_ROOT = "strandline.json"
_OPTIONS = ("endpoint", "region", "access_key_id", "secret_access_key", "session_token", "profile", "path_style")

Group = tuple[Place, list[Record]]


@dataclass(frozen=True)
class Step:
    """One document of a put, and the history that goes with it."""

    place: Place
    records: list[Record]
    owed: list[Record] = field(default_factory=list)

    @property
    def alike(self) -> bool:
        return {record.kind for record in self.records} == {"position"}


def object_state(endpoint: Endpoint) -> ObjectState:
    options = dict(endpoint.options)
    layout = options.pop("layout", "table")
    if layout not in LAYOUTS:
        raise ConfigError(f'the state {endpoint}: layout is "{layout}"', remedy="Write table or pipeline.")
    known = _OPTIONS if endpoint.scheme == "s3" else ()
    unknown = [name for name in options if name not in known]
    if unknown:
        only = ", ".join(("layout", *known))
        raise ConfigError(f"the state {endpoint} has no option {', '.join(unknown)}: only {only}")
    return ObjectState(open_objects(replace(endpoint, options=options)), layout)


class ObjectState:
    atomic = False

    def __init__(self, objects: Objects, layout: str = "table") -> None:
        self._objects = objects
        self._layout = layout
        self._families = LAYOUTS[layout]
        self._clock = StoreClock(objects)
        self._documents = Documents(objects, self._clock, self._settle)
        self._history = History(objects, self._documents)
        self._store = self._open()

    def now(self) -> datetime:
        return self._clock.now()

    def identity(self) -> str:
        return self._store

    def read(
        self,
        kind: str,
        prefix: Sequence[str] = (),
        *,
        where: Mapping[str, Value] | None = None,
        since: str | None = None,
        newest: int | None = None,
    ) -> list[Record]:
        spec = schema.check_read(kind, prefix, tuple(where or ()), since)
        if spec.history and prefix:
            self._settle_of(kind, prefix[0])
        family, width = self._families[kind], len(prefix)

        def matching(documents: Iterable[Document]) -> list[Record]:
            return [
                record
                for document in documents
                for record in _records(document, kind, prefix)
                if record.key[:width] == tuple(prefix)
                and (since is None or record.key[width] >= since)
                and all(record.fields[name] == value for name, value in (where or {}).items())
            ]

        found: list[Record] = []
        if spec.history and not prefix:
            for documents in self._history.recent(family, where or {}, since, newest) if newest != 0 else ():
                found += matching(documents)
                if newest is not None and len(found) >= newest:
                    break
        else:
            found = matching(self._documents.read(family.folder(prefix[: len(family.shared)])))
        found.sort(key=lambda record: record.key, reverse=newest is not None)
        return found[:newest]

    def put(self, records: Sequence[Record]) -> list[Record]:
        given = schema.checked_all(records)

        def write(step: Step) -> None:
            self._write(step.place, step.records, _compared(step.records), [_raised(record) for record in step.owed])
            for place, parts in self._groups(step.owed):
                self._write(place, parts, _compared(parts, settled=True))
            self._documents.settled(step.place, step.owed)

        # Whatever precedes something else is written before it; only positions in a row have no order among them.
        for alike, steps in groupby(self._steps(given), lambda step: step.alike):
            if alike:
                self._documents.side_by_side(write, steps)
            else:
                for step in steps:
                    write(step)
        return [_raised(record) for record in given]

    def append(self, records: Sequence[Record]) -> None:
        given = schema.checked_all(records)

        def write(group: Group) -> None:
            place, parts = group

            def change(base: Document) -> tuple[list[Record], list[Record]] | None:
                missing = [replace(record, revision=1) for record in parts if not base.stored(record)]
                return (missing, []) if missing else None

            self._write(place, parts, change)

        self._documents.side_by_side(write, self._groups(given))

    def delete(self, records: Sequence[Record]) -> None:
        """A document without records stays: its numbers must go on from where they were."""
        for place, parts in self._groups(schema.checked_all(records)):

            def change(base: Document, parts: list[Record] = parts) -> tuple[list[Record], list[Record]]:
                _compare(base, parts)
                return [], parts

            self._documents.write(place, change)

    def prune(self, kind: str, before: str) -> int:
        schema.check_prune(kind)
        return self._history.prune(self._families[kind], before)

    def close(self) -> None:
        """Using the state afterwards reads what it needs again."""
        self._documents.close()

    def _groups(self, records: Sequence[Record]) -> list[Group]:
        """By document, in the order in which documents first occur."""
        groups: dict[Place, list[Record]] = {}
        for record in records:
            family = self._families[record.kind]
            groups.setdefault(Place.of(family, record.key[: len(family.shared)]), []).append(record)
        return list(groups.items())

    def _steps(self, records: Sequence[Record]) -> list[Step]:
        """History belongs to what stands before it."""
        steps: list[Step] = []
        for place, parts in self._groups(records):
            if place.family.history and steps and not steps[-1].place.family.history:
                steps[-1].owed.extend(parts)
            else:
                steps.append(Step(place, parts))
        return steps

    def _settle(self, owed: Sequence[Record]) -> None:
        """Make up for a writer that died: what it owed is written, unless somebody has gone on from there."""
        for place, parts in self._groups(owed):

            def change(base: Document, parts: list[Record] = parts) -> tuple[list[Record], list[Record]] | None:
                missing = [record for record in parts if base.stored(record) == record.revision - 1]
                return (missing, []) if missing else None

            self._write(place, parts, change)

    def _settle_of(self, kind: str, identity: str) -> None:
        """As far as we have seen: a run that somebody asks about may have died before it wrote down its last batch."""
        for place, owed in self._documents.owed():
            if any((record.kind, record.key[0]) == (kind, identity) for record in owed):
                self._settle(owed)
                self._documents.settled(place, owed)

    def _write(self, place: Place, records: Sequence[Record], change: Change, owed: Sequence[Record] = ()) -> None:
        history = place.family.history
        for record in records if history else ():
            self._history.enter(place.family, record)
        self._documents.write(place, change, owed=owed, new=all(not record.revision for record in records))
        for record in records if history else ():
            self._history.left(record)

    # The store's own marks

    def _open(self) -> str:
        """One request where the store is as it should be."""
        found = self._objects.find(_ROOT) or self._made()
        body = self._marks(found[0])
        if body["layout"] != self._layout:
            raise ConfigError(
                f'the state {self._objects.address} was made with layout "{body["layout"]}"',
                remedy=f'Write "layout: {body["layout"]}", or name another place and import the positions there.',
            )
        if body["schema_version"] < schema.VERSION:
            raised = with_checksum({**body, "schema_version": schema.VERSION})
            self._objects.replace(_ROOT, raised, found[1].etag)  # or somebody else did it
        return str(body["store"])

    def _made(self) -> tuple[bytes, Entry]:
        """A new store, unless something is there already; of several makers one wins."""
        first = next(iter(self._objects.list()), None)
        if first is None or self._objects.get(_ROOT) is not None:
            body = {"strandline": FORMAT, "schema_version": schema.VERSION, "store": str(uuid.uuid4())}
            self._objects.create(_ROOT, with_checksum({**body, "layout": self._layout}))
            found = self._objects.find(_ROOT)
            if found is not None:
                return found
        ours = first is not None and first.key.partition("/")[0] in (*FAMILIES, "clock", "index", "open")
        raise StateError(
            f"the state {self._objects.address} has lost its own mark, {_ROOT}"
            if ours
            else f"{self._objects.address} holds something else: it is not empty, but it is no state",
            remedy="Restore it from a backup. Strandline does not guess which store it was."
            if ours
            else "Name a folder of its own under `state:`. This one was left as it is.",
        )

    def _marks(self, data: bytes) -> Json:
        where = f"{self._objects.address}/{_ROOT}"
        try:
            body = checked(data)
        except DamagedError as damage:
            remedy = "Restore it from a backup. Strandline does not guess which store it was."
            raise StateError(f"{where} {damage.message}", remedy=remedy) from damage
        if body["strandline"] > FORMAT or body["schema_version"] > schema.VERSION:
            raise StateError(
                f"the state {self._objects.address} was written by a newer Strandline "
                f"(schema {body['schema_version']}; this one knows {schema.VERSION})",
                remedy="Upgrade this installation: pip install --upgrade strandline",
            )
        return body


def _compared(records: Sequence[Record], *, settled: bool = False) -> Change:
    """The records of a put, if all are as they were read. `settled`: or somebody may have written just these already,
    because the document before them owed them."""

    def change(base: Document) -> tuple[list[Record], list[Record]] | None:
        raised = [_raised(record) for record in records]
        if settled and all(base.records.get((record.kind, record.key)) == record for record in raised):
            return None
        _compare(base, records)
        return raised, []

    return change


def _raised(record: Record) -> Record:
    return replace(record, revision=record.revision + 1, damage="")


def _compare(base: Document, records: Sequence[Record]) -> None:
    for record in records:
        if base.stored(record) != record.revision:
            raise schema.conflict(record, base.stored(record))


def _records(document: Document, kind: str, prefix: Sequence[str]) -> list[Record]:
    """A document's records of a kind. Damaged history is left out; positions say so themselves; the rest is raised."""
    found = [record for record in document.records.values() if record.kind == kind]
    damage = document.damage or next((record.damage for record in found if record.damage), "")
    if not damage or kind == "lease":
        return found
    if document.place.family.history:
        log.warning("left out of the history: %s", damage)
        return []
    if kind != "position":
        raise StateError(damage, remedy="Remove that object: the one before it counts then, or none.")
    if document.records:
        return found
    spec, parts = KINDS[kind], document.place.parts
    known = tuple(prefix) if len(prefix) > len(parts) else parts
    key = known + ("",) * (len(spec.key) - len(known))
    fields: dict[str, Value] = dict.fromkeys(schema.fields_of(spec))
    return [Record(kind, key, fields, document.revision, f"{damage} (no good version is left)")]

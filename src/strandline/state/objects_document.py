"""Documents: records of a few kinds that are written together, as one JSON text that a person can read.

A document carries a checksum, its revision and the marks of its last writes. Whatever does not add up is damage: it is
said, the last good revision is named, and nothing goes on from it until a person decides. Knows no store.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

from strandline.core.errors import StateError
from strandline.core.protocols import Record, Value
from strandline.core.records import KINDS
from strandline.state import schema
from strandline.state.objects_names import Place

FORMAT = 1
_WRITES = 16  # marks kept: so many writes of others may lie between ours and our looking whether it is there
_SECTIONS = {"position": "stages", "pipeline": "suspension"}
Json = dict[str, Any]
Id = tuple[str, tuple[str, ...]]


class DamagedError(StateError):
    """What is wrong with a document, as the end of a sentence that begins with its name."""


@dataclass(frozen=True)
class Document:
    """One revision.

    `owed`: records of other documents that belong to the same write and are written right after it; whoever comes after
    a dead writer makes up for it. `damage`: this revision cannot be read; the records are those of the last good one.
    """

    place: Place
    revision: int = 0
    records: Mapping[Id, Record] = field(default_factory=dict, hash=False)
    writes: tuple[str, ...] = ()
    owed: tuple[Record, ...] = ()
    damage: str = ""

    def stored(self, record: Record) -> int:
        """The revision of a record here; 0 if there is none. What nobody can read has the document's own."""
        found = self.records.get((record.kind, record.key))
        if found is None:
            return self.revision if self.damage and not self.records and record.kind == "position" else 0
        return found.revision

    def next(self, put: Iterable[Record], gone: Iterable[Record], owed: Sequence[Record], write: str) -> Document:
        """The following revision. What was damaged stays marked as such, unless it is put now."""
        records = {**self.records, **{(record.kind, record.key): record for record in put}}
        for record in gone:
            records.pop((record.kind, record.key), None)
        return Document(self.place, self.revision + 1, records, (write, *self.writes)[:_WRITES], tuple(owed))

    def damaged(self, revision: int, damage: str) -> Document:
        """This last good revision, in the place of a later one that cannot be read.

        Each record counts as written once more: whoever has seen it only as it was before is refused.
        """
        records = {id_: self._marked(record, damage) for id_, record in self.records.items()}
        return Document(self.place, revision, records, self.writes, damage=damage)

    def _marked(self, record: Record, damage: str) -> Record:
        """A lease expires by itself; the last one known is waited for."""
        if record.kind == "lease":
            damage = ""
        if record.kind == "position":
            last = f"watermark {record.fields['watermark'] or 'none yet'} of {record.fields['updated_at']}"
            damage = f"{damage} (last good version: revision {self.revision}, {last})"
        return replace(record, revision=record.revision + 1, damage=damage)


def encoded(document: Document) -> bytes:
    place = document.place
    body: Json = {"strandline": FORMAT, "revision": document.revision}
    body |= dict(zip(place.family.shared, place.parts, strict=True))
    for record in sorted(document.records.values(), key=lambda record: record.key):
        within, section = record.key[len(place.parts) :], body
        for name in (_SECTIONS.get(record.kind, record.kind), *within):
            section = section.setdefault(name, {})
        section |= _shown(record)
    if document.owed:
        body["owed"] = [{"kind": record.kind, "key": list(record.key), **_shown(record)} for record in document.owed]
    body["writes"] = list(document.writes)
    return with_checksum(body)


def decoded(data: bytes, place: Place, revision: int) -> Document:
    """The document that should lie in this place under this revision, or DamagedError."""
    body = checked(data)
    if body["strandline"] > FORMAT:
        raise StateError(
            f"{place.folder} was written by a newer Strandline (format {body['strandline']}; this one knows {FORMAT})",
            remedy="Upgrade this installation: pip install --upgrade strandline",
        )
    parts = tuple(str(body.get(name)) for name in place.family.shared)
    own = Place.of(place.family, parts)
    if own.folder != place.folder or body.get("revision") != revision:
        raise DamagedError(f"is a copy of {own.folder}, revision {body.get('revision')}")
    records: dict[Id, Record] = {}
    for kind in place.family.kinds:
        depth = len(KINDS[kind].key) - len(parts)
        for within, raw in _leaves(body.get(_SECTIONS.get(kind, kind)), depth):
            key = (*parts, *within)
            records[kind, key] = _record(kind, key, raw)
    owed = tuple(_record(raw["kind"], tuple(raw["key"]), raw) for raw in body.get("owed", ()))
    return Document(own, revision, records, tuple(body["writes"]), owed)


def with_checksum(body: Json) -> bytes:
    return json.dumps({**body, "checksum": _checksum(body)}, indent=1, ensure_ascii=False).encode()


def checked(data: bytes) -> Json:
    """The object that `with_checksum` wrote, or DamagedError."""
    if not data.strip():
        raise DamagedError("is empty")
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        raise DamagedError("is not JSON, or only a part of it") from None
    if not isinstance(body, dict) or "checksum" not in body or "strandline" not in body:
        raise DamagedError("is not one of ours: it has no checksum")
    if body.pop("checksum") != _checksum(body):
        raise DamagedError("was edited by hand: its checksum differs")
    return body


def _checksum(body: Json) -> str:
    """Of what it says: somebody who only lays the text out anew does no harm."""
    return sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _leaves(section: Any, depth: int) -> Iterable[tuple[tuple[str, ...], Json]]:
    if section is None:
        return
    if depth == 0:
        yield (), section
        return
    for name, below in section.items():
        for within, raw in _leaves(below, depth - 1):
            yield (name, *within), raw


def _shown(record: Record) -> Json:
    damage = {"damage": record.damage} if record.damage else {}
    return {name: _opened(value) for name, value in record.fields.items()} | {"revision": record.revision} | damage


def _record(kind: str, key: tuple[str, ...], raw: Json) -> Record:
    fields = {name: _closed(raw.get(name)) for name in schema.fields_of(KINDS[kind])}
    return Record(kind, key, fields, raw["revision"], raw.get("damage", ""))


def _opened(value: Value) -> Any:
    """Text that is JSON itself is shown as such, if exactly that text can be made of it again."""
    if isinstance(value, str) and value[:1] in ("{", "["):
        try:
            inner = json.loads(value)
            return inner if json.dumps(inner) == value else value
        except (ValueError, RecursionError):
            return value
    return value


def _closed(value: Any) -> Value:
    shown: Value = json.dumps(value) if isinstance(value, dict | list) else value
    return shown

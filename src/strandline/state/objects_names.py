"""Where records lie in an object store: families of documents, their folders, and names that every store takes.

Names are escaped so that they stay readable: `=C3=A9` stands for é. History is filed under ids written twice, first
inverted, so that a plain listing gives the newest first, then as they are, for people.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from strandline.core.errors import StateError

_ESCAPED = re.compile(rb"[^A-Za-z0-9_.-]|^\.")
_LONGEST = 160  # of a name; file systems take 255
_LONGEST_ID = 48
_HASHED = "=="


@dataclass(frozen=True)
class Family:
    """A folder of documents. `shared`: the parts of the key that all records of one document have in common."""

    name: str
    shared: tuple[str, ...]
    kinds: tuple[str, ...]
    history: bool = False

    def folder(self, parts: Sequence[str]) -> str:
        """The folder of these parts of the key; fewer than all: the one that holds theirs."""
        names = [filed(part) if self.history and place == 0 else segment(part) for place, part in enumerate(parts)]
        return "/".join([self.name, *names])


PIPELINES = Family("pipelines", ("pipeline",), ("pipeline", "position", "lease"))
FAMILIES = {
    family.name: family
    for family in (
        Family("tables", ("pipeline", "table_name"), ("position", "lease")),
        PIPELINES,
        Family("meta", ("name",), ("meta",)),
        Family("verifications", ("pipeline", "table_name"), ("verification",)),
        Family("lags", ("pipeline",), ("lag",)),
        Family("runs", ("run_id",), ("run",), history=True),
        Family("table_runs", ("run_id", "table_name", "stage"), ("table_run",), history=True),
        Family("changes", ("change_id",), ("change",), history=True),
    )
}
LAYOUTS = {
    "table": {kind: family for family in FAMILIES.values() for kind in family.kinds if family is not PIPELINES}
    | {"pipeline": PIPELINES},
    "pipeline": {kind: family for family in FAMILIES.values() for kind in family.kinds}
    | dict.fromkeys(PIPELINES.kinds, PIPELINES),
}
"""Which family holds records of a kind, by the option `layout`."""


@dataclass(frozen=True)
class Place:
    """One document: its family, and the key parts its records share."""

    family: Family
    parts: tuple[str, ...]
    folder: str

    @classmethod
    def of(cls, family: Family, parts: tuple[str, ...]) -> Place:
        return cls(family, parts, family.folder(parts))


def segment(text: str) -> str:
    """A name for any text; a long one keeps its beginning."""
    escaped = _ESCAPED.sub(lambda found: b"=%02X" % found[0][0], text.encode()).decode() or "="
    if len(escaped) <= _LONGEST:
        return escaped
    return f"{escaped[: _LONGEST - 34]}{_HASHED}{sha256(text.encode()).hexdigest()[:32]}"


def text_of(name: str) -> str:
    """What a segment was made of; of a long one, its beginning."""
    escaped, hashed, _ = name.partition(_HASHED)
    if escaped == "=":
        return ""
    escaped = re.sub(r"=[0-9A-F]?$", "", escaped) if hashed else escaped
    plain = re.sub(rb"=([0-9A-F]{2})", lambda found: bytes.fromhex(found[1].decode()), escaped.encode())
    return plain.decode(errors="ignore") + ("…" if hashed else "")


def filed(identity: str) -> str:
    """The name under which history with this id is filed: the greater the id, the earlier the name."""
    raw = identity.encode()
    if len(raw) > _LONGEST_ID:
        raise StateError(f"the id {identity[:60]!r} is too long for an object store: {_LONGEST_ID} bytes at most")
    # No inverted id begins another, since each ends in what no other holds: folders sort as their names do everywhere.
    return f"{bytes(255 - byte for byte in raw).hex()}z.{segment(identity)}"


def identity_of(name: str) -> str:
    """The id that was filed under this name; ValueError if it is not such a name."""
    return bytes(255 - byte for byte in bytes.fromhex(name.partition("z.")[0])).decode()


def place_of(folder: str) -> Place | None:
    """The document that lies in a folder, None if that is not one of ours."""
    name, *names = folder.split("/")
    family = FAMILIES.get(name)
    if family is None or len(names) != len(family.shared):
        return None
    try:
        parts = [identity_of(part) if family.history and at == 0 else text_of(part) for at, part in enumerate(names)]
    except ValueError:
        return None
    return Place(family, tuple(parts), folder)

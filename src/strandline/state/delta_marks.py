"""What marks a Delta table as a state: two properties, and exactly our columns. Refuses what is not one, or too new."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from strandline.core.errors import StateError
from strandline.state.delta_rows import COLUMNS, PARTITIONS, STATISTICS
from strandline.state.schema import VERSION

STORE, SCHEMA_VERSION = "strandline.store", "strandline.schema_version"
VERSION_MARK = {SCHEMA_VERSION: str(VERSION)}

_SETTINGS = {
    "delta.dataSkippingStatsColumns": ",".join(STATISTICS),
    "delta.logRetentionDuration": "interval 1 days",
    "delta.deletedFileRetentionDuration": "interval 1 hours",
    "delta.isolationLevel": "Serializable",  # Spark's writers must see every append of others as a conflict
}


def new_properties() -> dict[str, str]:
    return {STORE: str(uuid.uuid4()), **VERSION_MARK, **_SETTINGS}


@dataclass(frozen=True)
class Marks:
    store: str
    outdated: bool
    missing: Mapping[str, str]  # columns that a table of an older version lacks, with their types


def marks(address: str, properties: Mapping[str, str], columns: Mapping[str, str], partitions: Sequence[str]) -> Marks:
    """What the table says of itself; `columns` with their types in Delta's words. StateError: it is none of ours."""
    store, version = properties.get(STORE), properties.get(SCHEMA_VERSION, "")
    if not store:
        raise StateError(
            f"{address} is a Delta table of something else: it does not say which state it is",
            remedy="Name a place of its own under `state:`. This one was left as it is.",
        )
    if not version.isdecimal():
        raise StateError(
            f"the state {address} says its schema version is {version!r}",
            remedy="Somebody edited its table properties. RESTORE the table: Strandline does not guess.",
        )
    if int(version) > VERSION:
        raise StateError(
            f"the state {address} was written by a newer Strandline (schema {version}; this one knows {VERSION})",
            remedy="Upgrade this installation: pip install --upgrade strandline",
        )
    foreign = [name for name, type_ in columns.items() if COLUMNS.get(name) != type_]
    if foreign or tuple(partitions) != PARTITIONS:
        what = f"foreign columns: {', '.join(foreign)}" if foreign else f"other partitions: {', '.join(partitions)}"
        raise StateError(
            f"the state {address} has {what}",
            why="Somebody changed its table. Writing to it could lose what they meant by that.",
            remedy="Drop them, or RESTORE the table to a version before they came. Nothing was written.",
        )
    missing = {name: type_ for name, type_ in COLUMNS.items() if name not in columns}
    if missing and int(version) == VERSION:
        raise StateError(
            f"the state {address} lacks columns: {', '.join(missing)}",
            remedy="Somebody dropped them. RESTORE the table to a version before that.",
        )
    return Marks(store, int(version) < VERSION, missing)

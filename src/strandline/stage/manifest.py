"""Manifests: what a stage says of one batch, as a value and as JSON with a checksum. Knows no store and no Spark."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any

from strandline.core.batch import Applied, Batch, How
from strandline.core.codec import json_repair, repair_json
from strandline.core.errors import StrandlineError
from strandline.core.table import Column
from strandline.core.watermark import Cursor, Kind, Watermark
from strandline.core.window import Repair

_FORMAT = 1
_COUNTS = ("rows_read", "rows_inserted", "rows_updated", "rows_deleted", "files")


@dataclass(frozen=True)
class DataFile:
    path: str  # relative to the table's folder
    bytes: int
    rows: int


@dataclass(frozen=True)
class Manifest:
    """One batch as the stage holds it. Never changed once written."""

    pipeline: str
    table: str
    source: str  # the source's own name of the table
    batch: Batch
    previous: int  # the number of the batch before it in this stage; 0: it is the first
    how: How
    repair: Repair | None
    files: tuple[DataFile, ...]
    schema: str  # Spark's JSON of the columns in the files
    columns: tuple[Column, ...]  # of the source, before `transform`
    key: tuple[str, ...]
    key_enforced: bool
    family: str  # the kind of database whose words the types of the columns are; empty: a transform made them
    comment: str  # of the table
    unique: bool  # at most one row per key
    order: tuple[str, ...]
    operation: str | None
    cursor: Cursor | None  # of the data
    applied: Applied
    written_at: str

    @property
    def number(self) -> int:
        return self.batch.number

    @property
    def rows(self) -> int:
        return self.applied.rows_read

    @property
    def size(self) -> int:
        return sum(file.bytes for file in self.files)

    @property
    def alone(self) -> bool:
        """Whether it is applied by itself, and by itself does something even without rows."""
        return self.how in (How.REPLACE, How.REPAIR)

    def goes_with(self, other: Manifest) -> bool:
        """Whether both can be applied as one."""
        same = (self.how, self.schema, self.key, self.order, self.operation)
        return not self.alone and same == (other.how, other.schema, other.key, other.order, other.operation)

    def to_json(self) -> bytes:
        last = self.applied.last_value
        content = {
            **asdict(self),
            "format": _FORMAT,
            "batch": json.loads(self.batch.to_json()),
            "repair": repair_json(self.repair),
            "schema": json.loads(self.schema),
            "rows": self.rows,
            "bytes": self.size,
            "applied": {name: getattr(self.applied, name) for name in _COUNTS}
            | {"last_value": [last.kind.value, last.text] if last else None},
        }
        return json.dumps({**content, "checksum": _checksum(content)}, indent=1, sort_keys=True).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Manifest:
        """Raises ValueError on anything that `to_json` did not write."""
        try:
            raw: dict[str, Any] = json.loads(data)
            if raw.pop("checksum") != _checksum(raw):
                raise ValueError("its checksum is wrong")
            if raw.pop("format") != _FORMAT:
                raise ValueError("it was written by another version of Strandline")
            applied = dict(raw["applied"])
            last = applied.pop("last_value")
            rows, total = raw.pop("rows"), raw.pop("bytes")
            made = cls(
                **{
                    **raw,
                    "batch": Batch.from_json(json.dumps(raw["batch"])),
                    "how": How(raw["how"]),
                    "repair": json_repair(raw["repair"]),
                    "files": tuple(DataFile(**file) for file in raw["files"]),
                    "schema": json.dumps(raw["schema"], sort_keys=True),
                    "columns": tuple(Column(**column) for column in raw["columns"]),
                    "key": tuple(raw["key"]),
                    "order": tuple(raw["order"]),
                    "cursor": _cursor(raw["cursor"]),
                    "applied": Applied(**applied, last_value=Watermark(Kind(last[0]), last[1]) if last else None),
                }
            )
            if (rows, total) != (made.rows, made.size):
                raise ValueError("its sums are wrong")
        except (ValueError, KeyError, TypeError, AttributeError, StrandlineError) as error:
            raise ValueError(f"not a manifest: {error}") from error
        return made


def _cursor(raw: dict[str, Any] | None) -> Cursor | None:
    return Cursor(**{**raw, "kind": Kind(raw["kind"])}) if raw else None


def _checksum(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

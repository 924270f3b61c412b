"""What a verification found, as a value with a settled JSON form."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from strandline.core.compare import KINDS, Differences
from strandline.core.errors import StrandlineError
from strandline.core.watermark import Watermark


class Answer(StrEnum):
    EQUAL = "equal"
    DIFFERENT = "different"
    REPAIRED = "repaired"  # it was different, and is equal now
    NOT_LOADED = "not loaded"  # no watermark yet: nothing is promised, nothing compared
    FAILED = "failed"  # it could not be compared, or not be repaired


@dataclass(frozen=True)
class Verdict:
    """One table, compared below its watermark."""

    pipeline: str
    table: str
    answer: Answer
    watermark: Watermark | None = None
    rows: int = 0
    differences: Differences = field(default_factory=Differences)  # as they were found, before any repair
    complete: bool = True  # False: more differs than was counted
    repaired: int = 0  # rows that the repair inserted, overwrote or deleted
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    error: StrandlineError | None = None
    stage: str = ""  # the hop whose target was compared

    @property
    def good(self) -> bool:
        return self.answer in (Answer.EQUAL, Answer.REPAIRED, Answer.NOT_LOADED)

    def to_json(self) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline,
            "table": self.table,
            "stage": self.stage,
            "status": self.answer.value,
            **{kind: getattr(self.differences, kind) for kind in KINDS},
            "repaired": self.repaired,
            "rows": self.rows,
            "watermark": self.watermark.text if self.watermark else None,
            "complete": self.complete,
            "examples": {kind: [list(key) for key in keys] for kind, keys in self.differences.examples.items()},
            "notes": list(self.notes),
            "seconds": round(self.seconds, 3),
            "error": str(self.error) if self.error else None,
        }

"""A finding of `doctor`: one thing looked at, how it is, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from strandline.core.errors import StrandlineError


class Level(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Finding:
    level: Level
    area: str  # "setup", "config", "source", "target" or "state"
    text: str
    remedy: str = ""
    docs: str = ""
    pipeline: str = ""

    def to_json(self) -> dict[str, Any]:
        return {
            "level": self.level.value,
            "area": self.area,
            "pipeline": self.pipeline or None,
            "text": self.text,
            "remedy": self.remedy or None,
            "docs": self.docs or None,
        }


def ok(area: str, text: str, pipeline: str = "") -> Finding:
    return Finding(Level.OK, area, text, pipeline=pipeline)


def warn(area: str, text: str, remedy: str = "", *, docs: str = "", pipeline: str = "") -> Finding:
    return Finding(Level.WARN, area, text, remedy, docs, pipeline)


def fail(area: str, error: StrandlineError, pipeline: str = "") -> Finding:
    """An error as a finding: the same words as the run would meet."""
    text = f"{error}\n{error.why}" if error.why else str(error)
    return Finding(Level.FAIL, area, text, error.remedy, error.docs, pipeline)

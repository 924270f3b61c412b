"""A finding of `doctor`: one thing looked at, how it is, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from strandline.core.errors import StrandlineError

_AREAS = {
    "setup": "docs/doctor.md#setup",
    "config": "docs/doctor.md#config",
    "source": "docs/doctor.md#source",
    "stage": "docs/doctor.md#stage",
    "target": "docs/doctor.md#target",
    "state": "docs/doctor.md#state",
}


class Level(StrEnum):
    OK = "ok"
    NOTE = "note"  # worth knowing, and nothing to mend: a limit of the source, or something not looked at
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Finding:
    """What is not well says what to do and where to read on; without a page of its own, the area's."""

    level: Level
    area: str  # one of those above
    text: str
    remedy: str = ""
    docs: str = ""
    pipeline: str = ""

    def __post_init__(self) -> None:
        if self.level in (Level.WARN, Level.FAIL) and not self.docs:
            object.__setattr__(self, "docs", _AREAS[self.area])

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


def note(area: str, text: str, *, docs: str = "", pipeline: str = "") -> Finding:
    return Finding(Level.NOTE, area, text, docs=docs, pipeline=pipeline)


def warn(area: str, text: str, remedy: str = "", *, docs: str = "", pipeline: str = "") -> Finding:
    return Finding(Level.WARN, area, text, remedy, docs, pipeline)


def fail(area: str, error: StrandlineError, pipeline: str = "") -> Finding:
    """An error as a finding: the same words as the run would meet."""
    text = f"{error}\n{error.why}" if error.why else str(error)
    return Finding(Level.FAIL, area, text, error.remedy, error.docs, pipeline)


def many(number: int, thing: str) -> str:
    """`1 file`, `2,000 files`; `batch` takes -es."""
    return f"{number:,} {thing}{'' if number == 1 else 'es' if thing.endswith('ch') else 's'}"

"""Suspended pipelines: services leave them alone until they are resumed. Kept in the state, so it lasts across restarts
and counts for every service there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from strandline.core.books import stamp
from strandline.core.errors import ConflictError
from strandline.core.process import user
from strandline.core.protocols import Record, State
from strandline.project import Project


@dataclass(frozen=True)
class Suspension:
    at: str
    by: str
    why: str = ""

    def __str__(self) -> str:
        return f"suspended since {self.at} by {self.by}" + (f": {self.why}" if self.why else "")

    def to_json(self) -> dict[str, Any]:
        return {"at": self.at, "by": self.by, "why": self.why}


def suspensions(state: State) -> dict[str, Suspension]:
    """By pipeline."""
    return {record.key[0]: _suspension(record) for record in state.read("pipeline") if record.fields["suspended_at"]}


def suspension(state: State, pipeline: str) -> Suspension | None:
    return next(
        (_suspension(record) for record in state.read("pipeline", [pipeline]) if record.fields["suspended_at"]), None
    )


def _suspension(record: Record) -> Suspension:
    return Suspension(*(str(record.fields[name] or "") for name in ("suspended_at", "suspended_by", "why")))


def suspend(project: Project, pipeline: str, *, why: str = "", who: str = "") -> Suspension:
    """From now on no run of it begins by itself; one at work goes on to its end. A pipeline that is suspended already
    stays as it is."""
    project.pipeline(pipeline)
    state = project.books.state
    while (known := suspension(state, pipeline)) is None:
        fields = {"suspended_at": stamp(state.now()), "suspended_by": who or user(), "why": why}
        revision = max((record.revision for record in state.read("pipeline", [pipeline])), default=0)
        try:
            state.put([Record("pipeline", (pipeline,), fields, revision)])
        except ConflictError:
            continue  # somebody else did the same, or undid it
    return known


def resume(project: Project, pipeline: str) -> Suspension | None:
    """What it was suspended by until now; None: it was not."""
    state = project.books.state
    if not state.read("pipeline", [pipeline]):
        project.pipeline(pipeline)
    while (known := suspension(state, pipeline)) is not None:
        try:
            state.delete(state.read("pipeline", [pipeline]))
        except ConflictError:
            continue
        return known
    return None

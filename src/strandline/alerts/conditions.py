"""What to tell: where a pipeline stood when it was last told of, and what is found now → messages. Pure.

A condition is told when it comes, when it gets better or worse, and when it is over; not while it lasts. What cannot be
judged now stays as it stood: a table at work shows no error, and that is no recovery.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from hashlib import sha256
from typing import Any

from strandline.core.books import stamp
from strandline.operations.health import Finding, Health, age_seconds, looked_at
from strandline.operations.status import PipelineStatus

_KINDS = {"run": "failed", "table": "failed", "plan": "stuck"}  # others are named as the finding is
_OVER = {
    "failed": "works again",
    "freshness": "is fresh again",
    "held": "is no longer held",
    "stuck": "the plan is no longer stuck",
    "verification": "source and target agree again",
    "missed": "runs again as expected",
}

Condition = tuple[str, str, str]
"""Kind, table and stage; the latter two are empty for a pipeline as a whole."""
_FAILED: Condition = ("failed", "", "")


@dataclass(frozen=True)
class Standing:
    health: Health
    since: str


@dataclass(frozen=True)
class Message:
    """`status`: "problem", "recovered" or "test". `id`: the same however often it is sent."""

    id: str
    at: str
    status: str
    kind: str
    health: str
    was: str
    since: str
    pipeline: str
    table: str
    stage: str
    run_id: str
    message: str

    def to_json(self) -> dict[str, Any]:
        return {"schema_version": 1, **asdict(self)}

    @property
    def where(self) -> str:
        return ".".join(filter(None, (self.pipeline, self.table)))

    @property
    def title(self) -> str:
        return (
            f"{self.where or 'strandline'}: {self.kind}, {'recovered' if self.status == 'recovered' else self.health}"
        )


def judged(
    before: Mapping[Condition, Standing],
    part: PipelineStatus,
    found: Iterable[Finding],
    verified: Collection[tuple[str, str]],
    now: datetime,
) -> tuple[dict[Condition, Standing], list[Message]]:
    """Where the pipeline stands now, and what to tell. `verified`: tables and stages with an answer that is new."""
    at = stamp(now)
    current = _worst(found)
    open_ = _undecided(part, before, current, verified, now)
    after: dict[Condition, Standing] = {}
    messages = []
    for condition in dict.fromkeys((*before, *current)):
        old, finding = before.get(condition), current.get(condition)
        if open_(condition) or _weaker(condition, old, finding):
            if old:
                after[condition] = old
            continue
        if finding is not None:
            same = old is not None and old.health is finding.health
            after[condition] = old if old and same else Standing(finding.health, at)
        if (old and old.health) is not (finding and finding.health):
            messages.append(_message(part.pipeline, condition, old, finding, at))
    return after, messages


def trial(now: datetime) -> Message:
    return Message(
        _id("test", stamp(now)), stamp(now), "test", "test", Health.OK, "", "", "", "", "", "", "a test of strandline"
    )


def _worst(found: Iterable[Finding]) -> dict[Condition, Finding]:
    """By condition; of several, the worst, which comes first."""
    current: dict[Condition, Finding] = {}
    for finding in found:
        current.setdefault((_KINDS.get(finding.about, finding.about), finding.table, finding.stage), finding)
    return current


def _undecided(
    part: PipelineStatus,
    before: Mapping[Condition, Standing],
    current: Mapping[Condition, Finding],
    verified: Collection[tuple[str, str]],
    now: datetime,
) -> Callable[[Condition], bool]:
    running = {(table.table, table.stage) for table in part.tables if table.running}
    ageless = {(table.table, table.stage) for table in part.tables if age_seconds(table, now) is None}
    told = any(kind == "failed" and table for kind, table, _ in current)
    failed = before.get(_FAILED)
    unproven = failed is not None and _FAILED not in current and not looked_at(part, failed.since)

    def undecided(condition: Condition) -> bool:
        kind, *where = condition
        place = (where[0], where[1])
        match kind:
            case "verification":
                return place not in verified
            case "freshness":
                return place in ageless
            case "failed" if condition == _FAILED:
                return told or unproven or bool(running)
            case "missed":  # a run that fails did come
                return place in running or failed is not None or _FAILED in current
            case "failed" | "stuck":
                return place in running
        return False

    return undecided


def _weaker(condition: Condition, old: Standing | None, finding: Finding | None) -> bool:
    """A comparison that could not be made does not make a known difference smaller."""
    known = old is not None and old.health is Health.ERROR
    return condition[0] == "verification" and known and finding is not None and finding.health is Health.WARNING


def _message(pipeline: str, condition: Condition, old: Standing | None, finding: Finding | None, at: str) -> Message:
    kind, table, stage = condition
    health = finding.health if finding else Health.OK
    return Message(
        id=_id(pipeline, *condition, health, at),
        at=at,
        status="problem" if finding else "recovered",
        kind=kind,
        health=health.value,
        was=(old.health if old else Health.OK).value,
        since=old.since if old else at,
        pipeline=pipeline,
        table=table,
        stage=stage,
        run_id=finding.run_id if finding else "",
        message=finding.message if finding else _OVER[kind],
    )


def _id(*parts: str) -> str:
    return sha256("\0".join(parts).encode()).hexdigest()[:16]

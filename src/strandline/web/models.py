"""The shapes of the API: what is sent and what comes back, with examples. Field names are those of the CLI's --json."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

SCHEMA_VERSION = 1


def _clean(text: str) -> str:
    if "\0" in text or (not text.isascii() and not text.encode("utf-8", "ignore").decode() == text):
        raise ValueError("must be text without NUL")
    return text


Text = Annotated[str, AfterValidator(_clean), Field(max_length=500)]
Name = Annotated[str, AfterValidator(_clean), Field(min_length=1, max_length=190)]
Names = Annotated[list[Name], Field(max_length=1000)]


class Shown(BaseModel):
    """What comes back. Later versions may add fields."""

    model_config = ConfigDict(extra="allow")


class Asked(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Problem(Shown):
    type: str
    title: str
    status: int
    detail: str
    why: str | None = None
    remedy: str | None = None
    docs: str | None = None


class Finding(Shown):
    health: Literal["ok", "unknown", "warning", "error"]
    about: str
    message: str
    table: str | None
    stage: str | None
    run_id: str | None
    remedy: str | None


class OpenPlan(Shown):
    run_id: str
    done: int
    slices: int
    age_seconds: float | None


class TableStatus(Shown):
    table: str
    stage: str
    status: str
    watermark: str | None
    last_value: str | None
    lag_seconds: float | None
    batch: int
    epoch: int
    rows: int
    open_plan: OpenPlan | None
    held_by: str | None
    open_from: str | None
    running: str | None
    attention: list[str]
    error: str | None
    remedy: str | None
    updated_at: str


class Job(Shown):
    job_id: str
    pipeline: str
    action: str
    tables: list[str]
    stages: list[str]
    repair: bool
    trigger: str
    who: str | None
    status: str
    run_id: str | None
    error: str | None
    remedy: str | None
    asked_at: str | None
    ended_at: str | None


class Pipeline(Shown):
    pipeline: str
    configured: bool
    tracked: bool
    via: str
    attention: str | None
    undelivered: list[str]
    last_run: dict[str, Any] | None
    tables: list[TableStatus]
    never_run: list[str]
    health: Literal["ok", "unknown", "warning", "error"]
    findings: list[Finding]
    lag_seconds: float | None
    source: str | None
    targets: list[str]
    schedule: str
    next_run: str | None
    next_verify: str | None
    next_maintain: str | None
    suspended_at: str | None
    suspended_by: str | None
    why: str | None
    jobs: list[Job]


class Pipelines(Shown):
    schema_version: int = SCHEMA_VERSION
    config_error: str | None
    read_only: bool
    pipelines: list[Pipeline]


class OnePipeline(Pipeline):
    schema_version: int = SCHEMA_VERSION


class StagePosition(Shown):
    stage: str
    watermark: str | None
    last_value: str | None
    kind: str | None
    batch: int
    epoch: int
    status: str | None
    rows: int
    files: int
    slices_done: str | None
    error: str | None
    remedy: str | None
    updated_at: str


class TablePosition(Shown):
    pipeline: str
    table: str
    stages: list[StagePosition]


class Positions(Shown):
    schema_version: int = SCHEMA_VERSION
    tables: list[TablePosition]
    unreadable: list[str]


class WatermarkChange(Shown):
    pipeline: str
    table: str
    stage: str
    action: str
    old: str | None
    new: str | None
    who: str
    why: str
    changed_at: str
    epoch: int


class Verified(Shown):
    stage: str
    answer: str
    at: str
    missing: int
    extra: int
    different: int
    duplicate: int
    error: str


class Table(TablePosition):
    schema_version: int = SCHEMA_VERSION
    status: list[TableStatus]
    findings: list[Finding]
    verified: list[Verified]
    changes: list[WatermarkChange]
    unreadable: list[str]


class Tables(Shown):
    schema_version: int = SCHEMA_VERSION
    pipeline: str
    tables: list[TableStatus]
    never_run: list[str]


class PlannedTable(Shown):
    table: str
    stage: str
    low: str | None
    high: str | None
    reason: str
    estimated_rows: int | None
    slices: int
    held_by: str | None
    note: str | None
    columns: str | None
    error: str | None


class Warned(Shown):
    table: str
    message: str


class Plan(Shown):
    schema_version: int = SCHEMA_VERSION
    pipeline: str
    guard_seconds: float
    via: str
    tables: list[PlannedTable]
    warnings: list[Warned]


class Run(Shown):
    run_id: str
    pipeline: str
    status: str
    trigger: str
    started_at: str
    ended_at: str | None
    seconds: float | None
    rows: int
    rows_read: int
    rows_inserted: int
    rows_updated: int
    rows_deleted: int
    user: str | None
    host: str | None
    job_id: str | None
    error: str | None
    remedy: str | None


class Runs(Shown):
    schema_version: int = SCHEMA_VERSION
    runs: list[Run]
    next_page: int | None


class RunPart(Shown):
    table: str
    stage: str
    status: str
    low: str | None
    high: str | None
    reason: str
    held_by: str | None
    batches: int
    rows_read: int
    rows_inserted: int
    rows_updated: int
    rows_deleted: int
    seconds: float
    started_at: str
    ended_at: str | None
    error: str | None
    remedy: str | None


class OneRun(Run):
    schema_version: int = SCHEMA_VERSION
    tables: list[RunPart]
    left_open: list[str]


class Day(Shown):
    day: str
    runs: int
    completed: int
    failed: int
    rows_read: int
    rows_inserted: int
    rows_updated: int
    rows_deleted: int
    average_seconds: float | None


class Stats(Shown):
    schema_version: int = SCHEMA_VERSION
    days: list[Day]


class Jobs(Shown):
    schema_version: int = SCHEMA_VERSION
    jobs: list[Job]


class OneJob(Job):
    schema_version: int = SCHEMA_VERSION


class Event(Shown):
    id: int
    at: str
    event: str


class Events(Shown):
    schema_version: int = SCHEMA_VERSION
    events: list[Event]


class Change(Shown):
    pipeline: str
    table: str
    stage: str
    action: str
    old: str | None
    new: str | None
    effect: str | None
    rows: int | None
    epoch: int
    notes: list[str]
    revision: int


class Changes(Shown):
    schema_version: int = SCHEMA_VERSION
    dry_run: bool
    changes: list[Change]


class Replanned(Changes):
    job: Job | None


class RunAsk(Asked):
    """What to run; nothing given: everything."""

    tables: Names = []
    stages: Names = []
    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"tables": ["orders"]}, {}]})


class VerifyAsk(Asked):
    tables: Names = []
    repair: bool = False
    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"tables": ["orders"], "repair": False}]})


class SuspendAsk(Asked):
    why: Text = ""
    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"why": "the warehouse is moved"}]})


class WatermarkAsk(Asked):
    """Ask with `dry_run` first: the answer says what would be, and the `revision` to give when it is meant."""

    action: Literal["set", "reset"]
    value: Text | None = None
    stage: Text = ""
    allow_duplicates: bool = False
    why: Text = ""
    dry_run: bool = True
    revision: Annotated[int, Field(ge=0, le=2**53)] | None = None
    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {"action": "set", "value": "2026-11-15 08:00", "dry_run": True},
                {"action": "reset", "dry_run": False, "revision": 17, "why": "a column was added"},
            ]
        },
    )


class ReplanAsk(Asked):
    """Ask with `dry_run` first: the answer says what would be, and each change's `revision`."""

    allow_duplicates: bool = False
    why: Text = ""
    dry_run: bool = True
    revisions: Annotated[list[Annotated[int, Field(ge=0, le=2**53)]], Field(max_length=1000)] | None = None
    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"dry_run": True}, {"dry_run": False, "revisions": [17], "why": "a bad plan"}]},
    )

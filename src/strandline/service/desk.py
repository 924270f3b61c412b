"""The desk of a service: what it tells and what may be asked of it. The API and the pages know nothing else of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from strandline.project import Project


@dataclass(frozen=True)
class Job:
    """What a pipeline is asked to do. Jobs of one pipeline wait for each other; the same job is never queued twice."""

    pipeline: str
    action: str = "sync"  # or "verify", "maintain"
    tables: tuple[str, ...] = ()  # none: all
    stages: tuple[str, ...] = ()  # none: all
    repair: bool = False  # with "verify"
    resume: bool = False  # with "sync": a person's answer to `unfinished: stop`
    trigger: str = "schedule"  # or "api"
    who: str = ""


@dataclass(frozen=True)
class JobStatus:
    job_id: str
    job: Job
    status: str  # "queued", "running", "done", "failed"
    run_id: str = ""
    error: str = ""
    remedy: str = ""
    asked_at: datetime | None = None
    ended_at: datetime | None = None


@dataclass(frozen=True)
class Timetable:
    """When a pipeline runs next; None: not by itself."""

    schedule: str  # as the config says it; "manual" without one
    next_run: datetime | None = None
    next_verify: datetime | None = None
    next_maintain: datetime | None = None
    suspended_at: datetime | None = None
    suspended_by: str = ""
    why: str = ""


@dataclass(frozen=True)
class Entry:
    """An event as it is told: numbered from 1 in the order of telling, without secrets."""

    number: int
    at: datetime
    fields: Mapping[str, Any]  # "event" and what it says


class EventLog(Protocol):
    """The latest events; older ones are forgotten."""

    def since(self, number: int) -> Sequence[Entry]:
        """Those after this number."""

    def wait(self, number: int, seconds: float) -> Sequence[Entry]:
        """The same, as soon as there are any; none when the time is up or the service stops."""


class Desk(Protocol):
    @property
    def project(self) -> Project:
        """As the config is now; another one after an edit."""

    @property
    def config_error(self) -> str:
        """Why the latest edit of the config is not in force; empty: it is."""

    @property
    def log(self) -> EventLog: ...

    def deliveries(self) -> Mapping[tuple[str, str], int]:
        """How many alerts and lineage events were "sent", "failed" or "lost" since the service began; by channel."""

    def timetable(self) -> Mapping[str, Timetable]:
        """By pipeline, suspension as the state has it now."""

    def jobs(self) -> Sequence[JobStatus]:
        """Queued and running ones, and the latest that ended, newest first."""

    def ask(self, job: Job) -> JobStatus:
        """Queue a job, or give the equal one that is queued or running already. ConfigError: there is no such pipeline
        or table."""

"""What a service is to do when: a timer for each schedule of the config. Pure, but for one look into the state at the
start of each timer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from strandline.config import Config, format_duration
from strandline.core.errors import ConflictError
from strandline.core.protocols import Record, State, Value
from strandline.service import slots
from strandline.service.desk import Job
from strandline.service.schedule import Every, Timed
from strandline.service.work import Done

LONGEST = timedelta(minutes=5)
"""How far apart the runs of a pipeline get that fails again and again, if its schedule is shorter."""
_MOST = timedelta(seconds=10)


@dataclass
class Timer:
    job: Job
    when: Timed
    due: datetime = field(default_factory=lambda: datetime.min.replace(tzinfo=UTC))
    began: datetime | None = None
    slot: Value = None  # what we wrote into the state last
    seen: Value = None  # what another service wrote there, when we last looked
    failures: int = 0  # in a row
    busy: bool = False  # its job is on its way
    rival: bool = False  # another service makes its runs

    def ready(self, now: datetime) -> bool:
        return not self.busy and self.due <= now

    @property
    def expected(self) -> datetime:
        """When it runs next, as far as can be said."""
        return self.when.next(self.began or self.due) if self.busy else self.due

    def left(self, slot: Record, now: datetime, chance: float) -> bool:
        """Whether another service has begun what was due. Then ours is to look a moment after that one's next run: one
        of several makes the runs, and if it goes away, the next one does."""
        began, value = slots.began(slot), slot.fields["value"]
        foreign = began is not None and value != self.slot
        self.rival = foreign and self.slot is not None
        stale, self.seen = value == self.seen, value
        if began is None or not foreign or self.when.next(began) <= now:
            return False
        if began > now and stale:  # by a clock that was ahead, and nobody has written since
            return False
        self.busy = False
        self.due = self.when.next(min(began, now)) + self._moment(chance)
        return True

    def ended(self, done: Done, began: datetime, now: datetime, chance: float) -> None:
        """The next run counts from when this one began: one that took too long is followed at once, by one run."""
        self.busy, self.began = False, began
        self.failures = self.failures + 1 if done.failed else 0
        self.due = self.when.next(began, chance)
        if self.rival or done.taken:
            self.due += self._moment(chance)
        if self.failures and isinstance(self.when, Every):
            pause = min(self.when.span * 2 ** min(self.failures, 20), max(self.when.span, LONGEST))
            self.due = max(self.due, now + pause)

    def _moment(self, chance: float) -> timedelta:
        span = self.when.span if isinstance(self.when, Every) else _MOST
        return (0.1 + 0.2 * chance) * min(span, _MOST)


@dataclass(frozen=True)
class Agenda:
    """`shared`: with the other services on this state, and not for pipelines that are suspended. `following`: whether
    `after PIPELINE` counts."""

    timers: dict[tuple[str, str], Timer]
    pipelines: tuple[str, ...] = ()
    shared: bool = True
    following: bool = True

    def begun(self, state: State, before: Agenda, now: datetime, who: str) -> Agenda:
        """Timers that stay as they are go on; new ones start from what the state knows of earlier runs."""
        known = slots.slots(state.read("meta")) if self.shared else {}
        for key, timer in self.timers.items():
            old = before.timers.get(key)
            if old is not None and (old.when, old.job) == (timer.when, timer.job):
                self.timers[key] = old
            elif self.shared:
                timer.due = _first(state, timer, slots.slot_of(known, *key), now, who)
        return self


def _first(state: State, timer: Timer, began: datetime | None, now: datetime, who: str) -> datetime:
    """A sync that never ran is due by its schedule's word; what is to be done now and then is first done after a
    while, counted from today."""
    job, when = timer.job, timer.when
    if began is not None:
        return when.next(min(began, now))
    if job.action == "sync":
        runs = state.read("run", where={"pipeline": job.pipeline}, newest=1)
        return when.next(datetime.fromisoformat(str(runs[0].fields["started_at"]))) if runs else when.first(now)
    try:
        state.put([slots.taken(slots.slot(state, job.pipeline, job.action), now, who)])
    except ConflictError:
        return when.next(now)  # another service was first
    return when.next(now)


def agenda(config: Config) -> Agenda:
    """Everything that the config says."""
    timers = []
    for name, spec in config.pipelines.items():
        if isinstance(spec.schedule, Timed):
            timers.append(Timer(Job(name), spec.schedule))
        if spec.verify is not None:
            timers.append(Timer(Job(name, "verify", repair=spec.verify.repair), spec.verify.when))
        if spec.maintain is not None:
            timers.append(Timer(Job(name, "maintain"), spec.maintain))
    return Agenda({(timer.job.pipeline, timer.job.action): timer for timer in timers}, tuple(config.pipelines))


def every(
    chosen: Mapping[str, tuple[str, ...]], span: timedelta, stages: tuple[str, ...] = ()
) -> Callable[[Config], Agenda]:
    """The agenda of `sync --every`: these pipelines and tables at this pace, and nothing else."""
    when = Every(span, text=f"every {format_duration(span)}")

    def agenda(config: Config) -> Agenda:
        jobs = [Job(name, tables=tables, stages=stages, trigger="cli") for name, tables in chosen.items()]
        timers = {(job.pipeline, job.action): Timer(job, when) for job in jobs if job.pipeline in config.pipelines}
        return Agenda(timers, tuple(name for name, _ in timers), shared=False, following=False)

    return agenda

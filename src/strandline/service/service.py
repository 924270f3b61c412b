"""The service: jobs that are due, by schedule or because somebody asks, a few pipelines side by side.

`tick` is the whole of it: look at config and state, queue what is due, start what there is room for. Time, chance and
threads are passed in, so that tests have them in their hands. Jobs of one pipeline wait for each other; leases keep
those of other services apart, and the slots in the state tell each service what the others began.
"""

from __future__ import annotations

import random
import secrets
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from strandline.alerts import sending
from strandline.config import AlertsSpec, Config
from strandline.core.errors import ConfigError, ConflictError, StrandlineError
from strandline.core.events import Event, Listener
from strandline.core.protocols import Record
from strandline.core.stopping import Stopping
from strandline.operations.suspension import suspension, suspensions
from strandline.pipeline import some_stages
from strandline.project import Project
from strandline.result import RunResult
from strandline.running import Unattended
from strandline.service import slots
from strandline.service.agenda import Agenda, Timer, agenda
from strandline.service.desk import Entry, Job, JobStatus, Timetable
from strandline.service.log import Log, Telling
from strandline.service.schedule import After
from strandline.service.start import found_at_start
from strandline.service.watch import Watch
from strandline.service.work import Done, carry_out
from strandline.warm import Warm

LOOK = timedelta(seconds=2)
"""How often config files and suspensions are looked at."""
GRACE = 30.0
"""Seconds for which slices at work may go on after a service was asked to stop."""
_ENDED = 100  # jobs remembered


def _thread(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="strandline-job", daemon=True).start()


def _utc() -> datetime:
    return datetime.now(UTC)


Ending = Callable[[JobStatus, RunResult | None], None]
"""Is told how a job ended; without a result if it came to none."""


@dataclass
class _Task:
    """A job on its way. `timer`: whose; None: somebody asked for it, or another pipeline's end."""

    status: JobStatus
    timer: Timer | None = None
    stopping: Stopping = field(default_factory=Stopping)
    witnesses: list[tuple[Listener, Ending]] = field(default_factory=list)
    result: RunResult | None = None

    @property
    def job(self) -> Job:
        return self.status.job


class Service:
    """`Desk` for API and pages. `agenda`: what runs when, by the config; `sync --every` has one of its own."""

    def __init__(
        self,
        project: Project,
        *,
        words: Callable[[Event, datetime], str],
        hear: Callable[[Entry], None] | None = None,
        result: Callable[[RunResult], None] | None = None,
        agenda: Callable[[Config], Agenda] = agenda,
        now: Callable[[], datetime] = _utc,
        chance: Callable[[], float] = random.random,
        spawn: Callable[[Callable[[], None]], None] = _thread,
    ) -> None:
        self.project = project
        self.log = Log(now, lambda text: self.project.config.redactor.redact(text), hear)
        self._telling = Telling(self.log, words, now)
        self._hear_lineage()
        self._result = result
        self._agenda_of = agenda
        self._now = now
        self._chance = chance
        self._spawn = spawn
        self._watch = Watch(project.config)
        self._warm = Warm()
        self._lock = threading.RLock()
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._agenda = Agenda({})
        self._suspended: frozenset[str] = frozenset()
        self._waiting: deque[_Task] = deque()
        self._running: dict[str, _Task] = {}  # by pipeline
        self._ended: deque[JobStatus] = deque(maxlen=_ENDED)
        self._number = 0
        self._token = secrets.token_hex(4)
        self._look_at = self._alert_at = datetime.min.replace(tzinfo=UTC)
        self._alerts = sending.Alerts(self.log, self._stopping.is_set)
        self._alerting = False
        self._alert_error = ""
        self._next_config: Config | None = None  # waits for jobs to end

    # the desk

    @property
    def config_error(self) -> str:
        return self._watch.error

    def deliveries(self) -> Mapping[tuple[str, str], int]:
        lineage = self.project.lineage
        counts = {("lineage", "sent"): lineage.sent, ("lineage", "lost"): lineage.lost} if lineage else {}
        return {**self._alerts.counted(self.project.config), **counts}

    def timetable(self) -> Mapping[str, Timetable]:
        known = suspensions(self.project.books.state)
        with self._lock:
            timers, config = self._agenda.timers, self.project.config
            table = {}
            for name, spec in config.pipelines.items():
                held = known.get(name)
                due = {
                    action: timer.expected if (timer := timers.get((name, action))) and not held else None
                    for action in ("sync", "verify", "maintain")
                }
                since = (datetime.fromisoformat(held.at), held.by, held.why) if held else (None, "", "")
                sync = timers.get((name, "sync"))
                said = str(sync.when if sync else spec.schedule or "manual")
                table[name] = Timetable(said, due["sync"], due["verify"], due["maintain"], *since)
        return table

    def jobs(self) -> Sequence[JobStatus]:
        with self._lock:
            alive = [task.status for task in (*self._running.values(), *self._waiting)]
            return sorted([*alive, *self._ended], key=lambda status: int(status.job_id), reverse=True)

    def ask(self, job: Job) -> JobStatus:
        self._check(job)
        with self._lock:
            status = self._queued(job).status
        self._dispatch()
        return status

    def attend(self, job: Job, listener: Listener, ended: Ending) -> JobStatus:
        """As `ask`, for somebody who follows it to its end. What is at work may have been planned before they asked:
        theirs comes after it."""
        self._check(job)
        with self._lock:
            task = self._queued(job, after=True)
            task.witnesses.append((listener, ended))
        self._dispatch()
        return task.status

    def _check(self, job: Job) -> None:
        spec = self.project.pipeline(job.pipeline)
        if job.action not in ("sync", "verify", "maintain"):
            raise ConfigError(f'a job is sync, verify or maintain, not "{job.action}"', where=job.pipeline)
        some_stages(spec, job.stages)
        for table in job.tables:
            if not spec.has(table):
                known = ", ".join(part.name for part in spec.tables)
                raise ConfigError(
                    f'no table "{table}" in this pipeline', where=spec.name, remedy=f"Its tables: {known}"
                )

    # its life

    def run(self) -> None:
        """Until somebody calls `stop`, and then until the slices at work are done, or have been given up."""
        self.start()
        while not self._stopping.is_set():
            self._wake.wait(self.tick())
            self._wake.clear()
        self._finish()

    def start(self) -> None:
        """Say which state is used, and which value was found there for every table."""
        project = self.project
        where, store = str(project.config.state), project.books.store
        self.log.tell("service_started", f"watermarks are in {where} (store {store})", state=where, store=store)
        for said in found_at_start(project, self._agenda_of(project.config).pipelines):
            self.log.tell("position_found", said.pop("message"), **said)
        self._alert_at = self._now() + sending.EVERY  # what was cut off goes on first
        self._follow(project.config)

    def stop(self) -> None:
        self._stopping.set()
        self._wake.set()

    def reload(self) -> None:
        """Read the config again now."""
        self._watch.ask()
        self._look_at = datetime.min.replace(tzinfo=UTC)
        self._wake.set()

    def _finish(self) -> None:
        with self._lock:
            self._waiting.clear()
            tasks = list(self._running.values())
        for task in tasks:
            task.stopping.set()
        if tasks:
            self.log.tell("service_stopping", f"finishing the slices at work in {', '.join(sorted(self._running))}")
        if not self._idle(GRACE):
            for task in tasks:
                task.stopping.cancel()
            self._idle(GRACE / 3)
        self.log.tell("service_stopped", "stopped")
        self.close()

    def close(self) -> None:
        """Give back what is open."""
        self.log.close()
        self._warm.close()
        if not self._running and not self._alerting:
            self.project.close()

    def _idle(self, seconds: float) -> bool:
        """Wait for the jobs at work to end, and for an alert on its way."""
        until = threading.Event()
        for _ in range(int(seconds / 0.05)):
            if not self._running and not self._alerting:
                return True
            until.wait(0.05)
        return not self._running

    @property
    def at_work(self) -> bool:
        return bool(self._running)

    def tick(self) -> float:
        """Do what is due now; how many seconds there is nothing to do."""
        now = self._now()
        if now >= self._look_at:
            self._look_at = now + LOOK
            self._look()
        if now >= self._alert_at and not self._alerting and self._alerted:
            self._alert_at = now + sending.EVERY
            self._alerting = True
            self._spawn(self._alert)
        with self._lock:
            for timer in self._agenda.timers.values():
                if timer.ready(now) and not self._resting(timer.job.pipeline) and self._next_config is None:
                    timer.busy = True
                    self._queued(timer.job, timer)
        self._dispatch()
        with self._lock:
            waiting = [timer.due for timer in self._agenda.timers.values() if not timer.busy]
        later = [due for due in (*waiting, self._look_at) if due > self._now()]
        return max(0.0, (min(later) - self._now()).total_seconds()) if later else 0.0

    def _resting(self, pipeline: str) -> bool:
        return self._agenda.shared and pipeline in self._suspended

    # alerts

    @property
    def _alerted(self) -> bool:
        return self._agenda.shared and self.project.config.alerts != AlertsSpec()

    def _alert(self) -> None:
        error = ""
        try:
            self._alerts.look(self.project)
        except Exception as caught:  # a service outlives it, and looks again
            error = str(caught)
            if error != self._alert_error and not self._stopping.is_set():
                self.log.tell("alerts_error", f"alerts cannot be looked after: {error}", error=error)
        self._alert_error = error
        self._alerting = False

    def _hear_lineage(self) -> None:
        if self.project.lineage is not None:
            self.project.lineage.tell = self.log.tell

    # config and suspensions

    def _look(self) -> None:
        if self._watch.look():
            if error := self._watch.error:
                self.log.tell("config_error", f"the edited config is not in force: {error}", error=error)
            else:
                self._next_config = self._watch.config
        if self._next_config is not None:
            self._follow_when_it_fits(self._next_config)
        try:
            self._suspended = frozenset(suspensions(self.project.books.state))
        except StrandlineError as error:
            self.log.tell("state_error", f"the state cannot be read: {error}", error=str(error))

    def _follow_when_it_fits(self, config: Config) -> None:
        """Another Spark session can only take the place of the one there is when nobody works on it."""
        own = self.project.own_spark
        if config == self.project.config:
            self._next_config = None
            return
        if not own.fits(config):
            if self._running:
                return
            self._warm.close()
            own.close()
        self.project = self.project.succeeded(config)
        self._hear_lineage()
        self._next_config = None
        self._follow(config)
        self.log.tell("config_read", f"{config.path.name} was read again", pipelines=sorted(config.pipelines))

    def _follow(self, config: Config) -> None:
        wanted = self._agenda_of(config)
        try:
            wanted = wanted.begun(self.project.books.state, self._agenda, self._now(), self._token)
        except StrandlineError as error:
            self.log.tell("state_error", f"the state cannot be read: {error}", error=str(error))
        with self._lock:
            self._agenda = wanted

    # jobs

    def _queued(self, job: Job, timer: Timer | None = None, *, after: bool = False) -> _Task:
        """The equal one that is on its way already, or a new one. `after`: one that has not begun."""
        alike = replace(job, trigger="", who="")
        begun = [] if after else list(self._running.values())
        for task in (*begun, *self._waiting):
            if replace(task.job, trigger="", who="") == alike:
                if timer is not None:
                    timer.busy = False
                    timer.due = timer.when.next(self._now(), self._chance())
                return task
        self._number += 1
        status = JobStatus(str(self._number), job, "queued", asked_at=self._now())
        task = _Task(status, timer)
        self._waiting.append(task)
        return task

    def _dispatch(self) -> None:
        with self._lock:
            begun = []
            for task in list(self._waiting):
                full = len(self._running) >= self.project.config.service.max_parallel
                if full or self._stopping.is_set():
                    break
                if task.job.pipeline not in self._running:
                    self._waiting.remove(task)
                    task.status = replace(task.status, status="running")
                    self._running[task.job.pipeline] = task
                    begun.append(task)
        for task in begun:
            self._spawn(partial(self._work, task))

    def _work(self, task: _Task) -> None:
        project, began = self.project, self._now()
        done: Done | None = None
        try:
            ours, slot = self._begin(project, task, began)
            if ours:
                nominal = task.timer.due if task.timer and task.job.trigger == "schedule" else None
                unattended = Unattended(self._warm, task.stopping, slot, nominal)
                done = carry_out(project, task.job, unattended, self._hearing(task), partial(self._resulting, task))
        except Exception as error:  # the state is away, for one
            done = Done(True, project.config.redactor.redact(str(error)))
        self._end(task, done, began)

    def _hearing(self, task: _Task) -> Listener:
        telling = self._telling.listener()

        def hear(event: Event) -> None:
            telling(event)
            for listener, _ in task.witnesses:
                listener(event)

        return hear

    def _resulting(self, task: _Task, result: RunResult) -> None:
        task.result = result
        if self._result:
            self._result(result)

    def _begin(self, project: Project, task: _Task, now: datetime) -> tuple[bool, Record | None]:
        """Whether it is for us to do: not if the pipeline is suspended, or another service has begun what was due. And
        the slot that a sync takes with its first write; other jobs take theirs here."""
        job, timer = task.job, task.timer
        if not self._agenda.shared or job.trigger != "schedule":
            return True, None
        state = project.books.state
        if suspension(state, job.pipeline):
            self._suspended |= {job.pipeline}
            if timer is not None:
                timer.busy = False
            return False, None
        if timer is None:
            return True, None
        record = slots.slot(state, job.pipeline, job.action)
        if timer.left(record, now, self._chance()):
            return False, None
        taken = slots.taken(record, now, self._token)
        timer.slot = taken.fields["value"]
        if job.action == "sync":
            return True, taken
        try:
            state.put([taken])
        except ConflictError:
            timer.ended(Done(taken=True), now, now, self._chance())
            return False, None
        return True, None

    def _end(self, task: _Task, done: Done | None, began: datetime) -> None:
        """`done`: None where it was not for us to do."""
        job, timer = task.job, task.timer
        ended = done or Done(quiet=True)
        status = replace(
            task.status,
            status="failed" if ended.failed else "done",
            run_id=ended.run_id,
            error=ended.error if ended.failed else "",
            remedy=ended.remedy,
            ended_at=self._now(),
        )
        quiet = ended.quiet and timer is not None
        with self._lock:
            task.status = status
            del self._running[job.pipeline]
            if timer is not None and done is not None:
                timer.ended(done, began, self._now(), self._chance())
            if not quiet:
                self._ended.append(status)
            whole = job.action == "sync" and not job.tables and not job.stages
            if whole and ended.run_id and not ended.failed and not self._stopping.is_set():
                for name in self._followers(job.pipeline):
                    self._queued(Job(name))
        if not quiet:
            self._tell_end(job, ended)
        for _, told in task.witnesses:
            told(status if ended.failed else replace(status, error=ended.error), task.result)
        self._wake.set()
        self._dispatch()

    def _followers(self, pipeline: str) -> list[str]:
        if not self._agenda.following:
            return []
        return [
            name
            for name, spec in self.project.config.pipelines.items()
            if spec.schedule == After(pipeline) and name not in self._suspended
        ]

    def _tell_end(self, job: Job, done: Done) -> None:
        if job.action == "sync" and done.run_id and not done.failed:
            return  # its run has said so
        said: dict[str, Any] = {"pipeline": job.pipeline, "action": job.action, "trigger": job.trigger}
        word = f"{job.action} failed: {done.error}" if done.failed else f"{job.action} done"
        self.log.tell(
            "job_failed" if done.failed else "job_done",
            word,
            **said,
            error=done.error,
            remedy=done.remedy,
            run_id=done.run_id,
        )

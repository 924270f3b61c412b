"""A look of a service at its pipelines: what changed is noted in the state, and what is noted there is delivered.

A try is noted before it is made, with when the next one may be: two services never try at once, and one that is killed
leaves the rest to whoever comes after. What was delivered and could not be crossed out is sent again, with the same id.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from strandline import operations
from strandline.alerts.conditions import Message, judged
from strandline.alerts.deliver import Channel, channels
from strandline.alerts.ledger import Ledger, Parcel, ledger, ledgers
from strandline.config import Config
from strandline.core.attention import HELD_AFTER
from strandline.core.books import stamp
from strandline.core.errors import ConflictError
from strandline.core.protocols import State
from strandline.operations.health import findings
from strandline.operations.status import PipelineStatus
from strandline.operations.verified import Verifications, verifications
from strandline.project import Project
from strandline.service.failures import Failures
from strandline.service.log import Log

EVERY = timedelta(seconds=15)
"""How often pipelines are looked at."""
TRIES = 10
KEPT = 100
"""Messages on their way, by pipeline; beyond, the oldest are given up."""
OLDEST = timedelta(days=1)
_PAUSE, _LONGEST = timedelta(minutes=1), timedelta(hours=1)  # the first is longer than any try takes


def pause(attempts: int) -> timedelta:
    """Until the next try, after so many."""
    return min(_PAUSE * (1 << attempts - 1), _LONGEST)


class Alerts:
    """`open_`: the channels of a config; `stopping`: nothing more is begun."""

    def __init__(
        self,
        log: Log,
        stopping: Callable[[], bool] = lambda: False,
        open_: Callable[..., Mapping[str, Channel]] = channels,
    ) -> None:
        self._log = log
        self._stopping = stopping
        self._open = open_
        self._failures = Failures()
        self._outcomes: Counter[tuple[str, str]] = Counter()
        self._heeded: dict[tuple[str, str, str], datetime] = {}  # answers of verifications, by when they came

    def counted(self, config: Config) -> Mapping[tuple[str, str], int]:
        """By channel, what became of each try: "sent", "failed" and to be made again, or "lost"."""
        known = [(name, outcome) for name in self._open(config) for outcome in ("sent", "failed", "lost")]
        return {**dict.fromkeys(known, 0), **self._outcomes}

    def look(self, project: Project) -> None:
        """At everything, once."""
        self._failures.catch_up(self._log)
        state, out = project.books.state, self._open(project.config)
        known, verified = ledgers(state.read("meta")), verifications(state)
        for part in operations.status(project):
            if self._stopping():
                return
            if part.configured or part.tracked:
                found = known.get(part.pipeline) or ledger(state, part.pipeline)
                answers = verified.get(part.pipeline, {})
                if self._judge(project, part, found, answers, tuple(out)).outbox:
                    self._deliver(state, part.pipeline, out)

    def _judge(
        self, project: Project, part: PipelineStatus, known: Ledger, answers: Verifications, out: tuple[str, ...]
    ) -> Ledger:
        state, redact = project.books.state, project.config.redactor.redact
        spec = project.config.pipelines.get(part.pipeline)
        new = {
            where: answer.at
            for where, answer in answers.items()
            if self._heeded.get((part.pipeline, *where)) != answer.at
        }
        now = state.now()
        held_after = spec.held_after if spec else HELD_AFTER
        found = findings(part, spec.freshness if spec else None, answers, now, held_after) + self._failures.of(part)
        standing, messages = judged(known.standing, part, found, new, now)
        messages = [replace(message, message=redact(message.message)) for message in messages]
        if standing != known.standing:
            parcels = tuple(Parcel(name, message, message.at) for message in messages for name in out)
            try:
                known = replace(known, standing=standing, outbox=(*known.outbox, *parcels)).written(state)
            except ConflictError:
                return known  # another service was first; what it left to tell is seen at the next look
            for message in messages:
                self._tell(message)
        self._heeded |= {(part.pipeline, *where): at for where, at in new.items()}
        return known

    def _deliver(self, state: State, pipeline: str, out: Mapping[str, Channel]) -> None:
        """In the order of telling, each channel by itself: nobody hears of a recovery before the trouble."""
        self._tidy(state, pipeline)
        for name, send in out.items():
            while not self._stopping() and (parcel := self._taken(state, pipeline, name)):
                error = send(parcel.message, state.now())
                lost = bool(error) and parcel.attempts >= TRIES
                self._exchange(state, pipeline, parcel, replace(parcel, error=error) if error and not lost else None)
                self._tell_outcome(parcel, error, lost)
                if error:
                    break

    def _tidy(self, state: State, pipeline: str) -> None:
        """Give up what nobody sends: its channel is in no service's config any more, or there is too much."""
        outbox, oldest = ledger(state, pipeline).outbox, stamp(state.now() - OLDEST)
        for number, parcel in enumerate(reversed(outbox)):
            if number >= KEPT or parcel.message.at < oldest:
                self._exchange(state, pipeline, parcel, None)
                self._tell_outcome(parcel, "too many are waiting" if number >= KEPT else "too old", lost=True)

    def _taken(self, state: State, pipeline: str, channel: str) -> Parcel | None:
        """The next parcel of a channel, with this try noted; None: there is none, or it is not for us to try now."""
        found, now = ledger(state, pipeline), state.now()
        first = next((parcel for parcel in found.outbox if parcel.channel == channel), None)
        if first is None or first.due > stamp(now):
            return None
        tried = replace(first, attempts=first.attempts + 1, due=stamp(now + pause(first.attempts + 1)))
        try:
            _exchanged(found, first, tried).written(state)
        except ConflictError:
            return None
        return tried

    def _exchange(self, state: State, pipeline: str, old: Parcel, new: Parcel | None) -> None:
        """None: it is crossed out."""
        while True:
            found = ledger(state, pipeline)
            try:
                _exchanged(found, old, new).written(state)
                return
            except ConflictError:
                continue  # somebody wrote something else meanwhile

    def _tell(self, message: Message) -> None:
        said = {name: value for name, value in message.to_json().items() if name not in ("message", "schema_version")}
        self._log.tell("alert", f"alert, {message.title}: {message.message}", **said)

    def _tell_outcome(self, parcel: Parcel, error: str, lost: bool) -> None:
        message = parcel.message
        where = {"pipeline": message.pipeline, "table": message.table, "stage": message.stage}
        said = {**where, "channel": parcel.channel, "id": message.id, "attempts": parcel.attempts}
        self._outcomes[parcel.channel, "lost" if lost else "failed" if error else "sent"] += 1
        if not error:
            self._log.tell("alert_sent", f"alert sent by {parcel.channel}: {message.title}", **said)
            return
        then = "given up" if lost else f"again in {pause(parcel.attempts).total_seconds() / 60:.0f} min"
        words = (
            f"alert not sent by {parcel.channel} ({error}), try {parcel.attempts} of {TRIES}, {then}: {message.title}"
        )
        self._log.tell("alert_lost" if lost else "alert_failed", words, **said, error=error)


def _exchanged(found: Ledger, old: Parcel, new: Parcel | None) -> Ledger:
    changed = [new if parcel.key == old.key else parcel for parcel in found.outbox]
    return replace(found, outbox=tuple(parcel for parcel in changed if parcel is not None))

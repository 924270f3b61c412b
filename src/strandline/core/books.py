"""The books: positions, leases and history, kept above any state store.

Every write is a compare-and-set. A run's history rows are written together with the position they describe, so that
after a crash the two agree. A lease is taken with the plan and given back with the last commit.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from strandline.core.batch import Applied
from strandline.core.codec import position_record, record_position
from strandline.core.errors import ConflictError, LeaseError, StateError, StrandlineError
from strandline.core.position import Position, Status, TablePlan
from strandline.core.process import gone, this_process, user
from strandline.core.protocols import JoinedState, Record, State, Value
from strandline.core.records import COUNTS
from strandline.core.table import EXTRACT

Key = tuple[str, str, str]  # pipeline, table, stage
LEASE_TIME = timedelta(seconds=60)


def stamp(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def new_id(at: datetime) -> str:
    """Sorts by time, can be read, and is unique."""
    return f"{at:%Y%m%d-%H%M%S}-{at.microsecond // 1000:03d}-{secrets.token_hex(3)}"


@dataclass(frozen=True)
class Caller:
    """What started a run, for the history."""

    trigger: str = "api"
    user: str = ""
    host: str = ""
    job_id: str = ""

    @classmethod
    def here(cls, trigger: str, job_id: str = "") -> Caller:
        return cls(trigger, user(), socket.gethostname(), job_id or os.environ.get("STRANDLINE_JOB_ID", ""))


@dataclass(frozen=True)
class Lease:
    pipeline: str
    table: str
    token: int = 0
    holder: str = ""
    run_id: str = ""
    acquired_at: str = ""
    expires_at: str = ""
    revision: int = 0
    users: int = 1  # targets of the table that its holder is at work on; not stored

    def held(self, now: datetime) -> bool:
        """Until it expires; a holder that anybody on this machine can see to be dead holds nothing."""
        return self.expires_at > stamp(now) and not gone(self.holder)

    def record(self) -> Record:
        fields: dict[str, Value] = {
            "token": self.token,
            "holder": self.holder,
            "run_id": self.run_id,
            "acquired_at": self.acquired_at,
            "expires_at": self.expires_at,
        }
        return Record("lease", (self.pipeline, self.table), fields, self.revision)


def _lease(record: Record) -> Lease:
    pipeline, table = record.key
    names = ("holder", "run_id", "acquired_at", "expires_at")
    holder, run_id, acquired_at, expires_at = (str(record.fields[name]) for name in names)
    token = int(record.fields["token"] or 0)
    return Lease(pipeline, table, token, holder, run_id, acquired_at, expires_at, record.revision)


@dataclass(frozen=True)
class TableRun:
    """One table's part in one run, as the history keeps it."""

    run_id: str
    pipeline: str
    table: str
    stage: str
    status: Status
    plan: TablePlan | None
    started_at: str
    ended_at: str = ""
    applied: Applied = field(default_factory=Applied)
    batches: int = 0
    milliseconds: int = 0
    error: str = ""
    remedy: str = ""
    revision: int = 0

    def record(self) -> Record:
        window = self.plan.window if self.plan else None
        fields: dict[str, Value] = {
            "pipeline": self.pipeline,
            "status": self.status.value,
            "low": window.low.text if window and window.low else None,
            "high": window.high.text if window else None,
            "reason": _reason(self.plan) if self.plan else "",
            "held_by": str(self.plan.held_by) if self.plan and self.plan.held_by else "",
            "started_at": self.started_at,
            "ended_at": self.ended_at,
            "error": self.error,
            "remedy": self.remedy,
            "batches": self.batches,
            "milliseconds": self.milliseconds,
            **{name: getattr(self.applied, name) for name in COUNTS},
        }
        return Record("table_run", (self.run_id, self.table, self.stage), fields, self.revision)


def _reason(plan: TablePlan) -> str:
    return f"{plan.reason}; {plan.columns}" if plan.columns else plan.reason.value


Step = tuple[Position, TableRun]
"""Where a table stands, and its row in the history: always written together."""


def _records(steps: Sequence[Step]) -> list[Record]:
    return [*(position_record(position) for position, _ in steps), *(entry.record() for _, entry in steps)]


def _stored(steps: Sequence[Step], records: Sequence[Record]) -> list[Step]:
    """The steps with the revisions that their records have now."""
    count = len(steps)
    pairs = zip(steps, records[:count], records[count : 2 * count], strict=True)
    return [
        (replace(position, revision=first.revision), replace(entry, revision=second.revision))
        for (position, entry), first, second in pairs
    ]


def _where(steps: Sequence[Step]) -> str:
    position = steps[0][0]
    return f"{position.pipeline}.{position.table}" if len(steps) == 1 else position.pipeline


def _lost(steps: Sequence[Step]) -> LeaseError:
    return LeaseError(
        "the lease was lost: another run has moved the position",
        where=_where(steps),
        remedy="Nothing is lost; run again.",
    )


class Books:
    """One process's view of a state store. Safe to use from several threads if the store is."""

    def __init__(self, state: State, *, lease_time: timedelta = LEASE_TIME) -> None:
        self.state = state
        self.store = state.identity()
        self.lease_time = lease_time
        self.holder = this_process()
        self._leases: dict[tuple[str, str], Lease] = {}
        self._lock = threading.Lock()

    def another(self) -> Books:
        """Books of the same store for another run: what this one holds is none of that one's business."""
        return Books(self.state, lease_time=self.lease_time)

    def now(self) -> str:
        return stamp(self.state.now())

    # positions

    def positions(
        self, pipeline: str = "", table: str = "", *, unreadable: dict[Key, StateError] | None = None
    ) -> dict[Key, Position]:
        """Positions by pipeline, table and stage. One that cannot be read goes to `unreadable`, or is raised."""
        found: dict[Key, Position] = {}
        for record in self.state.read("position", [part for part in (pipeline, table) if part]):
            key = (record.key[0], record.key[1], record.key[2])
            try:
                found[key] = record_position(record)
            except StateError as error:
                if unreadable is None:
                    raise
                unreadable[key] = error
        return found

    @staticmethod
    def unreadable_at(unreadable: Mapping[Key, StateError], key: Key) -> StateError | None:
        """Why this position cannot be read. A store that cannot even tell whose a damaged record is leaves out the
        end of its key."""
        pipeline, table, _ = key
        return unreadable.get(key) or unreadable.get((pipeline, table, "")) or unreadable.get((pipeline, "", ""))

    def write(self, positions: Sequence[Position], others: Sequence[Record] = ()) -> list[Position]:
        """Store positions, all under compare-and-set, with other records in the same write."""
        at = self.now()
        stamped = [replace(position, updated_at=at) for position in positions]
        stored = self.state.put([*(position_record(position) for position in stamped), *others])
        return [replace(position, revision=record.revision) for position, record in zip(stamped, stored, strict=False)]

    # leases

    def leases(self, pipeline: str) -> dict[str, Lease]:
        return {record.key[1]: _lease(record) for record in self.state.read("lease", [pipeline])}

    def all_leases(self, pipeline: str = "") -> dict[tuple[str, str], Lease]:
        """By pipeline and table, in one read."""
        found = self.state.read("lease", [pipeline] if pipeline else [])
        return {(record.key[0], record.key[1]): _lease(record) for record in found}

    def take(self, lease: Lease, run_id: str, now: datetime | None = None) -> Lease:
        """The lease as it is to be written by us; the caller puts it. LeaseError if somebody else holds it."""
        now = now or self.state.now()
        if lease.held(now):
            raise LeaseError(
                f"another run is at work: {lease.holder}, run {lease.run_id}, since {lease.acquired_at}",
                where=f"{lease.pipeline}.{lease.table}",
                remedy=f"Wait for it. If that process is gone, its lease expires by itself at {lease.expires_at}.",
            )
        return replace(
            lease,
            token=lease.token + 1,
            holder=self.holder,
            run_id=run_id,
            acquired_at=stamp(now),
            expires_at=stamp(now + self.lease_time),
        )

    def begin(self, position: Position, lease: Lease, entry: TableRun) -> tuple[Position, TableRun]:
        """Take the lease, store the plan and open the history row, in one write. LeaseError: none of it is ours."""
        return self.begin_all([(position, lease, entry)])[0]

    def begin_all(self, parts: Sequence[tuple[Position, Lease, TableRun]]) -> list[Step]:
        """As `begin`, for several tables in one write. LeaseError: no lease is ours.

        Targets of one table share a lease: the first of a run takes it, the last to be done gives it back.
        """
        if not parts:
            return []
        now = self.state.now()
        joined = [key for _, lease, entry in parts if (key := self._joins(lease, entry.run_id))]
        new = [(lease, entry) for _, lease, entry in parts if (lease.pipeline, lease.table) not in joined]
        taken = [self.take(lease, entry.run_id, now) for lease, entry in new]
        steps = [(replace(position, updated_at=stamp(now)), entry) for position, _, entry in parts]
        try:
            stored = self.state.put([*(lease.record() for lease in taken), *_records(steps)])
        except ConflictError as error:
            for lease in taken:
                self._give_back(lease)
            raise LeaseError(
                "another run took the table between plan and start", where=_where(steps), remedy="Run again."
            ) from error
        with self._lock:
            for lease, record in zip(taken, stored, strict=False):
                self._leases[lease.pipeline, lease.table] = replace(lease, revision=record.revision)
            self._use(joined, 1)
        return _stored(steps, stored[len(taken) :])

    def _joins(self, lease: Lease, run_id: str) -> tuple[str, str] | None:
        """The lease that this run holds of the table already."""
        key = (lease.pipeline, lease.table)
        with self._lock:
            return key if key in self._leases and self._leases[key].run_id == run_id else None

    def _use(self, keys: Iterable[tuple[str, str]], more: int) -> None:
        """So many more targets are under a lease. One that was lost meanwhile is nobody's: the next step finds out."""
        for key in keys:
            if lease := self._leases.get(key):
                self._leases[key] = replace(lease, users=lease.users + more)

    def commit(self, position: Position, entry: TableRun, *, done: bool = False) -> tuple[Position, TableRun]:
        """Store a step of a run with its history row; `done` gives the lease back in the same write.

        LeaseError if the lease was lost: nothing is written.
        """
        return self.commit_all([(position, entry)], done=done)[0]

    def commit_all(self, steps: Sequence[Step], *, done: bool = False) -> list[Step]:
        """As `commit`, for several tables in one write: all of them, or none where the store is atomic."""
        if not steps:
            return []
        steps = self._stamped(steps)
        try:
            with self._lock:
                leases = self._held(steps)
                freed = {key: lease for key, lease in leases.items() if done and lease.users == 1}
                ended = [replace(lease, expires_at="").record() for lease in freed.values()]
                stored = self.state.put([*_records(steps), *ended])
                for key in freed:
                    del self._leases[key]
                if done:
                    self._use(leases.keys() - freed.keys(), -1)
        except ConflictError as error:
            raise _lost(steps) from error
        return _stored(steps, stored)

    def commit_in(self, connection: object, steps: Sequence[Step]) -> list[Step]:
        """Store steps of a run as part of a transaction that the caller has open on a connection of its own. Leases
        stay as they are: whoever takes the table over meanwhile waits for that transaction's end.

        LeaseError if another run has moved a position: nothing is written. StateError if that is no place of the state.
        """
        if not isinstance(self.state, JoinedState):
            raise StateError(
                "the state is in no SQL database, so it cannot take part in a transaction there",
                remedy="Keep the state in that database (postgresql://, mysql://, sqlite:///), or leave commit_in out.",
            )
        steps = self._stamped(steps)
        try:
            self._held(steps)
            return _stored(steps, self.state.put_in(connection, _records(steps)))
        except ConflictError as error:
            raise _lost(steps) from error

    def _stamped(self, steps: Sequence[Step]) -> list[Step]:
        at = self.now()
        return [(replace(position, updated_at=at), entry) for position, entry in steps]

    def _held(self, steps: Sequence[Step]) -> dict[tuple[str, str], Lease]:
        keys = [(position.pipeline, position.table) for position, _ in steps]
        if any(key not in self._leases for key in keys):
            raise ConflictError("no lease")
        return {key: self._leases[key] for key in keys}

    def holds(self, pipeline: str, table: str) -> bool:
        """As far as we know: a lease that was taken over is seen at the next renewal or commit."""
        with self._lock:
            return (pipeline, table) in self._leases

    def committed_in(self, connection: object, entry: TableRun) -> bool | None:
        """Whether what `commit_in` wrote with this history row is in the state; None: its transaction is still open."""
        stored = self.state.read("table_run", entry.record().key)
        if any(record.fields["status"] == entry.status for record in stored):
            return True
        assert isinstance(self.state, JoinedState)
        try:
            theirs = self.state.read_in(connection, stored)
        except StrandlineError:
            return False  # it has failed, or is closed
        return None if any(record.fields["status"] == entry.status for record in theirs) else False

    def forget(self, pipeline: str, table: str) -> None:
        """Renew this lease no more: it expires by itself, unless somebody has it already."""
        with self._lock:
            self._leases.pop((pipeline, table), None)

    def release(self, pipeline: str, table: str) -> None:
        """Give the lease back; one that was taken over meanwhile is left alone."""
        with self._lock:
            lease = self._leases.pop((pipeline, table), None)
            if lease is None:
                return
            try:
                self.state.put([replace(lease, expires_at="").record()])
            except ConflictError:
                return  # taken over: it is no longer ours to give back

    def _give_back(self, taken: Lease) -> None:
        """A store that is not atomic may have taken the lease before it met the conflict."""
        stored = () if self.state.atomic else self.state.read("lease", [taken.pipeline, taken.table])
        for lease in map(_lease, stored):
            if replace(lease, revision=taken.revision) == taken:
                try:
                    self.state.put([replace(lease, expires_at="").record()])
                except ConflictError:
                    return  # taken over: it is no longer ours to give back

    def renew(self) -> list[tuple[str, str]]:
        """Extend every lease held here; returns those that were lost."""
        lost = []
        with self._lock:
            expires_at = stamp(self.state.now() + self.lease_time)
            for key, lease in list(self._leases.items()):
                try:
                    stored = self.state.put([replace(lease, expires_at=expires_at).record()])
                    self._leases[key] = replace(lease, expires_at=expires_at, revision=stored[0].revision)
                except ConflictError:
                    del self._leases[key]
                    lost.append(key)
        return lost

    # history

    def run_started(self, run_id: str, pipeline: str, caller: Caller, tables: int) -> Record:
        fields: dict[str, Value] = {
            "pipeline": pipeline,
            "status": Status.RUNNING.value,
            "trigger_name": caller.trigger,
            "user_name": caller.user,
            "host": caller.host,
            "job_id": caller.job_id,
            "started_at": self.now(),
            "ended_at": "",
            "error": "",
            "remedy": "",
            "tables": tables,
            "milliseconds": 0,
            **dict.fromkeys(COUNTS, 0),
        }
        return self.state.put([Record("run", (run_id,), fields)])[0]

    def run_ended(
        self, record: Record, status: Status, error: str, connection: object = None, remedy: str = ""
    ) -> Record:
        """Close a run with the sums of its tables. Its own word is the last, whoever took it for dead meanwhile.

        `connection`: where a caller's transaction is open that decides over it.
        """
        at = self.state.now()
        parts = self.state.read("table_run", record.key)
        if connection is not None and isinstance(self.state, JoinedState):
            parts = self.state.read_in(connection, parts)
        parts = [part for part in parts if part.key[2] != EXTRACT] or parts  # a staged row is not counted twice
        sums: dict[str, Value] = {name: sum(int(part.fields[name] or 0) for part in parts) for name in COUNTS}
        started_at = datetime.fromisoformat(str(record.fields["started_at"]))
        sums["milliseconds"] = int((at - started_at).total_seconds() * 1000)
        said = {"status": status.value, "ended_at": stamp(at), "error": error, "remedy": remedy}
        fields = {**record.fields, **sums, **said}
        revision = max((run.revision for run in self.state.read("run", record.key)), default=0)
        ended = [replace(record, fields=fields, revision=revision)]
        if connection is not None and isinstance(self.state, JoinedState):
            self.state.put_in(connection, ended)
        else:
            self.state.put(ended)
        return ended[0]

    def close_abandoned(self, run_ids: Iterable[str]) -> list[Record]:
        """Runs that positions name and that are still marked RUNNING died without a word: say so. What was closed.

        Where a run still holds a lease it is alive: one of its tables failed, and others go on.
        """
        closed: list[Record] = []
        for run_id in sorted(set(run_ids)):
            for run in self.state.read("run", [run_id]):
                leases, now = self.leases(str(run.fields["pipeline"])), self.state.now()
                alive = {table for table, lease in leases.items() if lease.run_id == run_id and lease.held(now)}
                for part in self.state.read("table_run", [run_id]):
                    if part.fields["status"] in (Status.RUNNING, Status.PLANNED) and part.key[1] not in alive:
                        closed += self._close(part, now)
                if run.fields["status"] == Status.RUNNING and not alive:
                    closed.append(self.run_ended(run, Status.FAILED, _ABANDONED))
        return closed

    def silent(self, pipeline: str) -> list[str]:
        """Runs marked RUNNING that began longer ago than a lease lasts: whether they are alive, their leases say."""
        before = stamp(self.state.now() - self.lease_time)
        running = self.state.read("run", where={"pipeline": pipeline, "status": Status.RUNNING.value}, newest=20)
        return [run.key[0] for run in running if str(run.fields["started_at"]) < before]

    def _close(self, part: Record, now: datetime) -> list[Record]:
        fields = {**part.fields, "status": Status.FAILED.value, "error": _ABANDONED, "ended_at": stamp(now)}
        try:
            return list(self.state.put([replace(part, fields=fields)]))
        except ConflictError:
            return []  # somebody closed it first, or it is alive after all

    def changed(self, before: Position, after: Position, action: str, who: str, why: str) -> Record:
        """A history record of a watermark moved by a person."""
        at = self.state.now()
        fields: dict[str, Value] = {
            "pipeline": after.pipeline,
            "table_name": after.table,
            "stage": after.stage,
            "action": action,
            "old": before.watermark.text if before.watermark else None,
            "new": after.watermark.text if after.watermark else None,
            "who": who,
            "why": why,
            "changed_at": stamp(at),
            "epoch": after.epoch,
        }
        return Record("change", (new_id(at),), fields)

    def prune(self, keep: timedelta) -> int:
        """Drop history older than `keep`. Run ids sort by time, so the cut is a prefix of one."""
        before = f"{self.state.now() - keep:%Y%m%d-%H%M%S}"
        return sum(self.state.prune(kind, before) for kind in ("run", "table_run", "change"))


_ABANDONED = "the process ended without finishing (killed?)"

"""Changes of positions by a person: shown first, then written as shown. Owns the write, not the decision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from strandline.core.batch import NO_MEMORY
from strandline.core.books import Caller, Lease
from strandline.core.codec import position_record, record_position
from strandline.core.errors import ConflictError, LeaseError
from strandline.core.position import Position
from strandline.core.protocols import Record
from strandline.core.watermark import Watermark
from strandline.operations.resting import configured
from strandline.project import Project


@dataclass(frozen=True)
class Change:
    """A position as it is and as it would be. Nothing is written until `apply`."""

    action: str  # "set", "reset", "accept", "import", "rename", "forget" or "replan"
    before: Position
    after: Position | None  # None: forgotten
    lease: Lease  # as it was seen, held by nobody
    effect: str = ""  # "re-read" or "skipped": what becomes of the rows between old and new
    rows: int | None = None  # how many those are: 0 is exact, else an estimate; None: unknown
    notes: tuple[str, ...] = ()  # what else a person should know before saying yes
    fence: bool = False  # the target must shut out batches of earlier epochs: one may still be on its way
    claims: tuple[str, ...] = ()  # stages whose target is taken over with the rows that another hand brought

    @property
    def old(self) -> Watermark | None:
        return self.before.watermark

    @property
    def new(self) -> Watermark | None:
        return self.after.watermark if self.after else None

    @property
    def where(self) -> str:
        return f"{self.before.pipeline}.{self.before.table}"

    @property
    def leaves(self) -> bool:
        """Whether the stored position goes away: it is forgotten, or goes on under another name."""
        return self.after is None or self.action == "rename"

    def to_json(self) -> dict[str, Any]:
        after = self.after or self.before
        return {
            "pipeline": after.pipeline,
            "table": after.table,
            "stage": after.stage,
            "action": self.action,
            "old": self.old.text if self.old else None,
            "new": self.new.text if self.new else None,
            "effect": self.effect or None,
            "rows": self.rows,
            "epoch": after.epoch,
            "notes": list(self.notes),
        }


def apply(project: Project, changes: Sequence[Change], *, why: str, who: str = "") -> list[Position]:
    """Write the changes as they were shown, with their history, all in one write; returns the positions as stored.

    Every lease is taken and given back in that write: a run that planned before it cannot start after it. LeaseError
    if anything moved since the changes were made; nothing is written then. The lease stands before its position: a
    store that is not atomic stops at the first conflict, and then the position is untouched too. Targets are claimed
    last: without the position that speaks of their rows they stay somebody else's.
    """
    books = project.books
    who = who or _who()
    leases = {_table(change): change.lease for change in changes}  # one for all stages of a table
    for change in changes:
        if change.fence:
            leases[_table(change)] = _fenced(project, replace(change, lease=leases[_table(change)]))
    records: list[Record] = [replace(books.take(lease, ""), expires_at="").record() for lease in leases.values()]
    for change in changes:
        after = change.after or replace(change.before, watermark=None)
        if change.after is not None:
            records.append(position_record(replace(after, updated_at=books.now())))
        records.append(books.changed(change.before, after, change.action, who, why))
    try:
        stored = books.state.put(records)
        taken = {record.key: record for record in stored if record.kind == "lease"}
        for change in changes:
            if change.leaves:
                books.state.delete([position_record(change.before), taken[_table(change)]])
    except ConflictError as error:
        raise _moved(changes[0]) from error
    for change in changes:
        _claim(project, change)
    return [record_position(record) for record in stored if record.kind == "position"]


def _table(change: Change) -> tuple[str, str]:
    return change.before.pipeline, change.before.table


def _fenced(project: Project, change: Change) -> Lease:
    """The lease, taken by us, with the target closed to whatever was on its way.

    The lease comes first: a run that starts now waits for us, instead of finding its batch shut out.
    """
    books, after = project.books, change.after
    assert after is not None
    try:
        (taken,) = books.state.put([books.take(change.lease, "").record()])
    except ConflictError as error:
        raise _moved(change) from error
    lease = replace(change.lease, token=change.lease.token + 1, revision=taken.revision)
    with project.opened(after.pipeline, after.stage) as opened:
        (table,) = (part.table for part in opened.tables([after.table]))
        found = opened.sink.fence(table, after.epoch)
    held = change.before.batch
    if found is NO_MEMORY:
        return lease
    if (found is None) != (held is None) or (found and held and not found.agrees(held)):
        books.state.put([replace(lease, expires_at="").record()])
        raise LeaseError(
            f"the target took in {found.batch if found else 'nothing'} since it was shown",
            where=change.where,
            remedy="Give the command again: it shows what is there now.",
        )
    return lease


def _claim(project: Project, change: Change) -> None:
    from strandline.sinks.sql import SqlSink

    for stage in change.claims:
        with project.opened(change.before.pipeline, stage) as opened:
            assert isinstance(opened.sink, SqlSink)
            opened.sink.claim(configured(opened, change.before.table))


def _moved(change: Change) -> LeaseError:
    return LeaseError(
        "a run or another person moved it since it was shown",
        where=change.where,
        remedy="Give the command again: it shows what is there now.",
    )


def _who() -> str:
    caller = Caller.here("cli")
    return f"{caller.user}@{caller.host}"

"""A table at rest: nobody is at work on it, and what its last run left undecided is settled with the target."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from strandline.core.books import Books, Lease
from strandline.core.codec import record_position
from strandline.core.errors import ChangedError, LeaseError, StateError, StrandlineError
from strandline.core.plan import check_unchanged
from strandline.core.position import Horizon, Position
from strandline.core.reconcile import settle
from strandline.core.table import SYNC, Table
from strandline.core.watermark import Kind
from strandline.core.window import Window
from strandline.pipeline import Pipeline, one_stage
from strandline.project import Project

_POLL_SECONDS = 0.5


@dataclass
class Resting:
    """`table` is what the config says of it; `resolved` asks the source."""

    opened: Pipeline
    table: Table
    lease: Lease
    position: Position
    notes: list[str] = field(default_factory=list)
    dropped: bool = False  # a batch was intended and is given up: whoever is still at work on it must be shut out

    @property
    def where(self) -> str:
        return self.table.where_text

    def resolved(self) -> Table:
        """The table as the source has it; raises what keeps it from being read."""
        found = self.opened.tables([self.table.name])[0]
        if found.error:
            raise found.error
        return found.table

    def horizon(self, table: Table) -> Horizon:
        found = self.opened.source.horizons([table])[table.name]
        if isinstance(found, StrandlineError):
            raise found.at(self.where)
        return found

    def rows(self, table: Table, window: Window) -> int | None:
        """Rows in a window; why they cannot be counted goes to the notes."""
        found = self.opened.source.pending({table.name: (table, window)})[table.name]
        if isinstance(found, StrandlineError):
            self.notes.append(f"the rows between cannot be counted: {found.message}")
            return None
        return found

    def note_differences(self, table: Table) -> None:
        """Note what the position would measure from now on, where that has changed."""
        try:
            check_unchanged(table, self.position, self.opened.measures(table))
        except ChangedError as error:
            self.notes.append(f"this accepts that {error.message}")


@contextmanager
def at_rest(
    project: Project, pipeline: str, table: str, stage: str, *, wait: bool, settling: bool = True
) -> Iterator[Resting]:
    """LeaseError if a run is at work; with `wait`, wait for its end. Not `settling`: the position as it is stored."""
    books = project.books
    with project.opened(pipeline, stage) as opened:
        found = configured(opened, table)
        try:
            lease = free_lease(books, pipeline, table, wait)
            position, unreadable = stored(books, pipeline, table, opened.stage)
            resting = Resting(opened, found, lease, position, [unreadable] if unreadable else [])
            if settling and unreadable:
                _take_batch(resting)
            elif settling:
                _settle(resting)
            yield resting
        except StrandlineError as error:
            raise error.at(found.where_text) from error.__cause__


def _settle(resting: Resting) -> None:
    before = resting.position
    resting.position = settled(resting.opened, resting.table, before)
    unfinished = resting.position.plan is not None or resting.position.batch == before.batch
    resting.dropped = before.intent is not None and unfinished  # more of it may be on its way
    if resting.position.batch != before.batch:
        resting.notes.append(f"the target holds {resting.position.batch} of run {before.run_id}: it counts as done")


def _take_batch(resting: Resting) -> None:
    """A position that cannot be read takes the target's last batch: without it, it would disown the target."""
    receipt = resting.opened.sink.applied(resting.table)
    if receipt and receipt.exact:
        resting.position = replace(resting.position, batch=receipt.batch, epoch=receipt.batch.epoch)


def settled(opened: Pipeline, table: Table, position: Position) -> Position:
    return settle(opened.sink.applied(table), position) if position.intent else position


def configured(opened: Pipeline, name: str) -> Table:
    """The table by the config's word alone; only one that a glob stands for needs the source."""
    for spec in opened.spec.tables:
        if spec.name == name:
            return opened.unresolved(spec)
    return opened.tables([name])[0].table


def first_stage(project: Project, pipeline: str, table: str) -> str:
    """The stage that reads the source; of a pipeline that is no longer in the config, the first that is stored."""
    if spec := project.config.pipelines.get(pipeline):
        return one_stage(spec, "")
    known = project.books.state.read("position", [pipeline, table])
    return min((record.key[2] for record in known), default=SYNC)


def stored(books: Books, pipeline: str, table: str, stage: str) -> tuple[Position, str]:
    """The position, new if there is none; for one that cannot be read an empty one in its place, and why."""
    for record in books.state.read("position", [pipeline, table, stage]):
        try:
            return record_position(record), ""
        except StateError as error:
            return Position(pipeline, table, stage, revision=record.revision), f"{error.message}; this replaces it"
    return Position(pipeline, table, stage), ""


def free_lease(books: Books, pipeline: str, table: str, wait: bool) -> Lease:
    """The table's lease, held by nobody. LeaseError if a run is at work, unless told to wait for its end."""
    while True:
        lease = books.leases(pipeline).get(table) or Lease(pipeline, table)
        if not lease.held(books.state.now()):
            return lease
        if not wait:
            raise LeaseError(
                f"a run is at work on it: {lease.holder}, run {lease.run_id}, since {lease.acquired_at}",
                where=f"{pipeline}.{table}",
                remedy="Wait for its end, or let the command wait: --wait",
            )
        time.sleep(_POLL_SECONDS)


def kind_of(table: Table, horizon: Horizon) -> Kind:
    """Of its watermarks. What is staged, and a Delta table, is counted in versions, whatever column orders its rows."""
    if horizon.high is not None:
        return horizon.high.kind
    return table.cursor.kind if table.cursor else Kind.VERSION

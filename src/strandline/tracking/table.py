"""One table of a tracked run, as the caller's code sees it: its window, its rows, and the caller's word on it."""

from __future__ import annotations

import time
from enum import Enum, auto
from typing import TYPE_CHECKING

from strandline.core.batch import Applied, Batch
from strandline.core.errors import ConfigError, StateError, StrandlineError
from strandline.core.plan import Planned
from strandline.core.position import Status, TablePlan
from strandline.core.protocols import Changes
from strandline.core.table import Mode
from strandline.core.watermark import Watermark
from strandline.core.window import Window

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from strandline.core.books import Step
    from strandline.core.run import Outcome
    from strandline.tracking.run import TrackedRun


def in_own_words(error: StrandlineError, table: str, mark: Watermark | None) -> None:
    """What to do about a table that stopped, for a job that no command of the command line runs."""
    anew = f'tracker.move("{table}", None)'
    on = f'tracker.move("{table}", "{mark}")' if mark else anew
    remedy = error.remedy.replace(f"strandline sync --full -t {table}", anew)
    error.remedy = remedy.replace(f"strandline watermark set -t {table} --accept", on)


class Stand(Enum):
    """How far the caller is with a table."""

    WAITING = auto()
    AT_HAND = auto()
    PASSED = auto()  # iterated past
    SAID = auto()  # done, in an atomic run: it is committed with the others
    HANDED = auto()  # written in the caller's transaction, which decides
    SETTLED = auto()


class TrackedTable:
    """One table of a run: its window, its rows, and the caller's word on it."""

    def __init__(self, run: TrackedRun, planned: Planned, step: Step) -> None:
        self.name = planned.table.name
        self.table = planned.table
        self.plan: TablePlan = planned.plan
        self.stand = Stand.WAITING
        self.applied = Applied()
        self.step = step
        self.handed: tuple[object, Step] | None = None
        self.outcome: Outcome | None = None
        self._run = run
        self._changes: Changes | None = None
        self._started = time.monotonic()

    def __repr__(self) -> str:
        return f"<{self.table.where_text} {self.window}>"

    @property
    def window(self) -> Window:
        """`[low, high)`: what this run is to read. Where `lookback` asks for more, `read` gives it too."""
        assert self.plan.window is not None
        return self.plan.window

    @property
    def whole(self) -> bool:
        """`read` gives the whole table: a first load, one that is read anew, or a snapshot; what the target has is
        replaced."""
        return self.window.low is None or self.table.mode is Mode.SNAPSHOT

    @property
    def batch(self) -> Batch:
        """The number under which this window is applied; the same one as long as the plan is not done."""
        batch = self.step[0].intent
        assert batch is not None
        return batch

    @property
    def changes(self) -> Changes:
        """The rows in every form that the source can offer; `changes.operation` names the column that says "upsert" or
        "delete", where there is one."""
        self.reach()
        if self._changes is None:
            try:
                self._changes = self._run.source.changes(self.table, self.plan.slices[0])
            except StrandlineError as error:
                in_own_words(error, self.name, self.step[0].watermark)
                raise
        return self._changes

    def read(self) -> DataFrame:
        """Exactly the planned window, as a lazy DataFrame on the caller's own session."""
        return self.changes.frame(self._run.spark())

    def done(self, rows: int | None = None, *, inserted: int = 0, updated: int = 0, deleted: int = 0) -> None:
        """The caller's writes are committed: the watermark moves now, or in an atomic run with all the others.

        LeaseError if another run has taken the table over: nothing moves.
        """
        self._count(rows, inserted, updated, deleted)
        if self._run.atomic:
            self.stand = Stand.SAID
        else:
            self._run.commit([self])

    def skip(self, reason: str) -> None:
        """Leave it as it is: the watermark stays, and the next run gets the same window."""
        self.unsettled()
        self._run.close([self], Status.SKIPPED, reason)

    def fail(self, error: BaseException | str) -> None:
        """This table failed, the others go on: the watermark stays, and the next run gets the same window."""
        self.unsettled()
        caught = error if isinstance(error, BaseException) else StrandlineError(error)
        self._run.close([self], Status.FAILED, "", caught)

    def commit_in(self, connection: object, rows: int | None = None) -> None:
        """Move the watermark in the transaction that the caller has open on this connection to the state's database."""
        self._count(rows, 0, 0, 0)
        self._run.commit_in(connection, [self])

    def reach(self) -> None:
        if self.stand is Stand.WAITING:
            self.stand = Stand.AT_HAND
            self._started = time.monotonic()

    def pass_by(self) -> None:
        if self.stand is Stand.AT_HAND:
            self.stand = Stand.PASSED

    def translated(self, error: BaseException) -> BaseException:
        """What an error means, if the source caused it."""
        known = self._changes.translate(error) if self._changes and isinstance(error, Exception) else None
        if known is not None:
            in_own_words(known, self.name, self.step[0].watermark)
        return error if known is None else known

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    def _count(self, rows: int | None, inserted: int, updated: int, deleted: int) -> None:
        self.unsettled()
        read = inserted + updated + deleted if rows is None else rows
        if min(read, inserted, updated, deleted) < 0:
            raise ConfigError("a count of rows cannot be negative", where=self.table.where_text)
        self.applied = Applied(read, inserted, updated, deleted)

    def unsettled(self) -> None:
        """StateError if the caller, or a transaction of theirs, has had the last word on it."""
        self.reach()
        if self.stand is Stand.HANDED and self._run.decided(self) is None:
            raise StateError(
                "it is committed in a transaction of yours that is still open",
                where=self.table.where_text,
                remedy="Commit there: then it is done. Or roll back there: then the table is open again.",
            )
        if self.stand is Stand.SETTLED:
            assert self.outcome is not None
            raise StateError(
                f"the table is {self.outcome.status} already in this run",
                where=self.table.where_text,
                remedy="Say once how a table ended: done, skip or fail.",
            )

"""Positions: where a table stands in one stage, and the plan it has open. Pure values; `books` stores them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum

from strandline.core.batch import Applied, Batch
from strandline.core.watermark import Watermark
from strandline.core.window import Slice, Window

TRACKED = "tracker"
"""What a position measures as its target where the writes are the caller's own: it is no watermark of a copy."""


class Status(StrEnum):
    PLANNED = "PLANNED"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    SKIPPED = "SKIPPED"


class Reason(StrEnum):
    FIRST_LOAD = "first load"
    INCREMENTAL = "incremental"
    SNAPSHOT = "snapshot"
    BACKFILL = "backfill"
    REPAIR = "repair"
    RESUMED = "resumed"
    NOTHING_NEW = "nothing new"
    HELD = "held"
    BUSY = "busy"
    STOPPED = "stopped"


@dataclass(frozen=True)
class Holder:
    """What keeps the horizon where it is."""

    pid: str
    user: str = ""
    seconds: float | None = None
    statement: str = ""

    def __str__(self) -> str:
        who = f"transaction {self.pid}" + (f" ({self.user})" if self.user else "")
        age = "" if self.seconds is None else f" open for {self.seconds:.0f} s"
        return f"{who}{age}" + (f": {self.statement}" if self.statement else "")


@dataclass(frozen=True)
class Horizon:
    """How far it is safe to read one table, and what holds it there."""

    high: Watermark | None  # None: nothing can be read yet (an empty table with an integer cursor, or held)
    observed: str = ""  # the source's clock when the barrier was taken (T0)
    proven: bool = True  # False: no barrier stands behind `high`; lookback makes up for it
    held_by: Holder | None = None
    note: str = ""  # said in `plan`: how the horizon came about where it is not a barrier
    reach: Watermark | None = None  # where `high` would be if nothing held it
    next_id: Watermark | None = None  # for integer cursors: what the source will give out next, where it says


@dataclass(frozen=True)
class Stall:
    """Since when the horizon has been held, by the source's clock, and by whom."""

    since: str
    holder: Holder


@dataclass(frozen=True)
class Gap:
    """A range below the watermark where rows may still appear; it is looked at again until that is over."""

    low: Watermark | None
    why: str
    back: bool = False  # the source went back: a row there may be newer than one with a higher cursor value


@dataclass(frozen=True)
class Overlap:
    """What the range that the next run looks at again held when this one was planned."""

    window: Window
    fingerprint: str


def seconds_between(earlier: str, later: str) -> float:
    """Both as a source or a store stamped them; without an offset they are in UTC."""
    first, second = (datetime.fromisoformat(text) for text in (earlier, later))
    first, second = (at if at.tzinfo else at.replace(tzinfo=UTC) for at in (first, second))
    return (second - first).total_seconds()


@dataclass(frozen=True)
class TablePlan:
    """What a run will do with one table in one stage: data to print, test, approve, store and carry out."""

    table: str
    stage: str
    window: Window | None
    slices: tuple[Slice, ...]
    reason: Reason
    estimated_rows: int | None = None
    run_id: str = ""  # the run that wrote it
    done: int = 0  # slices already committed
    first: bool = False  # the target holds nothing of this table yet
    replace: bool = False  # one batch that replaces the whole target
    observed: str = ""
    observed_at: str = ""  # the state store's clock at that moment
    proven: bool = True
    held_by: Holder | None = None
    stall: Stall | None = None
    gap: Gap | None = None  # what stays open once the plan is done
    overlap: Overlap | None = None
    note: str = ""
    columns: str = ""  # how the source's columns changed since it was last read
    error: str = ""

    @property
    def remaining(self) -> tuple[Slice, ...]:
        return self.slices[self.done :]

    @property
    def work(self) -> bool:
        return bool(self.remaining)


@dataclass(frozen=True)
class Position:
    """Per pipeline, table and stage. `revision` 0 has never been stored."""

    pipeline: str
    table: str
    stage: str
    watermark: Watermark | None = None
    last_value: Watermark | None = None
    batch: Batch | None = None  # the last committed one
    intent: Batch | None = None  # written before the sink is touched
    epoch: int = 1
    plan: TablePlan | None = None
    status: Status = Status.COMPLETED
    totals: Applied = field(default_factory=Applied)
    batches: int = 0
    measures: dict[str, str] = field(default_factory=dict, hash=False)
    schema: str = ""
    observed: str = ""  # the source's clock at the newest barrier that was passed, and
    observed_at: str = ""  # the state store's at that moment
    stall: Stall | None = None
    gap: Gap | None = None
    overlap: Overlap | None = None
    due: str = ""  # when a whole run will have been missed, where the pipeline says how often it runs
    patience: float = 0.0  # seconds that a plan may stay open before it is stuck, where its job says so
    strategy: str = ""  # how much of it the last run did at once
    error: str = ""
    remedy: str = ""  # of that error
    run_id: str = ""
    updated_at: str = ""
    revision: int = 0

    def planned(self, plan: TablePlan, measures: dict[str, str], schema: str, run_id: str) -> Position:
        """`run_id`: who carries it out now; the plan names who wrote it. A range that the plan passes over is open
        from now on: its first slice moves the watermark into it, and the rest of the plan may be given up. A plan that
        is carried out again keeps the columns it was made for: what changed since is told with the next."""
        return replace(
            self,
            plan=plan,
            status=Status.PLANNED,
            measures=measures,
            schema=self.schema if self.plan and self.schema else schema,
            stall=plan.stall,
            gap=self.gap or plan.gap,
            run_id=run_id,
            error="",
        )

    def next(self, slice_: Slice, store: str, attempt: str) -> Batch:
        """The batch a slice will be applied as. A retried slice keeps its number."""
        number = 1 if self.batch is None else self.batch.number + 1
        watermark = self.watermark
        if slice_.last and (watermark is None or watermark < slice_.window.high):
            watermark = slice_.window.high
        return Batch(store, self.epoch, number, slice_.window.low, slice_.window.high, watermark, attempt)

    def unmoved(self, plan: TablePlan) -> TablePlan:
        """The plan, made to leave as it is what this position remembers of the source."""
        return replace(
            plan,
            observed=self.observed,
            observed_at=self.observed_at,
            stall=self.stall,
            gap=self.gap,
            overlap=self.overlap,
        )

    def intending(self, batch: Batch) -> Position:
        return replace(self, intent=batch, status=Status.RUNNING)

    def intending_next(self, store: str, attempt: str, *, told: bool = True) -> Position:
        """With the next slice on its way, if the plan has one. `told`: the state knows of every batch before it."""
        if self.plan is None or not self.plan.work:
            return self
        batch = self.next(self.plan.remaining[0], store, attempt)
        return self.intending(batch if told else replace(batch, carried=self.totals))

    def committed(self, batch: Batch, applied: Applied) -> Position:
        """The watermark moves here and nowhere else."""
        plan = self.plan and replace(self.plan, done=self.plan.done + 1)
        totals = self.totals + applied
        moved = replace(
            self,
            watermark=batch.watermark,
            batch=replace(batch, carried=None),  # it is told now
            intent=None,
            plan=plan,
            totals=totals,
            last_value=totals.last_value,
            batches=self.batches + 1,
            error="",
        )
        return moved.completed() if plan and not plan.work else moved

    def adopted(self, batches: Sequence[Batch], applied: Applied) -> Position:
        """Several at once, which did this together."""
        position = self
        for batch in batches[:-1]:
            position = position.committed(batch, Applied())
        return position.committed(batches[-1], applied)

    def completed(self) -> Position:
        done = replace(self, plan=None, intent=None, status=Status.COMPLETED, error="")
        return done._after(self.plan) if self.plan else done

    def skipped(self, plan: TablePlan, measures: Mapping[str, str]) -> Position:
        """Nothing to read: up to a proven horizon, never back, never further.

        An empty window is `initial: latest`: a baseline that the user asked for, whatever stands behind it.
        """
        up, window = self.watermark, plan.window
        if window is not None and (plan.proven or window.empty) and (up is None or up < window.high):
            up = window.high
        done = replace(self, watermark=up, measures=dict(measures), status=Status.SKIPPED, stall=plan.stall, error="")
        return done._after(plan)

    def held(self, plan: TablePlan) -> Position:
        """Nothing could be read: who is in the way is kept, and what must be looked at again."""
        return replace(self, stall=plan.stall, gap=plan.gap, status=Status.SKIPPED, error="")

    def _after(self, plan: TablePlan) -> Position:
        return replace(self, observed=plan.observed, observed_at=plan.observed_at, gap=plan.gap, overlap=plan.overlap)

    def failed(self, error: str, remedy: str = "") -> Position:
        """The plan and the intent stay: the next run carries them out as they are."""
        return replace(self, status=Status.FAILED, error=error, remedy=remedy)

    def released(self) -> Position:
        """Planned, and nobody is at work on it."""
        return replace(self, intent=None, status=Status.PLANNED, error="")

    def moved(self, watermark: Watermark | None) -> Position:
        """By a person (`set`, `reset`, `import`): a new epoch, no plan, and the target untouched.

        A range that reaches below an earlier watermark stays open; a later one leaves out on purpose what lies below.
        """
        return replace(
            self,
            watermark=watermark,
            epoch=self.epoch + 1,
            plan=None,
            intent=None,
            status=Status.COMPLETED,
            last_value=None,
            totals=replace(self.totals, last_value=None),
            measures={},
            gap=self._still_open(watermark),
            overlap=None,
            error="",
        )

    def _still_open(self, watermark: Watermark | None) -> Gap | None:
        gap, old = self.gap, self.watermark
        if gap is None or watermark is None:  # read again from the beginning, as the source has it if it went back
            return replace(gap, low=None) if gap and gap.back else None
        if old is None or watermark.kind is not old.kind or watermark > old:
            return None
        return gap if gap.back or gap.low is None or gap.low < watermark else None

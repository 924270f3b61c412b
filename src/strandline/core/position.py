"""Positions: where a table stands in one stage, and the plan it has open. Pure values; `books` stores them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from strandline.core.batch import Applied, Batch
from strandline.core.watermark import Watermark
from strandline.core.window import Slice, Window


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
        return who if self.seconds is None else f"{who} open for {self.seconds:.0f} s"


@dataclass(frozen=True)
class Horizon:
    """How far it is safe to read one table, and what holds it there."""

    high: Watermark | None  # None: nothing can be read yet (an empty table with an integer cursor, or held)
    observed: str = ""  # the source's clock when the barrier was taken (T0)
    proven: bool = True  # False: no barrier stands behind `high`; lookback makes up for it
    held_by: Holder | None = None
    note: str = ""  # said in `plan`: how the horizon came about where it is not a barrier


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
    proven: bool = True
    held_by: Holder | None = None
    note: str = ""
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
    observed: str = ""
    error: str = ""
    run_id: str = ""
    updated_at: str = ""
    revision: int = 0

    def planned(self, plan: TablePlan, measures: dict[str, str], schema: str, run_id: str) -> Position:
        """`run_id`: who carries it out now; the plan names who wrote it."""
        return replace(
            self, plan=plan, status=Status.PLANNED, measures=measures, schema=schema, run_id=run_id, error=""
        )

    def next(self, slice_: Slice, store: str, attempt: str) -> Batch:
        """The batch a slice will be applied as. A retried slice keeps its number."""
        number = 1 if self.batch is None else self.batch.number + 1
        watermark = slice_.window.high if slice_.last else self.watermark
        return Batch(store, self.epoch, number, slice_.window.low, slice_.window.high, watermark, attempt)

    def intending(self, batch: Batch) -> Position:
        return replace(self, intent=batch, status=Status.RUNNING)

    def committed(self, batch: Batch, applied: Applied) -> Position:
        """The watermark moves here and nowhere else."""
        plan = self.plan and replace(self.plan, done=self.plan.done + 1)
        totals = self.totals + applied
        moved = replace(
            self,
            watermark=batch.watermark,
            batch=batch,
            intent=None,
            plan=plan,
            totals=totals,
            last_value=totals.last_value,
            batches=self.batches + 1,
            error="",
        )
        return moved.completed() if plan and not plan.work else moved

    def completed(self) -> Position:
        observed = self.plan.observed if self.plan else self.observed
        return replace(self, plan=None, intent=None, status=Status.COMPLETED, observed=observed, error="")

    def skipped(self, plan: TablePlan, measures: Mapping[str, str]) -> Position:
        """Nothing to read: up to a proven horizon, never back, never further.

        An empty window is `initial: latest`: a baseline that the user asked for, whatever stands behind it.
        """
        up, window = self.watermark, plan.window
        if window is not None and (plan.proven or window.empty) and (up is None or up < window.high):
            up = window.high
        observed = max(plan.observed, self.observed)  # a clock that went back leaves its trace
        return replace(self, watermark=up, measures=dict(measures), status=Status.SKIPPED, observed=observed, error="")

    def failed(self, error: str) -> Position:
        """The plan and the intent stay: the next run carries them out as they are."""
        return replace(self, status=Status.FAILED, error=error)

    def moved(self, watermark: Watermark | None) -> Position:
        """By a person (`set`, `reset`, `import`): a new epoch, no plan, and the target untouched."""
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
            error="",
        )

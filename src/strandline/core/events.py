"""The one event stream. Progress bars, logs, metrics, alerts, the run history and the crash tests are listeners.

Events are small values without row keys and without secrets. They are emitted in the order in which things became true.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from strandline.core.batch import Applied, Batch
from strandline.core.compare import Differences
from strandline.core.position import Holder, Status, TablePlan
from strandline.core.window import Slice


@dataclass(frozen=True)
class Event:
    run_id: str
    pipeline: str


@dataclass(frozen=True)
class RunStarted(Event):
    tables: int


@dataclass(frozen=True)
class TableEvent(Event):
    table: str
    stage: str


@dataclass(frozen=True)
class Planned(TableEvent):
    """The plan is stored; nothing has been read."""

    plan: TablePlan


@dataclass(frozen=True)
class Skipped(TableEvent):
    plan: TablePlan


@dataclass(frozen=True)
class Held(TableEvent):
    held_by: Holder


@dataclass(frozen=True)
class Intended(TableEvent):
    """An intent that stands for the batch is stored; the sink has not been touched."""

    batch: Batch
    slice: Slice
    number: int  # of the slices in the plan, from 1
    of: int


@dataclass(frozen=True)
class Adopted(TableEvent):
    """The sink already held the intended batch: an earlier attempt got that far."""

    batch: Batch


@dataclass(frozen=True)
class BatchApplied(TableEvent):
    """The sink holds the batch; the watermark has not moved."""

    batch: Batch
    applied: Applied
    seconds: float


@dataclass(frozen=True)
class Committed(TableEvent):
    """The batch is in the stored position: the watermark moved."""

    batch: Batch
    applied: Applied
    number: int
    of: int


@dataclass(frozen=True)
class Retrying(TableEvent):
    error: str
    wait_seconds: float


@dataclass(frozen=True)
class Warned(TableEvent):
    message: str


@dataclass(frozen=True)
class Maintained(TableEvent):
    """The target was compacted and cleaned up."""


@dataclass(frozen=True)
class Comparing(TableEvent):
    """A verification is at this step."""

    step: str
    done: int
    of: int


@dataclass(frozen=True)
class Compared(TableEvent):
    """A verification ended."""

    status: str
    rows: int
    differences: Differences
    seconds: float
    error: str = ""


@dataclass(frozen=True)
class TableFinished(TableEvent):
    status: Status
    applied: Applied
    batches: int
    seconds: float
    error: str = ""


@dataclass(frozen=True)
class RunFinished(Event):
    status: Status
    seconds: float


Listener = Callable[[Event], None]

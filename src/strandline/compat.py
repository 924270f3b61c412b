"""The words that hand-made watermark tables use, as thin functions over the Tracker, to move a job over line by line.

Everything is in the same state: `strandline status`, `runs` and `watermark` show it, and a job may call the Tracker
for one table and these for the next.

| their word | here |
| --- | --- |
| watermark table, control table | the state's positions |
| status `PLANNED` | a position with a plan that nobody is at work on |
| status `RUNNING` | a plan under a lease |
| status `COMPLETED`, `SUCCESS` | the plan is done and the watermark has moved |
| status `FAILED` | the plan is kept, with the error; the next run carries it out as it was written |
| status `SKIPPED` | the plan is kept, the watermark stays; the history says why |
| status `READY` | a position with no open plan |
| `start_version`, `end_version` | both inclusive: the window `[low, high)` is `low` to `high − 1`; no low is 0 |
| `last_processed_version` | `high − 1` of the last plan that is done; in a pipeline's record its time in milliseconds |
| `last_processed_ts`, `current_run_ts` | `(start, end]`, for `updated_at > start AND updated_at <= end`: a µs below |
| `run_id` | of a plan: the run that wrote it. Every attempt at it has one of its own in the history |
| `job_id` | of a run, as it is in the history |
| history table | `strandline runs` (kinds `run` and `table_run` of the state) |

What differs on purpose: the end of a window is the last value that is proven to be complete, not the clock; a plan that
a run is at work on is not handed out to a second one; of two jobs that carry out one plan, the first to mark it moves
the watermark and the other is told so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from strandline.core.errors import ConfigError, LeaseError, SourceError, StateError, StrandlineError
from strandline.core.position import Position, Reason, Status
from strandline.core.watermark import Kind, Watermark
from strandline.sources.zones import zone_info
from strandline.tracking.names import Names, names
from strandline.tracking.run import TrackedRun
from strandline.tracking.together import ALL

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from strandline.tracking.tracker import Tracker

FINAL = ("SUCCESS", "FAILED", "SKIPPED")
LEASE_TIME = timedelta(hours=1)
"""A started run that is not finalized within this time can be taken over: nothing renews its lease."""


@dataclass(frozen=True)
class VersionRange:
    """What is planned for one table: versions `start_version` to `end_version`, both included."""

    table_name: str
    start_version: int
    end_version: int
    status: str
    run_id: str


@dataclass(frozen=True)
class Checkpoint:
    table_name: str
    last_processed_version: int | None  # None: never processed


Plan = str | Iterable[VersionRange]
"""A plan by its run_id, or by its ranges as they were returned."""


# Plans over the versions of many tables


def get_latest_versions(tracker: Tracker, tables: Names = (), *, spark: SparkSession | None = None) -> dict[str, int]:
    """The latest version of each table that can be read now."""
    return {
        name: int(high.text) - 1
        for name, high in tracker.horizons(tables, spark=spark).items()
        if high is not None and _counts(name, high)
    }


def prepare_processing_plan_for_schemas(
    tracker: Tracker, schemas: Names, *, spark: SparkSession | None = None
) -> list[VersionRange]:
    """Build the plan for every table of these schemas, or return the unfinished one as it was written. Nothing to do:
    an empty list, which may be marked as completed like any other.

    LeaseError while a run is at work on one of them.
    """
    plan = tracker.plan(schemas=schemas, spark=spark)
    for error in plan.errors:
        raise error
    for table in plan.tables:
        if table.reason is Reason.BUSY:
            where = f"{tracker.pipeline}.{table.table}"
            raise LeaseError(f"another run is at work: {table.note}", where=where, remedy="Wait for it.")
    tables = [table.table for table in plan.tables]
    found = load_version_ranges(tracker, tables)
    others = {name: run_id for name, run_id in (tracker.prepared or {}).items() if name not in tables}
    tracker.prepared = {**others, **{part.table_name: part.run_id for part in found}}
    return found


def load_checkpoints(tracker: Tracker, table_names: Names = ()) -> list[Checkpoint]:
    """What is done, table by table. A table that was never seen has no checkpoint."""
    found = tracker.positions(table_names)
    return [
        Checkpoint(name, int(mark.text) - 1 if mark is not None and _counts(name, mark) else None)
        for name, mark in ((name, position.watermark) for name, position in found.items() if name != ALL)
    ]


def load_version_ranges(tracker: Tracker, tables: Names = ()) -> list[VersionRange]:
    """Every open plan: planned, running or failed."""
    return [_range(position) for position in _open(tracker, tables)]


def fetch_current_processing_plan(tracker: Tracker, tables: Names = ()) -> list[VersionRange]:
    """Every open plan: planned, running or failed."""
    return load_version_ranges(tracker, tables)


def mark_run_completed(tracker: Tracker, plan: Plan | None = None) -> None:
    """All tables of a plan are done: their watermarks move, in one write where the store can. Without `plan`: those
    that this tracker has prepared, or every open one if it prepared none.

    StateError if somebody else has finished one of them: nothing moves.
    """
    if chosen := _chosen(tracker, plan):
        with tracker.resume(chosen, atomic=tracker.books.state.atomic) as run:
            for table in run:
                table.done()
        _marked(tracker, chosen)


def mark_completed(tracker: Tracker, table: str, plan: Plan | None = None) -> None:
    """One table is done; the others of its plan stay open."""
    chosen = _chosen(tracker, plan, table)
    with tracker.resume(chosen) as run:
        for one in run:
            one.done()
    _marked(tracker, chosen)


def mark_run_failed(tracker: Tracker, error: BaseException | str, plan: Plan | None = None) -> None:
    """The plan failed with this error. It is kept, and no watermark moves."""
    if chosen := _chosen(tracker, plan):
        with tracker.resume(chosen) as run:
            for table in run:
                table.fail(error)


def retry(tracker: Tracker, plan: Plan | None = None) -> list[VersionRange]:
    """The failed plan is planned again, with the very same ranges."""
    chosen = _chosen(tracker, plan)
    tracker.books.write([position.released() for position in chosen if position.status is Status.FAILED])
    tables = {position.table for position in chosen}
    return [part for part in load_version_ranges(tracker) if part.table_name in tables]


def _marked(tracker: Tracker, done: Sequence[Position]) -> None:
    for position in done:
        (tracker.prepared or {}).pop(position.table, None)


def _open(tracker: Tracker, tables: Names) -> list[Position]:
    wanted = names(tables)
    found = [position for name, position in tracker.positions(wanted).items() if name != ALL and position.plan]
    return sorted(found, key=lambda position: position.table)


def _chosen(tracker: Tracker, plan: Plan | None, only: str = "") -> list[Position]:
    """The open plans that are meant; none where nothing was to be done. StateError if one of them is not open any more:
    what is open instead was never carried out."""
    meant = _meant(tracker, plan, only)
    if meant is not None and not meant and not only:
        return []
    found = [position for position in _open(tracker, ()) if not only or position.table == only]
    if isinstance(plan, str):
        found = [position for position in found if position.plan and position.plan.run_id == plan]
    if meant is not None:
        found = [one for one in found if one.plan and (one.table, one.plan.run_id) in meant]
        missing = sorted(name for name, _ in meant - {(one.table, one.plan.run_id) for one in found if one.plan})
        if missing:
            raise _finished(tracker, missing[0])
    if not found:
        raise _finished(tracker, only)
    return found


def _meant(tracker: Tracker, plan: Plan | None, only: str) -> set[tuple[str, str]] | None:
    """Tables and the runs that wrote their plans; None: whatever is open."""
    if isinstance(plan, str):
        return None
    if plan is not None:
        pairs = [(part.table_name, part.run_id) for part in plan]
    elif tracker.prepared is not None:
        pairs = list(tracker.prepared.items())
    else:
        return None
    return {(name, run_id) for name, run_id in pairs if not only or name == only}


def _finished(tracker: Tracker, table: str) -> StateError:
    position = tracker.positions(table).get(table) if table else None
    by = f": it is {position.status} by run {position.run_id}" if position else ""
    return StateError(
        f"there is no such plan open{by}",
        where=f"{tracker.pipeline}.{table}" if table else tracker.pipeline,
        why="Somebody else finished it, or it was never made. No watermark was moved.",
        remedy="Prepare a plan again: it goes on from what is done.",
    )


def _range(position: Position) -> VersionRange:
    plan = position.plan
    assert plan is not None and plan.window is not None
    low, high = plan.window.low, plan.window.high
    _counts(position.table, high)
    start = 0 if low is None else int(low.text)
    return VersionRange(position.table, start, int(high.text) - 1, position.status.value, plan.run_id)


def _counts(table: str, value: Watermark) -> bool:
    if value.kind not in (Kind.VERSION, Kind.INTEGER):
        raise SourceError(
            f"its cursor is a {value.kind}, which has no versions",
            where=table,
            remedy="Use start_pipeline_run and get_delta_window, or the Tracker itself.",
        )
    return True


# One window of time for a whole pipeline


@dataclass(frozen=True)
class WatermarkRecord:
    """A run of a pipeline that reads by one window of time. `status`: RUNNING, then how it was finalized."""

    pipeline_name: str
    job_id: str
    last_processed_ts: datetime | None
    current_run_ts: datetime | None
    last_processed_version: int | None  # `last_processed_ts` in milliseconds, as hand-made tables have it
    status: str
    created_at: datetime
    updated_at: datetime
    window: tuple[datetime | None, datetime] = field(repr=False)
    run: TrackedRun = field(repr=False, compare=False)


def start_pipeline_run(
    tracker: Tracker, job_id: str, *, spark: SparkSession | None = None, lease_time: timedelta = LEASE_TIME
) -> WatermarkRecord:
    """Step 1: plan the window of all the tracker's tables together, or take up the one that was not finalized with
    SUCCESS. LeaseError if a run of this pipeline is under way."""
    run = tracker.run_together(spark=spark, job_id=job_id, lease_time=lease_time).__enter__()
    position = tracker.positions().get(ALL)
    if position is None or (position.plan is None and position.watermark is None):
        run.__exit__(None, None, None)
        assert run.result is not None
        plan = run.result.tables[0].plan
        raise SourceError(f"nothing can be read yet: {plan.held_by or plan.note}", where=run.pipeline)
    at, window = tracker.books.state.now(), _window(position)
    done = None if position.watermark is None else _below(position, position.watermark)
    version = None if done is None else _millis(position, done)
    return WatermarkRecord(tracker.pipeline, job_id, done, window[1], version, "RUNNING", at, at, window, run)


def get_delta_window(pipeline: Tracker | WatermarkRecord) -> tuple[datetime | None, datetime]:
    """Step 2: `(start, end]`; start None: from the beginning. The end is the last value that is proven complete, and a
    start may reach back below the last end where a source has no barrier (`lookback`). With nothing new, or no run
    under way, it is empty: it starts where it ends."""
    if isinstance(pipeline, WatermarkRecord):
        return pipeline.window
    position = pipeline.positions().get(ALL)
    if position is None or (position.plan is None and position.watermark is None):
        raise StateError("no run has been started", where=pipeline.pipeline, remedy="Call start_pipeline_run first.")
    return _window(position)


def finalize_pipeline_run(
    record: WatermarkRecord, final_status: str = "SUCCESS", *, error: BaseException | str = "the job failed"
) -> WatermarkRecord:
    """Step 3: SUCCESS moves the watermark to the window's end; FAILED and SKIPPED keep it, and the next run gets the
    same window. LeaseError if another run has taken over: nothing moves."""
    status = str(final_status).upper()
    if status not in FINAL:
        raise ConfigError(
            f'"{final_status}" is no final status', where=record.pipeline_name, remedy=f"It is {', '.join(FINAL)}."
        )
    if record.run.result is not None:
        raise StateError("the run is finalized already", where=record.pipeline_name, remedy="Start another one.")
    caught = error if isinstance(error, BaseException) else StrandlineError(error)
    for table in record.run.tables:
        table.reach()
        if status == "SUCCESS":
            table.pass_by()
        elif status == "SKIPPED":
            table.skip("SKIPPED")
    record.run.__exit__(None, caught if status == "FAILED" else None, None)
    result = record.run.result
    if status == "SUCCESS" and result and result.failed:  # an earlier attempt at this met a store that was away
        raise StateError(result.failure, where=record.pipeline_name, remedy="Nothing moved: start another run.")
    return replace(record, status=status, updated_at=datetime.now(UTC))


def _window(position: Position) -> tuple[datetime | None, datetime]:
    """Of the open plan; without one there is nothing to read, and the window is empty."""
    if position.plan is None:
        assert position.watermark is not None
        end = _below(position, position.watermark)
        return end, end
    part = position.plan.slices[0]
    return None if part.low is None else _below(position, part.low), _below(position, part.window.high)


def _below(position: Position, value: Watermark) -> datetime:
    """The last moment below a value, in microseconds: aware, or in the writers' zone where the column has none."""
    at = datetime.fromisoformat(value.floor(6).text)
    last = at if value.floor(6) < value else at - timedelta(microseconds=1)
    return last if position.measures.get("zone") else last.replace(tzinfo=UTC)


def _millis(position: Position, at: datetime) -> int:
    zone = position.measures.get("zone")
    return int((at.replace(tzinfo=zone_info(zone)) if zone else at).timestamp() * 1000)


__all__: Sequence[str] = (
    "Checkpoint",
    "VersionRange",
    "WatermarkRecord",
    "fetch_current_processing_plan",
    "finalize_pipeline_run",
    "get_delta_window",
    "get_latest_versions",
    "load_checkpoints",
    "load_version_ranges",
    "mark_completed",
    "mark_run_completed",
    "mark_run_failed",
    "prepare_processing_plan_for_schemas",
    "retry",
    "start_pipeline_run",
)

"""The documents' own words: their bounds, read with their own filters, over Delta tables (no JVM) and in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from strandline import Tracker, compat
from strandline.core.errors import ConfigError, LeaseError, SourceError, StateError, TransientError
from strandline.core.position import Horizon
from strandline.core.protocols import Record
from strandline.core.table import SYNC, Mode, Table
from strandline.core.watermark import Kind, Watermark
from strandline.state.memory import MemoryState
from strandline.testing.database import Clock
from strandline.testing.lake import Lake
from strandline.testing.world import World
from strandline.tracking.together import ALL, Together

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ORDERS, FEES = "wos.orders", "wos.fees"


# versions of many tables


class Upstream:
    """Two Delta tables of a schema, and a job that reads their change feeds by inclusive versions."""

    def __init__(self, root: Path) -> None:
        self.lake, self.root = Lake(root), root
        self.state = MemoryState(Clock().now)
        for table in (ORDERS, FEES):
            self.lake.create(table)
            self.lake.insert(1, table=table)

    def tracker(self) -> Tracker:
        """As another process would make it."""
        return Tracker(self.state, pipeline="wos", source=f"delta:{self.root}", mode="append", initial=0)

    def prepare(self) -> list[compat.VersionRange]:
        return compat.prepare_processing_plan_for_schemas(self.tracker(), ["wos"])

    def read(self, plan: list[compat.VersionRange]) -> dict[str, list[int]]:
        """As a hand-made job reads: both versions included."""
        return {part.table_name: self._feed(part) for part in plan}

    def _feed(self, part: compat.VersionRange) -> list[int]:
        delta: Any = self.lake.delta(part.table_name)
        rows = delta.load_cdf(starting_version=part.start_version, ending_version=part.end_version).read_all()
        pairs = zip(rows["id"].to_pylist(), rows["_change_type"].to_pylist(), strict=True)
        return sorted(id for id, change in pairs if change == "insert")


@pytest.fixture
def upstream(tmp_path: Path) -> Upstream:
    return Upstream(tmp_path)


def test_a_plan_is_prepared_read_and_marked_as_the_document_does(upstream: Upstream) -> None:
    tracker = upstream.tracker()
    assert compat.get_latest_versions(tracker, [ORDERS, FEES]) == {ORDERS: 1, FEES: 1}
    plan = upstream.prepare()
    assert [(part.table_name, part.start_version, part.end_version, part.status) for part in plan] == [
        (FEES, 0, 1, "PLANNED"),
        (ORDERS, 0, 1, "PLANNED"),
    ]
    upstream.lake.insert(2, table=ORDERS)
    assert upstream.prepare() == plan, "PLANNED is reused as written"
    assert compat.fetch_current_processing_plan(tracker) == compat.load_version_ranges(tracker) == plan
    assert upstream.read(plan) == {FEES: [1], ORDERS: [1]}
    compat.mark_run_completed(tracker, plan)
    assert compat.load_version_ranges(tracker) == []
    assert compat.load_checkpoints(tracker, [ORDERS, FEES]) == [
        compat.Checkpoint(FEES, 1),
        compat.Checkpoint(ORDERS, 1),
    ]
    following = upstream.prepare()
    assert [(part.table_name, part.start_version, part.end_version) for part in following] == [(ORDERS, 2, 2)]
    assert following[0].run_id != plan[0].run_id, "COMPLETED leads to a new plan"
    assert upstream.read(following) == {ORDERS: [2]}
    compat.mark_run_completed(tracker)
    assert upstream.prepare() == []


def test_a_failed_plan_is_kept_with_its_error_and_retried_as_it_was(upstream: Upstream) -> None:
    tracker, plan = upstream.tracker(), upstream.prepare()
    compat.mark_run_failed(tracker, ValueError("odd row"), plan)
    failed = compat.load_version_ranges(tracker)
    assert {part.status for part in failed} == {"FAILED"}
    assert "odd row" in tracker.positions()[ORDERS].error
    assert compat.load_checkpoints(tracker) == [compat.Checkpoint(FEES, None), compat.Checkpoint(ORDERS, None)]
    upstream.lake.insert(2, table=ORDERS)
    assert compat.retry(tracker, plan) == plan
    compat.mark_completed(tracker, ORDERS, plan)
    assert [part.table_name for part in compat.load_version_ranges(tracker)] == [FEES], "the other one stays open"
    assert sorted(str(run.fields["status"]) for run in upstream.state.read("run")) == ["COMPLETED", "FAILED"]


def test_a_plan_that_somebody_else_finished_moves_nothing(upstream: Upstream) -> None:
    plan = upstream.prepare()
    compat.mark_completed(upstream.tracker(), ORDERS, plan)
    upstream.lake.insert(2, table=ORDERS)
    newer = upstream.prepare()
    with pytest.raises(StateError, match=f"{ORDERS}: there is no such plan open: it is PLANNED"):
        compat.mark_run_completed(upstream.tracker(), plan)
    assert compat.load_version_ranges(upstream.tracker()) == newer, "nor does the other table of the old plan"
    with pytest.raises(StateError, match="there is no such plan open"):
        compat.mark_run_completed(upstream.tracker(), "20200101-000000-000-abcdef")


def test_a_night_with_nothing_new_is_marked_like_any_other(upstream: Upstream) -> None:
    tracker = upstream.tracker()
    for _ in range(2):
        plan = compat.prepare_processing_plan_for_schemas(tracker, ["wos"])
        compat.mark_run_completed(tracker, plan)
    assert plan == []
    compat.mark_run_completed(tracker)
    compat.mark_run_failed(tracker, "odd row")
    assert [run.fields["status"] for run in upstream.state.read("run")] == ["COMPLETED"]
    with pytest.raises(StateError, match="there is no such plan open"):
        compat.mark_completed(tracker, ORDERS)
    with pytest.raises(StateError, match="there is no such plan open"):
        compat.mark_run_completed(upstream.tracker())  # which has prepared nothing, so it cannot tell


def test_a_plan_that_others_made_meanwhile_is_not_marked_by_a_job_that_prepared_another(upstream: Upstream) -> None:
    """It was never carried out: its rows would be lost."""
    slow, fast = upstream.tracker(), upstream.tracker()
    for tracker in (slow, fast):
        compat.prepare_processing_plan_for_schemas(tracker, ["wos"])
    compat.mark_completed(fast, FEES)
    compat.mark_run_completed(fast)
    upstream.lake.insert(2, table=ORDERS)
    newer = compat.prepare_processing_plan_for_schemas(fast, ["wos"])
    with pytest.raises(StateError, match="there is no such plan open"):
        compat.mark_run_completed(slow)
    with pytest.raises(StateError, match="there is no such plan open"):
        compat.mark_completed(slow, ORDERS)
    assert compat.load_version_ranges(slow) == newer
    compat.mark_run_completed(fast)
    assert compat.load_checkpoints(fast, ORDERS) == [compat.Checkpoint(ORDERS, 2)]


def test_a_plan_that_a_run_is_at_work_on_is_not_handed_out_again(upstream: Upstream) -> None:
    with upstream.tracker().run([ORDERS]) as run:
        with pytest.raises(LeaseError, match=f"{ORDERS}: another run is at work: .*{run.run_id}"):
            upstream.prepare()
        (part,) = [part for part in compat.load_version_ranges(upstream.tracker()) if part.table_name == ORDERS]
        assert part.status == "RUNNING"


def test_retry_gives_back_the_ranges_that_were_asked_for(upstream: Upstream) -> None:
    fees, _ = upstream.prepare()
    assert compat.retry(upstream.tracker(), [fees]) == [fees]
    compat.mark_run_failed(upstream.tracker(), "odd row", [fees])
    assert compat.retry(upstream.tracker(), [fees]) == [fees]


# one window of time for a pipeline


class Pipeline:
    """Two tables stamped by `moved`, read by one window with the document's filter."""

    def __init__(self) -> None:
        self.world = World()
        self.target: list[int] = []
        for table in ("articles", "authors"):
            self.world.table(table)

    def tracker(self) -> Tracker:
        tables = ["articles", "authors"]
        return Tracker(self.world.state, pipeline="wos_pipeline", source=self.world.source, tables=tables)

    def read(self, window: tuple[datetime | None, datetime]) -> list[int]:
        start, end = window
        rows = [row for table in ("articles", "authors") for row in self.world.source.rows(table)]
        return sorted(row["id"] for row in rows if row["moved"] > (start or EPOCH) and row["moved"] <= end)

    def run(self, status: str = "SUCCESS") -> list[int]:
        record = compat.start_pipeline_run(self.tracker(), "job_123")
        found = self.read(compat.get_delta_window(self.tracker()))
        compat.finalize_pipeline_run(record, status)
        return found


@pytest.fixture
def pipeline() -> Pipeline:
    made = Pipeline()
    made.world.write(1, table="articles")
    made.world.write(2, table="authors")
    return made


def test_start_window_finalize(pipeline: Pipeline) -> None:
    record = compat.start_pipeline_run(pipeline.tracker(), "job_123")
    assert (record.status, record.last_processed_ts, record.last_processed_version) == ("RUNNING", None, None)
    start, end = compat.get_delta_window(record)
    assert start is None and end == record.current_run_ts
    assert pipeline.read((start, end)) == [1, 2]
    assert compat.finalize_pipeline_run(record).status == "SUCCESS"
    pipeline.world.write(3, table="articles")
    again = compat.start_pipeline_run(pipeline.tracker(), "job_124")
    assert again.last_processed_ts == end == compat.get_delta_window(again)[0]
    assert again.last_processed_version == int(end.timestamp() * 1000)
    assert pipeline.read(compat.get_delta_window(again)) == [3]
    compat.finalize_pipeline_run(again, "success")
    (run,) = pipeline.world.state.read("run", newest=1)
    assert run.fields["job_id"] == "job_124"


def test_a_time_without_a_zone_is_given_as_the_writers_have_it_and_its_milliseconds_are_everybodys() -> None:
    world = World()
    world.table("articles")
    world.write(1, table="articles")

    def start() -> compat.WatermarkRecord:
        tokyo = Tracker(world.state, pipeline="wos", source=world.source, tables="articles", zone="Asia/Tokyo")
        return compat.start_pipeline_run(tokyo, "job_123")

    compat.finalize_pipeline_run(start())
    record = start()
    assert record.last_processed_ts is not None and record.last_processed_ts.tzinfo is None
    there = record.last_processed_ts.replace(tzinfo=timezone(timedelta(hours=9)))
    assert record.last_processed_version == int(there.timestamp() * 1000)


def test_a_row_that_commits_late_is_in_the_next_window(pipeline: Pipeline) -> None:
    """The clock as the end of a window loses it: it is stamped before the end, and not there yet."""
    pipeline.run()
    late = pipeline.world.source.begin()
    late.write("articles", {"id": 7, "value": "late"})
    pipeline.world.write(8, table="authors")
    assert pipeline.run() == [], "the end is the last proven value: nothing is passed over"
    late.commit()
    pipeline.world.clock.advance(1)
    assert pipeline.run() == [7, 8]


@pytest.mark.parametrize("status", ["FAILED", "skipped"])
def test_only_success_moves_the_watermark(pipeline: Pipeline, status: str) -> None:
    assert pipeline.run(status) == [1, 2]
    pipeline.world.write(3, table="articles")
    assert pipeline.run() == [1, 2], "the window as it was planned"
    assert pipeline.run() == [3]
    first = min(pipeline.world.state.read("run"), key=lambda run: run.key)
    assert first.fields["status"] == status.upper()


def test_another_final_status_is_refused_and_the_run_stays_open(pipeline: Pipeline) -> None:
    record = compat.start_pipeline_run(pipeline.tracker(), "job_123")
    with pytest.raises(ConfigError, match='"DONE" is no final status'):
        compat.finalize_pipeline_run(record, "DONE")
    nothing: Any = None
    with pytest.raises(ConfigError, match='"None" is no final status'):
        compat.finalize_pipeline_run(record, nothing)
    compat.finalize_pipeline_run(record, "SUCCESS")
    with pytest.raises(StateError, match="finalized already"):
        compat.finalize_pipeline_run(record, "SUCCESS")
    with pytest.raises(StateError, match="no run has been started"):
        compat.get_delta_window(Tracker(MemoryState(), pipeline="other", source=pipeline.world.source))


def test_with_nothing_new_the_window_is_empty_and_a_failure_is_in_the_history_all_the_same(pipeline: Pipeline) -> None:
    for table in ("articles", "authors"):
        held = pipeline.world.source.held(table)
        held.cursor = replace(held.cursor, nullable=False)
    pipeline.run()
    pipeline.world.source.begin().write("articles", {"id": 7, "value": "late"})
    assert pipeline.run() == pipeline.run() == [], "an open transaction holds it"
    pipeline.world.clock.advance(1)
    assert pipeline.run("FAILED") == []
    start, end = compat.get_delta_window(pipeline.tracker())
    assert start == end
    assert [run.fields["status"] for run in pipeline.world.state.read("run", newest=1)] == ["FAILED"]


def test_rows_that_no_window_of_time_would_hold_are_refused(pipeline: Pipeline) -> None:
    pipeline.world.source.write("authors", {"id": 9, "value": "new", "moved": None})
    with pytest.raises(SourceError, match="1 rows have no cursor"):
        compat.start_pipeline_run(pipeline.tracker(), "job_123")
    tracker = Tracker(
        MemoryState(), pipeline="wos_pipeline", source=pipeline.world.source, tables="authors", nulls="include"
    )
    with pytest.raises(SourceError, match="holds no row without one"):
        compat.start_pipeline_run(tracker, "job_123")


def test_before_anything_can_be_read_it_says_why(pipeline: Pipeline) -> None:
    late = pipeline.world.source.begin()
    late.write("articles", {"id": 7, "value": "late"})
    with pytest.raises(SourceError, match="nothing can be read yet: transaction 3"):
        compat.start_pipeline_run(pipeline.tracker(), "job_123")
    late.commit()
    pipeline.world.clock.advance(1)
    assert pipeline.run() == [1, 2, 7], "no lease was left behind"


def test_success_is_not_told_of_a_run_that_could_not_be_recorded(pipeline: Pipeline) -> None:
    class Away(MemoryState):
        gone = False

        def put(self, records: Sequence[Record]) -> list[Record]:
            if self.gone:
                raise TransientError("the store is away")
            return super().put(records)

    state = Away(pipeline.world.clock.now)
    pipeline.world.state = state
    record = compat.start_pipeline_run(pipeline.tracker(), "job_123")
    state.gone = True
    with pytest.raises(TransientError):
        compat.finalize_pipeline_run(record)
    state.gone = False
    with pytest.raises(StateError, match="the store is away"):
        compat.finalize_pipeline_run(record)
    pipeline.world.clock.advance(3601)
    assert pipeline.run() == [1, 2], "the same window again"


def test_a_table_that_nobody_writes_to_does_not_hold_the_window_of_the_others() -> None:
    """Where nothing is proven, `lookback` says how late a row may come; where it is, the lowest counts."""
    high = {"busy": "2026-11-15 08:00:00", "idle": "2026-01-01 00:00:00", "empty": None}

    class Source:
        warnings: Sequence[tuple[str, str]] = ()

        def __init__(self, proven: bool) -> None:
            self.proven = proven

        def horizons(self, _: object) -> dict[str, Horizon]:
            marks = {name: Watermark(Kind.TIMESTAMP, text) if text else None for name, text in high.items()}
            return {name: Horizon(mark, proven=self.proven) for name, mark in marks.items()}

    def end(*, proven: bool) -> str:
        source: Any = Source(proven)
        one = Table("wos", ALL, ALL, ALL, SYNC, Mode.MERGE, None)
        (found,) = Together(source, ()).horizons([one]).values()
        assert isinstance(found, Horizon)
        return str(found.high)

    assert (end(proven=False), end(proven=True)) == ("2026-11-15 08:00:00", "None")
    del high["empty"]
    assert (end(proven=False), end(proven=True)) == ("2026-11-15 08:00:00", "2026-01-01 00:00:00")


def test_a_run_that_is_never_finalized_is_taken_over_when_its_lease_has_expired(pipeline: Pipeline) -> None:
    record = compat.start_pipeline_run(pipeline.tracker(), "job_123")
    with pytest.raises(LeaseError, match="another run is at work"):
        compat.start_pipeline_run(pipeline.tracker(), "job_124")
    pipeline.world.clock.advance(3601)
    assert pipeline.run() == [1, 2]
    with pytest.raises(LeaseError):
        compat.finalize_pipeline_run(record)
    assert pipeline.run() == []


def test_times_have_no_versions_and_versions_no_window_of_time(pipeline: Pipeline, upstream: Upstream) -> None:
    pipeline.tracker().plan()
    with pytest.raises(SourceError, match="has no versions"):
        compat.load_version_ranges(pipeline.tracker())
    tracker = Tracker(upstream.state, pipeline="wos", source=f"delta:{upstream.root}", tables=[ORDERS], mode="append")
    with pytest.raises(SourceError, match="needs a timestamp as cursor"):
        compat.start_pipeline_run(tracker, "job_123")

"""How well a pipeline is: the worst of its last run, its freshness, its verification and what is stuck."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from strandline.core.attention import Freshness
from strandline.core.protocols import Record
from strandline.core.watermark import Kind, Watermark
from strandline.operations import PipelineStatus, TableStatus
from strandline.operations.health import Health, Verified, age_seconds, findings, health_of

NOW = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)
FRESH = Freshness(timedelta(minutes=10), timedelta(hours=1))


def table(**given: Any) -> TableStatus:
    plain: dict[str, Any] = {
        "pipeline": "shop",
        "table": "orders",
        "stage": "sync",
        "status": "COMPLETED",
        "watermark": Watermark(Kind.TIMESTAMP, "2026-11-15 11:59:00"),
        "last_value": None,
        "lag_seconds": 60.0,
        "batch": 1,
        "epoch": 1,
        "rows": 1,
        "plan": None,
        "held": "",
        "open_from": "",
        "running": "",
        "error": "",
        "updated_at": "2026-11-15T11:59:30.000Z",
    }
    return TableStatus(**{**plain, **given})


def run(status: str, ended_at: str = "2026-11-15T11:59:00.000Z", error: str = "") -> Record:
    return Record("run", ("r1",), {"status": status, "ended_at": ended_at, "error": error})


def judged(*tables: TableStatus, last: Record | None = None, **verified: Verified) -> tuple[Health, list[str]]:
    part = PipelineStatus("shop", tables, last)
    found = findings(part, FRESH, {(name, "sync"): answer for name, answer in verified.items()}, NOW)
    return health_of(part, found), [finding.about for finding in found]


def test_a_pipeline_that_never_ran_is_neither_well_nor_ill() -> None:
    assert judged() == (Health.UNKNOWN, [])


def test_a_good_run_that_is_fresh_is_well() -> None:
    assert judged(table(), last=run("COMPLETED")) == (Health.OK, [])


@pytest.mark.parametrize(
    ("lag", "health"), [(600.0, Health.OK), (601.0, Health.WARNING), (3600.0, Health.WARNING), (3601.0, Health.ERROR)]
)
def test_freshness_is_judged_by_lag(lag: float, health: Health) -> None:
    assert judged(table(lag_seconds=lag))[0] is health


def test_a_cursor_that_is_no_time_is_judged_by_when_it_was_last_well() -> None:
    counted = table(watermark=Watermark(Kind.INTEGER, "4711"), lag_seconds=None)
    assert age_seconds(counted, NOW) == 30.0
    assert judged(counted)[0] is Health.OK
    silent = table(watermark=Watermark(Kind.INTEGER, "4711"), lag_seconds=None, updated_at="2026-11-15T10:00:00.000Z")
    assert judged(silent) == (Health.ERROR, ["freshness"])
    assert age_seconds(table(watermark=None, lag_seconds=None), NOW) is None


def test_a_failed_table_is_an_error_and_the_run_is_not_told_twice() -> None:
    assert judged(table(status="FAILED", error="no route"), last=run("FAILED", error="no route")) == (
        Health.ERROR,
        ["table"],
    )


def test_a_failed_run_counts_until_every_table_has_been_well_since() -> None:
    failed = run("FAILED", "2026-11-15T11:59:45.000Z", "the source is away")
    assert judged(table(), last=failed) == (Health.ERROR, ["run"])
    later = table(status="SKIPPED", updated_at="2026-11-15T11:59:50.000Z")
    assert judged(later, last=failed) == (Health.OK, [])


def test_a_difference_is_an_error_and_a_verification_that_failed_a_warning() -> None:
    assert judged(table(), orders=Verified("different", NOW, missing=2)) == (Health.ERROR, ["verification"])
    assert judged(table(), orders=Verified("failed", NOW, error="away")) == (Health.WARNING, ["verification"])
    assert judged(table(), orders=Verified("equal", NOW)) == (Health.OK, [])


def test_what_is_stuck_is_a_warning_and_the_worst_comes_first() -> None:
    health, about = judged(table(stuck="stuck: the plan", lag_seconds=9999.0))
    assert (health, about) == (Health.ERROR, ["freshness", "plan"])


def test_a_missed_run_and_a_table_held_for_too_long_are_warnings() -> None:
    assert judged(table(missed="no run for 2 min longer than expected")) == (Health.WARNING, ["missed"])
    held = {"held": "transaction 4711, since noon"}
    assert judged(table(**held, held_seconds=601.0)) == (Health.WARNING, ["held"])
    assert judged(table(**held, held_seconds=600.0)) == (Health.OK, [])
    part = PipelineStatus("shop", (table(**held, held_seconds=61.0),), None)
    assert [finding.about for finding in findings(part, None, {}, NOW, timedelta(minutes=1))] == ["held"]


def test_runs_that_failed_again_and_again_count_until_every_table_has_been_well_since() -> None:
    failed = run("FAILED", "2026-11-15T11:59:45.000Z", "the source is away")
    later = table(status="SKIPPED", updated_at="2026-11-15T11:59:50.000Z")
    for tables, expected in (((table(),), 2), ((later,), 0)):
        part = PipelineStatus("shop", tables, failed, attention="the last 3 runs failed")
        assert len(findings(part, None, {}, NOW)) == expected

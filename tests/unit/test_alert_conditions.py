"""What is told of a pipeline: each condition once when it comes, once when it is over, and never while it lasts."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from test_health import FRESH, NOW, run, table

from strandline.alerts.conditions import Condition, Message, Standing, judged
from strandline.core.protocols import Record
from strandline.core.watermark import Kind, Watermark
from strandline.operations import PipelineStatus, TableStatus
from strandline.operations.health import Health, Verified, findings

ORDERS = ("orders", "sync")
DIFFERENT = Verified("different", NOW, missing=2)
EQUAL = Verified("equal", NOW)


class Looks:
    """One pipeline, looked at again and again."""

    def __init__(self) -> None:
        self.standing: dict[Condition, Standing] = {}
        self.now = NOW

    def at(
        self,
        *tables: TableStatus,
        last: Record | None = None,
        attention: str = "",
        verified: Verified | None = None,
        new: Collection[tuple[str, str]] = (ORDERS,),
    ) -> list[str]:
        found = self.messages(*tables, last=last, attention=attention, verified=verified, new=new)
        return [f"{message.status} {message.kind} {message.health}" for message in found]

    def messages(
        self,
        *tables: TableStatus,
        last: Record | None = None,
        attention: str = "",
        verified: Verified | None = None,
        new: Collection[tuple[str, str]] = (ORDERS,),
    ) -> list[Message]:
        self.now += timedelta(seconds=1)
        part = PipelineStatus("shop", tables, last, attention=attention)
        answers = {ORDERS: verified} if verified else {}
        found = findings(part, FRESH, answers, NOW)
        self.standing, messages = judged(self.standing, part, found, new if verified else (), self.now)
        return messages


@pytest.mark.parametrize(
    ("ill", "kind", "health"),
    [
        ({"lag_seconds": 700.0}, "freshness", "warning"),
        ({"lag_seconds": 4000.0}, "freshness", "error"),
        ({"status": "FAILED", "error": "no route"}, "failed", "error"),
        ({"held": "transaction 4711, since noon", "held_seconds": 601.0}, "held", "warning"),
        ({"stuck": "stuck: the plan"}, "stuck", "warning"),
        ({"missed": "no run for 2 min longer than expected"}, "missed", "warning"),
    ],
)
def test_a_condition_is_told_once_when_it_comes_and_once_when_it_is_over(
    ill: dict[str, Any], kind: str, health: str
) -> None:
    looks = Looks()
    assert looks.at(table()) == []
    assert looks.at(table(**ill)) == [f"problem {kind} {health}"]
    assert looks.at(table(**ill)) == []
    assert looks.at(table()) == [f"recovered {kind} ok"]
    assert (looks.at(table()), looks.standing) == ([], {})


def test_a_table_that_is_held_for_a_moment_is_not_told() -> None:
    assert Looks().at(table(held="transaction 4711, since noon", held_seconds=600.0)) == []


def test_worse_and_better_are_changes_and_another_text_is_none() -> None:
    looks = Looks()
    assert looks.at(table(lag_seconds=700.0)) == ["problem freshness warning"]
    assert looks.at(table(lag_seconds=900.0)) == []
    (worse,) = looks.messages(table(lag_seconds=4000.0))
    assert (worse.health, worse.was, worse.since) == ("error", "warning", "2026-11-15T12:00:01.000Z")
    assert looks.at(table(lag_seconds=700.0)) == ["problem freshness warning"]
    assert looks.at(table(status="FAILED", error="no route")) == ["recovered freshness ok", "problem failed error"]
    assert looks.at(table(status="FAILED", error="another one")) == []


def test_a_message_says_what_where_and_since_when() -> None:
    looks = Looks()
    (problem,) = looks.messages(table(lag_seconds=4000.0))
    assert problem.to_json() == {
        "schema_version": 1,
        "id": problem.id,
        "at": "2026-11-15T12:00:01.000Z",
        "status": "problem",
        "kind": "freshness",
        "health": "error",
        "was": "ok",
        "since": "2026-11-15T12:00:01.000Z",
        "pipeline": "shop",
        "table": "orders",
        "stage": "sync",
        "run_id": "",
        "message": "1.1 h behind, error_after is 1 h",
    }
    (over,) = looks.messages(table())
    assert (over.since, over.was, over.message) == (problem.at, "error", "is fresh again")
    assert (problem.title, over.title) == ("shop.orders: freshness, error", "shop.orders: freshness, recovered")
    assert over.id != problem.id


def test_a_table_at_work_is_neither_failed_nor_well_until_its_run_has_ended() -> None:
    """Its lease hides its error, its stuck plan and the run that it missed: that is no recovery."""
    looks = Looks()
    failed = table(status="FAILED", error="no route", stuck="stuck: the plan", missed="no run")
    assert len(looks.at(failed, last=run("FAILED"))) == 3
    at_work = table(running="ann", status="PLANNED")
    assert looks.at(at_work, last=run("FAILED")) == [], "nor is the run told, whose error the table showed"
    assert looks.at(failed, last=run("FAILED")) == []
    assert len(looks.at(table(), last=run("COMPLETED"))) == 3


def test_a_run_that_failed_as_a_whole_is_told_and_not_again_with_its_table_or_after_three() -> None:
    looks = Looks()
    failed = run("FAILED", "2026-11-15T11:59:45.000Z", "the source is away")
    assert looks.at(table(), last=failed) == ["problem failed error"]
    assert looks.at(table(), last=failed, attention="the last 3 runs failed") == []
    later = table(status="SKIPPED", updated_at="2026-11-15T12:00:10.000Z")
    assert looks.at(later, last=failed, attention="the last 3 runs failed") == ["recovered failed ok"]
    assert looks.at(table(status="FAILED", error="no route"), last=failed) == ["problem failed error"]
    assert looks.at(table(status="FAILED", error="no route"), attention="the last 3 runs failed", last=failed) == []


def test_a_failure_without_a_trace_in_the_state_lasts_until_a_table_was_looked_at() -> None:
    """Whoever failed may be gone, or be another service."""
    looks = Looks()
    looks.standing = {("failed", "", ""): Standing(Health.ERROR, "2026-11-15T11:59:45.000Z")}
    assert looks.at(table()) == []
    assert looks.at(table(missed="no run for 2 min longer than expected")) == [], "runs do come, and fail"
    assert looks.at(table(status="FAILED", updated_at="2026-11-15T11:59:50.000Z")) == []
    assert looks.at(table(status="SKIPPED", updated_at="2026-11-15T11:59:50.000Z")) == ["recovered failed ok"]


def test_a_difference_lasts_until_a_verification_finds_none() -> None:
    looks = Looks()
    assert looks.at(table(), verified=DIFFERENT) == ["problem verification error"]
    assert looks.at(table()) == [], "a service that has just started knows no answer"
    assert looks.at(table(), verified=replace(DIFFERENT, answer="failed", error="away")) == []
    assert looks.at(table(), verified=EQUAL) == ["recovered verification ok"]
    assert looks.at(table(), verified=DIFFERENT, new=()) == [], "an answer that another service's has overtaken"


def test_a_table_that_could_not_be_compared_is_a_warning() -> None:
    failed = Verified("failed", NOW, error="away")
    looks = Looks()
    assert looks.at(table(), verified=failed) == ["problem verification warning"]
    assert looks.at(table(), verified=DIFFERENT) == ["problem verification error"]


def test_freshness_that_cannot_be_told_stays_as_it_was() -> None:
    """Of a cursor that is no time only a table that was well says when it was looked at."""
    looks = Looks()
    old = table(watermark=Watermark(Kind.INTEGER, "4711"), lag_seconds=None, updated_at="2026-11-15T10:00:00.000Z")
    assert looks.at(old) == ["problem freshness error"]
    assert looks.at(replace(old, status="PLANNED", updated_at="2026-11-15T12:00:00.000Z")) == []
    assert looks.at(replace(old, updated_at="2026-11-15T12:00:00.000Z")) == ["recovered freshness ok"]


def test_every_table_and_stage_stands_for_itself() -> None:
    looks = Looks()
    late, other = table(lag_seconds=4000.0), table(table="items", lag_seconds=4000.0)
    assert len(looks.at(late, replace(late, stage="load"), other)) == 3
    assert looks.standing[("freshness", "items", "sync")].health is Health.ERROR
    (over,) = looks.messages(late, replace(late, stage="load"), replace(other, lag_seconds=1.0))
    assert (over.table, over.stage) == ("items", "sync")

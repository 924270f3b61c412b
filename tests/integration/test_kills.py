"""Real processes that die by SIGKILL between real services, and what the next one makes of it.

Here a pair of services each way; PostgreSQL with SQLite is killed at every event in `test_sync`. With STRANDLINE_SOAK=1
every source with every state, and both stages with every target, at every event.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from route import SHOPS, Route, open_shop, state_url

from strandline.core.position import Status

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHILD = Path(__file__).with_name("crash_child.py")
DATABASES = tuple(SHOPS)
STATES = ("sqlite", *DATABASES)
EVENTS = {"Planned", "Intended", "BatchApplied", "Adopted", "Committed", "TableFinished"}
# From, state, and where there is a stage, to: every two of them meet.
ONE_STAGE = [(source, state, "") for source in DATABASES for state in STATES]
TWO_STAGES = [
    ("mariadb", "postgres", "postgres"),
    ("postgres", "mariadb", "mariadb"),
    ("postgres", "sqlite", "postgres"),
    ("mariadb", "sqlite", "mariadb"),
    ("postgres", "postgres", "delta"),
    ("mariadb", "mariadb", "delta"),
]


@pytest.fixture
def route(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Route]:
    source, state, to = request.param
    into = request.getfixturevalue(SHOPS[to][1]) if to in SHOPS else None
    with open_shop(request, source) as shop:
        route = Route(shop, tmp_path, state=state_url(request, state), stage="stage" if to else None, into=into)
        route.insert(*range(1, 5))
        route.insert(*range(5, 8))
        yield route


def name(route: tuple[str, str, str]) -> str:
    return "-".join(filter(None, route))


def killed(route: Route, at: str) -> list[str]:
    """The events of a process, the last of which it did not survive; all of them if it met no such event."""
    command = [sys.executable, str(CHILD), str(route.config), at]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode in (0, -9), done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("route", [("mariadb", "postgres", "")], indirect=True, ids=name)
def test_killed_with_a_batch_in_the_target_and_again_after_adopting_it(route: Route, spark: SparkSession) -> None:
    assert killed(route, "BatchApplied")[-1] == "BatchApplied"
    route.update(1, "after the first kill")
    second = killed(route, "Committed")
    assert "Adopted" in second and second[-1] == "Committed"
    route.spark = spark
    for _ in range(2):  # what was planned, then what came since
        assert route.sync().status is Status.COMPLETED
    assert route.sync().status is Status.SKIPPED
    route.check()


@pytest.mark.parametrize("route", TWO_STAGES[1:2], indirect=True, ids=name)
def test_killed_with_a_batch_in_the_stage_and_again_with_it_in_the_target(route: Route, spark: SparkSession) -> None:
    assert killed(route, "extract:BatchApplied")[-1] == "extract:BatchApplied"
    route.update(1, "after the first kill")
    second = killed(route, "load:BatchApplied")
    assert "extract:Adopted" in second and second[-1] == "load:BatchApplied"
    route.spark = spark
    assert {outcome.status for outcome in route.stages()} == {Status.COMPLETED}
    assert "Adopted" in route.events
    route.stages()
    assert {outcome.status for outcome in route.stages()} == {Status.SKIPPED}
    route.check()


@pytest.mark.skipif(not os.environ.get("STRANDLINE_SOAK"), reason="takes minutes; STRANDLINE_SOAK=1 runs it")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("route", [*ONE_STAGE, *TWO_STAGES], indirect=True, ids=name)
def test_soak_killed_at_every_event(route: Route) -> None:
    """One event later each time, until a run gets through."""
    seen: set[str] = set()
    for at in range(1, 60):
        route.update(1, f"before kill {at}")
        events = killed(route, str(at))
        seen |= set(events)
        if events[-1] == "RunFinished" and len(events) < at:
            break
    route.update(1, "last")
    assert killed(route, "0")[-1] == "RunFinished"
    route.check()
    stages = ("extract:", "load:") if route.stage else ("",)
    assert seen >= {f"{stage}{event}" for stage in stages for event in EVENTS} | {"RunFinished"}

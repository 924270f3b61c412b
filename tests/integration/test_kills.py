"""Real processes that die by SIGKILL between real services, and what the next one makes of it.

Here a pair of services each way; PostgreSQL with SQLite is killed at every event in `test_sync`. With STRANDLINE_SOAK=1
every source with every state, at every event.
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
PAIRS = [("mariadb", "postgres"), ("postgres", "mariadb")]
ALL = [(source, state) for source in SHOPS for state in ("sqlite", *SHOPS)]


@pytest.fixture
def route(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Route]:
    source, state = request.param
    with open_shop(request, source) as shop:
        route = Route(shop, tmp_path, state=state_url(request, state))
        route.insert(*range(1, 5))
        route.insert(*range(5, 8))
        yield route


def killed(route: Route, at: str) -> list[str]:
    """The events of a process, the last of which it did not survive; all of them if it met no such event."""
    command = [sys.executable, str(CHILD), str(route.config), at]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode in (0, -9), done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("route", PAIRS, indirect=True, ids="-".join)
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


@pytest.mark.skipif(not os.environ.get("STRANDLINE_SOAK"), reason="takes minutes; STRANDLINE_SOAK=1 runs it")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("route", ALL, indirect=True, ids="-".join)
def test_soak_killed_at_every_event(route: Route) -> None:
    """One event later each time, until a run gets through."""
    seen: set[str] = set()
    for at in range(1, 40):
        route.update(1, f"before kill {at}")
        events = killed(route, str(at))
        seen |= set(events)
        if events[-1] == "RunFinished" and len(events) < at:
            break
    route.update(1, "last")
    assert killed(route, "0")[-1] == "RunFinished"
    route.check()
    assert seen >= {"Planned", "Intended", "BatchApplied", "Adopted", "Committed", "TableFinished", "RunFinished"}

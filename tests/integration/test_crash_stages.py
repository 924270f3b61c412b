"""A process dies at every event of both stages, with every target and every state store; the next one goes on.

In this process: death is an exception that no handler of the product sees. Real SIGKILLs are in `test_kills`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from staged_line import NO_SPARK, ArrowLoad, ArrowWrite, Line
from targets import STATES, TARGETS, MemoryTarget

from strandline.core.table import EXTRACT, LOAD, Mode

if TYPE_CHECKING:
    pass

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RUN = {"RunStarted", "RunFinished"}
EVENTS = {"Planned", "Intended", "Retrying", "Adopted", "BatchApplied", "Committed", "TableFinished"}
STATE_WRITES = {"before put", "after put"}
STAGE = {"before run", "before _add", "before the hint", "after _add"}
# Every real target meets a store, and every store a real target.
STATE_OF = {"delta": "sqlite", "postgres": "postgres", "mariadb": "mariadb", "redshift": "directory"}


def of(stage: str, points: set[str] | frozenset[str]) -> set[str]:
    return {f"{stage} {point}" for point in points}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows pass the stage without Spark, and nothing is flushed: what was written outlives a process all the same."""
    monkeypatch.setattr("strandline.stage.write.Write", ArrowWrite)
    monkeypatch.setattr("os.fsync", lambda _: None)


class ArrowTarget(MemoryTarget):
    def __init__(self, request: pytest.FixtureRequest) -> None:
        super().__init__(request)
        self.sink = self.memory = ArrowLoad()


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("store", "mode"), [*((name, Mode.MERGE) for name in STATES), ("memory", Mode.APPEND)])
def test_at_every_event_of_both_stages(request: pytest.FixtureRequest, tmp_path: Path, store: str, mode: Mode) -> None:
    """Also around every write of the state, the stage's manifest and hint, and the target's commit."""
    state, target = STATES[store](request), ArrowTarget(request)
    line = Line(tmp_path, target, state, mode=mode, slices=2 if (store, mode) == ("memory", Mode.MERGE) else 1)
    line.dies_everywhere(every_write=True)
    line.check_history()
    points = RUN | STATE_WRITES | of(EXTRACT, EVENTS | STAGE) | of(LOAD, EVENTS | target.points)
    assert set(line.deaths) == points
    assert sum(line.deaths.values()) >= 40
    state.close()


def test_at_every_event_while_spark_writes_the_stage(
    request: pytest.FixtureRequest, tmp_path: Path, spark: SparkSession
) -> None:
    line = Line(tmp_path, ArrowTarget(request), STATES["memory"](request), spark=spark, slices=1)
    line.dies_everywhere(only=EXTRACT)
    line.check_history()
    assert set(line.deaths) == of(EXTRACT, EVENTS | STAGE)


@pytest.mark.parametrize("name", TARGETS)
def test_at_every_event_of_the_load_into_each_target(request: pytest.FixtureRequest, tmp_path: Path, name: str) -> None:
    """Also at the points inside the target."""
    target, state = TARGETS[name](request), STATES[STATE_OF.get(name, "memory")](request)
    spark = request.getfixturevalue("spark" if target.needs_spark else "quick")
    line = Line(tmp_path, target, state, spark=spark or NO_SPARK, slices=1)
    line.dies_everywhere(only=LOAD)
    line.check_history()
    assert set(line.deaths) == of(LOAD, EVENTS | target.points)
    state.close()

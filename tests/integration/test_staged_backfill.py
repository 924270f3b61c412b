"""What `backfill --extract-only` and `--load-only` do: a range is staged, and loaded when its turn comes; either may
die halfway and is finished by the next run, and the watermark stays where it is. No Spark, no servers."""

from __future__ import annotations

from pathlib import Path

import pytest
from staged_line import NO_SPARK, PIPELINE, TABLE, ArrowLoad, ArrowWrite, Line, LineProject, by_id
from targets import MemoryTarget

from strandline.core.errors import ChangedError
from strandline.core.events import BatchApplied, Event
from strandline.core.position import Reason, Status
from strandline.core.run import Outcome
from strandline.core.table import EXTRACT, LOAD
from strandline.state.memory import MemoryState
from strandline.testing.world import Killed


class Backfilled(Line):
    """Five rounds of two rows each, loaded; since then all but those of the last one changed without a new stamp."""

    def __init__(self, folder: Path, target: MemoryTarget) -> None:
        super().__init__(folder, target, MemoryState(), slices=1)
        for _ in range(5):
            self.write()
        self.resume()
        self.stamps = sorted({row["moved"] for row in self.source.rows(TABLE)})
        for row in self.source.rows(TABLE):
            if row["moved"] < self.stamps[-1]:
                self.source.write(TABLE, {**row, "value": "silent"})

    def backfill(self, *stages: str, dies_after: int = 0) -> list[Outcome]:
        """Of three rounds: not the first one, and not the fourth."""
        done = 0

        def listen(event: Event) -> None:
            nonlocal done
            done += isinstance(event, BatchApplied)
            if dies_after and done == dies_after:
                raise Killed

        low, high = (f"{self.stamps[at]:%Y-%m-%d %H:%M:%S}" for at in (1, 4))
        try:
            with LineProject(self.config, self.source, self.target.sink, self.state) as project:
                result = project.backfill(
                    PIPELINE, TABLE, start=low, end=high, stages=stages, spark=NO_SPARK, listener=listen
                )
            return list(result.tables)
        except Killed:
            self._bury()
            raise

    def silent(self) -> list[int]:
        """Ids whose silent change has arrived."""
        return sorted(row["id"] for row in self.target.rows(TABLE) if row["value"] == "silent")


@pytest.fixture
def line(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Backfilled:
    monkeypatch.setattr("strandline.stage.write.Write", ArrowWrite)
    target = MemoryTarget(request)
    target.sink = target.memory = ArrowLoad()
    return Backfilled(tmp_path, target)


def test_extract_only_stages_the_range_and_load_only_brings_it(
    line: Backfilled, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged, mark, loaded = len(line.staged()), line.position(EXTRACT).watermark, line.position(LOAD)
    (extract,) = line.backfill(EXTRACT)
    assert (extract.stage, extract.status, extract.applied.rows_read) == (EXTRACT, Status.COMPLETED, 6)
    assert len(line.staged()) == staged + 3
    assert line.position(EXTRACT).watermark == mark
    assert (line.silent(), line.position(LOAD)) == ([], loaded)

    line.write()
    line.sync(stages=[EXTRACT])  # what is new is staged behind it
    monkeypatch.setattr(line.source, "tables", lambda *_: pytest.fail("the source was asked"))
    (load,) = line.backfill(LOAD)
    assert (load.stage, load.status, load.applied.rows_updated) == (LOAD, Status.COMPLETED, 6)
    assert line.silent() == [3, 4, 5, 6, 7, 8]
    assert len(line.target.rows(TABLE)) == len(line.source.rows(TABLE))


def test_both_stages_die_halfway_and_the_next_runs_finish_them(line: Backfilled) -> None:
    staged, mark = len(line.staged()), line.position(EXTRACT).watermark
    with pytest.raises(Killed):
        line.backfill(EXTRACT, dies_after=2)
    with pytest.raises(ChangedError, match="left its plan unfinished") as refused:
        line.backfill(EXTRACT)
    assert "strandline retry" in refused.value.remedy
    extract = line.sync(stages=[EXTRACT])[EXTRACT]
    assert (extract.plan.reason, extract.status) == (Reason.RESUMED, Status.COMPLETED)
    assert (len(line.staged()), line.position(EXTRACT).watermark) == (staged + 3, mark)

    with pytest.raises(Killed):
        line.backfill(LOAD, dies_after=1)
    (load,) = line.backfill(LOAD)
    assert load.status is Status.COMPLETED
    assert line.silent() == [3, 4, 5, 6, 7, 8]
    line.write()
    line.resume()
    assert [row["id"] for row in by_id(line.target.rows(TABLE))] == [
        row["id"] for row in by_id(line.source.rows(TABLE))
    ]
    orders = [batch.order for batch in line.target.log(TABLE)]
    assert orders == [(1, number) for number in range(1, len(orders) + 1)], "each batch once"

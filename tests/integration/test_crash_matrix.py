"""A process dies at every event of the stream, with every state store; the next one goes on from there.

Everything happens in this process: death is an exception that no handler of the product sees. Here one stage, into
memory and into a lake; two stages and every target are in `test_crash_stages`, real SIGKILLs in `test_kills`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from targets import SLOW_STATES, STATES, TARGETS, KafkaTarget, MemoryTarget, Target, directory_state, watched

from strandline.core.errors import CommitUnknownError
from strandline.core.position import Status
from strandline.core.protocols import State
from strandline.core.records import COUNTS
from strandline.core.table import Mode
from strandline.objects.directory import DirectoryObjects
from strandline.state.memory import MemoryState
from strandline.testing.database import Row
from strandline.testing.world import Killed, World

EVENTS = {"Planned", "Intended", "Retrying", "Adopted", "BatchApplied", "Committed", "TableFinished"}
STATE_WRITES = {"before put", "after put"}


@pytest.fixture(params=STATES)
def state(request: pytest.FixtureRequest) -> Iterator[State]:
    state = {**STATES, **SLOW_STATES}[request.param](request)
    yield state
    state.close()


class Journey:
    """A table on its way through many deaths: each round brings rows for two slices, and a process that dies."""

    def __init__(
        self,
        target: Target,
        state: State,
        table: str = "orders",
        *,
        mode: Mode = Mode.MERGE,
        key_slices: bool = False,
        inside: bool = False,
        every_write: bool = False,
        every_object: bool = False,
        commit_every: int = 1,
    ) -> None:
        """Where a process can die apart from events: `inside` the sink, before and after `every_write` of the state, or
        of `every_object` that such a write is made of."""
        self.target = target
        self.world = World(state=state, into=target.sink, key_slices=key_slices, commit_every=commit_every)
        self.table, self.mode = table, mode
        self.inside, self.every_write, self.every_object = inside, every_write, every_object
        self.world.table(table, slice_rows=2, mode=mode)
        self.deaths: Counter[str] = Counter()
        self.written: list[Row] = []  # every version of every row
        self.ids = 0

    def write(self) -> None:
        """Two new rows; then another, and an update of what came in an earlier round."""
        first = self.ids + 1
        self.ids += 3
        self._write(first, first + 1)
        self._write(first + 2, *([first - 1] if first > 1 else []))

    def _write(self, *ids: int) -> None:
        self.world.write(*ids, value=f"at {len(self.written)}", table=self.table)
        self.written += [row for row in self.world.source.rows(self.table) if row["id"] in ids]

    def killed(self, at: int | str, *, trouble: bool = False) -> bool:
        """Whether a poll died: at the point of this number, or the first of this name. `trouble`: its first batch gets
        in, and the answer is lost."""
        seen = 0

        def reach(point: str) -> None:
            nonlocal seen
            seen += 1
            if at in (seen, point):
                self.deaths[point] += 1
                raise Killed

        with pytest.MonkeyPatch.context() as patch:
            if self.inside:
                self.target.watch(patch, reach)
            if trouble:
                self._lose_an_answer(patch)
            if self.every_write:
                watched(patch, self.world.state, "put", reach)
            if self.every_object:
                watched(patch, DirectoryObjects, "create", reach)
                watched(patch, DirectoryObjects, "delete", reach)
            try:
                self.world.poll(lambda event: reach(type(event).__name__))
            except Killed:
                self.world.bury()
                self.check_watermark()
                return True
        return False

    def _lose_an_answer(self, patch: pytest.MonkeyPatch) -> None:
        sink = self.target.sink
        real = sink.apply

        def apply(*given: Any, **how: Any) -> Any:
            patch.setattr(sink, "apply", real)
            real(*given, **how)
            raise CommitUnknownError("no answer")

        patch.setattr(sink, "apply", apply)

    def resume(self) -> None:
        """What a process does that nobody disturbs; it brings everything that is there."""
        for _ in range(2):  # what was planned, then what came since
            for outcome in self.world.poll().values():
                assert outcome.status is Status.COMPLETED, outcome.error

    def check_watermark(self) -> None:
        """Whatever lies below the watermark is in the target, also where somebody has just died."""
        below = self.world.source_rows(self.table)
        arrived = self.target.rows(self.table) if below else []
        assert all(row in arrived for row in below)

    def check(self) -> None:
        """The target equals the source, no batch came twice, none is missing, and the books agree."""
        kept = self.written if self.mode is Mode.APPEND else self.world.source.rows(self.table)
        assert by_id(self.target.rows(self.table)) == by_id(kept)

        batches = self.target.log(self.table)
        assert [batch.order for batch in batches] == [(1, number) for number in range(1, len(batches) + 1)]
        if not self.world.source.key_slices:
            lows, highs = [batch.low for batch in batches], [batch.high for batch in batches]
            assert lows[0] is None
            assert all(low is not None and high <= low for high, low in zip(highs, lows[1:], strict=False))

        position = self.world.position(self.table)
        assert position.batch is not None and position.batch.same(batches[-1])
        assert (position.plan, position.intent) == (None, None)
        versions, ids = len(self.written), len(self.world.source.rows(self.table))
        inserted = versions if self.mode is Mode.APPEND else ids
        assert self.counted() == {
            "batches": len(batches),
            "rows_read": versions,
            "rows_inserted": inserted,
            "rows_updated": versions - inserted,
            "rows_deleted": 0,
        }

    def counted(self) -> dict[str, int]:
        """What all runs of the table say they did, together."""
        parts = [part.fields for part in self.world.state.read("table_run") if part.key[1] == self.table]
        return {name: sum(int(part[name] or 0) for part in parts) for name in ("batches", *COUNTS)}

    def check_history(self) -> None:
        """Once somebody has come after them, no dead run is left for a living one, and runs are the sums of theirs."""
        self.write()
        self.resume()
        for run in self.world.state.read("run"):
            parts = self.world.state.read("table_run", run.key)
            if not parts:
                continue  # it died before any table knew of it: nobody can tell it from one that is about to begin
            assert run.fields["status"] != Status.RUNNING
            assert all(part.fields["status"] not in (Status.RUNNING, Status.PLANNED) for part in parts)
            for name in COUNTS:
                assert run.fields[name] == sum(int(part.fields[name] or 0) for part in parts)


def by_id(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row["id"], row["moved"]))


def dies_everywhere(journey: Journey) -> None:
    """At the first point, at the second, … and, where the next process finds the batch there, once more as it says so;
    until a process gets through."""
    for at in range(1, 100):
        journey.write()
        died = journey.killed(at, trouble=True)
        if died:
            journey.killed("Adopted")
        journey.resume()
        journey.check()
        if not died:
            return
    raise AssertionError("no process got through")


@pytest.mark.parametrize(
    ("state", "mode", "every"),
    [*((name, Mode.MERGE, 1) for name in (*STATES, *SLOW_STATES)), *((name, Mode.APPEND, 3) for name in STATES)],
    indirect=["state"],
)
def test_at_every_event(request: pytest.FixtureRequest, state: State, mode: Mode, every: int) -> None:
    """Also before and after every write of the state: as a run is entered into the history, and as it is closed, no
    event tells of it."""
    target = MemoryTarget(request)
    journey = Journey(target, state, mode=mode, inside=True, every_write=True, commit_every=every)
    dies_everywhere(journey)
    journey.check_history()
    assert set(journey.deaths) == EVENTS | STATE_WRITES | target.points
    assert sum(journey.deaths.values()) >= 10


@pytest.mark.parametrize(("name", "mode"), [("delta", Mode.APPEND), ("postgres", Mode.MERGE), ("kafka", Mode.APPEND)])
def test_inside_the_sink(request: pytest.FixtureRequest, name: str, mode: Mode) -> None:
    """With `commit_every` the state hears of both batches of a round at once, and the sink remembers them till then."""
    target = {**TARGETS, "kafka": KafkaTarget}[name](request)
    journey = Journey(target, STATES["sqlite"](request), mode=mode, inside=True, commit_every=3)
    dies_everywhere(journey)
    journey.check_history()
    assert set(journey.deaths) == EVENTS | target.points


def test_between_the_objects_of_one_write(request: pytest.FixtureRequest) -> None:
    """A state of documents writes a position and its history one after the other; afterwards they agree.

    By the world's clock, as a second that passes between two looks at an idle table is one more write of its position:
    how many there were decides when old revisions are removed, and so which point has which number."""
    state = directory_state(request)
    journey = Journey(MemoryTarget(request), state, every_object=True)
    request.getfixturevalue("monkeypatch").setattr(state, "now", journey.world.clock.now)
    dies_everywhere(journey)
    journey.check_history()
    assert set(journey.deaths) == EVENTS | {"before create", "after create", "before delete", "after delete"}
    assert sum(journey.deaths.values()) >= 40
    state.close()


@pytest.mark.parametrize(("key_slices", "every"), [(False, 3), (True, 1)])
def test_in_the_first_load(request: pytest.FixtureRequest, state: State, key_slices: bool, every: int) -> None:
    """Each time into a target that does not exist yet; by ranges of the key the watermark moves with the last batch."""
    deaths: set[str] = set()
    for at in range(1, 100):
        target, table = MemoryTarget(request), f"orders_{at}"
        journey = Journey(target, state, table, key_slices=key_slices, inside=True, commit_every=every)
        journey.write()
        died = journey.killed(at, trouble=True)
        journey.resume()
        journey.check()
        if not died:
            break
        deaths |= set(journey.deaths)
    assert deaths == EVENTS | MemoryTarget.points


@pytest.mark.parametrize(("mode", "every"), [(Mode.MERGE, 1), (Mode.MERGE, 3), (Mode.APPEND, 3)])
def test_again_at_every_point_of_the_run_that_takes_over(
    request: pytest.FixtureRequest, mode: Mode, every: int
) -> None:
    """Every pair of points: the second process dies, too, wherever it may have got to."""
    pairs = 0
    for first in range(1, 100):
        journey = Journey(MemoryTarget(request), MemoryState(), mode=mode, inside=True, commit_every=every)
        for second in range(1, 100):
            journey.write()
            died = journey.killed(first, trouble=True) and journey.killed(second)
            pairs += died
            journey.resume()
            if not died:
                break
        journey.check()
        if second == 1:
            break
    assert pairs > 100

"""Whatever a caller's job does, in whatever order: every row is in exactly one window that was committed."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from strandline import Tracker
from strandline.core.errors import LeaseError
from strandline.core.events import Committed, Event
from strandline.testing.world import World
from strandline.tracking.run import TrackedRun

TABLES = ("orders", "fees")
DEED = st.sampled_from(["done", "pass", "skip", "fail", "break", "raise", "overtaken"])
ROUND = st.tuples(st.booleans(), DEED, DEED, st.sampled_from(["clean", "raise", "killed"]), st.booleans())


class Job:
    """Rows arrive and runs come and go. What a window held counts when the run says that it is committed."""

    def __init__(self) -> None:
        self.world = World()
        for table in TABLES:
            self.world.table(table)
        self.written: set[int] = set()
        self.committed: Counter[int] = Counter()

    def write(self) -> None:
        for table in TABLES:
            self.written.add(len(self.written) + 1)
            self.world.write(len(self.written), table=table)

    def start(self, *, atomic: bool = False) -> tuple[TrackedRun, dict[str, list[int]]]:
        seen: dict[str, list[int]] = {}

        def hear(event: Event) -> None:
            if isinstance(event, Committed):
                self.committed.update(seen[event.table])

        tracker = Tracker(self.world.state, pipeline="nightly", source=self.world.source, tables=TABLES, listener=hear)
        return tracker.run(atomic=atomic, renew=False), seen

    def finish(self) -> None:
        """As a job should be."""
        run, seen = self.start()
        with run:
            for table in run:
                changes: Any = table.changes
                seen[table.name] = [row["id"] for row in changes.rows()]

    def work(self, run: TrackedRun, seen: dict[str, list[int]], deeds: tuple[str, str]) -> None:
        for table, deed in zip(run, deeds, strict=False):
            changes: Any = table.changes
            seen[table.name] = [row["id"] for row in changes.rows()]
            match deed:
                case "done":
                    table.done()
                case "skip":
                    table.skip("later")
                case "fail":
                    table.fail("odd row")
                case "raise":
                    raise OSError("the job failed")
                case "overtaken":  # it paused for longer than its lease lasts
                    self.world.clock.advance(61)
                    self.finish()
                case "break":
                    break

    def round(self, deeds: tuple[str, str], end: str, atomic: bool) -> None:
        run, seen = self.start(atomic=atomic)
        if end == "killed":
            with suppress(OSError, LeaseError):
                self.work(run.__enter__(), seen, deeds)
            self.world.clock.advance(61)
            return
        with suppress(OSError, LeaseError), run:
            self.work(run, seen, deeds)
            if end == "raise":
                raise OSError("the job failed")


@given(st.lists(ROUND, max_size=6))
def test_every_row_is_in_exactly_one_committed_window(rounds: list[tuple[bool, str, str, str, bool]]) -> None:
    job = Job()
    for writes, first, second, end, atomic in rounds:
        if writes:
            job.write()
        job.round((first, second), end, atomic)
    job.finish()
    job.finish()
    assert job.committed == Counter(job.written)

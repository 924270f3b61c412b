"""Several runners on one state of documents, step by step against a plain dictionary: answers get lost, runners sleep,
die between two objects and come back, and what is stored is what the last successful write said."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from strandline.core.errors import ConflictError, TransientError
from strandline.core.protocols import Record
from strandline.objects.directory import DirectoryObjects
from strandline.state.objects import ObjectState

RUNNERS, TABLES = 3, ("orders", "items")
Stored = dict[tuple[str, tuple[str, ...]], tuple[int, int]]
"""Revision and value by kind and key."""

runners = st.integers(0, RUNNERS - 1)
tables = st.sampled_from(TABLES)
kinds = st.lists(st.sampled_from(["sync", "load", "lease", "table_run"]), min_size=1, max_size=3, unique=True)
late = st.sampled_from([0, 0, 0, 0, -1, -9, 1])  # how far from the stored revision a writer's is


class Killed(BaseException):
    pass


class Frail(DirectoryObjects):
    """Objects in a directory that lose answers, or take their user with them."""

    lost = 0
    deadly: int | None = None  # creations until death

    def create(self, key: str, data: bytes) -> bool:
        if self.deadly is not None:
            self.deadly -= 1
            if self.deadly < 0:
                raise Killed
        created = super().create(key, data)
        if self.lost:
            self.lost -= 1
            raise TransientError("no answer")
        return created


class Machine(RuleBasedStateMachine):
    layout = "table"

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.objects = [Frail(str(Path(self.folder.name) / "state")) for _ in range(RUNNERS)]
        self.runners = [ObjectState(objects, self.layout) for objects in self.objects]
        self.stored: Stored = {}
        self.value = 0

    def teardown(self) -> None:
        self.folder.cleanup()

    def records(self, table: str, parts: Sequence[str], late: int) -> list[Record]:
        """To be written together: all in one document, and the history that goes with it last, which is never late:
        its conflict would be found only after the document was written."""
        found = []
        for part in sorted(parts, key=lambda part: part == "table_run"):
            self.value += 1
            kind = part if part in ("lease", "table_run") else "position"
            key = {"lease": ("shop", table), "table_run": ("run", table, "sync")}.get(kind, ("shop", table, part))
            field = {"lease": "token", "table_run": "batches"}.get(kind, "epoch")
            behind = 0 if kind == "table_run" else late
            revision = max(0, self.stored.get((kind, key), (0, 0))[0] + behind)
            found.append(Record(kind, key, {field: self.value}, revision))
        return found

    def wanted(self, records: Sequence[Record]) -> Stored:
        values = {(each.kind, each.key): next(iter(each.fields.values())) for each in records}
        return {(each.kind, each.key): (each.revision + 1, int(values[each.kind, each.key] or 0)) for each in records}

    def current(self, records: Sequence[Record]) -> bool:
        return all(self.stored.get((each.kind, each.key), (0, 0))[0] == each.revision for each in records)

    def see(self, state: ObjectState) -> Stored:
        fields = {"position": "epoch", "lease": "token", "table_run": "batches"}
        return {
            (kind, each.key): (each.revision, int(each.fields[field] or 0))
            for kind, field in fields.items()
            for each in state.read(kind)
        }

    @rule(who=runners, table=tables, parts=kinds, late=late, lost=st.sampled_from([0, 0, 0, 1, 2]))
    def put(self, who: int, table: str, parts: list[str], late: int, lost: int) -> None:
        """A write is made if and only if every revision in its documents is the stored one."""
        records = self.records(table, parts, late)
        self.objects[who].lost = lost
        try:
            self.runners[who].put(records)
        except ConflictError:
            assert not self.current(records)
        else:
            assert self.current(records)
            self.stored |= self.wanted(records)
        finally:
            self.objects[who].lost = 0
        now = self.see(self.runners[(who + 1) % RUNNERS])
        assert now == self.stored

    @rule(who=runners, table=tables)
    def sleep(self, who: int, table: str) -> None:
        """While another writes so often that what the sleeper knows is removed."""
        self.put(who, table, ["sync"], 0, 0)
        for _ in range(9):
            self.put((who + 1) % RUNNERS, table, ["sync"], 0, 0)
        self.put(who, table, ["sync"], -9, 0)

    @rule(who=runners, table=tables, parts=kinds, deadly=st.integers(0, 4))
    def die(self, who: int, table: str, parts: list[str], deadly: int) -> None:
        """All of the write happened or nothing, once the next runner has asked about the run."""
        records = self.records(table, parts, 0)
        self.objects[who].deadly = deadly
        try:
            self.runners[who].put(records)
        except Killed:
            pass
        finally:
            self.objects[who].deadly = None
        self.runners[who] = heir = ObjectState(self.objects[who], self.layout)
        heir.read("position")
        heir.read("table_run", ["run"])
        now = self.see(heir)
        assert now in (self.stored, self.stored | self.wanted(records))
        self.stored = now

    @rule(who=runners)
    def look(self, who: int) -> None:
        assert self.see(self.runners[who]) == self.stored


class PipelineMachine(Machine):
    layout = "pipeline"


SEARCH = settings(max_examples=15, stateful_step_count=20)


@pytest.fixture(autouse=True)
def unflushed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a process has written outlives it without."""
    monkeypatch.setattr("os.fsync", lambda _: None)


@pytest.mark.parametrize("machine", [Machine, PipelineMachine])
def test_what_is_stored_is_what_the_last_successful_write_said(machine: type[Machine]) -> None:
    run_state_machine_as_test(machine, settings=SEARCH)

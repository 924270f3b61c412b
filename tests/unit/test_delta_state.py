"""How threads and processes share a state in Delta: who joins a commit, who waits, who is told."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from strandline.core.errors import CommitUnknownError, ConflictError, StateError, TransientError
from strandline.core.protocols import Record, Value
from strandline.state import delta_state
from strandline.state.delta_rows import Row
from strandline.state.delta_state import DeltaState
from strandline.testing.state import keys, position


class Table:
    """Commits of rows, in order."""

    def __init__(self) -> None:
        self.commits: list[list[Row]] = []

    def rows(self, since: int) -> list[Row]:
        return [row for rows in self.commits[since:] for row in rows]


class MemoryLog:
    """One reader and writer of a table; `before` is what happens first when it appends."""

    address = "memory:"

    def __init__(self, table: Table) -> None:
        self.table = table
        self.before: Callable[[], object] = lambda: None
        self._known = 0

    def now(self) -> datetime:
        return datetime.now(UTC)

    def identity(self) -> str:
        return "one"

    def load(self) -> list[Row]:
        return self.added()

    def added(self) -> list[Row]:
        known, self._known = self._known, len(self.table.commits)
        return self.table.rows(known)

    def append(self, rows: Sequence[Row]) -> bool:
        self.before()
        if self._known != len(self.table.commits):
            return False
        self.table.commits.append(list(rows))
        self._known += 1
        return True

    def history(
        self, kind: str, prefix: Sequence[str], where: Mapping[str, Value], since: str | None, newest: int | None
    ) -> list[Row]:
        raise NotImplementedError

    def stored(self, records: Sequence[Record]) -> list[Row]:
        raise NotImplementedError

    def drop(self, kind: str, before: str) -> int:
        raise NotImplementedError

    def tidy(self) -> bool:
        return False

    def close(self) -> None: ...


@pytest.fixture
def log() -> MemoryLog:
    return MemoryLog(Table())


@pytest.fixture
def state(log: MemoryLog) -> DeltaState:
    return DeltaState(log)


@contextmanager
def while_one_is_written(
    state: DeltaState, log: MemoryLog, *writes: Callable[[], object]
) -> Iterator[list[Future[Any]]]:
    """Threads that make these writes, in this order, all waiting until the first one's commit goes on."""
    begun, go = threading.Event(), threading.Event()

    def hold() -> None:
        log.before = lambda: None
        begun.set()
        assert go.wait(60)

    log.before = hold
    with ThreadPoolExecutor(len(writes)) as pool:
        futures = []
        for number, write in enumerate(writes):
            futures.append(pool.submit(write))
            assert begun.wait(60)
            while len(state._waiting) < number:
                threading.Event().wait(0.001)
        go.set()
        yield futures


def test_writes_that_come_during_a_commit_share_the_next(state: DeltaState, log: MemoryLog) -> None:
    writes = [lambda name=name: state.put([position(name)]) for name in "abcd"]
    with while_one_is_written(state, log, *writes) as futures:
        written = [record for future in futures for record in future.result()]
    assert written == state.read("position")
    assert [len(rows) for rows in log.table.commits] == [1, 3]


def test_two_writes_of_one_record_never_share_a_commit(state: DeltaState, log: MemoryLog) -> None:
    (old,) = state.put([position("b", epoch=1)])
    writes = [
        lambda: state.put([position("a")]),
        lambda: state.put([replace(old, fields={"epoch": 2})]),
        lambda: state.put([replace(old, fields={"epoch": 3}), position("c")]),
        lambda: state.put([position("d")]),
    ]
    with while_one_is_written(state, log, *writes) as (a, b, late, d):
        assert [len(future.result()) for future in (a, b, d)] == [1, 1, 1]
        with pytest.raises(ConflictError, match="shop/b/load"):
            late.result()
    assert [record.fields["epoch"] for record in state.read("position")] == [None, 2, None]
    assert keys(state.read("position")) == [("shop", name, "load") for name in "abd"]


def test_a_commit_that_fails_tells_each_of_its_writers(state: DeltaState, log: MemoryLog) -> None:
    def broken() -> None:
        raise StateError("the disk is gone", remedy="bring it back")

    def put(name: str) -> None:
        if name == "b":
            log.before = broken
        state.put([position(name)])

    with while_one_is_written(state, log, *[lambda name=name: put(name) for name in "abc"]) as (first, *others):
        assert first.result() is None
        told = [future.exception() for future in others]
    assert [str(error) for error in told] == ["the disk is gone"] * 2
    assert [getattr(error, "remedy", "") for error in told] == ["bring it back"] * 2
    assert told[0] is not told[1]  # each has its own pipeline and table written into it
    assert keys(state.read("position")) == [("shop", "a", "load")]


def test_whoever_is_interrupted_does_not_leave_others_believing(state: DeltaState, log: MemoryLog) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    def put(name: str) -> None:
        if name == "b":
            log.before = interrupted
        state.put([position(name)])

    with while_one_is_written(state, log, *[lambda name=name: put(name) for name in "abc"]) as (_, *others):
        told = {type(future.exception()) for future in others}
    assert told == {KeyboardInterrupt, CommitUnknownError}


def test_one_who_is_always_forestalled_is_told_so_in_the_end(
    state: DeltaState, log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_state, "_PATIENCE_SECONDS", 0.2)
    others, count = DeltaState(MemoryLog(log.table)), iter(range(10**9))
    log.before = lambda: others.put([position(f"other {next(count)}")])
    with pytest.raises(TransientError, match=r"others were quicker \d+ times in \d+ s") as told:
        state.put([position("mine")])
    assert "postgresql://" in told.value.remedy
    log.before = lambda: None
    assert state.put([position("mine")])[0].revision == 1

"""A process dies at every event of the stream, on every sink and every state store; the next one goes on from there.

Everything happens in this process: death is an exception that no handler of the product sees. Real SIGKILLs are in
`test_kills`. A sink or a store of a new kind is one more entry in SINKS or STATES.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, QueryBuilder
from test_sql_types import asked

from strandline.core.batch import Batch
from strandline.core.errors import CommitUnknownError
from strandline.core.position import Status
from strandline.core.protocols import Sink, State
from strandline.core.records import COUNTS
from strandline.core.table import Mode
from strandline.endpoint import Endpoint
from strandline.objects.directory import DirectoryObjects
from strandline.sinks import open_sink
from strandline.sinks.mysql_target import MySqlTargetDialect
from strandline.sinks.postgres_target import PostgresTargetDialect
from strandline.sinks.sql_dialect import Place
from strandline.sinks.sql_ledger import Ledger, create_text
from strandline.sinks.sql_stage import Staging
from strandline.state import open_state
from strandline.state.memory import MemoryState
from strandline.state.objects import ObjectState
from strandline.testing.database import Row
from strandline.testing.memory import MemorySink
from strandline.testing.world import Killed, World

Reach = Callable[[str], None]
"""A point at which a process can die, by name."""

EVENTS = {"Planned", "Intended", "Retrying", "Adopted", "BatchApplied", "Committed", "TableFinished"}
STATE_WRITES = {"before put", "after put"}


class Target(ABC):
    """A sink, a way to look into it, and the points inside it at which a process can die."""

    sink: Sink
    points: frozenset[str]

    @abstractmethod
    def rows(self, table: str) -> list[Row]: ...

    @abstractmethod
    def log(self, table: str) -> list[Batch]:
        """Every batch that changed the table, oldest first."""

    @abstractmethod
    def watch(self, patch: pytest.MonkeyPatch, reach: Reach) -> None: ...


class MemoryTarget(Target):
    points = frozenset({"before the commit", "after the commit"})

    def __init__(self, _: pytest.FixtureRequest) -> None:
        self.sink = self.memory = MemorySink()

    def rows(self, table: str) -> list[Row]:
        return self.memory.rows(table)

    def log(self, table: str) -> list[Batch]:
        assert self.memory.targets() == [table]
        return self.memory.log

    def watch(self, patch: pytest.MonkeyPatch, reach: Reach) -> None:
        real = self.memory.apply

        def apply(*given: Any, **how: Any) -> Any:
            self.memory.at_commit(before=lambda: reach("before the commit"), after=lambda: reach("after the commit"))
            try:
                return real(*given, **how)
            finally:
                self.memory.forget_actions()

        patch.setattr(self.memory, "apply", apply)


class DeltaTarget(Target):
    points = frozenset({"before prepare", "before run", "after run"})

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self.folder: Path = request.getfixturevalue("tmp_path") / "lake"
        spark = request.getfixturevalue("spark")
        self.sink = open_sink(Endpoint.parse(f"delta:{self.folder}"), lambda: spark)

    def rows(self, table: str) -> list[Row]:
        found = QueryBuilder().register("t", self._delta(table)).execute("SELECT * FROM t").read_all()
        columns = {name: found[name].to_pylist() for name in found.schema.names}
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def log(self, table: str) -> list[Batch]:
        notes = [commit["userMetadata"] for commit in self._delta(table).history() if "userMetadata" in commit]
        return [Batch.from_json(json.dumps(json.loads(note)["strandline"])) for note in reversed(notes)]

    def watch(self, patch: pytest.MonkeyPatch, reach: Reach) -> None:
        from strandline.sinks.delta_write import Write

        watched(patch, Write, "prepare", reach, after=False)
        watched(patch, Write, "run", reach)

    def _delta(self, table: str) -> DeltaTable:
        return DeltaTable(str(self.folder / table))


NOTES = {
    "postgresql": (
        "CREATE TABLE notes (n serial, target text, batch text)",
        "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN "
        "INSERT INTO notes (target, batch) VALUES (NEW.target, NEW.batch); RETURN NULL; END'",
        "CREATE TRIGGER note AFTER UPDATE ON strandline_ledger FOR EACH ROW "
        "WHEN (NEW.number <> OLD.number) EXECUTE FUNCTION note()",
    ),
    "mysql": (
        "CREATE TABLE notes (n int AUTO_INCREMENT PRIMARY KEY, target text, batch text)",
        "CREATE TRIGGER note AFTER UPDATE ON strandline_ledger FOR EACH ROW "
        "IF NEW.number <> OLD.number THEN INSERT INTO notes (target, batch) VALUES (NEW.target, NEW.batch); END IF",
    ),
}


class SqlTarget(Target):
    """A database. Its ledger holds the last batch only; here it notes each one, in the batch's own transaction."""

    database: str
    points = frozenset({"before _prepare", "before fill", "before count", "after count", "after run"})

    def __init__(self, request: pytest.FixtureRequest) -> None:
        url, spark = request.getfixturevalue(self.database), request.getfixturevalue("spark")
        endpoint = Endpoint.parse(url)
        self.ask = asked(url)
        self.sink = open_sink(endpoint, lambda: spark)
        request.addfinalizer(self.sink.close)
        dialect = PostgresTargetDialect() if endpoint.scheme == "postgresql" else MySqlTargetDialect(mariadb=True)
        place = Place("public" if endpoint.scheme == "postgresql" else endpoint.path, "")
        for statement in (create_text(dialect, place), *NOTES[endpoint.scheme]):
            self.ask(statement)

    def rows(self, table: str) -> list[Row]:
        found = self.ask(f"SELECT id, value, moved FROM {table}")
        return [{"id": id_, "value": value, "moved": _aware(moved)} for id_, value, moved in found]

    def log(self, table: str) -> list[Batch]:
        found = self.ask(f"SELECT batch FROM notes WHERE target = '{table}' ORDER BY n")
        return [Batch.from_json(text) for (text,) in found]

    def watch(self, patch: pytest.MonkeyPatch, reach: Reach) -> None:
        from strandline.sinks.sql_move import Move
        from strandline.sinks.sql_write import Write

        watched(patch, Write, "_prepare", reach, after=False)
        watched(patch, Staging, "fill", reach, after=False)
        watched(patch, Ledger, "count", reach)
        watched(patch, Move, "run", reach, before=False)


def _aware(moved: datetime | None) -> datetime | None:
    return moved if moved is None or moved.tzinfo else moved.replace(tzinfo=UTC)


class PostgresTarget(SqlTarget):
    database = "pg_database"


class MariadbTarget(SqlTarget):
    database = "mariadb_database"


def memory_state(_: pytest.FixtureRequest) -> State:
    return MemoryState()


def sqlite_state(request: pytest.FixtureRequest) -> State:
    return open_state(Endpoint.parse(f"sqlite:///{request.getfixturevalue('tmp_path')}/state.db"))


def postgres_state(request: pytest.FixtureRequest) -> State:
    return open_state(Endpoint.parse(request.getfixturevalue("pg_database")))


def mariadb_state(request: pytest.FixtureRequest) -> State:
    return open_state(Endpoint.parse(request.getfixturevalue("mariadb_database")))


def directory_state(request: pytest.FixtureRequest) -> State:
    """Not flushed to the disk: what a process has written outlives it all the same."""
    request.getfixturevalue("monkeypatch").setattr("os.fsync", lambda _: None)
    return open_state(Endpoint.parse(f"{request.getfixturevalue('tmp_path')}/state"))


SINKS: dict[str, Callable[[pytest.FixtureRequest], Target]] = {
    "memory": MemoryTarget,
    "delta": DeltaTarget,
    "postgres": PostgresTarget,
    "mariadb": MariadbTarget,
}
STATES = {
    "memory": memory_state,
    "sqlite": sqlite_state,
    "postgres": postgres_state,
    "mariadb": mariadb_state,
    "directory": directory_state,
}


@pytest.fixture(params=STATES)
def state(request: pytest.FixtureRequest) -> Iterator[State]:
    state = STATES[request.param](request)
    yield state
    state.close()


def watched(
    patch: pytest.MonkeyPatch, owner: object, method: str, reach: Reach, *, before: bool = True, after: bool = True
) -> None:
    """A process can die before and after each call of this method."""
    real = getattr(owner, method)

    def call(*given: Any, **named: Any) -> Any:
        if before:
            reach(f"before {method}")
        result = real(*given, **named)
        if after:
            reach(f"after {method}")
        return result

    patch.setattr(owner, method, call)


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
    ) -> None:
        """Where a process can die apart from events: `inside` the sink, before and after `every_write` of the state, or
        of `every_object` that such a write is made of."""
        self.target = target
        self.world = World(state=state, into=target.sink, key_slices=key_slices)
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


@pytest.mark.parametrize(("sink", "mode"), [("memory", Mode.MERGE), ("memory", Mode.APPEND), ("delta", Mode.APPEND)])
def test_at_every_event(request: pytest.FixtureRequest, state: State, sink: str, mode: Mode) -> None:
    """Where a batch costs nothing, also before and after every write of the state: as a run is entered into the
    history, and as it is closed, no event tells of it."""
    if sink == "delta" and isinstance(state, ObjectState):
        pytest.skip("what Spark adds was shown on the other stores, and this one is at every object below")
    target, quick = SINKS[sink](request), sink == "memory"
    journey = Journey(target, state, mode=mode, inside=quick, every_write=quick)
    dies_everywhere(journey)
    journey.check_history()
    assert set(journey.deaths) == EVENTS | (STATE_WRITES | target.points if quick else set())
    assert sum(journey.deaths.values()) >= 10


@pytest.mark.parametrize("sink", SINKS)
def test_inside_the_sink(request: pytest.FixtureRequest, sink: str) -> None:
    target = SINKS[sink](request)
    journey = Journey(target, MemoryState(), inside=True)
    dies_everywhere(journey)
    journey.check_history()
    assert set(journey.deaths) == EVENTS | target.points


def test_between_the_objects_of_one_write(request: pytest.FixtureRequest) -> None:
    """A state of documents writes a position and its history one after the other; afterwards they agree."""
    state = directory_state(request)
    journey = Journey(MemoryTarget(request), state, every_object=True)
    dies_everywhere(journey)
    journey.check_history()
    assert set(journey.deaths) == EVENTS | {"before create", "after create", "before delete", "after delete"}
    assert sum(journey.deaths.values()) >= 40
    state.close()


@pytest.mark.parametrize("key_slices", [False, True])
def test_in_the_first_load(request: pytest.FixtureRequest, state: State, key_slices: bool) -> None:
    """Each time into a target that does not exist yet; by ranges of the key the watermark moves with the last batch."""
    deaths: set[str] = set()
    for at in range(1, 100):
        journey = Journey(MemoryTarget(request), state, f"orders_{at}", key_slices=key_slices, inside=True)
        journey.write()
        died = journey.killed(at, trouble=True)
        journey.resume()
        journey.check()
        if not died:
            break
        deaths |= set(journey.deaths)
    assert deaths == EVENTS | MemoryTarget.points


@pytest.mark.parametrize("mode", [Mode.MERGE, Mode.APPEND])
def test_again_at_every_point_of_the_run_that_takes_over(request: pytest.FixtureRequest, mode: Mode) -> None:
    """Every pair of points: the second process dies, too, wherever it may have got to."""
    pairs = 0
    for first in range(1, 100):
        journey = Journey(MemoryTarget(request), MemoryState(), mode=mode, inside=True)
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

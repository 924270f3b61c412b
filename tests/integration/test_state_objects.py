"""The state as documents: what a person reads, damage, lost answers, late writers, the clock, and what it all costs."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from strandline.core.batch import Applied, Batch
from strandline.core.books import Books, Caller, Lease, TableRun
from strandline.core.errors import (
    CommitUnknownError,
    ConfigError,
    ConflictError,
    ConnectError,
    LeaseError,
    StateError,
    TransientError,
)
from strandline.core.position import Position, Status
from strandline.core.watermark import Kind, Watermark
from strandline.endpoint import Endpoint
from strandline.objects import Entry, open_objects
from strandline.objects.directory import DirectoryObjects
from strandline.state import open_state, schema
from strandline.state.objects import ObjectState
from strandline.testing.state import position, run
from strandline.testing.stores import Seaweed
from strandline.testing.wire import Wire
from strandline.testing.world import World

ORDERS = Position("shop", "orders", "sync")


class Watched(DirectoryObjects):
    """Objects in a directory behind a count of requests, with answers that can be lost."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.asked: Counter[str] = Counter()
        self.lost = 0  # so many answers to creations do not come back
        self.down = False
        self.then: Callable[[], object] = lambda: None  # what happens right after the next creation

    def find(self, key: str) -> tuple[bytes, Entry] | None:
        self._ask("get")
        return super().find(key)

    def create(self, key: str, data: bytes) -> bool:
        self._ask("put")
        created = super().create(key, data)
        then, self.then = self.then, lambda: None
        then()
        if self.lost:
            self.lost -= 1
            raise TransientError("no answer")
        return created

    def replace(self, key: str, data: bytes, etag: str | None = None) -> str | None:
        self._ask("put")
        return super().replace(key, data, etag)

    def list(self, prefix: str = "", after: str = "") -> Iterator[Entry]:
        self._ask("list")
        for number, entry in enumerate(super().list(prefix, after), 1):
            if number % 1000 == 1 and number > 1:
                self._ask("list")
            yield entry

    def delete(self, keys: Iterable[str]) -> None:
        self._ask("delete")
        super().delete(keys)

    def cost(self) -> dict[str, int]:
        """Requests since the last time this was asked."""
        asked, self.asked = self.asked, Counter()
        return dict(asked)

    def _ask(self, what: str) -> None:
        if self.down:
            raise TransientError("the store is away")
        self.asked[what] += 1


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def objects(folder: Path) -> Watched:
    return Watched(str(folder))


def opened(folder: Path, **options: str) -> ObjectState:
    state = open_state(Endpoint.parse(str(folder), options))
    assert isinstance(state, ObjectState)
    return state


def newest(folder: Path, table: str = "orders") -> Path:
    return max((folder / "tables" / "shop" / table).iterdir())


def mark(day: int) -> Watermark:
    return Watermark(Kind.TIMESTAMP, f"2026-01-{day:02} 00:00:00")


def stored(folder: Path, *days: int, table: str = "orders", stage: str = "sync") -> Position:
    """A position that was moved to each of these days."""
    books, last = Books(opened(folder)), replace(ORDERS, table=table, stage=stage)
    for day in days:
        batch = Batch(books.store, 1, day, None, mark(day), mark(day), "attempt")
        (last,) = books.write([replace(last, watermark=mark(day), batch=batch, totals=Applied(day))])
    return last


# What a person reads


def test_a_table_is_one_document_that_a_person_can_read(folder: Path) -> None:
    stored(folder, 1, 2)
    stored(folder, 7, stage="load")
    books = Books(opened(folder))
    books.state.put([books.take(Lease("shop", "orders"), "run 1").record()])
    read = json.loads(newest(folder).read_text())
    assert (read["pipeline"], read["table_name"], read["revision"]) == ("shop", "orders", 4)
    assert list(read["stages"]) == ["load", "sync"]
    sync = read["stages"]["sync"]
    assert (sync["watermark"], sync["status"], sync["rows_read"]) == ("2026-01-02 00:00:00", "COMPLETED", 2)
    assert sync["batch"]["number"] == 2  # not a text in a text
    assert sync["updated_at"].endswith("Z")
    assert read["lease"]["run_id"] == "run 1"


def test_one_document_per_pipeline_where_that_is_asked_for(folder: Path) -> None:
    state = opened(folder, layout="pipeline")
    state.put([position("orders"), position("customers"), position("items", pipeline="stock")])
    assert [len(list(path.iterdir())) for path in sorted((folder / "pipelines").iterdir())] == [1, 1]
    read = json.loads((folder / "pipelines/shop/000000000001.json").read_text())
    assert list(read["stages"]) == ["customers", "orders"]
    with pytest.raises(ConfigError, match='made with layout "pipeline"') as caught:
        opened(folder)
    assert "layout: pipeline" in caught.value.remedy


def test_names_of_any_length_and_sign_are_found_again(folder: Path) -> None:
    names = ["settlement.claim_detail", "..", ".", "a/b", "é" * 190, "é" * 189 + "e", "%41", "=41", "A", "tables/shop"]
    state = opened(folder)
    state.put([position(name, pipeline=name) for name in names])
    again = opened(folder)
    assert {record.key[1] for record in again.read("position")} == set(names)
    assert all(len(again.read("position", [name, name])) == 1 for name in names)
    assert (folder / "tables/settlement.claim_detail/settlement.claim_detail").is_dir()


def test_a_few_revisions_stay(folder: Path) -> None:
    stored(folder, *range(1, 28))
    kept = sorted((folder / "tables/shop/orders").iterdir())
    assert 3 <= len(kept) <= 8
    assert kept[-1].name == "000000000027.json"
    state = opened(folder)
    record = run("r1", status="RUNNING", ended_at="")
    for _ in range(5):
        (record,) = state.put([record])
    assert len(list((folder / "runs").rglob("*.json"))) == 1


# Damage


def _edited(path: Path) -> None:
    path.write_text(path.read_text().replace("2026-01-03", "2026-01-04"))


def _copied(name: str) -> Callable[[Path], object]:
    return lambda path: path.write_bytes((path.parent / name).read_bytes())


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "emptied": (lambda path: path.write_bytes(b""), "is empty"),
    "truncated": (lambda path: path.write_bytes(path.read_bytes()[:-40]), "not JSON, or only a part"),
    "edited": (_edited, "edited by hand"),
    "binary": (lambda path: path.write_bytes(b"\xff\x00" * 99), "not JSON"),
    "somebody else's": (lambda path: path.write_text("{}"), "no checksum"),
    "an older one": (_copied("000000000002.json"), "copy of tables/shop/orders, revision 2"),
    "another table's": (_copied("../items/000000000001.json"), "copy of tables/shop/items"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_document_is_named_with_its_last_good_version_and_disturbs_no_other(
    folder: Path, damage: str
) -> None:
    stored(folder, 1, 2, 3)
    items = stored(folder, 5, table="items")
    act, said = DAMAGES[damage]
    path = newest(folder)
    act(path)
    before = path.read_bytes()
    books, unreadable = Books(opened(folder)), dict[tuple[str, str, str], StateError]()
    assert books.positions("shop", unreadable=unreadable) == {("shop", "items", "sync"): items}
    error = unreadable["shop", "orders", "sync"]
    assert said in error.message
    assert str(path) in error.message
    assert "revision 2, watermark 2026-01-02 00:00:00" in error.message
    assert "watermark import" in error.remedy and "watermark set" in error.remedy
    with pytest.raises(ConflictError):  # nobody writes over it who has not seen it
        books.write([ORDERS])
    assert path.read_bytes() == before


def test_whoever_saw_only_what_was_before_the_damage_is_refused(folder: Path) -> None:
    late = opened(folder)
    (record,) = late.put([position("orders", epoch=1)])
    opened(folder).put([replace(record, fields={"epoch": 2})])
    newest(folder).write_bytes(b"")
    with pytest.raises(ConflictError):
        late.put([replace(record, fields={"epoch": 3})])


def test_what_replaces_a_damaged_position_leaves_the_other_stage_damaged(folder: Path) -> None:
    stored(folder, 1)
    stored(folder, 9, stage="load")
    stored(folder, 1, table="other")
    books = Books(opened(folder))
    books.write([replace(books.positions()["shop", "orders", "sync"], watermark=mark(2))])
    newest(folder).write_bytes(b"")

    def restore(stage: str) -> set[str]:
        """Which stages cannot be read afterwards."""
        (seen,) = opened(folder).read("position", ["shop", "orders", stage])
        restored = Position("shop", "orders", stage, watermark=mark(3), revision=seen.revision)
        Books(opened(folder)).write([restored])
        unreadable: dict[tuple[str, str, str], StateError] = {}
        assert (
            restored.watermark
            == Books(opened(folder)).positions(unreadable=unreadable)["shop", "orders", stage].watermark
        )
        return {key[2] for key in unreadable}

    assert restore("sync") == {"load"}
    assert restore("load") == set()


def test_without_any_good_version_the_position_is_unreadable_and_not_new(folder: Path) -> None:
    stored(folder, 1, 2, 3)
    for path in (folder / "tables/shop/orders").iterdir():
        path.write_bytes(b"")
    books, unreadable = Books(opened(folder)), dict[tuple[str, str, str], StateError]()
    assert books.positions("shop", unreadable=unreadable) == {}
    error = books.unreadable_at(unreadable, ("shop", "orders", "load"))
    assert error is not None and "no good version is left" in error.message
    with pytest.raises(ConflictError):
        books.write([ORDERS])
    (seen,) = books.state.read("position", ["shop", "orders", "sync"])
    books.write([replace(ORDERS, watermark=mark(3), revision=seen.revision)])
    assert Books(opened(folder)).positions()["shop", "orders", "sync"].watermark == mark(3)


def test_a_lease_outlives_the_damage_of_its_document(folder: Path) -> None:
    stored(folder, 1)
    books = Books(opened(folder))
    books.state.put([books.take(Lease("shop", "orders"), "run 1").record()])
    stored(folder, 1, stage="load")
    newest(folder).write_bytes(b"")
    assert Books(opened(folder)).leases("shop")["orders"].run_id == "run 1"


def test_a_run_goes_on_over_damage_since_it_knows_what_it_wrote(folder: Path) -> None:
    state = opened(folder)
    (record,) = state.put([position("orders", epoch=1)])
    newest(folder).write_bytes(b"")
    state.put([replace(record, fields={"epoch": 2})])
    assert opened(folder).read("position")[0].fields["epoch"] == 2


def test_damaged_history_is_left_out_and_said(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    opened(folder).append([run("r1"), run("r2")])
    (path,) = (path for path in (folder / "runs").rglob("*.json") if ".r1" in str(path))
    path.write_bytes(b"")
    assert [record.key for record in opened(folder).read("run")] == [("r2",)]
    assert str(path) in caplog.text


def test_the_stores_own_mark_is_guarded(folder: Path) -> None:
    stored(folder, 1)
    root = folder / "strandline.json"
    good = root.read_text()
    root.write_text(good.replace('"table"', '"pipeline"'))
    with pytest.raises(StateError, match="edited by hand"):
        opened(folder)
    root.unlink()
    with pytest.raises(StateError, match="lost its own mark"):
        opened(folder)
    root.write_text(good)
    opened(folder)


def test_a_newer_store_is_refused_and_an_older_one_raised(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored(folder, 1)
    monkeypatch.setattr(schema, "VERSION", schema.VERSION + 1)
    opened(folder)
    assert json.loads((folder / "strandline.json").read_text())["schema_version"] == schema.VERSION
    monkeypatch.undo()
    with pytest.raises(StateError, match="newer Strandline"):
        opened(folder)


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "report.txt").write_text("mine")
    with pytest.raises(StateError, match="something else"):
        opened(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["report.txt"]


def test_an_option_that_does_not_exist_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="layuot: only layout"):
        opened(folder, layuot="table")
    with pytest.raises(ConfigError, match="layout is"):
        opened(folder, layout="row")


def test_a_login_that_may_only_read_is_refused_with_the_rights_it_needs(seaweed: Seaweed) -> None:
    with pytest.raises(ConnectError, match="access is denied") as caught:
        open_state(seaweed.endpoint("states", "read-only", access_key_id="reader"))
    assert "s3:PutObject" in caught.value.remedy


# Lost answers and late writers


@pytest.mark.parametrize("lost", [1, 2])
def test_a_write_whose_answer_was_lost_is_found_and_counts_once(objects: Watched, lost: int) -> None:
    state = ObjectState(objects)
    objects.lost = lost
    (put,) = state.put([position("orders", epoch=1)])
    assert state.read("position") == [put]
    objects.lost = lost
    (again,) = state.put([replace(put, fields={"epoch": 2})])
    assert again.revision == 2
    assert ObjectState(objects).read("position") == [replace(again, fields={**put.fields, "epoch": 2})]


def test_a_write_whose_answer_never_comes_may_have_been_made(objects: Watched) -> None:
    state = ObjectState(objects)
    objects.lost = 9
    with pytest.raises(CommitUnknownError, match="cannot be told"):
        state.put([position("orders")])
    objects.lost = 0
    assert len(ObjectState(objects).read("position")) == 1


def test_a_write_that_others_went_on_from_counts_as_made(objects: Watched, folder: Path) -> None:
    state, other = ObjectState(objects, "pipeline"), opened(folder, layout="pipeline")

    def go_on() -> None:
        for number in range(10):  # so many that ours is removed meanwhile
            other.put([position(f"other {number}")])

    objects.then, objects.lost = go_on, 1
    (put,) = state.put([position("orders")])
    assert put in other.read("position")
    assert state.put([put])[0].revision == 2


def test_a_writer_that_slept_through_many_revisions_is_refused(folder: Path) -> None:
    late, other = opened(folder), opened(folder)
    (record,) = late.put([position("orders", epoch=0)])
    for epoch in range(1, 21):
        (newer,) = other.put([replace(other.read("position")[0], fields={"epoch": epoch})])
    assert not (folder / "tables/shop/orders/000000000002.json").exists()  # the name it will find free
    with pytest.raises(ConflictError):
        late.put([replace(record, fields={"epoch": 99})])
    assert late.read("position") == other.read("position") == [newer]
    assert min((folder / "tables/shop/orders").iterdir()).name > "000000000010.json"


def test_a_store_that_is_away_is_worth_another_try(objects: Watched) -> None:
    state = ObjectState(objects)
    objects.down = True
    with pytest.raises(TransientError):
        state.read("position")
    objects.down = False
    assert state.read("position") == []


def test_a_cut_wire_loses_an_answer_and_no_write(seaweed: Seaweed) -> None:
    with Wire("127.0.0.1", seaweed.port) as wire:
        by_wire = f"http://127.0.0.1:{wire.port}"
        state = open_state(seaweed.endpoint("states", uuid.uuid4().hex, endpoint=by_wire))
        (record,) = state.put([position("orders", epoch=1)])
        wire.cut_after = 0
        (record,) = state.put([replace(record, fields={"epoch": 2})])
        assert (record.revision, wire.cuts) == (2, 1)
        wire.down = True
        wire.cut()
        with pytest.raises(TransientError):
            state.put([replace(record, fields={"epoch": 3})])
        wire.down = False
        assert state.read("position")[0].fields["epoch"] == 2
        assert state.put([replace(record, fields={"epoch": 4})])[0].revision == 3


def test_a_lease_taken_before_a_conflict_is_given_back(folder: Path) -> None:
    """The history of an earlier run stands in the way: the table was taken by then."""
    books = Books(opened(folder))
    entry = TableRun("run", "shop", "orders", "sync", Status.PLANNED, None, books.now())
    books.state.put([replace(entry, status=Status.FAILED).record()])
    with pytest.raises(LeaseError):
        books.begin(ORDERS, Lease("shop", "orders"), entry)
    lease = books.leases("shop")["orders"]
    assert (lease.token, lease.held(books.state.now())) == (1, False)


# The clock


def test_the_clock_is_the_stores_and_not_the_hosts(seaweed: Seaweed, monkeypatch: pytest.MonkeyPatch) -> None:
    state = open_state(seaweed.endpoint("states", "clock"))
    before = datetime.now(UTC) - timedelta(seconds=2)
    monkeypatch.setattr("time.time", lambda: 0.0)
    assert before < state.now() <= datetime.now(UTC)
    state.put([position("orders")])
    assert before < state.now() <= datetime.now(UTC)


def test_a_clock_that_is_set_back_is_followed(folder: Path) -> None:
    from strandline.state.objects_clock import StoreClock, steady

    clock = StoreClock(open_objects(Endpoint.parse(str(folder))))
    now = clock.now()
    clock.saw(Entry("x", 0, now - timedelta(hours=1), ""), steady(), steady())
    assert clock.now() < now - timedelta(minutes=59)


# What it costs


def thousand(objects: Watched, layout: str) -> None:
    state = ObjectState(objects, layout)
    state.put([position(f"table_{number:04}", status="COMPLETED") for number in range(1000)])


@pytest.mark.parametrize(
    ("layout", "first", "again", "write"),
    [
        ("table", {"put": 1, "get": 1002, "list": 2}, {"list": 1}, {"put": 1000, "list": 1000}),
        ("pipeline", {"put": 1, "get": 3, "list": 2}, {"list": 1}, {"put": 1, "list": 1}),
    ],
)
def test_planning_a_thousand_tables_costs_what_the_docs_say(
    objects: Watched,
    monkeypatch: pytest.MonkeyPatch,
    layout: str,
    first: dict[str, int],
    again: dict[str, int],
    write: dict[str, int],
) -> None:
    monkeypatch.setattr("os.fsync", lambda _: None)
    thousand(objects, layout)
    objects.cost()
    books = Books(ObjectState(objects, layout))
    records = books.state.read("position", ["shop"])
    books.leases("shop")
    books.now()
    assert objects.cost() == first
    assert books.state.read("position", ["shop"]) == records
    assert objects.cost() == again
    books.state.put(records)
    assert objects.cost() == write


def test_a_step_of_a_run_costs_two_requests_per_document(objects: Watched) -> None:
    books = Books(ObjectState(objects))
    run_ = books.run_started("run", "shop", Caller("test"), 1)
    entry = TableRun("run", "shop", "orders", "sync", Status.PLANNED, None, books.now())
    at, entry = books.begin(ORDERS, Lease("shop", "orders"), entry)
    at, entry = books.commit(at, entry)
    objects.cost()
    at, entry = books.commit(at, entry)
    assert objects.cost() == {"put": 2, "list": 2, "delete": 1}
    books.renew()
    assert objects.cost() == {"put": 1, "list": 1}
    books.commit(at, entry, done=True)
    objects.cost()
    books.run_ended(run_, Status.COMPLETED, "")
    assert sum(objects.cost().values()) <= 10


@pytest.mark.parametrize("every", [1, 10, 100])
def test_a_run_costs_two_documents_per_so_many_batches(
    objects: Watched, every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.fsync", lambda _: None)
    world = World(state=ObjectState(objects), commit_every=every)
    world.table(slice_rows=1)
    for number in range(40):
        world.write(number)
        if number == 19:
            assert world.poll()["orders"].batches == 20
    objects.cost()
    outcome = world.poll()["orders"]
    cost, writes = objects.cost(), -(-20 // every)
    assert (outcome.status, outcome.batches, outcome.applied.rows_read) == (Status.COMPLETED, 20, 20)
    assert (cost["put"], cost["list"]) == (7 + 2 * writes, 14 + 2 * writes)


def test_the_newest_of_a_long_history_are_found_without_reading_it(objects: Watched) -> None:
    state = ObjectState(objects)
    state.append(
        [run(f"2026{number:04}", pipeline="ab"[number % 2], status="COMPLETED", ended_at="x") for number in range(600)]
    )
    state.put([run("20250000", pipeline="a", status="RUNNING")])
    objects.cost()
    assert [record.key[0] for record in state.read("run", newest=3)] == ["20260599", "20260598", "20260597"]
    assert objects.cost() == {"list": 1, "get": 3}
    found = state.read("run", where={"pipeline": "b"}, newest=2)
    assert [record.key[0] for record in found] == ["20260599", "20260597"]
    assert objects.cost() == {"list": 3, "get": 2}
    found = state.read("run", where={"pipeline": "a", "status": "RUNNING"}, newest=20)
    assert [record.key[0] for record in found] == ["20250000"]
    assert objects.cost() == {"list": 2}  # and what it holds is known, since it was written here
    assert len(state.read("run", since="20260590")) == 10
    assert objects.cost() == {"list": 1, "get": 10}
    state.put([replace(found[0], fields={**found[0].fields, "status": "FAILED"})])
    assert state.read("run", where={"pipeline": "a", "status": "RUNNING"}, newest=20) == []
    assert state.prune("run", "20260100") == 101
    assert state.read("run", where={"pipeline": "a"}, newest=900)[-1].key == ("20260100",)


def test_opening_costs_one_request(objects: Watched) -> None:
    ObjectState(objects)
    objects.cost()
    ObjectState(objects)
    assert objects.cost() == {"get": 1}


def test_a_state_in_a_directory_loads_no_driver() -> None:
    program = "import sys, strandline.state.objects; sys.exit('obstore' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)

"""The SQLite state as a file: its mode, damage, foreign and older and newer files, a full disk."""

from __future__ import annotations

import os
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from strandline.core.errors import StateError, TransientError
from strandline.core.protocols import State
from strandline.core.records import KINDS
from strandline.endpoint import Endpoint
from strandline.state import open_state, schema
from strandline.state.sql import SqlState
from strandline.testing.state import position, run


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "new" / "folder" / "state.db"


def opened(file: Path) -> State:
    return open_state(Endpoint.parse(f"sqlite:///{file}"))


def made(file: Path) -> str:
    """A store with some records, closed again. Returns its identity."""
    state = opened(file)
    state.put([position(f"table_{number}", error="x" * 2000) for number in range(50)])
    state.close()
    return state.identity()


def execute(file: Path, *statements: str) -> list[tuple[object, ...]]:
    connection = sqlite3.connect(file)
    rows: list[tuple[object, ...]] = []
    with connection:
        for statement in statements:
            rows = connection.execute(statement).fetchall()
    connection.close()
    return rows


def test_file_and_its_companions_are_for_the_owner_only(file: Path) -> None:
    before = os.umask(0)
    try:
        state = opened(file)
        state.put([position("orders")])
        files = {path.name: path.stat().st_mode & 0o777 for path in file.parent.iterdir()}
        assert files == {"state.db": 0o600, "state.db-wal": 0o600, "state.db-shm": 0o600}
        state.close()
    finally:
        os.umask(before)


def test_readers_do_not_wait_for_a_writer(file: Path) -> None:
    made(file)
    state = opened(file)
    writer = sqlite3.connect(file, isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    assert len(state.read("position")) == 50
    writer.execute("ROLLBACK")
    writer.close()
    state.close()


def test_opening_a_store_that_is_up_to_date_writes_nothing(file: Path) -> None:
    made(file)
    writer = sqlite3.connect(file, isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")  # whoever writes now waits, and in vain
    opened(file).close()
    writer.close()


def test_a_thousand_positions_are_written_in_one_transaction_that_is_flushed_once(file: Path) -> None:
    state = opened(file)
    records = state.put([position(f"table_{number}", watermark="t:2026-01-01") for number in range(1000)])
    assert isinstance(state, SqlState)
    connection, asked = state._connection, list[str]()
    assert isinstance(connection, sqlite3.Connection)
    connection.set_trace_callback(asked.append)
    state.put(records)
    state.close()
    assert [sql for sql in asked if sql in ("BEGIN IMMEDIATE", "COMMIT")] == ["BEGIN IMMEDIATE", "COMMIT"]
    assert len(asked) < 2100  # two statements each, at most


def _scribble(at: int) -> Callable[[bytes], bytes]:
    return lambda content: content[:at] + b"\xff" * 4096 + content[at + 4096 :]


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:100],
        lambda content: content[:4096],
        lambda content: content[: len(content) // 2],
        lambda content: content[:-4096],
        _scribble(0),
        _scribble(4096),
        lambda _: b"x",
        lambda _: b"version: 1\nthis: is not a database\n" * 500,
    ],
    ids=["100 bytes left", "a page left", "half left", "last page gone", "header", "a page", "one byte", "text"],
)
def test_a_damaged_or_foreign_file_is_named_and_left_alone(file: Path, damage: Callable[[bytes], bytes]) -> None:
    made(file)
    file.write_bytes(damage(file.read_bytes()))
    before = file.read_bytes()
    with pytest.raises(StateError) as caught:
        state = opened(file)
        state.read("position")
    assert str(file) in str(caught.value)
    assert "backup" in caught.value.remedy
    assert file.read_bytes() == before


def test_a_database_of_something_else_is_left_alone(file: Path) -> None:
    file.parent.mkdir(parents=True)
    execute(file, "CREATE TABLE customers (id INTEGER)")
    with pytest.raises(StateError, match="something else") as caught:
        opened(file)
    assert str(file) in str(caught.value)
    assert execute(file, "SELECT name FROM sqlite_master") == [("customers",)]


def test_an_emptied_file_becomes_another_store(file: Path) -> None:
    identity = made(file)
    file.write_bytes(b"")
    state = opened(file)
    assert state.identity() != identity  # which is how the target's receipt tells
    state.close()


def test_a_store_without_its_marks_is_refused(file: Path) -> None:
    made(file)
    execute(file, "DELETE FROM strandline_meta WHERE name = 'store'")
    with pytest.raises(StateError, match="lost its own marks"):
        opened(file)
    execute(file, "DELETE FROM strandline_meta")
    with pytest.raises(StateError, match="no schema version"):
        opened(file)
    execute(file, "INSERT INTO strandline_meta VALUES ('schema_version', 'one', 1)")
    with pytest.raises(StateError, match="'one'"):
        opened(file)


def test_a_store_that_lacks_a_table_is_refused(file: Path) -> None:
    made(file)
    execute(file, "DROP TABLE strandline_positions")
    state = opened(file)
    with pytest.raises(StateError, match="strandline_positions"):
        state.read("position")
    state.close()


def test_a_newer_store_is_refused_and_left_alone(file: Path) -> None:
    made(file)
    execute(file, "UPDATE strandline_meta SET value = '99' WHERE name = 'schema_version'")
    with pytest.raises(StateError, match="newer Strandline") as caught:
        opened(file)
    assert "pgrade" in caught.value.remedy
    assert execute(file, "SELECT value FROM strandline_meta WHERE name = 'schema_version'") == [("99",)]


def test_an_older_store_gets_what_it_lacks_and_keeps_what_it_has(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    identity = made(file)
    execute(
        file,
        "ALTER TABLE strandline_positions DROP COLUMN measures",
        "DROP TABLE strandline_changes",
        "DROP INDEX strandline_runs_by_pipeline",
        "UPDATE strandline_meta SET value = '0' WHERE name = 'schema_version'",
    )
    monkeypatch.setitem(schema.STEPS, 1, ("UPDATE strandline_positions SET measures = 'none yet'",))
    state = opened(file)
    assert state.identity() == identity
    records = state.read("position")
    assert len(records) == 50
    assert {(record.fields["measures"], record.fields["error"]) for record in records} == {("none yet", "x" * 2000)}
    assert state.read("change") == []
    state.close()
    marks = execute(file, "SELECT value FROM strandline_meta WHERE name = 'schema_version'")
    assert marks == [(str(schema.VERSION),)]
    assert execute(file, "SELECT 1 FROM sqlite_master WHERE name = 'strandline_runs_by_pipeline'") == [(1,)]


def test_whoever_changes_the_kinds_raises_the_version() -> None:
    """After a release: raise schema.VERSION with the fingerprint. Before the first: the fingerprint alone."""
    known = {1: "ff6724ca534b", 2: "cdade864f2af", 3: "b57ced8da00e", 4: "831318506b4c"}
    assert sha256(repr(KINDS).encode()).hexdigest()[:12] == known[schema.VERSION]


def test_history_is_found_by_index(file: Path) -> None:
    made(file)
    plan = "EXPLAIN QUERY PLAN SELECT * FROM strandline_runs WHERE pipeline = 'a' ORDER BY run_id DESC LIMIT 20"
    ((*_, how),) = execute(file, plan)
    assert "strandline_runs_by_pipeline" in str(how)


def test_a_folder_in_the_place_of_the_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StateError, match=str(tmp_path)):
        opened(tmp_path)


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError, match="file/state"):
        opened(tmp_path / "file" / "state.db")


def test_a_store_that_stays_locked_is_worth_another_try(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strandline.state.sqlite._WAIT_SECONDS", 0.1)
    made(file)
    state = opened(file)
    writer = sqlite3.connect(file, isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    with pytest.raises(TransientError, match="locked"):
        state.put([position("late")])
    writer.execute("ROLLBACK")
    writer.close()
    state.put([position("late")])
    state.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 400 KiB."""
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", tmp_path], capture_output=True)
    if mounted.returncode:
        pytest.skip("a small file system can be mounted by root only")
    yield tmp_path
    subprocess.run(["umount", tmp_path], check=True)


def test_a_full_disk_is_said_and_nothing_is_half_written(small_disk: Path) -> None:
    state = opened(small_disk / "state.db")
    (record,) = state.put([position("orders", epoch=1)])
    with pytest.raises(StateError, match="full") as caught:
        state.put([replace(record, fields={"epoch": 2}), *(run(f"r{n}", error="x" * 50_000) for n in range(20))])
    assert "space" in caught.value.remedy
    assert state.read("run") == []
    assert state.read("position") == [record]
    state.put([replace(record, fields={"epoch": 3})])
    state.close()

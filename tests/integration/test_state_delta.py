"""The state as a Delta table: what it refuses, how it stays small, and writes whose answer is lost."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from arro3.core import Array, Table
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType

from strandline.core.errors import ConflictError, StateError
from strandline.core.protocols import State
from strandline.endpoint import Endpoint
from strandline.objects.directory import DirectoryObjects
from strandline.state import delta_files, open_state, schema
from strandline.state.delta_marks import SCHEMA_VERSION, STORE
from strandline.state.delta_rows import COLUMNS, row_of
from strandline.testing.state import keys, position, run


def opened(folder: Path) -> State:
    return open_state(Endpoint.parse(f"delta:{folder}"))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(folder: Path) -> StateError:
    """Why the state there is not opened; it is left exactly as it is."""
    before = contents(folder)
    with pytest.raises(StateError) as told:
        opened(folder)
    assert contents(folder) == before
    assert told.value.remedy
    return told.value


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    assert "not a Delta table" in refused(tmp_path).message


def test_a_delta_table_of_something_else_is_refused(tmp_path: Path) -> None:
    write_deltalake(tmp_path, _one("id", "long"))
    assert "a Delta table of something else" in refused(tmp_path).message


def test_a_state_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    opened(tmp_path).put([position("orders")])
    newer = {SCHEMA_VERSION: str(schema.VERSION + 1)}
    DeltaTable(tmp_path).alter.set_table_properties(newer, raise_if_not_exists=False)
    error = refused(tmp_path)
    assert "newer Strandline" in error.message
    assert "pip install --upgrade" in error.remedy


def test_a_state_with_foreign_columns_is_refused(tmp_path: Path) -> None:
    opened(tmp_path).put([position("orders")])
    DeltaTable(tmp_path).alter.add_columns([Field("owner_team", PrimitiveType("string"))])
    assert "foreign columns: owner_team" in refused(tmp_path).message


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda table: table.alter.set_table_properties({SCHEMA_VERSION: "99"}, False), "newer Strandline"),
        (lambda table: table.alter.add_columns([Field("owner_team", PrimitiveType("string"))]), "foreign columns"),
    ],
)
def test_one_that_becomes_so_while_it_is_open_is_refused_too(
    tmp_path: Path, change: Callable[[DeltaTable], None], told: str
) -> None:
    state = opened(tmp_path)
    (stored,) = state.put([position("orders", epoch=1)])
    change(DeltaTable(tmp_path))
    before = contents(tmp_path / "_delta_log")
    with pytest.raises(StateError, match=told):
        state.put([replace(stored, fields={"epoch": 2})])
    with pytest.raises(StateError, match=told):
        state.read("position")
    assert contents(tmp_path / "_delta_log") == before


def test_a_store_where_two_writers_both_win_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an S3 that overlooks If-None-Match."""
    monkeypatch.setattr(DirectoryObjects, "create", lambda self, key, data: bool(self.replace(key, data)))
    assert "both win" in refused(tmp_path).message


def test_a_log_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    opened(tmp_path).put([position("orders")])
    (tmp_path / "_delta_log" / f"{1:020}.json").write_text("{")
    assert "cannot be read as a Delta table" in refused(tmp_path).message


def test_a_state_of_an_older_version_gets_the_columns_it_lacks(tmp_path: Path) -> None:
    """As version 1 left it: the columns that came later are not there."""
    store, later = opened(tmp_path / "now").identity(), ("marks", "held_by")
    now = DeltaTable(tmp_path / "now")
    fields = [field for field in now.schema().fields if field.name not in later]
    old = {**now.metadata().configuration, SCHEMA_VERSION: "1"}
    DeltaTable.create(
        tmp_path / "old",
        type(now.schema())(fields),
        partition_by=now.metadata().partition_columns,
        configuration=old,
        raise_if_key_not_exists=False,
    )
    state = opened(tmp_path / "old")
    assert state.identity() == store == old[STORE]
    (put,) = state.put([position("orders", marks="{}")])
    assert opened(tmp_path / "old").read("position") == [put]
    assert DeltaTable(tmp_path / "old").metadata().configuration[SCHEMA_VERSION] == str(schema.VERSION)


def test_it_stays_small_and_whoever_was_open_all_along_misses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tidied twice on the way, once with replaced files removed: they were kept for an hour, here for none."""
    monkeypatch.setattr(delta_files, "_VACUUM_EVERY", 20)
    monkeypatch.setattr(delta_files, "_KEPT_HOURS", 0)
    watching, state = opened(tmp_path), opened(tmp_path)
    record, dropped = state.put([position("orders"), position("dropped")])
    assert keys(watching.read("position")) == [("shop", "dropped", "load"), ("shop", "orders", "load")]
    state.delete([dropped])
    for number in range(45):
        record, _ = state.put([replace(record, fields={"epoch": number}), run(f"r{number:02}", tables=number)])
    assert watching.read("position") == opened(tmp_path).read("position") == [record]
    assert len(watching.read("run")) == len(opened(tmp_path).read("run")) == 45
    with pytest.raises(ConflictError):
        watching.put([replace(record, revision=record.revision - 1)])
    with pytest.raises(ConflictError):
        watching.put([run("r07")])
    table = DeltaTable(tmp_path)
    assert len(list(tmp_path.rglob("*.parquet"))) < 30
    assert len(table.file_uris()) < 30
    assert (tmp_path / "_delta_log" / "_last_checkpoint").exists()


def test_a_row_that_a_catalogs_writer_added_is_not_overlooked(tmp_path: Path) -> None:
    """It counts writes, and not the versions, of which there are more: properties and tidying take some too."""
    state = opened(tmp_path)
    (first,) = state.put([position("orders", epoch=1)])
    table = DeltaTable(tmp_path)
    for _ in range(3):
        table.alter.set_table_properties({SCHEMA_VERSION: str(schema.VERSION)}, False)
    assert state.read("position") == [first]
    row = row_of(replace(first, revision=2, fields={"epoch": 2})) | {"seq": 2, "mark": "theirs"}
    columns: Any = {name: Array([row[name]], delta_files._ARROW[type_]) for name, type_ in COLUMNS.items()}
    data: Any = Table.from_pydict(columns)
    write_deltalake(tmp_path, data, mode="append")
    with pytest.raises(ConflictError, match="shop/orders/load"):
        state.put([replace(first, fields={"epoch": 3})])
    assert [(record.revision, record.fields["epoch"]) for record in state.read("position")] == [(2, 2)]


def test_a_write_whose_answer_got_lost_is_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state, other = opened(tmp_path), opened(tmp_path)
    (first,) = state.put([position("orders", epoch=1)])
    _lose(monkeypatch, after=lambda: other.put([position("other")]))
    (second,) = state.put([replace(first, fields={"epoch": 2})])
    assert second.revision == 2
    assert (
        keys(state.read("position"))
        == keys(other.read("position"))
        == [
            ("shop", "orders", "load"),
            ("shop", "other", "load"),
        ]
    )
    (third,) = state.put([replace(second, fields={"epoch": 3})])
    assert third in other.read("position")


def test_a_write_that_never_went_out_is_told_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = opened(tmp_path)
    (first,) = state.put([position("orders", epoch=1)])

    def broken(*_: Any, **__: Any) -> None:
        raise OSError("the store is away")

    monkeypatch.setattr(delta_files, "write_deltalake", broken)
    with pytest.raises(Exception, match="the store is away"):
        state.put([replace(first, fields={"epoch": 2})])
    monkeypatch.undo()
    (again,) = state.put([replace(first, fields={"epoch": 2})])
    assert state.read("position") == [again]


def test_whose_rows_they_are_can_be_read_without_us(tmp_path: Path) -> None:
    state = opened(tmp_path)
    state.put([position("orders", watermark="7", pipeline="shop"), position("items", watermark="9", pipeline="a/b é")])
    table = DeltaTable(tmp_path)
    assert table.metadata().partition_columns == ["part", "pipeline"]
    added = [json.loads(line) for line in (tmp_path / "_delta_log" / f"{1:020}.json").read_text().splitlines()]
    values = [action["add"]["partitionValues"] for action in added if "add" in action]
    assert sorted(value["pipeline"] for value in values) == ["a/b é", "shop"]


def _lose(monkeypatch: pytest.MonkeyPatch, after: Callable[[], object]) -> None:
    """The next write goes through, somebody else writes, and then no answer comes."""
    real = write_deltalake

    def lost(*given: Any, **options: Any) -> None:
        monkeypatch.setattr(delta_files, "write_deltalake", real)
        real(DeltaTable(given[0].table_uri), *given[1:], **options)
        after()
        raise OSError("no answer")

    monkeypatch.setattr(delta_files, "write_deltalake", lost)


def _one(name: str, type_: str) -> Any:
    return Table.from_pydict({name: Array([1], delta_files._ARROW[type_])})

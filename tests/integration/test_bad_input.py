"""Bad input, met through the command line: a clear error, the way out, and nothing lost or half-written.

What stops before data moves starts no Spark. Also bad input, with tests of their own: all problems of a config at once
(test_config), duplicate keys that nothing orders and NULL keys in the sink (contracts), a table dropped between plan
and read (test_sync), damaged and foreign state files of every kind (test_state_files).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
import yaml
from deltalake import write_deltalake
from lake_shop import Shop

from strandline.cli.app import execute
from strandline.core.position import Status

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pyarrow: Any = import_module("pyarrow")


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str


class Terminal:
    """A user at the command line, beside a shop whose Spark is never asked for."""

    def __init__(self, shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
        self.shop = shop
        self._capsys = capsys

    def run(self, *argv: str, config: Path | None = None) -> Said:
        code = execute([*argv, "-c", str(config or self.shop.config)])
        said = self._capsys.readouterr()
        return Said(code, said.out, said.err)

    @property
    def lake(self) -> Path:
        return self.shop.folder / "lake"


@pytest.fixture
def terminal(pg_database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Terminal]:
    shop = Shop(pg_database, tmp_path)
    shop.insert(1, 2)
    yield Terminal(shop, capsys)
    shop.close()


@pytest.fixture
def shop(pg_database: str, tmp_path: Path, spark: SparkSession) -> Iterator[Shop]:
    shop = Shop(pg_database, tmp_path, spark)
    yield shop
    shop.close()


# the config


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"pipelines:\n  shop: {sorce: 'postgresql://h/d', target: 'delta:l', tables: [o]}", ["sorce", '"source"']),
        (b"pipelines:\n  shop: {source: '${SHOP_URL}', target: 'delta:l', tables: [o]}", ["SHOP_URL", "not set"]),
        (b"pipelines: [\xff", ["UTF-8"]),
        (None, ["No such file", "strandline init"]),
    ],
    ids=["unknown key", "unset variable", "unreadable", "missing"],
)
@pytest.mark.parametrize("command", ["plan", "sync"])
def test_a_config_that_cannot_be_used_exits_with_2_names_the_place_and_touches_nothing(
    content: bytes | None, words: list[str], command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "strandline.yml"
    if content is not None:
        config.write_bytes(content)
    code = execute([command, "-c", str(config)])
    said = capsys.readouterr()
    assert (code, said.out) == (2, "")
    assert "strandline.yml" in said.err
    assert [word for word in words if word not in said.err] == []
    assert [path for path in tmp_path.iterdir() if path != config] == []


# the source


def test_a_wrong_password_names_pipeline_user_and_server_and_not_the_password(terminal: Terminal) -> None:
    terminal.shop.url = terminal.shop.url.replace(urlsplit(terminal.shop.url).password or "?", "not-the-password-99")
    for command in ("plan", "sync"):
        said = terminal.run(command)
        assert said.code == 1
        assert "shop: postgresql://postgres@" in said.err and 'login as "postgres" was refused' in said.err
        assert "Check user and password" in said.err
        assert "not-the-password-99" not in said.out + said.err
    assert not terminal.lake.exists()


def test_a_host_that_is_down_is_named_with_what_to_check(terminal: Terminal) -> None:
    terminal.shop.url = "postgresql://reader@127.0.0.1:1/shop"
    said = terminal.run("plan")
    assert said.code == 1
    assert "shop: postgresql://reader@127.0.0.1:1/shop" in said.err and "refused" in said.err
    assert "Check that the server runs" in said.err


WRONG: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "missing table": ("", {"name": "ordrs"}, ["shop.ordrs: ", '"ordrs"', "orders"]),
    "missing cursor": (
        "",
        {"cursor": "updated"},
        ["shop.orders: ", 'cursor column "updated" is not in public.orders', "updated_at"],
    ),
    "missing key": ("", {"key": "idd"}, ["shop.orders: ", 'key column "idd" is not in public.orders', "id"]),
    "unusable cursor": (
        "",
        {"cursor": "status"},
        ["shop.orders: ", 'cursor column "status" (text)', "Usable here: id, updated_at"],
    ),
    "no zone": (
        "ALTER TABLE orders ALTER updated_at TYPE timestamp",
        {},
        ["shop.orders: ", 'cursor column "updated_at" (timestamp', "Asia/Tokyo", "zone: Asia/Tokyo"],
    ),
    "nullable key": (
        "ALTER TABLE orders ADD code text",
        {"key": "code"},
        ["shop.orders: ", 'key column "code" may be NULL', "NOT NULL", "Unique there: id"],
    ),
    "no key for merge": (
        "ALTER TABLE orders DROP CONSTRAINT orders_pkey",
        {},
        ["shop.orders: ", "public.orders has no primary key", "key: [a, b]", "mode: append"],
    ),
    "NULL cursors": (
        "ALTER TABLE orders ALTER updated_at DROP NOT NULL; INSERT INTO orders VALUES (3, 'new', 1, NULL)",
        {},
        ["shop.orders: ", '1 row has no value in the cursor column "updated_at"', "nulls: include"],
    ),
}


@pytest.mark.parametrize(("sql", "table", "words"), WRONG.values(), ids=WRONG)
def test_a_table_that_cannot_be_read_exactly_is_stopped_with_the_way_out(
    terminal: Terminal, sql: str, table: dict[str, Any], words: list[str]
) -> None:
    name = urlsplit(terminal.shop.url).path.strip("/")
    terminal.shop.execute(f"ALTER DATABASE {name} SET timezone = 'Asia/Tokyo'")
    if sql:
        terminal.shop.execute(sql)
    terminal.shop.tables = [{"name": "orders", **table}]
    for command in ("plan", "sync"):
        said = terminal.run(command)
        assert said.code == 1
        assert [word for word in words if word not in said.err] == []
    assert not terminal.lake.exists()
    with terminal.shop.load() as project:
        assert [position.watermark for position in project.books.positions().values()] == [None]


def test_a_cursor_without_an_index_is_warned_of_in_plan_and_sync_with_the_index_to_make(terminal: Terminal) -> None:
    terminal.shop.execute("DROP INDEX orders_updated_at_idx; DELETE FROM orders")
    cause = 'warning: cursor column "updated_at" has no index'
    remedy = 'CREATE INDEX "ix_orders_updated_at" ON "public"."orders" ("updated_at");'
    planned = terminal.run("plan")
    assert planned.code == 0
    assert cause.replace("warning:", "warning: shop.orders:") in planned.out and remedy in planned.out
    warnings = yaml.safe_load(terminal.run("plan", "--json").out)["pipelines"][0]["warnings"]
    assert [warning["table"] for warning in warnings if remedy in warning["message"]] == ["orders"]
    synced = terminal.run("sync")
    assert synced.code == 0
    assert cause in synced.err and remedy in synced.err


def test_an_empty_table_is_up_to_date_and_its_first_rows_come(shop: Shop) -> None:
    assert shop.one().status is Status.SKIPPED
    shop.insert(1, 2)
    assert (shop.one().status, shop.target_ids()) == (Status.COMPLETED, [1, 2])


def test_null_cursors_come_with_every_run_once_they_are_asked_for(shop: Shop) -> None:
    shop.execute("ALTER TABLE orders ALTER updated_at DROP NOT NULL; INSERT INTO orders VALUES (1, 'new', 1, NULL)")
    shop.insert(2)
    assert "nulls: include" in getattr(shop.one().error, "remedy", "")
    shop.tables = [{"name": "orders", "nulls": "include"}]
    shop.sync()
    assert shop.statuses() == {1: "new", 2: "new"}
    shop.execute("UPDATE orders SET status = 'paid' WHERE id = 1")
    shop.sync()
    assert shop.statuses() == {1: "paid", 2: "new"}


def test_duplicate_keys_are_refused_or_the_newest_wins_and_a_warning_says_so(shop: Shop) -> None:
    shop.execute("ALTER TABLE orders DROP CONSTRAINT orders_pkey")
    shop.tables = [{"name": "orders", "key": "id"}]
    for status in ("new", "paid"):
        shop.insert(1, status=status, at="2026-01-01 00:00:00+00")
    error = shop.one().error
    assert error is not None
    assert "shop.orders: 1 keys have several different rows" in str(error)
    assert "The key is (id)" in error.why and "choose a `key:` that is unique" in error.remedy
    assert not list((shop.folder / "lake").rglob("*.parquet"))
    shop.execute("DELETE FROM orders WHERE status = 'paid'")
    shop.insert(1, status="newer")
    assert [shop.one().error, shop.one().error] == [None, None]  # what was planned, then what came since
    assert shop.statuses() == {1: "newer"}
    assert any("not unique by a constraint" in repr(event) for event in shop.events)


# targets and state


def test_two_pipelines_on_one_target_are_refused_with_both_names(terminal: Terminal) -> None:
    pipeline = yaml.safe_load(terminal.shop.config.read_text())["pipelines"]["shop"]
    both = terminal.shop.folder / "both.yml"
    both.write_text(yaml.safe_dump({"pipelines": {"shop": pipeline, "store": pipeline}}))
    said = terminal.run("sync", config=both)
    assert said.code == 2
    assert "shop.orders" in said.err and "store.orders" in said.err and 'another "target"' in said.err
    assert not terminal.lake.exists()


def test_two_tables_that_a_glob_brings_onto_one_target_are_refused_with_both_names(terminal: Terminal) -> None:
    terminal.shop.execute("CREATE TABLE other (LIKE orders INCLUDING ALL)")
    terminal.shop.tables = [{"name": "other", "target": "orders"}, "order*"]
    said = terminal.run("sync")
    assert said.code == 2
    assert "shop.orders" in said.err and "shop.other" in said.err and 'another "target"' in said.err
    assert not terminal.lake.exists()


def test_a_state_file_that_is_none_is_named_and_left_as_it_is(terminal: Terminal) -> None:
    terminal.run("plan")
    (file,) = (terminal.shop.folder / ".strandline").glob("*.db")
    for beside in file.parent.glob(f"{file.name}-*"):
        beside.unlink()
    file.write_bytes(b"not a database at all " * 400)
    for command in ("plan", "sync"):
        said = terminal.run(command)
        assert said.code == 1
        assert f"the state file {file} is damaged" in said.err and "watermark import --from-target" in said.err
    assert file.read_bytes() == b"not a database at all " * 400
    assert not terminal.lake.exists()


def test_a_state_of_a_newer_version_is_refused_with_what_to_upgrade(terminal: Terminal) -> None:
    terminal.run("plan")
    (file,) = (terminal.shop.folder / ".strandline").glob("*.db")
    state = sqlite3.connect(file)
    with state:
        state.execute("UPDATE strandline_meta SET value = '99' WHERE name = 'schema_version'")
    said = terminal.run("sync")
    assert said.code == 1
    assert "newer Strandline" in said.err and "99" in said.err and "pgrade" in said.err
    assert state.execute("SELECT value FROM strandline_meta WHERE name = 'schema_version'").fetchall() == [("99",)]
    state.close()
    assert not terminal.lake.exists()


def test_a_target_folder_with_other_files_is_refused_and_left_as_it_is(terminal: Terminal) -> None:
    folder = terminal.lake / "orders"
    folder.mkdir(parents=True)
    (folder / "notes.txt").write_text("mine")
    said = terminal.run("sync")
    assert said.code == 1
    assert f"shop.orders: {folder} is not empty and not a Delta table" in said.err
    assert "Move the files away, or give the table another `target:`" in said.err
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]


def test_a_delta_table_of_somebody_else_is_refused_and_left_as_it_is(terminal: Terminal) -> None:
    folder = terminal.lake / "orders"
    write_deltalake(str(folder), pyarrow.table({"id": [7]}))
    said = terminal.run("sync")
    assert said.code == 1
    assert "shop.orders: " in said.err and f"{folder}" in said.err and "belongs to somebody else" in said.err
    assert "another `target:`" in said.err
    assert terminal.shop.target() == [{"id": 7}]


def test_the_target_of_another_table_is_refused_with_its_name(shop: Shop) -> None:
    shop.insert(1)
    shop.sync()
    shop.execute("CREATE TABLE returns AS SELECT * FROM orders; ALTER TABLE returns ADD PRIMARY KEY (id)")
    shop.tables = [{"name": "returns", "target": "orders"}]
    error = shop.one().error
    assert error is not None
    assert "shop.returns: " in str(error) and "belongs to shop.orders" in str(error)
    assert "another `target:`" in error.remedy
    assert shop.target_ids() == [1]

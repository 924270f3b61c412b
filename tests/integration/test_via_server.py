"""`via: server`: source and target are one database, so no row leaves it and no Spark starts."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import strandline
from strandline import operations
from strandline.core.errors import ConfigError, SchemaError
from strandline.core.events import Committed, Event, Intended
from strandline.core.position import Status
from strandline.core.run import Outcome
from strandline.testing.servers import MariaDB, Postgres

NOW = {"postgres": "clock_timestamp()", "mariadb": "NOW(6)"}
STAMP = {"postgres": "timestamptz", "mariadb": "timestamp(6)"}


class Killed(BaseException):
    """The process is gone: nothing that it would have done afterwards is done."""


class Shop:
    """A table and its copy in another schema of one server."""

    def __init__(self, kind: str, connection: Any, url: str, copy: str, folder: Path) -> None:
        self.kind, self.connection, self.url, self.copy, self.folder = kind, connection, url, copy, folder
        self.settings: dict[str, Any] = {}
        self.pipeline: dict[str, Any] = {"via": "server"}
        self.execute(
            "CREATE TABLE orders (id bigint PRIMARY KEY, status varchar(20), amount decimal(12,2), gone boolean, "
            f"at {STAMP[kind]} NOT NULL)"
        )
        self.execute("CREATE INDEX by_at ON orders (at)")

    def execute(self, sql: str) -> list[tuple[Any, ...]]:
        with self.connection.cursor() as cursor:
            cursor.execute(sql)
            return list(cursor.fetchall()) if cursor.description else []

    def insert(self, *ids: int, status: str = "new") -> None:
        for number in ids:
            self.execute(f"INSERT INTO orders VALUES ({number}, '{status}', {number}.25, false, {NOW[self.kind]})")

    def load(self) -> strandline.project.Project:
        path = self.folder / "strandline.yml"
        table = {"name": "orders", "cursor": "at", "target": f"{self.copy}.orders", **self.settings}
        shop = {"source": self.url, "target": self.url, "guard": "0s", "tables": [table], **self.pipeline}
        path.write_text(yaml.safe_dump({"pipelines": {"shop": shop}}))
        return strandline.load(path)

    def sync(self, **options: Any) -> Outcome:
        with self.load() as project:
            (outcome,) = project.sync("shop", **options).tables
            assert project._own_spark is None, "a JVM was started"
            return outcome

    def rows(self) -> list[tuple[Any, ...]]:
        return self.execute(f"SELECT id, status, amount, at FROM {self.copy}.orders ORDER BY id")

    def check(self) -> None:
        assert self.rows() == self.execute("SELECT id, status, amount, at FROM orders ORDER BY id")


@pytest.fixture(params=["postgres", "mariadb"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    kind, name = request.param, f"t_{uuid.uuid4().hex[:12]}"
    server: Postgres | MariaDB = request.getfixturevalue(kind)
    copy = "copied" if kind == "postgres" else f"{name}_copy"
    with server.connect() as first:
        with first.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {name}")
        with server.connect(name) as connection:
            with connection.cursor() as cursor:
                cursor.execute(f"CREATE SCHEMA {copy}")
            yield Shop(kind, connection, server.url(name), copy, tmp_path)


def test_inserted_and_updated_rows_are_counted_by_the_database(shop: Shop) -> None:
    shop.insert(1, 2, 3)
    assert shop.sync().applied.rows_inserted == 3
    shop.execute(f"UPDATE orders SET status = 'paid', at = {NOW[shop.kind]} WHERE id = 2")
    shop.insert(4)
    outcome = shop.sync()
    applied = outcome.applied
    assert (applied.rows_read, applied.rows_inserted, applied.rows_updated) == (2, 1, 1)
    assert applied.last_value is not None
    shop.check()
    assert shop.sync().status is Status.SKIPPED


def test_marked_rows_go_and_a_newer_row_stays(shop: Shop) -> None:
    shop.settings = {"deleted": "gone"}
    shop.insert(1, 2)
    shop.sync()
    shop.execute(f"UPDATE orders SET gone = true, at = {NOW[shop.kind]} WHERE id = 1")
    assert shop.sync().applied.rows_deleted == 1
    assert [row[0] for row in shop.rows()] == [2]


@pytest.mark.parametrize("mode", ["append", "snapshot"])
def test_other_modes(shop: Shop, mode: str) -> None:
    shop.settings = {"mode": mode}
    shop.insert(1, 2)
    shop.sync()
    shop.insert(3)
    if mode == "snapshot":
        shop.execute("DELETE FROM orders WHERE id = 1")
    shop.sync()
    shop.check()


def test_large_change_sets_go_in_slices(shop: Shop) -> None:
    shop.settings = {"slice_rows": 3}
    shop.insert(*range(1, 12))
    shop.execute("ANALYZE orders" if shop.kind == "postgres" else "ANALYZE TABLE orders")
    assert shop.sync().batches >= 3
    shop.check()


def test_a_new_column_is_added_and_another_type_is_refused(shop: Shop) -> None:
    shop.insert(1)
    shop.sync()
    shop.execute("ALTER TABLE orders ADD note varchar(30)")
    shop.execute(f"UPDATE orders SET note = 'hello', at = {NOW[shop.kind]}")
    assert shop.sync().status is Status.COMPLETED
    assert shop.execute(f"SELECT note FROM {shop.copy}.orders") == [("hello",)]
    shop.execute(f"ALTER TABLE {shop.copy}.orders DROP COLUMN status")
    shop.execute(f"ALTER TABLE {shop.copy}.orders ADD status bigint")
    shop.execute(f"UPDATE orders SET at = {NOW[shop.kind]}")
    failed = shop.sync()
    assert isinstance(failed.error, SchemaError) and 'column "status"' in failed.error.message


@pytest.mark.parametrize("event", [Intended, Committed])
def test_killed_and_resumed_each_row_is_there_once(shop: Shop, event: type[Event]) -> None:
    """Before the batch, and after it is in the target and in the state."""
    shop.settings = {"mode": "append", "slice_rows": 2}
    shop.insert(1, 2, 3, 4, 5)
    shop.execute("ANALYZE orders" if shop.kind == "postgres" else "ANALYZE TABLE orders")

    def die(heard: Event) -> None:
        if isinstance(heard, event):
            raise Killed

    with pytest.raises(Killed):
        shop.sync(listener=die)
    with shop.load() as project:
        state = project.books.state
        for record in state.read("lease"):
            state.put([type(record)(record.kind, record.key, {**record.fields, "expires_at": ""}, record.revision)])
    assert shop.sync().status is Status.COMPLETED
    shop.check()


def test_two_databases_are_told_apart_by_what_they_say_of_themselves(shop: Shop, pg_database: str) -> None:
    shop.pipeline["target"] = pg_database
    if shop.kind == "mariadb":
        pytest.skip("a MySQL server is one database for its schemas")
    with pytest.raises(ConfigError, match="are not one database"):
        shop.sync()


def test_what_cannot_run_in_the_server_is_refused(shop: Shop) -> None:
    shop.insert(1)
    shop.settings = {"transform": "shop:clean"}
    failed = shop.sync()
    assert "no transform can run" in str(failed.error)
    shop.settings = {}
    shop.pipeline["stage"] = "stage"
    with pytest.raises(ConfigError, match="takes no stage"):
        shop.sync()
    del shop.pipeline["stage"]
    shop.pipeline["target"] = "delta:lake"
    with pytest.raises(ConfigError, match="needs a database"):
        shop.sync()


def test_the_plan_says_which_way_rows_go(shop: Shop) -> None:
    with shop.load() as project:
        assert project.plan("shop").to_json()["via"] == "server"


def test_no_row_of_the_source_is_waited_for_or_locked(shop: Shop) -> None:
    """Production holds a row that is being read: whoever locked what it reads would wait for that transaction."""
    shop.insert(1, 2)

    def meanwhile(event: Event) -> None:
        if isinstance(event, Intended):
            shop.execute("BEGIN")
            shop.execute("UPDATE orders SET status = 'busy' WHERE id = 1")

    started = time.monotonic()
    outcome = shop.sync(listener=meanwhile)
    spent = time.monotonic() - started
    shop.execute("ROLLBACK")
    assert outcome.status is Status.COMPLETED
    assert spent < 20, "a lock was waited for"
    shop.check()


CONTROL = """
CREATE TABLE {copy}.sync_control (sync_run_id bigint PRIMARY KEY, table_name varchar(100), sync_status varchar(10),
                                  watermark_from {stamp} NULL, watermark_to {stamp} NULL)"""


def test_the_control_table_of_a_stored_procedure_is_taken_over(shop: Shop) -> None:
    """Its last good sync says where to go on; its `>` becomes our `>=`."""
    stamp = "timestamp" if shop.kind == "postgres" else "datetime(6)"
    shop.execute(CONTROL.format(copy=shop.copy, stamp=stamp))
    shop.insert(1)
    for number, (status, to) in enumerate(
        [("SUCCESS", "2026-01-01 10:00:00"), ("SUCCESS", "2026-01-01 10:01:00.5"), ("FAILED", "2026-01-01 10:02:00")]
    ):
        shop.execute(f"INSERT INTO {shop.copy}.sync_control VALUES ({number}, 'ORDERS', '{status}', NULL, '{to}')")
    with shop.load() as project:
        changes = operations.adopt_control(project, "shop", f"{shop.copy}.sync_control")
        assert [(change.action, str(change.new)) for change in changes] == [("import", "2026-01-01 10:01:00.500000")]
        operations.apply(project, changes, why="moving in")
        (position,) = project.books.positions().values()
        assert str(position.watermark) == "2026-01-01 10:01:00.500000"
        with pytest.raises(ConfigError, match="not the name of a table"):
            operations.adopt_control(project, "shop", "x; DROP TABLE orders")
        shop.execute(f"DELETE FROM {shop.copy}.sync_control")
        with pytest.raises(ConfigError, match="notes no sync"):
            operations.adopt_control(project, "shop", f"{shop.copy}.sync_control")

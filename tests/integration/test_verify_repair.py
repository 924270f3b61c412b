"""Verify and repair on real PostgreSQL and MariaDB against Delta: whole-number, composite and text keys."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from verify_shop import Lake, before_18

import strandline
from strandline.cli.app import execute
from strandline.core.events import Comparing
from strandline.core.position import Reason
from strandline.testing.servers import MariaDB, Postgres
from strandline.verify.verdict import Answer, Verdict

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 3000
TABLES = ("orders", "items", "tags")
STAMP = {"postgresql": "timestamptz NOT NULL DEFAULT now()", "mysql": "timestamp(6) NOT NULL DEFAULT NOW(6)"}
NUMBERS = {
    "postgresql": "(SELECT generate_series AS n FROM generate_series(1, {rows})) s",
    "mysql": "(SELECT seq AS n FROM seq_1_to_{rows}) s",
}
CREATE = (
    "CREATE TABLE orders (id bigint PRIMARY KEY, name varchar(40), amount decimal(12,2), x double precision, at {at})",
    "CREATE TABLE items (o int, n varchar(9), name varchar(40), amount decimal(12,2), at {at}, PRIMARY KEY (o, n))",
    "CREATE TABLE tags (id varchar(40) PRIMARY KEY, name varchar(40), amount decimal(12,2), at {at})",
    "INSERT INTO orders SELECT n, concat('order ', n), n / 4.0, n / 3.0, {then} FROM {numbers}",
    "INSERT INTO items SELECT n % 100, concat('ü', n), NULL, n / 4.0, {then} FROM {numbers}",
    "INSERT INTO tags SELECT concat('tag|', n), concat('tag ', n), n / 4.0, {then} FROM {numbers}",
)
THEN = {"postgresql": "timestamptz '2026-01-01 00:00:00Z'", "mysql": "TIMESTAMP'2026-01-01 00:00:00'"}


class Shop(Lake):
    def __init__(self, url: str, folder: Path, spark: Any, connection: Any) -> None:
        super().__init__(url, folder, spark)
        self.connection = connection
        self.kind = url.partition(":")[0].replace("mariadb", "mysql")
        words = {"at": STAMP[self.kind], "then": THEN[self.kind], "numbers": NUMBERS[self.kind].format(rows=ROWS)}
        for statement in CREATE:
            self.execute(statement.format(**words))
        self.tables = [{"name": name, "cursor": "at"} for name in TABLES]
        self.sync()

    def execute(self, statement: str) -> None:
        with self.connection.cursor() as cursor:
            cursor.execute(statement)

    def verdicts(self, **options: Any) -> dict[str, Verdict]:
        with self.load() as project:
            found = project.verify("shop", spark=self.spark, listener=self.events.append, **options)
        return {verdict.table: verdict for verdict in found}

    def one(self, table: str, **options: Any) -> Verdict:
        return self.verdicts(tables=[table], **options)[table]


@pytest.fixture(scope="module")
def postgres_shop(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[Shop]:
    name = f"t_{uuid.uuid4().hex[:12]}"
    with postgres.connect() as server:
        server.execute(f"CREATE DATABASE {name}")
        with postgres.connect(name) as connection:
            yield Shop(postgres.url(name), tmp_path_factory.mktemp("verify"), spark, connection)
        server.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(scope="module")
def mariadb_shop(mariadb: MariaDB, tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[Shop]:
    name = f"t_{uuid.uuid4().hex[:12]}"
    with mariadb.connect() as server, server.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name}")
        with mariadb.connect(name) as connection:
            yield Shop(mariadb.url(name), tmp_path_factory.mktemp("verify"), spark, connection)
        cursor.execute(f"DROP DATABASE {name}")


@pytest.fixture(params=["postgres", "mariadb"])
def shop(request: pytest.FixtureRequest) -> Shop:
    """Equal tables, on either database; each test leaves them equal."""
    found: Shop = request.getfixturevalue(f"{request.param}_shop")
    found.events.clear()
    return found


def counts(verdict: Verdict) -> tuple[int, int, int, int]:
    found = verdict.differences
    return found.missing, found.extra, found.different, found.duplicate


def test_every_kind_of_damage_is_named_and_repaired_whatever_the_key(shop: Shop) -> None:
    keys = {"orders": "id = {}", "items": "n = 'ü{}'", "tags": "id = 'tag|{}'"}
    extra = {"orders": "id = 100000", "items": "n = 'extra'", "tags": "id = 'extra'"}
    for table, key in keys.items():
        shop.damage(f"DELETE FROM {{{table}}} WHERE {key.format(7)} OR {key.format(2999)}")
        shop.damage(f"UPDATE {{{table}}} SET amount = amount + 0.01 WHERE {key.format(11)}")
        again = shop.spark.table(shop.target(table)).where(f"{key.format(12)}")
        again.write.format("delta").mode("append").save(str(shop.folder / "lake" / table))
        shop.damage(f"UPDATE {{{table}}} SET {extra[table]}, at = at WHERE {key.format(13)}")
    for table, verdict in shop.verdicts().items():
        assert (table, verdict.answer, counts(verdict)) == (table, Answer.DIFFERENT, (3, 1, 1, 1))
        assert verdict.rows == ROWS - 1
    repaired = shop.verdicts(repair=True)
    for verdict in repaired.values():
        assert (verdict.answer, verdict.notes) == (Answer.DIFFERENT, ("left after the repair: 1 extra",))
        assert verdict.repaired == 3 + 1 + 3  # inserted, overwritten, and two equal rows deleted for one
    for verdict in shop.verdicts(repair=True, delete=True).values():
        assert (verdict.answer, verdict.repaired, counts(verdict)) == (Answer.REPAIRED, 1, (0, 1, 0, 0))
    assert [verdict.answer for verdict in shop.verdicts().values()] == [Answer.EQUAL] * 3
    with shop.load() as project:
        reasons = [record.fields["reason"] for record in project.books.state.read("table_run")]
        positions = list(project.books.positions().values())
    assert reasons.count(Reason.REPAIR.value) == 6
    assert all(position.batch is not None and position.plan is None for position in positions)
    assert {event.table for event in shop.events if isinstance(event, Comparing)} == set(TABLES)


def test_deletes_in_the_source_are_found_and_capped(postgres_shop: Shop) -> None:
    shop = postgres_shop
    shop.execute("DELETE FROM orders WHERE id <= 60")
    assert counts(shop.one("orders")) == (0, 60, 0, 0)
    refused = shop.one("orders", repair=True, delete=True)
    assert refused.answer is Answer.FAILED and refused.error is not None
    assert "60 of 3,000 rows would be deleted" in refused.error.message
    assert "--delete-fraction 0.02" in refused.error.remedy
    assert shop.one("orders", repair=True, delete=True, delete_fraction=0.02).answer is Answer.REPAIRED
    assert shop.one("orders").answer is Answer.EQUAL
    insert = "INSERT INTO orders SELECT n, concat('order ', n), n / 4.0, n / 3.0, {then} FROM {numbers} WHERE n <= 60"
    shop.execute(insert.format(then=THEN[shop.kind], numbers=NUMBERS[shop.kind].format(rows=ROWS)))
    assert counts(shop.one("orders", repair=True)) == (60, 0, 0, 0)


def test_a_source_that_is_being_written_raises_no_alarm(postgres_shop: Shop) -> None:
    """MariaDB is written in `test_sql_verify`."""
    shop, stop = postgres_shop, threading.Event()

    def write() -> None:
        number = 0
        while not stop.wait(0.005):
            number += 1
            at, odd = "at = clock_timestamp()", 1 + 2 * (37 * number % 1500)
            shop.execute(f"UPDATE orders SET name = 'w{number}', {at} WHERE id = {odd}")
            shop.execute(f"INSERT INTO orders VALUES ({10**6 + number}, 'new', 1, 1, clock_timestamp())")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        during = shop.one("orders")
        shop.damage("DELETE FROM {orders} WHERE id = 2222")  # only odd ones are written
        damaged = shop.one("orders")
    finally:
        stop.set()
        writer.join()
    assert (during.answer, counts(during)) == (Answer.EQUAL, (0, 0, 0, 0))
    assert counts(damaged) == (1, 0, 0, 0)
    shop.execute("DELETE FROM orders WHERE id > 1000000")
    shop.sync()
    assert shop.one("orders", repair=True, delete=True, delete_fraction=1).answer in (Answer.REPAIRED, Answer.EQUAL)


def test_the_command_line_says_it_in_words_json_and_exit_code(
    postgres_shop: Shop, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = postgres_shop
    monkeypatch.setattr("strandline.project.Project._spark", lambda *_: lambda: shop.spark)
    config = ("-c", str(shop.config))
    assert execute(["verify", "-t", "tags", *config]) == 0
    assert "equal" in capsys.readouterr().out
    shop.damage("DELETE FROM {tags} WHERE id = 'tag|5'")
    assert execute(["sync", "-t", "tags", "--verify", *config]) == 1
    said = capsys.readouterr()
    assert "missing tag|5" in said.out
    assert execute(["verify", "-t", "tags", "--json", *config]) == 1
    (table,) = json.loads(capsys.readouterr().out)["tables"]
    expected = {"table": "tags", "status": "different", "missing": 1, "extra": 0, "different": 0, "duplicate": 0}
    assert expected.items() <= table.items() and table["repaired"] == 0
    assert execute(["verify", "-t", "tags", "--repair", *config]) == 0
    assert "repaired" in capsys.readouterr().out
    assert execute(["verify", "--delete", *config]) == 2


def test_where_the_source_knows_no_crc_md5_finds_the_same(postgres_shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = before_18(monkeypatch)
    assert postgres_shop.one("tags").answer is Answer.EQUAL
    postgres_shop.damage("DELETE FROM {tags} WHERE id = 'tag|7'")
    postgres_shop.damage("UPDATE {tags} SET name = 'other' WHERE id = 'tag|8'")
    verdict = postgres_shop.one("tags", repair=True)
    assert (verdict.answer, counts(verdict)) == (Answer.REPAIRED, (1, 0, 1, 0))
    assert asked == {"md5"}


CHILD = """
import os, signal, sys
import strandline
from strandline.core.events import BatchApplied, Committed, Intended

def kill(event):
    if type(event).__name__ == sys.argv[2]:
        os.kill(os.getpid(), signal.SIGKILL)

with strandline.load(sys.argv[1]) as project:
    project.verify("shop", tables=["orders"], repair=True, listener=kill)
"""


def test_a_repair_killed_in_the_middle_is_finished_by_the_next_sync(postgres_shop: Shop) -> None:
    shop = postgres_shop
    shop.damage("DELETE FROM {orders} WHERE id IN (5, 2500)")
    environment = {**os.environ, "PYTHONPATH": str(Path(strandline.__file__).parents[1])}
    command = [sys.executable, "-c", CHILD, str(shop.config), "Intended"]
    child = subprocess.run(command, env=environment, cwd=shop.folder, capture_output=True, text=True, timeout=300)
    assert child.returncode == -signal.SIGKILL, child.stderr
    with shop.load() as project:
        position = project.books.positions("shop", "orders")["shop", "orders", "sync"]
    assert position.plan is not None and position.intent is not None
    assert shop.one("orders", repair=True).answer is Answer.FAILED  # a plan is open
    shop.sync()
    verdict = shop.one("orders")
    assert (verdict.answer, verdict.rows) == (Answer.EQUAL, ROWS)

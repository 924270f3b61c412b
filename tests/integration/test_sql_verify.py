"""Verify and repair where the target is a database: MariaDB against PostgreSQL, and the other way round."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from test_sql_types import asked
from test_verify_repair import ROWS, Shop, counts
from verify_shop import before_18

from strandline.testing.servers import MariaDB, Postgres
from strandline.verify.verdict import Answer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SqlShop(Shop):
    """A shop whose copy lies in another database."""

    def __init__(self, url: str, copy: str, folder: Path, spark: Any, connection: Any) -> None:
        self.copy = copy
        super().__init__(url, folder, spark, connection)

    @property
    def target_url(self) -> str:
        return self.copy

    def target(self, table: str) -> str:
        return table

    def damage(self, statement: str) -> None:
        names = {table["name"]: table["name"] for table in self.tables}
        asked(self.copy)(statement.format(**names))


@pytest.fixture(scope="module", params=["postgres", "mariadb"])
def shop(
    request: pytest.FixtureRequest,
    postgres: Postgres,
    mariadb: MariaDB,
    tmp_path_factory: pytest.TempPathFactory,
    spark: SparkSession,
) -> Iterator[SqlShop]:
    """Equal tables in both; each test leaves them equal. The parameter names the source."""
    source, target = (postgres, mariadb) if request.param == "postgres" else (mariadb, postgres)
    names = [f"t_{uuid.uuid4().hex[:12]}" for _ in range(2)]
    with ExitStack() as opened:
        for server, name in ((source, names[0]), (target, names[1])):
            asked(server.url())(f"CREATE DATABASE {name}")
            opened.callback(asked(server.url()), f"DROP DATABASE {name}")
        connection = opened.enter_context(source.connect(names[0]))
        folder = tmp_path_factory.mktemp("verify")
        yield SqlShop(source.url(names[0]), target.url(names[1]), folder, spark, connection)


def test_every_kind_of_damage_is_named_and_repaired_whatever_the_key(shop: SqlShop) -> None:
    keys = {"orders": "id = {}", "items": "n = 'ü{}'", "tags": "id = 'tag|{}'"}
    extra = {"orders": "id = 100000", "items": "n = 'extra'", "tags": "id = 'extra'"}
    for table, key in keys.items():
        shop.damage(f"DELETE FROM {{{table}}} WHERE {key.format(7)} OR {key.format(2999)}")
        shop.damage(f"UPDATE {{{table}}} SET amount = amount + 0.01, at = at WHERE {key.format(11)}")
        shop.damage(f"UPDATE {{{table}}} SET {extra[table]}, at = at WHERE {key.format(13)}")
    for table, verdict in shop.verdicts().items():
        assert (table, verdict.answer, counts(verdict)) == (table, Answer.DIFFERENT, (3, 1, 1, 0))
        assert verdict.rows == ROWS - 2
    for verdict in shop.verdicts(repair=True).values():
        assert (verdict.answer, verdict.notes) == (Answer.DIFFERENT, ("left after the repair: 1 extra",))
        assert verdict.repaired == 3 + 1
    for verdict in shop.verdicts(repair=True, delete=True).values():
        assert (verdict.answer, verdict.repaired, counts(verdict)) == (Answer.REPAIRED, 1, (0, 1, 0, 0))
    assert [verdict.answer for verdict in shop.verdicts().values()] == [Answer.EQUAL] * 3


def test_where_one_side_knows_no_crc_md5_finds_the_same(shop: SqlShop, monkeypatch: pytest.MonkeyPatch) -> None:
    asked_for = before_18(monkeypatch)
    assert {verdict.answer for verdict in shop.verdicts().values()} == {Answer.EQUAL}
    shop.damage("UPDATE {orders} SET amount = amount + 0.01, at = at WHERE id = 11")
    shop.damage("DELETE FROM {tags} WHERE id = 'tag|7'")
    found = {table: counts(verdict) for table, verdict in shop.verdicts(repair=True).items()}
    assert found == {"orders": (0, 0, 1, 0), "items": (0, 0, 0, 0), "tags": (1, 0, 0, 0)}
    assert {verdict.answer for verdict in shop.verdicts().values()} == {Answer.EQUAL}
    assert asked_for == {"md5"}


def test_a_source_that_is_being_written_raises_no_alarm(shop: SqlShop) -> None:
    stop = threading.Event()
    now = "clock_timestamp()" if shop.kind == "postgresql" else "NOW(6)"

    def write() -> None:
        number = 0
        while not stop.wait(0.005):
            number += 1
            shop.execute(f"UPDATE orders SET name = 'w{number}', at = {now} WHERE id = {1 + 2 * (37 * number % 1500)}")

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
    shop.sync()
    assert shop.one("orders", repair=True).answer is Answer.REPAIRED

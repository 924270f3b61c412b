"""`history: target`: every sync as a row in the target, and the queries on it that docs/targets-sql.md gives."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lake_shop
import psycopg
import pytest
import server_shop
from psycopg.rows import dict_row
from server_shop import NOW

from strandline.core.errors import ConfigError
from strandline.core.events import Event, Intended, Warned
from strandline.core.position import Position, Status

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = (Path(__file__).parents[2] / "docs" / "targets-sql.md").read_text()
QUERIES = dict(re.findall(r"^([^\n]+):\n\n```sql\n(.*?);\n```", PAGE, re.MULTILINE | re.DOTALL))
RECENT, FAILED, DAILY, WATERMARK, WAITING, DELETE = QUERIES.values()
SECONDS = {"postgres": "EXTRACT(EPOCH FROM SYNC_END_TIMESTAMP - SYNC_START_TIMESTAMP)"}
SECONDS["mariadb"] = re.findall(r"^\| MySQL \| `(TIMESTAMPDIFF.*)` \|$", PAGE, re.MULTILINE)[0]


class Watched(server_shop.Shop):
    def ask(self, query: str) -> list[dict[str, Any]]:
        with self.connection.cursor() as cursor:
            cursor.execute(query.replace("last_update_date", "at"))
            names = [column[0].lower() for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def waiting(self) -> int:
        ((count,),) = (row.values() for row in self.ask(WAITING))
        return int(count)

    def history(self) -> list[dict[str, Any]]:
        return self.ask(RECENT)[::-1]

    def position(self) -> Position:
        with self.load() as project:
            (position,) = project.books.positions().values()
            return position


@pytest.fixture(params=["postgres", "mariadb"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Watched]:
    with server_shop.opened(Watched, request.param, request.getfixturevalue(request.param), tmp_path) as shop:
        shop.pipeline["history"] = "target"
        shop.settings = {"deleted": "gone"}
        yield shop


def moment(found: datetime) -> str:
    return f"{found.astimezone(UTC) if found.tzinfo else found:%Y-%m-%d %H:%M:%S.%f}"


def counts(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[f"rows_{what}"] for what in ("inserted", "updated", "deleted", "processed"))


def test_the_queries_of_the_page_find_every_sync(shop: Watched) -> None:
    shop.insert(1, 2)
    shop.sync()
    assert shop.waiting() == 0
    shop.execute(f"UPDATE orders SET status = 'paid', gone = id = 1, at = {NOW[shop.kind]}")
    shop.insert(3)
    shop.execute("INSERT INTO orders SELECT 4, status, amount, false, at FROM orders WHERE id = 3")
    assert shop.waiting() == 4
    shop.sync()
    shop.insert(5)
    shop.killed(Intended)
    first, second, running = shop.history()
    assert (counts(first), counts(second)) == ((2, 0, 0, 2), (2, 1, 1, 4))
    assert [row["watermark_from"] for row in (first, second, running)] == [
        None,
        first["watermark_to"],
        second["watermark_to"],
    ]
    assert (running["sync_status"], running["sync_end_timestamp"], counts(running)) == ("RUNNING", None, (None,) * 4)
    assert first["sync_start_timestamp"] <= first["sync_end_timestamp"] <= second["sync_start_timestamp"]
    names = [first[name] for name in ("pipeline", "table_name", "stage", "sync_status", "error_message")]
    assert names == ["shop", "orders", "sync", "SUCCESS", None]

    assert shop.sync().applied.rows_inserted == 1
    shop.execute("ALTER TABLE orders RENAME COLUMN at TO moved")
    assert shop.sync().status is Status.FAILED
    shop.execute("ALTER TABLE orders RENAME COLUMN moved TO at")

    wrong, killed = shop.ask(FAILED)
    assert "column" in wrong["error_message"]
    _, _, closed, resumed, _ = shop.history()
    assert "killed?" in closed["error_message"] and closed["sync_end_timestamp"] >= closed["sync_start_timestamp"]
    assert killed["sync_run_id"] == closed["sync_run_id"]
    days = [list(day.values())[1:] for day in shop.ask(DAILY.replace(SECONDS["postgres"], SECONDS[shop.kind]))]
    assert [int(sum(figures)) for figures in zip(*days, strict=True)][:5] == [5, 3, 2, 5, 1]
    assert all(day[5] >= 0 for day in days)
    (far,) = shop.ask(WATERMARK)
    reached = shop.position().watermark
    assert reached is not None
    assert (far["table_name"], moment(far["watermark"])) == ("orders", reached.text.ljust(26, "0"))
    assert resumed["cursor_to"] == reached.text
    shop.insert(6)
    assert shop.waiting() == 1

    shop.execute(DELETE.replace("2026-08-01", "2999-01-01"))
    assert [row["sync_run_id"] for row in shop.history()] == [resumed["sync_run_id"]]


def test_a_history_that_cannot_be_written_is_told_and_the_rows_are_in(shop: Watched) -> None:
    shop.execute("CREATE TABLE strandline_history (something int)")
    shop.insert(1)
    events: list[Event] = []
    assert shop.sync(listener=events.append).status is Status.COMPLETED
    assert any("history was not written" in event.message for event in events if isinstance(event, Warned))


def test_what_comes_over_a_stage_is_told_in_terms_of_the_source(
    pg_database: str, tmp_path: Path, spark: SparkSession
) -> None:
    shop = lake_shop.Shop(pg_database, tmp_path, spark)
    shop.execute("CREATE SCHEMA copied")
    shop.pipeline |= {"stage": "stage", "target": f"{pg_database}?schema=copied", "history": "target"}
    for number in (1, 2):
        shop.insert(number)
        shop.sync(stages=["extract"])
    shop.sync(stages=["load"])
    with shop.load() as project:
        far = project.books.positions()["shop", "orders", "extract"].watermark
    assert far is not None
    with psycopg.connect(pg_database, row_factory=dict_row) as there:
        (load,) = there.execute("SELECT * FROM copied.strandline_history").fetchall()
    shop.close()
    assert (load["stage"], load["sync_status"], counts(load)) == ("load", "SUCCESS", (2, 0, 0, 2))
    assert (load["watermark_from"], moment(load["watermark_to"])) == (None, far.text)
    assert (load["cursor_from"], load["cursor_to"]) == (None, far.text)


def test_a_lake_has_no_such_history(pg_database: str, tmp_path: Path) -> None:
    shop = lake_shop.Shop(pg_database, tmp_path)
    shop.pipeline["history"] = "target"
    with pytest.raises(ConfigError, match="needs a database as target"):
        shop.sync()
    shop.close()

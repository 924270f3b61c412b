"""The queries of docs/state.md, taken from the page and run on every database they promise to run on."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from strandline.core.protocols import Record, State, Value
from strandline.core.records import KINDS
from strandline.endpoint import Endpoint
from strandline.state import open_state, schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AT = "2026-11-15T08:00:00.000Z"
PAGE = (Path(__file__).parents[2] / "docs" / "state.md").read_text()
QUERIES = dict(re.findall(r"^([^\n]+):\n\n```sql\n(.*?);\n```", PAGE, re.MULTILINE | re.DOTALL))

Ask = Callable[[str], list[dict[str, Any]]]


def seed(state: State) -> None:
    def run(run_id: str, status: str, milliseconds: int, **fields: Value) -> Record:
        day = f"{run_id[:4]}-{run_id[4:6]}-{run_id[6:8]}T08:00:00.000Z"
        common: dict[str, Value] = {"pipeline": "shop", "rows_inserted": 10, "rows_updated": 2, "started_at": day}
        return Record("run", (run_id,), {**common, "status": status, "milliseconds": milliseconds, **fields})

    state.append(
        [
            run("20261114-080000-a", "COMPLETED", 1000),
            run("20261115-080000-b", "SKIPPED", 500, rows_inserted=0, rows_updated=0),
            run("20261115-090000-c", "FAILED", 2500, error="1 table failed"),
            run("20261115-100000-d", "FAILED", 3000, error="the source is down"),
            run("20261115-110000-e", "COMPLETED", 2000),
            Record("table_run", ("20261115-090000-c", "orders", "load"), {"status": "FAILED", "error": "deadlock"}),
            Record("table_run", ("20261115-090000-c", "items", "load"), {"status": "COMPLETED"}),
            Record("change", ("20261115-1",), {"pipeline": "shop", "table_name": "orders", "old": "5", "new": "3"}),
        ]
    )
    state.put(
        [
            Record("position", ("shop", "orders", "load"), {"watermark": "9007199254740993", "last_value": "7"}),
            Record("position", ("shop", "items", "load"), {"watermark": "2026-11-15T08:12:44.120001Z"}),
            Record(
                "lease", ("shop", "orders"), {"holder": "ann@host pid 12", "expires_at": "2026-11-15T08:13:00.000Z"}
            ),
            Record("lease", ("shop", "items"), {"holder": "bob@host pid 7", "expires_at": ""}),
        ]
    )


def _sqlite(endpoint: Endpoint) -> Any:
    return sqlite3.connect(endpoint.path)


def _postgresql(endpoint: Endpoint) -> Any:
    import psycopg

    return psycopg.connect(
        host=endpoint.host,
        port=endpoint.port or 5432,
        user=endpoint.user,
        password=endpoint.password,
        dbname=endpoint.path,
    )


def _mysql(endpoint: Endpoint) -> Any:
    import pymysql

    return pymysql.connect(
        host=endpoint.host,
        port=endpoint.port or 3306,
        user=endpoint.user,
        password=endpoint.password,
        database=endpoint.path,
    )


@pytest.fixture(params=["sqlite", "pg_database", "mariadb_database"])
def ask(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ask]:
    """Runs SQL as a person with the database's own client would."""
    url = f"sqlite:///{tmp_path}/state.db" if request.param == "sqlite" else request.getfixturevalue(request.param)
    endpoint = Endpoint.parse(url)
    state = open_state(endpoint)
    seed(state)
    state.close()
    connection = {"sqlite": _sqlite, "postgresql": _postgresql, "mysql": _mysql}[endpoint.scheme](endpoint)

    def ask(sql: str) -> list[dict[str, Any]]:
        cursor = connection.cursor()
        cursor.execute(sql)
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    yield ask
    connection.close()


def test_the_page_has_the_queries_people_ask_for() -> None:
    assert list(QUERIES) == [
        "Recent runs",
        "Failed runs, with the tables that failed",
        "Daily statistics",
        "Current watermarks",
        "Watermarks moved by a person",
        "Who holds what now",
    ]


def test_recent_runs(ask: Ask) -> None:
    rows = ask(QUERIES["Recent runs"])
    assert [row["run_id"][-1] for row in rows] == ["e", "d", "c", "b", "a"]
    assert float(rows[0]["seconds"]) == 2.0


def test_failed_runs(ask: Ask) -> None:
    rows = ask(QUERIES["Failed runs, with the tables that failed"])
    assert [(row["run_id"][-1], row["table_name"], row["error"]) for row in rows] == [
        ("d", None, "the source is down"),
        ("c", "orders", "deadlock"),
    ]


def test_daily_statistics(ask: Ask) -> None:
    rows = [tuple(row.values()) for row in ask(QUERIES["Daily statistics"])]
    assert [(day, *map(float, figures)) for day, *figures in rows] == [
        ("2026-11-15", 4, 2, 2, 30, 6, 2.0),
        ("2026-11-14", 1, 1, 0, 10, 2, 1.0),
    ]


def test_current_watermarks(ask: Ask) -> None:
    rows = ask(QUERIES["Current watermarks"])
    assert [(row["table_name"], row["watermark"]) for row in rows] == [
        ("items", "2026-11-15T08:12:44.120001Z"),
        ("orders", "9007199254740993"),
    ]


def test_changes_and_leases(ask: Ask) -> None:
    (change,) = ask(QUERIES["Watermarks moved by a person"])
    assert (change["old"], change["new"]) == ("5", "3")
    (lease,) = ask(QUERIES["Who holds what now"])
    assert lease["holder"] == "ann@host pid 12"


def test_every_table_is_explained() -> None:
    explained = re.findall(r"^\| `(strandline_\w+)` \|", PAGE, re.MULTILINE)
    assert sorted(explained) == sorted(schema.table_of(kind) for kind in KINDS)


def test_the_same_queries_and_the_words_of_watermark_tables_in_spark_sql(spark: SparkSession, tmp_path: Path) -> None:
    """The views of the page over a state in Delta; then every query, and the bounds of both kinds of table."""
    state = open_state(Endpoint.parse(f"delta:{tmp_path}/state"))
    seed(state)
    for view in re.findall(r"^CREATE OR REPLACE TEMPORARY VIEW .*?;$", PAGE, re.MULTILINE | re.DOTALL):
        spark.sql(view.rstrip(";").replace("/data/state", f"{tmp_path}/state"))

    def ask(sql: str) -> list[dict[str, Any]]:
        return [row.asDict() for row in spark.sql(sql).collect()]

    test_recent_runs(ask)
    test_failed_runs(ask)
    test_daily_statistics(ask)
    test_changes_and_leases(ask)
    test_current_watermarks(ask)
    seed_delta(state)
    versions = {row["table_name"]: row for row in ask("SELECT * FROM pipeline_watermark")}
    assert {name: _bounds(row) for name, row in versions.items()} == {
        "done": (41, 40, 41, "COMPLETED"),
        "open": (41, 42, 44, "FAILED"),
        "new": (None, 0, 6, "PLANNED"),
        "stopped": (8, 0, None, "FAILED"),
    }
    assert (versions["open"]["error_message"], versions["open"]["failed_at"] is None) == ("disk full", False)
    assert versions["done"]["failed_at"] is None
    (past,) = ask("SELECT * FROM pipeline_watermark_history WHERE table_name = 'done'")
    assert (past["start_version"], past["end_version"], past["records_processed"]) == (40, 41, 7)
    exact = "DATE_FORMAT({}, 'yyyy-MM-dd HH:mm:ss.SSSSSS') AS {}"
    texts = ", ".join(exact.format(f"{name}_ts", name) for name in ("last_processed", "current_run"))
    timed, zoned = ask(f"SELECT *, {texts} FROM watermarks ORDER BY table_name")
    assert (timed["pipeline_name"], timed["job_id"], timed["status"]) == ("wos", "job_123", "READY")
    assert (timed["last_processed"], timed["last_processed_version"]) == ("2026-11-15 07:59:59.999999", 1794729599999)
    assert (timed["current_run"], timed["watermark_id"] != zoned["watermark_id"]) == (None, True)
    assert (zoned["last_processed"], zoned["current_run"]) == (
        "2026-11-14 22:59:59.999999",
        "2026-11-14 23:29:59.999999",
    )
    assert zoned["status"] == "RUNNING"
    for view, columns in DOCUMENTED.items():
        assert set(columns.split()) <= set(spark.table(view).columns), view


DOCUMENTED = {
    "pipeline_watermark": "table_name last_processed_version start_version end_version status run_id update_ts "
    "error_message failed_at",
    "pipeline_watermark_history": "table_name run_id status error_message failed_at execution_duration "
    "records_processed",
    "watermarks": "watermark_id pipeline_name job_id last_processed_ts current_run_ts last_processed_version status "
    "created_at updated_at",
}
"""The columns of the watermark tables that the project was asked to stand in for."""


def _bounds(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["last_processed_version"], row["start_version"], row["end_version"], row["status"]


def seed_delta(state: State) -> None:
    """A table that is done, one whose plan failed, one that is new; and a pipeline that keeps a time."""

    def version(table: str, **fields: Value) -> Record:
        return Record("position", ("lake", table, "sync"), {"kind": "version", "updated_at": AT, **fields})

    open_plan = '{"window": {"low": "42", "high": "45"}}'
    state.put(
        [
            version("done", watermark="42", status="SKIPPED", run_id="20261114-080000-a"),
            version("open", watermark="42", status="FAILED", run_id="r9", plan=open_plan, error="disk full"),
            version("stopped", watermark="9", status="FAILED", run_id="r9", error="the log has expired"),
            version("new", status="PLANNED", run_id="r9", plan='{"window": {"low": null, "high": "7"}}'),
            Record(
                "position",
                ("wos", "pages", "sync"),
                {
                    "kind": "timestamp",
                    "watermark": "2026-11-15 08:00:00",
                    "run_id": "w",
                    "updated_at": AT,
                },
            ),
            Record(
                "position",
                ("wos", "rows", "sync"),
                {
                    "kind": "timestamp",
                    "watermark": "2026-11-15 08:00:00",
                    "measures": '{"zone": "Asia/Tokyo"}',
                    "status": "RUNNING",
                    "plan": '{"window": {"low": "2026-11-15 08:00:00", "high": "2026-11-15 08:30:00"}}',
                    "run_id": "w",
                    "updated_at": AT,
                },
            ),
            Record("run", ("w",), {"pipeline": "wos", "job_id": "job_123", "started_at": AT}),
            Record(
                "table_run",
                ("20261114-080000-a", "done", "sync"),
                {"pipeline": "lake", "low": "40", "high": "42", "rows_read": 7, "started_at": AT, "ended_at": ""},
            ),
        ]
    )

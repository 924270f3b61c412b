"""The queries of docs/state.md, taken from the page and run on every database they promise to run on."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from strandline.core.protocols import Record, State, Value
from strandline.core.records import KINDS
from strandline.endpoint import Endpoint
from strandline.state import open_state, schema

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

"""A team moves in with the watermark table it keeps in Delta: versions by table, inclusive. No JVM is started."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from arro3.core import Array, DataType, Table
from deltalake import write_deltalake

import strandline
from strandline import operations
from strandline.cli.app import execute
from strandline.core.errors import StrandlineError
from strandline.project import Project

CONFIG = """
state: delta:state
pipelines:
  shop:
    source: delta:lake
    target: delta:copy
    tables:
      - {name: orders, key: id}
      - {name: items, key: id}
"""
Noted = tuple[str, int | None, int | None, int | None, str, int]


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """Two tables of six versions each."""
    (tmp_path / "strandline.yml").write_text(CONFIG)
    for name in ("orders", "items"):
        for number in range(6):
            rows = Table.from_pydict({"id": Array([number], DataType.int64())})
            write_deltalake(tmp_path / "lake" / name, rows, mode="append")
    return tmp_path


def noted(folder: Path, *rows: Noted) -> str:
    """Table, last processed, start, end, status, when."""
    names = ("table_name", "last_processed_version", "start_version", "end_version", "status", "update_ts")
    types = {"table_name": DataType.utf8(), "status": DataType.utf8()}
    columns: dict[str, Any] = {
        name: Array([row[place] for row in rows], types.get(name, DataType.int64())) for place, name in enumerate(names)
    }
    columns["update_ts"] = columns["update_ts"].cast(DataType.timestamp("us", tz="UTC"))
    write_deltalake(folder / "pipeline_watermark", Table.from_pydict(columns))
    return str(folder / "pipeline_watermark")


def load(folder: Path) -> Project:
    return strandline.load(folder / "strandline.yml")


def test_the_last_version_done_becomes_the_next_to_read(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`orders` is done up to 3; `items` has a plan of 2 to 4 that nobody finished."""
    at = noted(
        shop,
        ("main.shop.orders", 1, 0, 1, "COMPLETED", 1_000_000),
        ("main.shop.orders", 3, 2, 3, "COMPLETED", 2_000_000),
        ("main.shop.items", 1, 0, 1, "COMPLETED", 1_000_000),
        ("main.shop.items", None, 2, 4, "PLANNED", 2_000_000),
    )
    command = ["watermark", "import", "--from-delta", at, "-c", str(shop / "strandline.yml")]
    assert execute(command) == 2
    assert "its last version 3 is done: we go on at 4" in capsys.readouterr().err
    with load(shop) as project:
        assert project.books.positions() == {}  # shown, not written
    assert execute([*command, "--yes", "--json"]) == 0
    changes = {change["table"]: change for change in json.loads(capsys.readouterr().out)["changes"]}
    assert {name: change["new"] for name, change in changes.items()} == {"orders": "4", "items": "2"}
    assert "its run of versions 2 to 4 is PLANNED: those are planned anew" in changes["items"]["notes"]
    with load(shop) as project:
        plans = {plan.table: plan for plan in project.plan("shop").tables}
        windows = {name: (str(plan.window.low), str(plan.window.high)) for name, plan in plans.items() if plan.window}
        assert windows == {"orders": ("4", "6"), "items": ("2", "6")}


@pytest.mark.parametrize(
    ("row", "value"),
    [
        (("orders", 0, 0, 0, "COMPLETED", 1), "1"),
        (("orders", None, 2, 4, "SUCCESS", 1), "5"),
        (("orders", 3, 4, 5, "FAILED", 1), "4"),
        (("orders", 4, 3, 4, "RUNNING", 1), "3"),  # noted before it was done
        (("orders", 0, 1, 4, "PLANNED", 1), "1"),
        (("orders", 3, 4, 5, "SKIPPED", 1), "4"),
    ],
)
def test_what_a_run_did_not_finish_is_not_done(shop: Path, row: Noted, value: str) -> None:
    with load(shop) as project:
        (change,) = operations.adopt_delta(project, noted(shop, row))
        assert str(change.new) == value


@pytest.mark.parametrize(
    ("row", "told"),
    [
        (("orders", 9, 8, 9, "COMPLETED", 1), "in the future"),
        (("orders", None, 0, 3, "PLANNED", 1), "it has moved nothing yet"),
        (("orders", 0, 0, 3, "PLANNED", 1), "it has moved nothing yet"),  # some begin with 0 for "never"
        (("orders", 0, None, None, "READY", 1), "it has moved nothing yet"),
        (("orders", None, 0, 3, "SKIPPED", 1), "it has moved nothing yet"),
        (("unknown", 1, 0, 1, "COMPLETED", 1), 'no pipeline has a table "unknown"'),
    ],
)
def test_what_cannot_be_is_refused(shop: Path, row: Noted, told: str) -> None:
    with load(shop) as project, pytest.raises(StrandlineError, match=told):
        operations.adopt_delta(project, noted(shop, row))

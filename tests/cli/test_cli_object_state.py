"""The command line over a state of documents in a folder: a sync, damage, and the commands that put it right."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from shop import Shop, open_shop

from strandline.core.errors import SourceError


@pytest.fixture(params=["table", "pipeline"])
def layout(request: pytest.FixtureRequest) -> str:
    given: str = request.param
    return given


@pytest.fixture
def shop(tmp_path: Path, layout: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shop:
    shop = open_shop(tmp_path, monkeypatch, capsys)
    text = shop.config.read_text().replace(
        f"state: sqlite:///{tmp_path}/state.db", f"state: {{url: {tmp_path}/state, layout: {layout}}}"
    )
    shop.config.write_text(text)
    shop.write("orders", 1, 2, 3)
    shop.write("customers", 1)
    assert shop.run("sync", "-p", "shop").code == 0
    shop.clock.advance(5)
    assert shop.run("sync", "-p", "shop").code == 0  # nothing new: one more revision, and the one before has no lease
    return shop


def newest(shop: Shop, layout: str) -> Path:
    place = "tables/shop/orders" if layout == "table" else "pipelines/shop"
    return max((shop.folder / "state" / place).iterdir())


def test_every_command_works_on_documents(shop: Shop) -> None:
    shop.write("orders", 4)
    assert shop.run("plan", "-p", "shop").code == 0
    assert shop.run("sync", "-p", "shop").code == 0
    assert [row["id"] for row in shop.sink.rows("orders")] == [1, 2, 3, 4]
    got = shop.run("watermark", "get", "-p", "shop", "-t", "orders", "--json").json
    assert got["stages"][0]["rows"] == 4
    runs = shop.run("runs", "list", "--json").json["runs"]
    assert [run["status"] for run in runs] == ["COMPLETED", "COMPLETED"]
    assert shop.run("watermark", "reset", "-p", "shop", "-t", "orders", "--yes", "--why", "test").code == 0
    assert "reset" in shop.run("watermark", "history", "-p", "shop").out
    assert shop.run("sync", "-p", "shop").code == 0
    assert shop.run("status").code == 0


def crash() -> None:
    raise SourceError("the machine went down")


def test_a_document_says_what_people_keep_in_watermark_files_of_their_own(shop: Shop, layout: str) -> None:
    shop.write("orders", 4)
    shop.sink.at_commit(before=crash)
    assert shop.run("sync", "-p", "shop", "-t", "orders").code == 1
    stages = json.loads(newest(shop, layout).read_text())["stages"]
    sync = stages["sync"] if layout == "table" else stages["orders"]["sync"]
    assert sync["status"] == "FAILED" and "the machine went down" in sync["error"]
    assert sync["last_value"] < sync["watermark"]
    assert (sync["rows_read"], sync["files"], sync["batches"]) == (3, 0, 1)
    assert sync["updated_at"] and sync["run_id"] and sync["measures"]["cursor"]
    assert sync["marks"]["strategy"] == "one table after the other, readers inside each: one per core"


def test_a_damaged_document_stops_its_tables_and_is_restored_from_the_target(shop: Shop, layout: str) -> None:
    path = newest(shop, layout)
    path.write_text(path.read_text().replace('"rows_read": 3', '"rows_read": 4'))
    shop.write("orders", 4)
    shop.write("customers", 2)
    stopped = shop.run("sync", "-p", "shop")
    assert stopped.code == 1
    assert "edited by hand" in stopped.err + stopped.out
    assert len(shop.sink.rows("orders")) == 3
    assert len(shop.sink.rows("customers")) == (2 if layout == "table" else 1)
    told = shop.run("watermark", "get", "-p", "shop", "-t", "orders")
    assert told.code == 1
    assert "last good version" in told.err
    assert "watermark import" in told.err
    export = shop.folder / "positions.json"
    export.write_text(shop.run("watermark", "export").out)
    refused = shop.run("watermark", "import", str(export), "--yes", "--why", "x")
    assert "edited by hand" in refused.err  # a copy of what is damaged is no cure
    for table in ("orders", "customers"):
        if layout == "pipeline" or table == "orders":
            restored = shop.run(
                "watermark", "import", "--from-target", "-p", "shop", "-t", table, "--yes", "--why", "x"
            )
            assert restored.code == 0, restored.err
    done = shop.run("sync", "-p", "shop")
    assert done.code == 0, done.err
    assert [row["id"] for row in shop.sink.rows("orders")] == [1, 2, 3, 4]


def test_a_document_with_no_good_version_is_set_by_a_person(shop: Shop, layout: str) -> None:
    for path in newest(shop, layout).parent.iterdir():
        path.write_bytes(b"")
    shop.write("orders", 4)
    stopped = shop.run("sync", "-p", "shop")
    assert stopped.code == 1
    assert "is empty" in stopped.err + stopped.out
    assert len(shop.sink.rows("orders")) == 3
    moved = shop.run(
        "watermark", "set", "-p", "shop", "-t", "orders", "--timestamp", "2026-01-01", "--yes", "--why", "emptied"
    )
    assert moved.code == 0, moved.err
    assert shop.run("sync", "-p", "shop", "-t", "orders").code == 0
    assert [row["id"] for row in shop.sink.rows("orders")] == [1, 2, 3, 4]

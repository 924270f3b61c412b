"""What to do about an error is kept with it, and shown whenever the error is."""

from __future__ import annotations

from pathlib import Path

import pytest
from shop import PASSWORD, Shop, open_shop

from strandline import operations
from strandline.core.errors import TargetError
from strandline.operations.health import findings

REMEDY = "Free some space, then run again."


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shop:
    shop = open_shop(tmp_path, monkeypatch, capsys)
    shop.write("orders", 1, 2)
    return shop


def refuse() -> None:
    raise TargetError("the disk is full", why=f"{PASSWORD} was no help", remedy=REMEDY, docs="docs/operations.md")


def test_a_failed_run_shows_its_remedy_later(shop: Shop) -> None:
    shop.sink.at_commit(before=refuse)
    assert shop.run("sync", "-p", "shop", "-t", "orders").code == 1
    said = shop.run("runs", "show", "last")
    expected = f"error: shop.orders: the disk is full\n\n  *** was no help\n\n  {REMEDY}\n  Docs: docs/operations.md"
    assert expected in said.out
    document = shop.run("runs", "show", "last", "--json").json
    assert (
        document["remedy"]
        == document["tables"][0]["remedy"]
        == expected.partition("full\n\n  ")[2].replace("\n  ", "\n")
    )
    (table,) = shop.run("status", "-p", "shop", "-t", "orders", "--json").json["pipelines"][0]["tables"]
    assert REMEDY in table["remedy"] and PASSWORD not in table["remedy"]


def test_a_table_that_cannot_be_planned_keeps_its_remedy_until_it_is_well(shop: Shop) -> None:
    known = shop.source._tables.pop("orders")
    shop.run("sync", "-p", "shop")
    with shop.project() as project:
        (part,) = operations.status(project, ("shop",))
        (found,) = [finding for finding in findings(part, None, {}, project.books.state.now()) if finding.table]
    assert found.remedy.startswith("Names like it")
    assert "\n\n  Names like it" in shop.run("runs", "show", "last").out
    shop.source._tables["orders"] = known
    shop.run("sync", "-p", "shop")
    document = shop.run("watermark", "get", "-p", "shop", "-t", "orders", "--json").json
    assert (document["stages"][0]["error"], document["stages"][0]["remedy"]) == (None, None)

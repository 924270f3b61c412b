"""Pages over a real project: what a page costs, and what it says when there is nothing or something is wrong."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from fastapi.testclient import TestClient
from web_shop import Shop

from strandline.core.books import stamp
from strandline.core.codec import position_record
from strandline.core.position import Position
from strandline.core.protocols import Record, Value
from strandline.core.records import COUNTS
from strandline.core.watermark import Kind, Watermark
from strandline.web.views import Views

pytest_plugins = ("web_fixtures",)

HTML = {"Accept": "text/html"}


@contextmanager
def counted(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    state, reads = shop.project.books.state, list[str]()
    real = state.read

    def read(kind: str, *words: Any, **more: Any) -> list[Record]:
        reads.append(kind)
        return real(kind, *words, **more)

    with monkeypatch.context() as patched:
        patched.setattr(state, "read", read)
        yield reads


def fill(shop: Shop, tables: int, runs: int) -> None:
    """Positions and history as so many tables and runs would leave them."""
    state = shop.project.books.state
    now = stamp(state.now())
    mark = Watermark(Kind.TIMESTAMP, now[:19].replace("T", " "))
    positions = [
        Position("shop", f"table_{number:04}", "sync", watermark=mark, updated_at=now) for number in range(tables)
    ]
    state.put([position_record(position) for position in positions])
    fields: dict[str, Value] = {
        "pipeline": "shop",
        "status": "COMPLETED",
        "started_at": now,
        "ended_at": now,
        "milliseconds": 5,
    }
    state.append(
        [
            Record("run", (f"20261101-{number:06}-000-aaaaaa",), {**fields, **dict.fromkeys(COUNTS, 1)})
            for number in range(runs)
        ]
    )


@pytest.mark.parametrize("path", ["/", "/api/v1/pipelines", "/pipelines/shop", "/metrics"])
def test_a_page_costs_no_read_per_table(
    shop: Shop, client: TestClient, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    def cost() -> list[str]:
        client.get(path, headers=HTML)  # the first look samples the lag
        with counted(shop, monkeypatch) as reads:
            answer = client.get(path, headers=HTML)
        assert answer.status_code == 200 and len(answer.content) < 300_000
        return reads

    fill(shop, 2, 2)
    few = cost()
    fill_more(shop)
    assert cost() == few
    assert len(few) <= 10


def fill_more(shop: Shop) -> None:
    state = shop.project.books.state
    known = state.read("position", ["shop", "table_0001"])[0]
    state.put([replace(known, key=("shop", f"more_{number:04}", "sync"), revision=0) for number in range(300)])
    (run, *_) = state.read("run")
    state.append([replace(run, key=(f"20261102-{number:06}-000-aaaaaa",), revision=0) for number in range(500)])


def test_a_pipeline_that_never_ran_says_what_to_do(shop: Shop, client: TestClient) -> None:
    assert "Nothing has run yet" in client.get("/").text
    page = client.get("/pipelines/shop").text
    assert "No table has run yet" in page and "Never run:" in page and "No lag is known" in page
    assert "never run" in client.get("/pipelines/shop/tables/orders").text
    assert "No runs yet" in client.get("/runs").text
    assert "Nothing has happened" in client.get("/events").text
    assert shop.project.books.state.read("position") == []


def test_a_pipeline_that_left_the_config_keeps_its_history(shop: Shop, client: TestClient) -> None:
    shop.write("orders", 1)
    shop.sync()
    config = shop.project.config
    shop.project.config = replace(config, pipelines={"counted": config.pipelines["counted"]})
    page = client.get("/pipelines/shop").text
    assert "not in the config any more" in page and "Run now" not in page
    assert client.post("/api/v1/pipelines/shop/run", json={}).status_code == 404
    assert "shop" in client.get("/").text


def test_problems_come_first_and_have_their_button_beside_them(shop: Shop, client: TestClient) -> None:
    shop.write("orders", 1)
    shop.write("customers", 1)
    shop.sync()
    shop.sync("counted")
    shop.execute("ALTER TABLE copied.orders RENAME TO away")
    shop.write("orders", 2)
    shop.sync()
    page = client.get("/").text
    assert "1 of 2 pipelines needs attention" in page
    assert page.index(">shop<") < page.index(">counted<")
    assert 'action="/runs/' in page and ">Retry<" in page


def test_a_missing_page_is_a_page(reader: TestClient) -> None:
    for path in ("/none", "/pipelines/none", "/pipelines/shop/tables/none", "/runs/none"):
        answer = reader.get(path, headers=HTML)
        assert answer.status_code == 404 and "<h1>" in answer.text, path
    assert "Pipelines: counted, shop" in reader.get("/pipelines/none", headers=HTML).text


def test_forms_get_the_checks_of_the_command_line(reader: TestClient) -> None:
    path = "/pipelines/shop/tables/orders/watermark"
    future = reader.post(path, data={"action": "set", "value": "2999-01-01"}, headers=HTML)
    assert future.status_code == 422 and "in the future" in future.text
    assert reader.post(path, data={"action": "set"}, headers=HTML).status_code == 422
    shown = reader.post(path, data={"action": "reset"}, headers=HTML)
    assert "Reset the watermark?" in shown.text and "would be re-read" in shown.text


def test_tables_are_found_by_name_and_come_in_pages(shop: Shop, client: TestClient) -> None:
    fill(shop, 250, 1)
    first, last = client.get("/pipelines/shop").text, client.get("/pipelines/shop?page=3").text
    assert "page 1 of 3" in first and "table_0000" in first and "table_0249" not in first
    assert "table_0249" in last
    assert "table_0249" in client.get("/pipelines/shop?q=0249").text
    assert "No table has “zebra”" in client.get("/pipelines/shop?q=zebra").text
    assert client.get("/pipelines/shop?page=99").status_code == 200


def test_lag_rises_until_a_run_and_falls_with_it(shop: Shop) -> None:
    for number in (1, 2, 3):
        shop.write("orders", number)
        shop.sync()
        time.sleep(0.3)
    points = Views(shop.desk).table("shop", "orders").lags
    pairs = list(pairwise(points))
    falls = [(before, after) for before, after in pairs if before[0] == after[0]]
    fell = [before[1] > after[1] for before, after in falls]
    assert fell == [False, True, True], "a first load has nothing before it"
    assert all(before[1] < after[1] for before, after in pairs if before[0] < after[0])

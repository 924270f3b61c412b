"""What API and pages show of a service over sources in memory: trouble before a run, what a restart still knows, names
that need care, and what a person may ask for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from clockwork import Clockwork, told
from fastapi.testclient import TestClient

from strandline import operations
from strandline.core.errors import ConnectError, TargetError
from strandline.core.table import Column
from strandline.core.watermark import Cursor, Kind
from strandline.project import load
from strandline.service.service import Service
from strandline.web.app import make_app
from strandline.web.memory import KEPT_EVERY, Lags
from strandline.web.security import Security
from strandline.web.views import lag_meaning

HTML = {"Accept": "text/html"}


@pytest.fixture
def works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Clockwork]:
    works = Clockwork(tmp_path, monkeypatch)
    works.keep_state_in_memory()
    works.write_config(shop="schedule: every 10s")
    yield works
    for service in works.services:
        service.close()


def client_of(service: Service) -> TestClient:
    return TestClient(make_app(service, Security()), base_url="http://127.0.0.1")


def get(service: Service, path: str) -> Any:
    answer = client_of(service).get(f"/api/v1{path}")
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_sync_that_fails_before_it_is_a_run_reddens_the_pipeline_until_it_works(
    works: Clockwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    away, real = [True], works.source.horizons

    def horizons(tables: Sequence[Any]) -> Any:
        if away:
            raise ConnectError("the source is away", remedy="Start it.")
        return real(tables)

    monkeypatch.setattr(works.source, "horizons", horizons)
    service = works.started()
    works.pass_time(service, 1)
    client = client_of(service)
    found = client.get("/api/v1/pipelines/shop").json()
    assert found["health"] == "error" and found["last_run"] is None
    assert [(it["about"], it["message"], it["remedy"]) for it in found["findings"]] == [
        ("run", "the source is away", "Start it.")
    ]
    page = client.get("/", headers=HTML).text
    assert "1 of 1 pipeline needs attention" in page and "Start it." in page
    assert 'strandline_health{pipeline="shop"} 3.0' in client.get("/metrics").text
    away.clear()
    works.pass_time(service, 60)
    assert client.get("/api/v1/pipelines/shop").json()["health"] == "ok"


def test_a_verification_is_still_known_after_a_restart_whoever_made_it(works: Clockwork) -> None:
    works.write("shop", 1, 2, 3)
    service = works.started()
    works.pass_time(service, 1)
    works.sink.restore("shop_orders", _without(works, 2))
    with load(works.config) as by_hand:
        by_hand.verify("shop")
    assert get(service, "/pipelines/shop")["health"] == "error"
    (verified,) = get(works.started(), "/pipelines/shop/tables/shop_orders")["verified"]
    assert (verified["answer"], verified["missing"]) == ("different", 1)
    with load(works.config) as by_hand:
        by_hand.verify("shop", repair=True)
    found = get(works.started(), "/pipelines/shop")
    assert (found["health"], found["findings"]) == ("ok", [])
    (verified,) = get(service, "/pipelines/shop/tables/shop_orders")["verified"]
    assert (verified["answer"], verified["missing"]) == ("repaired", 0)


def _without(works: Clockwork, number: int) -> Any:
    from dataclasses import replace

    held = works.sink.backup("shop_orders")
    assert held is not None
    return replace(held, rows=tuple(row for row in held.rows if row["id"] != number))


def test_lag_over_time_goes_on_after_a_restart_and_stays_bounded(works: Clockwork) -> None:
    works.write("shop", 1)
    service = works.started()
    works.pass_time(service, 1)
    first = Lags()
    for _ in range(26 * 12):
        first.take(service.project, operations.status(service.project), works.clock.now())
        works.clock.advance(KEPT_EVERY.total_seconds())
    known = first.of("shop")
    again = Lags()
    again.take(service.project, operations.status(service.project), works.clock.now())
    kept = again.of("shop")[:-1]
    assert 280 <= len(kept) <= 288, "a day"
    assert works.clock.now() - kept[0][0] <= timedelta(days=1)
    assert [late for _, late in kept[-3:]] == [round(late) for _, late in known[-3:]]
    (record,) = service.project.books.state.read("lag")
    assert len(str(record.fields["points"])) < 10_000


def test_a_table_whose_name_has_slashes_can_be_seen_and_moved(works: Clockwork) -> None:
    works.write_config(shop="exclude: none")
    text = works.config.read_text().replace("tables: [shop_orders]", 'tables: ["eu/2026 %/orders"]')
    works.config.write_text(text)
    columns = (Column("id", "bigint"), Column("value", "string"), Column("moved", "timestamp"))
    works.source.create("eu/2026 %/orders", columns, Cursor("moved", Kind.TIMESTAMP), ["id"])
    works.source.write("eu/2026 %/orders", {"id": 1, "value": "new"})
    works.clock.advance(1)
    service = works.started()
    service.project.sync("shop")
    client = client_of(service)
    path = f"/pipelines/shop/tables/{quote('eu/2026 %/orders', safe='')}"
    assert client.get(f"/api/v1{path}").json()["table"] == "eu/2026 %/orders"
    assert f'href="{path}"' in client.get("/pipelines/shop", headers=HTML).text
    assert "eu/2026 %/orders" in client.get(path, headers=HTML).text
    shown = client.post(f"/api/v1{path}/watermark", json={"action": "reset"}).json()
    assert shown["changes"][0]["table"] == "eu/2026 %/orders"
    assert "Reset the watermark?" in client.post(f"{path}/watermark", data={"action": "reset"}).text
    assert client.get("/api/v1/pipelines/shop/tables/eu/none").status_code == 404


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Kind.TIMESTAMP, "now less the watermark"),
        (Kind.INTEGER, "not a time"),
        (Kind.VERSION, "age of the last version"),
    ],
)
def test_what_lag_means_is_said_for_every_kind_of_cursor(kind: Kind, words: str) -> None:
    assert words in lag_meaning(kind)


@pytest.fixture
def stopped(works: Clockwork) -> Service:
    """A run of three slices failed after the first, and the config says to ask."""
    works.write_config(shop="unfinished: stop\n    defaults: {slice_rows: 1}")
    works.write("shop", 1, 2, 3)
    service = works.started()

    def refuse() -> None:
        raise TargetError("the disk is full")

    def next_time() -> None:
        works.sink.at_commit(before=refuse)

    works.sink.at_commit(after=next_time)
    service.project.sync("shop")
    assert works.moved("shop") == 1
    return service


def test_a_retry_is_the_answer_that_unfinished_stop_asks_for(works: Clockwork, stopped: Service) -> None:
    client = client_of(stopped)
    client.post("/api/v1/pipelines/shop/run", json={})
    assert works.moved("shop") == 1, "it stops"
    job = client.post("/api/v1/runs/last/retry").json()
    assert client.get(f"/api/v1/jobs/{job['job_id']}").json()["status"] == "done"
    assert works.moved("shop") == 3


def test_a_plan_is_dropped_only_as_it_was_shown_and_then_made_anew(works: Clockwork, stopped: Service) -> None:
    client = client_of(stopped)
    run = client.get("/api/v1/runs/last").json()["run_id"]
    shown = client.post(f"/api/v1/runs/{run}/replan", json={}).json()
    (change,) = shown["changes"]
    assert shown["dry_run"] and shown["job"] is None and "1 of 3 slices were done" in change["notes"]
    assert client.post(f"/api/v1/runs/{run}/replan", json={"dry_run": False}).status_code == 422
    asked = {"dry_run": False, "revisions": [change["revision"] + 1]}
    assert "since it was shown" in client.post(f"/api/v1/runs/{run}/replan", json=asked).json()["detail"]
    assert works.moved("shop") == 1
    done = client.post(
        f"/api/v1/runs/{run}/replan", json={"dry_run": False, "revisions": [change["revision"]], "why": "too old"}
    ).json()
    assert done["job"]["tables"] == ["shop_orders"] and works.moved("shop") == 3
    (moved,) = get(stopped, "/pipelines/shop/tables/shop_orders")["changes"]
    assert (moved["action"], moved["why"]) == ("replan", "too old")
    assert "left no plan open" in client.post(f"/api/v1/runs/{run}/replan", json={}).json()["detail"]


def test_the_page_of_a_run_offers_to_plan_anew_and_shows_it_first(works: Clockwork, stopped: Service) -> None:
    client = client_of(stopped)
    run = client.get("/api/v1/runs/last").json()["run_id"]
    assert f'action="/runs/{run}/replan"' in client.get(f"/runs/{run}", headers=HTML).text
    page = client.post(f"/runs/{run}/replan", headers=HTML).text
    assert "plan anew?" in page and works.moved("shop") == 1
    revisions = page.partition('name="revisions" value="')[2].partition('"')[0]
    client.post(f"/runs/{run}/replan", data={"revisions": revisions, "why": "by hand"})
    assert works.moved("shop") == 3


def test_a_table_that_never_had_a_row_is_verified_as_equal(works: Clockwork) -> None:
    works.write_config(shop="schedule: every 10s\n    verify: every 1m")
    service = works.started()
    works.pass_time(service, 200)
    assert (told(service, "job_failed"), len(told(service, "job_done"))) == ([], 3)
    (verified,) = get(service, "/pipelines/shop/tables/shop_orders")["verified"]
    assert verified["answer"] == "equal"


def test_a_target_that_is_missing_though_the_source_has_rows_is_no_equal_copy(works: Clockwork) -> None:
    service = works.started()
    works.pass_time(service, 15)
    (position,) = service.project.books.positions("shop").values()
    assert position.watermark is not None and position.batch is None
    works.source.write("shop_orders", {"id": 1, "value": "late", "moved": works.clock.now() - timedelta(seconds=10)})
    (verdict,) = service.project.verify("shop")
    assert verdict.answer == "failed" and "the source has rows below the watermark" in str(verdict.error)

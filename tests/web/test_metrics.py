"""`/metrics` in Prometheus' own format, from the state."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families
from web_shop import Shop

from strandline.core.codec import position_record
from strandline.core.position import Holder, Position, Stall

pytest_plugins = ("web_fixtures",)

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def scrape(client: TestClient) -> Samples:
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = text_string_to_metric_families(answer.text)
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def of(samples: Samples, name: str, **labels: str) -> float:
    return samples[f"strandline_{name}", tuple(sorted(labels.items()))]


ORDERS = {"pipeline": "shop", "table": "orders", "stage": "sync"}


def test_runs_rows_and_durations_are_counted_from_the_history_each_once(shop: Shop, client: TestClient) -> None:
    assert not any(name == "strandline_runs_total" for name, _ in scrape(client))
    for number in range(3):
        shop.write("orders", number * 2, number * 2 + 1)
        shop.sync()
    for _ in range(2):  # looking does not count
        found = scrape(client)
        assert of(found, "runs_total", pipeline="shop", status="completed") == 3
        assert of(found, "rows_written_total", pipeline="shop") == 6
        assert of(found, "run_duration_seconds_count", pipeline="shop") == 3
        assert of(found, "run_duration_seconds_bucket", pipeline="shop", le="+Inf") == 3
    shop.execute("DROP TABLE copied.orders")
    shop.write("orders", 100)
    shop.sync()
    found = scrape(client)
    assert of(found, "runs_total", pipeline="shop", status="failed") == 1
    assert of(found, "health", pipeline="shop") == 3


def test_watermark_lag_and_success_are_times(shop: Shop, client: TestClient) -> None:
    shop.write("orders", 1)
    shop.sync()
    found, now = scrape(client), time.time()
    assert abs(of(found, "watermark_timestamp_seconds", **ORDERS) - now) < 60
    assert 0 <= of(found, "lag_seconds", **ORDERS) < 60
    assert abs(of(found, "last_success_timestamp_seconds", pipeline="shop") - now) < 60
    assert of(found, "held_seconds", **ORDERS) == 0
    assert of(found, "suspended", pipeline="shop") == 0
    client.post("/api/v1/pipelines/shop/suspend", json={})
    assert of(scrape(client), "suspended", pipeline="shop") == 1


def test_a_cursor_that_counts_has_no_lag_and_labels_hold_no_run_id(reader: TestClient) -> None:
    found = scrape(reader)
    lags = {labels for name, labels in found if name == "strandline_lag_seconds"}
    assert {dict(labels)["pipeline"] for labels in lags} == {"shop"}
    assert not any(re.search(r"\d{8}-\d{6}", value) for _, labels in found for _, value in labels)
    assert ("strandline_build_info", (("version", "0.1.0"),)) in found


def test_a_table_that_is_held_says_for_how_long_and_by_whom(shop: Shop, client: TestClient) -> None:
    since = (datetime.now(UTC) - timedelta(minutes=3)).isoformat()
    held = Position("shop", "orders", "sync", stall=Stall(since, Holder("4711", "app@web3", 180.0)), updated_at=since)
    shop.project.books.state.put([position_record(held)])
    assert 180 <= of(scrape(client), "held_seconds", **ORDERS) < 240
    assert "held by transaction 4711 (app@web3)" in client.get("/pipelines/shop").text


def test_every_metric_is_in_the_docs_and_the_other_way_round(shop: Shop, client: TestClient) -> None:
    shop.write("orders", 1)
    scrape(client)
    shop.sync()
    answer = client.get("/metrics").text
    exist = {name for name in re.findall(r"^# TYPE (\w+)", answer, re.M) if not name.endswith("_created")}
    page = (Path(__file__).parents[2] / "docs" / "dashboard.md").read_text()
    assert set(re.findall(r"^\| `(strandline_\w+)`", page, re.M)) == exist

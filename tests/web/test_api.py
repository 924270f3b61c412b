"""The API over a real project: what it says is what the CLI says, and what it does is what the CLI would do."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi.testclient import TestClient
from web_shop import Shop

from strandline.cli.app import execute
from strandline.web.app import make_app
from strandline.web.security import Security
from strandline.web.serving import serve_web

pytest_plugins = ("web_fixtures",)

ROOT = Path(__file__).parents[2]
PASSING = ("lag_seconds", "next_run")


def get(client: TestClient, path: str, status: int = 200) -> Any:
    answer = client.get(f"/api/v1{path}")
    assert answer.status_code == status, answer.text
    return answer.json()


def post(client: TestClient, path: str, body: Any = None, status: int = 200) -> Any:
    answer = client.post(f"/api/v1{path}", json=body or {})
    assert answer.status_code == status, answer.text
    return answer.json()


def said(shop: Shop, capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    capsys.readouterr()
    execute([*words, "--json", "-c", str(shop.folder / "strandline.yml")])
    return json.loads(capsys.readouterr().out)


def contains(found: Any, part: Any) -> bool:
    """Whether everything in `part` is in `found`; times that pass meanwhile aside."""
    if isinstance(part, dict):
        return all(name in found and contains(found[name], part[name]) for name in part if name not in PASSING)
    if isinstance(part, list):
        return len(found) == len(part) and all(contains(*pair) for pair in zip(found, part, strict=True))
    return bool(found == part)


def test_what_the_api_says_is_what_the_command_line_says(
    shop: Shop, client: TestClient, capsys: pytest.CaptureFixture[str]
) -> None:
    shop.write("orders", 1, 2, 3, 4, 5)
    shop.sync()
    run_id = get(client, "/runs")["runs"][0]["run_id"]
    pairs = {
        "/pipelines": ["status"],
        "/positions": ["watermark", "list"],
        "/pipelines/shop/tables/orders": ["watermark", "get", "-t", "orders"],
        "/runs": ["runs", "list"],
        f"/runs/{run_id}": ["runs", "show", run_id],
        "/stats": ["runs", "stats"],
    }
    for path, words in pairs.items():
        ours, theirs = get(client, path), said(shop, capsys, *words)
        assert contains(ours, theirs), path
    shop.write("orders", 6)
    planned = post(client, "/pipelines/shop/plan")
    (theirs,) = said(shop, capsys, "plan", "-p", "shop")["pipelines"]
    assert [table["reason"] for table in planned["tables"]] == [table["reason"] for table in theirs["tables"]]
    assert planned["tables"][0]["estimated_rows"] == 1


def test_a_run_is_asked_for_and_its_job_tells_how_it_ended(shop: Shop, client: TestClient) -> None:
    shop.write("orders", 1, 2)
    job = post(client, "/pipelines/shop/run", {"tables": ["orders"]}, 202)
    assert (job["action"], job["tables"], job["trigger"]) == ("sync", ["orders"], "api")
    shop.desk.settle()
    ended = get(client, f"/jobs/{job['job_id']}")
    assert ended["status"] == "done" and ended["error"] is None
    run = get(client, f"/runs/{ended['run_id']}")
    assert (run["status"], run["rows_inserted"], run["trigger"]) == ("COMPLETED", 2, "api")
    assert [table["table"] for table in run["tables"]] == ["orders"]
    assert shop.execute("SELECT count(*) FROM copied.orders") == [(2,)]


def test_the_same_job_is_not_queued_twice(shop: Shop, client: TestClient) -> None:
    shop.desk.gate.clear()
    first = post(client, "/pipelines/shop/run", {}, 202)
    assert post(client, "/pipelines/shop/run", {}, 202)["job_id"] == first["job_id"]
    (waiting,) = get(client, "/pipelines/shop")["jobs"]
    assert waiting["job_id"] == first["job_id"]


def test_suspension_is_seen_and_a_second_one_is_a_conflict(client: TestClient) -> None:
    found = post(client, "/pipelines/shop/suspend", {"why": "moving house"})
    assert found["suspended_at"] and found["why"] == "moving house" and found["next_run"] is None
    assert found["suspended_by"] == "api from testclient"
    assert "suspended since" in post(client, "/pipelines/shop/suspend", {}, 409)["detail"]
    assert post(client, "/pipelines/shop/resume")["suspended_at"] is None
    assert "not suspended" in post(client, "/pipelines/shop/resume", {}, 409)["detail"]


def test_a_watermark_is_moved_only_after_it_was_shown(shop: Shop, client: TestClient) -> None:
    shop.write("orders", 1, 2, 3)
    shop.sync()
    path = "/pipelines/shop/tables/orders/watermark"
    before = get(client, "/pipelines/shop/tables/orders")["stages"][0]["watermark"]
    shown = post(client, path, {"action": "set", "value": "2020-01-01"})
    (change,) = shown["changes"]
    assert shown["dry_run"] and (change["old"], change["effect"]) == (before, "re-read")
    assert get(client, "/pipelines/shop/tables/orders")["stages"][0]["watermark"] == before
    refused = post(client, path, {"action": "set", "value": "2020-01-01", "dry_run": False}, 422)
    assert "dry_run first" in refused["remedy"]
    ask = {"action": "set", "value": "2020-01-01", "dry_run": False, "revision": change["revision"], "why": "test"}
    post(client, path, ask)
    found = get(client, "/pipelines/shop/tables/orders")
    assert found["stages"][0]["watermark"].startswith("2020-01-01 00:00:00")
    assert (found["changes"][0]["why"], found["changes"][0]["who"]) == ("test", "api from testclient")
    assert "moved it since it was shown" in post(client, path, ask, 409)["detail"]
    (reset,) = post(client, path, {"action": "reset"})["changes"]
    post(client, path, {"action": "reset", "dry_run": False, "revision": reset["revision"]})
    assert get(client, "/pipelines/shop/tables/orders")["stages"][0]["watermark"] is None


def test_a_watermark_gets_the_checks_of_the_command_line(shop: Shop, client: TestClient) -> None:
    shop.write("orders", 1)
    shop.execute("INSERT INTO items (value) VALUES ('a'), ('b')")
    shop.sync()
    shop.sync("counted")
    path = "/pipelines/shop/tables/orders/watermark"
    assert "in the future" in post(client, path, {"action": "set", "value": "2999-01-01"}, 422)["detail"]
    assert "not a timestamp" in post(client, path, {"action": "set", "value": "soon"}, 422)["detail"]
    assert "set needs a value" in post(client, path, {"action": "set"}, 422)["detail"]
    again = post(client, "/pipelines/counted/tables/items/watermark", {"action": "reset"}, 422)
    assert "already holds" in again["detail"] and "--allow-duplicates" in again["remedy"]


def test_a_failed_run_is_shown_with_its_error_and_retried(shop: Shop, client: TestClient) -> None:
    shop.write("orders", 1)
    shop.sync()
    shop.execute("ALTER TABLE copied.orders RENAME TO away")
    shop.write("orders", 2)
    shop.sync()
    (failed, _) = get(client, "/runs?status=FAILED")["runs"] + [None]
    run = get(client, f"/runs/{failed['run_id']}")
    assert run["left_open"] == ["shop.orders"] and run["error"]
    view = get(client, "/pipelines/shop")
    assert view["health"] == "error"
    assert {finding["table"] for finding in view["findings"]} == {"orders"}
    assert get(client, "/pipelines/shop/plan")["tables"][0]["reason"] == "incremental"
    shop.execute("ALTER TABLE copied.away RENAME TO orders")
    job = post(client, f"/runs/{failed['run_id']}/retry", None, 202)
    shop.desk.settle()
    assert get(client, f"/jobs/{job['job_id']}")["status"] == "done"
    assert get(client, "/pipelines/shop")["health"] == "ok"
    assert get(client, f"/runs/{failed['run_id']}")["left_open"] == []
    assert "left nothing unfinished" in post(client, f"/runs/{failed['run_id']}/retry", None, 409)["detail"]


def test_a_difference_found_by_a_verification_is_an_error_until_it_is_repaired(shop: Shop, client: TestClient) -> None:
    shop.write("orders", 1, 2, 3)
    shop.sync()
    shop.execute("DELETE FROM copied.orders WHERE id = 2")
    post(client, "/pipelines/shop/verify", {"tables": ["orders"]}, 202)
    shop.desk.settle()
    found = get(client, "/pipelines/shop")
    assert found["health"] == "error"
    assert [finding["about"] for finding in found["findings"]] == ["verification"]
    assert get(client, "/pipelines/shop/tables/orders")["verified"][0]["missing"] == 1
    post(client, "/pipelines/shop/verify", {"tables": ["orders"], "repair": True}, 202)
    shop.desk.settle()
    assert shop.execute("SELECT count(*) FROM copied.orders") == [(3,)]
    found = get(client, "/pipelines/shop")
    assert (found["health"], found["findings"]) == ("ok", [])
    assert get(client, "/pipelines/shop/tables/orders")["verified"][0]["answer"] == "repaired"


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/pipelines/none", None),
        ("GET", "/pipelines/shop/tables/none", None),
        ("GET", "/pipelines/none/plan", None),
        ("GET", "/positions?pipeline=none", None),
        ("GET", "/runs?pipeline=none", None),
        ("GET", "/runs/none", None),
        ("GET", "/jobs/none", None),
        ("GET", "/nothing", None),
        ("POST", "/pipelines/none/run", {}),
        ("POST", "/pipelines/shop/run", {"tables": ["none"]}),
        ("POST", "/pipelines/none/suspend", {}),
        ("POST", "/pipelines/shop/verify", {"tables": ["none"]}),
        ("POST", "/pipelines/shop/tables/none/watermark", {"action": "reset"}),
        ("POST", "/runs/none/retry", None),
    ],
)
def test_what_does_not_exist_is_not_found_and_says_what_does(
    reader: TestClient, method: str, path: str, body: Any
) -> None:
    answer = reader.request(method, f"/api/v1{path}", json=body)
    assert answer.status_code == 404, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["detail"]


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        ("/pipelines/shop/run", {"stages": ["load"]}, 'no stage "load"'),
        ("/pipelines/shop/run", {"table": "orders"}, "Extra inputs"),
        ("/pipelines/shop/run", {"tables": "orders"}, "valid list"),
        ("/pipelines/shop/suspend", {"why": "a\0b"}, "NUL"),
        ("/pipelines/shop/tables/orders/watermark", {"action": "forget"}, "'set' or 'reset'"),
    ],
)
def test_what_cannot_be_is_refused_in_words(reader: TestClient, path: str, body: Any, says: str) -> None:
    assert says in post(reader, path, body, 422)["detail"]


def test_a_source_that_is_away_is_a_problem_and_no_trace(shop: Shop, client: TestClient) -> None:
    shop.execute("DROP TABLE orders")
    (orders, _) = post(client, "/pipelines/shop/plan")["tables"]
    assert orders["reason"] == "stopped" and '"orders"' in orders["error"]
    told = post(client, "/pipelines/shop/tables/orders/watermark", {"action": "reset"}, 409)
    assert "shop.orders" in told["detail"] and "Traceback" not in json.dumps(told)


def test_runs_come_in_pages(shop: Shop, client: TestClient) -> None:
    for number in range(5):
        shop.write("orders", number)
        shop.sync()
    ids = [run["run_id"] for run in get(client, "/runs?limit=200")["runs"]]
    assert len(ids) == 5 and ids == sorted(ids, reverse=True)
    first, second, third = (get(client, f"/runs?limit=2&page={page}") for page in (1, 2, 3))
    assert [run["run_id"] for page in (first, second, third) for run in page["runs"]] == ids
    assert (first["next_page"], second["next_page"], third["next_page"]) == (2, 3, None)
    assert len(get(client, "/runs?table=customers")["runs"]) == 0


def test_events_are_told_in_order_and_from_where_a_reader_left_off(shop: Shop, client: TestClient) -> None:
    shop.write("orders", 1)
    shop.sync()
    told = get(client, "/events")["events"]
    assert [entry["id"] for entry in told] == list(range(1, len(told) + 1))
    assert {"run_started", "committed", "run_finished"} <= {entry["event"] for entry in told}
    assert get(client, f"/events?after={len(told) - 1}")["events"] == told[-1:]


def test_a_reader_of_the_stream_goes_on_from_its_last_event_and_hears_what_is_new(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        shop.desk.log.add({"event": "told", "pipeline": "shop", "message": f"number {number}"})
    heard: list[str] = []
    monkeypatch.setattr("strandline.web.serving._STOP_SECONDS", 10_000)  # the end is not for those who were cut off
    with serve_web(shop.desk, port=0) as server:
        url, last = f"{server.url}/api/v1/events/stream", {"Last-Event-ID": "2"}
        with httpx2.stream("GET", url, headers=last, timeout=120) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            for line in answer.iter_lines():
                if line.startswith("id: "):
                    heard.append(line)
                    if len(heard) == 2:
                        break
                    shop.desk.log.add({"event": "told", "message": "later"})
        assert heard == ["id: 3", "id: 4"]
        with httpx2.stream("GET", url, timeout=120) as answer:
            assert next(answer.iter_lines()) == "retry: 2000"
            server.stop()  # a reader does not keep it


def test_an_integer_cursor_has_no_lag_in_time_and_its_page_says_so(reader: TestClient) -> None:
    found = get(reader, "/pipelines/counted")
    assert found["lag_seconds"] is None and found["health"] == "ok"
    assert "number, not a time" in reader.get("/pipelines/counted").text


def test_every_route_is_in_the_docs_with_an_example_where_it_takes_a_body(reader: TestClient) -> None:
    schema = get(reader, "/openapi.json")
    routes = {
        f"| `{method.upper()}` | `{path}` | {' '.join(operation['description'].split())} |"
        for path, methods in schema["paths"].items()
        for method, operation in methods.items()
    }
    page = (ROOT / "docs" / "api.md").read_text()
    assert set(re.findall(r"^\| `[A-Z]+` .*$", page, re.M)) == routes
    for name, shape in schema["components"]["schemas"].items():
        assert not name.endswith("Ask") or shape["examples"], name


def test_a_config_that_is_not_in_force_is_told(shop: Shop, client: TestClient) -> None:
    shop.desk.refuse_config("strandline.yml:3: unknown key")
    assert get(client, "/pipelines")["config_error"] == "strandline.yml:3: unknown key"
    assert "strandline.yml:3: unknown key" in client.get("/").text


def test_probes_say_that_the_state_is_away(shop: Shop) -> None:
    client = TestClient(make_app(shop.desk, Security()), base_url="http://127.0.0.1")
    assert client.get("/healthz").text == client.get("/readyz").text == "ok\n"
    shop.project.books.state.close()
    (shop.folder / "state.db").unlink()
    (shop.folder / "state.db").mkdir()
    assert client.get("/readyz").status_code == 503
    assert client.get("/healthz").status_code == 200
    away = client.get("/api/v1/pipelines")
    assert away.status_code == 503 and "state" in away.json()["detail"]
    (shop.folder / "state.db").rmdir()

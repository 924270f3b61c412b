"""Attacks on the service: each is tried, and each is refused."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient
from web_shop import PASSWORD, Shop

from strandline.core.errors import ConfigError
from strandline.web.app import make_app
from strandline.web.security import COOKIE_SECONDS, Security, Tries, own_path
from strandline.web.serving import serve_web

pytest_plugins = ("web_fixtures",)

TOKEN = "a-token-of-good-length-1234"
BASE = "http://127.0.0.1"
EVERYTHING = (
    "/",
    "/pipelines/shop",
    "/pipelines/shop/tables/orders",
    "/runs",
    "/runs/last",
    "/events",
    "/docs",
    "/metrics",
    "/api/v1/pipelines",
    "/api/v1/pipelines/shop/tables/orders",
    "/api/v1/positions",
    "/api/v1/runs",
    "/api/v1/stats",
    "/api/v1/jobs",
    "/api/v1/events",
    "/api/v1/events/stream",
    "/api/v1/openapi.json",
)


@pytest.fixture
def locked(steady: Shop) -> Iterator[TestClient]:
    """A service with a token."""
    client = TestClient(make_app(steady.desk, Security(token=TOKEN)), base_url=BASE, follow_redirects=False)
    yield client


def bearer(token: str = TOKEN) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.mark.parametrize("path", EVERYTHING)
def test_nothing_is_shown_without_the_token(locked: TestClient, path: str) -> None:
    assert locked.get(path).status_code == 401
    assert locked.get(path, headers=bearer("another-token-of-good-length")).status_code == 401
    person = locked.get(path, headers={"Accept": "text/html"})
    assert person.status_code == 401 if path.startswith("/api/") else person.headers["location"].startswith("/login?")
    assert "orders" not in person.text


def test_the_token_lets_programs_in_and_probes_need_none(locked: TestClient) -> None:
    assert locked.get("/api/v1/pipelines", headers=bearer()).status_code == 200
    assert locked.get("/metrics", headers=bearer()).status_code == 200
    assert locked.get("/healthz").text == locked.get("/readyz").text == "ok\n"


def test_a_login_gives_a_cookie_that_scripts_and_other_sites_cannot_use(locked: TestClient) -> None:
    answer = locked.post("/login", data={"token": TOKEN, "next": "/runs"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/runs")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie and TOKEN not in cookie
    assert locked.get("/runs").status_code == 200
    out = locked.post("/logout")
    assert "Max-Age=0" in out.headers["set-cookie"]


def test_a_cookie_over_tls_stays_there(steady: Shop) -> None:
    client = TestClient(make_app(steady.desk, Security(token=TOKEN)), base_url="https://127.0.0.1")
    answer = client.post("/login", data={"token": TOKEN}, follow_redirects=False)
    assert "; Secure" in answer.headers["set-cookie"]


def test_a_cookie_cannot_be_made_up_or_kept_for_ever() -> None:
    security, now = Security(token=TOKEN), 1_000_000.0
    cookie = security.cookie(now)
    assert security.knows(cookie, now + COOKIE_SECONDS - 1)
    assert not security.knows(cookie, now + COOKIE_SECONDS + 1)
    until, _, signature = cookie.partition(".")
    later = str(int(until) + 1000)
    for forged in ("", ".", f"{later}.{signature}", f"{until}.", f"{until}.é", f"٣.{signature}"):
        assert not security.knows(forged, now), forged
    assert not Security(token=TOKEN + "x").knows(cookie, now)


def test_tokens_cannot_be_tried_out(steady: Shop) -> None:
    client = TestClient(make_app(steady.desk, Security(token=TOKEN)), base_url=BASE, follow_redirects=False)
    for _ in range(3):
        assert "wrong=1" in client.post("/login", data={"token": "guess"}).headers["location"]
    for _ in range(2):  # the other door leads to the same lock
        assert client.get("/api/v1/runs", headers=bearer("guess")).status_code == 401
    for answer in (client.post("/login", data={"token": TOKEN}), client.get("/api/v1/runs", headers=bearer())):
        assert answer.status_code == 429 and int(answer.headers["retry-after"]) <= 61


def test_tries_are_forgiven_after_a_minute_and_counted_over_all_addresses() -> None:
    now = 0.0
    tries = Tries(lambda: now)
    for _ in range(5):
        tries.failed("1.1.1.1")
    assert tries.wait_seconds("1.1.1.1") and not tries.wait_seconds("2.2.2.2")
    for number in range(45):
        tries.failed(f"10.0.0.{number}")
    assert tries.wait_seconds("2.2.2.2")
    now = 61.0
    assert not tries.wait_seconds("1.1.1.1") and not tries.wait_seconds("2.2.2.2")


@pytest.mark.parametrize(
    "next_", ["https://evil.example/", "//evil.example", "/\\evil.example", "javascript:alert(1)", "/\nSet-Cookie: a"]
)
def test_a_login_leads_nowhere_else(locked: TestClient, next_: str) -> None:
    assert locked.post("/login", data={"token": TOKEN, "next": next_}).headers["location"] == "/"
    assert own_path(next_) == "/"


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:9999"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "http://127.0.0.1.evil.example"},
    ],
    ids=str,
)
def test_another_site_cannot_act(steady: Shop, reader: TestClient, headers: dict[str, str]) -> None:
    before = len(steady.desk.jobs())
    for path in ("/api/v1/pipelines/shop/run", "/pipelines/shop/run", "/login", "/logout"):
        assert reader.post(path, json={}, headers=headers).status_code == 403, path
    assert len(steady.desk.jobs()) == before


def test_its_own_pages_and_programs_can_act(client: TestClient) -> None:
    same = {"Origin": BASE, "Sec-Fetch-Site": "same-origin"}
    assert client.post("/api/v1/pipelines/shop/run", json={}, headers=same).status_code == 202
    assert client.post("/api/v1/pipelines/shop/run", json={}).status_code == 202


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "evil.example:8484", "", "localhost@evil"])
def test_a_name_that_is_not_ours_is_refused(reader: TestClient, host: str) -> None:
    assert reader.get("/api/v1/pipelines", headers={"Host": host}).status_code == 400


@pytest.mark.parametrize("host", ["127.0.0.1:8484", "localhost", "LOCALHOST:1", "[::1]:8484"])
def test_our_names_are_served(reader: TestClient, host: str) -> None:
    assert reader.get("/healthz", headers={"Host": host}).status_code == 200


def test_a_named_host_is_served(steady: Shop) -> None:
    security = Security.at("10.0.0.5", TOKEN, allowed_hosts=["Sync.example.org"])
    client = TestClient(make_app(steady.desk, security), base_url="http://sync.example.org")
    assert client.get("/healthz").status_code == 200
    assert client.get("/healthz", headers={"Host": "other.example.org"}).status_code == 400


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.4", "example.org"])
def test_no_address_is_open_to_others_without_a_token(steady: Shop, host: str) -> None:
    with pytest.raises(ConfigError, match="there is no token"):
        serve_web(steady.desk, host, 0)


def test_a_token_that_could_be_guessed_is_refused(steady: Shop) -> None:
    with pytest.raises(ConfigError, match="could be guessed"):
        serve_web(steady.desk, "127.0.0.1", 0, token="hunter2")


def test_read_only_shows_everything_and_does_nothing(steady: Shop) -> None:
    client = TestClient(make_app(steady.desk, Security(read_only=True)), base_url=BASE)
    before = len(steady.desk.jobs())
    for path in ("run", "verify", "suspend", "resume", "tables/orders/watermark"):
        for door in ("/api/v1", ""):
            answer = client.post(f"{door}/pipelines/shop/{path}", json={"action": "reset"})
            assert answer.status_code == 403, path
    assert client.post("/api/v1/runs/last/retry").status_code == 403
    assert len(steady.desk.jobs()) == before
    assert client.post("/api/v1/pipelines/shop/plan", json={}).status_code == 200
    for path in ("/", "/pipelines/shop", "/pipelines/shop/tables/orders", "/runs/last"):
        page = client.get(path)
        assert page.status_code == 200
        assert set(re.findall(r'action="([^"]+)"', page.text)) <= {"/pipelines/shop/plan"}, path


@pytest.mark.parametrize("path", [*(path for path in EVERYTHING if "stream" not in path), "/login", "/none"])
def test_every_answer_forbids_scripts_frames_and_guesses(reader: TestClient, path: str) -> None:
    answer = reader.get(path, headers={"Accept": "text/html"})
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy and "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-store"
    assert "access-control-allow-origin" not in answer.headers
    assert "server" not in answer.headers


@pytest.mark.parametrize(
    "path", ["/", "/pipelines/shop", "/pipelines/shop/tables/orders", "/runs/last", "/events", "/docs"]
)
def test_a_page_has_nothing_inline_and_asks_nobody_else(reader: TestClient, path: str) -> None:
    page = reader.get(path, headers={"Accept": "text/html"}).text
    assert not re.search(r"<script(?![^>]*src=)|<style|\sstyle=|\son\w+=|javascript:", page)
    for address in re.findall(r'(?:src|href|action)="([^"]*)"', page):
        assert address.startswith(("/", "?", "#")) and not address.startswith("//"), address


def test_names_from_the_database_are_text_on_a_page(shop: Shop, client: TestClient) -> None:
    shop.desk.log.add({"event": "<script>alert(1)</script>", "pipeline": "shop", "table": '"><img src=x>'})
    client.post("/api/v1/pipelines/shop/suspend", json={"why": "<b onmouseover=alert(1)>x</b>"})
    for path in ("/events", "/pipelines/shop", "/", "/pipelines/shop?q=<script>"):
        page = client.get(path, headers={"Accept": "text/html"}).text
        assert "<script>" not in page and "<img src" not in page and "<b onmouseover" not in page, path
    assert "<script>" not in client.get("/pipelines/<script>", headers={"Accept": "text/html"}).text


def test_no_secret_is_in_any_answer(shop: Shop) -> None:
    shop.write("orders", 1)
    shop.sync()
    shop.desk.log.add({"event": "Warned", "pipeline": "shop", "message": f"login as {PASSWORD} or {TOKEN} failed"})
    shop.desk.refuse_config(f"bad url postgresql://reader:{PASSWORD}@db/shop")
    state = shop.project.books.state
    (run,) = state.read("run")
    fields = {**run.fields, "status": "FAILED", "error": f"password={PASSWORD} refused"}
    state.put([type(run)(run.kind, run.key, fields, run.revision)])
    client = TestClient(make_app(shop.desk, Security(token=TOKEN)), base_url=BASE, headers=bearer())
    shown = 0
    for path in EVERYTHING:
        if path.endswith("/stream"):
            continue
        answer = client.get(path, headers={"Accept": "text/html"})
        assert answer.status_code == 200, path
        assert PASSWORD not in answer.text and TOKEN not in answer.text, path
        shown += "***" in answer.text
    assert shown >= 4  # they would have been there


def test_a_secret_does_not_come_through_the_stream_of_events_either(shop: Shop) -> None:
    shop.desk.log.add({"event": "Warned", "message": f"login as {PASSWORD} failed"})
    web = serve_web(shop.desk, port=0, token=TOKEN)
    with web as server, socket.create_connection(_address(server.url), 120) as line:
        ask = f"GET /api/v1/events/stream?after=0 HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
        line.sendall(ask.encode())
        heard = b""
        while b"failed" not in heard and (more := line.recv(65536)):
            heard += more
    assert b"login as *** failed" in heard and PASSWORD.encode() not in heard


def _address(url: str) -> tuple[str, int]:
    host, _, port = url.removeprefix("http://").rpartition(":")
    return host, int(port)


def test_too_much_is_refused(reader: TestClient) -> None:
    large = {"why": "x" * 100_000}
    assert reader.post("/api/v1/pipelines/shop/suspend", json=large).status_code == 413
    pieces = iter([b'{"why": "', b"x" * 100_000, b'"}'])
    answer = reader.post("/api/v1/pipelines/shop/suspend", content=pieces, headers={"Content-Type": "application/json"})
    assert answer.status_code in (400, 413)
    assert reader.get("/api/v1/pipelines/a%00b").status_code == 400
    assert reader.get("/api/v1/runs?pipeline=a%00b").status_code == 400


def test_files_beside_the_static_ones_are_not_served(reader: TestClient) -> None:
    assert reader.get("/static/style.css").status_code == 200
    for path in ("/static/../app.py", "/static/%2e%2e/app.py", "/static/..%2fapp.py", "/static/"):
        assert reader.get(path).status_code == 404, path


def test_a_mistake_of_ours_is_told_without_a_trace(steady: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    client = TestClient(make_app(steady.desk, Security()), base_url=BASE, raise_server_exceptions=False)

    def broken() -> None:
        raise RuntimeError(f"secret path {PASSWORD}")

    monkeypatch.setattr(steady.desk, "timetable", broken)
    answer = client.get("/api/v1/pipelines")
    assert answer.status_code == 500 and "RuntimeError" not in answer.text and PASSWORD not in answer.text
    assert "default-src 'none'" in answer.headers["content-security-policy"]

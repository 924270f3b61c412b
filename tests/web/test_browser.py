"""A real Chromium clicks through every action; what the page says is compared with the API."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright
from web_shop import Shop

from strandline.core.events import Committed
from strandline.web.serving import WebServer, serve_web

pytest_plugins = ("web_fixtures",)

TOKEN = "a-token-of-good-length-1234"
expect.set_options(timeout=120_000)  # for what hangs
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's Chromium, which tools/setup.sh installs, or the one that `playwright install chromium` fetched."""
    found = next((path for name in _NAMES if (path := shutil.which(name))), None)
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture
def server(shop: Shop) -> Iterator[WebServer]:
    with serve_web(shop.desk, port=0) as served:
        yield served


@pytest.fixture
def page(browser: Browser, server: WebServer) -> Iterator[Page]:
    context = browser.new_context(base_url=server.url)
    made = context.new_page()
    made.set_default_timeout(120_000)
    told: list[str] = []
    asked: list[str] = []
    made.on("console", lambda message: told.append(message.text) if _is_mistake(message) else None)
    made.on("pageerror", lambda error: told.append(str(error)))
    made.on("request", lambda request: asked.append(request.url))
    yield made
    context.close()
    assert told == []
    assert {url for url in asked if not url.startswith(server.url)} == set()


def _is_mistake(message: ConsoleMessage) -> bool:
    """A refusal is an error to the browser, and none to us."""
    return message.type == "error" and "Failed to load resource" not in message.text


def api(server: WebServer, path: str) -> Any:
    return httpx2.get(f"{server.url}/api/v1{path}").json()


def test_a_run_is_asked_for_and_seen_to_end_without_a_reload(shop: Shop, server: WebServer, page: Page) -> None:
    shop.write("orders", *range(1, 10))
    shop.write("customers", 1)
    page.goto("/")
    expect(page.get_by_role("heading", level=1)).to_have_text("Nothing has run yet")
    shop.desk.gate.clear()
    page.get_by_role("button", name="Run shop now").click()
    expect(page).to_have_url(re.compile(r"/pipelines/shop\?asked=1"))
    expect(page.locator("#notice")).to_contain_text("Sync is queued")
    shop.desk.gate.set()
    expect(page.locator("#notice")).to_contain_text("Sync is done")
    shown = page.locator("#tables tbody tr")
    expect(shown).to_have_count(2)
    expect(page.locator("#title")).to_contain_text("ok")
    tables = {table["table"]: table for table in api(server, "/pipelines/shop")["tables"]}
    for name in ("orders", "customers"):
        row = page.get_by_role("row").filter(has_text=name)
        expect(row).to_contain_text(f"{tables[name]['rows']:,}")
        expect(row.locator(".mark").first).to_have_attribute("title", tables[name]["watermark"])
    page.locator("#notice a").click()
    run = api(server, "/runs/last")
    expect(page.get_by_role("heading", level=1)).to_contain_text(run["run_id"])
    expect(page.locator("#title")).to_contain_text(f"{run['rows']}: {run['rows_inserted']} new")


def test_progress_of_a_run_is_seen_while_it_goes_on(shop: Shop, server: WebServer, page: Page) -> None:
    shop.write("orders", *range(1, 13))
    shop.desk.event = Committed
    shop.desk.gate.clear()
    page.goto("/pipelines/shop")
    page.get_by_role("button", name="Run now").click()
    row = page.locator("#tables tbody tr").filter(has_text="orders")
    expect(row).to_contain_text("running")
    expect(row).to_contain_text(re.compile("1 of [3-9]"))
    (orders,) = (table for table in api(server, "/pipelines/shop")["tables"] if table["table"] == "orders")
    assert orders["open_plan"]["done"] == 1 and orders["running"]
    expect(page.get_by_role("button", name="Running…")).to_be_disabled()
    refused = httpx2.post(f"{server.url}/api/v1/pipelines/shop/tables/orders/watermark", json={"action": "reset"})
    assert refused.status_code == 409 and "a run is at work" in refused.json()["detail"]
    shop.desk.gate.set()
    expect(row).to_contain_text("completed")
    expect(page.get_by_role("button", name="Run now")).to_be_enabled()


def test_a_pipeline_is_suspended_with_a_reason_and_resumed(server: WebServer, page: Page) -> None:
    page.goto("/pipelines/shop")
    page.locator("summary", has_text="Suspend").click()
    page.get_by_label("Why").fill("the warehouse moves")
    page.get_by_role("button", name="Suspend").click()
    expect(page.get_by_role("status").filter(has_text="Suspended")).to_contain_text("the warehouse moves")
    found = api(server, "/pipelines/shop")
    assert found["why"] == "the warehouse moves" and found["suspended_by"] == "dashboard from 127.0.0.1"
    page.goto("/")
    expect(page.locator('tr[data-pipeline="shop"]')).to_contain_text("suspended")
    page.goto("/pipelines/shop")
    page.get_by_role("button", name="Resume").click()
    expect(page.locator("summary", has_text="Suspend")).to_be_visible()
    assert api(server, "/pipelines/shop")["suspended_at"] is None


def test_a_failed_run_is_found_understood_and_retried(shop: Shop, server: WebServer, page: Page) -> None:
    shop.write("orders", 1)
    shop.sync()
    shop.execute("ALTER TABLE copied.orders RENAME TO away")
    shop.write("orders", 2)
    shop.sync()
    page.goto("/")
    expect(page.get_by_role("heading", level=1)).to_have_text("1 of 2 pipelines needs attention")
    page.get_by_role("link", name="See run").click()
    run = api(server, "/runs/last")
    expect(page.get_by_role("alert")).to_contain_text(run["error"].splitlines()[0])
    expect(page.get_by_role("alert").locator(".remedy")).to_contain_text(run["remedy"].splitlines()[0])
    shop.execute("ALTER TABLE copied.away RENAME TO orders")
    page.get_by_role("button", name="Retry").click()
    expect(page.locator("#notice")).to_contain_text("Sync is done")
    expect(page.locator("#title .health")).to_have_text(re.compile("ok"))
    assert api(server, "/pipelines/shop")["health"] == "ok"
    assert shop.execute("SELECT count(*) FROM copied.orders") == [(2,)]


def test_a_plan_that_was_left_is_dropped_and_made_anew(shop: Shop, server: WebServer, page: Page) -> None:
    shop.write("orders", 1)
    shop.sync()
    shop.execute("ALTER TABLE copied.orders RENAME TO away")
    shop.write("orders", 2)
    shop.sync()
    shop.execute("ALTER TABLE copied.away RENAME TO orders")
    run = api(server, "/runs/last")
    shop.write("orders", 3)
    page.goto(f"/runs/{run['run_id']}")
    page.get_by_role("button", name="Plan anew…").click()
    expect(page.get_by_role("listitem").filter(has_text="shop.orders")).to_contain_text("0 of 1 slices were done")
    assert api(server, f"/runs/{run['run_id']}")["left_open"] == ["shop.orders"], "nothing was dropped yet"
    page.get_by_label("Why").fill("it was too old")
    page.get_by_role("button", name="Plan anew and run").click()
    expect(page.locator("#notice")).to_contain_text("Sync is done")
    assert shop.execute("SELECT count(*) FROM copied.orders") == [(3,)]
    (change,) = api(server, "/pipelines/shop/tables/orders")["changes"]
    assert (change["action"], change["why"]) == ("replan", "it was too old")


def test_a_verification_finds_a_difference_and_its_button_repairs_it(shop: Shop, server: WebServer, page: Page) -> None:
    shop.write("orders", 1, 2, 3)
    shop.write("customers", 1)
    shop.sync()
    shop.execute("DELETE FROM copied.orders WHERE id = 2")
    page.goto("/pipelines/shop")
    page.locator("summary", has_text="Verify").click()
    page.get_by_role("button", name="Verify").click()
    expect(page.locator("#findings")).to_contain_text("source and target differ: 1 missing")
    (finding,) = api(server, "/pipelines/shop")["findings"]
    expect(page.locator("#findings")).to_contain_text(finding["message"])
    page.get_by_role("button", name="Verify and repair").click()
    expect(page.locator("#stages")).to_contain_text("repaired")
    assert shop.execute("SELECT count(*) FROM copied.orders") == [(3,)]
    assert api(server, "/pipelines/shop")["health"] == "ok"


def test_a_plan_is_shown_before_anything_moves(shop: Shop, server: WebServer, page: Page) -> None:
    shop.write("orders", *range(1, 6))
    page.goto("/pipelines/shop")
    page.get_by_role("button", name="Plan").click()
    row = page.locator("#plan tbody tr").filter(has_text="orders")
    expect(row).to_contain_text("first load")
    assert api(server, "/runs")["runs"] == []
    page.get_by_role("button", name="Run now").click()
    expect(page.locator("#notice")).to_contain_text("Sync is done")
    assert api(server, "/runs/last")["rows"] == 5


def test_a_watermark_is_set_and_reset_after_it_was_shown_what_that_does(
    shop: Shop, server: WebServer, page: Page
) -> None:
    shop.write("orders", 1, 2, 3)
    shop.sync()
    before = api(server, "/pipelines/shop/tables/orders")["stages"][0]["watermark"]
    page.goto("/pipelines/shop/tables/orders")
    expect(page.locator(".watermark")).to_have_text(before)
    page.get_by_text("Set watermark", exact=True).click()
    page.get_by_label("Value").fill("2020-01-01")
    page.get_by_role("button", name="Show what it would do").first.click()
    expect(page.locator("#old")).to_have_text(before)
    expect(page.locator("#effect")).to_contain_text("would be re-read")
    assert api(server, "/pipelines/shop/tables/orders")["stages"][0]["watermark"] == before
    page.get_by_label("Why").fill("a bad deploy")
    page.get_by_role("button", name="Set watermark").click()
    expect(page.locator(".watermark")).to_contain_text("2020-01-01")
    found = api(server, "/pipelines/shop/tables/orders")
    expect(page.locator(".watermark")).to_have_text(found["stages"][0]["watermark"])
    expect(page.locator("#changes")).to_contain_text("a bad deploy")
    page.locator("summary", has_text="Reset watermark").click()
    page.get_by_role("button", name="Show what it would do").last.click()
    page.get_by_role("button", name="Reset watermark").click()
    expect(page.locator(".watermark")).to_have_text("none")
    assert api(server, "/pipelines/shop/tables/orders")["stages"][0]["watermark"] is None


def test_a_refusal_says_why_and_what_to_do(shop: Shop, page: Page) -> None:
    shop.write("orders", 1)
    shop.sync()
    page.goto("/pipelines/shop/tables/orders")
    page.get_by_text("Set watermark", exact=True).click()
    page.get_by_label("Value").fill("2999-01-01")
    page.get_by_role("button", name="Show what it would do").first.click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("in the future")
    expect(page.locator(".problem")).to_contain_text("Choose a value up to that one")


def test_events_come_in_while_one_looks(shop: Shop, server: WebServer, page: Page) -> None:
    page.goto("/events")
    expect(page.locator("#events")).to_contain_text("Nothing has happened")
    shop.write("orders", 1)
    shop.sync()
    expect(page.locator("#events tbody tr").first).to_contain_text("run_finished")
    told = api(server, "/events")["events"]
    assert len(told) < 100
    expect(page.locator("#events tbody tr")).to_have_count(len(told))


def test_a_service_that_went_away_leaves_a_page_that_says_so(shop: Shop, browser: Browser) -> None:
    looking = browser.new_page()
    looking.clock.install()
    with serve_web(shop.desk, port=0) as gone:
        looking.goto(gone.url)
        expect(looking.get_by_role("heading", level=1)).to_have_text("Nothing has run yet")
        expect(looking.locator("#stale")).to_be_hidden()
    looking.clock.fast_forward("00:20")
    expect(looking.locator("#stale")).to_contain_text("The service does not answer. This is how things were at")
    looking.close()


def test_the_door_opens_for_the_token_only(shop: Shop, browser: Browser) -> None:
    with serve_web(shop.desk, port=0, token=TOKEN) as locked:
        looking = browser.new_page(base_url=locked.url)
        looking.goto("/runs")
        looking.get_by_label("Token").fill("not-the-token")
        looking.get_by_role("button", name="Log in").click()
        expect(looking.get_by_role("alert")).to_have_text("That is not the token.")
        looking.get_by_label("Token").fill(TOKEN)
        looking.get_by_role("button", name="Log in").click()
        expect(looking).to_have_url(f"{locked.url}/runs")
        expect(looking.get_by_role("heading", level=1)).to_have_text("Runs")
        assert looking.evaluate("document.cookie") == ""
        looking.get_by_role("button", name="Log out").click()
        looking.goto("/")
        expect(looking).to_have_url(re.compile("/login"))
        looking.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_fits_a_phone_and_has_names_for_everything(
    shop: Shop, server: WebServer, browser: Browser, scheme: Any
) -> None:
    shop.write("orders", *range(1, 30))
    shop.write("customers", 1)
    shop.sync()
    context = browser.new_context(
        base_url=server.url, viewport={"width": 390, "height": 800}, color_scheme=scheme, java_script_enabled=True
    )
    phone = context.new_page()
    for path in ("/", "/pipelines/shop", "/pipelines/shop/tables/orders", "/runs", "/runs/last", "/events", "/docs"):
        phone.goto(path)
        wide = phone.evaluate("document.documentElement.scrollWidth")
        assert wide <= 390, f"{path} is {wide} px wide"
        nameless = phone.evaluate(
            """() => [...document.querySelectorAll('button, a, input:not([type=hidden]), select, svg[role=img]')]
            .filter(e => !(e.textContent || '').trim() && !e.ariaLabel && !(e.labels && e.labels.length)
                         && !e.title).map(e => e.outerHTML)"""
        )
        assert nameless == [], path
        back = phone.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (back == "rgb(255, 255, 255)") == (scheme == "light")
    context.close()


def test_everything_can_be_done_with_the_keyboard(shop: Shop, page: Page) -> None:
    shop.write("orders", 1)
    page.goto("/pipelines/shop")
    page.keyboard.press("Tab")
    expect(page.locator(":focus")).to_have_text("Skip to content")
    for _ in range(30):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent.trim()") == "Suspend":
            break
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.type("by hand")
    page.keyboard.press("Enter")
    expect(page.get_by_role("status").filter(has_text="Suspended")).to_contain_text("by hand")


def test_pages_work_without_scripts(shop: Shop, server: WebServer, browser: Browser) -> None:
    shop.write("orders", 1, 2)
    context = browser.new_context(base_url=server.url, java_script_enabled=False)
    plain = context.new_page()
    plain.goto("/pipelines/shop")
    plain.get_by_role("button", name="Run now").click()
    expect(plain.locator("#notice")).to_contain_text("Sync is")  # asked for
    shop.desk.settle()
    plain.reload()
    expect(plain.locator("#notice")).to_contain_text("Sync is done")
    context.close()

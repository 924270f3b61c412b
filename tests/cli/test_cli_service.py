"""suspend, resume and wait; what status and sync say about schedules and suspensions."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from shop import Shop, open_shop

from strandline.core.position import Position
from strandline.core.watermark import Kind, Watermark


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shop:
    shop = open_shop(tmp_path, monkeypatch, capsys)
    text = shop.config.read_text()
    text = text.replace("    parallel: 1\n", "    schedule: every 5m\n")
    shop.config.write_text(text.replace("[items]\n", "[items]\n    schedule: after shop\n"))
    return shop


def test_suspend_and_resume_say_what_they_found_and_last(shop: Shop) -> None:
    said = shop.run("suspend", "shop", "--why", "we migrate")
    assert said.code == 0 and "shop suspended since" in said.out and said.out.endswith(": we migrate\n")
    again = shop.run("suspend", "shop", "--why", "another")
    assert "shop is already suspended since" in again.out and "we migrate" in again.out
    (part, other) = shop.run("status", "--json").json["pipelines"]
    assert part["suspended"]["why"] == "we migrate" and part["suspended"]["by"] and part["suspended"]["at"]
    assert (part["next_run"], other["suspended"]) == (None, None)
    assert "suspended" in shop.run("status").out and ": we migrate" in shop.run("status").out
    assert shop.run("resume", "shop", "--json").json["was_suspended"] is True
    assert "was not suspended" in shop.run("resume", "shop").out
    assert shop.run("suspend", "shopp").code == 2
    assert shop.run("resume", "shopp").code == 2


def test_a_suspended_pipeline_runs_by_hand_and_says_so(shop: Shop) -> None:
    shop.write("orders", 1)
    shop.run("suspend", "shop", "--why", "we migrate")
    said = shop.run("sync", "-p", "shop", "-t", "orders")
    assert said.code == 0 and "note: shop is suspended since" in said.err and "by hand it runs all the same" in said.err
    assert "suspended" not in shop.run("sync", "-p", "stock").err


def test_status_shows_schedule_next_run_and_last_run(shop: Shop) -> None:
    (part, other) = shop.run("status", "--json").json["pipelines"]
    assert (part["schedule"], other["schedule"], other["next_run"]) == ("every 5m", "after shop", None)
    assert part["next_run"] is not None, "it never ran: a service would run it now"
    shop.write("orders", 1)
    shop.run("sync", "-p", "shop")
    text = shop.run("status").out
    assert "every 5m, next in 5 min" in text or "every 5m, next in 4 min" in text
    assert "stock   no run yet   after shop" in text


def test_missed_runs_are_seen_for_intervals_and_for_cron_and_not_of_what_is_suspended(shop: Shop) -> None:
    shop.write("orders", 1)
    shop.run("sync", "-p", "shop")
    with shop.project() as project:
        state = project.books.state
        for record in state.read("position"):
            state.put([replace(record, fields={**record.fields, "updated_at": "2026-01-01T00:00:00.000Z"})])

    def missed() -> bool:
        (part,) = shop.run("status", "-p", "shop", "--json").json["pipelines"]
        return any("no run for" in text for table in part["tables"] for text in table["attention"])

    assert missed()
    shop.config.write_text(shop.config.read_text().replace("every 5m", '"0 2 * * * Europe/Berlin"'))
    assert missed()
    shop.run("suspend", "shop")
    assert not missed()
    shop.run("resume", "shop")
    shop.config.write_text(shop.config.read_text().replace('"0 2 * * * Europe/Berlin"', "manual"))
    assert not missed()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("every 5", 'strandline.yml:6: pipelines.shop.schedule: "5" is not a duration'),
        ("after stok", 'pipelines.shop.schedule: after stok: there is no such pipeline; did you mean "stock"?'),
        ("after stock", "each waits for the other (stock → shop)"),
    ],
)
def test_a_bad_schedule_is_a_config_error_with_its_line(shop: Shop, text: str, said: str) -> None:
    shop.config.write_text(shop.config.read_text().replace("schedule: every 5m", f"schedule: {text}"))
    found = shop.run("status")
    assert found.code == 2 and said in found.err


def test_wait_ends_when_every_table_has_reached_the_value(shop: Shop) -> None:
    shop.write("orders", 1)
    shop.write("customers", 1)
    shop.run("sync", "-p", "shop")
    mark = shop.run("watermark", "get", "-t", "orders", "--json").json["stages"][0]["watermark"]
    said = shop.run("wait", "-p", "shop", "--until", mark)
    assert (said.code, said.out) == (0, f"shop has reached {mark}\n")
    later = shop.run("wait", "-p", "shop", "--until", "2026-11-15 09:00", "--timeout", "100ms", "--json")
    assert (later.code, later.json["reached"], set(later.json["missing"])) == (1, False, {"orders", "customers"})
    assert shop.run("wait", "-p", "shop", "-t", "orders", "--until", "yesterday").code == 2
    assert shop.run("wait", "-p", "shop", "-t", "ordres", "--until", mark).code == 2
    assert "no watermark yet" in shop.run("wait", "-p", "stock", "--until", mark, "--timeout", "10ms").err
    assert shop.run("wait", "--until", mark).code == 2, "there are two pipelines"


def test_wait_sees_what_somebody_else_moves_meanwhile(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strandline.cli.serve._POLL_SECONDS", 0.05)
    shop.write("items", 1)
    target = f"{shop.clock.now():%Y-%m-%d %H:%M:%S}"

    def move() -> None:
        time.sleep(0.3)
        with shop.project() as project:
            project.sync("stock")

    mover = threading.Thread(target=move)
    mover.start()
    assert shop.run("wait", "-p", "stock", "--until", target, "--timeout", "120s").code == 0
    mover.join()


def test_wait_compares_values_by_their_kind_and_with_a_stage_waits_for_the_targets(shop: Shop) -> None:
    text = shop.config.read_text()
    shop.config.write_text(text.replace("    tables: [items]", f"    stage: {shop.folder}/stage\n    tables: [items]"))

    def stand(extracted: str, batch: int, loaded: str | None) -> None:
        from strandline.core.batch import Batch

        with shop.project() as project:
            known = project.books.positions("stock")
            high = Watermark(Kind.INTEGER, extracted)
            made = Batch(project.books.store, 1, batch, None, high, high, "a")
            first = known.get(("stock", "items", "extract")) or Position("stock", "items", "extract")
            second = known.get(("stock", "items", "load")) or Position("stock", "items", "load")
            mark = Watermark(Kind.VERSION, loaded) if loaded else None
            project.books.write([replace(first, watermark=high, batch=made), replace(second, watermark=mark)])

    def reached() -> bool:
        return shop.run("wait", "-p", "stock", "--until", "100", "--timeout", "10ms").code == 0

    stand("99", 3, "4")
    assert not reached(), "99 is less than 100, though not as text"
    stand("100", 4, "4")
    assert not reached(), "batch 4 is not loaded"
    stand("250", 4, "5")
    assert reached()


def test_sync_every_goes_with_nothing_that_happens_once(shop: Shop) -> None:
    for flags in (["--full"], ["--dry-run"], ["--verify"], ["--limit", "5"]):
        said = shop.run("sync", "--every", "5s", *flags)
        assert said.code == 2 and "--every goes with" in said.err
    assert shop.run("sync", "--every", "1ms").code == 2
    assert shop.run("sync", "--every", "soon").code == 2

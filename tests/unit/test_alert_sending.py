"""Alerts of a service: told once whatever restarts and however many services there are, delivered or shown as not."""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from clockwork import Clockwork, told, words
from fastapi.testclient import TestClient

from strandline import operations
from strandline.alerts.ledger import ledger
from strandline.alerts.sending import TRIES, pause
from strandline.core.errors import ConnectError, StateError
from strandline.project import Project, load
from strandline.service.agenda import every
from strandline.service.service import Service
from strandline.testing.hooks import Receiver, receiver
from strandline.web.app import make_app
from strandline.web.security import Security

SECRET = "sign-with-this-one"


@pytest.fixture
def hook() -> Iterator[Receiver]:
    with receiver() as found:
        yield found


@pytest.fixture
def works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hook: Receiver) -> Iterator[Clockwork]:
    works = Clockwork(tmp_path, monkeypatch)
    works.keep_state_in_memory()
    configure(works, hook)
    works.write("shop", 1)
    yield works
    for service in works.services:
        service.close()


def configure(works: Clockwork, hook: Receiver, lines: str = "schedule: every 10s") -> None:
    works.write_config(f'alerts: {{webhook: {{url: "{hook.url}", secret: {SECRET}}}}}\n', shop=lines)


@pytest.fixture
def away(works: Clockwork, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the source is, when it holds anything."""
    away: list[bool] = []
    real = works.source.horizons

    def horizons(tables: Sequence[Any]) -> Any:
        if away:
            raise ConnectError("the source is away")
        return real(tables)

    monkeypatch.setattr(works.source, "horizons", horizons)
    return away


def waiting(service: Service) -> int:
    return len(ledger(service.project.books.state, "shop").outbox)


def test_a_failure_is_sent_once_and_its_end_once_across_restarts(
    works: Clockwork, hook: Receiver, away: list[bool]
) -> None:
    service = works.started()
    works.pass_time(service, 60)
    assert hook.got == []
    away.append(True)
    works.pass_time(service, 120)
    assert hook.told == ["problem failed"]
    assert "the source is away" in hook.messages[0]["message"] and hook.messages[0]["pipeline"] == "shop"
    again = works.started()
    works.pass_time(again, 600)
    assert hook.told == ["problem failed"]
    away.clear()
    works.pass_time(again, 400)
    third = works.started()
    works.pass_time(third, 60)
    assert hook.told == ["problem failed", "recovered failed"]
    assert [entry["status"] for entry in told(service, "alert") + told(again, "alert")] == ["problem", "recovered"]
    assert [len(told(one, "alert_sent")) for one in (service, again, third)] == [1, 1, 0]


def test_two_services_on_one_state_send_it_once(works: Clockwork, hook: Receiver, away: list[bool]) -> None:
    services = [works.started(), works.started()]

    def both(seconds: int) -> None:
        for _ in range(seconds):
            for service in services:
                service.tick()
            works.clock.advance(1)

    both(30)
    away.append(True)
    both(60)
    away.clear()
    both(120)
    assert hook.told == ["problem failed", "recovered failed"]


def test_of_two_services_that_judge_at_the_same_moment_one_sends(
    works: Clockwork, hook: Receiver, away: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other looks after this one has read what was told, and before it writes."""
    one, two = works.started(), works.started()
    works.pass_time(one, 14)
    away.append(True)
    monkeypatch.setattr(one, "_alert", lambda: None)
    works.pass_time(one, 30)
    real, turns = operations.status, [True]

    def status(project: Project) -> Any:
        found = real(project)
        if turns:
            turns.clear()
            two.log.tell("job_failed", pipeline="shop", action="sync", error="the source is away", run_id="")
            two._alerts.look(two.project)
        return found

    monkeypatch.setattr(operations, "status", status)
    one._alerts.look(one.project)
    assert hook.told == ["problem failed"]
    assert (told(one, "alert"), len(told(two, "alert"))) == ([], 1)


def test_a_webhook_is_signed_over_time_and_body(works: Clockwork, hook: Receiver, away: list[bool]) -> None:
    service = works.started()
    away.append(True)
    works.pass_time(service, 60)
    ((headers, body),) = hook.got
    stamp = headers["X-Strandline-Timestamp"]
    expected = hmac.new(SECRET.encode(), f"{stamp}.".encode() + body, hashlib.sha256).hexdigest()
    assert headers["X-Strandline-Signature"] == f"sha256={expected}"
    assert abs(works.clock.now().timestamp() - int(stamp)) < 60, "the time of sending"
    assert headers["Content-Type"] == "application/json"


def test_a_delivery_that_fails_is_shown_and_tried_again_and_the_end_waits_for_it(
    works: Clockwork, hook: Receiver, away: list[bool]
) -> None:
    hook.answers = [503, 302]
    service = works.started()
    away.append(True)
    works.pass_time(service, 45)
    (failed,) = told(service, "alert_failed")
    assert (failed["channel"], failed["attempts"], failed["error"]) == ("webhook", 1, "HTTP 503 Service Unavailable")
    assert failed["message"].endswith("try 1 of 10, again in 1 min: shop: failed, error")
    (shop,) = operations.status(service.project)
    assert shop.undelivered == ("webhook: HTTP 503 Service Unavailable, try 1",)
    assert service.deliveries() == {("webhook", "sent"): 0, ("webhook", "failed"): 1, ("webhook", "lost"): 0}
    page = TestClient(make_app(service, Security()), base_url="http://127.0.0.1").get(
        "/", headers={"Accept": "text/html"}
    )
    assert "Alerts about shop are not delivered" in page.text and "HTTP 503" in page.text
    away.clear()
    works.pass_time(service, 60)
    assert [entry["error"] for entry in told(service, "alert_failed")][1:] == ["HTTP 302 Found"]
    assert hook.told == ["problem failed"] * 2 and waiting(service) == 2
    again = works.started()
    works.pass_time(again, 130)
    assert hook.told == ["problem failed"] * 3 + ["recovered failed"]
    assert len({message["id"] for message in hook.messages}) == 2
    assert waiting(again) == 0
    assert again.deliveries()["webhook", "sent"] == 2 and operations.status(again.project)[0].undelivered == ()


def test_what_cannot_be_delivered_is_given_up_and_shown(works: Clockwork, hook: Receiver, away: list[bool]) -> None:
    hook.answers = [500] * TRIES
    service = works.started()
    away.append(True)
    works.pass_time(service, 6 * 3600)
    assert len(told(service, "alert_failed")) == TRIES - 1
    (lost,) = told(service, "alert_lost")
    assert "given up" in lost["message"] and lost["attempts"] == TRIES
    assert (len(hook.got), waiting(service)) == (TRIES, 0)


def test_pauses_get_longer_up_to_an_hour() -> None:
    assert [pause(number).total_seconds() // 60 for number in (1, 2, 3, 7, TRIES)] == [1, 2, 4, 60, 60]


def test_a_service_that_is_killed_as_it_sends_leaves_it_to_the_next(
    works: Clockwork, hook: Receiver, away: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    service = works.started()
    away.append(True)

    def killed(*_: object) -> str:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("strandline.alerts.deliver.post", killed)
        with pytest.raises(KeyboardInterrupt):
            works.pass_time(service, 60)
    assert hook.got == [] and waiting(service) == 1
    again = works.started()
    works.pass_time(again, 30)
    assert hook.got == [], "the one before may still be at it"
    works.pass_time(again, 60)
    assert hook.told == ["problem failed"] and waiting(again) == 0


def test_what_no_channel_takes_is_given_up_after_a_day(works: Clockwork, hook: Receiver, away: list[bool]) -> None:
    hook.answers = [500]
    service = works.started()
    away.append(True)
    works.pass_time(service, 30)
    works.write_config("alerts: {command: ['true']}\n", shop="schedule: every 1h")
    works.pass_hours(service, 23)
    assert waiting(service) == 1
    works.pass_hours(service, 3)
    assert (waiting(service), told(service, "alert_lost")[0]["error"]) == (0, "too old")


def test_a_held_table_and_its_lag_are_told_as_the_state_shows_them(works: Clockwork, hook: Receiver) -> None:
    fresh = "freshness: {warn_after: {count: 30, period: minute}}"
    configure(works, hook, f"schedule: every 10s\n    held_after: 5m\n    {fresh}")
    service = works.started()
    works.pass_time(service, 60)
    open_ = works.source.begin()
    open_.write("shop_orders", {"id": 7, "value": "late"})
    works.pass_time(service, 290)
    assert hook.got == []
    works.pass_time(service, 60)
    assert hook.told == ["problem held"]
    works.pass_time(service, 1800)
    assert hook.told == ["problem held", "problem freshness"]
    open_.commit()
    works.pass_time(service, 60)
    assert sorted(hook.told[2:]) == ["recovered freshness", "recovered held"]


def test_a_run_that_does_not_come_is_told(works: Clockwork, hook: Receiver) -> None:
    service = works.started()
    works.pass_time(service, 30)
    works.waiting = []
    busy = works.started()
    for _ in range(4):  # its jobs never begin
        works.clock.advance(20)
        busy.tick()
        for work in works.waiting:
            if getattr(work, "__name__", "") == "_alert":
                work()
    assert hook.told == ["problem missed"]
    works.pass_time(service, 30)
    assert hook.told == ["problem missed", "recovered missed"]


def test_a_difference_is_told_and_lasts_across_a_restart_until_a_verification_finds_none(
    works: Clockwork, hook: Receiver
) -> None:
    configure(works, hook, "schedule: every 1h\n    verify: every 1d")
    service = works.started()
    works.pass_time(service, 60)
    target = works.sink.backup("shop_orders")
    assert target is not None
    works.sink.restore("shop_orders", replace(target, rows=()))
    works.pass_hours(service, 25)
    assert hook.told == ["problem verification"] and "1 missing" in hook.messages[0]["message"]
    again = works.started()
    works.pass_hours(again, 3)
    assert hook.told == ["problem verification"]
    works.sink.restore("shop_orders", target)
    works.pass_hours(again, 25)
    assert hook.told == ["problem verification", "recovered verification"]
    works.pass_hours(service, 1)
    assert len(hook.got) == 2, "what the first service found yesterday is overtaken"


def test_no_secret_is_told_or_kept(works: Clockwork, hook: Receiver, away: list[bool]) -> None:
    hook.answers = [500]
    service = works.started()
    away.append(True)
    works.pass_time(service, 300)
    shown = json.dumps([dict(entry.fields) for entry in service.log.since(0)])
    shown += str(service.project.books.state.read("meta")) + repr(service.project.config)
    for secret in (SECRET, hook.url, "token-4711"):
        assert secret not in shown
    assert hook.got and "alert_failed" in shown


def test_a_state_that_is_away_is_told_once_and_looked_at_again(
    works: Clockwork, hook: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = works.started()

    def gone(_: Project) -> Any:
        raise StateError("the state is away")

    with monkeypatch.context() as patched:
        patched.setattr(operations, "status", gone)
        works.pass_time(service, 120)
    assert len(told(service, "alerts_error")) == 1
    works.pass_time(service, 120)
    assert len(told(service, "alerts_error")) == 1 and hook.got == []


def test_a_service_that_stops_waits_for_the_alert_on_its_way(
    works: Clockwork, away: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    away.append(True)
    begun, answered = threading.Event(), threading.Event()

    def slow(*_: object) -> str:
        begun.set()
        assert answered.wait(120)
        return ""

    monkeypatch.setattr("strandline.alerts.deliver.post", slow)
    service = Service(load(works.config), words=words, now=works.clock.now, chance=lambda: 0.0)
    service.start()
    service.log.tell("job_failed", pipeline="shop", action="sync", error="the source is away", run_id="")
    works.clock.advance(15)
    service.tick()
    assert begun.wait(120)
    service.stop()
    ending = threading.Thread(target=service.run)
    ending.start()
    ending.join(0.3)
    assert ending.is_alive()
    answered.set()
    ending.join(120)
    assert not ending.is_alive() and len(told(service, "alert_sent")) == 1


def test_sync_every_sends_no_alerts(works: Clockwork, hook: Receiver, away: list[bool]) -> None:
    service = works.started(agenda=every({"shop": ()}, timedelta(seconds=10)))
    away.append(True)
    works.pass_time(service, 120)
    assert (hook.got, told(service, "alert")) == ([], [])

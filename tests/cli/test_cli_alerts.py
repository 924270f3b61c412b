"""alerts test: every channel of the config, with real receivers."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from shop import Shop, open_shop

from strandline.alerts.conditions import trial
from strandline.alerts.ledger import Parcel, ledger
from strandline.testing.hooks import Receiver, receiver

TOKEN = "very-secret-token"
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Apprise's own, as it is loaded


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shop:
    return open_shop(tmp_path, monkeypatch, capsys)


@pytest.fixture
def hook() -> Iterator[Receiver]:
    with receiver() as found:
        yield found


def alerts(shop: Shop, text: str) -> None:
    shop.config.write_text(f"alerts: {text}\n" + shop.config.read_text())


def script(shop: Shop, text: str) -> str:
    file = shop.folder / "notify.py"
    file.write_text(text)
    return f"command: [{sys.executable}, {file.name}, a, a]"


def test_a_test_goes_through_every_channel(shop: Shop, hook: Receiver) -> None:
    command = script(shop, "import sys; open('got.json', 'w').write(sys.stdin.read()); assert len(sys.argv) == 3")
    alerts(shop, f'{{webhook: "{hook.url}", {command}, apprise: "{hook.url.replace("http", "json", 1)}"}}')
    said = shop.run("alerts", "test")
    assert (said.code, said.out) == (0, "webhook: sent\ncommand: sent\napprise 1: sent\n"), said.err
    (_, body), (_, other) = hook.got
    assert json.loads(body)["status"] == "test"
    assert json.loads((shop.folder / "got.json").read_text()) == json.loads(body), "in the folder of the config"
    assert json.loads(other)["title"] == "strandline: test, ok"
    assert "X-Strandline-Signature" not in hook.got[0][0], "there is no secret"
    assert not (shop.folder / "state.db").exists()


def test_what_fails_is_shown_without_secrets_and_does_not_hold_up_the_rest(
    shop: Shop, hook: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_TOKEN", TOKEN)
    command = script(shop, "import os, sys; sys.exit('first\\nrefused: ' + os.environ['NOTIFY_TOKEN'])")
    hook.answers = [404]
    alerts(shop, f'{{webhook: "{hook.url}", {command[:-1]}, "${{NOTIFY_TOKEN}}"], apprise: "what://{TOKEN}/a"}}')
    said = shop.run("alerts", "test", "--json")
    assert said.code == 1
    assert [(found["channel"], found["sent"], found["error"]) for found in said.json["channels"]] == [
        ("webhook", False, "HTTP 404 Not Found"),
        ("command", False, "exit code 1: refused: ***"),
        ("apprise 1", False, "Apprise does not know this kind of address"),
    ]
    assert TOKEN not in said.out + said.err and hook.url not in said.out + said.err
    assert "webhook: failed: HTTP 404" not in shop.run("alerts", "test").out, "it answers again"


def test_a_command_that_does_not_end_is_ended_with_all_it_started(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strandline.alerts.deliver.COMMAND_TIMEOUT", 0.5)
    alerts(shop, "{command: [sh, -c, 'sleep 60 & sleep 60']}")
    said = shop.run("alerts", "test")
    assert (said.code, said.out) == (1, "command: failed: not done after 0 s\n")


def test_a_receiver_or_program_that_is_not_there_is_named(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "apprise", None)
    alerts(shop, "{webhook: 'http://127.0.0.1:1/', command: [no-such-program], apprise: 'json://h/x'}")
    said = shop.run("alerts", "test")
    assert said.code == 1
    assert said.out.splitlines() == [
        "webhook: failed: [Errno 111] Connection refused",
        "command: failed: no-such-program: No such file or directory",
        "apprise 1: failed: Apprise is not installed:   pip install 'strandline[alerts]'",
    ]


def test_without_alerts_it_says_how_to_have_some(shop: Shop) -> None:
    said = shop.run("alerts", "test")
    assert said.code == 2 and "there are no alerts" in said.err and "alerts: {webhook:" in said.err


def test_status_shows_what_a_channel_did_not_take_yet(shop: Shop) -> None:
    with shop.project() as project:
        state = project.books.state
        parcel = Parcel("webhook", trial(state.now()), "", attempts=2, error="HTTP 503 Service Unavailable")
        replace(ledger(state, "shop"), outbox=(parcel,)).written(state)
    assert "alert not delivered by webhook: HTTP 503 Service Unavailable, try 2" in shop.run("status", "-p", "shop").out
    (found,) = shop.run("status", "-p", "shop", "--json").json["pipelines"]
    assert found["undelivered"] == ["webhook: HTTP 503 Service Unavailable, try 2"]

"""`sync` tells lineage, waits for it at its end, and says on stderr what it could not tell."""

from __future__ import annotations

from pathlib import Path

import pytest
from shop import Shop, open_shop

from strandline.testing.hooks import receiver


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shop:
    shop = open_shop(tmp_path, monkeypatch, capsys)
    shop.write("orders", 1, 2)
    return shop


def configure(shop: Shop, url: str) -> None:
    shop.config.write_text(f'lineage: {{url: "{url}"}}\n' + shop.config.read_text())


def test_a_sync_has_told_everything_when_it_ends(shop: Shop) -> None:
    with receiver() as hook:
        configure(shop, hook.url)
        said = shop.run("sync", "-p", "shop")
    told = [(event["eventType"], event["job"]["name"]) for event in hook.messages]
    assert (said.code, "lineage" in said.err) == (0, False)
    assert told[0] == ("START", "shop") and told[-1] == ("COMPLETE", "shop")
    assert ("COMPLETE", "shop.orders") in told


def test_a_sync_that_cannot_tell_succeeds_and_says_so(shop: Shop) -> None:
    configure(shop, "http://127.0.0.1:1")
    said = shop.run("sync", "-p", "shop", "--json")
    assert (said.code, said.json["status"]) == (0, "COMPLETED")
    assert said.err.count("note: a lineage event was not delivered") == 1

"""init and doctor: what they refuse without a server, and how findings are shown."""

from __future__ import annotations

from pathlib import Path

import pytest
from shop import PASSWORD, Shop, open_shop

from strandline.cli.app import execute


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shop:
    return open_shop(tmp_path, monkeypatch, capsys)


def test_init_never_replaces_a_config_unasked(shop: Shop) -> None:
    before = shop.config.read_text()
    said = shop.run("init", "--source", "postgresql://reader@db/shop")
    assert said.code == 2
    assert "exists already" in said.err and "--force" in said.err
    assert shop.config.read_text() == before


def test_init_without_a_terminal_names_the_flag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert execute(["init"]) == 2
    assert "--source" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_init_does_not_repeat_a_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert execute(["init", "--debug", "--source", f"postgresql://reader:{PASSWORD}@127.0.0.1:1/shop"]) == 1
    assert PASSWORD not in capsys.readouterr().err


def test_a_demo_never_writes_over_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "kept").touch()
    assert execute(["demo", str(tmp_path)]) == 2
    assert "is there already" in capsys.readouterr().err
    assert execute(["demo", "--resume", str(tmp_path / "nowhere")]) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_doctor_reports_a_broken_config_as_a_finding(shop: Shop) -> None:
    shop.config.write_text("pipelines: {shop: {sorce: x}}")
    said = shop.run("doctor")
    assert said.code == 2
    assert " fail  config  " in said.out
    assert "sorce" in said.out
    findings = shop.run("doctor", "--json").json["findings"]
    assert findings[-1]["level"] == "fail"


def test_doctor_goes_through_every_pipeline_and_sums_up(shop: Shop) -> None:
    said = shop.run("doctor")
    assert "\nshop\n ok    source  postgresql://reader@db/shop" in said.out
    assert "\nstock\n" in said.out
    assert said.out.splitlines()[-1].endswith("warnings") or said.out.splitlines()[-1].endswith("warning")
    assert PASSWORD not in said.out
    assert "stock" not in shop.run("doctor", "-p", "shop").out.replace(str(shop.folder), "")
    assert shop.run("doctor", "-p", "nope").code == 2

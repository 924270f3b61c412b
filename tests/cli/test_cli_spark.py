"""spark start, status and stop, where nothing is to be started."""

from __future__ import annotations

from pathlib import Path

import pytest
from shop import Shop, open_shop


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shop:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return open_shop(tmp_path, monkeypatch, capsys)


def test_a_config_that_keeps_no_spark_warm_has_none_to_start(shop: Shop) -> None:
    said = shop.run("spark", "start")
    assert (said.code, "spark: {warm: 10m}" in said.err) == (2, True)


def test_where_none_runs_status_and_stop_say_so(shop: Shop) -> None:
    for command in ("status", "stop"):
        assert shop.run("spark", command).out == "no warm Spark is running\n"
        assert shop.run("spark", command, "--all", "--json").json == {"schema_version": 1, "sparks": []}


def test_those_of_all_configs_need_none_to_be_seen(shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setenv("STRANDLINE_CONFIG", "missing.yml")
    for command in ("status", "stop"):
        said = shop.run("spark", command, "--all")
        assert (said.code, said.out) == (0, "no warm Spark is running\n")

"""A pipeline with several targets, from the command line: what is done, said and returned when one of them fails."""

from __future__ import annotations

from pathlib import Path

import pytest
from shop import Shop, open_shop

from strandline.core.errors import ConnectError, StrandlineError, TargetError
from strandline.core.stopping import Stopping
from strandline.core.table import Table, TableInfo
from strandline.endpoint import Endpoint
from strandline.running import Unattended
from strandline.testing.memory import MemorySink
from strandline.warm import Warm

CONFIG = """\
state: sqlite:///{folder}/state.db
pipelines:
  shop:
    source: postgresql://reader@db/shop
    targets: {{near: "delta:{folder}/near", far: "delta:{folder}/far"}}
    tables: [orders, customers]
"""


class Fan(Shop):
    """The shop with two targets in memory, and what its source was asked."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        super().__init__(folder, capsys)
        self.config.write_text(CONFIG.format(folder=folder), encoding="utf-8")
        self.sinks = {"near": AwaySink("near"), "far": AwaySink("far")}
        self.asked: list[str] = []

    def ids(self, target: str) -> list[int]:
        return [row["id"] for row in self.sinks[target].rows("orders")]

    def stages(self) -> dict[str, dict[str, object]]:
        return {part["stage"]: part for part in self.run("watermark", "get", "-t", "orders", "--json").json["stages"]}


class AwaySink(MemorySink):
    away = False

    def identity(self, table: Table) -> str:
        if self.away:
            raise ConnectError("the target is away")
        return super().identity(table)


@pytest.fixture
def fan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Fan:
    open_shop(tmp_path, monkeypatch, capsys)
    fan = Fan(tmp_path, capsys)
    tables, horizons = fan.source.tables, fan.source.horizons

    def look(patterns: list[str], queries: dict[str, str]) -> dict[str, TableInfo | StrandlineError]:
        fan.asked.append("tables")
        return tables(patterns, queries)

    def bound(found: list[Table]) -> object:
        fan.asked.append("horizons")
        return horizons(found)

    def opened(*_: object, **__: object) -> object:
        fan.asked.append("open")
        return fan.source

    def sink(end: Endpoint, *_: object) -> MemorySink:
        return fan.sinks[Path(end.path).name]

    monkeypatch.setattr(fan.source, "tables", look)
    monkeypatch.setattr(fan.source, "horizons", bound)
    monkeypatch.setattr("strandline.pipeline.open_source", opened)
    monkeypatch.setattr("strandline.pipeline.open_sink", sink)
    return fan


def test_the_source_is_opened_and_asked_once_for_both_targets(fan: Fan) -> None:
    fan.write("orders", 1, 2)
    for command in ("plan", "sync"):
        assert fan.run(command).code == 0
        assert fan.asked == ["open", "tables", "horizons"]
        fan.asked.clear()
    assert fan.ids("near") == fan.ids("far") == [1, 2]


def test_a_service_keeps_one_source_open_for_both_targets_from_poll_to_poll(fan: Fan) -> None:
    unattended = Unattended(Warm(), Stopping())
    with fan.project() as project:
        for number in (1, 2):
            fan.write("orders", number)
            assert not project.sync("shop", unattended=unattended).failed
    unattended.warm.close()
    assert fan.asked.count("open") == 1 and fan.asked.count("horizons") == 2
    assert fan.ids("near") == fan.ids("far") == [1, 2]


@pytest.mark.parametrize("away", ["near", "far"])
def test_a_target_that_is_away_at_planning_is_told_and_the_other_is_loaded(fan: Fan, away: str) -> None:
    fan.write("orders", 1)
    fan.sinks[away].away = True
    (other,) = {"near", "far"} - {away}
    said = fan.run("sync", "--json")
    assert said.code == 1 and said.json["status"] == "FAILED"
    assert {part["stage"] for part in said.json["tables"]} == {f"load:{other}"}
    assert said.json["error"] == f"shop: load:{away}: the target is away"
    assert (fan.ids(other), fan.ids(away)) == ([1], [])
    fan.sinks[away].away = False
    assert fan.run("sync").code == 0
    assert fan.ids(away) == [1]


@pytest.mark.parametrize("failing", ["near", "far"])
def test_a_target_that_fails_at_a_batch_is_listed_with_its_own_position(fan: Fan, failing: str) -> None:
    def refuse() -> None:
        raise TargetError("no room")

    fan.write("orders", 1)
    fan.sinks[failing].at_commit(before=refuse)
    (other,) = {"near", "far"} - {failing}
    said = fan.run("sync", "-t", "orders", "--json")
    assert said.code == 1
    assert {part["stage"]: part["status"] for part in said.json["tables"]} == {
        f"load:{failing}": "FAILED",
        f"load:{other}": "COMPLETED",
    }
    stages = fan.stages()
    assert stages[f"load:{failing}"]["watermark"] is None and stages[f"load:{other}"]["watermark"] is not None
    (part,) = fan.run("status", "--json").json["pipelines"]
    listed = {(table["table"], table["stage"]): table["status"] for table in part["tables"]}
    assert (listed["orders", f"load:{failing}"], listed["orders", f"load:{other}"]) == ("FAILED", "COMPLETED")
    assert fan.run("sync", "-t", "orders").code == 0
    assert fan.ids("near") == fan.ids("far") == [1]


def test_a_source_that_is_away_is_told_once(fan: Fan, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> object:
        raise ConnectError("the source is away")

    monkeypatch.setattr(fan.source, "tables", away)
    said = fan.run("sync")
    assert said.code == 1 and said.err.count("the source is away") == 1 and "load:" not in said.err


def test_a_backfill_goes_into_the_targets_that_have_something_to_fill(fan: Fan) -> None:
    fan.write("orders", 1)
    with fan.project() as project:
        project.sync("shop", tables=["orders"], stages=["load:near"])
    said = fan.run("backfill", "-t", "orders", "--json")
    assert said.code == 1
    assert [(part["stage"], part["status"]) for part in said.json["tables"]] == [("load:near", "COMPLETED")]
    assert "nothing has been read yet" in said.json["error"]

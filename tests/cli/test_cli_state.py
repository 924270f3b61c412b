"""Commands that read and move what the state holds: status, runs, watermark."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from shop import PASSWORD, Shop, open_shop

from strandline import Tracker
from strandline.core.books import new_id


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shop:
    return open_shop(tmp_path, monkeypatch, capsys)


@pytest.fixture
def synced(shop: Shop) -> Shop:
    shop.write("orders", *range(9))
    shop.write("customers", 1, 2)
    assert shop.run("sync", "-p", "shop").code == 0
    return shop


def mark(shop: Shop, table: str = "orders") -> str | None:
    text: str | None = shop.run("watermark", "get", "-t", table, "--json").json["stages"][0]["watermark"]
    return text


# status


def test_a_pipeline_of_somebodys_own_job_shows_like_any_other(shop: Shop) -> None:
    shop.write("orders", 1)
    with shop.project() as project:
        tracker = Tracker(project.books.state, pipeline="nightly", source=shop.source, tables=["orders", "customers"])
        for _ in range(3):
            with tracker.run(["orders"]) as run:
                run["orders"].fail("odd row")
        old = tracker.positions()["orders"]
        assert old.plan is not None
        stale = replace(old.plan, run_id="20200101-080000-000-abcdef")
        tracker.books.write([replace(old, plan=stale, due="2020-01-01T09:00:00+00:00")])
    said = shop.run("status").out
    assert "nightly   last run" in said and "a job of your own   the last 3 runs failed" in said
    (part,) = shop.run("status", "-p", "nightly", "--json").json["pipelines"]
    stuck, missed = part["tables"][0]["attention"]
    assert stuck.startswith("stuck: the plan of run 20200101-080000-000-abcdef has been open for")
    assert missed.startswith("no run for")
    assert (part["tracked"], part["configured"]) == (True, False)
    assert (
        shop.run("watermark", "get", "-p", "nightly", "-t", "orders", "--json").json["stages"][0]["status"] == "FAILED"
    )
    assert "orders" in shop.run("watermark", "list", "-p", "nightly").out
    assert len(shop.run("runs", "list", "-p", "nightly", "--json").json["runs"]) == 3
    shown = shop.run("runs", "show", "last").out
    assert "odd row" in shown and "Carry out what it left: run the job again" in shown


def test_status_goes_by_what_the_job_itself_calls_stuck(shop: Shop) -> None:
    shop.write("orders", 1)
    with shop.project() as project:
        state = project.books.state
        for hours in (1, 3):
            patience, name = timedelta(hours=hours), f"patient-{hours}"
            tracker = Tracker(state, pipeline=name, source=shop.source, tables=["orders"], stuck_after=patience)
            tracker.plan()
            position = tracker.positions()["orders"]
            assert position.plan is not None
            older = replace(position.plan, run_id=new_id(state.now() - timedelta(hours=2)))
            tracker.books.write([replace(position, plan=older)])
    told = {part["pipeline"]: part["tables"] for part in shop.run("status", "--json").json["pipelines"]}
    ((early,), (late,)) = (told[name] for name in ("patient-1", "patient-3"))
    assert (len(early["attention"]), late["attention"]) == (1, [])
    assert early["attention"][0].endswith("has been open for 2.0 h")


def test_status_shows_tables_that_never_ran(shop: Shop) -> None:
    said = shop.run("status")
    assert said.code == 0
    assert "shop   no run yet" in said.out
    assert "never run" in said.out


def test_status_shows_watermark_lag_and_last_run(synced: Shop) -> None:
    said = synced.run("status", "-p", "shop")
    assert "COMPLETED" in said.out and "11 rows" in said.out
    assert "items" not in said.out
    (part,) = synced.run("status", "-p", "shop", "--json", "-t", "orders").json["pipelines"]
    (table,) = part["tables"]
    assert table["watermark"] == "2026-11-15 08:00:13.000000"
    assert table["lag_seconds"] is not None
    assert part["last_run"]["rows_inserted"] == 11


def test_status_needs_no_source_and_no_target(synced: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a connection was asked for")

    monkeypatch.setattr("strandline.pipeline.open_source", refuse)
    monkeypatch.setattr("strandline.pipeline.open_sink", refuse)
    for command in (("status",), ("runs",), ("runs", "show", "last"), ("watermark", "list"), ("watermark", "export")):
        assert synced.run(*command).code == 0


def test_status_shows_a_position_that_the_config_lost(synced: Shop) -> None:
    synced.config.write_text(synced.config.read_text().replace("  shop:", "  store:"))
    assert "not in the config any more" in synced.run("status").out
    assert synced.run("status", "-p", "shop").code == 0


# runs


def test_runs_are_listed_newest_first_and_filtered(synced: Shop) -> None:
    synced.write("items", 1)
    synced.run("sync", "-p", "stock")
    listed = synced.run("runs", "list", "--json").json["runs"]
    assert [run["pipeline"] for run in listed] == ["stock", "shop"]
    assert {"run_id", "pipeline", "status", "trigger", "started_at", "ended_at", "rows", "error"} <= listed[0].keys()

    def found(*options: str) -> list[str]:
        return [run["pipeline"] for run in synced.run("runs", "list", "--json", *options).json["runs"]]

    assert found("--limit", "1") == ["stock"]
    assert found("-t", "customers") == ["shop"]
    assert found("-p", "shop") == ["shop"]
    assert found("--status", "failed") == []
    assert found("--since", "1h") == ["stock", "shop"]
    assert found("--since", "2999-01-01") == []
    assert synced.run("runs", "list", "--since", "soon").code == 2
    assert "stock" in synced.run("runs").out


def test_a_run_is_shown_with_tables_and_windows(synced: Shop) -> None:
    said = synced.run("runs", "show", "last")
    assert "beginning → 2026-11-15 08:00:13.000000" in said.out
    document = synced.run("runs", "show", "last", "--json").json
    assert [(table["table"], table["rows_inserted"]) for table in document["tables"]] == [
        ("customers", 2),
        ("orders", 9),
    ]


def test_statistics_are_per_day(synced: Shop) -> None:
    (day,) = synced.run("runs", "stats", "--json").json["days"]
    assert (day["runs"], day["completed"], day["failed"], day["rows_inserted"]) == (1, 1, 0, 11)
    (day,) = synced.run("runs", "stats", "--json", "-t", "orders").json["days"]
    assert day["rows_inserted"] == 9
    assert "average" in synced.run("runs", "stats").out


# watermark


def test_get_shows_one_table_exactly(synced: Shop) -> None:
    said = synced.run("watermark", "get", "-t", "orders")
    assert "watermark         2026-11-15 08:00:13.000000" in said.out
    assert "last value moved  2026-11-15 08:00:09.000000" in said.out
    document = synced.run("watermark", "get", "-t", "orders", "--json").json
    assert (document["schema_version"], document["pipeline"], document["table"]) == (1, "shop", "orders")
    (stage,) = document["stages"]
    expected = {"stage", "watermark", "last_value", "kind", "batch", "status", "rows", "files", "error", "updated_at"}
    assert expected <= stage.keys()
    assert (stage["batch"], stage["rows"], stage["kind"]) == (3, 9, "timestamp")


def test_list_has_the_same_objects_as_get(synced: Shop) -> None:
    tables = synced.run("watermark", "list", "--json").json["tables"]
    assert [table["table"] for table in tables] == ["customers", "orders"]
    one = synced.run("watermark", "get", "-t", "orders", "--json").json
    assert {"schema_version": 1, **tables[1]} == one
    assert "shop.orders" in synced.run("watermark", "list").out


def test_get_of_a_table_that_never_ran_says_so(shop: Shop) -> None:
    said = shop.run("watermark", "get", "-t", "orders")
    assert (said.code, said.err) == (0, "")
    assert said.out == "shop.orders   sync   has not run yet\n  next start        beginning\n"


def test_set_shows_what_would_be_read_again_and_asks(synced: Shop) -> None:
    arguments = ("watermark", "set", "-t", "orders", "--timestamp", "2026-11-15T08:00:05Z")
    asked = synced.run(*arguments)
    assert asked.code == 2
    assert "11-15 08:00:13 → 11-15 08:00:05\n  ~5 rows would be re-read" in asked.err
    assert "--yes" in asked.err
    assert mark(synced) == "2026-11-15 08:00:13.000000"
    assert synced.run(*arguments, "--yes", "--why", "bad rows").code == 0
    assert mark(synced) == "2026-11-15 08:00:05"
    (change,) = synced.run("watermark", "history", "--json").json["changes"]
    assert (change["action"], change["why"], change["new"]) == ("set", "bad rows", "2026-11-15 08:00:05")
    assert "bad rows" in synced.run("watermark", "history", "-t", "orders").out


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--value", "yesterday"), "is not a timestamp"),
        (("--timestamp", "2999-01-01"), "in the future"),
        (("--version", "3"), "not a version"),
        (("--value", "2026-11-15", "--accept"), "give one of"),
        ((), "give one of"),
    ],
)
def test_set_refuses_what_cannot_be(synced: Shop, options: tuple[str, ...], expected: str) -> None:
    said = synced.run("watermark", "set", "-t", "orders", "--yes", *options)
    assert said.code == 2
    assert expected in said.err
    assert mark(synced) == "2026-11-15 08:00:13.000000"


def test_reset_forgets_the_watermark_and_deletes_nothing(synced: Shop) -> None:
    said = synced.run("watermark", "reset", "-t", "orders", "--yes", "--json")
    assert said.json["changes"][0]["rows"] == 9
    assert mark(synced) is None
    assert len(synced.sink.rows("orders")) == 9


def test_export_and_import_bring_a_watermark_back(synced: Shop) -> None:
    saved = synced.folder / "saved.json"
    assert synced.run("watermark", "export", "-o", str(saved)).code == 0
    synced.run("watermark", "reset", "-t", "orders", "--yes")
    assert synced.run("watermark", "import", str(saved), "--yes").code == 0
    assert mark(synced) == "2026-11-15 08:00:13.000000"
    document = json.loads(saved.read_text())
    assert document == synced.run("watermark", "export").json | document
    assert PASSWORD not in saved.read_text()


def test_import_refuses_what_export_did_not_write(synced: Shop) -> None:
    bad = synced.folder / "bad.json"
    for content in ("{", "{}"):
        bad.write_text(content)
        assert synced.run("watermark", "import", str(bad), "--yes").code == 2
    assert synced.run("watermark", "import", "nowhere.json", "--yes").code == 2
    assert synced.run("watermark", "import", "--yes").code == 2
    assert synced.run("watermark", "import", "--from-target", "--yes").code == 2


def test_a_lost_state_is_rebuilt_from_the_target(synced: Shop) -> None:
    synced.run("watermark", "forget", "-t", "orders", "--yes")
    assert synced.run("sync", "-t", "orders").code == 1
    assert synced.run("watermark", "import", "--from-target", "-t", "orders", "--yes").code == 0
    assert mark(synced) == "2026-11-15 08:00:13.000000"
    assert synced.run("sync", "-t", "orders").code == 0


def test_a_position_that_cannot_be_read_is_told_and_the_others_are_shown(synced: Shop) -> None:
    from dataclasses import replace

    with synced.project() as project:
        (record,) = project.books.state.read("position", ["shop", "orders"])
        project.books.state.put([replace(record, fields={**record.fields, "batch": "{"})])
    said = synced.run("watermark", "list")
    assert said.code == 1
    assert "shop.customers" in said.out
    assert "error: shop.orders: the stored position" in said.err

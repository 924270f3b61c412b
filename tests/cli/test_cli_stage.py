"""`strandline stage list` and `clean`, over a staged table and the positions of two loads."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from strandline.cli.app import execute
from strandline.core.batch import Applied, Receipt
from strandline.core.position import Position
from strandline.core.table import Table
from strandline.core.watermark import Kind, Watermark
from strandline.endpoint import Endpoint
from strandline.objects import Objects, open_objects
from strandline.project import load
from strandline.sinks import open_sink
from strandline.testing.sink import batch
from strandline.testing.stage import LAYOUT, staged

CONFIG = """\
state: sqlite:///{folder}/state.db
pipelines:
  shop:
    source: postgresql://reader@db/shop
    stage: {folder}/stage
    targets:
      lake: delta:{folder}/lake
      copy: delta:{folder}/copy
    tables: [{{name: orders, cursor: at}}]
  plain:
    source: postgresql://reader@db/shop
    target: delta:{folder}/plain
    tables: [{{name: items, cursor: at}}]
"""


@dataclass
class Said:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Said]


class Target:
    """A database somewhere that says what it holds."""

    held: Watermark | None

    def applied(self, _: Table) -> Receipt | None:
        if self.held is None:
            return None
        return Receipt(replace(batch(1), high=self.held, watermark=self.held), Applied())

    def identity(self, table: Table) -> str:
        return f"somewhere/{table.target}"

    def close(self) -> None: ...


@pytest.fixture(autouse=True)
def targets(monkeypatch: pytest.MonkeyPatch) -> dict[str, Target]:
    targets = {"lake": Target(), "copy": Target()}
    for target, mark in zip(targets.values(), ("3", "2"), strict=True):
        target.held = Watermark(Kind.VERSION, mark)
    monkeypatch.setattr("strandline.pipeline.open_sink", lambda end, *_: targets[Path(end.path).name])
    return targets


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Three batches, of which one target has loaded two and the other one."""
    config = tmp_path / "strandline.yml"
    config.write_text(CONFIG.format(folder=tmp_path))
    objects = open_objects(Endpoint.parse(str(tmp_path / "stage")))
    for number in (1, 2, 3):
        staged(objects, batch(number), rows=number * 1000)
    with load(config) as project:
        project.books.write(
            [
                Position("shop", "orders", stage, watermark=Watermark(Kind.VERSION, mark))
                for stage, mark in (("load:lake", "3"), ("load:copy", "2"))
            ]
        )

    def run(*words: str) -> Said:
        code = execute([*words, "-c", str(config)])
        said = capsys.readouterr()
        return Said(code, said.out, said.err)

    return run


@pytest.fixture
def objects(tmp_path: Path) -> Objects:
    return open_objects(Endpoint.parse(str(tmp_path / "stage")))


def numbers(objects: Objects) -> list[int | None]:
    return [LAYOUT.data_number(entry.key) for entry in objects.list(LAYOUT.data)]


def test_list_shows_which_targets_have_loaded_each_batch(run: Run) -> None:
    said = run("stage", "list", "-t", "orders")
    assert said.code == 0
    lines = said.out.splitlines()
    assert [line.split()[-1] for line in lines[1:]] == ["copy", "copy", "no"]
    assert "lake, copy" in lines[1] and "lake; not copy" in lines[2]
    assert "2,000" in lines[2]
    (newest,) = run("stage", "list", "-p", "shop", "--limit", "1", "--json").json["batches"]
    assert (newest["number"], newest["rows"], newest["waiting"]) == (3, 3000, ["lake", "copy"])
    assert len(newest["paths"]) == newest["files"]
    assert newest["paths"][0] in run("stage", "list", "--files").out
    assert newest["paths"][0] not in said.out


def test_all_stages_of_a_table_are_imported_at_once(run: Run, tmp_path: Path) -> None:
    backup = str(tmp_path / "positions.json")
    assert run("watermark", "export", "-o", backup).code == 0
    said = run("watermark", "import", backup, "--yes", "--why", "restored")
    assert said.code == 0 and said.err.endswith("done\n")
    stages = run("watermark", "get", "-t", "orders", "--json").json["stages"]
    assert [(stage["stage"], stage["watermark"], stage["epoch"], stage["status"]) for stage in stages] == [
        ("extract", None, 1, None),
        ("load:lake", "3", 2, "COMPLETED"),
        ("load:copy", "2", 2, "COMPLETED"),
    ]


def test_get_shows_every_stage_and_where_it_starts(run: Run) -> None:
    shown = run("watermark", "get", "-t", "orders").out
    assert "shop.orders   extract   has not run yet\n  next start        beginning" in shown
    assert "shop.orders   load:lake\n  watermark         3" in shown


def test_a_load_is_set_to_a_batch_and_only_when_it_is_named(run: Run) -> None:
    said = run("watermark", "set", "-t", "orders", "--stage", "load", "--version", "2")
    assert said.code == 2 and "Say which: load:lake, load:copy" in said.err
    said = run("watermark", "set", "-t", "orders", "--stage", "load:lake", "--timestamp", "2026-11-15", "--yes")
    assert said.code == 2 and "the cursor is a version" in said.err
    said = run("watermark", "set", "-t", "orders", "--stage", "load:lake", "--version", "5", "--yes")
    assert said.code == 2 and "safe to read up to 4" in said.err
    said = run("watermark", "set", "-t", "orders", "--stage", "load:lake", "--version", "2", "--yes", "--why", "again")
    assert said.code == 0, said.err
    stages = run("watermark", "get", "-t", "orders", "--json").json["stages"]
    assert [stage["watermark"] for stage in stages] == [None, "2", "2"]


def test_clean_takes_what_every_target_has_after_it_was_asked(run: Run, objects: Objects) -> None:
    said = run("stage", "clean", "-p", "shop", "--dry-run")
    assert (said.code, numbers(objects)) == (0, [1, 2, 3])
    assert "batches 1 to 1: 1 file, 1,000 rows" in said.out
    said = run("stage", "clean")
    assert (said.code, numbers(objects)) == (2, [1, 2, 3])
    assert "--yes" in said.err
    assert run("stage", "clean", "--yes").code == 0
    assert numbers(objects) == [2, 3]
    assert "nothing to clean" in run("stage", "clean", "--yes").err
    assert "cleaned" in run("stage", "list").out


def test_clean_asks_the_targets_whether_they_still_hold_it(
    run: Run, objects: Objects, targets: dict[str, Target]
) -> None:
    """One was dropped since it was loaded: what it held is needed to load it again."""
    targets["lake"].held = None
    assert "nothing to clean" in run("stage", "clean", "--yes").err
    assert numbers(objects) == [1, 2, 3]


def test_clean_takes_what_is_not_loaded_only_when_told_twice(run: Run, objects: Objects) -> None:
    said = run("stage", "clean", "--unloaded")
    assert (said.code, numbers(objects)) == (2, [1, 2, 3])
    assert "--dry-run" in said.err
    assert "2 of them NOT LOADED" in run("stage", "clean", "--unloaded", "--dry-run").out
    assert run("stage", "clean", "--unloaded", "--keep-last", "1", "--yes").code == 0
    assert numbers(objects) == [3]


def test_clean_keeps_what_is_young_and_says_a_span_that_is_none(run: Run, objects: Objects) -> None:
    assert "nothing to clean" in run("stage", "clean", "--older-than", "1h", "--yes").err
    assert run("stage", "clean", "--older-than", "soon", "--yes").code == 2
    assert numbers(objects) == [1, 2, 3]


def test_a_pipeline_without_a_stage_says_so_and_the_old_name_still_works(run: Run) -> None:
    said = run("stage", "list", "-p", "plain")
    assert said.code == 2 and "has no stage" in said.err
    assert run("s3clean", "list", "-p", "shop", "--json").out == run("stage", "list", "-p", "shop", "--json").out
    assert "s3clean" not in run("--help").out


def test_s3clean_clean_is_stage_clean(run: Run, objects: Objects) -> None:
    said = run("s3clean", "clean", "-p", "shop", "--dry-run")
    assert (said.code, numbers(objects)) == (0, [1, 2, 3])
    assert said.out == run("stage", "clean", "-p", "shop", "--dry-run").out
    assert run("s3clean", "clean", "-t", "orders", "--yes").code == 0
    assert numbers(objects) == [2, 3]


def test_doctor_looks_for_what_a_stage_and_a_state_on_s3_need() -> None:
    from strandline.doctor.setup import check_setup

    state = Endpoint.parse("s3://bucket/state")
    said = [finding.text for finding in check_setup([Endpoint.parse("delta:/lake")], state)]
    assert any(text.startswith("obstore ") for text in said)
    assert not any("more" in text for text in said if "jars" in text)
    said = [finding.text for finding in check_setup([Endpoint.parse("s3://bucket/stage")])]
    assert any("and 30 more" in text for text in said if "jars" in text)


def test_a_target_that_is_away_hides_nothing_of_what_was_done(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strandline.pipeline.open_sink", open_sink)  # real ones
    config, gone = tmp_path / "strandline.yml", "postgresql://nobody@127.0.0.1:9/gone?connect_timeout=1"
    config.write_text(config.read_text().replace(f"copy: delta:{tmp_path}/copy", f"copy: {gone}"))
    with load(config) as project:
        done = project.books.positions("shop")["shop", "orders", "load:lake"]
        project.books.write([done.moved(Watermark(Kind.VERSION, "4"))])
    said = run("sync", "-p", "shop", "--load-only")
    assert said.code == 1
    assert "shop: 1 table: 1 up to date" in said.out
    assert "error: shop: load:copy: " in said.err and "Connection refused" in said.err
    said = run("sync", "-p", "shop", "--load-only", "--json")
    assert (said.code, said.json["status"]) == (1, "FAILED")
    assert [(table["stage"], table["status"]) for table in said.json["tables"]] == [("load:lake", "SKIPPED")]
    assert said.json["error"].startswith("shop: load:copy: ")

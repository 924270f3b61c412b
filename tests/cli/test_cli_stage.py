"""`strandline stage list` and `clean`, over a staged table and the positions of two loads."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from strandline.cli.app import execute
from strandline.core.position import Position
from strandline.core.watermark import Kind, Watermark
from strandline.endpoint import Endpoint
from strandline.objects import Objects, open_objects
from strandline.project import load
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


def test_doctor_looks_for_what_a_stage_and_a_state_on_s3_need() -> None:
    from strandline.doctor.setup import check_setup

    state = Endpoint.parse("s3://bucket/state")
    said = [finding.text for finding in check_setup([Endpoint.parse("delta:/lake")], state)]
    assert any(text.startswith("obstore ") for text in said)
    assert not any("more" in text for text in said if "jars" in text)
    said = [finding.text for finding in check_setup([Endpoint.parse("s3://bucket/stage")])]
    assert any("and 30 more" in text for text in said if "jars" in text)

"""`stdout:` as a target, through the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import yaml

from strandline.cli.app import execute
from strandline.project import Project

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass
class Said:
    code: int
    out: str
    err: str


Run = Callable[..., Said]


@pytest.fixture
def run(
    pg_database: str,
    tmp_path: Path,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Run:
    monkeypatch.setattr(Project, "_own", lambda *_: spark)  # one session is enough for all tests
    table = {"name": "orders", "cursor": "at", "deleted": "gone"}
    pipeline = {"source": pg_database, "guard": "0s", "target": "stdout:", "tables": [table]}
    (tmp_path / "strandline.yml").write_text(yaml.safe_dump({"pipelines": {"shop": pipeline}}))
    monkeypatch.chdir(tmp_path)

    def given(*words: str) -> Said:
        code = execute(list(words))
        said = capsys.readouterr()
        return Said(code, said.out, said.err)

    return given


def lines(result: Said) -> list[dict[str, Any]]:
    assert result.code == 0, result.err
    return [json.loads(line) for line in result.out.splitlines()]


def test_every_change_is_a_line_and_nothing_else_is_on_standard_output(run: Run, pg_database: str) -> None:
    with psycopg.connect(pg_database, autocommit=True) as database:
        database.execute(
            "CREATE TABLE orders (id bigint PRIMARY KEY, price numeric(10, 2), gone boolean NOT NULL DEFAULT false, "
            "at timestamptz NOT NULL DEFAULT clock_timestamp())"
        )
        database.execute("INSERT INTO orders VALUES (1, 9.90), (2, NULL)")
        result = run("sync")
        first, second = sorted(lines(result), key=lambda line: int(line["key"]["id"]))
        assert "orders" in result.err
        at = first["row"].pop("at")
        assert first == {
            "pipeline": "shop",
            "table": "orders",
            "batch": "1.1",
            "cursor": at.replace("T", " ").removesuffix("Z").rstrip("0"),
            "operation": "upsert",
            "key": {"id": 1},
            "row": {"id": 1, "price": "9.90", "gone": False},
        }
        assert second["row"]["price"] is None
        assert lines(run("sync")) == []

        database.execute("UPDATE orders SET gone = true, at = clock_timestamp() WHERE id = 1")
        result = run("sync", "--json")
        (gone,) = lines(result)
        assert (gone["operation"], gone["row"]["id"], gone["batch"]) == ("delete", 1, "1.2")
        assert json.loads(result.err[result.err.index("{") :])["tables"][0]["rows_deleted"] == 1

        again = lines(run("sync", "--full", "--yes"))
        assert sorted(line["key"]["id"] for line in again) == [1, 2] and {line["batch"] for line in again} == {"2.3"}
        assert run("watermark", "reset", "-t", "orders", "--yes").code == 0
        assert len(lines(run("sync"))) == 2
        refused = run("verify", "-t", "orders")
        assert refused.code == 1 and "pipeline shop prints to standard output" in refused.err

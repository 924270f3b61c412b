"""The benchmark against other tools, at a size that proves its shape: contenders that need neither Spark nor a peer."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_every_contender_is_measured_and_its_rows_are_compared(tmp_path: Path) -> None:
    small = ["--only", "e,h", "--peers", "none", "--scale", "0.0002", "--rounds", "2", "--results", str(tmp_path)]
    command = [sys.executable, str(BENCHMARKS / "against.py"), *small]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads((tmp_path / "against.json").read_text())
    assert figures["workloads"].keys() == {"e1", "e2", "h"}
    for work in figures["workloads"].values():
        assert work["contenders"].keys() == {"Strandline", "limit: the database alone"}
        for result in work["contenders"].values():
            assert [len(result[name]) for name in ("seconds", "busy", "peak_mb")] == [2, 2, 2]
            assert (result["wrong"], result["failed"]) == (["", ""], "")
    assert "| **Strandline** |" in done.stdout
    svg = ElementTree.parse(tmp_path / "against.svg")
    texts = [text.text or "" for text in svg.iter("{http://www.w3.org/2000/svg}text")]
    titles = [f"{key} · {figures['workloads'][key]['title']}" for key in ("e1", "e2", "h")]
    assert [text for text in texts if "·" in text] == titles


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, ModuleType]]:
    monkeypatch.syspath_prepend(BENCHMARKS)
    names = ("report", "chart", "rows")
    yield {name: import_module(name) for name in names}
    for name in names:
        sys.modules.pop(name)


def figures(**result: Any) -> dict[str, Any]:
    one = {"seconds": [1.0, 3.0, 2.0], "busy": [1.0] * 3, "peak_mb": [10.0] * 3, "wrong": [""] * 3, "failed": ""}
    ours = {**one, "seconds": [1.0, 1.0, 1.0]}
    return {"workloads": {"b": {"title": "increment", "contenders": {"Strandline": ours, "other": {**one, **result}}}}}


def test_the_page_and_the_chart_have_the_figures_of_the_results(modules: dict[str, ModuleType]) -> None:
    report, results = modules["report"], BENCHMARKS / "results"
    page, kept = report.PAGE.read_text(), json.loads((results / "against.json").read_text())
    assert page.count(report.BEGIN) == page.count(report.END) == 1
    assert page == report.written(page, kept), "python benchmarks/against.py --report"
    assert (results / "against.svg").read_text() == modules["chart"].chart(kept)


def test_a_run_that_lost_rows_is_marked_in_table_and_chart(modules: dict[str, ModuleType]) -> None:
    lost, whole = figures(wrong=["", "orders: -3 rows", ""]), figures()
    table, chart = modules["report"].table, modules["chart"].chart
    assert "| other | 2.00 s | 1.00–3.00 | 1.0 s | 10 MB | **rows differ**: orders: -3 rows |" in table(lost)
    assert "2.00 s · rows differ" in chart(lost)
    assert (
        "| **Strandline** | 1.00 s | 1.00–1.00 | 1.0 s | 10 MB | 2.00× the fastest peer, 1.00× by processors |"
        in table(whole)
    )
    assert "rows differ" not in table(whole) + chart(whole)


def test_a_copy_differs_by_rows_by_amounts_and_by_texts(modules: dict[str, ModuleType]) -> None:
    def differs(*found: float) -> str:
        text: str = modules["rows"].Copy.differs(SimpleNamespace(sums=lambda: found), (10, 5.0, 40))
        return text

    assert differs(10, 5.0, 40) == ""
    assert differs(9, 5.0, 40) == "-1 rows"
    assert differs(10, 6.0, 40) == differs(10, 5.0, 41) == "values differ"

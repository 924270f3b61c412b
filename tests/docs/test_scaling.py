"""docs/scaling.md has the figures that benchmarks/model.py makes of the results as they are."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    yield import_module("model")
    sys.modules.pop("model")


def test_the_figures_are_those_of_the_results(model: ModuleType) -> None:
    page = (ROOT / "docs" / "scaling.md").read_text()
    assert page.count(model.BEGIN) == page.count(model.END) == 1
    assert page == model.written(page), "python benchmarks/model.py --write"


def test_a_line_is_found_and_predicts_what_it_did_not_see(model: ModuleType) -> None:
    took = {size: [3 + 0.5 * size, 1.0 + size, 50.0] for size in (1, 10, 100, 1000)}
    assert model.line(took, 0, without=1000) == pytest.approx((3, 0.5))
    assert model.line(took, 2) == pytest.approx((50, 0))
    rows = model.checked("nothing new", "tables", took)
    assert "| 1,000 | 8.4 min | 8.4 min | +0 % | 16.7 min | 16.7 min | +0 % |" in rows

"""Which warm Spark fits: whatever it was started with is part of its identity."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import strandline.spark.daemon as daemon
from strandline.spark.daemon import Order

ORDER = Order("/p/strandline.yml", "/p", ("delta",), {"spark.a": "1", "spark.b": "2"}, "local[2]", 600.0)


@pytest.mark.parametrize(
    "change",
    [
        {"config": "/q/strandline.yml"},
        {"root": "/q"},
        {"needs": ("delta", "mysql")},
        {"conf": {"spark.a": "1", "spark.b": "3"}},
        {"master": None},
        {"idle_seconds": 60.0},
    ],
    ids=lambda change: str(*change),
)
def test_another_order_is_another_server(change: dict[str, Any]) -> None:
    assert replace(ORDER, **change).identity != ORDER.identity


def test_the_order_of_settings_makes_no_difference() -> None:
    assert replace(ORDER, conf=dict(sorted(ORDER.conf.items(), reverse=True))).identity == ORDER.identity


@pytest.mark.parametrize("name", ["AWS_SESSION_TOKEN", "HADOOP_CONF_DIR", "PYTHONPATH", "SPARK_SUBMIT_OPTS"])
def test_what_spark_reads_from_the_environment_counts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = ORDER.identity
    monkeypatch.setenv(name, "other")
    assert ORDER.identity != before


def test_other_variables_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    before = ORDER.identity
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")  # PySpark sets it in every client
    assert ORDER.identity == before


def test_another_version_of_strandline_is_another_server(monkeypatch: pytest.MonkeyPatch) -> None:
    before = ORDER.identity
    monkeypatch.setattr(daemon, "__version__", "99")
    assert ORDER.identity != before

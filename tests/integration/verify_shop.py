"""A database and its lake for tests of `verify`: any tables, one pipeline, and ways to damage the lake."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

import strandline
from strandline.core.events import Event
from strandline.project import Project
from strandline.sources import postgres_canonical
from strandline.verify.verdict import Verdict


class Lake:
    def __init__(self, url: str, folder: Path, spark: Any) -> None:
        self.url, self.folder, self.spark = url, folder, spark
        self.tables: list[dict[str, Any]] = []
        self.events: list[Event] = []

    @property
    def target_url(self) -> str:
        return "delta:lake"

    @property
    def config(self) -> Path:
        path = self.folder / "strandline.yml"
        pipeline = {"source": self.url, "target": self.target_url, "guard": "0s", "tables": self.tables}
        path.write_text(yaml.safe_dump({"pipelines": {"shop": pipeline}}))
        return path

    def load(self) -> Project:
        return strandline.load(self.config)

    def sync(self) -> None:
        with self.load() as project:
            project.sync("shop", spark=self.spark, raise_on_failure=True)

    def verify(self, **options: Any) -> Verdict:
        with self.load() as project:
            (verdict,) = project.verify("shop", spark=self.spark, listener=self.events.append, **options)
        return verdict

    def target(self, table: str) -> str:
        return f"delta.`{self.folder / 'lake' / table}`"

    def damage(self, statement: str) -> None:
        """SQL on the lake; {name} stands for a table of it."""
        names = {table["name"]: self.target(table["name"]) for table in self.tables}
        self.spark.sql(statement.format(**names)).collect()


def before_18(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """PostgreSQL as it was before it knew CRC-32; returns the hashes that it will have been asked for."""
    knows, number = postgres_canonical.hashes, postgres_canonical.number
    asked: set[str] = set()

    def noted(texts: Sequence[str], hash: str) -> str:
        asked.add(hash)
        return number(texts, hash)

    monkeypatch.setattr(postgres_canonical, "hashes", lambda version: knows(min(version, 17)))
    monkeypatch.setattr(postgres_canonical, "number", noted)
    return asked

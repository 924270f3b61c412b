"""A shop for tests of the command line: a real config file, a real SQLite state, source and target in memory."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from strandline.cli.app import execute
from strandline.core.table import Column
from strandline.core.watermark import Cursor, Kind
from strandline.project import Project, load
from strandline.testing.memory import Clock, MemorySink, MemorySource

PASSWORD = "correct-horse-battery"

CONFIG = """\
state: sqlite:///{folder}/state.db
pipelines:
  shop:
    source: postgresql://reader:${{SHOP_PASSWORD}}@db/shop
    target: delta:{folder}/lake
    parallel: 1
    tables:
      - {{name: orders, slice_rows: 4}}
      - customers
  stock:
    source: postgresql://reader:${{SHOP_PASSWORD}}@db/stock
    target: delta:{folder}/stock
    tables: [items]
"""


@dataclass
class Said:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Shop:
    """Everything outside the process, and `run` for a command line of its own."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self.config = folder / "strandline.yml"
        self.config.write_text(CONFIG.format(folder=folder), encoding="utf-8")
        self.clock = Clock()
        self.source = MemorySource(self.clock)
        self.sink = MemorySink()
        self._capsys = capsys
        for name in ("orders", "customers", "items"):
            columns = (Column("id", "bigint"), Column("value", "string"), Column("moved", "timestamp"))
            self.source.create(name, columns, Cursor("moved", Kind.TIMESTAMP), ["id"])

    def write(self, table: str, *ids: int, apart: bool = True) -> None:
        """Rows in transactions of their own, a second apart; or all in one, with one cursor value."""
        for group in [[id] for id in ids] if apart else [list(ids)]:
            self.clock.advance(1)
            self.source.write(table, *({"id": id, "value": "new"} for id in group))
        self.clock.advance(1)

    def run(self, *argv: str) -> Said:
        code = execute([*argv, "-c", str(self.config)])
        said = self._capsys.readouterr()
        return Said(code, said.out, said.err)

    def project(self) -> Project:
        return load(self.config)

    def forget_leases(self) -> None:
        """As time would do it after a crash."""
        with self.project() as project:
            state = project.books.state
            for record in state.read("lease"):
                state.delete([record])


def open_shop(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shop:
    shop = Shop(folder, capsys)
    monkeypatch.setenv("SHOP_PASSWORD", PASSWORD)
    monkeypatch.delenv("STRANDLINE_CONFIG", raising=False)
    monkeypatch.setattr("strandline.pipeline.open_source", lambda *_, **__: shop.source)
    monkeypatch.setattr("strandline.pipeline.open_sink", lambda *_, **__: shop.sink)
    return shop

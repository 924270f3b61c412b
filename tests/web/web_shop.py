"""A shop for tests of API and pages: a real config and SQLite state, two tables copied inside one PostgreSQL."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import psycopg
from web_desk import GatedDesk

from strandline.project import load

PASSWORD = "s3cret-hunter-of-the-sea"

CONFIG = """\
state: sqlite:///{folder}/state.db
pipelines:
  shop:
    source: {url}
    target: {url}
    via: server
    guard: 0s
    schedule: every 5m
    freshness: {{warn_after: {{count: 1, period: hour}}, error_after: {{count: 1, period: day}}}}
    tables:
      - {{name: orders, cursor: at, target: copied.orders, slice_rows: 4}}
      - {{name: customers, cursor: at, target: copied.customers}}
  counted:
    source: {url}
    target: {url}
    via: server
    tables:
      - {{name: items, cursor: id, target: copied.items, mode: append}}
"""


class Shop:
    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.folder = url, folder
        self.database = psycopg.connect(url, autocommit=True)
        self.execute("CREATE SCHEMA copied")
        for name in ("orders", "customers"):
            self.execute(f"CREATE TABLE {name} (id bigint PRIMARY KEY, value text, at timestamptz NOT NULL)")
            self.execute(f"CREATE INDEX ON {name} (at)")
        self.execute("CREATE TABLE items (id bigserial PRIMARY KEY, value text)")
        path = folder / "strandline.yml"
        path.write_text(CONFIG.format(folder=folder, url=url))
        self.project = load(path)
        self.project.config.redactor.register(PASSWORD)
        self.desk = GatedDesk(self.project)

    def execute(self, sql: str) -> list[tuple[Any, ...]]:
        found = self.database.execute(sql.encode())
        return list(found.fetchall()) if found.description else []

    def write(self, table: str, *ids: int) -> None:
        for number in ids:
            self.execute(f"INSERT INTO {table} VALUES ({number}, 'new', clock_timestamp())")

    def sync(self, pipeline: str = "shop") -> None:
        """On a busy machine a transaction of the server's own may hold a table for a moment."""
        for _ in range(50):
            result = self.project.sync(pipeline, listener=self.desk.listener())
            if not any(table.plan.held_by for table in result.tables):
                return
            time.sleep(0.1)
        raise AssertionError(f"{pipeline} is held")

    def close(self) -> None:
        self.desk.gate.set()
        self.desk.settle()
        self.desk.close()
        self.database.close()

"""A shop on PostgreSQL, kept in step with a lake: the domain that whole-hop tests speak."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import yaml
from deltalake import DeltaTable, QueryBuilder

import strandline
from strandline.core.events import Event
from strandline.core.run import Outcome
from strandline.project import Project
from strandline.result import RunResult

ORDERS = """
CREATE TABLE orders (id bigint PRIMARY KEY, status text NOT NULL, amount numeric(12,2),
                     updated_at timestamptz NOT NULL DEFAULT clock_timestamp());
CREATE INDEX ON orders (updated_at)"""


class Shop:
    """Tables in a database of its own, a config beside them, and a lake to look into."""

    def __init__(self, url: str, folder: Path, spark: Any = None) -> None:
        self.url = url
        self.folder = folder
        self.spark = spark
        self.events: list[Event] = []
        self.top: dict[str, Any] = {}  # of the config, beside `pipelines`
        self.tables: list[Any] = ["orders"]
        self.pipeline: dict[str, Any] = {"guard": "0s", "defaults": {"cursor": "updated_at"}}
        self.database = psycopg.connect(url, autocommit=True)
        self.database.execute(ORDERS)

    def close(self) -> None:
        self.database.close()

    @property
    def config(self) -> Path:
        path = self.folder / "strandline.yml"
        target = {} if "targets" in self.pipeline else {"target": "delta:lake"}
        pipeline = {"source": self.url, **target, "tables": self.tables, **self.pipeline}
        path.write_text(yaml.safe_dump({**self.top, "pipelines": {"shop": pipeline}}))
        return path

    def load(self) -> Project:
        return strandline.load(self.config)

    def execute(self, sql: str) -> None:
        self.database.execute(sql.encode())

    def insert(self, *ids: int, status: str = "new", at: str | None = None) -> None:
        stamp = f"timestamptz '{at}'" if at else "clock_timestamp()"
        for number in ids:
            self.execute(f"INSERT INTO orders VALUES ({number}, '{status}', {number}.50, {stamp})")

    def update(self, number: int, status: str) -> None:
        self.execute(f"UPDATE orders SET status = '{status}', updated_at = clock_timestamp() WHERE id = {number}")

    def sync(self, **options: Any) -> RunResult:
        with self.load() as project:
            return project.sync("shop", spark=self.spark, listener=self.events.append, **options)

    def one(self, **options: Any) -> Outcome:
        """The outcome of the only table."""
        (outcome,) = self.sync(**options).tables
        return outcome

    def target(self, table: str = "orders") -> list[dict[str, Any]]:
        """The lake's rows, by key."""
        lake = DeltaTable(str(self.folder / "lake" / table))
        rows = QueryBuilder().register("t", lake).execute("SELECT * FROM t").read_all()
        names = rows.schema.names
        columns = [rows[name].to_pylist() for name in names]
        return sorted((dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)), key=_key)

    def target_ids(self) -> list[int]:
        return [row["id"] for row in self.target()]

    def statuses(self) -> dict[int, str]:
        return {row["id"]: row["status"] for row in self.target()}


def _key(row: dict[str, Any]) -> Any:
    return row.get("id", 0)

"""A table and its copy in one database, kept in step inside it (`via: server`, no Spark starts) or by Spark."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
import yaml

import strandline
from strandline.cli.app import execute
from strandline.core.events import Event
from strandline.core.run import Outcome
from strandline.testing.servers import MariaDB, Postgres

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOW = {"postgres": "clock_timestamp()", "mariadb": "NOW(6)"}
STAMP = {"postgres": "timestamptz", "mariadb": "timestamp(6)"}


S = TypeVar("S", bound="Shop")


class Killed(BaseException):
    """The process is gone: nothing that it would have done afterwards is done."""


class Shop:
    """A table and its copy in another schema of one server."""

    def __init__(self, kind: str, connection: Any, url: str, copy: str, folder: Path) -> None:
        self.kind, self.connection, self.url, self.copy, self.folder = kind, connection, url, copy, folder
        self.settings: dict[str, Any] = {}
        self.spark: SparkSession | None = None
        self.pipeline: dict[str, Any] = {"via": "server"}
        self.execute(
            "CREATE TABLE orders (id bigint PRIMARY KEY, status varchar(20), amount decimal(12,2), gone boolean, "
            f"at {STAMP[kind]} NOT NULL)"
        )
        self.execute("CREATE INDEX by_at ON orders (at)")

    def execute(self, sql: str) -> list[tuple[Any, ...]]:
        with self.connection.cursor() as cursor:
            cursor.execute(sql)
            return list(cursor.fetchall()) if cursor.description else []

    def insert(self, *ids: int, status: str = "new") -> None:
        for number in ids:
            self.execute(f"INSERT INTO orders VALUES ({number}, '{status}', {number}.25, false, {NOW[self.kind]})")

    def load(self) -> strandline.project.Project:
        path = self.folder / "strandline.yml"
        table = {"name": "orders", "cursor": "at", "target": f"{self.copy}.orders", **self.settings}
        shop = {"source": self.url, "target": self.url, "guard": "0s", "tables": [table], **self.pipeline}
        path.write_text(yaml.safe_dump({"pipelines": {"shop": shop}}))
        return strandline.load(path)

    def sync(self, **options: Any) -> Outcome:
        with self.load() as project:
            (outcome,) = project.sync("shop", spark=self.spark, **options).tables
            assert project.own_spark.session is None, "a JVM was started"
            return outcome

    def filled(self, where: str) -> None:
        """By another hand."""
        like = "(LIKE orders INCLUDING ALL)" if self.kind == "postgres" else "LIKE orders"
        self.execute(f"CREATE TABLE {self.copy}.orders {like}")
        self.execute(f"INSERT INTO {self.copy}.orders SELECT * FROM orders WHERE {where}")

    def run(self, *words: str) -> int:
        return execute([*words, "-c", str(self.folder / "strandline.yml")])

    def killed(self, event: type[Event]) -> None:
        """A sync whose process is gone as soon as this has happened, and its lease with it."""

        def die(heard: Event) -> None:
            if isinstance(heard, event):
                raise Killed

        with pytest.raises(Killed):
            self.sync(listener=die)
        with self.load() as project:
            state = project.books.state
            for record in state.read("lease"):
                state.put([replace(record, fields={**record.fields, "expires_at": ""})])

    def rows(self) -> list[tuple[Any, ...]]:
        return self.execute(f"SELECT id, status, amount, at FROM {self.copy}.orders ORDER BY id")

    def check(self) -> None:
        assert self.rows() == self.execute("SELECT id, status, amount, at FROM orders ORDER BY id")


@contextmanager
def opened(made: type[S], kind: str, server: Postgres | MariaDB, folder: Path) -> Iterator[S]:
    """A shop in a database of its own."""
    name = f"t_{uuid.uuid4().hex[:12]}"
    copy = "copied" if kind == "postgres" else f"{name}_copy"
    with server.connect() as first:
        with first.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {name}")
        with server.connect(name) as connection:
            with connection.cursor() as cursor:
                cursor.execute(f"CREATE SCHEMA {copy}")
            yield made(kind, connection, server.url(name), copy, folder)

"""The shop in which traps are set: a real database, a real target, and a pipeline between them.

A database says what differs between PostgreSQL and MariaDB; a target says where a sink's rows are and how to look at
them. A new sink needs one entry in `TARGETS`: every trap is then set for it too.
"""

from __future__ import annotations

import subprocess
import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import psycopg
import pytest
import yaml
from deltalake import DeltaTable, QueryBuilder

from strandline.config import load_config
from strandline.core.events import Event, Listener
from strandline.core.position import Position
from strandline.core.run import Outcome
from strandline.core.watermark import Kind, Watermark
from strandline.endpoint import Endpoint
from strandline.pipeline import Pipeline
from strandline.project import Project
from strandline.sources.mysql import MySqlSource
from strandline.sources.postgres import PostgresSource
from strandline.testing.servers import MariaDB, Postgres

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OLD = "2026-01-01 00:00:00"
"""A time long past: rows may be stamped with it before the first sync only."""


class Connection:
    """One session of either database; listeners of several tables use it from several threads."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver
        self._turn = threading.Lock()

    def execute(self, sql: str) -> list[tuple[Any, ...]]:
        with self._turn, self.driver.cursor() as cursor:
            cursor.execute(sql)
            return list(cursor.fetchall()) if cursor.description else []

    def value(self, sql: str) -> Any:
        return self.execute(sql)[0][0]

    def commit(self) -> None:
        self.driver.commit()

    def close(self) -> None:
        self.driver.close()


class Database(ABC):
    """A database of the test's own, and the words it uses."""

    name: str
    now: str  # the clock, as a statement sees it move
    text = "varchar(40)"

    def __init__(self, url: str) -> None:
        self.url = url
        self.here = self.connect()

    @abstractmethod
    def connect(self, *, autocommit: bool = True) -> Connection: ...

    @abstractmethod
    def stamp(self, digits: int = 6) -> str:
        """The type of a time that carries its zone."""

    @abstractmethod
    def naive(self) -> str:
        """The type of a time without a zone."""

    @abstractmethod
    def at(self, text: str) -> str:
        """A UTC time as a literal."""

    @abstractmethod
    def series(self, number: int) -> str:
        """What follows FROM for the column `i` from 1 to a number."""

    @abstractmethod
    def readers_waiting(self) -> list[int]:
        """Sessions of Spark's readers that wait for a lock."""

    @abstractmethod
    @contextmanager
    def locked(self, table: str) -> Iterator[None]:
        """Nobody can read the table meanwhile."""

    @abstractmethod
    def cut(self, session: int) -> None:
        """End a session as a failing network does."""

    def execute(self, sql: str) -> list[tuple[Any, ...]]:
        return self.here.execute(sql)

    def close(self) -> None:
        self.here.close()


class PostgresDatabase(Database):
    name = "postgres"
    now = "clock_timestamp()"

    def connect(self, *, autocommit: bool = True) -> Connection:
        return Connection(psycopg.connect(self.url, autocommit=autocommit))

    def stamp(self, digits: int = 6) -> str:
        return f"timestamptz({digits})"

    def naive(self) -> str:
        return "timestamp(6)"

    def at(self, text: str) -> str:
        return f"timestamptz '{text}+00'"

    def series(self, number: int) -> str:
        return f"generate_series(1, {number}) AS s(i)"

    def readers_waiting(self) -> list[int]:
        sql = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        return [pid for (pid,) in self.execute(sql)]

    @contextmanager
    def locked(self, table: str) -> Iterator[None]:
        with closing(self.connect(autocommit=False)) as holder:
            holder.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
            yield

    def cut(self, session: int) -> None:
        self.execute(f"SELECT pg_terminate_backend({session})")


class MariaDatabase(Database):
    name = "mariadb"
    now = "sysdate(6)"

    def __init__(self, url: str, server: MariaDB) -> None:
        self.server = server
        super().__init__(url)

    def connect(self, *, autocommit: bool = True) -> Connection:
        connection = Connection(self.server.connect(Endpoint.parse(self.url).path))
        connection.driver.autocommit(autocommit)
        return connection

    def stamp(self, digits: int = 6) -> str:
        return f"timestamp({digits})"

    def naive(self) -> str:
        return "datetime(6)"

    def at(self, text: str) -> str:
        return f"timestamp '{text}'"

    def series(self, number: int) -> str:
        return f"(SELECT seq AS i FROM seq_1_to_{number}) s"

    def readers_waiting(self) -> list[int]:
        sql = "SELECT id FROM information_schema.processlist WHERE state LIKE 'Waiting for table%' AND db = database()"
        return [session for (session,) in self.execute(sql)]

    @contextmanager
    def locked(self, table: str) -> Iterator[None]:
        with closing(self.connect()) as holder:
            holder.execute(f"LOCK TABLES {table} WRITE")
            yield

    def cut(self, session: int) -> None:
        self.execute(f"KILL {session}")


class Target(Protocol):
    """One sink, as `target:` names it, looked into without the product's help."""

    url: str

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Every row, repeated ones too; nothing where there is no table yet."""

    def column(self, table: str, name: str) -> list[Any]:
        """One column of every row: for tables that are large."""

    def crowded(self) -> AbstractContextManager[None]:
        """A context in which the target has no room; skips the test where that cannot be."""

    def close(self) -> None: ...


class DeltaTarget:
    url = "delta:lake"

    def __init__(self, folder: Path, spark: SparkSession) -> None:
        self.lake = folder / "lake"
        self.spark = spark

    def rows(self, table: str) -> list[dict[str, Any]]:
        found = self._read(table, "*")
        return [dict(zip(found, row, strict=True)) for row in zip(*found.values(), strict=True)]

    def column(self, table: str, name: str) -> list[Any]:
        return self._read(table, f'"{name}"').get(name, [])

    def _read(self, table: str, what: str) -> dict[str, list[Any]]:
        if not list((self.lake / table / "_delta_log").glob("*.json")):
            return {}
        path = str(self.lake / table)
        lake = DeltaTable(path)
        if "typeWidening" in (lake.protocol().reader_features or []):  # which delta-rs cannot read
            rows = self.spark.read.format("delta").load(path).selectExpr(what.replace('"', "`")).collect()
            return {name: [row[name] for row in rows] for name in (rows[0].asDict() if rows else {})}
        found = QueryBuilder().register("t", lake).execute(f"SELECT {what} FROM t").read_all()
        return {name: list(found[name].to_pylist()) for name in found.schema.names}

    @contextmanager
    def crowded(self) -> Iterator[None]:
        """A disk of 512 KiB that grows when the context ends."""
        self.lake.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(self.lake)]
        if subprocess.run(mount, capture_output=True).returncode:
            pytest.skip("a small file system can be mounted by root only")
        yield
        subprocess.run(["mount", "-o", "remount,size=64m", str(self.lake)], check=True)

    def close(self) -> None:
        if self.lake.is_mount():  # lazily: Spark leaves the file open that it could not finish
            subprocess.run(["umount", "--lazy", str(self.lake)], check=True)


class SqlTarget:
    """A database of the test's own, on the server that the source may lie on, too."""

    def __init__(self, server: Postgres | MariaDB) -> None:
        self.name = f"target_{uuid.uuid4().hex[:12]}"
        self.url = server.url(self.name)
        self.server = Connection(server.connect())
        self.server.execute(f"CREATE DATABASE {self.name}")
        self.here = Connection(server.connect(self.name))

    def rows(self, table: str) -> list[dict[str, Any]]:
        known = "SELECT 1 FROM information_schema.tables WHERE table_name = '{}' AND table_schema IN ('public', '{}')"
        if not self.here.execute(known.format(table, self.name)):
            return []
        with self.here.driver.cursor() as cursor:
            cursor.execute(f"SELECT * FROM {table}")
            names = [column[0] for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def column(self, table: str, name: str) -> list[Any]:
        return [row[name] for row in self.rows(table)]

    @contextmanager
    def crowded(self) -> Iterator[None]:
        pytest.skip("a full disk would stop the whole server")
        yield

    def close(self) -> None:
        self.here.close()
        self.server.execute(f"DROP DATABASE {self.name}")
        self.server.close()


def delta_target(request: pytest.FixtureRequest) -> Target:
    return DeltaTarget(request.getfixturevalue("tmp_path"), request.getfixturevalue("spark"))


def postgres_target(request: pytest.FixtureRequest) -> Target:
    return SqlTarget(request.getfixturevalue("postgres"))


TARGETS: Mapping[str, Callable[[pytest.FixtureRequest], Target]] = {
    "delta": delta_target,
    "postgres": postgres_target,
}
"""Every sink there is; MariaDB as a target has a module of its own, with the traps that it could fall into."""


class Killed(BaseException):
    """The process ends here: no handler of the product sees it, as none sees SIGKILL."""


class Impatient(Project):
    """Waits a moment only for transactions in flight, so that a test of a held horizon is quick; uses our Spark."""

    given: SparkSession

    @contextmanager
    def opened(self, name: str, stage: str = "", spark: SparkSession | None = None) -> Iterator[Pipeline]:
        with super().opened(name, stage, spark or self.given) as pipeline:
            if not pipeline.staged:
                assert isinstance(pipeline.source, (PostgresSource, MySqlSource))
                pipeline.source.max_wait = timedelta(seconds=0.3)
            yield pipeline


class Shop:
    """Tables `id, status, updated_at` in the source, the pipeline over them, and what must be true of the copy."""

    def __init__(self, database: Database, target: Target, folder: Path, spark: SparkSession) -> None:
        self.database = database
        self.target = target
        self.folder = folder
        self.spark = spark
        self.url = database.url
        self.events: list[Event] = []
        self.tables: dict[str, dict[str, Any]] = {}
        self.pipeline: dict[str, Any] = {"guard": "0s", "defaults": {"cursor": "updated_at"}}

    # the source

    def table(
        self,
        name: str = "orders",
        *,
        stamp: str | None = None,
        key: str = "PRIMARY KEY",
        null: bool = False,
        more: str = "",
        **settings: Any,
    ) -> None:
        """A table and its part of the config. `more`: further columns."""
        stamp = stamp or self.database.stamp()
        self.execute(
            f"CREATE TABLE {name} (id bigint {key or 'NOT NULL'}, status {self.database.text} NOT NULL, "
            f"updated_at {stamp} {'NULL' if null else 'NOT NULL'}{more})"
        )
        self.execute(f"CREATE INDEX at_{name} ON {name} (updated_at)")
        self.tables[name] = {"name": name, **settings}

    def execute(self, sql: str) -> list[tuple[Any, ...]]:
        return self.database.execute(sql)

    def insert(self, *ids: int, at: str | None = None, status: str = "new", table: str = "orders") -> None:
        for number in ids:
            self.execute(self.insertion(number, at, status, table))

    def insertion(self, number: int, at: str | None = None, status: str = "new", table: str = "orders") -> str:
        stamp = self.database.at(at) if at else self.database.now
        return f"INSERT INTO {table} (id, status, updated_at) VALUES ({number}, '{status}', {stamp})"

    def update(self, number: int, status: str, table: str = "orders") -> None:
        now = self.database.now
        self.execute(f"UPDATE {table} SET status = '{status}', updated_at = {now} WHERE id = {number}")

    # the pipeline

    def load(self) -> Project:
        path = self.folder / "strandline.yml"
        tables = list(self.tables.values())
        pipeline = {"source": self.url, "target": self.target.url, "tables": tables, **self.pipeline}
        path.write_text(yaml.safe_dump({"pipelines": {"shop": pipeline}}))
        project = Impatient(load_config(path))
        project.given = self.spark
        return project

    def sync(self, *, listener: Listener | None = None, **options: Any) -> dict[str, Outcome]:
        """One sync, whatever comes of it, by table."""

        def heard(event: Event) -> None:
            self.events.append(event)
            if listener:
                listener(event)

        with self.load() as project:
            result = project.sync("shop", listener=heard, **options)
        return {outcome.table: outcome for outcome in result.tables}

    def synced(self, **options: Any) -> dict[str, Outcome]:
        """A sync in which nothing fails."""
        outcomes = self.sync(**options)
        errors = [str(outcome.error) for outcome in outcomes.values() if outcome.error]
        assert not errors, errors
        return outcomes

    def refused(self, table: str = "orders", **options: Any) -> str:
        """What a sync says that does not move this table."""
        error = self.sync(**options)[table].error
        assert error is not None
        return error.explain()

    def killed_at(self, event: type[Event], number: int = 1) -> None:
        """A sync whose process ends at the n-th event of a kind, and its lease with it, a minute later."""
        left = number

        def kill(seen: Event) -> None:
            nonlocal left
            left -= isinstance(seen, event)
            if not left:
                raise Killed

        with pytest.raises(Killed):
            self.sync(listener=kill)
        self.expire_leases()

    def expire_leases(self) -> None:
        with self.load() as project:
            state = project.books.state
            state.put([replace(record, fields={**record.fields, "expires_at": ""}) for record in state.read("lease")])

    def position(self, table: str = "orders") -> Position:
        with self.load() as project:
            return project.books.positions("shop")["shop", table, "sync"]

    def watermark(self, table: str = "orders") -> Watermark:
        mark = self.position(table).watermark
        assert mark is not None
        return mark

    # the target

    def ids(self, table: str = "orders") -> list[int]:
        """The target's ids, repeated ones too."""
        return sorted(int(number) for number in self.target.column(table, "id"))

    def copied(self, table: str = "orders") -> list[tuple[int, str]]:
        return sorted((int(row["id"]), row["status"]) for row in self.target.rows(table))

    def original(self, table: str = "orders") -> list[tuple[int, str]]:
        """The source's rows below the watermark."""
        mark = self.watermark(table)
        column, value = ("id", mark.text) if mark.kind is Kind.INTEGER else ("updated_at", self._literal(table, mark))
        return sorted(self.execute(f"SELECT id, status FROM {table} WHERE {column} < {value}"))

    def _literal(self, table: str, mark: Watermark) -> str:
        return f"timestamp '{mark}'" if self.tables[table].get("zone") else self.database.at(mark.text)

    def check(self, *tables: str, ids: list[int] | None = None) -> None:
        """The target equals the source below the watermark, row by row, none twice; and holds exactly these ids."""
        for table in tables or self.tables:
            copied, original = self.copied(table), self.original(table)
            assert copied == original, f"{table} up to {self.watermark(table)}: {copied} is not {original}"
            assert ids is None or self.ids(table) == ids, table


@pytest.fixture(params=["postgres", "mariadb"])
def database(request: pytest.FixtureRequest) -> Iterator[Database]:
    if request.param == "postgres":
        found: Database = PostgresDatabase(request.getfixturevalue("pg_database"))
    else:
        found = MariaDatabase(request.getfixturevalue("mariadb_database"), request.getfixturevalue("mariadb"))
    with closing(found):
        yield found


@pytest.fixture(params=TARGETS)
def shop(request: pytest.FixtureRequest, database: Database, tmp_path: Path, spark: SparkSession) -> Iterator[Shop]:
    with closing(TARGETS[request.param](request)) as target:
        yield Shop(database, target, tmp_path, spark)

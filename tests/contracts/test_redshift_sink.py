"""The Sink contract on Redshift: its statements run on PostgreSQL, and COPY is done for it. No Spark starts."""

from __future__ import annotations

import io
import json
import re
import threading
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, fields
from functools import cached_property
from importlib import import_module
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from strandline.core.batch import Applied, Batch, How
from strandline.core.errors import SchemaError, StrandlineError
from strandline.core.protocols import Changes, Sink
from strandline.core.table import Mode, Table
from strandline.core.watermark import Kind, Watermark
from strandline.endpoint import Endpoint
from strandline.sinks.sql_files import FileSink
from strandline.testing.redshift import as_redshift, redshift_endpoint
from strandline.testing.servers import Postgres
from strandline.testing.sink import (
    Connect,
    InterruptedChanges,
    Read,
    Row,
    RowChanges,
    SinkContract,
    at,
    batch,
    ids,
    orders,
)

pyarrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
COLUMN = re.compile(r"(`(?:[^`]|``)*`|\w+) (bigint|int|string|timestamp|decimal\((\d+),(\d+)\))(?:, |$)")
NAMES = {"bigint": "long", "int": "integer"}
STORE: dict[str, bytes] = {}


@dataclass
class Staged:
    """Rows as one Parquet file of a stage."""

    changes: RowChanges
    number: str = field(default_factory=lambda: str(len(STORE)))

    @cached_property
    def _columns(self) -> list[tuple[str, str, Any]]:
        kinds: dict[str, Any] = {
            "bigint": pyarrow.int64(),
            "int": pyarrow.int32(),
            "string": pyarrow.string(),
            "timestamp": pyarrow.timestamp("us", "UTC"),
        }
        return [
            (
                found[1].strip("`").replace("``", "`"),
                NAMES.get(found[2], found[2]),
                kinds.get(found[2]) or pyarrow.decimal128(int(found[3]), int(found[4])),
            )
            for found in COLUMN.finditer(self.changes.schema)
        ]

    @property
    def schema(self) -> str:
        listed = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind, _ in self._columns]
        return json.dumps({"type": "struct", "fields": listed})

    @cached_property
    def sizes(self) -> Mapping[str, int]:
        if not self.changes.rows:
            return {}
        schema = pyarrow.schema([(name, kind) for name, _, kind in self._columns])
        arrays = [
            pyarrow.array(list(values), kind)
            for values, (_, _, kind) in zip(zip(*self.changes.rows, strict=True), self._columns, strict=True)
        ]
        file = io.BytesIO()
        parquet.write_table(pyarrow.Table.from_arrays(arrays, schema=schema), file)
        return {self.put("part-0.parquet", file.getvalue()): len(file.getvalue())}

    @property
    def rows(self) -> int:
        return len(self.changes.rows)

    def get(self, address: str) -> bytes:
        return STORE[address]

    def put(self, name: str, data: bytes) -> str:
        address = f"s3://stage/{self.number}/{name}"
        STORE[address] = data
        return address


class StagedChanges(RowChanges):
    def __init__(self, given: RowChanges) -> None:
        super().__init__(**{part.name: getattr(given, part.name) for part in fields(RowChanges)})
        if isinstance(given, InterruptedChanges):
            given.meanwhile()
        self.files = Staged(given)

    def frame(self, spark: object) -> Any:
        raise AssertionError(f"no Spark is needed: {spark}")


class StagedSink(FileSink):
    """What it is given lies in a stage by the time that it is written."""

    def _write(self, table: Table, place: Any, batch: Batch, changes: Changes) -> Any:
        assert isinstance(changes, RowChanges)
        return super()._write(table, place, batch, StagedChanges(changes))


@pytest.fixture(scope="module")
def warehouse(postgres: Postgres) -> Iterator[tuple[str, Endpoint]]:
    name = f"t_{uuid.uuid4().hex[:12]}"
    with postgres.connect() as connection:
        connection.execute(f"CREATE DATABASE {name}")
        yield postgres.url(name), redshift_endpoint(postgres.url(name))
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


class TestRedshiftSink(SinkContract):
    keys_enforced = True  # by PostgreSQL, here

    @pytest.fixture
    def connect(self, warehouse: tuple[str, Endpoint]) -> Iterator[Connect]:
        url, endpoint = warehouse
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("DROP SCHEMA IF EXISTS shop CASCADE")
            connection.execute("CREATE SCHEMA shop")
        with ExitStack() as opened:
            target = as_redshift(STORE.__getitem__)
            yield lambda: opened.enter_context(closing(StagedSink(endpoint, target(endpoint))))

    @pytest.fixture
    def read(self, warehouse: tuple[str, Endpoint]) -> Read:
        def rows(table: Table) -> list[Row]:
            with psycopg.connect(warehouse[0], row_factory=dict_row) as connection:
                return connection.execute(f"SELECT * FROM {table.target}").fetchall()

        return rows

    def test_of_two_loaders_of_one_batch_one_applies_it(self, connect: Connect, read: Read) -> None:
        table, start = orders(mode=Mode.APPEND), threading.Barrier(2)
        sinks = [connect(), connect()]
        sinks[0].apply(table, batch(1), RowChanges([(1, "one", at(0))]), how=How.FRESH)

        def load(sink: Sink, attempt: str) -> Applied | StrandlineError:
            start.wait()
            try:
                return sink.apply(table, batch(2, attempt=attempt), RowChanges([(2, "two", at(1))]), how=How.CHANGES)
            except StrandlineError as error:
                return error

        with ThreadPoolExecutor(2) as pool:
            done = list(pool.map(load, sinks, ("a", "b")))
        assert Applied(1, 1, 0, 0, Watermark(Kind.TIMESTAMP, f"{at(1)}")) in done
        assert ids(read(table)) == [1, 2]

    def test_new_and_wider_columns_evolve_and_lost_ones_are_kept(self, sink: Sink, read: Read) -> None:
        """New ones are; Redshift widens no column."""
        sink.apply(orders(), batch(1), RowChanges([(1, "one", at(0))]), how=How.FRESH)
        new = "id bigint, at timestamp, price decimal(20,2), note string"
        sink.apply(
            orders(), batch(2), RowChanges([(2, at(1), None, "hello"), (1, at(1), None, "again")], new), how=How.CHANGES
        )
        stored = {row["id"]: (row["name"], row["note"]) for row in read(orders())}
        assert stored == {1: ("one", "again"), 2: (None, "hello")}
        wider = RowChanges([(3, at(2), None, "")], new.replace("20", "30"))
        with pytest.raises(SchemaError, match=r"price was numeric\(20,2\)"):
            sink.apply(orders(), batch(3), wider, how=How.CHANGES)

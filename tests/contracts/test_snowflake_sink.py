"""The Sink contract on Snowflake's stand-in: files are put and copied as into Snowflake. No Spark starts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from snowflake.connector import DictCursor
from test_redshift_sink import Staged, StagedChanges

from strandline.core.batch import Batch, How
from strandline.core.errors import TargetError
from strandline.core.protocols import Changes, Sink
from strandline.core.table import Table
from strandline.endpoint import Endpoint
from strandline.sinks.snowflake import SnowflakeTarget
from strandline.sinks.snowflake_load import SnowflakeSink
from strandline.sources.snowflake_names import quoted, shown
from strandline.sources.snowflake_session import SnowflakeSession
from strandline.testing.sink import Connect, Read, Row, RowChanges, SinkContract, at, batch, ids, orders


class LocalSink(SnowflakeSink):
    """What it is given lies in a folder, as in a stage, by the time that it is written."""

    folder: Path

    def _write(self, table: Table, place: Any, batch: Batch, changes: Changes) -> Any:
        assert isinstance(changes, RowChanges)
        staged = StagedChanges(changes)
        staged.files = LocalStaged(changes, folder=self.folder)
        return super()._write(table, place, batch, staged)


class LocalStaged(Staged):
    def __init__(self, changes: RowChanges, folder: Path) -> None:
        super().__init__(changes, str(sum(1 for _ in folder.iterdir())))
        self.folder = folder

    def put(self, name: str, data: bytes) -> str:
        path = self.folder / f"{self.number} it's" / name
        path.parent.mkdir()
        path.write_bytes(data)
        return f"file:{path}"


class TestSnowflakeSink(SinkContract):
    keys_enforced = True  # by DuckDB, here

    @pytest.fixture
    def connect(self, snowflake_database: str, tmp_path: Path) -> Iterator[Connect]:
        def no_spark() -> Any:
            raise AssertionError("no Spark is needed")

        endpoint = Endpoint.parse(snowflake_database.replace("/PUBLIC?", "/SHOP?"))

        def opened_sink() -> LocalSink:
            sink = LocalSink(endpoint, SnowflakeTarget(endpoint), no_spark)
            sink.folder = tmp_path
            return opened.enter_context(closing(sink))

        with ExitStack() as opened:
            yield opened_sink

    @pytest.fixture
    def read(self, snowflake_database: str) -> Iterator[Read]:
        with SnowflakeSession(Endpoint.parse(snowflake_database)).connect() as connection:

            def rows(table: Table) -> list[Row]:
                name = ".".join(quoted(part) for part in table.target.split("."))
                cursor = connection.cursor(DictCursor)
                cursor.execute(f"SELECT * FROM {name}")
                return [{shown(name): value for name, value in dict(row).items()} for row in cursor.fetchall()]

            yield rows

    def test_new_and_wider_columns_evolve_and_lost_ones_are_kept(self, sink: Sink, read: Read) -> None:
        """The key's column stays as it is: DuckDB cannot change it."""
        old = "id bigint, name string, at timestamp, price decimal(10,2)"
        sink.apply(orders(), batch(1), RowChanges([(1, "one", at(0), None)], old), how=How.FRESH)
        new = "id bigint, at timestamp, price decimal(20,2), note string"
        changes = RowChanges([(2, at(1), Decimal("123456789012345678.90"), "hello"), (1, at(1), None, "again")], new)
        sink.apply(orders(), batch(2), changes, how=How.CHANGES)
        stored = {row["id"]: (row["name"], row["note"], row["price"]) for row in read(orders())}
        assert stored == {1: ("one", "again", None), 2: (None, "hello", Decimal("123456789012345678.90"))}

    def test_a_ledger_with_copies_of_a_row_moves_nothing(self, sink: Sink, read: Read, snowflake_database: str) -> None:
        """Nothing in Snowflake keeps its keys unique."""
        sink.apply(orders(), batch(1), RowChanges([(1, "one", at(0))]), how=How.FRESH)
        ledger = '"SHOP"."STRANDLINE_LEDGER"'
        with SnowflakeSession(Endpoint.parse(snowflake_database)).connect() as connection:
            for statement in (
                f"CREATE TABLE copy AS SELECT * FROM {ledger} UNION ALL SELECT * FROM {ledger}",
                f"DROP TABLE {ledger}",
                f"CREATE TABLE {ledger} AS SELECT * FROM copy",
            ):
                connection.cursor().execute(statement)
        with pytest.raises(TargetError, match="2 rows for"):
            sink.apply(orders(), batch(2), RowChanges([(2, "two", at(1))]), how=How.CHANGES)
        assert ids(read(orders())) == [1]
        receipt = sink.applied(orders())
        assert receipt is not None and receipt.batch == batch(1)

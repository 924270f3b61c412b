"""What the SQL sinks promise beyond the contract: tasks run twice, strangers, tables made by hand, lost answers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from test_sql_types import Execute, asked

import strandline
from strandline.core.batch import How
from strandline.core.errors import (
    CommitUnknownError,
    ConfigError,
    SchemaError,
    SourceError,
    TargetError,
)
from strandline.core.table import Column, Mode, Table
from strandline.endpoint import Endpoint
from strandline.sinks import open_sink
from strandline.sinks.postgres import PostgresTarget
from strandline.sinks.sql import SqlSink
from strandline.sinks.sql_dialect import Place
from strandline.sinks.sql_ledger import Ledger
from strandline.sinks.sql_stage import Rows, Staging
from strandline.sinks.sql_write import SparkFill
from strandline.testing import sink as contract
from strandline.testing.sink import ORDERS, RowChanges, at, batch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STAMP = {"postgresql": "timestamptz", "mysql": "timestamp(6) NULL"}


def orders(name: str = "orders", **settings: Any) -> Table:
    return contract.orders(name, **{"target": name, **settings})


def no_spark() -> SparkSession:
    raise AssertionError("Spark was asked for")


class Target:
    def __init__(self, url: str, spark: SparkSession) -> None:
        self.url, self.spark = url, spark
        self.execute: Execute = asked(url)
        self.kind = Endpoint.parse(url).scheme
        self.stamp = STAMP[self.kind]
        self.open: list[SqlSink] = []

    def sink(self, spark: Callable[[], SparkSession] | None = None, **options: str) -> SqlSink:
        sink = open_sink(Endpoint.parse(self.url, options), spark or (lambda: self.spark))
        assert isinstance(sink, SqlSink)
        self.open.append(sink)
        return sink

    def load(self, number: int, *rows: tuple[Any, ...], how: How = How.CHANGES, **settings: Any) -> Any:
        return self.sink().apply(orders(**settings), batch(number), RowChanges(rows), how=how)

    def rows(self, table: str = "orders") -> list[tuple[Any, ...]]:
        return sorted(self.execute(f"SELECT id, name FROM {table}"))

    def staged(self) -> list[str]:
        sql = "SELECT table_name FROM information_schema.tables WHERE table_name LIKE 'strandline_stage%'"
        return [name for (name,) in self.execute(f"{sql} AND table_schema IN ('public', '{self.database}')")]

    @property
    def database(self) -> str:
        return Endpoint.parse(self.url).path

    def close(self) -> None:
        for sink in self.open:
            sink.close()


@pytest.fixture
def postgres_target(pg_database: str, spark: SparkSession) -> Iterator[Target]:
    with closing(Target(pg_database, spark)) as target:
        yield target


@pytest.fixture(params=["pg_database", "mariadb_database"])
def target(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[Target]:
    with closing(Target(request.getfixturevalue(request.param), spark)) as target:
        yield target


def test_rows_of_a_task_that_ran_twice_come_once(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark ran a task again after it had committed; and once more while its rows are being moved."""
    bring, chosen = SparkFill.bring, Staging.rows

    def again(staging: Staging) -> None:
        columns = "c0, c1, c2, part"
        table = staging.place.table
        target.execute(f"INSERT INTO {table} ({columns}) SELECT {columns} FROM {table}")

    def brought(fill: SparkFill) -> None:
        bring(fill)
        again(fill.staging)

    def read(staging: Staging) -> Rows:
        rows = chosen(staging)
        again(staging)
        return rows

    monkeypatch.setattr(SparkFill, "bring", brought)
    monkeypatch.setattr(Staging, "rows", read)
    rows = [(number, "x", at(1)) for number in range(5)]
    applied = target.load(1, *rows, mode=Mode.APPEND, key=(), how=How.FRESH)
    assert (applied.rows_read, applied.rows_inserted) == (5, 5)
    assert target.rows() == [(number, "x") for number in range(5)]


def test_staging_tables_of_dead_attempts_are_dropped_and_others_left(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    class DiedError(Exception):
        pass

    def die(_: Staging) -> Rows:
        raise DiedError

    with monkeypatch.context() as patch:
        patch.setattr(Staging, "rows", die)
        patch.setattr(Staging, "drop", lambda _: None)
        for name in ("orders", "items"):
            with pytest.raises(DiedError):
                target.load(1, (1, "one", at(0)), name=name)
    assert len(target.staged()) == 2
    target.load(1, (1, "one", at(0)))
    assert len(target.staged()) == 1
    looking = target.sink(no_spark)
    looking.maintain(orders("items"))
    assert target.staged() == []


def test_looking_fencing_and_adopting_need_no_spark(target: Target) -> None:
    looking = target.sink(no_spark)
    assert looking.applied(orders()) is None
    target.load(1, (1, "one", at(0)))
    receipt = looking.applied(orders())
    assert receipt is not None and receipt.batch == batch(1)
    assert looking.apply(orders(), batch(1, attempt="b"), RowChanges([]), how=How.CHANGES) == receipt.applied
    fenced = looking.fence(orders(), 2)
    assert fenced is not None and (fenced.batch, fenced.epoch) == (batch(1), 2)
    assert looking.identity(orders()) == target.sink(no_spark).identity(orders())


def test_a_ledger_edited_by_hand_and_rows_without_one_are_refused(target: Target) -> None:
    target.load(1, (1, "one", at(0)))
    for edit in ("number = 7", "last_moved = 'yesterday'", "batch = '{}'"):
        target.execute(f"UPDATE strandline_ledger SET {edit}")
        with pytest.raises(TargetError, match=r"ledger's row for .*orders cannot be read") as refused:
            target.sink(no_spark).applied(orders())
        assert "sync --full" in refused.value.remedy
    target.execute("DROP TABLE strandline_ledger")
    with pytest.raises(TargetError, match="somebody else") as refused:
        target.sink(no_spark).applied(orders())
    assert "sync --full -t orders" in refused.value.remedy
    assert target.sink(no_spark).applied(orders(shared=True)) is None


def test_two_loaders_at_once_bring_a_batch_once(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both see the batch before it, and each fills a staging table: one waits for the other's transaction."""
    target.load(1, (1, "one", at(0)), mode=Mode.APPEND, key=())
    both, swept = threading.Barrier(2), Staging.sweep

    def together(staging: Staging) -> None:
        swept(staging)  # of what a third one left: these two are alive
        both.wait(300)

    monkeypatch.setattr(Staging, "sweep", together)
    table, changes = orders(mode=Mode.APPEND, key=()), RowChanges([(2, "two", at(1)), (3, "three", at(1))])
    with ThreadPoolExecutor(2) as pool:
        loads = [
            pool.submit(target.sink().apply, table, batch(2, attempt=attempt), changes, how=How.CHANGES)
            for attempt in ("a", "b")
        ]
        first, second = (load.result() for load in loads)
    assert first == second and first.rows_inserted == 2
    assert target.rows() == [(1, "one"), (2, "two"), (3, "three")]


def test_a_table_that_was_dropped_or_made_anew_holds_nothing_and_one_with_rows_is_believed(target: Target) -> None:
    target.load(5, (1, "one", at(0)))
    held = target.sink(no_spark).applied(orders())
    target.execute("UPDATE strandline_ledger SET made = 'before the backup'")
    assert target.sink(no_spark).applied(orders()) == held
    target.execute("DROP TABLE orders")
    assert target.sink(no_spark).applied(orders()) is None
    target.execute(f"CREATE TABLE orders (id bigint PRIMARY KEY, name varchar(9), at {target.stamp})")
    target.execute("UPDATE strandline_ledger SET made = 'the one before'")
    assert target.sink(no_spark).applied(orders()) is None
    target.load(1, (7, "seven", at(0)))
    assert target.rows() == [(7, "seven")]


def test_a_table_made_by_hand_is_filled_if_it_fits(target: Target) -> None:
    columns = f"id bigint PRIMARY KEY, name varchar(9), at {target.stamp}, loaded timestamp DEFAULT CURRENT_TIMESTAMP"
    target.execute(f"CREATE TABLE orders ({columns})")
    sink = target.sink(create="false")
    sink.apply(orders(schema="stop"), batch(1), RowChanges([(1, "one", at(0))]), how=How.FRESH)
    sink.apply(orders(schema="stop"), batch(2), RowChanges([(1, "uno", at(1))]), how=How.CHANGES)
    assert target.rows() == [(1, "uno")]
    with pytest.raises(TargetError, match="too long"):
        sink.apply(orders(), batch(3), RowChanges([(2, "more than nine", at(2))]), how=How.CHANGES)
    assert target.rows() == [(1, "uno")] and target.staged() == []


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ("id bigint PRIMARY KEY, name int, at {stamp}", "column name was int"),
        ("id bigint, name varchar(9), at {stamp}", "no unique index over the key"),
        ("id bigint PRIMARY KEY, name varchar(9), at {short}", "column at was"),
        ("id bigint PRIMARY KEY, at {stamp}, name varchar(9) GENERATED ALWAYS AS ('x') STORED", "is generated"),
    ],
    ids=["type", "key", "precision", "generated"],
)
def test_a_table_made_by_hand_that_does_not_fit_is_refused(target: Target, columns: str, told: str) -> None:
    short = {"postgresql": "timestamptz(3)", "mysql": "timestamp(3) NULL"}[target.kind]
    target.execute(f"CREATE TABLE orders ({columns.format(stamp=target.stamp, short=short)})")
    with pytest.raises(SchemaError, match=told) as refused:
        target.load(1, (1, "one", at(0)))
    assert refused.value.remedy


def test_where_there_is_no_table_or_schema_the_way_out_is_told(target: Target) -> None:
    with pytest.raises(TargetError, match="create: false"):
        target.sink(create="false").apply(orders(), batch(1), RowChanges([]), how=How.FRESH)
    with pytest.raises(TargetError, match=r'no (schema|database) "nowhere"') as refused:
        target.sink(no_spark).applied(orders(target="nowhere.orders"))
    assert "CREATE" in refused.value.remedy
    with pytest.raises(ConfigError, match="create is true or false"):
        target.sink(no_spark, create="perhaps")
    with pytest.raises(ConfigError, match="too long"):
        target.sink(no_spark).applied(orders(target="x" * 65))


def test_a_table_is_not_copied_onto_itself(target: Target, tmp_path: Path) -> None:
    stamp = target.stamp.removesuffix(" NULL")
    target.execute(f"CREATE TABLE orders (id bigint PRIMARY KEY, name varchar(9), at {stamp} NOT NULL)")
    host = target.url.replace("127.0.0.1", "localhost")
    pipeline = {"source": target.url, "target": host, "tables": [{"name": "orders", "cursor": "at"}]}
    path = tmp_path / "strandline.yml"
    path.write_text(yaml.safe_dump({"pipelines": {"shop": pipeline}}))
    with strandline.load(path) as project, pytest.raises(ConfigError, match="are one table"):
        project.plan("shop")


def test_keys_that_differ_in_case_accents_or_blanks_stay_apart(target: Target) -> None:
    schema, table = "id string, name string, at timestamp", orders(key=("id",))
    keys = ["a", "A", "á", "a ", "ß", "ss", ""]
    for number in (1, 2):
        rows = [(key, f"{number}", at(number)) for key in keys]
        applied = target.sink().apply(table, batch(number), RowChanges(rows, schema), how=How.CHANGES)
        assert applied.rows_inserted == (len(keys) if number == 1 else 0)
    assert sorted(target.execute("SELECT id, name FROM orders")) == sorted((key, "2") for key in keys)


def test_a_key_column_made_by_hand_that_mixes_texts_up_is_refused(mariadb_database: str, spark: SparkSession) -> None:
    with closing(Target(mariadb_database, spark)) as target:
        target.execute("CREATE TABLE orders (id varchar(9) COLLATE utf8mb4_general_ci PRIMARY KEY, name text)")
        changes = RowChanges([("a", "x")], "id string, name string")
        with pytest.raises(SchemaError, match="takes different texts for one") as refused:
            target.sink().apply(orders(cursor=None), batch(1), changes, how=How.FRESH)
        assert "utf8mb4_nopad_bin" in refused.value.remedy


def test_numbered_columns_take_the_sources_numbers(target: Target) -> None:
    numbered = {"postgresql": "bigint GENERATED ALWAYS AS IDENTITY", "mysql": "bigint AUTO_INCREMENT"}[target.kind]
    target.execute(f"CREATE TABLE orders (id {numbered} PRIMARY KEY, name varchar(9), at {target.stamp})")
    target.load(1, (0, "zero", at(0)), (7, "seven", at(0)))
    target.load(2, (7, "sette", at(1)))
    assert target.rows() == [(0, "zero"), (7, "sette")]


def test_columns_of_any_name_in_a_table_of_any_name(target: Target) -> None:
    long = "x" * 63
    schema = f'`Select` bigint, `select me` string, `{long}` string, `a"b` string, at timestamp'
    table = orders(target='"Order.Lines"', key=("Select",))
    sink = target.sink()
    for number in (1, 2):
        changes = RowChanges([(1, "a", "b", f"{number}", at(number))], schema)
        sink.apply(table, batch(number), changes, how=How.CHANGES)
    quoted = '"Order.Lines"' if target.kind == "postgresql" else "`Order.Lines`"
    assert [row[:4] for row in target.execute(f"SELECT * FROM {quoted}")] == [(1, "a", "b", "2")]
    receipt = sink.applied(table)
    assert receipt is not None and receipt.batch == batch(2)
    with pytest.raises(SchemaError, match="too long"):
        wide = RowChanges([], f"id bigint, `{'y' * 65}` string, at timestamp")
        sink.apply(orders("wide"), batch(1), wide, how=How.FRESH)


def test_a_text_with_nul_is_refused_by_its_columns_name(postgres_target: Target) -> None:
    with pytest.raises(SourceError, match='column "name" holds a text with the character NUL'):
        postgres_target.load(1, (1, "a\0b", at(0)))
    assert postgres_target.staged() == []


def test_what_a_database_cannot_hold_is_refused_by_name(target: Target) -> None:
    changes = RowChanges([], f"{ORDERS}, tree struct<a:int>")
    with pytest.raises(SchemaError, match='column "tree"'):
        target.sink().apply(orders(), batch(1), changes, how=How.FRESH)


def test_triggers_in_the_target_are_told_once(postgres_target: Target) -> None:
    target = postgres_target
    target.load(1, (1, "one", at(0)))
    target.execute(
        "CREATE FUNCTION noisy() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';"
        "CREATE TRIGGER noisy BEFORE UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION noisy()"
    )
    sink = target.sink()
    for number in (2, 3):
        sink.apply(orders(), batch(number), RowChanges([(1, "x", at(number))]), how=How.CHANGES)
    assert [text for _, text in sink.warnings if "triggers" in text] == [sink.warnings[0][1]]


def test_a_connection_that_is_lost_in_the_commit_leaves_the_outcome_open(postgres_target: Target) -> None:
    target = postgres_target
    target.load(1, (1, "one", at(0)))
    target.execute(
        "CREATE FUNCTION cut() RETURNS trigger LANGUAGE plpgsql AS "
        "'BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END';"
        "CREATE CONSTRAINT TRIGGER cut AFTER INSERT ON orders DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW EXECUTE FUNCTION cut()"
    )
    with pytest.raises(CommitUnknownError):
        target.load(2, (2, "two", at(1)))
    receipt = target.sink(no_spark).applied(orders())
    assert receipt is not None and receipt.batch == batch(1)
    target.execute("DROP TRIGGER cut ON orders")
    target.load(2, (2, "two", at(1)))
    assert target.rows() == [(1, "one"), (2, "two")]


@pytest.mark.parametrize("target", ["pg16_database"], indirect=True)
def test_older_servers_merge_in_statements_that_count_alike(target: Target) -> None:
    schema = f"{ORDERS}, op string"
    target.load(1, *((number, "old", at(5 if number == 4 else 0)) for number in range(1, 5)))
    rows = [(1, "", at(1), "delete"), (2, "new", at(1), None), (4, "older", at(1), "upsert"), (9, "nine", at(1), None)]
    applied = target.sink().apply(orders(), batch(2), RowChanges(rows, schema, "op"), how=How.CHANGES)
    assert (applied.rows_inserted, applied.rows_updated, applied.rows_deleted) == (1, 1, 1)
    assert target.rows() == [(2, "new"), (3, "old"), (4, "old"), (9, "nine")]


def test_a_type_that_the_target_does_not_know_becomes_text(postgres_target: Target) -> None:
    table = replace(
        orders(), columns=(Column("id", "bigint"), Column("name", "mood"), Column("at", "timestamp with time zone"))
    )
    postgres_target.sink().apply(
        replace(table, family="PostgreSQL"), batch(1), RowChanges([(1, "ok", at(0))]), how=How.FRESH
    )
    assert postgres_target.execute("SELECT pg_typeof(name)::text FROM orders") == [("text",)]


def test_many_tables_make_the_ledger_at_once(pg_database: str) -> None:
    """Two connections that create one table at the same moment trip over each other in PostgreSQL."""
    database = PostgresTarget(Endpoint.parse(pg_database))
    others = [database.another() for _ in range(8)]
    for round_ in range(10):
        place = Place("public", f"t{round_}")
        database.run("DROP TABLE IF EXISTS strandline_ledger")
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(Ledger.create, [Ledger(other, place) for other in others]))
    for other in (database, *others):
        other.close()

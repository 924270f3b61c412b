"""Everything Redshift is told, as text: a story of batches in golden files, and what must never be in them.

There is no Redshift to try it on. The files are read by people, each statement by sqlglot's Redshift dialect; the same
statements run on PostgreSQL in tests/contracts/test_redshift_sink.py. To write them anew: STRANDLINE_GOLDEN=write.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import sqlglot
from sqlglot import exp

from strandline.core.batch import Applied, Batch, How
from strandline.core.compare import Comparison, Cut, Form
from strandline.core.errors import ConfigError, SchemaError, StrandlineError, TargetError, TransientError
from strandline.core.events import Planned, TableFinished
from strandline.core.position import Reason, Status, TablePlan
from strandline.core.table import Column, Mode
from strandline.core.watermark import Kind, Watermark
from strandline.core.window import Extent, KeyHash, Repair, Slice, Window
from strandline.endpoint import Endpoint
from strandline.sinks import open_sink
from strandline.sinks.redshift import RedshiftTarget
from strandline.sinks.redshift_target import RedshiftDialect, manifest
from strandline.sinks.sql_dialect import Field, Place
from strandline.sinks.sql_files import FileSink
from strandline.sinks.sql_side import SqlSide
from strandline.testing.redshift import ROLE
from strandline.testing.sink import RowChanges, at, batch, orders

GOLDEN = Path(__file__).parent / "golden"
ENDPOINT = Endpoint.parse(f"redshift://loader@dw:5439/dw?iam_role={ROLE}&schema=shop")
COLUMNS = [("id", "bigint", False), ("name", "character varying(160)", True), ("at", "timestamp with time zone", True)]
SPARK = {"id": "long", "name": "string", "at": "timestamp", "_op": "string", "price": "decimal(10,2)"}


@dataclass
class OneFile:
    """A staged batch of so many rows."""

    names: Sequence[str]
    rows: int = 3

    @property
    def schema(self) -> str:
        listed = [(name.partition(":")[0], name.partition(":")[2] or SPARK[name]) for name in self.names]
        made = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in listed]
        return json.dumps({"type": "struct", "fields": made})

    @property
    def sizes(self) -> Mapping[str, int]:
        return {"s3://lake/stage/shop/orders/data/000000000007-a/part-0.parquet": 4711}

    def get(self, address: str) -> bytes:
        raise AssertionError(f"{address} is for Redshift to read")

    def put(self, name: str, _data: bytes) -> str:
        return f"s3://lake/stage/shop/orders/data/000000000007-a/{name}"


@dataclass
class Recorder(RedshiftTarget):
    """Notes what Redshift is told. Of what it is asked it knows this much."""

    columns: list[tuple[str, str, bool]] | None = None
    last: Batch | None = None
    told: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(ENDPOINT)

    def another(self) -> Recorder:
        return self

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        self.told.append(sql)
        if "FROM pg_namespace n LEFT JOIN" in sql:
            there = [] if self.columns is None else ["orders", *(["strandline_ledger"] if self.last else [])]
            return [(name, 7) for name in there if f"'{name}'" in sql] or [(None, None)]
        if "c.relkind FROM pg_class" in sql:
            return [] if self.columns is None else [(7, "r")]
        if "FROM pg_attribute" in sql:
            return [(name, kind, nullable, None, None) for name, kind, nullable in self.columns or []]
        if "AND c.relname LIKE" in sql:
            return [("strandline_stage_dead", 'strandline ["shop", "orders", "load", "orders"]')]
        if '"strandline_ledger" WHERE target' in sql:
            given = self.last or batch(1)
            held = [given.epoch, given.number, given.epoch, self.last and self.last.to_json()]
            return [("shop", "orders", "load", 1, "7", *held, 0, 0, 0, 0, None)]
        if "SELECT count(*), sum(" in sql:
            return [(3, 0, "2026-11-15 08:01:00")]
        if "min(" in sql:
            return [(None,)]
        if sql.startswith("SELECT count(*) FROM (SELECT DISTINCT"):
            return [(2,)]
        return [(0,)] if sql.startswith("SELECT count(*)") else []

    def run(self, sql: str) -> int:
        self.told.append(sql)
        if sql.startswith("CREATE TABLE") and '"orders"' in sql:
            self.columns = list(COLUMNS)
        return 1

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        self.told.append("BEGIN")
        yield self
        self.told.append("COMMIT")

    snapshot = transaction

    def cancel(self) -> None: ...


def story(
    how: How,
    names: Sequence[str] = ("id", "name", "at"),
    *,
    first: bool = False,
    repair: Repair | None = None,
    unique: bool = True,
    **settings: Any,
) -> list[str]:
    """What one batch tells Redshift, in order."""
    target = Recorder() if first else Recorder(list(COLUMNS), batch(6))
    sink = FileSink(ENDPOINT, target)
    source = (Column("ID", "bigint", False), Column("name", "varchar(40)", comment="as it's printed"))
    table = orders(target="Orders", columns=source, comment="what was ordered", **settings)
    operation = "_op" if "_op" in names else None
    changes = RowChanges([], files=OneFile(names), unique=unique, order=("at",), operation=operation)
    sink.apply(table, batch(1 if first else 7), changes, how=how, repair=repair)
    return target.told


def verify() -> list[str]:
    target = Recorder(list(COLUMNS), batch(6))
    held = target.find(Place("shop", "orders"))
    assert held is not None
    key, columns = (("Id", Form("whole")),), (("name", Form("text")), ("at", Form("timestamp")))
    high = Watermark(Kind.TIMESTAMP, f"{at(9)}")
    side = SqlSide(target, held, Comparison(orders(key=("Id",)), None, high, key, columns, ranged=True))
    side.oldest()
    side.sums(Cut(100, "Id", 0, 10))
    side.leave_out([("1",), ("2",)])
    side.rows([KeyHash(("whole",), 16, (3, 4))])
    return target.told


def fence() -> list[str]:
    target = Recorder(list(COLUMNS), batch(6))
    FileSink(ENDPOINT, target).fence(orders(target="orders"), 2)
    return target.told


def history() -> list[str]:
    """A table's run, from its plan to its end."""
    target, where = Recorder(), ("20261115-080000-a", "shop", "orders", "load:dw")
    window = Window(Watermark(Kind.VERSION, "7"), Watermark(Kind.VERSION, "9"))
    moved = [Watermark(Kind.TIMESTAMP, text) for text in ("2026-11-15 08:00:00.1234567", "2026-11-15 08:01:00")]
    written = FileSink(ENDPOINT, target).history(lambda _: Extent.of(*moved))
    plan = TablePlan("orders", "load:dw", window, (Slice(window),), Reason.INCREMENTAL)
    written.hear(Planned(*where, plan))
    written.hear(TableFinished(*where, Status.FAILED, Applied(4, 1, 2, 1), 1, 2.5, r"it's \ full"))
    return target.told


STORIES: dict[str, Callable[[], list[str]]] = {
    "first": lambda: story(How.FRESH, first=True),
    "merge": lambda: story(How.CHANGES, ("id", "name", "at", "_op"), unique=False),
    "text key": lambda: story(How.CHANGES, ("id", "name", "at", "_op"), unique=False, key=("name",)),
    "current": lambda: story(How.CURRENT),
    "append": lambda: story(How.CHANGES, mode=Mode.APPEND, key=()),
    "snapshot": lambda: story(How.CHANGES, mode=Mode.SNAPSHOT),
    "new column": lambda: story(How.CHANGES, ("id", "name", "at", "price")),
    "another type": lambda: story(How.REPLACE, ("id", "name:integer", "at")),
    "repair": lambda: story(
        How.REPAIR, ("id", "name", "at", "_op"), repair=Repair(KeyHash(("whole",), 16, (3, 4)), deletes=5)
    ),
    "verify": verify,
    "fence": fence,
    "history": history,
}
UNPARSED = ('LOCK TABLE "shop"."strandline_ledger"', "RESET statement_timeout")  # sqlglot only knows their first words
NEVER = (
    "ON CONFLICT", "DISTINCT FROM", "RETURNING", "UNLOGGED", "starts_with", "to_reg", "pg_control", "FILTER (", "now()",
    "GENERATED", "TRUNCATE", "MERGE INTO", "FOR UPDATE", "concat_ws", "bytea", "_send", "lock_timeout",
)  # fmt: skip


def told(name: str) -> list[str]:
    return [re.sub(r"(strandline_stage_a)_[0-9a-f]{8}", r"\1_12345678", sql).strip() for sql in STORIES[name]()]


@pytest.mark.parametrize("name", STORIES)
def test_redshift_is_told_what_the_golden_file_says(name: str) -> None:
    text = "".join(f"{sql};\n\n" for sql in told(name))
    file = GOLDEN / f"redshift-{name.replace(' ', '-')}.sql"
    if os.environ.get("STRANDLINE_GOLDEN") == "write":
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    assert text == file.read_text()


@pytest.mark.parametrize("name", STORIES)
def test_every_statement_is_redshifts_and_none_is_only_postgresqls(name: str) -> None:
    for sql in told(name):
        if sql not in UNPARSED:
            assert not isinstance(sqlglot.parse_one(sql, read="redshift"), exp.Command), sql
        assert not [word for word in NEVER if word in sql], sql
        assert not re.search(r"DELETE FROM \S+ (AS|USING)|ADD COLUMN [^;]*ADD COLUMN", sql), sql


@pytest.mark.parametrize(
    "name", ["first", "merge", "current", "append", "snapshot", "new column", "repair", "another type"]
)
def test_the_transaction_locks_and_moves_the_ledger_first_and_holds_no_ddl(name: str) -> None:
    blocks = "\n".join(told(name)).split("BEGIN\n")[1:]
    moving = [block.split("\nCOMMIT")[0].splitlines() for block in blocks if "SET epoch =" in block.split("COMMIT")[0]]
    ((lock, ledger, *rows),) = moving
    assert lock == 'LOCK TABLE "shop"."strandline_ledger"'
    assert ledger.startswith('UPDATE "shop"."strandline_ledger" SET epoch = 1, number = ')
    assert {line.split()[0] for line in rows} <= {"SELECT", "DELETE", "UPDATE", "INSERT"}


def test_a_second_row_in_the_ledger_stops_the_batch() -> None:
    class Doubled(Recorder):
        def run(self, sql: str) -> int:
            return 2 if super().run(sql) and "SET epoch" in sql else 1

    target = Doubled(list(COLUMNS), batch(6))
    sink = FileSink(ENDPOINT, target)
    with pytest.raises(TargetError, match=r"2 rows for shop\.orders"):
        changes = RowChanges([], files=OneFile(("id", "name", "at")))
        sink.apply(orders(target="orders"), batch(7), changes, how=How.CHANGES)
    assert not [sql for sql in target.told if '"orders"' in sql and sql.startswith(("UPDATE", "INSERT", "DELETE"))]


def test_a_key_of_another_type_is_refused_before_anything_is_deleted() -> None:
    target = Recorder(list(COLUMNS), batch(6))
    sink = FileSink(ENDPOINT, target)
    with pytest.raises(SchemaError, match=r"column id of shop\.orders") as refused:
        changes = RowChanges([], files=OneFile(("id:string", "name", "at")))
        sink.apply(orders(target="orders"), batch(7), changes, how=How.REPLACE)
    assert "DROP TABLE" in refused.value.remedy
    assert 'DELETE FROM "shop"."orders"' not in target.told


@pytest.mark.parametrize(
    ("spark", "source", "made", "staged"),
    [
        ("string", "varchar(40)", "character varying(160)", "character varying(65535)"),
        ("string", "character varying(20000)", "character varying(65535)", "character varying(65535)"),
        ("string", "uuid", "character varying(36)", "character varying(65535)"),
        ("string", "longtext", "character varying(65535)", "character varying(65535)"),
        ("binary", "", "binary varying(1024000)", "binary varying(1024000)"),
        ("decimal(38,37)", "", "numeric(38,37)", "numeric(38,37)"),
        ("decimal(38,38)", "", None, "HELD"),
        ("tinyint", "", "smallint", "smallint"),
        ("timestamp", "", "timestamp with time zone", "timestamp without time zone"),
        ("timestamp_ntz", "", "timestamp without time zone", "timestamp without time zone"),
        ("array<int>", "", None, "HELD"),
        ("struct<a:int>", "", None, "HELD"),
    ],
)
def test_types(spark: str, source: str, made: str | None, staged: str) -> None:
    dialect = RedshiftDialect()
    assert dialect.sql_type(Field(spark, source)) == made
    assert dialect.file_type(spark, "HELD") == staged
    assert made is None or spark == "tinyint" or dialect.takes(made, spark)


@pytest.mark.parametrize("held", ["super", "character(5)", "time without time zone", "geometry", "numeric(10,2)"])
def test_columns_that_would_change_a_value_do_not_fit(held: str) -> None:
    assert not any(RedshiftDialect().takes(held, spark) for spark in ("string", "binary", "timestamp", "decimal(12,2)"))


def test_names_are_folded_as_redshift_folds_them_and_texts_cannot_end_early() -> None:
    dialect = RedshiftDialect()
    assert dialect.string("O'Neill\\") == "'O''Neill\\\\'"
    assert dialect.place(Place("Shop", 'The "Orders"')) == '"shop"."the ""orders"""'
    deleted = dialect.delete_where(dialect.place(Place("s", "a.b")), "1 = 1", [Column("K", "bigint")])
    assert deleted.endswith('AND (t."k" = "a.b"."k"))')


def test_the_manifest_names_every_file_with_its_length() -> None:
    assert json.loads(manifest(OneFile(("id",)))) == {
        "entries": [
            {
                "url": "s3://lake/stage/shop/orders/data/000000000007-a/part-0.parquet",
                "mandatory": True,
                "meta": {"content_length": 4711},
            }
        ]
    }


def test_a_role_is_needed_and_may_be_the_clusters_own() -> None:
    with pytest.raises(ConfigError, match="no role") as refused:
        open_sink(Endpoint.parse("redshift://loader@dw:5439/dw"), lambda: pytest.fail("no Spark is needed"))
    assert "iam_role" in refused.value.remedy
    assert "IAM_ROLE default FORMAT" in RedshiftDialect().copy(Place("s", "t"), "s3://m", "default")


@pytest.mark.parametrize(
    ("said", "kind", "remedy"),
    [
        ("1023 DETAIL: Serializable isolation violation on table - 7", TransientError, ""),
        ("value too long for type character varying(160)", TargetError, "65,535 bytes"),
        ("S3ServiceException:Access Denied,Status 403", TargetError, "iam_role"),
        ("permission denied for schema shop", TargetError, "CREATE"),
    ],
)
def test_what_redshift_says_becomes_what_a_person_can_do(said: str, kind: type[StrandlineError], remedy: str) -> None:
    found = RedshiftTarget(ENDPOINT).fault("XX000", said)
    assert type(found) is kind and remedy in found.remedy

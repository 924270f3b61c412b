"""The statements of SQL targets, as text: what each database is told."""

from __future__ import annotations

from typing import Any

import pytest

from strandline.core.batch import Applied, How
from strandline.core.table import Column, Mode
from strandline.core.watermark import Cursor, Kind
from strandline.core.window import KeyRange, Repair
from strandline.sinks.mysql_target import MySqlTargetDialect
from strandline.sinks.postgres_target import PostgresTargetDialect
from strandline.sinks.sql_dialect import Field, Held, Place, TargetDialect
from strandline.sinks.sql_ledger import create_text
from strandline.sinks.sql_merge import Merge
from strandline.sinks.sql_stage import Pair, Rows, last_moved
from strandline.testing.sink import orders

COLUMNS = (Column("id", "bigint", nullable=False), Column("na me", "text"), Column("at", "timestamp(6)"))
HELD = Held(Place("shop", "orders"), COLUMNS, (frozenset({"id"}),))
OLD, NEW, MARIA = PostgresTargetDialect(14), PostgresTargetDialect(17), MySqlTargetDialect(mariadb=True)


def merge(dialect: TargetDialect, **settings: Any) -> Merge:
    pairs = tuple(Pair(column, f"c{at}") for at, column in enumerate(COLUMNS))
    return Merge(dialect, orders(**settings), HELD, Rows("(ROWS)", pairs, operation=True, read=Applied()))


def test_the_last_value_moved_is_that_of_the_cursor_column_and_no_version() -> None:
    pairs = [Pair(Column("version", "bigint"), "c0")]
    assert "max(c0)" in last_moved(NEW, orders(cursor=Cursor("version", Kind.INTEGER)), pairs)
    assert last_moved(NEW, orders(cursor=Cursor("version", Kind.VERSION)), pairs) == "NULL"


def test_a_merge_is_one_statement_where_it_can_count() -> None:
    (step,) = merge(NEW).steps(How.CHANGES)
    assert step.counts == ("inserted", "updated", "deleted")
    assert step.sql.splitlines() == [
        'WITH done AS (MERGE INTO "shop"."orders" AS t USING (ROWS) AS s ON t."id" = s.c0',
        """WHEN MATCHED AND s.op = 'delete' AND (t."at" IS NULL OR s.c2 >= t."at") THEN DELETE""",
        """WHEN MATCHED AND (s.op = 'delete') IS NOT TRUE AND (t."at" IS NULL OR s.c2 >= t."at") THEN UPDATE SET """
        '"id" = s.c0, "na me" = s.c1, "at" = s.c2',
        """WHEN NOT MATCHED AND (s.op = 'delete') IS NOT TRUE THEN INSERT ("id", "na me", "at") """
        "VALUES (s.c0, s.c1, s.c2)",
        "RETURNING merge_action() AS act) SELECT count(*) FILTER (WHERE act = 'INSERT'), "
        "count(*) FILTER (WHERE act = 'UPDATE'), count(*) FILTER (WHERE act = 'DELETE') FROM done",
    ]


@pytest.mark.parametrize("dialect", [OLD, MARIA], ids=["postgres 14", "mariadb"])
def test_elsewhere_deletes_updates_and_inserts_are_counted_one_by_one(dialect: TargetDialect) -> None:
    steps = merge(dialect).steps(How.CHANGES)
    assert [step.counts for step in steps] == [("deleted",), ("updated",), ("inserted",)]
    assert [step.sql.split()[0] for step in steps] == ["DELETE", "UPDATE", "INSERT"]


def test_mysql_joins_where_postgresql_has_from() -> None:
    _, update, insert = merge(MARIA).steps(How.CURRENT)
    assert update.sql == (
        "UPDATE `shop`.`orders` AS t JOIN (ROWS) AS s ON t.`id` = s.c0 AND (s.op IS NULL OR s.op <> 'delete') "
        "AND 1 = 1 SET t.`id` = s.c0, t.`na me` = s.c1, t.`at` = s.c2"
    )
    assert insert.sql == (
        "INSERT INTO `shop`.`orders` (`id`, `na me`, `at`) SELECT s.c0, s.c1, s.c2 FROM (ROWS) s "
        "WHERE (s.op IS NULL OR s.op <> 'delete') AND NOT EXISTS (SELECT 1 FROM `shop`.`orders` t WHERE t.`id` = s.c0)"
    )


@pytest.mark.parametrize("how", [How.CHANGES, How.FRESH])
def test_append_adds_every_version_and_a_first_load_only_what_lives(how: How) -> None:
    (added,) = merge(NEW, mode=Mode.APPEND).steps(how)
    assert "s.op" not in added.sql
    (first,) = merge(NEW).steps(How.FRESH)
    assert "s.op <> 'delete'" in first.sql and "MERGE" not in first.sql


def test_replacing_deletes_and_never_truncates() -> None:
    clear, insert = merge(NEW).steps(How.REPLACE)
    assert (clear.sql, clear.counts) == ('DELETE FROM "shop"."orders"', ())
    assert insert.counts == ("inserted",)


def test_a_repair_touches_what_differs_and_deletes_only_if_it_may() -> None:
    part = KeyRange("id", 1, 9)
    kinds = [step.counts[0] for step in merge(NEW).repair(Repair(part))]
    assert kinds == ["deleted", "updated", "inserted"]
    extra, *rest = merge(NEW).repair(Repair(part, deletes=3))
    assert extra.sql.startswith('DELETE FROM "shop"."orders" AS t WHERE (t."id" >= 1 AND t."id" < 9) AND NOT EXISTS')
    assert len(rest) == 3
    assert "IS DISTINCT FROM" in rest[1].sql


def test_no_statement_of_a_batch_ends_its_transaction() -> None:
    for dialect in (OLD, NEW, MARIA):
        steps = [step for how in list(How)[:-1] for step in merge(dialect).steps(how)]
        steps += merge(dialect, mode=Mode.APPEND).repair(Repair(KeyRange("id", None, None), 9))
        for step in steps:
            assert not {"CREATE", "ALTER", "DROP", "TRUNCATE"} & set(step.sql.upper().split())


@pytest.mark.parametrize(
    ("field", "postgres", "mysql"),
    [
        (Field("string"), "text", "longtext"),
        (Field("string", "uuid", key=1), "text", f"varchar(36) {MARIA.exact_text}"),
        (Field("string", "character varying(40)", key=2), "text", f"varchar(40) {MARIA.exact_text}"),
        (Field("string", "", key=4), "text", f"varchar(192) {MARIA.exact_text}"),
        (Field("decimal(38,31)"), "numeric(38,31)", None),
        (Field("array<int>"), "integer[]", None),
        (Field("array<array<int>>"), None, None),
        (Field("map<string,int>"), None, None),
        (Field("timestamp"), "timestamp with time zone", "timestamp(6)"),
    ],
)
def test_types(field: Field, postgres: str | None, mysql: str | None) -> None:
    assert (NEW.sql_type(field), MARIA.sql_type(field)) == (postgres, mysql)


@pytest.mark.parametrize(("source", "own"), [("varchar", None), ("time", "time(6)"), ("varchar(9)", "varchar(9)")])
def test_words_of_a_query_that_leave_a_length_out_are_not_taken(source: str, own: str | None) -> None:
    assert MARIA.own(Field("string", source)) == own


@pytest.mark.parametrize("held", ["timestamp(3) with time zone", "timestamp(0) without time zone", "character(5)"])
def test_a_column_that_would_round_or_pad_does_not_fit(held: str) -> None:
    assert not any(NEW.takes(held, spark) for spark in ("timestamp", "timestamp_ntz", "string"))


@pytest.mark.parametrize("held", ["datetime", "datetime(3)", "timestamp", "char(5)", "float(7,2)"])
def test_nor_on_mysql(held: str) -> None:
    assert not any(MARIA.takes(held, spark) for spark in ("timestamp", "timestamp_ntz", "string", "float"))


def test_the_ledger_keeps_names_apart_that_differ_in_case() -> None:
    assert 'COLLATE "C"' in create_text(NEW, Place("s", "t"))
    assert "utf8mb4_nopad_bin" in create_text(MARIA, Place("s", "t"))
    assert "utf8mb4_0900_bin" in create_text(MySqlTargetDialect(mariadb=False), Place("s", "t"))

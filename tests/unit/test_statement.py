"""A statement is shown without a single value of it."""

from __future__ import annotations

import pytest

from strandline.cli import text
from strandline.core.position import Holder
from strandline.sources.statement import LENGTH, without_literals


@pytest.mark.parametrize(
    ("sql", "shown"),
    [
        ("SELECT 1", "SELECT ?"),
        ("UPDATE t SET name = 'Ann' WHERE id = 42", "UPDATE t SET name = ? WHERE id = ?"),
        ("SELECT 'it''s', ''", "SELECT ?, ?"),
        (r"SELECT E'a\n', U&'\0041', X'1F', B'101', N'a'", "SELECT ?, ?, ?, ?, ?"),
        ("SELECT $$secret 'x'$$, $tag$ $$ secret $tag$", "SELECT ?, ?"),
        ('UPDATE "my ""table" SET "a" = 1', 'UPDATE "my ""table" SET "a" = ?'),
        ("VALUES (1.5, .5, 1e-9, 0xFF, 1_000, -7)", "VALUES (?, ?, ?, ?, ?, -?)"),
        ("SELECT a1, t2.b, $1, x::int4, arr[1:5]", "SELECT a1, t2.b, $1, x::int4, arr[?:?]"),
        ("SELECT a -- it's secret\nFROM t", "SELECT a FROM t"),
        ("SELECT /* secret 'x */ a\n\n   FROM t", "SELECT a FROM t"),
        ("ALTER ROLE app PASSWORD 'hunter2'", "ALTER ROLE app PASSWORD ?"),
        ("SELECT interval '1 day', DATE'2026-01-01'", "SELECT interval ?, DATE?"),
        ("", ""),
    ],
)
def test_values_and_comments_go_and_names_stay(sql: str, shown: str) -> None:
    assert without_literals(sql) == shown


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 'secret",  # the server cut it
        "SELECT $$secret",
        "SELECT $a$secret$b$",
        "SELECT a /* secret",
        "SELECT /* /* */ secret */ 1",
        r"SELECT E'it\'s secret', 1",
        r"SELECT 'C:\', 'secret'",
        r"SELECT 'it\'s secret'",
        r"SELECT 'a\\', 'secret'",
    ],
)
def test_what_cannot_be_told_from_a_value_is_cut_off(sql: str) -> None:
    shown = without_literals(sql)
    assert "secret" not in shown
    assert shown.endswith("…")


@pytest.mark.parametrize(
    ("sql", "shown"),
    [
        ("INSERT INTO `t 1` VALUES (\"secret\", 'secret')", "INSERT INTO `t 1` VALUES (?, ?)"),
        ("SELECT _utf8mb4'secret', @var, x'1F' # secret\nFROM t", "SELECT ?, @var, ? FROM t"),
        ("SELECT /*! secret */ 1", "SELECT ?"),
        ('SELECT "a""secret"', "SELECT ?"),
        (r'SELECT "a\"secret", 5', "SELECT …"),
    ],
)
def test_double_quotes_are_strings_where_the_database_says_so(sql: str, shown: str) -> None:
    assert without_literals(sql, double_quotes=True) == shown


def test_a_long_statement_is_cut_short() -> None:
    shown = without_literals("SELECT " + "a, " * 1000)
    assert len(shown) == LENGTH
    assert shown.endswith("…")


def test_a_holder_is_shown_with_what_it_runs_if_that_is_known() -> None:
    assert text.holder(Holder("4711", "app", 660)) == "transaction 4711 (app) open for 11 min"
    shown = text.holder(Holder("4711", "app", 660, "UPDATE t SET a = ?"))
    assert shown == "transaction 4711 (app) open for 11 min: UPDATE t SET a = ?"

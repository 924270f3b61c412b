"""What differs between databases in SQL text: quoting, literals, and how each type is read exactly.

Owns text only: nothing here talks to a server. Predicates are rendered once, for planning and for Spark alike.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from strandline.core.compare import Form
from strandline.core.errors import SourceError
from strandline.core.table import Column, Mode, Table
from strandline.core.watermark import Cursor, Watermark
from strandline.core.window import KeyHash, KeyRange, Part, Slice, Window
from strandline.verify.canonical import NULL


@dataclass(frozen=True)
class Carried:
    """How a column is read: an SQL expression, the Spark type it arrives as, and what Spark makes of it."""

    expression: str
    spark: str
    value: str = "{}"
    portable: Carried | None = None  # instead, where Spark's JVM is not known to run in UTC
    made: str = ""  # the type of `value`, where it is another than the one that arrives

    @property
    def type(self) -> str:
        """The Spark type that the column has in the end, as `simpleString` spells it."""
        return (self.made or self.spark).lower()


REFUSED = "strandline refuses"
"""Starts every text that a guard in a read raises; `refusal` finds it in whatever error arrives."""


def refusal(text: str, text_type: str) -> SourceError | None:
    """The error of a guard that stopped a read because Spark would have changed a value.

    Spark shows the statement with any error: there the guard's text is followed by its end quote, not by a value.
    """
    found = re.search(rf"{REFUSED} column [^\n]*? with the value (?!')[^\n]*?(?=\"|$|\n| SQLSTATE)", text)
    if found is None:
        return None
    return SourceError(
        found[0],
        why="No Spark value equals it, so it would be changed silently.",
        remedy='Correct the value, leave the row out by where, or read the column as text:   columns: ["name::'
        + text_type
        + '"]',
        docs="docs/types.md#times",
    )


class Dialect(Protocol):
    name: str
    text_type: str  # what a column is cast to for its text form
    no_rows: str  # what follows the rows (bucket, number) that are summed, for the planner's sake

    def quote(self, identifier: str) -> str:
        """Any identifier, made safe."""

    def string(self, text: str) -> str:
        """A string literal."""

    def literal(self, cursor: Cursor, value: Watermark) -> str:
        """A cursor value in full precision, in the database's own terms."""

    def text(self, cursor: Cursor, expression: str) -> str:
        """SQL that renders a cursor value as a watermark's canonical text."""

    def relation(self, table: Table) -> str:
        """What follows FROM, with the alias `t`."""

    def cursor(self, column: Column) -> Cursor | None:
        """The column as a cursor; None: its type cannot be one. Zone-less cursors come with zone ''."""

    def carry(self, column: Column) -> Carried:
        """How to read the column; SourceError if no Spark type holds it exactly."""

    def checksum(self, columns: Sequence[str]) -> str:
        """An aggregate over rows, in whatever order they come, that is another one if any value is another."""

    def deleted(self, column: Column) -> str:
        """SQL that is true for a row this soft-delete column marks as deleted."""

    def whole(self, column: Column) -> bool:
        """Whether the column holds whole numbers that key ranges can be cut by."""

    def form(self, column: Column) -> Form | None:
        """The form in which the column is compared with its copy; None: it cannot be."""

    def canonical(self, column: Column, form: Form) -> str:
        """SQL for the column's canonical text in a form that it shares (`verify.canonical`); NULL stays NULL."""

    def counted(self, column: Column, form: Form, hash: str, /) -> str:
        """SQL for a column's value as a number of 64 bits, where its form is one; NULL stays NULL. `hash`: of texts, as
        the comparison has it."""

    def hashed(self, texts: Sequence[str]) -> str:
        """SQL for the MD5, in hexadecimal, of texts joined, none of them NULL."""

    def number(self, texts: Sequence[str], hash: str) -> str:
        """SQL for a hash of texts joined, none of them NULL, as a number of 32 bits."""

    def bucket(self, column: Column, low: int, width: int) -> str:
        """SQL for (column - low) / width, whole numbers; only asked where the column is at least `low`."""


def column_of(dialect: Dialect, name: str) -> str:
    return f"t.{dialect.quote(name)}"


def within(dialect: Dialect, table: Table, low: Watermark | None, high: Watermark, nulls: bool = False) -> list[str]:
    """Conditions, to be joined by AND, for `[low, high)` of the cursor and the table's own filter."""
    conditions = [f"({table.where}\n)"] if table.where else []
    if table.cursor is None:
        return conditions
    column = column_of(dialect, table.cursor.column)
    bounds = [f"{column} < {dialect.literal(table.cursor, high)}"]
    if low is not None:
        bounds.insert(0, f"{column} >= {dialect.literal(table.cursor, low)}")
    inside = " AND ".join(bounds)
    return [*conditions, f"({inside} OR {column} IS NULL)" if nulls else inside]


def in_window(dialect: Dialect, table: Table, window: Window, nulls: bool = False) -> str:
    return " AND ".join(within(dialect, table, window.low, window.high, nulls)) or "1 = 1"


def in_slice(dialect: Dialect, table: Table, slice: Slice) -> str:
    """Everything a slice reads: its window from the read bound on, its key range, its NULL cursors."""
    if slice.repair:
        return in_repair(dialect, table, slice, slice.repair.part)
    conditions = within(dialect, table, slice.low, slice.window.high, slice.nulls)
    if slice.keys:
        conditions.append(in_keys(dialect, slice.keys))
    return " AND ".join(conditions) or "1 = 1"


def in_repair(dialect: Dialect, table: Table, slice: Slice, part: Part) -> str:
    """A part of the keys; below the watermark only where a row's versions are kept."""
    if table.mode is Mode.APPEND:
        conditions = within(dialect, table, slice.low, slice.window.high)
    else:
        conditions = [f"({table.where}\n)"] if table.where else []
    return " AND ".join([*conditions, f"({in_part(dialect, table, part)})"])


def in_part(dialect: Dialect, table: Table, part: Part) -> str:
    return in_keys(dialect, part) if isinstance(part, KeyRange) else in_hash(dialect, table, part)


def in_hash(dialect: Dialect, table: Table, part: KeyHash) -> str:
    columns = {column.name: column for column in table.columns}
    forms = zip(table.key, part.forms, strict=True)
    number = dialect.number([marked(dialect, columns[name], Form.parse(form)) for name, form in forms], part.hash)
    return f"({number} % {part.modulo}) IN ({', '.join(map(str, part.remainders))})"


def marked(dialect: Dialect, column: Column, form: Form) -> str:
    """SQL for the column's canonical text, or the mark of NULL."""
    text = dialect.canonical(column, form)
    return f"COALESCE({text}, '{NULL}')" if column.nullable else text


def in_keys(dialect: Dialect, keys: KeyRange) -> str:
    column = column_of(dialect, keys.column)
    bounds = [f"{column} >= {keys.low}"] if keys.low is not None else []
    bounds += [f"{column} < {keys.high}"] if keys.high is not None else []
    return " AND ".join(bounds) or "1 = 1"


def integer(value: Watermark) -> str:
    """Digits as they are; a sign in parentheses, so that it binds as part of the number."""
    return f"({value.text})" if value.text.startswith("-") else value.text

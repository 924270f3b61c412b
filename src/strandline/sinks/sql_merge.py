"""What one batch does to a target, as statements: the MERGE rules, in each mode, and a repair.

A newer row is never overwritten or deleted and an equal one is refreshed, so repeats are safe. A row without a cursor
value (`nulls: include`) is read with every run, so what it says is current. SQL text only; `t` is the target, `s` the
rows of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from strandline.core.batch import How
from strandline.core.table import Mode, Table
from strandline.core.watermark import Kind
from strandline.core.window import Repair
from strandline.sinks.sql_dialect import Held, Matched, Step, TargetDialect
from strandline.sinks.sql_stage import Pair, Rows
from strandline.sources.dialect import in_part


@dataclass(frozen=True)
class Merge:
    """The statements of one batch."""

    dialect: TargetDialect
    table: Table
    held: Held
    rows: Rows

    def steps(self, how: How) -> list[Step]:
        keyed = self.table.mode is Mode.MERGE
        if how is How.REPLACE:
            return [Step(f"DELETE FROM {self._target}"), self._insert([self.rows.alive])]
        if not keyed:
            return [self._insert([])]  # a log of versions keeps those of deleted rows too
        if how is How.FRESH:
            return [self._insert([self.rows.alive])]
        return self._changes(self._newer() if how is How.CHANGES else "1 = 1")

    def repair(self, repair: Repair) -> list[Step]:
        """Make a part of the target equal to the rows; what may be deleted was counted before (`extras`)."""
        append, part = self.table.mode is Mode.APPEND, self._part(repair)
        on, known = self._on(self._identity), [pair.column for pair in self._identity]
        steps = []
        if repair.deletes is not None and not append:
            steps.append(Step(self.dialect.delete_where(self._target, self._extra(part), known), ("deleted",)))
        if self.rows.gone and not append:
            marked = f"{on} AND {self.rows.gone} AND {part}"
            steps.append(Step(self.dialect.delete(self._target, self.rows.relation, marked, known), ("deleted",)))
        if frozenset(self.table.key) not in self.held.unique:
            steps.append(Step(self.dialect.delete(self._target, self._repeated(part), on, known), ("deleted",)))
        alive = "1 = 1" if append else self.rows.alive
        values = [(f"t.{self._quoted(pair)}", f"s.{pair.staged}", pair.column.type) for pair in self.rows.pairs]
        other = f"{on} AND {alive} AND {part} AND {self.dialect.differs(values)}"
        steps.append(Step(self.dialect.update(self._target, self._sets, self.rows.relation, other), ("updated",)))
        return [*steps, self._insert([alive, self._missing(on)])]

    def extras(self, repair: Repair) -> str:
        """Counts the rows of the part that the batch does not have."""
        return f"SELECT count(*) FROM {self._target} t WHERE {self._extra(self._part(repair))}"

    def _changes(self, newer: str) -> list[Step]:
        on, numbered, gone = self._on(self._keys), bool(self.held.numbered), self.rows.gone
        columns = [(self._quoted(pair), pair.staged) for pair in self.rows.pairs]
        rows = self.rows
        matched = Matched(
            self._target, columns, self._sets, rows.relation, on, newer, gone, numbered, rows.query, rows.last
        )
        merge = self.dialect.merge(matched)
        if merge is not None:
            return [merge]
        relation, alive = self.rows.relation, self.rows.alive
        steps = []
        if gone:
            known = [pair.column for pair in self._keys]
            marked = f"{on} AND {gone} AND {newer}"
            steps.append(Step(self.dialect.delete(self._target, relation, marked, known), ("deleted",)))
        if self._sets:
            alive_on = f"{on} AND {alive} AND {newer}"
            steps.append(Step(self.dialect.update(self._target, self._sets, relation, alive_on), ("updated",)))
        return [*steps, self._insert([alive, self._missing(on)])]

    def _insert(self, conditions: Sequence[str]) -> Step:
        columns = [self._quoted(pair) for pair in self.rows.pairs]
        staged = ", ".join(f"s.{pair.staged}" for pair in self.rows.pairs)
        where = " AND ".join(conditions) or "1 = 1"
        select = f"SELECT {staged} FROM {self.rows.relation} s WHERE {where}"
        override = self.dialect.overriding if self.held.numbered else ""
        return Step(f"INSERT INTO {self._target} ({', '.join(columns)}){override} {select}", ("inserted",))

    @property
    def _target(self) -> str:
        return self.dialect.place(self.held.place)

    @property
    def _keys(self) -> list[Pair]:
        fold = self.dialect.fold
        pairs = {fold(pair.column.name): pair for pair in self.rows.pairs}
        return [pairs[fold(name)] for name in self.table.key]

    @property
    def _identity(self) -> list[Pair]:
        """What a row is known by; where versions are kept, each by its cursor too."""
        cursor = self._cursor() if self.table.mode is Mode.APPEND else None
        return [*self._keys, *([cursor] if cursor and cursor not in self._keys else [])]

    @property
    def _sets(self) -> list[tuple[str, str]]:
        pairs = [pair for pair in self.rows.pairs if pair.column.name not in self.held.numbered]
        return [(self._quoted(pair), f"s.{pair.staged}") for pair in pairs]

    def _on(self, pairs: Sequence[Pair]) -> str:
        """Keys of the batch are never NULL (checked before), so plain equality is right, and quick; a cursor can be."""
        texts = []
        for pair in pairs:
            one, other = f"t.{self._quoted(pair)}", f"s.{pair.staged}"
            keyed = pair in self._keys
            texts.append(self.dialect.equal(one, other, pair.column.type) if keyed else self.dialect.same(one, other))
        return " AND ".join(texts)

    def _newer(self) -> str:
        pair = self._cursor()
        if pair is None:
            return "1 = 1"
        held, given = f"t.{self._quoted(pair)}", f"s.{pair.staged}"
        unmarked = f"{given} IS NULL OR " if self.table.nulls == "include" else ""
        return f"({unmarked}{held} IS NULL OR {given} >= {held})"

    def _cursor(self) -> Pair | None:
        """The cursor where its values can be compared: among the columns, and not a version."""
        cursor = self.table.cursor
        if cursor is None or cursor.kind is Kind.VERSION:
            return None
        fold = self.dialect.fold
        return next((pair for pair in self.rows.pairs if fold(pair.column.name) == fold(cursor.column)), None)

    def _quoted(self, pair: Pair) -> str:
        return self.dialect.quote(pair.column.name)

    def _part(self, repair: Repair) -> str:
        held = self.held.spelled(self.table.key, self.dialect.fold)
        return f"({in_part(self.dialect, replace(self.table, columns=held), repair.part)})"

    def _extra(self, part: str) -> str:
        return f"{part} AND NOT EXISTS (SELECT 1 FROM {self.rows.relation} s WHERE {self._on(self._identity)})"

    def _missing(self, on: str) -> str:
        return f"NOT EXISTS (SELECT 1 FROM {self._target} t WHERE {on})"

    def _repeated(self, part: str) -> str:
        """The rows of the batch that lie in the part more than once."""
        known = [f"t.{self._quoted(pair)}" for pair in self._identity]
        named = ", ".join(f"{name} AS k{at}" for at, name in enumerate(known))
        several = f"SELECT {named} FROM {self._target} t WHERE {part} GROUP BY {', '.join(known)} HAVING count(*) > 1"
        same = " AND ".join(self.dialect.same(f"d.k{at}", f"r.{pair.staged}") for at, pair in enumerate(self._identity))
        return f"(SELECT r.* FROM {self.rows.relation} r JOIN ({several}) d ON {same})"

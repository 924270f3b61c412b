"""What relational sources share: horizons over one barrier, what is pending, slices, and the changes of a slice.

Owns the questions and their order. How a database is asked (catalog, clock, barrier, sequences) is each source's own;
what is asked travels over the planning connection, never over the connections that read data.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Protocol

from strandline.core.compare import Comparison, Form
from strandline.core.errors import SourceError, StrandlineError
from strandline.core.position import Holder, Horizon
from strandline.core.table import Column, Table, TableInfo
from strandline.core.watermark import Cursor, Kind, Watermark
from strandline.core.window import Slice, Window, by_cursor, by_key
from strandline.sources.dialect import Dialect, column_of, in_slice, in_window
from strandline.sources.jdbc import JdbcChanges, Reader, Tiles
from strandline.sources.resolve import Server, resolve
from strandline.sources.side import DatabaseSide
from strandline.sources.zones import local

CHUNK = 200
"""Tables asked about in one statement."""


class Session(Protocol):
    """The planning connection: autocommit, read-only, in UTC."""

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Run one statement. SourceError: the statement is at fault; TransientError or ConnectError: the server."""

    def close(self) -> None: ...


Barrier = Callable[[], Holder | None]
"""Notes everything in flight and waits until all of it has ended; whoever has not in time is returned."""
_COUNTED = 2_000
_SAMPLE, _SAMPLE_OF_A_PART = 100_000, 10_000  # rows: a part is then right to about a tenth
_WORTH_SAMPLING = 0.5
_MAY_BE_LARGE = 100  # rows; fewer are not worth the question
EMPTY = "the table is empty"


class DatabaseSource(ABC):
    """One database as a source. Errors of one table never disturb the others.

    `barrier` None: nothing stands behind the horizons, and tables re-read what may have come late.
    """

    def __init__(
        self,
        session: Session,
        dialect: Dialect,
        reader: Reader,
        *,
        guard: timedelta,
        barrier: Barrier | None,
        readers: int | None,
    ) -> None:
        self.session = session
        self.dialect = dialect
        self.reader = reader
        self.guard = guard
        self.barrier = barrier
        self.readers = readers or os.cpu_count() or 1
        self.warnings: list[tuple[str, str]] = []

    @abstractmethod
    def identity(self) -> str: ...

    @abstractmethod
    def find(self, patterns: Sequence[str]) -> dict[str, TableInfo | StrandlineError]:
        """Every table and view that a name or glob matches, as `tables` gives them."""

    @abstractmethod
    def describe(self, sql: str) -> tuple[Column, ...]:
        """A statement's columns as the server describes them. No row is read."""

    @abstractmethod
    def server(self) -> Server:
        """The server's clock and zone, read once per session."""

    @abstractmethod
    def clock(self) -> str:
        """T0: the database's clock, in UTC. SourceError where the barrier cannot work: a standby, a replica."""

    @abstractmethod
    def tops(self, tables: Sequence[Table]) -> dict[str, Horizon | StrandlineError]:
        """For integer cursors: the horizon as it will be if everything now in flight ends."""

    @abstractmethod
    def estimate(self, table: Table, condition: str) -> int | None:
        """The optimizer's guess of the rows that meet a condition."""

    def tables(self, patterns: Sequence[str], queries: Mapping[str, str]) -> dict[str, TableInfo | StrandlineError]:
        found = self.find(patterns) if patterns else {}
        return {**found, **{name: self._described(name, query) for name, query in queries.items()}}

    def _described(self, name: str, query: str) -> TableInfo | StrandlineError:
        try:
            return TableInfo(name, self.describe(f"SELECT * FROM ({query}\n) t LIMIT 0"), kind="query")
        except SourceError as error:
            return SourceError(f"the query cannot be run: {error.message}", where=name)

    def cast_type(self, cast: str) -> str:
        """A type a person wrote, in the database's own words."""
        return self.describe(f"SELECT CAST(NULL AS {cast})")[0].type

    def resolve(self, table: Table, info: TableInfo, zone: str | None) -> Table:
        resolved, warnings = resolve(self, table, info, zone)
        self.warnings += [(table.name, text) for text in warnings if (table.name, text) not in self.warnings]
        return resolved

    def horizons(self, tables: Sequence[Table]) -> dict[str, Horizon | StrandlineError]:
        """T0 and the highest ids come first, then the barrier: what is noted later than T0 covers all before it."""
        at = self.clock()
        found = self.tops([table for table in tables if table.cursor and table.cursor.kind is Kind.INTEGER])
        guarded = [table for table in tables if table.cursor and not isinstance(found.get(table.name), StrandlineError)]
        holder = self.barrier() if guarded and self.barrier else None
        for table in tables:
            if table.cursor is None:
                found[table.name] = Horizon(Watermark(Kind.TIMESTAMP, at))
            elif table.cursor.kind is not Kind.INTEGER:
                found[table.name] = Horizon(_bound(table.cursor, at, self.guard))
        found |= self._all_null([table for table in tables if found[table.name] == Horizon(None, note=EMPTY)])
        return {table.name: self._horizon(found[table.name], table, at, holder) for table in tables}

    def _all_null(self, tables: Sequence[Table]) -> dict[str, SourceError]:
        """Tables that show no cursor value at all and yet are not empty."""
        asked = {table.name: table for table in tables if table.cursor and table.cursor.nullable}
        rows = self.each(
            list(asked.values()),
            lambda table: table.name,
            lambda table: f"EXISTS (SELECT 1 FROM {self.dialect.relation(table)} WHERE {table.where or '1 = 1'}\n), 1",
        )
        return {
            name: self._null_cursors(asked[name]) for name, answer in rows if isinstance(answer, tuple) and answer[0]
        }

    def _horizon(
        self, found: Horizon | StrandlineError, table: Table, at: str, holder: Holder | None
    ) -> Horizon | StrandlineError:
        if isinstance(found, StrandlineError):
            return found
        found = replace(found, observed=at)
        if table.cursor is None:
            return found
        if self.barrier is None:
            return replace(found, proven=False, note=self.without_barrier(table))
        return replace(found, high=None, held_by=holder, reach=found.high) if holder else found

    def without_barrier(self, _table: Table, /) -> str:
        """What a plan says where no barrier stands behind the horizon."""
        return "no barrier (lookback): late commits are found by re-reading"

    def pending(self, windows: Mapping[str, tuple[Table, Window]]) -> dict[str, int | StrandlineError | None]:
        found: dict[str, int | StrandlineError | None] = {}
        some: dict[str, str] = {}  # which rows are waiting, where any are
        items = list(windows.items())
        for name, answer in self.each(items, lambda item: item[0], lambda item: self._waiting(*item[1])):
            table, window = windows[name]
            if isinstance(answer, SourceError):
                found[name] = answer.at(table.where_text)
                continue
            waiting, nulls = (bool(value) for value in answer)
            if nulls and table.nulls != "include":
                found[name] = self._null_cursors(table)
            elif waiting or nulls:
                some[name] = in_window(self.dialect, table, window, nulls)
            else:
                found[name] = 0
        return found | self._waiting_rows({name: (windows[name][0], where) for name, where in some.items()})

    def fingerprints(self, windows: Mapping[str, tuple[Table, Window]]) -> dict[str, str | StrandlineError]:
        found = self.each(list(windows.items()), lambda item: item[0], lambda item: self._fingerprint(*item[1]))
        return {
            name: answer.at(windows[name][0].where_text)
            if isinstance(answer, SourceError)
            else f"{answer[0]}:{answer[1]}"
            for name, answer in found
        }

    def _fingerprint(self, table: Table, window: Window) -> str:
        relation, inside = self.dialect.relation(table), in_window(self.dialect, table, window)
        checksum = self.dialect.checksum([column.name for column in table.columns])
        return f"n, s FROM (SELECT count(*) AS n, {checksum} AS s FROM {relation} WHERE {inside}) q"

    def each(
        self, items: Sequence[Any], name: Callable[[Any], str], select: Callable[[Any], str]
    ) -> Iterable[tuple[str, tuple[Any, ...] | SourceError]]:
        """One row per item by batched UNION ALL; a statement that fails is cut in two until the culprit stands alone.

        `select` gives the select list of one item.
        """
        for start in range(0, len(items), CHUNK):
            yield from self._each(items[start : start + CHUNK], name, select)

    def _each(
        self, items: Sequence[Any], name: Callable[[Any], str], select: Callable[[Any], str]
    ) -> Iterable[tuple[str, tuple[Any, ...] | SourceError]]:
        try:
            sql = " UNION ALL ".join(f"SELECT {number}, {select(item)}" for number, item in enumerate(items))
            for number, *values in self.session.rows(sql):
                yield name(items[int(number)]), tuple(values)
        except SourceError as error:
            if len(items) == 1:
                yield name(items[0]), error
                return
            half = len(items) // 2
            yield from self._each(items[:half], name, select)
            yield from self._each(items[half:], name, select)

    def _waiting(self, table: Table, window: Window) -> str:
        relation = self.dialect.relation(table)
        inside = f"EXISTS (SELECT 1 FROM {relation} WHERE {in_window(self.dialect, table, window)})"
        if table.cursor is None or not table.cursor.nullable:
            return f"{inside}, 1 = 0"
        return f"{inside}, EXISTS (SELECT 1 FROM {relation} WHERE {self._null_cursor(table, table.cursor)})"

    def _waiting_rows(self, some: Mapping[str, tuple[Table, str]]) -> dict[str, int | StrandlineError]:
        """Counted up to a number that is cheap to count, whatever the statistics say; estimated beyond it."""
        found: dict[str, int | StrandlineError] = {}
        for name, answer in self.each(list(some.items()), lambda item: item[0], lambda item: self._counted(*item[1])):
            table, condition = some[name]
            if isinstance(answer, SourceError):
                found[name] = answer.at(table.where_text)
                continue
            counted = int(answer[0])
            found[name] = counted if counted < _COUNTED else max(_COUNTED, self.estimate(table, condition) or 0)
        return found

    def _counted(self, table: Table, condition: str) -> str:
        some = f"SELECT 1 FROM {self.dialect.relation(table)} WHERE {condition} LIMIT {_COUNTED}"
        return f"n FROM (SELECT count(*) AS n FROM ({some}) s) q"

    def _null_cursor(self, table: Table, cursor: Cursor) -> str:
        where = f"({table.where}\n) AND " if table.where else ""
        return f"{where}{column_of(self.dialect, cursor.column)} IS NULL"

    def _null_cursors(self, table: Table) -> SourceError:
        cursor = table.cursor
        if cursor is None:
            raise ValueError(f"{table.name} has no cursor")
        where = self._null_cursor(table, cursor)
        count = self.session.rows(f"SELECT count(*) FROM {self.dialect.relation(table)} WHERE {where}")[0][0]
        return SourceError(
            f'{count} row{"s have" if count != 1 else " has"} no value in the cursor column "{cursor.column}"',
            where=table.where_text,
            why="A row without a cursor value is in no window, so it would never arrive.",
            remedy="Fill the column (and make it NOT NULL), or read those rows with every run:   nulls: include",
            docs="docs/cursors.md#nulls",
        )

    def slices(self, table: Table, window: Window, rows: int | None, limit: int | None) -> tuple[Slice, ...]:
        cursor = table.cursor
        if cursor is None:
            return (Slice(window),)
        nulls = cursor.nullable and table.nulls == "include"
        if limit is not None:
            window, rows = self._limited(table, cursor, window, limit), rows and min(rows, limit)
        key = table.key[0] if len(table.key) == 1 and table.key_enforced else None
        columns = {column.name: column for column in table.columns}
        by_its_key = limit is None and window.low is None and key in columns and self.dialect.whole(columns[key])
        size = table.load_rows or table.slice_rows if by_its_key else table.slice_rows
        many = rows is None or rows > 1.5 * size  # half a slice more is not worth a batch of its own
        if many and by_its_key and key is not None:
            cuts = self._cuts(
                table, column_of(self.dialect, key), in_window(self.dialect, table, window, nulls), rows, size
            )
            return tuple(replace(part, nulls=nulls) for part in by_key(window, key, (int(cut) for cut in cuts)))
        where = in_window(self.dialect, table, window)
        parts = by_cursor(window, self._cursor_cuts(table, cursor, where, rows, size) if many else ())
        return (replace(parts[0], nulls=nulls), *parts[1:])

    def _cursor_cuts(self, table: Table, cursor: Cursor, where: str, rows: int | None, every: int) -> list[Watermark]:
        return self._values(cursor, self._cuts(table, column_of(self.dialect, cursor.column), where, rows, every))

    def _cuts(self, table: Table, column: str, where: str, rows: int | None, every: int) -> list[str]:
        """The column's value at about every `every`-th row that meets the condition, in order, as canonical text. Of
        many rows a sample is numbered, not all of them; what it leaves at the end is half a part at least."""
        share = max(_SAMPLE / rows, _SAMPLE_OF_A_PART / every) if rows else 1.0
        sample = self.sample(table, share, rows) if rows and share < _WORTH_SAMPLING else None
        relation, chosen = sample or (self.dialect.relation(table), "")
        step = max(1, round(every * share)) if sample else every
        ranked = (
            f"SELECT {column} AS v, row_number() OVER (ORDER BY {column}) AS n"
            + (", count(*) OVER () AS of_all" if sample else "")
            + f" FROM {relation} WHERE {where}{chosen}"
        )
        cursor = table.cursor
        is_cursor = cursor is not None and column == column_of(self.dialect, cursor.column)
        shown = self.dialect.text(cursor, "v") if cursor and is_cursor else "v"
        kept = f"n > 1 AND (n - 1) % {step} = 0" + (f" AND of_all - n >= {step // 2}" if sample else "")
        found = self.session.rows(f"SELECT {shown} FROM ({ranked}) r WHERE {kept} ORDER BY n")
        return [str(value) for (value,) in found]

    def sample(self, _table: Table, _share: float, _rows: int) -> tuple[str, str] | None:
        """SQL for about that share of a table's rows, of which `_rows` are looked for: the relation, and what is added
        to the condition. None: number them all."""
        return None

    def _limited(self, table: Table, cursor: Cursor, window: Window, limit: int) -> Window:
        """The start of the window that ends after the N-th row's cursor value, ties included."""
        column = column_of(self.dialect, cursor.column)
        source = f"FROM {self.dialect.relation(table)} WHERE {in_window(self.dialect, table, window)}"
        shown = self.dialect.text(cursor, column)
        nth = self.session.rows(f"SELECT {shown} {source} ORDER BY {column} LIMIT 1 OFFSET {max(limit, 1) - 1}")
        for value in self._values(cursor, (text for (text,) in nth)):
            above = f"{column} > {self.dialect.literal(cursor, value)}"
            after = self.session.rows(f"SELECT {shown} {source} AND {above} ORDER BY {column} LIMIT 1")
            return replace(window, high=next(iter(self._values(cursor, (text for (text,) in after))), window.high))
        return window

    def _values(self, cursor: Cursor, texts: Iterable[str]) -> list[Watermark]:
        """Values that can stand in a plan; one that cannot (before year 1) is no place to cut, and reading it fails."""
        found = []
        for text in texts:
            try:
                found.append(Watermark(cursor.kind, str(text)))
            except StrandlineError:
                continue
        return found

    def changes(self, table: Table, slice: Slice) -> JdbcChanges:
        return JdbcChanges(self.reader, self.dialect, table, slice, lambda: self._tiles(table, slice))

    def _tiles(self, table: Table, slice: Slice) -> Tiles:
        """How a slice is read, by how much it holds."""
        whole = in_slice(self.dialect, table, slice)
        rows = self.estimate(table, whole) or 0
        width = self.width(table) if rows >= _MAY_BE_LARGE else 0
        many = rows >= self.reader.rows_per_reader or rows * width >= self.reader.bytes_per_reader
        tiles = self._cut(table, whole, rows) if many and self.readers > 1 else Tiles()
        return replace(tiles, fetched=self.reader.fetched(width))

    def _cut(self, table: Table, whole: str, rows: int) -> Tiles:
        """By key where there is one whole-number key: a row keeps its key, so no reader can miss or repeat it whatever
        is written meanwhile. By cursor otherwise: there a writer could move a row from one tile to another."""
        columns = {column.name: column for column in table.columns}
        if len(table.key) == 1 and self.dialect.whole(columns[table.key[0]]):
            column = column_of(self.dialect, table.key[0])
            relation = self.dialect.relation(table)
            low, high = self.session.rows(f"SELECT min({column}), max({column}) FROM {relation} WHERE {whole}")[0]
            if low is None:
                return Tiles()
            step = -(-(int(high) - int(low) + 1) // self.readers)
            cuts = range(int(low) + step, int(high) + 1, step)
            return Tiles.cut(column, [f"({cut})" for cut in cuts], steady=True)
        if table.cursor is None:
            return Tiles()
        column = column_of(self.dialect, table.cursor.column)
        found = self._cursor_cuts(table, table.cursor, whole, rows, max(1, rows // self.readers))
        cuts_at = [self.dialect.literal(table.cursor, cut) for cut in sorted(set(found))]
        return Tiles.cut(column, cuts_at, steady=False)

    def width(self, _table: Table) -> int:
        """About how many bytes a row takes in the database, with what lies apart from it; 0: that is not known."""
        return 0

    def spark_types(self, table: Table) -> dict[str, str]:
        """The Spark type of each column as it is read, before any transform."""
        return {column.name: self.dialect.carry(column).type for column in table.columns}

    def forms(self, table: Table) -> dict[str, Form | None]:
        return {column.name: self.dialect.form(column) for column in table.columns}

    def ranged(self, table: Table) -> bool:
        columns = {column.name: column for column in table.columns}
        return len(table.key) == 1 and self.dialect.whole(columns[table.key[0]])

    def side(self, comparison: Comparison) -> DatabaseSide:
        table = comparison.table
        return DatabaseSide(self.session, self.dialect, comparison, lambda where: self.estimate(table, where))

    def close(self) -> None:
        self.session.close()


def _bound(cursor: Cursor, at: str, guard: timedelta) -> Watermark:
    """T0 − guard as the column's writers would have stamped it, cut to what the column stores."""
    high = Watermark(Kind.TIMESTAMP, at).minus(guard)
    if cursor.zone is not None:
        high = local(high, cursor.zone)
    if cursor.kind is Kind.DATE:
        return Watermark(Kind.DATE, high.text[:10])
    return high.floor(cursor.precision)

"""A cursor column of any DataFrame as a source: whatever Spark can read, read by ranges of one column.

Nothing stands behind its horizon: rows may still appear below the highest value that is seen now. So a frame names a
`lookback`, and what lies that far below the watermark is read again if it has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from strandline.core.batch import How
from strandline.core.compare import Comparison, Form
from strandline.core.errors import SourceError, StrandlineError
from strandline.core.position import Horizon
from strandline.core.protocols import Files, SourceSide, Spark
from strandline.core.table import Column, Table, TableInfo
from strandline.core.watermark import Cursor, Kind, Watermark
from strandline.core.window import Repair, Slice, Window
from strandline.sources.zones import is_utc, zone_info
from strandline.spark.text import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_KINDS = {"timestamp": Kind.TIMESTAMP, "timestamp_ntz": Kind.TIMESTAMP, "date": Kind.DATE}
_KINDS |= dict.fromkeys(("tinyint", "smallint", "int", "bigint"), Kind.INTEGER)
_FAR_EAST = timedelta(hours=14)  # how far ahead of UTC clocks are, at most
_STEP: dict[Kind, timedelta | int] = {
    Kind.TIMESTAMP: timedelta(microseconds=1),
    Kind.DATE: timedelta(days=1),
    Kind.INTEGER: 1,
}


@dataclass(frozen=True)
class Frame:
    """`read` gives the whole DataFrame, lazily, on the session it is passed: `lambda spark: spark.table("events")`."""

    name: str
    read: Callable[[SparkSession], DataFrame]
    cursor: str
    lookback: timedelta | int
    key: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not _is_span(self.lookback):
            raise SourceError(
                "a cursor column of a DataFrame has no barrier behind it, so it needs a lookback",
                where=self.name,
                why="Rows can appear below the highest value that was seen: they are found by reading again.",
                remedy="Say how late a row may come: Frame(…, lookback=timedelta(minutes=10)), or units of an integer.",
            )


class FrameSource:
    """Every table is a Frame; `now` is the clock of the state."""

    def __init__(self, frames: Sequence[Frame], spark: Spark, now: Callable[[], datetime]) -> None:
        self.warnings: list[tuple[str, str]] = []
        self._frames = {frame.name: frame for frame in frames}
        self._spark = spark
        self._now = now
        self._nulls: set[str] = set()  # frames that have rows without a cursor value

    def identity(self) -> str:
        return "frames"

    def tables(self, patterns: Sequence[str], queries: Mapping[str, str]) -> dict[str, TableInfo | StrandlineError]:
        found: dict[str, TableInfo | StrandlineError] = {
            name: SourceError("a DataFrame answers no queries", remedy="Put the query into its `read`.")
            for name in queries
        }
        for pattern in patterns:
            matching = [name for name in self._frames if fnmatchcase(name, pattern)]
            found |= {name: self._info(name) for name in matching}
            if not matching and not set("*?[") & set(pattern):
                known = ", ".join(self._frames)
                found[pattern] = SourceError(f'there is no frame "{pattern}"', remedy=f"Frames are {known}.")
        return found

    def _info(self, name: str) -> TableInfo:
        fields = self._frame(name).schema.fields
        columns = tuple(Column(field.name, field.dataType.simpleString(), field.nullable) for field in fields)
        return TableInfo(name, columns, self._frames[name].key, kind="query")

    def _frame(self, name: str) -> DataFrame:
        return self._frames[name].read(self._spark())

    def resolve(self, table: Table, info: TableInfo, zone: str | None) -> Table:
        frame = self._frames[info.name]
        _check_settings(table, frame)
        column = info.column(frame.cursor)
        kind = _KINDS.get(column.type) if column else None
        if column is None or kind is None:
            what = f"is {column.type}" if column else "is not there"
            usable = ", ".join(found.name for found in info.columns if found.type in _KINDS) or "none"
            raise SourceError(
                f'cursor column "{frame.cursor}" {what}: it must be a timestamp, a date or a whole number',
                where=table.where_text,
                remedy=f"Usable here: {usable}",
            )
        whole = isinstance(frame.lookback, int)
        if whole != (kind is Kind.INTEGER):
            raise SourceError(
                f"the lookback {frame.lookback} does not fit a cursor that is {column.type}",
                where=table.where_text,
                remedy="Give a whole number for integers, a timedelta otherwise.",
            )
        zoned = zone or "UTC" if column.type == "timestamp_ntz" else None
        zone_info(zoned or "UTC")  # it is one
        return replace(
            table,
            source=info.name,
            cursor=Cursor(column.name, kind, zone=zoned, nullable=column.nullable),
            key=table.key or frame.key,
            columns=info.columns,
            family="spark",
            lookback=frame.lookback,
        )

    def horizons(self, tables: Sequence[Table]) -> dict[str, Horizon | StrandlineError]:
        """Just above the highest value there is. One that is ahead of the clock counts when its time has come, or the
        watermark would pass rows still to come. One job of Spark's for each table."""
        return {table.name: self._horizon(table) for table in tables}

    def _horizon(self, table: Table) -> Horizon | StrandlineError:
        cursor, now = _cursor(table), self._now()
        column, clock = quoted(cursor.column), _clock(table, now)
        come = "true" if clock is None else f"{column} < {_literal(clock, _type(table))}"
        top = _value(f"max(CASE WHEN {come} THEN {column} END)", _type(table))
        counts = (f"count_if({column} IS NULL)", f"count_if(NOT ({come}))")
        observed = now.replace(tzinfo=None).isoformat(" ")
        text, nulls, ahead = self._frame(table.source).selectExpr(top, *counts).collect()[0]
        if nulls and (table.nulls != "include" or text is None):
            return _null_cursors(table, nulls)
        later = f"; {ahead} rows are stamped ahead of the clock: they are for later" if ahead else ""
        if text is None:
            return Horizon(None, observed, proven=False, note=f"no row has a cursor value{later}")
        self._nulls |= {table.source} if nulls else set()
        high = Watermark(cursor.kind, str(text)).minus(-_STEP[cursor.kind])
        return Horizon(high, observed, proven=False, note=f"no barrier: late rows are found by reading again{later}")

    def pending(self, windows: Mapping[str, tuple[Table, Window]]) -> dict[str, int | StrandlineError | None]:
        return {name: self._some(table, window) for name, (table, window) in windows.items()}

    def _some(self, table: Table, window: Window) -> int | None:
        """Whether there is any row; how many is not worth reading them all."""
        if table.source in self._nulls:
            return None
        found = self._frame(table.source).where(_inside(table, window.low, window.high)).limit(1).count()
        return None if found else 0

    def fingerprints(self, windows: Mapping[str, tuple[Table, Window]]) -> dict[str, str | StrandlineError]:
        return {name: self._fingerprint(table, window) for name, (table, window) in windows.items()}

    def _fingerprint(self, table: Table, window: Window) -> str | StrandlineError:
        if any(column.type.startswith("map<") for column in table.columns):
            return SourceError("a column of maps has no checksum", where=table.where_text)
        columns = ", ".join(quoted(column.name) for column in table.columns)
        rows = self._frame(table.source).where(_inside(table, window.low, window.high))
        count, checksum = rows.selectExpr("count(*)", f"sum(CAST(xxhash64({columns}) AS DECIMAL(38, 0)))").collect()[0]
        return f"{count}:{checksum}"

    def slices(self, _table: Table, window: Window, _rows: int | None, _limit: int | None) -> tuple[Slice, ...]:
        return (Slice(window),)

    def changes(self, table: Table, slice: Slice) -> FrameChanges:
        return FrameChanges(self._frames[table.source], table, slice)

    def forms(self, table: Table) -> dict[str, Form | None]:
        return dict.fromkeys((column.name for column in table.columns), None)

    def hashes(self) -> tuple[str, ...]:
        return ("md5",)

    def ranged(self, _table: Table) -> bool:
        return False

    def side(self, comparison: Comparison) -> SourceSide:
        raise SourceError(
            "a DataFrame is not compared with a copy", where=comparison.table.where_text, remedy="Verify the database."
        )

    def close(self) -> None:
        """The session is the caller's."""


@dataclass
class FrameChanges:
    source: Frame
    table: Table
    slice: Slice
    operation: str | None = None
    order: tuple[str, ...] = ()
    query: str | None = None
    files: Files | None = None
    how: How | None = None
    repair: Repair | None = None

    @property
    def unique(self) -> bool:
        return False

    def frame(self, spark: SparkSession) -> DataFrame:
        inside = _inside(self.table, self.slice.low, self.slice.window.high)
        if self.slice.nulls:
            inside = f"({inside}) OR {quoted(_cursor(self.table).column)} IS NULL"
        return self.source.read(spark).where(inside)

    def translate(self, _error: Exception) -> StrandlineError | None:
        return None


def _check_settings(table: Table, frame: Frame) -> None:
    """What a frame says itself cannot be said again, nor what it would have to do."""
    cursor = table.cursor.column if table.cursor else frame.cursor
    given = {"where": table.where, "columns": table.select, "deleted": table.deleted, "lookback": table.lookback}
    for name, value in (*given.items(), ("cursor", cursor != frame.cursor)):
        if value:
            raise SourceError(
                f"{name}: a frame takes no such setting",
                where=table.where_text,
                remedy="Say it in the Frame: its `read` may filter and select, and it names cursor and lookback.",
            )


def _null_cursors(table: Table, rows: int) -> SourceError:
    all_of_them = table.nulls == "include"
    return SourceError(
        f"{rows} rows have NULL in {_cursor(table).column}" + (", and no row has a value" if all_of_them else ""),
        where=table.where_text,
        why="No window would hold them.",
        remedy="Fill the column in its `read`"
        + ("." if all_of_them else ', or read those rows with every run:   nulls="include"'),
        docs="docs/cursors.md#nulls",
    )


def _clock(table: Table, now: datetime) -> Watermark | None:
    """Just above what writers' clocks can show now: of any writers, where nobody says in which zone they are. Integers
    have no clock."""
    cursor = _cursor(table)
    if cursor.kind is Kind.INTEGER:
        return None
    unknown = cursor.kind is Kind.DATE or (cursor.zone is not None and is_utc(cursor.zone))
    at = now.astimezone(zone_info(cursor.zone or "UTC")) + (_FAR_EAST if unknown else timedelta())
    form = "%Y-%m-%d" if cursor.kind is Kind.DATE else "%Y-%m-%d %H:%M:%S.%f"
    return Watermark(cursor.kind, at.strftime(form)).minus(-_STEP[cursor.kind])


def _is_span(lookback: Any) -> bool:
    if isinstance(lookback, timedelta):
        return lookback >= timedelta()
    return isinstance(lookback, int) and not isinstance(lookback, bool) and lookback >= 0


def _cursor(table: Table) -> Cursor:
    assert table.cursor is not None
    return table.cursor


def _type(table: Table) -> str:
    return next(column.type for column in table.columns if column.name == _cursor(table).column)


def _value(expression: str, type: str) -> str:
    """Canonical text of a value, whatever the session's zone."""
    if type == "timestamp":  # by way of UTC's own text: a cast would render it in the session's zone
        epoch = "TIMESTAMP_NTZ'1970-01-01 00:00:00'"
        expression = f"timestampadd(MICROSECOND, unix_micros({expression}), {epoch})"
    return f"CAST({expression} AS STRING)"


def _inside(table: Table, low: Watermark | None, high: Watermark) -> str:
    column = quoted(_cursor(table).column)
    above = "" if low is None else f"{column} >= {_literal(low, _type(table))} AND "
    return f"{above}{column} < {_literal(high, _type(table))}"


def _literal(value: Watermark, type: str) -> str:
    match type:
        case "timestamp":
            return f"TIMESTAMP'{value} UTC'"
        case "timestamp_ntz":
            return f"TIMESTAMP_NTZ'{value}'"
        case "date":
            return f"DATE'{value}'"
        case _:
            return value.text

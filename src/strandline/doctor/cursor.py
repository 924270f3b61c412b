"""Checks of one table's cursor: everything that no barrier can see.

A row whose cursor is not moved by an update, is NULL, or was stamped by another clock or in another zone escapes every
window. Asked are the catalog and the newest rows only; what would read a large table is not asked, and said so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from strandline.core.table import Mode, Table, TableInfo
from strandline.core.watermark import Cursor, Kind, Watermark
from strandline.doctor.finding import Finding, Level, note, warn
from strandline.sources import inspection
from strandline.sources.database import DatabaseSource
from strandline.sources.inspection import Catalog
from strandline.sources.zones import age, zone_info

_AREA = "source"
_NEVER = timedelta(days=3650)  # further ahead than anybody waits
_NEARLY_USED_UP = 0.9
_TWIN = timedelta(seconds=20)  # how near a newest row must lie to a whole offset to look like another zone's
_STEP = timedelta(minutes=30)
_FARTHEST = timedelta(hours=14)


@dataclass(frozen=True)
class Subject:
    """One table under examination."""

    source: DatabaseSource
    catalog: Catalog
    table: Table
    info: TableInfo
    cursor: Cursor

    def text(self, said: str) -> str:
        return f"{self.table.name}.{self.cursor.column} {said}"


def check_cursor(subject: Subject) -> Iterator[Finding]:
    yield from _moved(subject)
    yield from _stamped(subject)
    yield from _precision(subject)
    yield from _numbers(subject)
    if not inspection.quick(subject.info, subject.cursor.column):
        rows = subject.info.estimated_rows
        size = f"~{rows:,} rows" if rows is not None else "a number of rows that nothing tells"
        text = f"was not looked into for NULLs and future rows: no index that is known, and {size}"
        yield note(_AREA, subject.text(text), docs="docs/doctor.md#not-checked")
        return
    yield from _nulls(subject)
    if subject.cursor.kind is not Kind.INTEGER:
        yield from _oldest(subject)
        yield from _newest(subject)


def _moved(subject: Subject) -> Iterator[Finding]:
    """An update that does not move the cursor is in no window."""
    if subject.table.mode is not Mode.MERGE:
        return
    column = subject.cursor.column
    if subject.info.kind != "table":
        text = f"comes from a {subject.info.kind}: a change behind it that does not move the cursor is not seen"
        yield note(_AREA, subject.text(text), docs="docs/doctor.md#views")
        return
    stamp = subject.catalog.stamp(subject.info, column)
    if stamp.updated:
        return
    remedy, docs = subject.catalog.stamp_remedy(subject.info, column), "docs/doctor.md#updates"
    if subject.cursor.kind is Kind.INTEGER:
        said = "stays when a row changes: new rows are seen, changed ones are not"
        remedy = "If rows never change, all is well. Otherwise use a cursor that every update moves."
    elif stamp.sometimes:
        said = f"is moved by {stamp.sometimes}: other updates are not seen"
    else:
        said = "is moved by nothing in the database when a row changes: the application must set it"
    yield warn(_AREA, subject.text(said), remedy, docs=docs)


def _stamped(subject: Subject) -> Iterator[Finding]:
    """A clock that is not the database's can stamp below the watermark."""
    if subject.cursor.kind is Kind.INTEGER or subject.info.kind != "table":
        return
    if subject.catalog.stamp(subject.info, subject.cursor.column).clocked:
        return
    yield warn(
        _AREA,
        subject.text("is stamped by the application when a row is inserted: a clock behind the database's loses rows"),
        subject.catalog.default_remedy(subject.info, subject.cursor.column),
        docs="docs/doctor.md#clocks",
    )


def _precision(subject: Subject) -> Iterator[Finding]:
    cursor = subject.cursor
    if cursor.kind is Kind.DATE:
        text = "is a date: a day's rows are read when the day is over"
        yield note(_AREA, subject.text(text), docs="docs/doctor.md#precision")
    elif cursor.kind is Kind.TIMESTAMP and cursor.precision == 0:
        yield warn(
            _AREA,
            subject.text("keeps whole seconds: windows end up to a second earlier"),
            "Nothing is lost. A column with microseconds shortens the lag.",
            docs="docs/doctor.md#precision",
        )
    elif cursor.kind is Kind.TIMESTAMP and cursor.precision <= 3:
        digits = {1: "tenths of seconds", 2: "hundredths of seconds", 3: "milliseconds"}[cursor.precision]
        yield note(_AREA, subject.text(f"keeps {digits}; windows are cut to them"), docs="docs/doctor.md#precision")


def _numbers(subject: Subject) -> Iterator[Finding]:
    """Whether ids come in order is the source's to refuse; here, what its `lookback` must make up for."""
    if subject.cursor.kind is not Kind.INTEGER or subject.info.kind != "table":
        return
    found, back = subject.catalog.numbers(subject.info, subject.cursor.column), subject.table.lookback
    docs = "docs/doctor.md#sequences"
    if found is None:
        return
    block = found.cache * abs(found.step)
    if isinstance(back, int) and block > 1 and back < 2 * block:
        text = f"comes from {found.name} in blocks of {block:,} per connection, and lookback is {back:,}"
        remedy = f"Let lookback cover a block for each connection that writes, for example   lookback: {block * 100}"
        yield warn(_AREA, subject.text(text), remedy, docs=docs)
    if found.cycles:
        text = f"comes from {found.name}, which starts again at its end (CYCLE): such rows lie below the watermark"
        yield warn(_AREA, subject.text(text), f"ALTER SEQUENCE {found.name} NO CYCLE;", docs=docs)
    if found.last is not None and found.last > found.most * _NEARLY_USED_UP:
        text = f"has used {found.last:,} of {found.most:,} numbers"
        yield warn(_AREA, subject.text(text), "Widen the column (bigint) before inserts fail.", docs=docs)


def _nulls(subject: Subject) -> Iterator[Finding]:
    if not subject.cursor.nullable:
        return
    rows = inspection.rows_without(subject.source, subject.table, subject.cursor.column)
    if rows and subject.table.nulls != "include":
        yield Finding(
            Level.FAIL,
            _AREA,
            subject.text(f"is NULL in {_counted(rows)} rows, which are in no window"),
            "Fill it and make it NOT NULL, or read those rows with every sync: nulls: include",
            "docs/doctor.md#nulls",
        )
    elif rows:
        text = f"is NULL in {_counted(rows)} rows, which are read with every sync"
        yield note(_AREA, subject.text(text), docs="docs/doctor.md#nulls")
    else:
        docs = "docs/doctor.md#nulls"
        yield warn(_AREA, subject.text("may be NULL; no row is now"), "Make it NOT NULL.", docs=docs)


def _oldest(subject: Subject) -> Iterator[Finding]:
    """`0000-00-00`, `-infinity`: no times at all. They stop a first load, and lie below every later watermark."""
    text = inspection.oldest_text(subject.source, subject.table)
    if text is None or not re.match(r"0000|-infinity|.*BC$", text):
        return
    yield Finding(
        Level.FAIL,
        _AREA,
        subject.text(f"is {text} somewhere, which is no time: such a row is not read, or stops the table"),
        "Give those rows a real time, or leave them out by where.",
        "docs/doctor.md#nulls",
    )


def _newest(subject: Subject) -> Iterator[Finding]:
    """Rows from the future never come, or not yet; rows that look hours old may be another zone's."""
    source, table, cursor = subject.source, subject.table, subject.cursor
    now = subject.catalog.clock()
    here = inspection.here(cursor.kind, cursor.zone, now)
    text = inspection.newest_text(source, table)
    if text is None:
        return
    if not inspection.on_calendar(cursor.kind, text):
        yield from _endless(subject, text, here)
        return
    value = Watermark(cursor.kind, text)
    if value > here:
        yield from _future(subject, value, here, now)
    elif cursor.zone is not None and cursor.kind is Kind.TIMESTAMP:
        yield from _behind(subject, value, now)


def _endless(subject: Subject, text: str, here: Watermark) -> Iterator[Finding]:
    """`infinity`, a year of five digits: after every window."""
    rows = _after(subject, here)
    if rows:
        yield Finding(
            Level.FAIL,
            _AREA,
            subject.text(f"lies after every window in {_counted(rows)} rows, up to {text}: they never arrive"),
            "Give those rows a real time, or leave them out by where.",
            "docs/doctor.md#future",
        )


def _future(subject: Subject, value: Watermark, here: Watermark, now: str) -> Iterator[Finding]:
    cursor = subject.cursor
    rows = _after(subject, here)
    if not rows:
        return  # the table's filter leaves them out
    zone = cursor.zone or "UTC"
    remedy = "Rows from the future come when their time has come. Check who stamps them."
    if cursor.zone:
        remedy = f"If rows are stamped in another zone than {zone}, say so: zone: …"
    ahead = value.seconds_before(datetime.fromisoformat(here.text).replace(tzinfo=UTC)) or 0.0
    level = Level.FAIL if -ahead > _NEVER.total_seconds() else Level.WARN
    if level is Level.FAIL:
        remedy = "Nobody will wait for them: give those rows a real time, or leave them out by where."
    text = f"lies in the future in {_counted(rows)} rows: the newest is {age(value.text, zone, now)} read as {zone}"
    yield Finding(level, _AREA, subject.text(text), remedy, "docs/doctor.md#future")


def _behind(subject: Subject, value: Watermark, now: str) -> Iterator[Finding]:
    """A zone too far east puts new rows below the watermark. The newest row then looks hours old, to the second."""
    zone = subject.cursor.zone or "UTC"
    at = datetime.fromisoformat(value.text).replace(tzinfo=zone_info(zone))
    behind = datetime.fromisoformat(now).replace(tzinfo=UTC) - at
    steps = round(behind / _STEP)
    if not 1 <= steps <= _FARTHEST / _STEP or abs(behind - steps * _STEP) > _TWIN:
        return
    server = subject.source.server().zone
    said = f"the newest row is {age(value.text, zone, now)} read as {zone}, almost to the second"
    told = f", {age(value.text, server, now)} read as the server's zone, {server}" if server != zone else ""
    yield warn(
        _AREA,
        subject.text(f"may be stamped in another zone: {said}{told}"),
        "If rows are stamped in another zone, say so (zone: …): read as this one, new rows lie below the watermark.",
        docs="docs/doctor.md#zones",
    )


def _after(subject: Subject, here: Watermark) -> int:
    return inspection.rows_after(subject.source, subject.table, here)


def _counted(rows: int) -> str:
    return f"{rows:,}" + (" or more" if rows >= inspection.COUNTED else "")

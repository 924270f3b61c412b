"""Checks of a source: its connection, its clock, what its barrier needs, and every table's cursor and key."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass

from strandline.core.errors import StrandlineError
from strandline.core.table import Mode, Table, TableInfo
from strandline.core.watermark import Cursor, Kind
from strandline.doctor.finding import Finding, Level, fail, ok, warn
from strandline.pipeline import Pipeline
from strandline.sources import inspection
from strandline.sources.database import DatabaseSource
from strandline.sources.zones import age

_AREA = "source"
_SKEW_SECONDS = 5.0
_CURSORS = "docs/cursors.md"


@dataclass(frozen=True)
class _Subject:
    """One table under examination."""

    source: DatabaseSource
    table: Table
    info: TableInfo
    cursor: Cursor

    def text(self, said: str) -> str:
        return f"{self.table.name}.{self.cursor.column} {said}"


def check_source(opened: Pipeline) -> Generator[Finding, None, list[Table]]:
    """Returns the tables that could be resolved."""
    name = opened.spec.name
    try:
        source = opened.source
        yield from _connection(opened, source)
        resolved = opened.tables()
    except StrandlineError as error:
        yield fail(_AREA, error, name)
        return []
    for part in resolved:
        if part.error:
            yield fail(_AREA, part.error, name)
    tables = [part.table for part in resolved if not part.error]
    yield from _horizons(opened, tables)
    if isinstance(source, DatabaseSource):
        yield from _tables(name, source, tables)
    return tables


def _connection(opened: Pipeline, source: object) -> Iterator[Finding]:
    endpoint, name = opened.spec.source, opened.spec.name
    if not isinstance(source, DatabaseSource):
        yield ok(_AREA, f"{endpoint}", name)
        return
    product = inspection.catalog_of(source).product()
    skew = inspection.skew(source)
    yield ok(_AREA, f"{endpoint} ({product}), clock {_clock(skew)}", name)
    if abs(skew.seconds) > _SKEW_SECONDS + skew.within:
        text = f"{endpoint.host}: the database's clock is {_clock(skew)}"
        remedy = (
            "Windows follow the database's clock alone, so no row is lost; lag and schedules look wrong. Check NTP."
        )
        yield warn(_AREA, text, remedy, pipeline=name)


def _clock(skew: inspection.Skew) -> str:
    if abs(skew.seconds) <= skew.within:
        return "equal to ours"
    amount = abs(skew.seconds)
    said = f"{amount * 1000:.0f} ms" if amount < 1 else f"{amount:.1f} s"
    return f"{said} {'ahead of' if skew.seconds > 0 else 'behind'} ours"


def _horizons(opened: Pipeline, tables: Sequence[Table]) -> Iterator[Finding]:
    """One barrier for all tables: missing privileges, standbys and sequences that cannot be trusted show here."""
    name = opened.spec.name
    try:
        horizons = opened.source.horizons(tables)
    except StrandlineError as error:
        yield fail(_AREA, error, name)
        return
    for table in tables:
        horizon = horizons[table.name]
        if isinstance(horizon, StrandlineError):
            yield fail(_AREA, horizon.at(table.where_text), name)
        elif not horizon.proven and table.lookback is None:
            yield warn(_AREA, f"{table.name}: {horizon.note or 'no barrier'}", "Add lookback: 10m", pipeline=name)
    held = {
        str(found.held_by) for found in horizons.values() if not isinstance(found, StrandlineError) and found.held_by
    }
    for holder in sorted(held):
        yield warn(_AREA, f"the barrier is held by {holder}", "Tables wait until it has ended.", pipeline=name)
    if horizons and not held and all(not isinstance(found, StrandlineError) for found in horizons.values()):
        yield ok(_AREA, "the barrier sees what is in flight", name)


def _tables(pipeline: str, source: DatabaseSource, tables: Sequence[Table]) -> Iterator[Finding]:
    plain = [table for table in tables if table.query is None]
    found = source.tables([table.source for table in plain], {})
    for table in tables:
        info = found.get(table.source)
        info = info if isinstance(info, TableInfo) else TableInfo(table.name, table.columns, kind="query")
        try:
            findings = list(_table(source, table, info))
        except StrandlineError as error:
            yield fail(_AREA, error.at(table.where_text), pipeline)
            continue
        worst = [finding for finding in findings if finding.level is not Level.OK]
        for finding in worst or findings:
            yield Finding(finding.level, _AREA, finding.text, finding.remedy, finding.docs, pipeline)


def _table(source: DatabaseSource, table: Table, info: TableInfo) -> Iterator[Finding]:
    yield ok(_AREA, f"{table.name}: {_summary(table)}")
    for named, message in source.warnings:
        if named == table.name:
            text, _, remedy = message.partition("\n")
            yield warn(_AREA, f"{table.name}: {text}", remedy, docs=_CURSORS)
    if table.cursor is None:
        return
    subject = _Subject(source, table, info, table.cursor)
    yield from _stamps(subject)
    if not inspection.quick(info, table.cursor.column):
        return
    yield from _nulls(subject)
    yield from _precision(subject)
    if table.cursor.kind is not Kind.INTEGER:
        yield from _newest(subject)


def _summary(table: Table) -> str:
    if table.cursor is None:
        return "replaced whole every time"
    zone = f", read as {table.cursor.zone}" if table.cursor.zone else ""
    return f"cursor {table.cursor.column} ({table.cursor.kind}{zone}), key {', '.join(table.key) or 'none'}"


def _stamps(subject: _Subject) -> Iterator[Finding]:
    """An update that does not move the cursor is seen by no barrier and no window."""
    if subject.cursor.kind is Kind.INTEGER or subject.info.kind != "table" or subject.table.mode is not Mode.MERGE:
        return
    catalog = inspection.catalog_of(subject.source)
    if not catalog.stamp(subject.info, subject.cursor.column).updated:
        yield warn(
            _AREA,
            subject.text("is moved by nothing in the database when a row changes: the application must set it"),
            catalog.stamp_remedy(subject.info, subject.cursor.column),
            docs=f"{_CURSORS}#on-update",
        )


def _nulls(subject: _Subject) -> Iterator[Finding]:
    if not subject.cursor.nullable:
        return
    rows = inspection.rows_without(subject.source, subject.table, subject.cursor.column)
    if rows and subject.table.nulls != "include":
        yield Finding(
            Level.FAIL,
            _AREA,
            subject.text(f"is NULL in {rows:,} rows, which are in no window"),
            "Fill it and make it NOT NULL, or read those rows with every sync: nulls: include",
            f"{_CURSORS}#nulls",
        )
    elif not rows:
        yield warn(_AREA, subject.text("may be NULL; no row is now"), "Make it NOT NULL.", docs=f"{_CURSORS}#nulls")


def _precision(subject: _Subject) -> Iterator[Finding]:
    if subject.cursor.kind is Kind.TIMESTAMP and subject.cursor.precision == 0:
        yield warn(
            _AREA,
            subject.text("keeps whole seconds: windows end up to a second earlier"),
            "Nothing is lost. A column with microseconds shortens the lag.",
            docs=f"{_CURSORS}#precision",
        )


def _newest(subject: _Subject) -> Iterator[Finding]:
    """Rows from the future: a wrong zone, or clocks that are not the database's."""
    source, table, cursor = subject.source, subject.table, subject.cursor
    now = source.server().now
    here = inspection.here(cursor.kind, cursor.zone, now)
    value = inspection.newest(source, table)
    if value is None or value <= here:
        return
    rows = inspection.rows_after(source, table, here)
    zone = cursor.zone or "UTC"
    remedy = "Rows from the future come when their time has come. Check who stamps them."
    if cursor.zone:
        remedy = f"If rows are stamped in another zone than {zone}, say so: zone: …"
    text = f"lies in the future in {rows:,} rows: the newest is {age(value.text, zone, now)} read as {zone}"
    yield warn(_AREA, subject.text(text), remedy, docs=f"{_CURSORS}#future")

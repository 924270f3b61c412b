"""Checks of a source: its connection, its clock, what its barrier needs, and every table's cursor and key."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence

from strandline.core.errors import SourceError, StrandlineError
from strandline.core.position import Horizon
from strandline.core.table import Table, TableInfo
from strandline.core.watermark import Kind
from strandline.doctor.cursor import Subject, check_cursor
from strandline.doctor.filters import check_filter
from strandline.doctor.finding import Finding, Level, fail, note, ok, warn
from strandline.pipeline import Pipeline
from strandline.sources import inspection
from strandline.sources.database import DatabaseSource
from strandline.sources.inspection import Catalog, Skew

_AREA = "source"
SKEW_SECONDS = 5.0
_HIDDEN = {
    "rows": "docs/doctor.md#privileges",
    "changes": "docs/doctor.md#updates",
    "stamps": "docs/doctor.md#clocks",
}


def check_source(opened: Pipeline, clocks: dict[str, Skew]) -> Generator[Finding, None, list[Table]]:
    """Returns the tables that could be resolved, and adds the database's clock to `clocks`, by pipeline."""
    name = opened.spec.name
    try:
        source = opened.source
        yield from _connection(opened, source, clocks)
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
    else:
        for table, message in source.warnings:
            text, _, remedy = message.partition("\n")
            yield warn(_AREA, f"{table}: {text}", remedy, docs="docs/sources-delta.md#feed", pipeline=name)
    return tables


def _connection(opened: Pipeline, source: object, clocks: dict[str, Skew]) -> Iterator[Finding]:
    endpoint, name = opened.spec.source, opened.spec.name
    if not isinstance(source, DatabaseSource):
        yield ok(_AREA, f"{endpoint}", name)
        return
    catalog = inspection.catalog_of(source)
    product = catalog.product()
    clocks[name] = skew = inspection.skew(source)
    yield ok(_AREA, f"{endpoint} ({product}), clock {told(skew)}", name)
    if apart(skew):
        text = f"{endpoint.host}: the database's clock is {told(skew)}"
        remedy = (
            "Windows follow the database's clock alone, so no row is lost; lag and schedules look wrong. Check NTP."
        )
        yield warn(_AREA, text, remedy, docs="docs/doctor.md#clocks", pipeline=name)
    if unseen := catalog.sight():
        yield note(_AREA, unseen, docs="docs/doctor.md#privileges", pipeline=name)


def apart(skew: Skew) -> bool:
    return abs(skew.seconds) > SKEW_SECONDS + skew.within


def told(skew: Skew, other: str = "ours") -> str:
    if abs(skew.seconds) <= skew.within:
        return f"equal to {other}"
    amount = abs(skew.seconds)
    said = f"{amount * 1000:.0f} ms" if amount < 1 else f"{amount:.1f} s"
    return f"{said} {'ahead of' if skew.seconds > 0 else 'behind'} {other}"


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
            text = f"{table.name}: {horizon.note or 'no barrier'}"
            yield warn(_AREA, text, "Add lookback: 10m", docs="docs/doctor.md#barrier", pipeline=name)
    held = {
        str(found.held_by) for found in horizons.values() if not isinstance(found, StrandlineError) and found.held_by
    }
    for holder in sorted(held):
        text, remedy = f"the barrier is held by {holder}", "Tables wait until it has ended."
        yield warn(_AREA, text, remedy, docs="docs/doctor.md#barrier", pipeline=name)
    if horizons and not held and all(isinstance(found, Horizon) and found.proven for found in horizons.values()):
        bounds = [found.high for found in horizons.values() if isinstance(found, Horizon)]
        versions = all(high is not None and high.kind is Kind.VERSION for high in bounds)
        said = "versions are complete when they show" if versions else "the barrier sees what is in flight"
        yield ok(_AREA, said, name)


def _tables(pipeline: str, source: DatabaseSource, tables: Sequence[Table]) -> Iterator[Finding]:
    catalog = inspection.catalog_of(source)
    plain = [table for table in tables if table.query is None]
    found = source.tables([table.source for table in plain], {})
    for table in tables:
        info = found.get(table.source)
        info = info if isinstance(info, TableInfo) else TableInfo(table.name, table.columns, kind="query")
        try:
            findings = list(_table(source, catalog, table, info))
        except StrandlineError as error:
            yield fail(_AREA, error.at(table.where_text), pipeline)
            continue
        troubled = any(finding.level in (Level.WARN, Level.FAIL) for finding in findings)
        for finding in findings:
            if not (troubled and finding.level is Level.OK):
                yield Finding(finding.level, _AREA, finding.text, finding.remedy, finding.docs, pipeline)


def _table(source: DatabaseSource, catalog: Catalog, table: Table, info: TableInfo) -> Iterator[Finding]:
    yield ok(_AREA, f"{table.name}: {_summary(table)}")
    try:
        inspection.readable(source, table)
    except SourceError as error:
        if info.kind != "query":
            error.remedy = catalog.select_remedy(info)
        error.docs = error.docs or "docs/doctor.md#privileges"
        raise
    for named, message in source.warnings:
        if named == table.name:
            text, _, remedy = message.partition("\n")
            remedy = remedy or catalog.key_remedy
            yield warn(_AREA, f"{table.name}: {text}", remedy, docs="docs/doctor.md#index-and-key")
    if info.kind != "query":
        for hidden in catalog.hidden(info):
            yield warn(_AREA, f"{table.name}: {hidden.text}", hidden.remedy, docs=_HIDDEN[hidden.kind])
    if table.cursor is not None:
        subject = Subject(source, catalog, table, info, table.cursor)
        yield from check_cursor(subject)
        yield from check_filter(subject)


def _summary(table: Table) -> str:
    if table.cursor is None:
        return "replaced whole every time"
    cursor = table.cursor
    zone = f", read as {cursor.zone}" if cursor.zone else ""
    digits = f", {cursor.precision} digits" if cursor.kind is Kind.TIMESTAMP else ""
    deletes = f"deletes by {table.deleted}" if table.deleted else "deletes are not seen"
    return f"cursor {cursor.column} ({cursor.kind}{digits}{zone}), key {', '.join(table.key) or 'none'}, {deletes}"

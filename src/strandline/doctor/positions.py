"""Checks of stored positions against their source: nothing may stand where the database has never been."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from strandline.core.errors import StateError, StrandlineError
from strandline.core.position import Position
from strandline.core.table import Table, TableInfo
from strandline.core.watermark import Kind
from strandline.doctor.finding import Finding, Level, fail
from strandline.operations.resting import stored
from strandline.pipeline import Pipeline
from strandline.project import Project
from strandline.sources import inspection
from strandline.sources.database import DatabaseSource

_AREA = "state"
_DOCS = "docs/doctor.md#positions"
_SLACK_SECONDS = 1.0


def check_positions(project: Project, opened: Pipeline, tables: Sequence[Table]) -> Iterator[Finding]:
    """By the database's clock alone: it made the watermarks."""
    name = opened.spec.name
    for table in tables:
        try:
            position, unreadable = stored(project.books, table.pipeline, table.name, table.stage)
            source = opened.source
            if not unreadable and isinstance(source, DatabaseSource):
                found = list(_position(source, table, position))
                yield from (Finding(f.level, _AREA, f.text, f.remedy, f.docs, name) for f in found)
        except StateError:
            return  # the state has its own findings
        except StrandlineError as error:
            yield fail(_AREA, error.at(table.where_text), name)


def _position(source: DatabaseSource, table: Table, position: Position) -> Iterator[Finding]:
    now = inspection.catalog_of(source).clock()
    yield from _observed(table, position, now)
    if position.watermark is None or table.cursor is None or position.watermark.kind is not table.cursor.kind:
        return
    if table.cursor.kind is Kind.INTEGER:
        yield from _ids(source, table, position)
        return
    here = inspection.here(table.cursor.kind, table.cursor.zone, now)
    ahead = position.watermark.seconds_before(datetime.fromisoformat(here.text).replace(tzinfo=UTC)) or 0.0
    if ahead < -_SLACK_SECONDS:
        text = f"the watermark {position.watermark} is in the future: nothing is read until then"
        yield _finding(table, text, f"{_set(table)} --timestamp …", "docs/operations.md#stuck")
    last = position.last_value
    if last is not None and last.kind is table.cursor.kind and position.plan is None and last > position.watermark:
        text = f"a row at {last} was moved, and the watermark is only at {position.watermark}"
        yield _finding(table, text, f"{_set(table)} --timestamp …", _DOCS)


def _observed(table: Table, position: Position, now: str) -> Iterator[Finding]:
    try:
        then = datetime.fromisoformat(position.observed).replace(tzinfo=None)
    except ValueError:
        return  # never observed
    back = (then - datetime.fromisoformat(now)).total_seconds()
    if back > _SLACK_SECONDS:
        text = f"the database's clock stood at {position.observed} once and is {back:,.0f} s behind that now"
        remedy = (
            "Syncs hold until the clock has passed that time and then read again what was stamped meanwhile. Sooner:   "
            f"strandline backfill -p {table.pipeline} -t {table.name} --from …"
        )
        yield _finding(table, text, remedy, "docs/doctor.md#clocks")


def _ids(source: DatabaseSource, table: Table, position: Position) -> Iterator[Finding]:
    """A watermark above every id given out: the table was emptied and its numbers began again."""
    if position.watermark is None or table.cursor is None or table.query is not None:
        return
    info = source.tables([table.source], {}).get(table.source)
    if not isinstance(info, TableInfo) or not inspection.quick(info, table.cursor.column):
        return
    newest = inspection.newest(source, table)
    numbers = inspection.catalog_of(source).numbers(info, table.cursor.column)
    known = [int(newest.text)] if newest else []
    known += [numbers.last] if numbers and numbers.last is not None else []
    last = max(known, default=0)
    if int(position.watermark.text) > last + 1:
        text = f"the watermark {position.watermark} is above every id there is ({last}): ids began again"
        remedy = (
            "They are read from the beginning once ids have passed the watermark. To have them sooner, load it again: "
            f"strandline sync --full -p {table.pipeline} -t {table.name}"
        )
        yield _finding(table, text, remedy, _DOCS)


def _finding(table: Table, text: str, remedy: str, docs: str) -> Finding:
    return Finding(Level.WARN, _AREA, f"{table.where_text}: {text}", remedy, docs)


def _set(table: Table) -> str:
    return f"strandline watermark set -p {table.pipeline} -t {table.name}"

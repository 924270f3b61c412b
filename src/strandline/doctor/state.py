"""Checks of the state: can it be opened, can every position be read, is anything stuck."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from strandline.core.codec import record_position
from strandline.core.errors import StateError, StrandlineError
from strandline.core.position import Position
from strandline.doctor.finding import Finding, fail, ok, warn
from strandline.operations.status import TableStatus, status
from strandline.project import Project

_AREA = "state"
_OLD_PLAN = timedelta(hours=1)
_OPERATIONS = "docs/operations.md"


def check_state(project: Project) -> Iterator[Finding]:
    try:
        records = project.books.state.read("position")
    except StrandlineError as error:
        yield fail(_AREA, error)
        return
    yield ok(_AREA, f"{project.config.state}: {len(records):,} positions")
    for record in records:
        try:
            yield from _intent(record_position(record))
        except StateError as error:
            yield fail(_AREA, error)
    for pipeline in status(project):
        if not pipeline.configured:
            remedy = f"Drop what is left: strandline watermark forget -p {pipeline.pipeline} -t TABLE"
            yield warn(_AREA, f"{pipeline.pipeline} is in the state but not in the config", remedy)
        for table in pipeline.tables:
            yield from _lag(table)
            yield from _plan(table)


def _intent(position: Position) -> Iterator[Finding]:
    if position.intent is not None and position.plan is None:
        remedy = f"strandline watermark import --from-target -p {position.pipeline} -t {position.table}"
        yield warn(
            _AREA, f"{_where(position)}: a batch was begun without a plan", remedy, docs=f"{_OPERATIONS}#corrupt"
        )


def _lag(table: TableStatus) -> Iterator[Finding]:
    if table.lag_seconds is not None and table.lag_seconds < -1:
        yield warn(
            _AREA,
            f"{_where(table)}: the watermark {table.watermark} is in the future: nothing is read until then",
            f"strandline watermark set -p {table.pipeline} -t {table.table} --timestamp …",
            docs=f"{_OPERATIONS}#stuck",
            pipeline=table.pipeline,
        )


def _plan(table: TableStatus) -> Iterator[Finding]:
    plan = table.plan
    if plan is None or table.running:
        return
    if plan.age_seconds is not None and plan.age_seconds < _OLD_PLAN.total_seconds():
        return
    yield warn(
        _AREA,
        f"{_where(table)}: run {plan.run_id} left its plan open, {plan.done} of {plan.slices} slices done",
        f"Carry it out: strandline retry {plan.run_id}",
        docs=f"{_OPERATIONS}#stuck",
        pipeline=table.pipeline,
    )


def _where(of: Position | TableStatus) -> str:
    return f"{of.pipeline}.{of.table}"

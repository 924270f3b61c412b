"""Checks of the state: can it be opened, can every position be read, is anything stuck."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from strandline.core.books import stamp
from strandline.core.codec import record_position
from strandline.core.errors import StateError, StrandlineError
from strandline.core.position import Position
from strandline.core.records import COUNTS
from strandline.doctor.finding import Finding, Level, fail, many, ok, warn
from strandline.doctor.source import apart, told
from strandline.operations.status import TableStatus, status
from strandline.pipeline import stages
from strandline.project import Project
from strandline.sources.inspection import Skew

_AREA = "state"
_OLD_PLAN = timedelta(hours=1)


def check_state(project: Project, clocks: Mapping[str, Skew]) -> Iterator[Finding]:
    """`clocks`: the databases', by pipeline."""
    try:
        records = project.books.state.read("position")
        ours = _clock(project)
    except StrandlineError as error:
        yield fail(_AREA, error)
        return
    yield ok(_AREA, f"{project.config.state}: {many(len(records), 'position')}")
    yield from _clocks(ours, clocks)
    for record in records:
        try:
            position = record_position(record)
            yield from _intent(position)
            yield from _counts(position)
        except StateError as error:
            yield fail(_AREA, error)
    for pipeline in status(project):
        if not pipeline.configured:
            remedy = f"Drop what is left: strandline watermark forget -p {pipeline.pipeline} -t TABLE"
            yield warn(_AREA, f"{pipeline.pipeline} is in the state but not in the config", remedy)
        for table in pipeline.tables:
            yield from _plan(table)
            if pipeline.configured:
                yield from _stage(table, stages(project.pipeline(pipeline.pipeline)))
        yield from _leases(project, pipeline.pipeline)


def _clock(project: Project) -> Skew:
    before = datetime.now(UTC)
    theirs = project.books.state.now()
    return Skew.read(before, theirs, datetime.now(UTC))


def _clocks(ours: Skew, clocks: Mapping[str, Skew]) -> Iterator[Finding]:
    """Leases are judged by the store's clock, windows by the database's; lag is told from both."""
    docs = "docs/doctor.md#clocks"
    if apart(ours):
        remedy = "Leases are judged by its clock alone, so nothing is lost; ages look wrong. Check NTP."
        yield warn(_AREA, f"the state's clock is {told(ours)}", remedy, docs=docs)
    for pipeline, theirs in clocks.items():
        between = ours.against(theirs)
        if apart(between):
            text = f"the state's clock is {told(between, 'the clock of the source')}: the lag shown is off by that"
            yield warn(_AREA, text, "Nothing is lost. Check NTP on both.", docs=docs, pipeline=pipeline)


def _intent(position: Position) -> Iterator[Finding]:
    if position.intent is not None and position.plan is None:
        remedy = f"strandline watermark import --from-target -p {position.pipeline} -t {position.table}"
        text = f"{_where(position)}: a batch was begun without a plan"
        yield warn(_AREA, text, remedy, docs="docs/operations.md#corrupt")


def _counts(position: Position) -> Iterator[Finding]:
    """Numbers that no run writes."""
    totals, plan, batch = position.totals, position.plan, position.batch
    wrong = [f"{name} {getattr(totals, name)}" for name in COUNTS if getattr(totals, name) < 0]
    wrong += [f"{position.batches} batches"] if position.batches < 0 else []
    wrong += [f"epoch {position.epoch}"] if position.epoch < 1 else []
    wrong += [f"batch number {batch.number}"] if batch and batch.number < 1 else []
    if plan and not 0 <= plan.done < len(plan.slices):
        wrong.append(f"{plan.done} of {len(plan.slices)} slices done")
    if wrong:
        remedy = f"strandline watermark import --from-target -p {position.pipeline} -t {position.table}"
        text = f"{_where(position)}: the stored position holds {', '.join(wrong)}: somebody edited it"
        yield Finding(Level.FAIL, _AREA, text, remedy, "docs/operations.md#corrupt", position.pipeline)


def _leases(project: Project, pipeline: str) -> Iterator[Finding]:
    """A lease that runs longer than any is given: the store's clock went back, and the table waits for it."""
    books = project.books
    latest = stamp(books.state.now() + 2 * books.lease_time)
    for table, lease in books.leases(pipeline).items():
        if lease.expires_at > latest and lease.held(books.state.now()):
            text = f"{pipeline}.{table}: its lease runs until {lease.expires_at}: the state's clock went back"
            remedy = f"Nobody else can run it until then. If run {lease.run_id} is gone, wait, or correct the clock."
            yield warn(_AREA, text, remedy, docs="docs/doctor.md#clocks", pipeline=pipeline)


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
        docs="docs/operations.md#stuck",
        pipeline=table.pipeline,
    )


def _stage(table: TableStatus, known: Sequence[str]) -> Iterator[Finding]:
    """A pipeline that was given a stage, or targets of other names, goes on under other positions."""
    if table.stage not in known:
        now = f"the pipeline has {', '.join(known)} now"
        text = f"{_where(table)}: a position of the stage {table.stage} is left; {now}"
        remedy = f"strandline watermark forget -p {table.pipeline} -t {table.table} --stage {table.stage}"
        yield warn(_AREA, text, remedy, docs="docs/doctor.md#positions", pipeline=table.pipeline)


def _where(of: Position | TableStatus) -> str:
    return f"{of.pipeline}.{of.table}"

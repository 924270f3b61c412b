"""Operations on one table's position. Each gives a Change to be shown and then applied; nothing is written here."""

from __future__ import annotations

from dataclasses import replace

from strandline.core.batch import Applied, Receipt
from strandline.core.errors import ConfigError, SourceError, StateError, TargetError, WindowError
from strandline.core.plan import Ask, next_window
from strandline.core.position import Horizon, Position, Status
from strandline.core.table import Mode, Table
from strandline.core.watermark import Kind, Watermark
from strandline.core.window import Window
from strandline.operations.change import Change
from strandline.operations.resting import (
    Resting,
    at_rest,
    configured,
    first_stage,
    free_lease,
    kind_of,
    settled,
    stored,
)
from strandline.pipeline import Pipeline
from strandline.project import Project


def set_watermark(
    project: Project,
    pipeline: str,
    table: str,
    value: str | None = None,
    *,
    stage: str = "",
    kind: Kind | None = None,
    accept: bool = False,
    allow_duplicates: bool = False,
    wait: bool = False,
) -> Change:
    """Move a watermark to `value`; or with `accept` keep it, and let it measure what the config says now.

    `kind`: what the person said the value is (`--timestamp`, `--version`); WindowError if the cursor is another.
    """
    if (value is None) != accept:
        raise ConfigError("give either a value or --accept", where=f"{pipeline}.{table}")
    with at_rest(project, pipeline, table, stage, wait=wait) as resting:
        found = resting.resolved()
        if found.mode is Mode.SNAPSHOT:
            raise ConfigError("a snapshot has no watermark: every sync reads the whole table", where=found.where_text)
        horizon = resting.horizon(found)
        if value is None:
            return _accepted(resting, found, horizon, allow_duplicates)
        new = _typed(found, horizon, value, kind)
        _check_not_in_the_future(resting.position, horizon, new)
        return _moved(resting, "set", found, new, allow_duplicates)


def reset(
    project: Project,
    pipeline: str,
    table: str,
    *,
    stage: str = "",
    allow_duplicates: bool = False,
    wait: bool = False,
) -> Change:
    """Forget the watermark, so that the next sync reads the table again from the beginning (or from `initial`)."""
    with at_rest(project, pipeline, table, stage, wait=wait) as resting:
        found = resting.resolved()
        if resting.opened.staged:
            _check_still_staged(resting, found)
        start = _beginning(found, resting) if found.initial else None
        return _moved(resting, "reset", found, None, allow_duplicates, start=start)


def _check_still_staged(resting: Resting, table: Table) -> None:
    from strandline.stage.source import StageSource

    source = resting.opened.source
    assert isinstance(source, StageSource)
    if below := source.floor(table):
        raise SourceError(
            f"the batches below {below} were cleaned away: they cannot be loaded again",
            remedy="Reset the extract, and everything is staged and loaded anew:   "
            f"strandline watermark reset -p {table.pipeline} -t {table.name}",
        )


def _beginning(table: Table, resting: Resting) -> Watermark | None:
    """Where a table without a watermark begins: at its `initial`."""
    window = next_window(Ask(table, Position(table.pipeline, table.name, table.stage), {}), resting.horizon(table))
    return window.low if window else None


def import_from_target(project: Project, pipeline: str, table: str, *, stage: str = "", wait: bool = False) -> Change:
    """The position rebuilt from what the target says it holds: for a state that was lost or restored."""
    with at_rest(project, pipeline, table, stage, wait=wait, settling=False) as resting:
        before = resting.position
        receipt = resting.opened.sink.applied(resting.table)
        if receipt is None:
            raise TargetError(
                "the target holds no batch of this table, so there is nothing to rebuild from",
                remedy=f"Load it: strandline sync -p {pipeline} -t {table}",
                docs="docs/operations.md#lost-target",
            )
        if before.batch is not None and receipt.agrees(before.batch) and receipt.epoch <= before.epoch:
            raise StateError(f"position and target agree on {receipt.batch}: there is nothing to import")
        if not receipt.exact:
            raise TargetError(
                f"the target holds {receipt.batch}, but its log no longer says how far that went",
                remedy=f"Load it again: strandline sync --full -p {pipeline} -t {table}",
                docs="docs/operations.md#lost-state",
            )
        notes = [*resting.notes, f"the target holds {receipt.batch}"]
        after = _rebuilt(before, receipt)
        _check_duplicates(resting.table, after, after.watermark, allowed=False)
        if after.watermark is None:
            notes.append("a first load was under way: the next sync reads from the beginning and merges")
        if after.gap is None and resting.table.max_stall is not None and resting.table.max_stall.then == "skip":
            notes.append(
                "whether a stall was passed over is not known to the target: if one was, read that range again once "
                f"the transaction has ended: strandline backfill -p {pipeline} -t {table}"
            )
        return Change(
            "import",
            replace(before, batch=receipt.batch),
            after,
            resting.lease,
            notes=tuple(notes),
            fence=before.intent is not None,
        )


def _rebuilt(before: Position, receipt: Receipt) -> Position:
    batch, last_value = receipt.batch, receipt.applied.last_value
    return Position(
        before.pipeline,
        before.table,
        before.stage,
        watermark=batch.watermark,
        last_value=last_value,
        batch=batch,
        epoch=max(before.epoch, batch.epoch, receipt.epoch) + 1,
        totals=Applied(last_value=last_value),
        observed=before.observed,
        observed_at=before.observed_at,
        gap=before.gap,
        revision=before.revision,
    )


def replan(project: Project, run_id: str, *, allow_duplicates: bool = False, wait: bool = False) -> list[Change]:
    """Drop the open plans of a run, so that the next sync plans anew. Batches that the target holds stay committed."""
    found = [position for position in project.books.positions().values() if _planned_by(position, run_id)]
    if not found:
        raise StateError(f"run {run_id} left no plan open", remedy="Open plans: strandline status")
    return [_replanned(project, position, allow_duplicates, wait) for position in found]


def _planned_by(position: Position, run_id: str) -> bool:
    return position.plan is not None and run_id in (position.plan.run_id, position.run_id)


def _replanned(project: Project, position: Position, allow_duplicates: bool, wait: bool) -> Change:
    with at_rest(project, position.pipeline, position.table, position.stage, wait=wait) as resting:
        before, plan = resting.position, resting.position.plan
        _check_not_reloading(resting.table, before)
        _check_duplicates(resting.table, before, before.watermark, allow_duplicates)
        if plan:
            resting.notes.append(f"{plan.done} of {len(plan.slices)} slices were done")
        after = replace(before, plan=None, intent=None, epoch=before.epoch + 1, status=Status.COMPLETED, error="")
        return Change("replan", before, after, resting.lease, notes=tuple(resting.notes), fence=resting.dropped)


def forget(project: Project, pipeline: str, table: str, *, stage: str = "", wait: bool = False) -> Change:
    """Drop the position and the lease. History and target stay."""
    books, stage = project.books, stage or first_stage(project, pipeline, table)
    before, unreadable = stored(books, pipeline, table, stage)
    if not before.revision:
        raise StateError("there is no position to forget", where=f"{pipeline}.{table}")
    lease = free_lease(books, pipeline, table, wait)
    notes = ["the target and the history stay as they are"]
    spec = project.config.pipelines.get(pipeline)
    if spec and any(part.name == table for part in spec.tables):
        notes.append("the table is still in the config: its next sync stops, because the target holds its batches")
    return Change("forget", before, None, lease, notes=(unreadable, *notes) if unreadable else tuple(notes))


def rename(
    project: Project, old: tuple[str, str], new: tuple[str, str], *, stage: str = "", wait: bool = False
) -> Change:
    """Move a position to another (pipeline, table); `new` must be in the config and mean the same source and target.

    Refused where the target knows its batches by the old name: going on under a new one could apply a batch twice.
    """
    books, where, stage = project.books, ".".join(old), stage or first_stage(project, *old)
    before, unreadable = stored(books, *old, stage)
    if not before.revision or unreadable:
        raise StateError(unreadable or "there is no position to rename", where=where)
    if stored(books, *new, stage)[0].revision:
        remedy = f"Forget it first: strandline watermark forget -p {new[0]} -t {new[1]}"
        raise StateError(f"{'.'.join(new)} has a position already", where=where, remedy=remedy)
    lease = free_lease(books, *old, wait)
    with project.opened(new[0], stage) as opened:
        table = configured(opened, new[1])
        before = settled(opened, replace(table, pipeline=old[0], name=old[1]), before)
        _check_same_target(opened, table, before)
    after = replace(before, pipeline=new[0], table=new[1], epoch=before.epoch + 1, revision=0)
    return Change("rename", before, after, lease)


def _check_same_target(opened: Pipeline, table: Table, position: Position) -> None:
    if position.batch is None:
        return
    remedy = (
        f"Keep the old name, or load the table under the new one:   "
        f"strandline sync --full -p {table.pipeline} -t {table.name}"
    )
    try:
        receipt = opened.sink.applied(table)
    except TargetError as error:
        raise TargetError(error.message, where=table.where_text, why=error.why, remedy=remedy) from error
    if receipt is None or not receipt.agrees(position.batch):
        raise TargetError(
            f"the target does not know {position.batch} under this name",
            where=table.where_text,
            why="A target keeps its batches under the name of pipeline and table; they cannot be moved to another.",
            remedy=remedy,
        )


def _accepted(resting: Resting, table: Table, horizon: Horizon, allow_duplicates: bool) -> Change:
    before, kind = resting.position, kind_of(table, horizon)
    _check_not_reloading(table, before)
    _check_duplicates(table, before, before.watermark, allow_duplicates)
    old = before.watermark
    if old is not None and old.kind is not kind:
        raise WindowError(
            f"the watermark {old} is a {old.kind} and cannot be kept: the cursor is now a {kind}",
            remedy="Give the value to go on from, or load the table again: strandline sync --full",
        )
    resting.note_differences(table)
    after = replace(before.moved(old), last_value=before.last_value, totals=before.totals)
    after = _without_gap(resting, table, after)
    return Change("accept", before, after, resting.lease, notes=tuple(resting.notes), fence=resting.dropped)


def _moved(
    resting: Resting,
    action: str,
    table: Table,
    new: Watermark | None,
    allow_duplicates: bool,
    start: Watermark | None = None,
) -> Change:
    """`start`: where the next sync begins if there is no new watermark."""
    before, start = resting.position, new or start
    window, effect = _between(before.watermark, start)
    _check_duplicates(table, before, start, allow_duplicates)
    resting.note_differences(table)
    if before.plan is not None:
        resting.notes.append(f"the plan that run {before.plan.run_id} left open is dropped")
    rows = resting.rows(table, window) if window and not window.empty else None if effect else 0
    after = _without_gap(resting, table, before.moved(new))
    return Change(action, before, after, resting.lease, effect, rows, tuple(resting.notes), fence=resting.dropped)


def _without_gap(resting: Resting, table: Table, after: Position) -> Position:
    """Append mode cannot look at a range again: whoever moves its watermark gives the range up. That is said, as
    where a later watermark leaves it behind."""
    gap, mark = resting.position.gap, after.watermark
    after = replace(after, gap=None) if table.mode is Mode.APPEND else after
    if gap is None or after.gap is not None or mark is None:
        return after
    if gap.low is None or gap.low.kind is not mark.kind or gap.low < mark:
        since = "" if gap.low is None else f" from {gap.low} on"
        resting.notes.append(f"rows below it that still appear{since} are left out: {gap.why}")
    return after


def _between(old: Watermark | None, new: Watermark | None) -> tuple[Window | None, str]:
    """The window between two watermarks and what becomes of its rows; no window where they cannot be compared."""
    if old is None or new is None:
        known = old or new
        return (Window(None, known), "skipped" if new else "re-read") if known else (None, "")
    if old.kind is not new.kind:
        return None, "re-read or skipped"
    return (Window(new, old), "re-read") if new < old else (Window(old, new), "skipped" if old < new else "")


def _typed(table: Table, horizon: Horizon, text: str, said: Kind | None) -> Watermark:
    cursor, kind = table.cursor, kind_of(table, horizon)
    timely = kind in (Kind.TIMESTAMP, Kind.DATE)
    if said is not None and said is not kind and not (said is Kind.TIMESTAMP and timely):
        flag = "--version" if kind is Kind.VERSION else "--timestamp" if timely else "--value"
        raise WindowError(f"the cursor is a {kind}, not a {said}", remedy=f"Use {flag}")
    new = Watermark.parse(kind, text, cursor.zone if cursor else None)
    return new.floor(cursor.precision) if cursor else new


def _check_not_in_the_future(position: Position, horizon: Horizon, new: Watermark) -> None:
    proven = [value for value in (horizon.high, position.watermark) if value is not None and value.kind is new.kind]
    if not proven and horizon.held_by:
        raise SourceError(
            f"how far it is safe to go cannot be told now: {horizon.held_by}", remedy="Try again when it has ended."
        )
    if not proven:
        raise SourceError("the table has no rows to set a watermark by", remedy="Set `initial:` for its first sync.")
    if max(proven) < new:
        raise WindowError(
            f"{new} is in the future: it is safe to read up to {max(proven)}",
            why="Rows that are still to be written would lie below the watermark and never arrive.",
            remedy="Choose a value up to that one.",
        )


def _check_not_reloading(table: Table, position: Position) -> None:
    """A full reload gives up the watermark when it is planned: without the reload, nothing says where to go on."""
    if position.plan and position.plan.replace and table.mode is not Mode.SNAPSHOT:
        raise ConfigError(
            f"run {position.plan.run_id} left a full reload unfinished: there is no watermark to go on from",
            remedy=f"Load it again: strandline sync --full -t {table.name}\n"
            f"Or say where to go on: strandline watermark set -t {table.name}",
        )


def _check_duplicates(table: Table, position: Position, start: Watermark | None, allowed: bool) -> None:
    """Refuse to append again what the target may hold from `start` on. Without a watermark that may be any row: a
    load by key or a full reload was left unfinished."""
    held = position.watermark
    if table.mode is not Mode.APPEND or position.batch is None or allowed:
        return
    if held is None or start is None or start.kind is not held.kind or start < held:
        raise ConfigError(
            "mode append would add rows that it already holds once more "
            f"({held or 'unfinished load'} → {start or 'beginning'})",
            remedy="To replace the target's rows: strandline sync --full\nTo have them twice: --allow-duplicates",
            docs="docs/operations.md#duplicate",
        )

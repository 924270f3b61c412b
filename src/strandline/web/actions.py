"""What may be asked: run, retry, verify, suspend, resume, move a watermark, plan. The checks are those of the CLI.

API and pages call these; nothing else here changes anything.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from strandline import operations
from strandline.config import PipelineSpec
from strandline.operations import Change
from strandline.operations.runs import left_by
from strandline.operations.suspension import resume, suspend, suspension
from strandline.pipeline import some_stages
from strandline.result import PipelinePlan
from strandline.service.desk import Desk, Job, JobStatus
from strandline.web.problems import BusyError, NotFoundError, RefusedError
from strandline.web.views import Views

_PLANS_AT_ONCE = 2


@dataclass(frozen=True)
class Move:
    """A watermark to be moved. `value` None: reset."""

    value: str | None = None
    stage: str = ""
    allow_duplicates: bool = False


Replanned = tuple[Sequence[Change], JobStatus]


class Actions:
    def __init__(self, desk: Desk, views: Views) -> None:
        self._desk = desk
        self._views = views
        self._planning = threading.BoundedSemaphore(_PLANS_AT_ONCE)

    def run(self, pipeline: str, tables: Sequence[str], stages: Sequence[str], who: str) -> JobStatus:
        some_stages(self._spec(pipeline, tables), stages)
        return self._desk.ask(Job(pipeline, "sync", tuple(tables), tuple(stages), trigger="api", who=who))

    def verify(self, pipeline: str, tables: Sequence[str], repair: bool, who: str) -> JobStatus:
        self._spec(pipeline, tables)
        return self._desk.ask(Job(pipeline, "verify", tuple(tables), repair=repair, trigger="api", who=who))

    def retry(self, run_id: str, who: str) -> JobStatus:
        """Carry out what a run left: its tables with an open plan."""
        view = self._views.run(run_id)
        run_id, pipeline = view.run.key[0], str(view.run.fields["pipeline"])
        left = left_by(self._desk.project, run_id)
        if not left:
            raise RefusedError(
                f"run {run_id} ({view.run.fields['status']}) left nothing unfinished",
                where=pipeline,
                remedy="To move what is new, run the pipeline.",
            )
        self._spec(pipeline, ())
        tables = tuple(dict.fromkeys(position.table for position in left if position.pipeline == pipeline))
        return self._desk.ask(Job(pipeline, "sync", tables, resume=True, trigger="api", who=who))

    def preview_replan(self, run_id: str, allow_duplicates: bool) -> list[Change]:
        """What dropping the plans that a run left open would do. Nothing is written."""
        run = self._views.run(run_id).run
        self._spec(str(run.fields["pipeline"]), ())
        left = left_by(self._desk.project, run.key[0])
        if not any(run.key[0] in (position.run_id, position.plan and position.plan.run_id) for position in left):
            raise RefusedError(f"run {run.key[0]} left no plan open", remedy="To move what is new, run the pipeline.")
        return operations.replan(self._desk.project, run.key[0], allow_duplicates=allow_duplicates)

    def replan(self, run_id: str, allow_duplicates: bool, revisions: Sequence[int], why: str, who: str) -> Replanned:
        """Drop them, if the positions are still those that were shown, and run these tables."""
        changes = self.preview_replan(run_id, allow_duplicates)
        _check_shown(changes, revisions)
        operations.apply(self._desk.project, changes, why=why or f"replan {run_id}", who=who)
        pipeline, tables = changes[0].before.pipeline, tuple(dict.fromkeys(change.before.table for change in changes))
        return changes, self._desk.ask(Job(pipeline, "sync", tables, resume=True, trigger="api", who=who))

    def suspend(self, pipeline: str, why: str, who: str) -> None:
        self._spec(pipeline, ())
        project = self._desk.project
        if known := suspension(project.books.state, pipeline):
            raise RefusedError(f"it is {known}", where=pipeline, remedy="Resume it first to give another reason.")
        suspend(project, pipeline, who=who, why=why)

    def resume(self, pipeline: str) -> None:
        self._spec(pipeline, ())
        if resume(self._desk.project, pipeline) is None:
            raise RefusedError("it is not suspended", where=pipeline)

    def preview(self, pipeline: str, table: str, move: Move) -> Change:
        """What moving a watermark would do. Nothing is written."""
        self._spec(pipeline, [table])
        project = self._desk.project
        if move.value is None:
            return operations.reset(project, pipeline, table, stage=move.stage, allow_duplicates=move.allow_duplicates)
        return operations.set_watermark(
            project, pipeline, table, move.value, stage=move.stage, allow_duplicates=move.allow_duplicates
        )

    def move(self, pipeline: str, table: str, move: Move, revision: int, why: str, who: str) -> Change:
        """Write it, if the position is still the one that was shown."""
        change = self.preview(pipeline, table, move)
        _check_shown([change], [revision])
        operations.apply(self._desk.project, [change], why=why, who=who)
        return change

    def plan(self, pipeline: str, tables: Sequence[str], stages: Sequence[str]) -> PipelinePlan:
        """What a run would move now; asks the source, stores nothing."""
        self._spec(pipeline, tables)
        if not self._planning.acquire(blocking=False):
            raise BusyError(f"{_PLANS_AT_ONCE} plans are being made already", remedy="Try again in a moment.")
        try:
            return self._desk.project.plan(pipeline, tables=tables, stages=stages)
        finally:
            self._planning.release()

    def _spec(self, pipeline: str, tables: Sequence[str]) -> PipelineSpec:
        """Of a pipeline that is in the config, with tables that it has."""
        view = self._views.pipeline(pipeline)
        if view.spec is None:
            raise NotFoundError(
                f'pipeline "{pipeline}" is not in the config any more', remedy="Only its history can be seen."
            )
        for table in tables:
            self._views.check_table(pipeline, table)
        return view.spec


def _check_shown(changes: Sequence[Change], revisions: Sequence[int]) -> None:
    if [change.before.revision for change in changes] != list(revisions):
        raise RefusedError(
            "a run or another person moved it since it was shown",
            where=changes[0].where,
            remedy="Look at what it would do now, and ask again.",
        )

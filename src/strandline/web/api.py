"""`/api/v1`: what is known and what may be asked, as JSON. The same fields as the CLI's --json."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Path, Query, Request
from fastapi.responses import StreamingResponse

from strandline.core.errors import ConfigError
from strandline.operations import Change
from strandline.operations.runs import run_json
from strandline.service.desk import JobStatus
from strandline.web import models as m
from strandline.web.actions import Actions, Move
from strandline.web.problems import BusyError
from strandline.web.views import Views, entry_json, job_json

_POLL_SECONDS = 0.25
_QUIET_SECONDS = 15
_STREAMS = 50
_EVENTS = 500

PipelineName = Annotated[str, Path(max_length=190, examples=["shop"])]
TableName = Annotated[str, Path(max_length=190, examples=["orders"])]
RunId = Annotated[
    str, Path(max_length=190, examples=["20261115-081244-120-3fa9c1"], description='A run id, or "last".')
]
OfPipeline = Annotated[str | None, Query(max_length=190, description="Only of this pipeline.", examples=["shop"])]
OfTables = Annotated[
    list[m.Name] | None, Query(max_length=100, description="Only these tables.", examples=[["orders"]])
]
Since = Annotated[
    str | None, Query(max_length=40, description="From a time (2026-11-15 08:00, UTC) or a span (2d).", examples=["7d"])
]


def who(request: Request) -> str:
    """For the history: which door, and from where."""
    door = "api" if request.url.path.startswith("/api/") else "dashboard"
    return f"{door} from {request.client.host}" if request.client else door


def make_api(views: Views, actions: Actions, read_only: bool) -> APIRouter:
    api = APIRouter(prefix="/api/v1")

    @api.get("/pipelines", response_model=m.Pipelines, tags=["pipelines"])
    def list_pipelines() -> Any:
        """Every pipeline with health, lag, schedule and tables; as `strandline status --json`, and more."""
        return {
            "config_error": views.desk.config_error or None,
            "read_only": read_only,
            "pipelines": [view.to_json() for view in views.pipelines()],
        }

    @api.get("/pipelines/{pipeline}", response_model=m.OnePipeline, tags=["pipelines"])
    def show_pipeline(pipeline: PipelineName) -> Any:
        """One pipeline."""
        return views.pipeline(pipeline).to_json()

    @api.get("/pipelines/{pipeline}/tables", response_model=m.Tables, tags=["tables"])
    def list_tables(pipeline: PipelineName) -> Any:
        """Where each of its tables stands."""
        found = views.pipeline(pipeline).to_json()
        return {name: found[name] for name in ("pipeline", "tables", "never_run")}

    @api.get("/pipelines/{pipeline}/tables/{table:path}", response_model=m.Table, tags=["tables"])
    def show_table(pipeline: PipelineName, table: TableName) -> Any:
        """One table: as `strandline watermark get --json`, with its verification and who moved its watermark."""
        return views.table(pipeline, table).to_json()

    @api.get("/positions", response_model=m.Positions, tags=["tables"])
    def list_positions(pipeline: OfPipeline = None) -> Any:
        """Every table's position; as `strandline watermark list --json`."""
        return views.positions(pipeline or "")

    @api.get("/pipelines/{pipeline}/plan", response_model=m.Plan, tags=["plans"])
    def show_plan(pipeline: PipelineName) -> Any:
        """Plans that were written and are not done yet. Asks no source."""
        return views.stored_plans(pipeline).to_json()

    @api.post("/pipelines/{pipeline}/plan", response_model=m.Plan, tags=["plans"])
    def make_plan(pipeline: PipelineName, ask: m.RunAsk) -> Any:
        """What a run would move now; as `strandline plan --json`. Asks the source, moves and stores nothing."""
        return actions.plan(pipeline, ask.tables, ask.stages).to_json()

    @api.post("/pipelines/{pipeline}/run", response_model=m.OneJob, status_code=202, tags=["actions"])
    def run(pipeline: PipelineName, ask: m.RunAsk, request: Request) -> Any:
        """Run it now. A job that is queued or running already is given instead of a second one."""
        return job_json(actions.run(pipeline, ask.tables, ask.stages, who(request)))

    @api.post("/pipelines/{pipeline}/verify", response_model=m.OneJob, status_code=202, tags=["actions"])
    def verify(pipeline: PipelineName, ask: m.VerifyAsk, request: Request) -> Any:
        """Compare source and target below the watermarks; with `repair`, make what differs equal."""
        return job_json(actions.verify(pipeline, ask.tables, ask.repair, who(request)))

    @api.post("/pipelines/{pipeline}/suspend", response_model=m.OnePipeline, tags=["actions"])
    def suspend(pipeline: PipelineName, ask: m.SuspendAsk, request: Request) -> Any:
        """Stop its schedule until it is resumed, across restarts. 409 if it is suspended already."""
        actions.suspend(pipeline, ask.why, who(request))
        return views.pipeline(pipeline).to_json()

    @api.post("/pipelines/{pipeline}/resume", response_model=m.OnePipeline, tags=["actions"])
    def resume(pipeline: PipelineName) -> Any:
        """Let its schedule go on. 409 if it is not suspended."""
        actions.resume(pipeline)
        return views.pipeline(pipeline).to_json()

    @api.post("/pipelines/{pipeline}/tables/{table:path}/watermark", response_model=m.Changes, tags=["actions"])
    def move_watermark(pipeline: PipelineName, table: TableName, ask: m.WatermarkAsk, request: Request) -> Any:
        """Set or reset a watermark. With `dry_run` it says what would be re-read or skipped, and the `revision` to
        send when it is meant; 409 if anything moved since. Refused during a run, and for a value in the future."""
        if (ask.value is None) != (ask.action == "reset"):
            raise ConfigError("set needs a value, reset takes none")
        move = Move(ask.value, ask.stage, ask.allow_duplicates)
        if ask.dry_run:
            change = actions.preview(pipeline, table, move)
        elif ask.revision is None:
            raise ConfigError("a change needs the revision that was shown", remedy="Ask with dry_run first.")
        else:
            change = actions.move(pipeline, table, move, ask.revision, ask.why, who(request))
        return {"dry_run": ask.dry_run, "changes": [{**change.to_json(), "revision": change.before.revision}]}

    @api.get("/runs", response_model=m.Runs, tags=["runs"])
    def list_runs(
        pipeline: OfPipeline = None,
        table: Annotated[str | None, Query(max_length=190, description="Only runs with this table.")] = None,
        status: Annotated[Literal["RUNNING", "COMPLETED", "FAILED", "SKIPPED"] | None, Query()] = None,
        since: Since = None,
        page: Annotated[int, Query(ge=1, le=1000)] = 1,
        limit: Annotated[int, Query(ge=1, le=200)] = 20,
    ) -> Any:
        """Runs, newest first; as `strandline runs list --json`. A run that found nothing new leaves none."""
        found, more = views.runs(pipeline, table, status, since, page, limit)
        return {"runs": [run_json(run) for run in found], "next_page": page + 1 if more else None}

    @api.get("/runs/{run_id}", response_model=m.OneRun, tags=["runs"])
    def show_run(run_id: RunId) -> Any:
        """One run with its tables; as `strandline runs show --json`."""
        return views.run(run_id).to_json()

    @api.post("/runs/{run_id}/retry", response_model=m.OneJob, status_code=202, tags=["actions"])
    def retry(run_id: RunId, request: Request) -> Any:
        """Carry out what a run left unfinished, `unfinished: stop` or not. 409 if it left nothing."""
        return job_json(actions.retry(run_id, who(request)))

    @api.post("/runs/{run_id}/replan", response_model=m.Replanned, tags=["actions"])
    def replan(run_id: RunId, ask: m.ReplanAsk, request: Request) -> Any:
        """Drop the plans that a run left open, and plan anew; as `strandline retry --replan`. With `dry_run` it says
        what would be, and the `revision` of each change to send when it is meant; then it gives the job that runs these
        tables."""
        changes: Sequence[Change]
        job: JobStatus | None = None
        if ask.dry_run:
            changes = actions.preview_replan(run_id, ask.allow_duplicates)
        elif ask.revisions is None:
            raise ConfigError("a change needs the revisions that were shown", remedy="Ask with dry_run first.")
        else:
            changes, job = actions.replan(run_id, ask.allow_duplicates, ask.revisions, ask.why, who(request))
        shown = [{**change.to_json(), "revision": change.before.revision} for change in changes]
        return {"dry_run": ask.dry_run, "changes": shown, "job": job and job_json(job)}

    @api.get("/stats", response_model=m.Stats, tags=["runs"])
    def stats(pipeline: OfPipeline = None, table: OfTables = None, since: Since = None) -> Any:
        """Figures per day; as `strandline runs stats --json`."""
        return {"days": views.stats(pipeline, table or [], since)}

    @api.get("/jobs", response_model=m.Jobs, tags=["jobs"])
    def list_jobs() -> Any:
        """Queued and running jobs, and the latest that ended, newest first."""
        return {"jobs": [job_json(job) for job in views.desk.jobs()]}

    @api.get("/jobs/{job_id}", response_model=m.OneJob, tags=["jobs"])
    def show_job(job_id: Annotated[str, Path(max_length=190)]) -> Any:
        """One job."""
        return job_json(views.job(job_id))

    @api.get("/events", response_model=m.Events, tags=["events"])
    def list_events(
        after: Annotated[int, Query(ge=0, le=2**53, description="Only events after this number.")] = 0,
        limit: Annotated[int, Query(ge=1, le=_EVENTS)] = 100,
    ) -> Any:
        """The latest events that are still known, oldest first."""
        return {"events": [entry_json(entry) for entry in views.events(after, limit)]}

    streams = asyncio.Semaphore(_STREAMS)

    @api.get("/events/stream", response_class=StreamingResponse, tags=["events"], responses=_STREAM)
    async def stream(
        request: Request,
        after: Annotated[int | None, Query(ge=0, le=2**53, description="From here; default: from now on.")] = None,
        last_event_id: Annotated[int | None, Header(ge=0, le=2**53)] = None,
    ) -> StreamingResponse:
        """Events as they are told (server-sent events). A reader that comes back with Last-Event-ID misses nothing
        that is still known."""
        if streams.locked():
            raise BusyError(f"{_STREAMS} readers follow the events already", remedy="Try again later.")
        start = last_event_id if last_event_id is not None else after
        return StreamingResponse(_follow(request, start), media_type="text/event-stream")

    async def _follow(request: Request, start: int | None) -> AsyncIterator[str]:
        log = views.desk.log
        seen = max((entry.number for entry in log.since(0)), default=0) if start is None else start
        async with streams:
            quiet = 0.0
            yield "retry: 2000\n\n"
            while not request.app.state.stopping.is_set():
                told = log.since(seen)
                for entry in told:
                    seen = entry.number
                    data = json.dumps(entry_json(entry), ensure_ascii=False)
                    yield f"id: {entry.number}\ndata: {data}\n\n"
                quiet = 0.0 if told else quiet + _POLL_SECONDS
                if quiet >= _QUIET_SECONDS:
                    quiet = 0.0
                    yield ": still here\n\n"
                await asyncio.sleep(_POLL_SECONDS)

    return api


_STREAM: dict[int | str, dict[str, Any]] = {
    200: {
        "content": {
            "text/event-stream": {
                "example": 'id: 7\ndata: {"id": 7, "at": "2026-11-15T08:12:44.120Z", "event": "run_finished"}\n\n'
            }
        }
    }
}

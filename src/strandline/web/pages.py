"""The pages: what `views` found, rendered by the server. Forms are ordinary ones; a script only keeps pages fresh."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.concurrency import run_in_threadpool

from strandline import __version__
from strandline.cli import text
from strandline.core.errors import ConfigError
from strandline.core.protocols import Record
from strandline.core.watermark import Watermark
from strandline.operations import runs as history
from strandline.operations.health import Health, worst
from strandline.service.desk import Entry, JobStatus
from strandline.web import charts
from strandline.web.actions import Actions, Move
from strandline.web.api import who
from strandline.web.problems import NotFoundError
from strandline.web.views import PipelineView, Views, lag_meaning

_HERE = Path(__file__).parent
_GRID_RUNS, _TABLES, _RUNS, _EVENTS = 14, 100, 50, 100


def _url(*parts: str) -> str:
    return "/" + "/".join(quote(part, safe="") for part in parts)


def _ago(stamp: str | datetime | None, now: datetime) -> Markup:
    """How long ago, with the exact time on hover; a time to come says "in"."""
    if not stamp:
        return Markup("–")
    at = datetime.fromisoformat(stamp) if isinstance(stamp, str) else stamp
    seconds = (now - at).total_seconds()
    if abs(seconds) < 1:
        said = "now"
    elif seconds < 0:
        said = f"in {text.duration(-seconds)}"
    else:
        said = f"{text.duration(seconds)} ago"
    exact = f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    return Markup(f'<time datetime="{escape(at.astimezone(UTC).isoformat())}" title="{exact}">{escape(said)}</time>')


def _duration(seconds: float | None) -> str:
    return "–" if seconds is None else text.duration(max(seconds, 0.0))


def _mark(value: Watermark | str | None, now: datetime) -> Markup:
    """A watermark as short as it can be, whole on hover."""
    if value is None:
        return Markup("–")
    short = text.value(value, now) if isinstance(value, Watermark) else value
    return Markup(f'<span class="mark" title="{escape(str(value))}">{escape(short)}</span>')


def _environment() -> Environment:
    env = Environment(loader=FileSystemLoader(_HERE / "templates"), autoescape=True, undefined=StrictUndefined)
    env.trim_blocks = env.lstrip_blocks = True
    env.filters.update(duration=_duration, count=text.count, many=text.many, lower=str.lower)
    files = sorted((_HERE / "static").iterdir())
    built = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:8]
    env.globals.update(
        url=_url, version=__version__, built=built, ago=_ago, mark=_mark, spark=charts.spark, status_word=text.status
    )
    return env


_ENV = _environment()


def error_page(status: int, detail: str, remedy: str = "", why: str = "", docs: str = "") -> str:
    given = {"status": status, "detail": detail, "remedy": remedy, "why": why, "docs": docs}
    return _ENV.get_template("error.html").render(page="", read_only=True, login=False, **given)


def make_pages(
    views: Views, actions: Actions, *, read_only: bool, login: bool, openapi: Callable[[], Any]
) -> APIRouter:
    pages = APIRouter(include_in_schema=False)

    def show(template: str, page: str, **given: Any) -> HTMLResponse:
        common = {"page": page, "read_only": read_only, "login": login, "now": views.now()}
        return HTMLResponse(_ENV.get_template(template).render(**common, **given))

    def asked(request: Request) -> JobStatus | None:
        """The job that the form before this page asked for."""
        try:
            return views.job(request.query_params["asked"]) if "asked" in request.query_params else None
        except NotFoundError:
            return None

    @pages.get("/")
    def overview(request: Request) -> HTMLResponse:
        found = sorted(views.pipelines(), key=lambda view: (-list(Health).index(view.health), view.name))
        return show(
            "overview.html",
            "overview",
            views=found,
            config_error=views.desk.config_error,
            worst=worst(view.health for view in found),
            jobs=[job for job in views.desk.jobs() if not job.ended_at],
            job=asked(request),
            lag_says=_lag_says,
            undelivered=_undelivered(found),
        )

    @pages.get("/pipelines/{pipeline}")
    def pipeline_page(request: Request, pipeline: str, page: int = 1, q: str = "") -> HTMLResponse:
        view = views.pipeline(pipeline)
        tables, pages_ = _page([table for table in view.status.tables if q in table.table], view, page)
        runs = view.status.runs[:_GRID_RUNS][::-1]
        kinds = {table.watermark.kind for table in view.status.tables if table.watermark}
        return show(
            "pipeline.html",
            "overview",
            view=view,
            tables=tables,
            shown=page,
            pages=pages_,
            q=q,
            grid=views.grid(view, _GRID_RUNS),
            runs=runs,
            longest=max((history.seconds(run) or 0.0 for run in runs), default=0.0) or 1.0,
            seconds=history.seconds,
            charts=_pipeline_charts(view),
            days=views.stats(pipeline, (), "14d"),
            meanings=[lag_meaning(kind) for kind in sorted(kinds)],
            job=asked(request),
        )

    @pages.get("/pipelines/{pipeline}/tables/{table:path}")
    def table_page(request: Request, pipeline: str, table: str, done: str = "") -> HTMLResponse:
        view = views.table(pipeline, table)
        kinds = {position.stage: position.watermark.kind if position.watermark else None for position in view.positions}
        return show(
            "table.html",
            "overview",
            view=view,
            charts=_table_charts(view.parts, view.lags),
            meanings={stage: lag_meaning(kind) for stage, kind in kinds.items()},
            moved=history.moved,
            job=asked(request),
            done=done,
        )

    @pages.get("/runs")
    def runs_page(pipeline: str = "", status: str = "", page: int = 1) -> HTMLResponse:
        page = min(max(page, 1), 1000)
        status = status if status in ("RUNNING", "COMPLETED", "FAILED", "SKIPPED") else ""
        found, more = views.runs(pipeline or None, None, status or None, None, page, _RUNS)
        given = {"pipeline": pipeline, "status": status, "shown": page, "more": more}
        known = sorted(views.project.config.pipelines)
        return show("runs.html", "runs", runs=found, seconds=history.seconds, moved=history.moved, known=known, **given)

    @pages.get("/runs/{run_id}")
    def run_page(request: Request, run_id: str) -> HTMLResponse:
        view = views.run(run_id)
        plans = {(position.table, position.stage): position.plan for position in view.left}
        return show(
            "run.html",
            "runs",
            view=view,
            plans=plans,
            seconds=history.seconds,
            counts=history.counts,
            moved=history.moved,
            job=asked(request),
        )

    @pages.get("/events")
    def events_page(pipeline: str = "") -> HTMLResponse:
        found = [entry for entry in views.events(0, 5000) if not pipeline or entry.fields.get("pipeline") == pipeline]
        known = sorted(views.project.config.pipelines)
        told = [(entry, str(entry.fields.get("event", "")), _details(entry)) for entry in found[: -_EVENTS - 1 : -1]]
        return show("events.html", "events", events=told, pipeline=pipeline, known=known)

    @pages.get("/docs")
    def docs_page() -> HTMLResponse:
        return show("docs.html", "docs", paths=openapi()["paths"])

    @pages.get("/login")
    def login_page(next: str = "/", wrong: str = "") -> HTMLResponse:
        return HTMLResponse(
            _ENV.get_template("login.html").render(page="login", read_only=True, login=False, next=next, wrong=wrong)
        )

    # What forms ask

    async def read(request: Request) -> Mapping[str, str]:
        form = parse_qs((await request.body()).decode("utf-8", "replace"), max_num_fields=20)
        return {name: values[0].strip()[:500] for name, values in form.items()}

    async def act(request: Request, do: Callable[[Mapping[str, str]], str]) -> RedirectResponse:
        """`do` gives the page to go on to."""
        return RedirectResponse(await run_in_threadpool(do, await read(request)), 303)

    def with_job(page: str, job: JobStatus) -> str:
        return f"{page}?asked={quote(job.job_id, safe='')}"

    @pages.post("/pipelines/{pipeline}/run")
    async def run_now(request: Request, pipeline: str) -> RedirectResponse:
        def do(form: Mapping[str, str]) -> str:
            table = form.get("table", "")
            job = actions.run(pipeline, [table] if table else [], [], who(request))
            return with_job(_url("pipelines", pipeline, *(("tables", table) if table else ())), job)

        return await act(request, do)

    @pages.post("/pipelines/{pipeline}/verify")
    async def verify_now(request: Request, pipeline: str) -> RedirectResponse:
        def do(form: Mapping[str, str]) -> str:
            table = form.get("table", "")
            job = actions.verify(pipeline, [table] if table else [], form.get("repair") == "yes", who(request))
            return with_job(_url("pipelines", pipeline, *(("tables", table) if table else ())), job)

        return await act(request, do)

    @pages.post("/pipelines/{pipeline}/suspend")
    async def suspend_it(request: Request, pipeline: str) -> RedirectResponse:
        def do(form: Mapping[str, str]) -> str:
            actions.suspend(pipeline, form.get("why", ""), who(request))
            return _url("pipelines", pipeline)

        return await act(request, do)

    @pages.post("/pipelines/{pipeline}/resume")
    async def resume_it(request: Request, pipeline: str) -> RedirectResponse:
        def do(_: Mapping[str, str]) -> str:
            actions.resume(pipeline)
            return _url("pipelines", pipeline)

        return await act(request, do)

    @pages.post("/runs/{run_id}/retry")
    async def retry_it(request: Request, run_id: str) -> RedirectResponse:
        def do(_: Mapping[str, str]) -> str:
            job = actions.retry(run_id, who(request))
            return with_job(_url("pipelines", job.job.pipeline), job)

        return await act(request, do)

    @pages.post("/runs/{run_id}/replan")
    async def replan_it(request: Request, run_id: str) -> Response:
        """Without the revisions that were shown: shows what would be, and asks."""
        form = await read(request)
        shown = form.get("revisions", "").split()
        if not shown or not all(revision.isdigit() for revision in shown):
            changes = await run_in_threadpool(actions.preview_replan, run_id, False)
            return show("replan.html", "runs", run_id=run_id, changes=changes)
        revisions = [int(revision[:18]) for revision in shown]
        asked = (run_id, False, revisions, form.get("why", ""), who(request))
        _, job = await run_in_threadpool(actions.replan, *asked)
        return RedirectResponse(with_job(_url("pipelines", job.job.pipeline), job), 303)

    @pages.post("/pipelines/{pipeline}/plan")
    def plan_it(pipeline: str) -> HTMLResponse:
        return show("plan.html", "overview", pipeline=pipeline, plan=actions.plan(pipeline, [], []))

    @pages.post("/pipelines/{pipeline}/tables/{table:path}/watermark")
    async def move_it(request: Request, pipeline: str, table: str) -> Response:
        """Without the revision that was shown: shows what would be, and asks."""
        form = await read(request)
        setting = form.get("action") == "set"
        if setting and not form.get("value"):
            raise ConfigError("there is no value to set", where=f"{pipeline}.{table}", remedy="Go back and type one.")
        move = Move(form["value"] if setting else None, form.get("stage", ""))
        if not form.get("revision", "").isdigit():
            change = await run_in_threadpool(actions.preview, pipeline, table, move)
            return show("watermark.html", "overview", pipeline=pipeline, table=table, change=change, move=move)
        revision, why = int(form["revision"][:18]), form.get("why", "")
        change = await run_in_threadpool(actions.move, pipeline, table, move, revision, why, who(request))
        return RedirectResponse(f"{_url('pipelines', pipeline, 'tables', table)}?done={change.action}", 303)

    return pages


def _page(tables: Sequence[Any], view: PipelineView, page: int) -> tuple[Sequence[Any], int]:
    """What needs a person first; then by name."""
    found = {(finding.table, finding.stage) for finding in view.findings}
    ordered = sorted(tables, key=lambda table: (table.table not in {name for name, _ in found}, table.table))
    pages = max(1, -(-len(ordered) // _TABLES))
    first = (min(max(page, 1), pages) - 1) * _TABLES
    return ordered[first : first + _TABLES], pages


def _undelivered(views: Sequence[PipelineView]) -> dict[str, list[str]]:
    """A channel that takes nothing concerns every pipeline at once: said once, with their names."""
    found: dict[str, list[str]] = {}
    for view in views:
        for said in view.status.undelivered:
            found.setdefault(said.rpartition(", try ")[0], []).append(view.name)
    return found


def _lag_says(view: PipelineView) -> str:
    worst_ = max((value for _, value in view.lags), default=0.0)
    return f"lag of {view.name} over time, worst {text.duration(worst_)}"


def _marks(
    records: Sequence[Record], value: Callable[[Record], float], show: Callable[[float], str]
) -> list[charts.Mark]:
    """Newest first in, oldest first out."""
    return [
        charts.Mark(
            value(record),
            f"{str(record.fields['started_at'])[:19].replace('T', ' ')}: {show(value(record))}, "
            f"{str(record.fields['status']).lower()}",
            record.fields["status"] == "FAILED",
        )
        for record in reversed(records)
    ]


def _rows_text(value: float) -> str:
    return text.many(int(value), "row")


def _run_charts(records: Sequence[Record], took: Callable[[Record], float]) -> list[charts.Chart]:
    none = "No run has moved anything yet."
    return [
        charts.bars("Rows per run", _marks(records, history.moved, _rows_text), _rows_text, none),
        charts.dots("Duration", _marks(records, took, _duration), _duration, none),
    ]


def _pipeline_charts(view: PipelineView) -> list[charts.Chart]:
    late = charts.line("Lag", view.lags, _duration, "No lag is known yet, or no cursor of this pipeline is a time.")
    return [late, *_run_charts(view.status.runs, lambda run: history.seconds(run) or 0.0)]


def _table_charts(parts: Sequence[Record], lags: Sequence[tuple[datetime, float]]) -> list[charts.Chart]:
    late = charts.line("Lag at each run", lags, _duration, "No lag is known: its cursor is no time, or it never ran.")
    return [late, *_run_charts(parts[:60], lambda part: int(part.fields["milliseconds"] or 0) / 1000)]


def _details(entry: Entry) -> str:
    """What an event says, in a line: its words, or else its plain values and those of its parts."""
    left_out = ("event", "pipeline", "table", "stage", "run_id")
    if entry.fields.get("message"):
        return str(entry.fields["message"])[:500]
    told: list[str] = []
    for name, value in entry.fields.items():
        parts = value.items() if isinstance(value, Mapping) else [(name, value)]
        plain = [(part, said) for part, said in parts if isinstance(said, str | int | float) and said]
        told += [f"{part.replace('_', ' ')} {_number(said)}" for part, said in plain if part not in left_out]
    return ", ".join(told)[:300]


def _number(value: str | int | float) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)

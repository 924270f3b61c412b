"""The application: API, pages, metrics and probes behind one guard."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
from fastapi.staticfiles import StaticFiles
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from strandline import __version__
from strandline.core.errors import StrandlineError
from strandline.service.desk import Desk
from strandline.web.actions import Actions
from strandline.web.api import make_api
from strandline.web.memory import EVERY
from strandline.web.metrics import CONTENT_TYPE, Metrics
from strandline.web.models import Problem
from strandline.web.pages import error_page, make_pages
from strandline.web.problems import problem, problem_of
from strandline.web.security import Guard, Security
from strandline.web.views import Views

log = logging.getLogger(__name__)


def make_app(desk: Desk, security: Security) -> FastAPI:
    views = Views(desk)
    actions = Actions(desk, views)
    metrics = Metrics(views)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        sampling = asyncio.create_task(_sample(views))
        yield
        app.state.stopping.set()
        sampling.cancel()

    app = _App(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    app.guard = partial(Guard, security=security, redact=lambda text: desk.project.config.redactor.redact(text))
    app.state.stopping = threading.Event()
    app.include_router(make_api(views, actions, security.read_only))
    app.include_router(
        make_pages(views, actions, read_only=security.read_only, login=bool(security.token), openapi=app.openapi)
    )
    app.mount("/static", StaticFiles(directory=Path(__file__).parent / "static"), name="static")
    _probes(app, views, metrics)
    _errors(app)
    return app


class _App(FastAPI):
    guard: Callable[[ASGIApp], ASGIApp]

    def build_middleware_stack(self) -> ASGIApp:
        """The guard is outermost: answers to mistakes of ours pass through it, too."""
        return self.guard(super().build_middleware_stack())

    def openapi(self) -> dict[str, Any]:
        self.openapi_schema = self.openapi_schema or _openapi(self)
        return self.openapi_schema


async def _sample(views: Views) -> None:
    while True:
        try:
            await run_in_threadpool(views.sample)
        except StrandlineError as error:  # the state is away: the pages say so themselves
            log.warning("lag was not sampled: %s", error)
        await asyncio.sleep(EVERY.total_seconds())


def _probes(app: FastAPI, views: Views, metrics: Metrics) -> None:
    @app.get("/api/v1/openapi.json", include_in_schema=False)
    def schema() -> JSONResponse:
        return JSONResponse(app.openapi())

    @app.get("/metrics", include_in_schema=False)
    def show_metrics() -> Response:
        return Response(metrics.text(), media_type=CONTENT_TYPE)

    @app.get("/healthz", include_in_schema=False)
    def alive() -> PlainTextResponse:
        """The process answers."""
        return PlainTextResponse("ok\n")

    @app.get("/readyz", include_in_schema=False)
    def ready() -> PlainTextResponse:
        """The state answers too. Says no more: it is open to everybody."""
        try:
            views.project.books.state.read("meta")
        except StrandlineError as error:
            log.warning("not ready: %s", error)
            return PlainTextResponse("the state does not answer\n", 503)
        return PlainTextResponse("ok\n")


def _errors(app: FastAPI) -> None:
    """Problem JSON for programs, a page for people; never a trace."""

    def answer(request: Request, told: dict[str, Any], headers: dict[str, str] | None = None) -> Response:
        if request.url.path.startswith("/api/") or "text/html" not in request.headers.get("accept", ""):
            return JSONResponse(told, told["status"], headers, media_type="application/problem+json")
        parts = {name: told.get(name, "") for name in ("remedy", "why", "docs")}
        return HTMLResponse(error_page(told["status"], told["detail"], **parts), told["status"], headers)

    @app.exception_handler(StrandlineError)
    def ours(request: Request, error: StrandlineError) -> Response:
        return answer(request, problem_of(error))

    @app.exception_handler(RequestValidationError)
    def invalid(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"][1:])
        return answer(request, problem(422, f"{where}: {first['msg']}" if where else str(first["msg"])))

    @app.exception_handler(HTTPException)
    def known(request: Request, error: HTTPException) -> Response:
        detail = "There is nothing at this address." if error.status_code == 404 else str(error.detail)
        return answer(request, problem(error.status_code, detail), dict(error.headers or {}))

    @app.exception_handler(Exception)
    def unknown(request: Request, error: Exception) -> Response:
        log.exception("%s %s", request.method, request.url.path, exc_info=error)
        return answer(request, problem(500, "A mistake of ours; the service's log has the whole story."))


def _openapi(app: FastAPI) -> dict[str, Any]:
    """Every answer that is no success is a problem."""
    schema = get_openapi(title="Strandline", version=__version__, routes=app.routes, summary=_SUMMARY)
    schemas = schema["components"]["schemas"]
    schemas["Problem"] = Problem.model_json_schema()
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    refused = {
        "description": "A problem, with what to do about it",
        "content": {
            "application/problem+json": {
                "schema": {"$ref": "#/components/schemas/Problem"},
                "example": problem(404, 'no pipeline "shpo"', "Pipelines: shop, stock"),
            }
        },
    }
    for operations in schema["paths"].values():
        for operation in operations.values():
            operation["responses"].pop("422", None)
            operation["responses"] |= {"4XX": refused, "5XX": refused}
    schema["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    schema["security"] = [{"token": []}, {}]
    return schema


_SUMMARY = "Pipelines, tables, positions, plans, runs, statistics, actions and events of a strandline service"

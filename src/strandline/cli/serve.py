"""`strandline serve` runs pipelines by their schedules; `suspend`, `resume` and `wait` are for those around it."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from datetime import UTC, timedelta
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

from strandline.cli.invocation import Invocation, common, pipeline_option, tables_option
from strandline.core.errors import ConfigError, SetupError

if TYPE_CHECKING:
    from strandline.project import Project
    from strandline.result import RunResult
    from strandline.service.desk import Entry
    from strandline.service.service import Service
    from strandline.web.serving import WebServer

_POLL_SECONDS = 1.0


@click.command()
@click.option(
    "--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Where dashboard and API listen."
)
@click.option("--port", default=8484, show_default=True, type=click.IntRange(0, 65535), help="0: any that is free.")
@click.option(
    "--token-file", type=click.Path(path_type=Path), metavar="FILE", help="Holds the token that all must show."
)
@click.option("--allow-host", multiple=True, metavar="NAME", help="Another name by which browsers reach it.")
@click.option("--read-only", is_flag=True, help="Show everything, change nothing.")
@click.option("--no-web", is_flag=True, help="Schedules only: no dashboard, no API.")
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text", help="How log lines are written.")
@common
@click.pass_obj
def serve(
    invocation: Invocation,
    host: str,
    port: int,
    token_file: Path | None,
    allow_host: tuple[str, ...],
    read_only: bool,
    no_web: bool,
    log_format: str,
) -> int:
    """Run every pipeline by its schedule, and show a dashboard, until told to stop.

    An address other than this machine's own needs a token: --token-file, or STRANDLINE_TOKEN in the environment.

    The log goes to stderr. The config is read again when it changes, or on SIGHUP; a bad edit is told, and the config
    as it was stays in force. SIGTERM and Ctrl-C let the slices at work end; a second one stops at once. Nothing is lost
    either way.
    """
    from strandline.cli.progress import describe
    from strandline.service.door import Door
    from strandline.service.service import Service

    with invocation.project() as project, ExitStack() as until_the_end:
        service = Service(project, words=describe, hear=log_line(invocation, log_format == "json"))
        if not no_web:
            token = _token(token_file)
            web = until_the_end.enter_context(_web()(service, host, port, token, read_only, allow_host))
            service.log.tell("listening", f"dashboard and API: {web.url}", url=web.url)
        try:
            until_the_end.enter_context(Door(service))
        except (OSError, SetupError) as error:
            service.log.tell("door_error", f"commands cannot hand their runs over: {error}", error=str(error))
        return attended(service)


def _web() -> Callable[..., WebServer]:
    try:
        from strandline.web.serving import serve_web
    except ImportError as error:
        remedy = "pip install 'strandline[service]', or leave it out: strandline serve --no-web"
        raise SetupError(f"dashboard and API need {error.name}", remedy=remedy) from error
    return serve_web


def _token(file: Path | None) -> str:
    try:
        return file.read_text(encoding="utf-8").strip() if file else os.environ.get("STRANDLINE_TOKEN", "")
    except OSError as error:
        raise ConfigError(f"the token in {file} cannot be read: {error.strerror}") from error


def continuous(
    invocation: Invocation,
    project: Project,
    chosen: Mapping[str, tuple[str, ...]],
    span: timedelta,
    stages: tuple[str, ...],
) -> int:
    """`sync --every`: as a service would do it, for these tables alone, in the foreground."""
    from strandline.cli.progress import describe
    from strandline.core.position import Status
    from strandline.service.agenda import every
    from strandline.service.service import Service

    def show(result: RunResult) -> None:
        if result.status is not Status.SKIPPED:
            invocation.say(json.dumps(result.to_json(), ensure_ascii=False))

    hear = log_line(invocation, as_json=False)
    result = show if invocation.json else None
    service = Service(project, words=describe, hear=hear, result=result, agenda=every(chosen, span, stages))
    return attended(service)


def log_line(invocation: Invocation, as_json: bool) -> Callable[[Entry], None]:
    """An entry as a line on stderr. What has no words is for machines only."""

    def write(entry: Entry) -> None:
        fields = entry.fields
        at = entry.at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        if as_json:
            invocation.tell(json.dumps({"at": at, **fields}, ensure_ascii=False))
        elif fields.get("message"):
            where = ".".join(str(fields[name]) for name in ("pipeline", "table") if fields.get(name))
            place = f"{where} {fields.get('stage', '')}".strip()
            invocation.tell(f"{at} {place + ': ' if place else ''}{fields['message']}")

    return write


def attended(service: Service) -> int:
    """The service in a thread of its own, signals in this one: a handler may come at any moment, and must not meet a
    lock that the code it interrupts is holding."""
    asked: list[int] = []
    failed: list[BaseException] = []

    def work() -> None:
        try:
            service.run()
        except BaseException as error:  # told by whoever called us
            failed.append(error)

    def stop(number: int, _: FrameType | None) -> None:
        if asked:
            os._exit(130 if number == signal.SIGINT else 1)
        asked.append(number)
        service.stop()

    thread = threading.Thread(target=work, name="strandline-service", daemon=True)
    handlers = {signal.SIGTERM: stop, signal.SIGINT: stop, signal.SIGHUP: lambda *_: service.reload()}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        thread.start()
        while thread.is_alive():
            thread.join(_POLL_SECONDS)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if service.at_work:
        os._exit(1)  # what was given up does not end: leave it to those who come after, as after a kill
    if failed:
        raise failed[0]
    return 130 if signal.SIGINT in asked else 0


@click.command()
@click.argument("pipeline", metavar="PIPELINE")
@click.option("--why", default="", metavar="TEXT", help="The reason, for those who see it suspended.")
@common
@click.pass_obj
def suspend(invocation: Invocation, pipeline: str, why: str) -> int:
    """Let no run of PIPELINE begin by itself until it is resumed.

    It lasts across restarts and counts for every service on this state. A run at work goes on to its end. By hand,
    `sync` still works.
    """
    from strandline import operations

    with invocation.project() as project:
        known = operations.suspension(project.books.state, pipeline)
        found = operations.suspend(project, pipeline, why=why)
        if invocation.json:
            invocation.say_json({"pipeline": pipeline, "suspended": found.to_json()})
        else:
            already = "is already " if known else ""
            invocation.say(f"{pipeline} {already}{found}")
    return 0


@click.command()
@click.argument("pipeline", metavar="PIPELINE")
@common
@click.pass_obj
def resume(invocation: Invocation, pipeline: str) -> int:
    """Let PIPELINE run by its schedule again. A run that was missed meanwhile is made up for, once."""
    from strandline import operations

    with invocation.project() as project:
        found = operations.resume(project, pipeline)
        if invocation.json:
            invocation.say_json({"pipeline": pipeline, "suspended": None, "was_suspended": found is not None})
        else:
            invocation.say(f"{pipeline} runs by its schedule again" if found else f"{pipeline} was not suspended")
    return 0


@click.command()
@pipeline_option
@tables_option
@click.option("--until", required=True, metavar="VALUE", help="The cursor value that must be reached.")
@click.option("--timeout", metavar="SPAN", help="Give up after this long: 10m. Default: wait for ever.")
@common
@click.pass_obj
def wait(invocation: Invocation, pipeline: str | None, tables: tuple[str, ...], until: str, timeout: str | None) -> int:
    """Wait until everything before VALUE is in the target, for every table.

    Looks at the state only: somebody else must run the pipeline. Exit code 1 if the time is up first.
    """
    from strandline.cli.selection import one_pipeline
    from strandline.config import parse_duration
    from strandline.operations.reached import Reaching

    with invocation.project() as project:
        name = one_pipeline(project, pipeline)
        deadline = None if timeout is None else time.monotonic() + parse_duration(timeout).total_seconds()
        reaching = Reaching(project, name, tables, until)
        while (missing := reaching.missing()) and (deadline is None or time.monotonic() < deadline):
            time.sleep(_POLL_SECONDS if deadline is None else min(_POLL_SECONDS, max(0, deadline - time.monotonic())))
        if invocation.json:
            invocation.say_json({"pipeline": name, "until": until, "reached": not missing, "missing": missing})
        elif missing:
            shown = "\n".join(f"  {table}: {where}" for table, where in missing.items())
            invocation.tell(f"not reached {until} after {timeout}:\n{shown}")
        else:
            invocation.say(f"{name} has reached {until}")
        return 1 if missing else 0

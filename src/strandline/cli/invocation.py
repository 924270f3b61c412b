"""One call of the command line: its common flags, its project, and where text goes.

Data goes to stdout, everything else to stderr, and all of it through the redactor. Knows no command.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

import click

from strandline.core.errors import ConfigError, StrandlineError

if TYPE_CHECKING:
    from strandline.project import Project
    from strandline.secrets import Redactor

Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass
class Invocation:
    config: str | None = None
    json: bool = False
    debug: bool = False
    redactor: Redactor | None = None
    rows_on_stdout: bool = False  # a target is `stdout:`, and nothing else belongs there
    errors: list[StrandlineError] = field(default_factory=list)  # told so far
    until_the_end: ExitStack = field(default_factory=ExitStack)  # undone when the command has ended

    def project(self) -> Project:
        """The project of the config file. Secrets are known to the redactor even if loading fails half-way."""
        from strandline.config import load_config
        from strandline.project import Project
        from strandline.secrets import Redactor

        self.redactor = Redactor()
        if self.debug:
            self.until_the_end.enter_context(logged_to_stderr(self.redactor))
        config = load_config(Path(self.config) if self.config else None, redactor=self.redactor)
        if str(config.root) not in sys.path:
            sys.path.append(str(config.root))  # `transform: module:function` lies beside the config
        project = Project(config)
        if project.lineage is not None:
            project.lineage.tell = lambda _, message, **__: self.tell(f"note: {message}")
        return project

    def redact(self, text: str) -> str:
        return self.redactor.redact(text) if self.redactor else text

    def say(self, text: str) -> None:
        """Data, to stdout."""
        if self.rows_on_stdout:
            self.tell(text)
            return
        click.echo(self.redact(text), color=colours(sys.stdout))

    def tell(self, text: str) -> None:
        """Anything that is not data, to stderr."""
        click.echo(self.redact(text), err=True, color=colours(sys.stderr))

    def say_json(self, value: dict[str, Any]) -> None:
        self.say(json.dumps({"schema_version": 1, **value}, indent=2, ensure_ascii=False))

    def tell_error(self, error: StrandlineError, cause: BaseException | None = None) -> None:
        """An error as a person should meet it; the trace only with --debug."""
        self.errors.append(error)
        self.tell(click.style("error:", fg="red", bold=True) + " " + error.explain())
        if self.debug:
            self.tell("\n" + "".join(traceback.format_exception(cause or error)).rstrip())

    def room(self) -> int | None:
        """The width of the terminal that data goes to; None on a pipe, where nothing is shortened."""
        return shutil.get_terminal_size().columns if sys.stdout.isatty() else None

    def command(self, *words: str) -> str:
        """A command line to suggest, with the config file this one was given."""
        given = ("-c", self.config) if self.config else ()
        return shlex.join(("strandline", *words, *given))

    def confirm(self, question: str, *, yes: bool) -> None:
        """Ask on a terminal; elsewhere `--yes` must have been given."""
        if yes:
            return
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            self.tell(question)
            raise ConfigError("this needs an answer, and there is no terminal to ask on", remedy="Add --yes to go on.")
        if not click.confirm(question + "\nGo on?", err=True):
            self.tell("nothing was changed")
            raise click.exceptions.Exit(1)


def colours(stream: IO[str]) -> bool:
    """Only on a terminal that can, and where NO_COLOR does not forbid it."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


@contextmanager
def logged_to_stderr(redactor: Redactor) -> Iterator[None]:
    """Every query, window and state access that is logged below "strandline", without secrets.

    Whoever called us from Python has its own logging back afterwards.
    """
    import logging
    import time

    plain = logging.Formatter("%(asctime)s.%(msecs)03dZ %(name)s: %(message)s", "%H:%M:%S")
    plain.converter = time.gmtime
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(redactor.formatter(plain))
    log = logging.getLogger("strandline")
    before = log.handlers[:], log.level, log.propagate
    log.handlers[:], log.propagate = [handler], False
    log.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        log.handlers[:], level, log.propagate = before
        log.setLevel(level)


def _keep(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    if value:
        setattr(ctx.find_object(Invocation) or ctx.ensure_object(Invocation), str(param.name), value)


def common(command: Command) -> Command:
    """-c, --json and --debug: every command takes them."""
    for option in (
        click.option("--debug", is_flag=True, expose_value=False, callback=_keep, help="Log every step; show traces."),
        click.option("--json", is_flag=True, expose_value=False, callback=_keep, help="Print JSON on stdout."),
        click.option(
            "-c",
            "--config",
            metavar="FILE",
            expose_value=False,
            callback=_keep,
            help="The config file. Default: STRANDLINE_CONFIG, or strandline.yml from here upward.",
        ),
    ):
        command = option(command)
    return command


def pipeline_option(command: Command) -> Command:
    return click.option("-p", "--pipeline", metavar="PIPELINE", help="One pipeline. Default: all of them.")(command)


def tables_option(command: Command) -> Command:
    return click.option("-t", "--table", "tables", metavar="TABLE", multiple=True, help="Only this table; repeatable.")(
        command
    )


def table_option(command: Command) -> Command:
    return click.option("-t", "--table", metavar="TABLE", required=True, help="The table.")(command)

"""The root command, and how errors become text and exit codes. Knows no command's work."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, MutableMapping, Sequence
from importlib import import_module

import click

from strandline import __version__
from strandline.cli.invocation import Invocation
from strandline.core.errors import ConfigError, RunFailedError, StrandlineError

INTERRUPTED = 130
_BUG = "This is a bug in Strandline; nothing is lost. Run it again with --debug for the trace, and report that."


# By the module that each is in; in the order in which people need them.
_COMMANDS = {
    "init": "setup",
    "doctor": "setup",
    "demo": "setup",
    "plan": "plan",
    "sync": "sync",
    "backfill": "backfill",
    "retry": "sync",
    "verify": "verify",
    "status": "status",
    "watermark": "watermark",
    "runs": "runs",
    "stage": "stage",
    "serve": "serve",
    "suspend": "serve",
    "resume": "serve",
    "wait": "serve",
    "alerts": "alerts",
    "spark": "spark",
    "s3clean": "stage",
}


class _Commands(MutableMapping[str, click.Command]):
    """Each is imported when it is asked for: none waits for what only the others need."""

    def __init__(self) -> None:
        self._known: dict[str, click.Command | str] = {**_COMMANDS}

    def __getitem__(self, name: str) -> click.Command:
        found = self._known[name]
        if isinstance(found, str):
            found = self._known[name] = getattr(import_module(f"strandline.cli.{found}"), name)
        return found

    def __setitem__(self, name: str, command: click.Command) -> None:
        self._known[name] = command

    def __delitem__(self, name: str) -> None:
        del self._known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


class _Ordered(click.Group):
    """Lists commands in their order, not by the alphabet."""

    def list_commands(self, _ctx: click.Context, /) -> list[str]:
        return list(self.commands)


@click.group(
    cls=_Ordered,
    commands=_Commands(),
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, "--version", prog_name="strandline", message="%(prog)s %(version)s")
@click.pass_context
def app(ctx: click.Context) -> None:
    """Incremental data pipelines on Spark that never lose a row and never apply one twice.

    \b
    Exit codes: 0 done, or nothing new        1 a run failed
                2 usage or configuration      3 plan --detailed-exitcode found work
                130 Ctrl-C
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def execute(argv: Sequence[str]) -> int:
    """Carry out a command line; errors are printed. Returns the exit code."""
    invocation = Invocation()
    try:
        return _invoke(argv, invocation)
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.ClickException as error:
        invocation.tell(f"error: {error.format_message()}")
        usage = error.ctx if isinstance(error, click.UsageError) else None
        if usage is not None:
            invocation.tell(f"\n  {usage.get_usage()}\n  Help: {usage.command_path} --help")
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        invocation.tell("stopped by Ctrl-C; what was committed stays, and the next run goes on from there")
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader has gone; so do we
        return 0
    except StrandlineError as error:
        invocation.tell_error(error)
        return error.exit_code
    except Exception as error:
        first = (str(error).strip().splitlines() or [""])[0]
        invocation.tell_error(StrandlineError(f"{type(error).__name__}: {first}".rstrip(": "), remedy=_BUG), error)
        return 1


def call(argv: Sequence[str]) -> int:
    """Carry out a command line; failure is raised. Returns 0, or 3 where that was asked for."""
    invocation = Invocation()
    try:
        code = _invoke(argv, invocation)
    except click.exceptions.Exit as done:
        code = done.exit_code
    except click.Abort:
        raise KeyboardInterrupt from None
    except click.ClickException as error:
        raise ConfigError(error.format_message()) from error
    if code in (1, 2):
        first = invocation.errors[0] if invocation.errors else None
        raise RunFailedError(invocation.redact(str(first) if first else "the command failed")) from first
    return code


def _invoke(argv: Sequence[str], invocation: Invocation) -> int:
    with invocation.until_the_end:
        code = app.main(list(argv), prog_name="strandline", standalone_mode=False, obj=invocation)
    return code if isinstance(code, int) else 0

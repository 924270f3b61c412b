"""The root command, and how errors become text and exit codes. Knows no command's work."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click

from strandline import __version__
from strandline.cli.alerts import alerts
from strandline.cli.backfill import backfill
from strandline.cli.invocation import Invocation
from strandline.cli.plan import plan
from strandline.cli.runs import runs
from strandline.cli.serve import resume, serve, suspend, wait
from strandline.cli.setup import demo, doctor, init
from strandline.cli.spark import spark
from strandline.cli.stage import s3clean, stage
from strandline.cli.status import status
from strandline.cli.sync import retry, sync
from strandline.cli.verify import verify
from strandline.cli.watermark import watermark
from strandline.core.errors import ConfigError, RunFailedError, StrandlineError

INTERRUPTED = 130
_BUG = "This is a bug in Strandline; nothing is lost. Run it again with --debug for the trace, and report that."


class _Ordered(click.Group):
    """Lists commands in the order they were added: the order in which people need them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        known = super().list_commands(ctx)
        return sorted(known, key=list(self.commands).index)


@click.group(
    cls=_Ordered,
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


for _command in (
    *(init, doctor, demo, plan, sync, backfill, retry, verify, status, watermark, runs, stage),
    *(serve, suspend, resume, wait, alerts, spark, s3clean),
):
    app.add_command(_command)


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

"""Which stages a command is about: flags of `sync` and `backfill`, `--stage` of `watermark`, and the names under which
people know them from elsewhere, which are taken and not shown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from strandline.cli.invocation import Command


def stage_flags(command: Command) -> Command:
    """The command is given `stage`: "extract" or "load"; empty: every stage."""
    for option in (
        _flag("--redshift-only", "load"),
        _flag("--backup-only", "extract"),
        _flag("--load-only", "load", "Only from the stage into the target: the source is not asked."),
        _flag("--extract-only", "extract", "Only from the source into the stage."),
    ):
        command = option(command)
    return command


def stage_option(command: Command) -> Command:
    """The command is given `stage`; empty: the stage that reads the source."""
    said = click.option(
        "--stage",
        metavar="STAGE",
        expose_value=False,
        callback=lambda ctx, _, value: _keep(ctx, value) if value else None,
        help="extract, load or load:NAME. Default: the one that reads the source.",
    )
    for option in (_flag("--redshift-only", "load"), _flag("--mysql-only", "extract"), said):
        command = option(command)
    return command


def _flag(name: str, stage: str, text: str = "") -> Callable[[Command], Command]:
    def keep(ctx: click.Context, _: click.Parameter, value: bool) -> None:
        if value:
            _keep(ctx, stage)

    return click.option(name, is_flag=True, expose_value=False, callback=keep, help=text, hidden=not text)


def _keep(ctx: click.Context, stage: str) -> Any:
    if ctx.params.setdefault("stage", stage) != stage:
        raise click.UsageError(f"one stage at a time: {ctx.params['stage']} or {stage}", ctx)

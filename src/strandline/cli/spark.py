"""`strandline spark`: the warm Spark of a config, started before it is needed, looked at, ended."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

import click

from strandline.cli.invocation import Invocation, common

if TYPE_CHECKING:
    from strandline.spark.daemon import Seen


@click.group(invoke_without_command=True)
@click.pass_context
def spark(ctx: click.Context) -> None:
    """The Spark that `spark: {warm: 10m}` keeps running in the background."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@spark.command()
@common
@click.pass_obj
def start(invocation: Invocation) -> int:
    """Have it running, as the first `sync` that needs Spark would."""
    with invocation.project() as project:
        from strandline.spark import daemon
        from strandline.spark.own import order

        _show(invocation, [daemon.start(order(project.config))], "")
    return 0


_all = click.option("--all", "every", is_flag=True, help="Of all your configs, not of this one alone.")


@spark.command()
@_all
@common
@click.pass_obj
def status(invocation: Invocation, every: bool) -> int:
    """Say whether it runs, who uses it, when it ends, and where its log is."""
    _show(invocation, _found(invocation, every), "no warm Spark is running")
    return 0


@spark.command()
@_all
@common
@click.pass_obj
def stop(invocation: Invocation, every: bool) -> int:
    """End it; where a run uses it, as soon as that run has ended."""
    from strandline.spark import daemon

    found = _found(invocation, every)
    ended = [daemon.stop(each) for each in found]
    if invocation.json:
        told = [each.to_json() | {"ended": done} for each, done in zip(found, ended, strict=True)]
        invocation.say_json({"sparks": told})
        return 0
    for each, done in zip(found, ended, strict=True):
        what = "has ended" if done else "is in use, and ends when that run has ended"
        invocation.say(f"the warm Spark of {each.record.config} (pid {each.record.pid}) {what}")
    if not found:
        invocation.say("no warm Spark is running")
    return 0


def _found(invocation: Invocation, every: bool) -> list[Seen]:
    from strandline.spark import daemon

    if every:
        return daemon.seen(None)
    with invocation.project() as project:
        return daemon.seen(str(project.config.path))


def _show(invocation: Invocation, found: Sequence[Seen], nothing: str) -> None:
    if invocation.json:
        invocation.say_json({"sparks": [each.to_json() for each in found]})
    for each in () if invocation.json else found:
        invocation.say("\n".join(_lines(each)))
    if not found and not invocation.json:
        invocation.say(nothing)


def _lines(each: Seen) -> list[str]:
    from strandline.config.duration import format_duration

    record = each.record
    left = max(0, round(record.idle_seconds - each.idle_for))
    use = "in use" if each.in_use else f"idle, ends in {format_duration(timedelta(seconds=left))}"
    return [
        f"warm Spark {record.spark}: pid {record.pid}, 127.0.0.1:{record.port}, {use}",
        f"  config   {record.config}",
        f"  started  {record.started_at}",
        f"  log      {record.log}",
    ]

"""docs/cli.md, from the commands themselves: `python -m strandline.cli.reference > docs/cli.md`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click

from strandline.cli.app import app

_HEAD = """\
# Command line

<!-- Made by `python -m strandline.cli.reference > docs/cli.md`; a test keeps it up to date. -->

Data goes to stdout, progress and errors to stderr. Colours and bars appear on a terminal only, and `NO_COLOR` switches
colours off. Nothing ever asks without a terminal: the flag to give is named instead.

| exit code | meaning |
| --- | --- |
| 0 | done, or nothing new |
| 1 | a run failed |
| 2 | usage or configuration |
| 3 | `plan --detailed-exitcode` found work |
| 130 | Ctrl-C; the slices at work were finished, a second Ctrl-C stops at once |

From Python or spark-submit: `strandline.cli.run(["sync", "-p", "shop"])` raises on failure and never exits.

Every command but `demo` takes these:

| option | |
| --- | --- |
"""


def document() -> str:
    """The whole page."""
    commands = [(path, command) for path, command in _walk(app, "strandline") if path != "strandline"]
    shared = [_row(option) for option in _options(commands[0][1]) if option.name in _COMMON]
    parts = [_HEAD + "\n".join(shared), *(_section(path, command) for path, command in commands)]
    return "\n\n".join(parts) + "\n"


_COMMON = ("config", "json", "debug")


def _walk(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        for name, part in command.commands.items():
            if not part.hidden:
                yield from _walk(part, f"{path} {name}")


def _options(command: click.Command) -> list[click.Option]:
    return [param for param in command.params if isinstance(param, click.Option) and not param.hidden]


def _section(path: str, command: click.Command) -> str:
    arguments = [param.metavar or "" for param in command.params if isinstance(param, click.Argument)]
    own = [option for option in _options(command) if option.name not in _COMMON]
    lines = [f"## {' '.join([path, *arguments])}", "", _prose(command)]
    if own:
        lines += ["", "| option | |", "| --- | --- |", *(_row(option) for option in own)]
    if isinstance(command, click.Group):
        lines += ["", "Commands: " + ", ".join(f"`{name}`" for name in command.commands)]
    return "\n".join(lines)


def _prose(command: click.Command) -> str:
    return inspect.cleandoc(command.help or "")


def _row(option: click.Option) -> str:
    names = ", ".join(f"`{name}`" for name in option.opts)
    value = "" if option.is_flag else f" {option.metavar}"
    default = f" Default: {option.default}." if option.show_default else ""
    needed = " Required." if option.required else ""
    return f"| {names}{value} | {option.help or ''}{needed}{default} |"


if __name__ == "__main__":
    print(document(), end="")

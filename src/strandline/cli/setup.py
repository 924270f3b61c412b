"""`strandline init`, `doctor` and `demo`: from nothing to a config, whether all a run needs is there, and a show."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from strandline.cli.invocation import Invocation, common, tables_option

if TYPE_CHECKING:
    from strandline.doctor import Finding
    from strandline.endpoint import Endpoint
    from strandline.propose import Proposal

DEFAULT_FILE = "strandline.yml"


@click.command()
@click.option("--source", metavar="URL", help="The database: postgresql://reader@db/shop, without the password.")
@click.option("--target", metavar="URL", help="Where the copies go. Default: delta:lake, a folder beside the config.")
@tables_option
@click.option("-p", "--pipeline", default="main", show_default=True, metavar="NAME", help="The pipeline's name.")
@click.option(
    "--password-variable",
    default="SOURCE_PASSWORD",
    show_default=True,
    metavar="NAME",
    help="The environment variable that holds the password, now and in the config.",
)
@click.option("--force", is_flag=True, help="Replace a config file that is already there.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@common
@click.pass_obj
def init(
    invocation: Invocation,
    source: str | None,
    target: str | None,
    tables: tuple[str, ...],
    pipeline: str,
    password_variable: str,
    force: bool,
    yes: bool,
) -> int:
    """Inspect a database and write a config: cursor, key and zone per table, each with its reason.

    Asks for what it was not told, on a terminal. -t takes names and globs; without it every table is proposed. The
    password never goes into the config.
    """
    from strandline.endpoint import Endpoint
    from strandline.propose import one_database, propose, write_config

    path = Path(invocation.config or DEFAULT_FILE)
    _check_free(path, force)
    asking = _asking(invocation) and not yes
    endpoint = _endpoint(invocation, source, password_variable, asking=asking)
    target = target or _asked("Where do the copies go?", "delta:lake", asking=asking)
    _hide(invocation, target)
    found = propose(endpoint, tables or ("*",))
    inside = one_database(endpoint, target)
    text = write_config(
        endpoint, found, target=target, pipeline=pipeline, password_variable=password_variable, inside=inside
    )
    if not invocation.json:
        invocation.say("\n".join(_proposals(found, invocation.room())) + "\n")
    if asking:
        invocation.confirm(f"Write this to {path}?", yes=False)
    path.write_text(text, encoding="utf-8")
    if invocation.json:
        invocation.say_json({"config": str(path), "pipeline": pipeline, "tables": [asdict(part) for part in found]})
    again = invocation.command("plan")
    variables = [password_variable] if endpoint.password else []
    variables += ["TARGET_PASSWORD"] if Endpoint.parse(target).password else []
    unset = [name for name in variables if name not in os.environ]
    needs = f"export {' '.join(f'{name}=…' for name in unset)}, then " if unset else ""
    invocation.tell(f"{path} written, with {len(found)} tables. Next: {needs}{again}")
    return 0


def _check_free(path: Path, force: bool) -> None:
    from strandline.core.errors import ConfigError

    if path.exists() and not force:
        raise ConfigError(f"{path} exists already", remedy="Give another file with -c, or --force to replace it.")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"there is no folder {path.absolute().parent}")


def _endpoint(invocation: Invocation, source: str | None, variable: str, *, asking: bool) -> Endpoint:
    """The database, with a password from the variable or a hidden prompt; the redactor knows it from here on."""
    from strandline.core.errors import ConfigError
    from strandline.endpoint import Endpoint
    from strandline.secrets import Redactor

    url = source or _asked("Which database? (postgresql://reader@db/shop)", "", asking=asking)
    if not url:
        raise ConfigError("no database was named", remedy="Give it: --source postgresql://reader@db:5432/shop")
    invocation.redactor = Redactor()
    endpoint = Endpoint.parse(url)
    password = endpoint.password or os.environ.get(variable, "")
    if not password and endpoint.user and asking:
        password = click.prompt(
            f"Password of {endpoint.user}", default="", hide_input=True, show_default=False, err=True
        )
    invocation.redactor.register(password)
    return replace(endpoint, password=password)


def _hide(invocation: Invocation, target: str) -> None:
    """The target's password is no more to be shown than the source's."""
    from strandline.endpoint import Endpoint

    if invocation.redactor is not None:
        invocation.redactor.register(Endpoint.parse(target).password)


def _asking(invocation: Invocation) -> bool:
    return not invocation.json and sys.stdin.isatty() and sys.stderr.isatty()


def _asked(question: str, default: str, *, asking: bool) -> str:
    """An answer, or the default where nobody is asked."""
    if not asking:
        return default
    answer: str = click.prompt(question, default=default or None, err=True)
    return answer


def _proposals(found: list[Proposal], room: int | None) -> list[str]:
    from strandline.cli import render, text

    rows = [
        (
            part.name,
            part.mode.value,
            part.cursor or "–",
            ", ".join(part.key) or "–",
            part.zone or "",
            "?" if part.rows is None else f"~{text.count(part.rows)}",
        )
        for part in found
    ]
    lines = render.table(("table", "mode", "cursor", "key", "zone", "rows"), rows, right=("rows",), room=room)
    for part in found:
        lines += ["", f"  {part.name}", *(f"    {reason}" for reason in part.reasons)]
        lines += [f"    {click.style('careful:', fg='yellow')} {warning}" for warning in part.warnings]
    return lines


@click.command()
@click.option("-p", "--pipeline", "pipelines", metavar="PIPELINE", multiple=True, help="Only this one; repeatable.")
@common
@click.pass_obj
def doctor(invocation: Invocation, pipelines: tuple[str, ...]) -> int:
    """Check everything a run will need, and say what to do about what is missing.

    Config, Java, Spark, jars, drivers, connections, privileges, clocks, cursors, keys, what is staged and not loaded,
    targets and their columns, and the state. Starts no JVM. Exits with 1 if something fails, with 2 if that is the
    config.
    """
    from strandline.doctor import Level, examine

    found: list[Finding] = []
    for finding in examine(invocation.project, pipelines):
        if not invocation.json:
            above = found[-1].pipeline if found else ""
            invocation.say("\n".join(_finding(finding, above, invocation.room())))
        found.append(finding)
    failures = [finding for finding in found if finding.level is Level.FAIL]
    warnings = sum(finding.level is Level.WARN for finding in found)
    if invocation.json:
        invocation.say_json({"findings": [finding.to_json() for finding in found]})
    else:
        from strandline.cli import text

        invocation.say(f"{text.many(len(failures), 'failure')}, {text.many(warnings, 'warning')}")
    if any(finding.area == "config" for finding in failures):
        return 2
    return 1 if failures else 0


def _finding(finding: Finding, above: str, room: int | None) -> list[str]:
    """` warn  source  text`, with what to do below it, and a heading where another pipeline begins.

    Text is wrapped where a terminal would cut it in the middle of a word; what is to be copied is not.
    """
    from textwrap import wrap

    from strandline.cli import render

    lead = f" {render.paint(f'{finding.level.value:<5}')} {finding.area:<7} "
    gap = " " * 15
    width = max(40, (room or 100_000) - len(gap))
    text = [part for line in finding.text.splitlines() for part in wrap(line, width, break_long_words=False)]
    body = [*text, *finding.remedy.splitlines()]
    if finding.docs:
        body.append(f"Docs: {finding.docs}")
    heading = ["", click.style(finding.pipeline, bold=True)] if finding.pipeline not in ("", above) else []
    return [*heading, lead + body[0], *(gap + line for line in body[1:])]


@click.command()
@click.argument("folder", metavar="[FOLDER]", required=False, type=click.Path(file_okay=False, path_type=Path))
@click.option("--resume", is_flag=True, help="Open the shop of an earlier demo again, until Ctrl-C.")
def demo(folder: Path | None, resume: bool) -> int:
    """Show it all on a shop of its own: first load, increment, crash, resume, and a comparison with the source.

    Starts an embedded PostgreSQL, leaves FOLDER (strandline-demo) to go on with and no process behind. It brings its
    own config, and what it prints is for people: it takes neither -c nor --json.
    """
    from strandline import demo as shop

    place = folder or shop.FOLDER
    return shop.resume(place) if resume else shop.run(place)

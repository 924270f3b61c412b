"""`strandline demo`: a shop in an embedded PostgreSQL, kept in step with a lake through a crash, and compared.

Everything shown is real: the database, its changes, the commands, the SIGKILL and the checksums. It leaves a folder to
go on with and no process behind.
"""

from __future__ import annotations

import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from shutil import get_terminal_size
from types import FrameType

import click

from strandline.cli import render, text
from strandline.cli.progress import Lines
from strandline.core.errors import ConfigError, StrandlineError
from strandline.core.events import Listener
from strandline.demo import shop
from strandline.demo.compare import Compared, compare
from strandline.project import Project, load
from strandline.testing.servers import Postgres

FOLDER = Path("strandline-demo")
_KEYS = {"customers": ("id",), "orders": ("id",), "order_items": ("order_id", "line")}
_GUARD_SECONDS = 1.0
_KILL_AT = re.compile(r"orders sync: slice 2 of \d+: .*batch")
_CONFIG = """\
# The demo's shop. Start its PostgreSQL with: strandline demo --resume
pipelines:
  shop:
    source: postgresql://reader:${{file:password}}@127.0.0.1:{port}/shop
    target: delta:lake
    guard: 1s                 # the default is 5s; the demo is impatient
    defaults: {{cursor: updated_at}}
    tables:
      - customers
      - {{name: orders, slice_rows: 3000}}
      - order_items
"""


def run(folder: Path = FOLDER) -> int:
    """The whole demo; the exit code is 1 if a sync failed or source and target differ."""
    if folder.exists() and any(folder.iterdir()):
        remedy = f"Go on with it: strandline demo --resume\nOr remove the folder {folder} and start over."
        raise ConfigError(f"{folder} is there already", remedy=remedy)
    os.environ.setdefault("STRANDLINE_CLASS_ARCHIVE", "off")  # no process of ours outlives the demo
    started = time.monotonic()
    with ExitStack() as stack:
        stack.enter_context(_ended_by_sigterm())
        _step("A shop", "an embedded PostgreSQL, three tables whose updated_at is set by triggers")
        server = stack.enter_context(Postgres(folder / "postgres"))
        _open_shop(server, folder)
        people = stack.enter_context(shop.People(lambda: server.connect("shop")))
        _say(f"127.0.0.1:{server.port}; from now on people order, ship and move all the time")
        project = stack.enter_context(load(folder / "strandline.yml"))
        demo = _Demo(folder, project, people, server)
        agreed = demo.play()
    _end(folder, time.monotonic() - started)
    return 0 if agreed else 1


def resume(folder: Path = FOLDER) -> int:
    """Start the shop again and keep it busy until Ctrl-C."""
    if not (folder / "strandline.yml").exists():
        raise ConfigError(f"there is no demo in {folder}", remedy="Start one: strandline demo")
    with ExitStack() as stack:
        stack.enter_context(_ended_by_sigterm())
        server = stack.enter_context(Postgres(folder / "postgres"))
        stack.enter_context(shop.People(lambda: server.connect("shop")))
        _say(f"The shop is open on 127.0.0.1:{server.port} until Ctrl-C. In another terminal:")
        for command in ("plan", "sync", "status", "runs list"):
            _command(folder, command)
        try:
            signal.pause()
        except KeyboardInterrupt:
            _say("closed; the data stays")
    return 0


class _Demo:
    def __init__(self, folder: Path, project: Project, people: shop.People, server: Postgres) -> None:
        self.folder = folder
        self.project = project
        self.people = people
        self.server = server
        self.failed = False

    def play(self) -> bool:
        _step("Plan", "what would move, before anything does; no JVM is started")
        self.plan()
        _step("First load", "Spark starts, and the three tables go into Delta tables")
        self.sync()
        _step(
            "Increment", f"only what changed since; the people rest for {_GUARD_SECONDS:g} s first, which is the guard"
        )
        self.settle()
        self.sync()
        _step("Nothing to do", "a process of its own, from start to exit: a sync that finds nothing starts no JVM")
        self.child("sync")
        _step("Crash", "8,000 orders change at once; the sync is killed with SIGKILL inside its second batch")
        self.crash()
        _step("Resume", "the plan that was left is carried out as it was written; no row is lost, none applied twice")
        self.plan()
        self.sync()
        _step("Compare", "rows and checksums below the watermark, by PostgreSQL and from the Delta files")
        return self.compare() and not self.failed

    def plan(self) -> None:
        _command(self.folder, "plan")
        shown = self.project.plan("shop")
        _lines(render.plan(shown, datetime.now(UTC), run="strandline sync", room=_room()))

    def sync(self) -> None:
        _command(self.folder, "sync")
        with _progress() as listener:
            result = self.project.sync("shop", listener=listener)
        _lines(render.result(result, datetime.now(UTC), room=_room()))
        self.failed |= result.failed

    def settle(self) -> None:
        """Some business, then a rest that outlasts the guard, so that the next sync takes all of it."""
        time.sleep(2)
        self.people.rest()
        time.sleep(_GUARD_SECONDS + 0.2)

    def child(self, *words: str) -> None:
        _command(self.folder, *words)
        started = time.monotonic()
        done = subprocess.run(self._argv(*words), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        _lines(done.stdout.splitlines())
        _say(f"exit code {done.returncode} after {time.monotonic() - started:.1f} s")
        self.failed |= done.returncode != 0

    def crash(self) -> None:
        with self.server.connect("shop") as connection:
            shop.change_many(connection, 8_000, transactions=16)
        time.sleep(_GUARD_SECONDS + 0.2)
        _command(self.folder, "sync")
        process = subprocess.Popen(
            self._argv("sync"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # its JVM dies with it, as in a power cut
        )
        try:
            assert process.stderr is not None
            for line in process.stderr:
                _say(line.rstrip())
                if _KILL_AT.search(line):
                    os.killpg(process.pid, signal.SIGKILL)
                    _say(click.style(f"kill -KILL {process.pid}", fg="red", bold=True))
                    break
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if process.returncode != -signal.SIGKILL:
            raise StrandlineError(f"the sync that was to be killed ended by itself with exit code {process.returncode}")

    def compare(self) -> bool:
        self.people.work()
        time.sleep(_GUARD_SECONDS)
        positions = self.project.books.positions("shop")
        found = []
        with self.server.connect("shop") as connection:
            for table in shop.TABLES:
                watermark = positions["shop", table, "sync"].watermark
                if watermark is None:
                    raise StrandlineError("no watermark after a sync", where=f"shop.{table}")
                found.append(compare(connection, self.folder / "lake", table, _KEYS[table], watermark))
        _lines(render.table(_HEAD, [_row(part) for part in found], right=_NUMBERS, room=_room()))
        later = sum(part.later for part in found)
        _say(f"The people are back: {text.many(later, 'row')} changed after the watermark and come with the next run,")
        _say("as do the last seconds of any run: the guard stays that far below what is safe to read.")
        return all(part.agree for part in found)

    def _argv(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "strandline", *words, "-c", str(self.folder / "strandline.yml")]


_HEAD = ("table", "watermark", "source rows", "checksum", "target rows", "checksum of the copy", "verdict")
_NUMBERS = ("source rows", "target rows")


def _row(part: Compared) -> tuple[str, ...]:
    verdict = "equal" if part.agree else "different"
    source, target = part.source, part.target
    rows = (text.count(source.rows), str(source), text.count(target.rows), str(target))
    return (part.table, part.watermark.text.split(" ")[1], *rows, verdict)


def _open_shop(server: Postgres, folder: Path) -> None:
    secret = secrets.token_hex(12)
    with server.connect() as connection:
        connection.execute("CREATE DATABASE shop")
        connection.execute(f"CREATE ROLE reader LOGIN PASSWORD '{secret}'")
    with server.connect("shop") as connection:
        shop.create(connection)
        connection.execute("GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader")
    (folder / "password").touch(mode=0o600)
    (folder / "password").write_text(secret)
    (folder / "strandline.yml").write_text(_CONFIG.format(port=server.port))


@contextmanager
def _progress() -> Iterator[Listener]:
    if sys.stderr.isatty():
        from strandline.cli.bars import Bars

        with Bars() as bars:
            yield bars
    else:
        yield Lines(_say)


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """SIGTERM unwinds like Ctrl-C, so that every process is stopped."""

    def end(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _end(folder: Path, seconds: float) -> None:
    _step(
        "Your turn",
        f"everything took {seconds:.0f} s; PostgreSQL is stopped, {folder}/ has its data, the lake and the state",
    )
    _command(folder.parent, "demo --resume", config=False)
    _say("opens the shop again until Ctrl-C; then, in another terminal:")
    for command in ("status", "plan", "sync", "watermark list", "runs list"):
        _command(folder, command)


def _step(title: str, words: str) -> None:
    click.echo(f"\n{click.style('■ ' + title, fg='cyan', bold=True)}  {words}", color=_colours())


def _command(folder: Path, *words: str, config: bool = True) -> None:
    where = f" -c {folder}/strandline.yml" if config else ""
    click.echo(click.style(f"  $ strandline {' '.join(words)}{where}", bold=True), color=_colours())


def _lines(lines: list[str]) -> None:
    for line in lines:
        _say(line)


def _say(line: str) -> None:
    click.echo(f"  {line}".rstrip(), color=_colours())


def _colours() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _room() -> int | None:
    return get_terminal_size().columns - 2 if sys.stdout.isatty() else None

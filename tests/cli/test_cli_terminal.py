"""On a terminal: colours, questions and bars; and none of them where they are not wanted."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from shop import PASSWORD, Shop, open_shop

from strandline import cli
from strandline.cli import render
from strandline.cli.bars import Bars
from strandline.core.batch import Applied, Batch
from strandline.core.events import Committed, Intended, Planned, Retrying, TableFinished, Warned
from strandline.core.position import Reason, Status, TablePlan
from strandline.core.watermark import Kind, Watermark
from strandline.core.window import Window, by_cursor


@pytest.fixture
def synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shop:
    shop = open_shop(tmp_path, monkeypatch, capsys)
    shop.write("orders", *range(9))
    assert shop.run("sync", "-p", "shop").code == 0
    return shop


def on_terminal(shop: Shop, *argv: str, typed: str = "", **variables: str) -> tuple[int, str]:
    """A command in a process of its own, with a terminal for all three streams; what it wrote there."""
    here, there = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "SHOP_PASSWORD": PASSWORD, **variables}
    environment["PYTHONPATH"] = str(Path(cli.__file__).parents[2])
    if "NO_COLOR" not in variables:
        environment.pop("NO_COLOR", None)
    command = [sys.executable, "-m", "strandline", *argv, "-c", str(shop.config)]
    with subprocess.Popen(command, stdin=there, stdout=there, stderr=there, env=environment) as process:
        os.close(there)
        os.write(here, typed.encode())
        written = b""
        while True:
            try:
                part = os.read(here, 4096)
            except OSError:  # Linux: the other end is closed
                break
            if not part:
                break
            written += part
    os.close(here)
    return process.returncode, written.decode()


def test_a_terminal_has_colours_unless_no_color_forbids_them(synced: Shop) -> None:
    assert "\x1b[32mCOMPLETED" in on_terminal(synced, "runs")[1]
    assert "\x1b" not in on_terminal(synced, "runs", NO_COLOR="1")[1]
    assert "\x1b" not in on_terminal(synced, "runs", TERM="dumb")[1]


def test_a_question_is_asked_on_a_terminal_and_no_changes_nothing(synced: Shop) -> None:
    forget = ("watermark", "forget", "-t", "orders")
    code, said = on_terminal(synced, *forget, typed="n\n")
    assert code == 1
    assert "Go on?" in said and "nothing was changed" in said
    assert synced.run("watermark", "get", "-t", "orders", "--json").json["stages"]
    code, said = on_terminal(synced, *forget, typed="y\n")
    assert code == 0
    (stage,) = synced.run("watermark", "get", "-t", "orders", "--json").json["stages"]
    assert (stage["watermark"], stage["status"]) == (None, None)


def test_init_that_was_told_yes_asks_nothing(synced: Shop) -> None:
    """It goes on to the database, which is not there."""
    synced.config.unlink()
    code, said = on_terminal(synced, "init", "--source", "postgresql://reader@127.0.0.1:1/shop", "--yes")
    assert (code, "?" in said) == (1, False), said


def test_long_table_names_are_shortened_to_the_room_there_is() -> None:
    row = ("settlement_normal_delivery_detail", "注文", "12,400")
    whole = render.table(("table", "stage", "rows"), [row], right=("rows",))
    assert whole[1] == "  settlement_normal_delivery_detail   注文    12,400"
    short = render.table(("table", "stage", "rows"), [row], right=("rows",), room=40)
    assert short[1] == "  settlement_normal_de…   注文    12,400"


def at(second: int) -> Watermark:
    return Watermark(Kind.TIMESTAMP, f"2026-11-15 08:00:{second:02}")


def test_a_bar_per_table_shows_slices_rows_and_how_it_ended() -> None:
    slices = by_cursor(Window(None, at(30)), [at(10), at(20)])
    plan = TablePlan("orders", "sync", Window(None, at(30)), slices, Reason.FIRST_LOAD, 2_000)
    where = ("run", "shop", "orders[/]", "sync")
    batch = Batch("store", 1, 1, None, at(10), at(10), "a")
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=140, color_system=None)

    def shown() -> str:
        bars._progress.refresh()
        text = screen.getvalue()
        screen.truncate(0)
        return text

    with Bars(console) as bars:
        bars(Planned(*where, plan))
        bars(Intended(*where, batch, slices[0], 1, 3))
        assert "slice 1/3" in shown()
        bars(Committed(*where, batch, Applied(1_000, 1_000), 1, 3))
        bars(Intended(*where, batch, slices[1], 2, 3))
        text = shown()
        assert "slice 2/3" in text and "1,000 rows" in text and "/s" in text and "left" in text
        bars(Retrying(*where, "deadlock", 2.0))
        assert "again in 2.0 s" in shown()
        bars(Warned(*where, "the clock [is] odd"))
        assert "shop.orders[/]: the clock [is] odd" in shown()
        bars(TableFinished(*where, Status.COMPLETED, Applied(2_000, 1_900, 100), 3, 4.0))
        text = shown()
        assert "done" in text and "1,900 new, 100 changed" in text

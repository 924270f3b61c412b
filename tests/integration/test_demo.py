"""The demo runs, its comparison is genuine, and it leaves a folder to go on with and no process behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from importlib import import_module
from pathlib import Path
from typing import Any

import psycopg
import pytest
from deltalake import write_deltalake
from gate import until

from strandline import demo
from strandline.core.errors import ConfigError
from strandline.core.watermark import Kind, Watermark
from strandline.demo import shop
from strandline.demo.compare import Compared, compare

pyarrow: Any = import_module("pyarrow")
ORDERS = pyarrow.schema(
    [
        ("id", pyarrow.int64()),
        ("customer_id", pyarrow.int64()),
        ("status", pyarrow.string()),
        ("total", pyarrow.decimal128(10, 2)),
        ("updated_at", pyarrow.timestamp("us", "UTC")),
    ]
)


@pytest.fixture
def connection(pg_database: str) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    with psycopg.connect(pg_database, autocommit=True) as connection:
        shop.create(connection, customers=10, orders=200)
        yield connection


def copied(connection: psycopg.Connection[tuple[Any, ...]], lake: Path, **changed: Any) -> Watermark:
    """A copy of all orders as it stands now, the first of them perhaps altered."""
    names = ", ".join(ORDERS.names)
    rows = [
        dict(zip(ORDERS.names, row, strict=True))
        for row in connection.execute(f"SELECT {names} FROM orders ORDER BY id".encode()).fetchall()
    ]
    rows[0] |= changed
    write_deltalake(lake / "orders", pyarrow.Table.from_pylist(rows, schema=ORDERS))
    now = connection.execute("SELECT (now() AT TIME ZONE 'UTC')::text").fetchone()
    assert now is not None
    return Watermark(Kind.TIMESTAMP, now[0])


def compared(connection: psycopg.Connection[tuple[Any, ...]], lake: Path, watermark: Watermark) -> Compared:
    return compare(connection, lake, "orders", ("id",), watermark)


def test_a_true_copy_agrees(connection: psycopg.Connection[tuple[Any, ...]], tmp_path: Path) -> None:
    found = compared(connection, tmp_path, copied(connection, tmp_path))
    assert found.agree
    assert found.source.rows == found.target.rows == 200


@pytest.mark.parametrize("changed", [{"status": "lost"}, {"total": Decimal("0.01")}, {"customer_id": 999}])
def test_one_altered_value_is_found(
    connection: psycopg.Connection[tuple[Any, ...]], tmp_path: Path, changed: dict[str, Any]
) -> None:
    found = compared(connection, tmp_path, copied(connection, tmp_path, **changed))
    assert not found.agree
    assert found.source.rows == found.target.rows


def test_a_row_that_is_missing_in_the_copy_is_found(
    connection: psycopg.Connection[tuple[Any, ...]], tmp_path: Path
) -> None:
    copied(connection, tmp_path)
    connection.execute("INSERT INTO orders (customer_id, status, total) VALUES (1, 'new', 1)")
    after = connection.execute("SELECT (now() AT TIME ZONE 'UTC')::text").fetchone()
    assert after is not None
    assert not compared(connection, tmp_path, Watermark(Kind.TIMESTAMP, after[0])).agree


def test_rows_that_changed_since_the_watermark_are_left_out_on_both_sides(
    connection: psycopg.Connection[tuple[Any, ...]], tmp_path: Path
) -> None:
    watermark = copied(connection, tmp_path)
    connection.execute("UPDATE orders SET status = 'returned' WHERE id <= 5")
    found = compared(connection, tmp_path, watermark)
    assert found.agree
    assert (found.later, found.source.rows) == (5, 195)


def test_people_change_rows_and_their_stamps_until_they_rest(
    connection: psycopg.Connection[tuple[Any, ...]], pg_database: str
) -> None:
    def changes() -> int:
        row = connection.execute("SELECT count(*) FROM orders WHERE status = 'new'").fetchone()
        assert row is not None
        return int(row[0])

    with shop.People(lambda: psycopg.connect(pg_database, autocommit=True), customers=10, pause=0.001) as people:
        while changes() < 10:
            people.work()
        people.rest()
        rested = changes()
        assert changes() == rested
        people.work()
        while changes() == rested:
            people.work()


def test_a_folder_in_use_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(ConfigError) as caught:
        demo.run(tmp_path)
    assert "--resume" in caught.value.remedy
    assert [file.name for file in tmp_path.iterdir()] == ["mine.txt"]


def test_there_is_nothing_to_resume_without_a_demo(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no demo"):
        demo.resume(tmp_path)


def processes_in(folder: Path) -> list[int]:
    """Whoever names the folder on its command line or works in it."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().decode(errors="replace")
            at = str((process / "cwd").readlink())
        except OSError:
            continue
        if str(folder) in words or at.startswith(str(folder)):
            found.append(int(process.name))
    return found


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    folder = tmp_path_factory.mktemp("demo") / "play"
    program = "import sys; from pathlib import Path; from strandline import demo; sys.exit(demo.run(Path(sys.argv[1])))"
    done = subprocess.run([sys.executable, "-c", program, str(folder)], capture_output=True, text=True)
    return folder, done


def test_the_demo_plays_through_crash_and_resume_and_both_sides_agree(
    played: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    _, done = played
    assert done.returncode == 0, done.stdout + done.stderr
    for words in ("Nothing was moved", "first load", "nothing new", "kill -KILL", "resumed: run"):
        assert words in done.stdout
    assert "FAILED" not in done.stdout
    assert done.stdout.count("   equal") == 3


def test_the_demo_leaves_a_config_that_loads_and_no_process(
    played: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    folder, done = played
    assert done.returncode == 0
    until(lambda: processes_in(folder) == [])  # a JVM needs a moment to see that it is alone
    assert (folder / "password").stat().st_mode & 0o077 == 0
    assert (folder / "password").read_text() not in (folder / "strandline.yml").read_text() + done.stdout


def test_a_played_demo_can_be_opened_again_and_closed_with_ctrl_c(
    played: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    folder, _ = played
    program = "import sys; from pathlib import Path; from strandline import demo; demo.resume(Path(sys.argv[1]))"
    command = [sys.executable, "-u", "-c", program, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "The shop is open" in process.stdout.readline()
        plan = [sys.executable, "-m", "strandline", "plan", "-c", str(folder / "strandline.yml")]
        planned = subprocess.run(plan, capture_output=True, text=True)
        os.kill(process.pid, signal.SIGINT)
        process.communicate()
    assert planned.returncode == 0 and "incremental" in planned.stdout, planned.stderr
    until(lambda: processes_in(folder) == [])

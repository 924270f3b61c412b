"""The recipes of docs/recipes, each followed from first line to last: MariaDB → a folder of Parquet → PostgreSQL.

Every page begins with what `README.md` there sets up. Then its blocks are carried out as they are printed: SQL in the
database that its first line names, `$` lines of a `console` block as a person would type them. Each line printed below
a command must come in what the command says, in that order; `…` stands for anything, and times, spans, sizes, and the
names of runs, people and places may be others.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from test_pages import BLOCK, ROOT, blocks

from strandline.cli.app import execute
from strandline.sources import open_source
from strandline.stage.sink import StageSink
from strandline.testing.servers import MariaDB, Postgres

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RECIPES = ROOT / "docs" / "recipes"
PASSWORDS = {"MYSQL_PASSWORD": "reader-4711", "DW_PASSWORD": "loader-4711"}
CLAIMS, PARTNERS, LOG = "settlement_claim_detail", "partner_info", "settlement_log"
MASKS = (
    (r"\w+://[^\s,]+", "URL"),
    (r"\b\w+@[\w.-]*", "WHO"),
    (r"\d{8}-\d{6}-\d{3}-\w+", "RUN"),
    (r"\b(transaction|revision) \d+", r"\1 N"),
    (r"\b\d{12}\.json", "N.json"),
    (r"(\d{4}-)?\d\d-\d\d[ T]\d\d:\d\d(:\d\d(\.\d+)?)?Z?", "TIME"),
    (r"(\d{4}-)?\d\d-\d\d\b", "TIME"),
    (r"\b\d\d:\d\d(:\d\d(\.\d+)?)?\b", "TIME"),
    (r"\bjust now\b", "SPAN ago"),
    (r"[\d.]+ (ms|s|min|h|d)\b( \d+ (min|h)\b)?", "SPAN"),
    (r"[\d.]+ (B|kB|MB)\b", "SIZE"),
)
Row = tuple[Any, ...]


@dataclass(frozen=True)
class Step:
    """One thing that a page has its reader do."""

    kind: str  # "sql" or "console"
    text: str
    code: int = 0
    interrupted: bool = False  # by Ctrl-C
    said: tuple[str, ...] = ()


def steps(page: Path) -> Iterator[Step]:
    for kind, text in BLOCK.findall(page.read_text()):
        if kind == "sql":
            yield Step(kind, text)
        elif kind == "console":
            for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
                line, *said = part.splitlines()
                command, _, remark = line.partition("  #")
                code = re.search(r"exit code (\d+)", remark)
                yield Step(kind, command.strip(), int(code[1]) if code else 0, "Ctrl-C" in remark, tuple(said))


def masked(line: str) -> str:
    for pattern, word in MASKS:
        line = re.sub(pattern, word, line)
    return " ".join(line.split())


def check_said(step: Step, output: str) -> None:
    """Every printed line, in its order."""
    lines = iter([masked(line) for line in output.splitlines()])
    for printed in step.said:
        wanted = re.escape(masked(printed)).replace("…", ".*")
        if not any(re.fullmatch(wanted, line) for line in lines):
            raise AssertionError(f"$ {step.text}\ndid not say, or not in this place:\n{printed}\nbut\n{output}")


class Settlement:
    """The two databases, the folder in which a person works, and that person."""

    def __init__(self, folder: Path, connect: Callable[..., Any], dw: Any, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._connect = connect
        self._source = connect()
        self._other: Any = None  # a session that leaves its transaction open
        self._dw = dw
        self._capsys = capsys

    def follow(self, page: str) -> None:
        for step in steps(RECIPES / page):
            if step.kind == "sql":
                self._sql(step.text)
            else:
                check_said(step, self._console(step))

    def _sql(self, text: str) -> None:
        where, _, rest = text.partition("\n")
        statements = [part.strip() for part in rest.split(";\n") if part.strip()]
        if where == "-- in the warehouse":
            for statement in statements:
                self._dw.execute(statement.encode())
            return
        if where == "-- on the source, in a session of its own":
            self._other = self._other or self._connect(autocommit=False)
        elif where != "-- on the source":
            raise AssertionError(f"where does this go? {where}")
        with (self._other if where.endswith("own") else self._source).cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def _console(self, step: Step) -> str:
        if not step.text.startswith("strandline "):
            shell = ["sh", "-ec", step.text]
            done = subprocess.run(shell, cwd=self.folder, capture_output=True, text=True, check=False)
            assert done.returncode == step.code, done.stderr
            return done.stdout + done.stderr
        with self._ctrl_c() if step.interrupted else ExitStack():
            code = execute(shlex.split(step.text)[1:])
        said = self._capsys.readouterr()
        assert code == step.code, f"$ {step.text}\n{said.out}{said.err}"
        return said.out + said.err

    @contextmanager
    def _ctrl_c(self) -> Iterator[None]:
        """As soon as the first batch is staged, and before the next can begin."""
        apply, cancel, heard = StageSink.apply, StageSink.cancel, threading.Event()

        def applied(sink: StageSink, *given: Any, **options: Any) -> Any:
            done = apply(sink, *given, **options)
            if not heard.is_set():
                os.kill(os.getpid(), signal.SIGINT)
                assert heard.wait(300)
            return done

        def cancelled(sink: StageSink, *given: Any) -> None:
            cancel(sink, *given)
            heard.set()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(StageSink, "apply", applied)
            patch.setattr(StageSink, "cancel", cancelled)
            yield

    def source(self, table: str) -> list[Row]:
        with self._source.cursor() as cursor:
            cursor.execute(f"SELECT * FROM {table} ORDER BY id")
            return [tuple(row) for row in cursor.fetchall()]

    def warehouse(self, table: str) -> list[Row]:
        return list(self._dw.execute(f"SELECT * FROM {table} ORDER BY id".encode()).fetchall())

    def ids(self, table: str = PARTNERS) -> list[int]:
        return [row[0] for row in self.warehouse(table)]

    def equal(self, table: str = PARTNERS) -> bool:
        return bool(self.source(table)) and self.source(table) == self.warehouse(table)

    def close(self) -> None:
        for connection in filter(None, (self._source, self._other, self._dw)):
            connection.close()


@pytest.fixture(scope="module")
def logins(postgres: Postgres, mariadb: MariaDB) -> Iterator[None]:
    """A reader and a loader who may do what they must and nothing else."""
    with postgres.connect() as dw, mariadb.connect() as source, source.cursor() as cursor:
        dw.execute(f"CREATE ROLE loader LOGIN PASSWORD '{PASSWORDS['DW_PASSWORD']}'".encode())
        cursor.execute(f"CREATE OR REPLACE USER reader IDENTIFIED BY '{PASSWORDS['MYSQL_PASSWORD']}'")
        cursor.execute("GRANT PROCESS ON *.* TO reader")
        yield
        dw.execute("DROP ROLE loader")
        cursor.execute("DROP USER reader")


@pytest.fixture
def settlement(
    logins: None,
    postgres: Postgres,
    mariadb: MariaDB,
    pg_database: str,
    mariadb_database: str,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[Settlement]:
    """As the index page sets it up, but for the addresses, and without the guard, for which a person would wait."""
    del logins
    source, dw = (url.rpartition("/")[2] for url in (mariadb_database, pg_database))
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"GRANT SELECT ON {source}.* TO reader")
    warehouse = postgres.connect(dw)
    warehouse.execute("GRANT ALL ON SCHEMA public TO loader")
    config = (
        blocks(RECIPES / "README.md", "yaml")[0]
        .replace("db:3306/settlement", f"127.0.0.1:{mariadb.port}/{source}")
        .replace("dw:5432/dw", f"127.0.0.1:{postgres.port}/{dw}")
        .replace("    defaults:", "    guard: 1ms\n    defaults:")
    )
    (tmp_path / "strandline.yml").write_text(config)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("STRANDLINE_CONFIG", raising=False)
    for name, password in PASSWORDS.items():
        monkeypatch.setenv(name, password)
    monkeypatch.setattr("strandline.project.Project._spark", lambda *_: lambda: spark)
    monkeypatch.setattr("strandline.pipeline.open_source", partial(open_source, max_wait=timedelta(seconds=1)))
    settlement = Settlement(tmp_path, partial(mariadb.connect, source), warehouse, capsys)
    settlement.follow("README.md")
    yield settlement
    settlement.close()


def test_fresh_complete_sync(settlement: Settlement) -> None:
    settlement.follow("fresh.md")
    assert settlement.equal() and len(settlement.ids()) == 5
    assert settlement.equal(CLAIMS)


def test_catch_up_from_a_date(settlement: Settlement) -> None:
    settlement.follow("catch-up.md")
    assert settlement.ids() == [4, 5, 6]


def test_daily_incremental(settlement: Settlement) -> None:
    settlement.follow("daily.md")
    assert settlement.equal() and len(settlement.ids()) == 7
    (line,) = (line for line in blocks(RECIPES / "daily.md", "") if "* * *" in line)
    found = re.fullmatch(r"[\d*/]+ [\d*/]+ [\d*/]+ [\d*/]+ [\d*/]+ +cd \S+ && (strandline .+?) >> .*\n", line)
    assert found
    assert execute(shlex.split(found[1])[1:]) == 0


def test_resume_an_interrupted_sync(settlement: Settlement) -> None:
    settlement.follow("resume.md")
    assert settlement.equal(CLAIMS) and settlement.equal()


def test_selective_range(settlement: Settlement) -> None:
    settlement.follow("range.md")
    assert settlement.ids() == [2, 3]


def test_backfill_recent_first(settlement: Settlement) -> None:
    settlement.follow("backfill.md")
    assert settlement.equal() and len(settlement.ids()) == 6


def test_staged_loading(settlement: Settlement) -> None:
    settlement.follow("staged.md")
    assert settlement.equal() and len(settlement.ids()) == 6
    assert not list(settlement.folder.glob("stage/settlement/partner_info/data/*/*.parquet"))


def test_validation(settlement: Settlement) -> None:
    settlement.follow("validation.md")
    assert settlement.equal()


def test_dos_and_donts(settlement: Settlement) -> None:
    settlement.follow("dos-and-donts.md")
    assert settlement.equal()


def test_a_watermark_that_does_not_move(settlement: Settlement) -> None:
    settlement.follow("not-updating.md")
    assert settlement.equal()


def test_a_corrupt_watermark(settlement: Settlement) -> None:
    settlement.follow("corrupt.md")
    assert settlement.equal() and len(settlement.ids()) == 7


def test_duplicates(settlement: Settlement) -> None:
    settlement.follow("duplicates.md")
    assert settlement.equal() and settlement.equal(LOG)


def test_missing_rows(settlement: Settlement) -> None:
    settlement.follow("missing.md")
    assert settlement.equal()


def test_take_over_what_another_tool_keeps(settlement: Settlement) -> None:
    settlement.follow("adopt.md")
    assert settlement.equal() and len(settlement.ids()) == 6
    assert settlement.equal(CLAIMS)


def test_every_recipe_is_followed_here() -> None:
    elsewhere = {"strategies.md"}
    here = Path(__file__).read_text()
    forgotten = [page.name for page in RECIPES.glob("*.md") if f'follow("{page.name}")' not in here]
    assert set(forgotten) <= elsewhere

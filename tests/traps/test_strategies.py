"""Sequential, tables side by side, one table read and written in parallel: three ways to the same rows, also through a
stage.

Ties at every edge, rows that move while they are read, a commit that comes late, Spark's tasks run twice. Beside them
two jobs as people write them cut the same tables by OFFSET, and by `>` behind the last row of a chunk: they lose rows.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from trap_shop import Database, Impatient, Shop, SqlTarget
from trap_shop import database as database  # the fixture

from strandline.config import load_config
from strandline.core.events import Event, Intended, Listener
from strandline.core.position import Position, Status
from strandline.core.records import COUNTS
from strandline.core.run import Outcome
from strandline.pipeline import Pipeline
from strandline.project import Project
from strandline.sinks.postgres import PostgresTarget
from strandline.sinks.sql_dialect import Place
from strandline.sources.database import DatabaseSource
from strandline.stage.write import Write
from strandline.testing.servers import Postgres

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TABLES = ("orders", "items")
ROWS, CHUNK = 40, 25
STRATEGIES: dict[str, dict[str, Any]] = {
    "sequential": {"parallel": 1, "readers": 1},
    "tables side by side": {"parallel": 2, "readers": 1},
    "inside a table": {"parallel": 1, "readers": 4},
}


class Fine(Impatient):
    """Several readers for a few rows: as they are, a second one comes at 100,000."""

    @contextmanager
    def opened(self, name: str, stage: str = "", spark: SparkSession | None = None) -> Iterator[Pipeline]:
        with super().opened(name, stage, spark) as pipeline:
            source = pipeline.source
            if not pipeline.staged:
                assert isinstance(source, DatabaseSource)
                source.reader = replace(source.reader, rows_per_reader=2)
            yield pipeline


class Copy(Shop):
    """One strategy with a state and a target of its own."""

    def load(self) -> Project:
        with super().load() as written:
            project = Fine(load_config(written.config.path))
        project.given = self.spark
        return project

    def sync(self, *, listener: Listener | None = None, **options: Any) -> dict[str, Outcome]:
        """By table and stage."""
        with self.load() as project:
            result = project.sync("shop", listener=listener or self.events.append, **options)
        return {f"{outcome.table} {outcome.stage}": outcome for outcome in result.tables}

    @property
    def staged(self) -> bool:
        return "stage" in self.pipeline

    def position(self, table: str = "orders") -> Position:
        with self.load() as project:
            return project.books.positions("shop")["shop", table, "extract" if self.staged else "sync"]

    def counted(self, stage: str) -> dict[str, int]:
        """What all runs of a stage say they did."""
        with self.load() as project:
            parts = [part for part in project.books.state.read("table_run") if part.key[2] == stage]
        return {name: sum(int(part.fields[name] or 0) for part in parts) for name in COUNTS}


class ByHand(ABC):
    """A chunked copy of the tables, upserted by key; `between` happens after a first chunk, as writers make it."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.held: dict[str, dict[int, str]] = {name: {} for name in TABLES}
        self.marks: dict[str, str] = dict.fromkeys(TABLES, "2000-01-01 00:00:00")

    @abstractmethod
    def poll(self, between: Callable[[str], None]) -> None: ...

    def chunk(self, table: str, above: str, offset: int) -> list[tuple[Any, ...]]:
        """The next rows in the order of their stamps; the last column is the stamp as text."""
        shown = "to_char(updated_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US')"
        shown = shown if self.database.name == "postgres" else "CAST(updated_at AS char)"
        rows = self.database.execute(
            f"SELECT id, status, {shown} FROM {table} WHERE updated_at > {self.database.at(above)} "
            f"ORDER BY updated_at LIMIT {CHUNK} OFFSET {offset}"
        )
        self.held[table].update({int(id_): status for id_, status, _ in rows})
        return rows

    def lost(self, originals: dict[str, dict[int, str]]) -> int:
        """Rows of the source that the copy lacks, or has in another version."""
        return sum(
            self.held[name].get(id_) != status for name, rows in originals.items() for id_, status in rows.items()
        )


class ByOffset(ByHand):
    """Chunk k is rows k·n to (k+1)·n: what several workers would take at once."""

    def poll(self, between: Callable[[str], None]) -> None:
        for table in TABLES:
            above, offset, seen = self.marks[table], 0, [self.marks[table]]
            while rows := self.chunk(table, above, offset):
                seen += [stamp for *_, stamp in rows]
                if offset == 0:
                    between(table)
                offset += CHUNK
            self.marks[table] = max(seen)


class ByValue(ByHand):
    """The next chunk is what stands behind the last row of this one."""

    def poll(self, between: Callable[[str], None]) -> None:
        for table in TABLES:
            first = True
            while rows := self.chunk(table, self.marks[table], 0):
                self.marks[table] = max(stamp for *_, stamp in rows)
                if first:
                    between(table)
                first = False


class Writers:
    """What happens to the tables meanwhile."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.next_id = ROWS + 1
        self.turn = 0

    def fill(self) -> None:
        """20 rows on each of two stamps, so that a chunk of 25 ends in the middle of one."""
        one, other = (self.database.at(f"2026-01-0{number} 00:00:00") for number in (1, 2))
        stamp = f"CASE i % 2 WHEN 0 THEN {one} ELSE {other} END"
        for table in TABLES:
            self.database.execute(f"INSERT INTO {table} SELECT i, 'new', {stamp} FROM {self.database.series(ROWS)}")

    def meanwhile(self, table: str) -> None:
        """The three oldest rows get a new stamp, and so do two new ones, all of them the same."""
        self.turn += 1
        with closing(self.database.connect(autocommit=False)) as writer:
            now = self.database.at(str(writer.value(self._now))[:26])
            oldest = writer.execute(f"SELECT id FROM {table} ORDER BY updated_at, id LIMIT 3")
            listed = ", ".join(str(id_) for (id_,) in oldest)
            writer.execute(f"UPDATE {table} SET status = 'turn {self.turn}', updated_at = {now} WHERE id IN ({listed})")
            for _ in range(2):
                writer.execute(f"INSERT INTO {table} VALUES ({self.next_id}, 'turn {self.turn}', {now})")
                self.next_id += 1
            writer.commit()

    @property
    def _now(self) -> str:
        maria = self.database.name == "mariadb"
        return "SELECT CAST(sysdate(6) AS char)" if maria else "SELECT (clock_timestamp() AT TIME ZONE 'UTC')::text"

    @contextmanager
    def late(self) -> Iterator[None]:
        """A row that is stamped now and committed when this ends."""
        with closing(self.database.connect(autocommit=False)) as writer:
            for table in TABLES:
                writer.execute(f"INSERT INTO {table} VALUES ({self.next_id}, 'late', {self.database.now})")
            self.next_id += 1
            yield
            writer.commit()

    def rows(self) -> dict[str, dict[int, str]]:
        return {name: dict(self.database.execute(f"SELECT id, status FROM {name}")) for name in TABLES}


@pytest.fixture
def copies(
    database: Database, staged: bool, postgres: Postgres, tmp_path: Path, spark: SparkSession
) -> Iterator[dict[str, Copy]]:
    found = {}
    with ExitStack() as ends:
        for number, (name, settings) in enumerate(STRATEGIES.items()):
            folder = tmp_path / str(number)
            folder.mkdir()
            target = ends.enter_context(closing(SqlTarget(postgres)))
            found[name] = Copy(database, target, folder, spark)
            found[name].pipeline |= settings | ({"stage": "stage"} if staged else {})
            found[name].tables = {table: {"name": table, "slice_rows": CHUNK} for table in TABLES}
        yield found


@pytest.fixture
def tasks(staged: bool, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Every task of Spark's that writes into the target runs twice from now on. How many read the source at once, batch
    by batch."""
    fill, save, seen = PostgresTarget.fill, Write._save, []

    def twice(target: PostgresTarget, rows: DataFrame, stage: Place) -> None:
        if not staged:
            seen.append(rows.rdd.getNumPartitions())
        fill(target, rows, stage)
        fill(target, rows, stage)

    def saved(write: Write, rows: DataFrame, folder: str, *sizes: int) -> None:
        seen.append(rows.rdd.getNumPartitions())
        save(write, rows, folder, *sizes)

    monkeypatch.setattr(PostgresTarget, "fill", twice)
    monkeypatch.setattr(Write, "_save", saved)
    return seen


@pytest.mark.parametrize(
    ("database", "staged"),
    [("postgres", False), ("mariadb", False), ("postgres", True)],
    indirect=["database"],
    ids=["postgres", "mariadb", "postgres, through a stage"],
)
def test_three_strategies_end_with_the_same_rows_where_offset_and_greater_than_lose_some(
    database: Database, copies: dict[str, Copy], tasks: list[int]
) -> None:
    for table in TABLES:
        columns = f"id bigint PRIMARY KEY, status {database.text}, updated_at {database.stamp()} NOT NULL"
        database.execute(f"CREATE TABLE {table} ({columns})")
        database.execute(f"CREATE INDEX at_{table} ON {table} (updated_at)")
    writers, by_hand = Writers(database), [ByOffset(database), ByValue(database)]
    writers.fill()
    for table in TABLES:
        database.execute(f"ANALYZE {'TABLE ' if database.name == 'mariadb' else ''}{table}")
    width: dict[str, int] = {}

    # Rows get other stamps while they are read.
    for peer in by_hand:
        peer.poll(writers.meanwhile)
    for name, copy in copies.items():
        tasks.clear()
        outcomes = copy.synced(listener=disturbed(writers, together=name == "tables side by side"))
        assert all(outcome.batches > 1 for outcome in outcomes.values())
        width[name] = max(tasks)
    assert width["sequential"] == 1 and width["inside a table"] == 4

    # A row is committed when others have been read that are stamped later.
    with writers.late():
        for table in TABLES:
            writers.meanwhile(table)
        for copy in copies.values():
            assert {outcome.status for outcome in copy.synced().values()} == {Status.SKIPPED}
        for peer in by_hand:
            peer.poll(lambda _: None)

    originals = writers.rows()
    for peer in by_hand:
        peer.poll(lambda _: None)
        assert peer.lost(originals), f"{type(peer).__name__} was lucky"
    for name, copy in copies.items():
        copy.synced()
        assert {table: dict(copy.copied(table)) for table in TABLES} == originals, name
        copy.check()  # and none is there twice
        counted = copy.counted("load" if copy.staged else "sync")
        assert counted["rows_inserted"] == sum(len(rows) for rows in originals.values()), name
        read = copy.counted("extract")["rows_inserted"] if copy.staged else counted["rows_read"]
        assert counted["rows_read"] == read == counted["rows_inserted"] + counted["rows_updated"], name


def disturbed(writers: Writers, *, together: bool) -> Callable[[Event], None]:
    """Before the second slice of each table rows are moved. `together`: only once both tables are under way."""
    both, turn = threading.Barrier(len(TABLES)), threading.Lock()

    def listen(event: Event) -> None:
        if isinstance(event, Intended) and event.number == 2 and event.stage != "load":
            if together:
                both.wait(300)
            with turn:
                writers.meanwhile(event.table)

    return listen

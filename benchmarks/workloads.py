"""The work that every contender does: tables filled and touched, runs interleaved by rounds, rows compared after each.

A round begins with another contender each time, so that the machine's noise falls on all of them.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from contenders import Contender, Task, WarmStrandline
from harness import FailedError
from rows import Sums, sums

from strandline.testing.servers import MariaDB, Postgres, Server

TITLES = {
    "a": "first load, PostgreSQL → lake, {rows:,} rows",
    "b": "1 % of them changed, merged into it",
    "c": "nothing new",
    "d": "{tables} tables of 1,000 rows → lake, 1 % of the tables changed",
    "e1": "1 % of {rows:,} rows, PostgreSQL → PostgreSQL",
    "e2": "the same, where the server's memory holds the table",
    "f1": "first load, MariaDB → Parquet → PostgreSQL, {rows:,} rows",
    "f2": "1 % of them changed, the same way",
    "g1": "first load of {rows:,} rows with 100 columns → lake",
    "g2": "first load of {rows:,} rows with texts of 20 kB → lake",
    "h": "{tables:,} tables planned, nothing new",
    "i1": "first load, PostgreSQL → lake, {rows:,} rows",
    "i2": "first load, PostgreSQL → lake, {rows:,} rows",
}
ROOMY = {"shared_buffers": "2GB"}  # 128 MB is what PostgreSQL comes with; servers are given a quarter of the memory
COLUMNS = "id bigint PRIMARY KEY, customer_id integer NOT NULL, status text NOT NULL, amount numeric(12,2) NOT NULL"
ORDERS = f"CREATE TABLE {{table}} ({COLUMNS}, note text, updated_at timestamptz NOT NULL)"
FILL = """
INSERT INTO {table} SELECT i, i % 100000, (ARRAY['new','paid','sent','done'])[1 + i % 4], (i % 100000) / 100.0,
  {note}, now() - interval '1 day' + i * interval '1 microsecond'{more} FROM generate_series(1, {rows}) i"""
TOUCH = "UPDATE {table} SET amount = amount + 1, updated_at = clock_timestamp() WHERE id % 100 = {part}"


@dataclass
class Result:
    """What one contender took for one workload, round by round, and what was wrong with the rows afterwards."""

    seconds: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)
    peak_mb: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    failed: str = ""


@dataclass
class Bench:
    contenders: list[Contender]
    folder: Path
    rounds: int
    rows: int
    scale: float
    only: tuple[str, ...]
    warming: int
    """How often a warm Spark does the work before it is timed."""
    keep: Callable[[Bench], None] = lambda _: None
    results: dict[str, dict[str, Result]] = field(default_factory=dict)
    titles: dict[str, str] = field(default_factory=dict)

    def size(self, full: int, least: int = 1) -> int:
        return max(least, int(full * self.scale))

    def asked(self, *letters: str) -> bool:
        return any(letter in self.only or letter[0] in self.only for letter in letters)

    def turn(self, number: int) -> list[Contender]:
        first = number % len(self.contenders)
        return [*self.contenders[first:], *self.contenders[:first]]

    def once(self, letter: str, contender: Contender, task: Task, wanted: dict[str, Sums], timed: bool = True) -> None:
        """One run, checked. Who fails is left out of what follows."""
        result = self.results.setdefault(letter, {}).setdefault(contender.name, Result())
        if result.failed:
            return
        task.folder.mkdir(parents=True, exist_ok=True)
        try:
            took = contender.run(task)
        except FailedError as error:
            result.failed = str(error)
            print(f"  {letter} {contender.name}: FAILED\n{str(error)[-1500:]}", flush=True)
            return
        wrong = [
            f"{table}: {differs}" for table in wanted if (differs := _differs(contender, task, table, wanted[table]))
        ]
        if timed:
            result.seconds.append(took.seconds)
            result.busy.append(took.busy)
            result.peak_mb.append(took.peak_mb)
            result.wrong.append("; ".join(wrong[:3]))
        sign = "" if not wrong else f"   WRONG: {'; '.join(wrong[:3])}"
        figures = f"{took.seconds:8.2f} s {took.busy:8.2f} busy {took.peak_mb:7.0f} MB"
        print(f"  {letter:<3} {contender.name:<28} {figures}{sign}", flush=True)

    def title(self, letter: str, **sizes: int) -> None:
        self.titles[letter] = TITLES[letter].format(**sizes)
        print(f"{letter}: {self.titles[letter]}", flush=True)

    def lake(self, server: Postgres) -> None:
        """a, b, c: one table into the lake, touched, and left alone."""
        letters = ["a", "b" if self.asked("b", "c") else "", "c" if self.asked("c") else ""]
        self._into_lake(server, self.rows, *letters)

    def large(self, server: Postgres) -> None:
        """i: as a, with twice and four times as many rows, where what a start takes is a smaller part."""
        for letter, times in (("i1", 2), ("i2", 4)):
            if self.asked(letter):
                self._into_lake(server, times * self.rows, letter, "")

    def _into_lake(self, server: Postgres, rows: int, *letters: str) -> None:
        with database(server, "lake"):
            fill(server, "lake", "orders", rows)
            for letter in filter(None, letters):
                self.title(letter, rows=rows)
            self._rounds(Task(server, "lake", ("orders",), rows, self.folder), *letters)

    def _rounds(self, task: Task, first: str, increment: str, idle: str = "") -> None:
        wanted = all_sums(task)
        for number in range(-self.warming, self.rounds):
            warming = number < 0
            turn = [one for one in self.turn(number) if not warming or isinstance(one, WarmStrandline)]
            tasks = {one.name: self._task(task, one, number) for one in turn}
            letters = ["warming up"] * 3 if warming else [first, increment, idle]
            self._each(letters[0], turn, tasks, wanted, first=True)
            if increment:
                since = touch(task.source, task.database, task.tables, 7 + number)
                wanted = all_sums(task)
                self._each(letters[1], turn, tasks, wanted, letters[0], since=since)
            if idle:
                self._each(letters[2], turn, tasks, wanted, letters[1], since="now")
            for each in tasks.values():
                shutil.rmtree(each.folder)
            self.keep(self)
        self.results.pop("warming up", None)

    def _each(
        self,
        letter: str,
        turn: list[Contender],
        tasks: dict[str, Task],
        wanted: dict[str, Sums],
        after: str = "",
        **how: object,
    ) -> None:
        for one in turn:
            task = replace(tasks[one.name], **how)
            began = self.results.get(after, {}).get(one.name)
            if one.can(task) and not (began and began.failed):
                self.once(letter, one, task, wanted)

    def _task(self, task: Task, contender: Contender, number: int) -> Task:
        name = re.sub("[^a-z]+", "_", contender.name.lower())
        folder = self.folder / f"{task.database}_{name}_{number + self.warming}"
        schema = f"into_{name}_{number + self.warming}" if task.into != "lake" else ""
        folder.mkdir(parents=True)
        if task.target is not None:
            with task.target.connect(task.database) as connection:
                connection.execute(f"CREATE SCHEMA {schema}")
        return replace(task, folder=folder, schema=schema)

    def _repeat(self, letter: str, task: Task, touched: Callable[[int], str]) -> None:
        """First loads untimed, once each; then what is touched each round."""
        wanted = all_sums(task)
        tasks = {one.name: self._task(task, one, 0) for one in self.contenders}
        for one in self.contenders:
            first = replace(tasks[one.name], first=True, command="sync")
            if one.can(replace(first, first=False)):
                self.once(letter, one, first, wanted, timed=False)
        for number in range(self.rounds):
            since = touched(number)
            if since != "now":
                wanted = all_sums(task)
            self._each(letter, self.turn(number), tasks, wanted if since != "now" else {}, since=since)
            self.keep(self)

    def many(self, server: Postgres) -> None:
        """d: many small tables of which few changed."""
        count = self.size(200, 3)
        tables = tuple(f"t{number:04}" for number in range(count))
        changed = max(1, count // 100)
        self.title("d", tables=count)
        with database(server, "many"):
            for table in tables:
                fill(server, "many", table, 1000)
            task = Task(server, "many", tables, 1000, self.folder)
            self._repeat("d", task, lambda turn: touch(server, "many", tables[turn * changed :][:changed], turn))

    def inside(self, server: Postgres, letter: str) -> None:
        """e: from table to table in one server."""
        self.title(letter, rows=self.rows)
        with database(server, letter):
            fill(server, letter, "orders", self.rows)
            task = Task(server, letter, ("orders",), self.rows, self.folder, "database", server)
            self._repeat(letter, task, lambda number: touch(server, letter, ("orders",), number))

    def staged(self, server: Postgres, maria: MariaDB) -> None:
        """f: from MariaDB over Parquet files into PostgreSQL."""
        rows = self.size(1_000_000, 100)
        with database(server, "staged"), maria.connect() as connection, connection.cursor() as cursor:
            cursor.execute("CREATE DATABASE staged")
            cursor.execute("USE staged")
            cursor.execute(ORDERS.format(table="orders").replace("timestamptz", "timestamp(6)"))
            cursor.execute(
                "INSERT INTO orders SELECT seq, seq % 100000, ELT(1 + seq % 4, 'new', 'paid', 'sent', 'done'), "
                "(seq % 100000) / 100.0, CONCAT('note ', seq), "
                f"NOW(6) - INTERVAL 1 DAY + INTERVAL seq MICROSECOND FROM seq_1_to_{rows}"
            )
            cursor.execute("CREATE INDEX orders_updated_at ON orders (updated_at)")
            for letter in ("f1", "f2"):
                self.title(letter, rows=rows)
            self._rounds(Task(maria, "staged", ("orders",), rows, self.folder, "stage", server), "f1", "f2")

    def wide(self, server: Postgres) -> None:
        """g: many columns, and large texts."""
        columns = ", ".join(f"c{number} {('bigint', 'text', 'double precision')[number % 3]}" for number in range(94))
        values = ", ".join((f"i + {n}", f"md5((i + {n})::text)", f"i / {n + 7}.0")[n % 3] for n in range(94))
        big = "(SELECT string_agg(md5(i::text || j), '') FROM generate_series(1, 625) j)"
        for letter, rows, more, note, also in (
            ("g1", self.size(500_000, 100), f", {columns}", "'note ' || i", f", {values}"),
            ("g2", self.size(30_000, 20), "", big, ""),
        ):
            if not self.asked(letter):
                continue
            self.title(letter, rows=rows)
            with database(server, letter):
                fill(server, letter, "orders", rows, more, note, also)
                wanted = {"orders": sums(server, letter, "orders")}
                task = Task(server, letter, ("orders",), rows, self.folder, first=True)
                for number in range(-self.warming, self.rounds):
                    warming = number < 0
                    for one in self.turn(number):
                        mine = self._task(task, one, number)
                        if one.can(mine) and (not warming or isinstance(one, WarmStrandline)):
                            self.once("warming up" if warming else letter, one, mine, wanted)
                        shutil.rmtree(mine.folder)
                    self.keep(self)
                self.results.pop("warming up", None)

    def planned(self, server: Postgres) -> None:
        """h: what a thousand tables cost when nothing happened in them."""
        count = self.size(1000, 3)
        tables = tuple(f"t{number:04}" for number in range(count))
        self.title("h", tables=count)
        with database(server, "planned"):
            for table in tables:
                fill(server, "planned", table, 10)
            task = Task(server, "planned", tables, 10, self.folder, "database", server, command="plan")
            self._repeat("h", task, lambda _: "now")

    def run(self) -> None:
        if self.asked("e2"):
            with Postgres(settings=ROOMY) as server:
                self.inside(server, "e2")
        with Postgres() as server:
            if self.asked("a", "b", "c"):
                self.lake(server)
            if self.asked("e1"):
                self.inside(server, "e1")
            if self.asked("d"):
                self.many(server)
            if self.asked("h"):
                self.planned(server)
            if self.asked("g1", "g2"):
                self.wide(server)
            if self.asked("f1", "f2") and not MariaDB.installed():
                print("f1 and f2 are left out: no MariaDB here (apt-get install mariadb-server)", file=sys.stderr)
            elif self.asked("f1", "f2"):
                with MariaDB() as maria:
                    self.staged(server, maria)
            if self.asked("i1", "i2"):
                self.large(server)


@contextmanager
def database(server: Postgres, name: str) -> Iterator[None]:
    with server.connect() as connection:
        connection.execute(f"CREATE DATABASE {name}")
        yield
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def fill(
    server: Postgres,
    database: str,
    table: str,
    rows: int,
    columns: str = "",
    note: str = "'note ' || i",
    more: str = "",
) -> None:
    with server.connect(database) as connection:
        connection.execute(ORDERS.format(table=table).removesuffix(")") + columns + ")")
        connection.execute(FILL.format(table=table, rows=rows, note=note, more=more))
        connection.execute(f"CREATE INDEX ON {table} (updated_at)")
        connection.execute(f"VACUUM ANALYZE {table}")


def touch(server: Server, database: str, tables: tuple[str, ...], part: int) -> str:
    """Change 1 % of the rows, each with a stamp of its own; returns the moment before."""
    if isinstance(server, Postgres):
        with server.connect(database) as connection:
            [(now,)] = connection.execute("SELECT clock_timestamp()::text").fetchall()
            for table in tables:
                connection.execute(TOUCH.format(table=table, part=part))
        return str(now)
    with server.connect(database) as other, other.cursor() as cursor:
        cursor.execute("SELECT CAST(SYSDATE(6) AS char)")
        ((now,),) = cursor.fetchall()
        for table in tables:
            cursor.execute(TOUCH.format(table=table, part=part).replace("clock_timestamp()", "SYSDATE(6)"))
    return str(now)


def all_sums(task: Task) -> dict[str, Sums]:
    return {table: sums(task.source, task.database, table) for table in task.tables}


def _differs(contender: Contender, task: Task, table: str, wanted: Sums) -> str:
    copy = contender.copy(task, table)
    try:
        return copy.differs(wanted) if copy is not None else ""
    except Exception as error:  # however it fails: its rows cannot be read
        return f"not readable, {type(error).__name__}"

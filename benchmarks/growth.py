"""How cost grows with work: rows, tables, history, late transactions. Batches of a stage: stage.py history.

python benchmarks/growth.py [rows] [tables] [history] [late] [--most-rows N]

`grows` is by how much the cost grew from one size to the next, start-up taken off, beside the work.
Cost is processor seconds of the process and its children, which a noisy machine disturbs less than the clock.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from dashboard import fill
from foundation import FILL, ORDERS, TOUCH, config
from harness import PYTHON, Took, choose, measured, save

from strandline.project import load
from strandline.testing.servers import Postgres

ROOM = 1.3  # of ten times the work may cost so much more than ten times as much before it is called a bug
INSIDE = """
state: sqlite:///{folder}/state.db
pipelines:
  shop:
    source: {url}
    target: {url}
    via: server
    guard: 0s
    defaults: {{cursor: updated_at}}
    tables: [{tables}]
"""


@dataclass
class Curve:
    """What a command took by the amount of work."""

    name: str
    unit: str
    took: dict[int, Took]

    def grew(self) -> Iterator[tuple[int, float]]:
        """By each step, how much more than the work the cost grew. Start-up is what the smallest step took."""
        sizes = sorted(self.took)
        base = self.took[sizes[0]].busy
        for small, large in pairwise(sizes[1:]):
            before, after = (max(self.took[size].busy - base, 0.2) for size in (small, large))
            yield large, (after / before) / (large / small)

    def show(self) -> dict[str, object]:
        grew = dict(self.grew())
        print(self.name)
        for size, took in sorted(self.took.items()):
            faster = f"   grows {grew[size]:.2f} × the work" if size in grew else ""
            line = f"  {size:>10,} {self.unit:<12} {took.seconds:7.2f} s   {took.busy:7.2f} s of processors"
            print(f"{line}   peak {took.peak_mb:6.0f} MB{faster}{'   TOO FAST' if grew.get(size, 0) > ROOM else ''}")
        return {str(size): [took.seconds, took.busy, took.peak_mb] for size, took in sorted(self.took.items())}


def strandline(command: str, path: Path) -> Took:
    return measured([PYTHON, "-m", "strandline", *command.split(), "-c", str(path)])


def rows(server: Postgres, folder: Path, sizes: list[int]) -> list[Curve]:
    """A first load into Delta, and 1 % of it changed and merged."""
    first, merged = Curve("first load, PostgreSQL → Delta", "rows", {}), Curve("1 % of them merged", "rows", {})
    for size in sizes:
        name = f"rows{size}"
        with server.connect() as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        with server.connect(name) as connection:
            for statement in (ORDERS, FILL.format(rows=size), "CREATE INDEX ON orders (updated_at)", "ANALYZE orders"):
                connection.execute(statement.encode())
            path = config(folder / name, server.url(name), "orders")
            first.took[size] = strandline("sync", path)
            connection.execute(TOUCH)
            merged.took[size] = strandline("sync", path)
        with server.connect() as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())
    return [first, merged]


def tables(server: Postgres, folder: Path, sizes: list[int]) -> list[Curve]:
    """Tables of one pipeline: none has anything new; each has a row that is moved inside the server."""
    idle, moved = Curve("nothing new", "tables", {}), Curve("a new row in each, via: server", "tables", {})
    with server.connect() as connection:
        connection.execute("CREATE DATABASE tables")
    with server.connect("tables") as connection:
        connection.execute("CREATE SCHEMA copied")
        for number in range(max(sizes)):
            columns = "id serial PRIMARY KEY, updated_at timestamptz NOT NULL DEFAULT clock_timestamp()"
            connection.execute(f"CREATE TABLE t{number} ({columns})".encode())
            connection.execute(f"CREATE INDEX ON t{number} (updated_at)".encode())
        for size in sizes:
            path = folder / f"tables{size}" / "strandline.yml"
            path.parent.mkdir(parents=True)
            named = ", ".join(f"{{name: t{number}, target: copied.s{size}_{number}}}" for number in range(size))
            path.write_text(INSIDE.format(folder=path.parent, url=server.url("tables"), tables=named))

            def change(size: int = size) -> None:
                for number in range(size):
                    connection.execute(f"INSERT INTO t{number} DEFAULT VALUES".encode())

            change()
            strandline("sync", path)
            idle.took[size] = strandline("sync", path)
            change()
            moved.took[size] = strandline("sync", path)
    return [idle, moved]


def history(server: Postgres, folder: Path, sizes: list[int]) -> list[Curve]:
    """Runs in the history of a state in SQLite, behind commands that look at the present."""
    commands = ("status", "runs list", "sync")
    curves = {name: Curve(f"strandline {name}", "runs", {}) for name in commands}
    with server.connect() as connection:
        connection.execute("CREATE DATABASE history")
    with server.connect("history") as connection:
        connection.execute("CREATE SCHEMA copied")
        connection.execute(
            "CREATE TABLE t0 (id serial PRIMARY KEY, updated_at timestamptz NOT NULL DEFAULT clock_timestamp())"
        )
        connection.execute("CREATE INDEX ON t0 (updated_at)")
        for size in sizes:
            path = folder / f"history{size}" / "strandline.yml"
            path.parent.mkdir(parents=True)
            table = f"{{name: t0, target: copied.s{size}}}"
            path.write_text(INSIDE.format(folder=path.parent, url=server.url("history"), tables=table))
            with load(path) as project:
                fill(project, ["shop"], 1, size)
            for name in commands:
                connection.execute("INSERT INTO t0 DEFAULT VALUES")
                curves[name].took[size] = strandline(name, path)
    return list(curves.values())


def late(server: Postgres, folder: Path, sizes: list[int]) -> list[Curve]:
    """Transactions in flight when the barrier comes, each of which commits a moment later."""
    curve = Curve("a plan that waits for transactions in flight", "transactions", {})
    with server.connect() as connection:
        connection.execute("CREATE DATABASE late")
    with server.connect("late") as connection:
        connection.execute(
            "CREATE TABLE t0 (id serial PRIMARY KEY, updated_at timestamptz NOT NULL DEFAULT clock_timestamp())"
        )
        connection.execute("CREATE SCHEMA copied")
    path = folder / "late" / "strandline.yml"
    path.parent.mkdir(parents=True)
    table = "{name: t0, target: copied.t0}"
    path.write_text(INSIDE.format(folder=path.parent, url=server.url("late"), tables=table))
    for size in sizes:
        with ExitStack() as opened:
            writers = [opened.enter_context(server.connect("late", autocommit=False)) for _ in range(size)]
            for writer in writers:
                writer.execute("INSERT INTO t0 DEFAULT VALUES")

            committing = threading.Timer(1.5, lambda held: [writer.commit() for writer in held], [writers])
            committing.start()
            curve.took[size] = strandline("plan", path)
            committing.join()
    return [curve]


PARTS: dict[str, tuple[Callable[[Postgres, Path, list[int]], list[Curve]], list[int]]] = {
    "rows": (rows, [1_000, 10_000, 100_000, 1_000_000, 3_000_000, 10_000_000, 30_000_000]),
    "tables": (tables, [1, 10, 100, 1_000]),
    "history": (history, [10, 1_000, 10_000, 100_000]),
    "late": (late, [1, 10, 100, 300]),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    choose(parser, *PARTS)
    parser.add_argument("--most-rows", type=int, default=30_000_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, Postgres(settings={"max_connections": "500"}) as server:
        for part in given.what:
            measure, sizes = PARTS[part]
            curves = measure(server, Path(name), [size for size in sizes if size <= given.most_rows])
            save(f"growth-{part}", {curve.name: curve.show() for curve in curves})


if __name__ == "__main__":
    main()

"""Continuous polling: what an idle pipeline costs, and how soon one changed row is in the target.

python benchmarks/poll.py [idle] [server] [delta] [--tables N] [--seconds N] [--rounds N]

idle: `strandline sync --every 5s` over many tables in which nothing happens; the processor's share of that process, and
of the server beside it. server: one row, PostgreSQL → PostgreSQL with `via: server`. delta: one row, PostgreSQL →
Delta on a warm session. "after the poll" is from the poll's first look to its last commit; "end to end" is from the
writer's commit to the row in the target, polled every 200 ms without a guard.
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from harness import PYTHON, processor_seconds, save

from strandline.cli.progress import describe
from strandline.project import load
from strandline.service.service import Service
from strandline.testing.servers import Postgres

CONFIG = """
state: sqlite:///{folder}/state.db
pipelines:
  shop:
    source: {url}
    target: {target}
    via: {via}
    guard: 0s
    schedule: {schedule}
    defaults: {{cursor: at}}
    tables: [{tables}]
"""
TABLE = "CREATE TABLE {name} (id bigint PRIMARY KEY, value text, at timestamptz NOT NULL DEFAULT clock_timestamp())"
INSERT = "INSERT INTO t0 (id, value) VALUES (%s, 'new')"


class Bench:
    """Tables `t0`, `t1`, … in a database of their own, and their copies in the schema `copied` or in Delta."""

    def __init__(self, server: Postgres, name: str, folder: Path, tables: int) -> None:
        with server.connect() as first:
            first.execute(f"CREATE DATABASE {name}".encode())
        self.url = server.url(name)
        self.connection = server.connect(name)
        self.folder = folder / name
        self.folder.mkdir()
        self.names = [f"t{number}" for number in range(tables)]
        self.connection.execute("CREATE SCHEMA copied")
        for table in self.names:
            self.connection.execute(TABLE.format(name=table).encode())
            self.connection.execute(f"CREATE INDEX ON {table} (at)".encode())

    def config(self, via: str, schedule: str) -> Path:
        delta = via == "spark"
        target = f"delta:{self.folder}/lake" if delta else self.url
        tables = ", ".join(name if delta else f"{{name: {name}, target: copied.{name}}}" for name in self.names)
        path = self.folder / f"{via}.yml"
        path.write_text(
            CONFIG.format(folder=self.folder, url=self.url, target=target, via=via, schedule=schedule, tables=tables)
        )
        return path

    def insert(self, number: int) -> None:
        self.connection.execute(INSERT, (number,))


def idle(server: Postgres, folder: Path, tables: int, seconds: float) -> dict[str, object]:
    bench = Bench(server, "idle", folder, tables)
    for _ in range(20):
        bench.connection.execute("INSERT INTO t0 (id) SELECT coalesce(max(id), 0) + 1 FROM t0")
    command = [PYTHON, "-m", "strandline", "sync", "--every", "5s", "-c", str(bench.config("server", "manual"))]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        time.sleep(20)  # the first load, and what is only done once
        own, theirs, began = processor_seconds(process.pid), processor_seconds(server.pid), time.monotonic()
        time.sleep(seconds)
        spent = time.monotonic() - began
        figures = {
            "tables": tables,
            "seconds": round(spent),
            "percent": round(100 * (processor_seconds(process.pid) - own) / spent, 2),
            "server_percent": round(100 * (processor_seconds(server.pid) - theirs) / spent, 2),
        }
        process.terminate()
    print(f"{tables} idle tables every 5 s: {figures['percent']} % of one core, server {figures['server_percent']} %")
    return figures


def latency(bench: Bench, via: str, rounds: int, warm_up: int) -> dict[str, object]:
    """One row at a time, by a service whose clock stands still between polls: what the poll itself takes."""
    now = datetime.now(UTC)
    with load(bench.config(via, "every 5s")) as project:
        service = Service(project, words=describe, now=lambda: now, spawn=lambda work: work())
        service.start()
        found = []
        for number in range(rounds + warm_up):
            bench.insert(number)
            now += timedelta(seconds=5)
            began = time.perf_counter()
            service.tick()
            found.append(1000 * (time.perf_counter() - began))
        position = next(iter(project.books.positions("shop").values()))
        assert position.totals.rows_inserted == rounds + warm_up, position
        service.close()
    return told(f"one row, via {via}, after the poll", found[warm_up:])


def end_to_end(bench: Bench, rounds: int) -> dict[str, object]:
    command = [PYTHON, "-m", "strandline", "serve", "-c", str(bench.config("server", "every 200ms"))]
    found = []
    bench.connection.execute("CREATE TABLE copied.t0 (LIKE t0 INCLUDING ALL)")
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            for number in range(rounds + 5):
                time.sleep(random.uniform(0.2, 0.4))
                bench.insert(number)
                began = time.perf_counter()
                while not bench.connection.execute("SELECT 1 FROM copied.t0 WHERE id = %s", (number,)).fetchall():
                    time.sleep(0.002)
                found.append(1000 * (time.perf_counter() - began))
        finally:
            process.terminate()
    return told("one row, via server, end to end at 200 ms", found[5:])


def told(what: str, milliseconds: Sequence[float]) -> dict[str, object]:
    cuts = statistics.quantiles(milliseconds, n=100, method="inclusive")
    figures = {"p50": round(cuts[49], 1), "p90": round(cuts[89], 1), "p99": round(cuts[98], 1)}
    print(f"{what}: " + ", ".join(f"{name} {value} ms" for name, value in figures.items()) + f" ({len(milliseconds)})")
    return {**figures, "max": round(max(milliseconds), 1), "rounds": len(milliseconds)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", choices=["idle", "server", "delta", []], default=["idle", "server", "delta"])
    parser.add_argument("--tables", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--rounds", type=int, default=200)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, Postgres() as server:
        folder = Path(name)
        steps: dict[str, Callable[[], dict[str, object]]] = {
            "idle": lambda: idle(server, folder, given.tables, given.seconds),
            "server": lambda: both(server, folder, given.rounds),
            "delta": lambda: latency(Bench(server, "lake", folder, 1), "spark", max(5, given.rounds // 4), 3),
        }
        for what in given.what:
            save(f"poll-{what}", steps[what]())


def both(server: Postgres, folder: Path, rounds: int) -> dict[str, object]:
    """Each in a database of its own: the first one's clock runs ahead."""
    return {
        "after the poll": latency(Bench(server, "within", folder, 1), "server", rounds, 10),
        "end to end": end_to_end(Bench(server, "beyond", folder, 1), rounds // 2),
    }


if __name__ == "__main__":
    main()

"""`via: server`, PostgreSQL → PostgreSQL in one database: a sync of changed rows beside the bare MERGE of them.

python benchmarks/server.py [--rows N] [--changed N] [--rounds N]

The MERGE alone is timed on a connection that is open already; a script that runs it is a whole process, as the sync is.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foundation import FILL, ORDERS
from harness import PYTHON, Series, save, timed

from strandline.testing.servers import Postgres

if TYPE_CHECKING:
    import psycopg

SYNC, BARE, SCRIPT, START = "strandline sync", "bare MERGE", "script that runs the MERGE", "python -c pass"
TUNED = "bare MERGE, random_page_cost 1.1"
CONFIG = """
pipelines:
  shop:
    source: {url}
    target: {url}
    via: server
    guard: 0s
    tables: [{{name: orders, cursor: updated_at, target: ours.orders, slice_rows: 10000000}}]
"""
TOUCH = "UPDATE orders SET amount = amount + 1, updated_at = clock_timestamp() WHERE id % {every} = {part}"
MERGE = """
MERGE INTO {into}.orders t USING (SELECT * FROM public.orders WHERE updated_at >= '{low}' AND updated_at < '{high}') s
ON t.id = s.id
WHEN MATCHED AND s.updated_at >= t.updated_at THEN UPDATE SET customer_id = s.customer_id, status = s.status,
  amount = s.amount, note = s.note, updated_at = s.updated_at
WHEN NOT MATCHED THEN INSERT VALUES (s.id, s.customer_id, s.status, s.amount, s.note, s.updated_at)"""
PROGRAM = """
import sys, psycopg
with psycopg.connect(sys.argv[1]) as connection:
    connection.execute(sys.argv[2])
"""


@dataclass
class Bench:
    """One table, and a copy of it for each who keeps one up to date."""

    server: Postgres
    connection: psycopg.Connection[tuple[Any, ...]]
    config: Path
    every: int
    low: str = ""
    high: str = ""
    round: int = 0

    def fill(self, rows: int) -> None:
        for statement in (ORDERS, FILL.format(rows=rows), "CREATE INDEX ON orders (updated_at)", "CREATE SCHEMA ours"):
            self.connection.execute(statement)
        for copy in ("bare", "tuned", "script"):
            self.connection.execute(f"CREATE SCHEMA {copy}")
            self.connection.execute(f"CREATE TABLE {copy}.orders (LIKE orders INCLUDING DEFAULTS)")
            self.connection.execute(f"INSERT INTO {copy}.orders SELECT * FROM orders")
            self.connection.execute(f"ALTER TABLE {copy}.orders ADD PRIMARY KEY (id)")
        self.sync()
        self.high = self.now()

    def change(self) -> None:
        """The rows of one round. Whoever reads them first must not be the one to mark them as committed."""
        self.low = self.high
        self.connection.execute(TOUCH.format(every=self.every, part=self.round % self.every))
        self.round += 1
        self.high = self.now()
        self.connection.execute(f"SELECT count(amount) FROM orders WHERE updated_at >= '{self.low}'")
        self.connection.execute("VACUUM ANALYZE")
        self.connection.execute("CHECKPOINT")

    def now(self) -> str:
        found = self.connection.execute("SELECT clock_timestamp()::text").fetchone()
        assert found is not None
        return str(found[0])

    def merge(self, into: str) -> str:
        return MERGE.format(into=into, low=self.low, high=self.high)

    def bare(self) -> tuple[float, float]:
        statement = self.merge("bare")
        started = time.perf_counter()
        self.connection.execute(statement)
        return time.perf_counter() - started, 0.0

    def tuned(self) -> tuple[float, float]:
        """As the sync has it planned: by the target's index."""
        statement = self.merge("tuned")
        started = time.perf_counter()
        with self.connection.transaction():
            self.connection.execute("SET LOCAL random_page_cost = 1.1")
            self.connection.execute(statement)
        return time.perf_counter() - started, 0.0

    def script(self) -> tuple[float, float]:
        return timed([PYTHON, "-c", PROGRAM, self.server.url(), self.merge("script")])[:2]

    def sync(self) -> tuple[float, float]:
        seconds, peak, _ = timed([PYTHON, "-m", "strandline", "sync", "-c", str(self.config), "--json"])
        return seconds, peak

    def rounds(self, number: int) -> dict[str, Series]:
        """As `compare`, but each round changes the rows first, and another one begins: the disk is still busy then."""
        contenders: dict[str, Callable[[], tuple[float, float]]] = {
            BARE: self.bare,
            TUNED: self.tuned,
            START: lambda: timed([PYTHON, "-c", "pass"])[:2],
            SCRIPT: self.script,
            SYNC: self.sync,
        }
        series = {name: Series(name) for name in contenders}
        for turn in range(-1, number):
            self.change()
            names = [*contenders][turn % 5 :] + [*contenders][: turn % 5]
            for name in names:
                seconds, peak = contenders[name]()
                if turn >= 0:  # once without being timed
                    series[name].seconds.append(seconds)
                    series[name].peak_mb.append(peak)
        for one in series.values():
            print(one.line(), flush=True)
        return series

    def check(self) -> None:
        for copy in ("ours", "bare", "tuned", "script"):
            listed = f"SELECT count(*) FROM (SELECT * FROM orders EXCEPT SELECT * FROM {copy}.orders) d"
            assert self.connection.execute(listed).fetchone() == (0,), copy


def bench(rows: int, changed: int, rounds: int) -> dict[str, object]:
    settings = {"shared_buffers": "512MB", "max_wal_size": "8GB", "autovacuum": "off"}
    with Postgres(settings=settings) as server, tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "strandline.yml"
        path.write_text(CONFIG.format(url=server.url()))
        with server.connect() as connection:
            contest = Bench(server, connection, path, rows // changed)
            contest.fill(rows)
            load = os.getloadavg()[0]
            print(f"{changed:,} changed of {rows:,} rows, load {load:.1f}")
            done = contest.rounds(rounds)
            contest.check()
    figures: dict[str, object] = {"rows": rows, "changed": changed, "load": load}
    for name, of in (("median", statistics.median), ("least", min)):
        took = {contender: of(series.seconds) for contender, series in done.items()}
        ratio, beside = took[SYNC] / (took[BARE] + took[START]), took[SYNC] / took[SCRIPT]
        print(f"  {name}: the sync takes {ratio:.2f} times the MERGE and Python's start, {beside:.2f} times the script")
        figures |= {f"{name} ratio": ratio, f"{name} ratio to the script": beside}
    return {**figures, **{name: series.seconds for name, series in done.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--changed", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=8)
    given = parser.parse_args()
    save(f"server-{given.rows}", bench(given.rows, given.changed, given.rounds))


if __name__ == "__main__":
    main()

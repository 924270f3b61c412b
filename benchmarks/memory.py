"""Memory of a first load does not grow with the table: a small one and one larger than the heap, by every way in.

python benchmarks/memory.py [--gigabytes N] [--heap 1g] [ROUTE …]

Peak of Strandline's own processes (Python, the JVM, Spark's Python workers); servers do not count.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from harness import PYTHON, save, timed

from strandline.testing.servers import MariaDB, Postgres
from strandline.testing.snowflake import Fakesnow

WIDE = "CREATE TABLE {name} (id bigint PRIMARY KEY, pad text NOT NULL, updated_at {time} NOT NULL)"
CONFIG = """
state: sqlite:///{folder}/state.db
spark: {{conf: {{spark.driver.memory: {heap}}}}}
pipelines:
  wide:
    source: {source}
    {ends}
    guard: 0s
    defaults: {{cursor: updated_at, key: id, zone: UTC}}
    tables: [{table}]
"""


@dataclass
class Servers:
    postgres: Postgres
    maria: MariaDB
    snow: Fakesnow
    folder: Path

    def fill_postgres(self, table: str, rows: int) -> None:
        """Rows of one KiB: 31 digests that differ, so that no codec shrinks them."""
        with self.postgres.connect("bench") as connection:
            connection.execute(WIDE.format(name=table, time="timestamptz"))
            connection.execute(
                f"INSERT INTO {table} SELECT i, (SELECT string_agg(md5(i::text || j), '') "
                f"FROM generate_series(1, 31) j), now() FROM generate_series(1, {rows}) i"
            )

    def fill_maria(self, table: str, rows: int) -> None:
        with self.maria.connect() as other, other.cursor() as cursor:
            cursor.execute("USE bench")
            cursor.execute(WIDE.format(name=table, time="timestamp(6)"))
            digests = ", ".join(f"MD5(seq * 31 + {number})" for number in range(31))
            cursor.execute(f"INSERT INTO {table} SELECT seq, CONCAT({digests}), NOW(6) FROM seq_1_to_{rows}")
            other.commit()

    def fresh(self, name: str) -> str:
        """A database of its own for a target."""
        with self.postgres.connect() as connection:
            connection.execute(f"CREATE DATABASE {name}")
        with self.maria.connect() as other, other.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {name}")
        return name


Ends = Callable[[Servers, str], tuple[str, str]]
"""Source and the rest of the way, as the config says them; `name` is free for a target."""

ROUTES: dict[str, Ends] = {
    "PostgreSQL → Delta": lambda on, name: (_pg(on), f"target: delta:{on.folder}/{name}"),
    "MariaDB → Delta": lambda on, name: (_maria(on), f"target: delta:{on.folder}/{name}"),
    "MariaDB → PostgreSQL": lambda on, name: (_maria(on), f"target: {on.postgres.url(on.fresh(name))}"),
    "PostgreSQL → MariaDB": lambda on, name: (_pg(on), f"target: {on.maria.url(on.fresh(name))}"),
    "MariaDB → stage → PostgreSQL": lambda on, name: (
        _maria(on),
        f"stage: {on.folder}/{name}\n    target: {on.postgres.url(on.fresh(name))}",
    ),
    "PostgreSQL → stage → Snowflake (fakesnow)": lambda on, name: (
        _pg(on),
        f"stage: {on.folder}/{name}\n    target: {on.snow.url(name.upper() + '/PUBLIC')}",
    ),
}


def _pg(on: Servers) -> str:
    return on.postgres.url("bench")


def _maria(on: Servers) -> str:
    return on.maria.url("bench")


def measure(on: Servers, route: str, table: str, heap: str) -> tuple[float, float]:
    name = f"r{list(ROUTES).index(route)}_{table}"
    source, ends = ROUTES[route](on, name)
    folder = on.folder / f"config-{name}"
    folder.mkdir()
    path = folder / "strandline.yml"
    path.write_text(CONFIG.format(folder=folder, heap=heap, source=source, ends=ends, table=table))
    seconds, peak, _ = timed([PYTHON, "-m", "strandline", "sync", "-c", str(path), "--json"])
    return seconds, peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("routes", nargs="*", metavar="ROUTE", help=f"of: {', '.join(ROUTES)}")
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--heap", default="1g")
    given = parser.parse_args()
    sizes = {"small": given.gigabytes / 4, "large": given.gigabytes}
    figures: dict[str, object] = {"heap": given.heap, "gigabytes": sizes}
    with (
        tempfile.TemporaryDirectory() as folder,
        Postgres() as postgres,
        MariaDB() as maria,
        Fakesnow() as snow,
    ):
        on = Servers(postgres, maria, snow, Path(folder))
        on.fresh("bench")
        routes = given.routes or list(ROUTES)
        for name, fill in (("PostgreSQL", on.fill_postgres), ("MariaDB", on.fill_maria)):
            for table, gigabytes in sizes.items():
                if any(route.startswith(name) for route in routes):
                    fill(table, int(gigabytes * 1024 * 1024))
        print(f"first load through a heap of {given.heap}, seconds and peak memory of all our processes")
        for route in routes:
            taken = {table: measure(on, route, table, given.heap) for table in sizes}
            figures[route] = {table: {"seconds": s, "peak_mb": mb} for table, (s, mb) in taken.items()}
            parts = [f"{sizes[table]:.1f} GiB {s:6.1f} s {mb:6.0f} MB" for table, (s, mb) in taken.items()]
            growth = taken["large"][1] / taken["small"][1]
            print(f"  {route:<44}{'   '.join(parts)}   {growth:.2f} times the memory", flush=True)
    save("memory", figures)


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as error:
        sys.exit(str(error))

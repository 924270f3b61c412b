"""PostgreSQL → Delta: nothing new, first load, increment; beside the job people write by hand.

python benchmarks/foundation.py [idle] [load] [--rows N] [--rounds N]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from harness import HERE, PYTHON, choose, compare, save, timed

from strandline.testing.servers import Postgres

ORDERS = """
CREATE TABLE orders (id bigint PRIMARY KEY, customer_id integer NOT NULL, status text NOT NULL,
  amount numeric(12,2) NOT NULL, note text, updated_at timestamptz NOT NULL)"""
FILL = """
INSERT INTO orders SELECT i, i % 100000, (ARRAY['new','paid','sent','done'])[1 + i % 4], (i % 100000) / 100.0,
  'note ' || i, now() - interval '1 day' + i * interval '1 microsecond' FROM generate_series(1, {rows}) i"""
TOUCH = "UPDATE orders SET amount = amount + 1, updated_at = now() WHERE id % 100 = 7"
CONFIG = """
state: sqlite:///{folder}/state.db
spark: {{conf: {{spark.driver.memory: 2g}}}}
pipelines:
  shop:
    source: {source}
    target: delta:{folder}/lake
    guard: 0s
    defaults: {{cursor: updated_at, key: id}}
    tables: [{tables}]
"""


def config(folder: Path, source: str, tables: str) -> Path:
    folder.mkdir(parents=True)
    path = folder / "strandline.yml"
    path.write_text(CONFIG.format(folder=folder, source=source, tables=tables))
    return path


def sync(path: Path) -> tuple[float, float]:
    seconds, peak, _ = timed([PYTHON, "-m", "strandline", "sync", "-c", str(path), "--json"])
    return seconds, peak


def idle(server: Postgres, folder: Path, rounds: int) -> dict[str, object]:
    """A sync with nothing new: one table, and a thousand in one pipeline."""
    with server.connect() as connection:
        connection.execute("CREATE DATABASE idle")
    with server.connect("idle") as connection:
        for number in range(1000):
            connection.execute(
                f"CREATE TABLE t{number} (id bigint PRIMARY KEY, updated_at timestamptz NOT NULL DEFAULT now())"
            )
            connection.execute(f"CREATE INDEX ON t{number} (updated_at)")
    one = config(folder / "one", server.url("idle"), "t1")
    many = config(folder / "many", server.url("idle"), "'t*'")
    print("nothing new (whole process)")
    done = compare(
        rounds,
        {
            "python -c pass": lambda: timed([PYTHON, "-c", "pass"])[:2],
            "import psycopg": lambda: timed([PYTHON, "-c", "import psycopg"])[:2],
            "strandline sync, 1 table": lambda: sync(one),
            "strandline sync, 1,000 tables": lambda: sync(many),
        },
    )
    return {name: series.seconds for name, series in done.items()}


def load(server: Postgres, folder: Path, rows: int, rounds: int) -> dict[str, object]:
    """First load of `rows`, then a 1 % increment, cold and on a warm session."""
    database = "load"
    with server.connect() as connection:
        connection.execute(f"CREATE DATABASE {database}")
    with server.connect(database) as connection:
        connection.execute(ORDERS)
        connection.execute(FILL.format(rows=rows))
        connection.execute("CREATE INDEX ON orders (updated_at)")
        connection.execute("VACUUM ANALYZE orders")
    jdbc = f"jdbc:postgresql://127.0.0.1:{server.port}/{database}"
    turn = iter(range(1000))
    places: dict[str, Path] = {}

    def ours() -> tuple[float, float]:
        places["ours"] = config(folder / f"ours{next(turn)}", server.url(database), "orders")
        return sync(places["ours"])

    def by_hand(step: str, *more: str) -> Callable[[], tuple[float, float]]:
        def run() -> tuple[float, float]:
            if step == "load":
                places["hand"] = folder / f"hand{next(turn)}"
            command = [PYTHON, str(HERE / "handwritten.py"), step, jdbc, server.user, str(places["hand"])]
            return timed([*command, "--rows", str(rows), *more], {"PGPASSWORD": server.password})[:2]

        return run

    def touched(run: Callable[[], tuple[float, float]]) -> Callable[[], tuple[float, float]]:
        def touch() -> tuple[float, float]:
            with server.connect(database) as connection:
                connection.execute(TOUCH)
            return run()

        return touch

    print(f"first load of {rows:,} rows (whole process)")
    first = compare(rounds, {"strandline": ours, "hand-written": by_hand("load")})
    print(f"increment of {rows // 100:,} rows merged, cold (whole process)")
    cold = compare(
        rounds, {"strandline": touched(lambda: sync(places["ours"])), "hand-written": touched(by_hand("merge"))}
    )
    print("the same on a warm session (the merge alone)")
    warm = _warm(server, database, places, rows, rounds)
    for title, ours_median, theirs in (
        ("first load", first["strandline"].median, first["hand-written"].median),
        ("increment, cold", cold["strandline"].median, cold["hand-written"].median),
        ("increment, warm", *warm),
    ):
        print(f"  {title}: {theirs / ours_median:.2f}x the hand-written job")
    return {
        "rows": rows,
        "first": {name: series.seconds for name, series in first.items()},
        "cold": {name: series.seconds for name, series in cold.items()},
        "warm_medians": list(warm),
    }


def _warm(server: Postgres, database: str, places: dict[str, Path], rows: int, rounds: int) -> tuple[float, float]:
    import statistics

    dsn = server.url(database)
    ours = [PYTHON, str(HERE / "warm.py"), str(places["ours"]), dsn, str(rounds)]
    jdbc = f"jdbc:postgresql://127.0.0.1:{server.port}/{database}"
    theirs = [PYTHON, str(HERE / "handwritten.py"), "merge", jdbc, server.user, str(places["hand"])]
    medians = []
    for name, command in (
        ("strandline", ours),
        ("hand-written", [*theirs, "--rows", str(rows), "--warm", str(rounds), "--touch", dsn]),
    ):
        _, _, out = timed(command, {"PGPASSWORD": server.password})
        seconds = [float(line) for line in out.split()]
        medians.append(statistics.median(seconds))
        print(f"  {name:<34} {medians[-1]:8.2f} s   ({min(seconds):.2f}–{max(seconds):.2f} s)", flush=True)
    return medians[0], medians[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    choose(parser, "idle", "load")
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with Postgres() as server:
            if "idle" in given.what:
                save("idle", idle(server, folder / "idle", given.rounds))
            if "load" in given.what:
                save("load", load(server, folder / "load", given.rows, given.rounds))


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as error:
        sys.exit(str(error))

"""Delta as a source: planning over many tables beside DESCRIBE HISTORY, a window of a long log beside Delta's own read.

python benchmarks/delta_source.py [plan] [window] [--tables N] [--versions N] [--window N] [--rows N] [--rounds N]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deltalake import DeltaTable, write_deltalake
from harness import PYTHON, choose, save, timed

import strandline
from strandline.core.position import Reason
from strandline.core.table import Mode, Table
from strandline.core.watermark import Kind, Watermark
from strandline.core.window import Window
from strandline.sources.delta import DeltaSource
from strandline.spark.session import local_session, stop
from strandline.testing.lake import FEED, Lake, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONFIG = """\
pipelines:
  lake:
    source: delta:{folder}/lake
    target: delta:{folder}/copy
    defaults: {{key: id, initial: latest}}
    tables: ["t*"]
"""


def planning(folder: Path, tables: int, rounds: int, spark: SparkSession) -> dict[str, object]:
    """Nothing is new in any table."""
    lake = Lake(folder / "lake")
    for number in range(tables):
        lake.create(f"t{number}")
        lake.insert(1, 2, 3, table=f"t{number}")
        lake.insert(4, table=f"t{number}")
    config = folder / "strandline.yml"
    config.write_text(CONFIG.format(folder=folder))
    with strandline.load(config) as project:
        project.sync("lake")

    def ours() -> float:
        with strandline.load(config) as project:
            started = time.perf_counter()
            found = project.plan("lake")
            seconds = time.perf_counter() - started
        assert len(found.tables) == tables
        assert all(table.reason is Reason.NOTHING_NEW for table in found.tables)
        return seconds

    def process() -> float:
        command = [PYTHON, "-m", "strandline", "plan", "-p", "lake", "-c", str(config)]
        return timed(command)[0]

    def theirs() -> float:
        started = time.perf_counter()
        for number in range(tables):
            spark.sql(f"DESCRIBE HISTORY delta.`{lake.path(f't{number}')}` LIMIT 1").collect()
        return time.perf_counter() - started

    print(f"planning over {tables} tables with nothing new")
    contenders = {"plan": ours, "plan, whole process": process, "DESCRIBE HISTORY, warm Spark": theirs}
    spark.sql(f"DESCRIBE HISTORY delta.`{lake.path('t0')}` LIMIT 1").collect()
    found = _compared(rounds, contenders)
    ratios = _ratios(found, "DESCRIBE HISTORY, warm Spark")
    return {"tables": tables, "seconds": found, "ratios": ratios}


def window(folder: Path, versions: int, span: int, rows: int, rounds: int, spark: SparkSession) -> dict[str, object]:
    """The last versions but some of a table with many."""
    lake = Lake(folder / "long")
    _grow(lake.path(), versions, rows)
    low = versions - 2 * span
    low_high = Window(Watermark(Kind.VERSION, str(low)), Watermark(Kind.VERSION, str(low + span)))

    def ours(mode: Mode) -> Callable[[], float]:
        def read() -> float:
            started = time.perf_counter()
            source = lake.source()
            table = lake.table(source, mode=mode)
            slices = _planned(source, table, low_high)
            for part in slices:
                source.changes(table, part).frame(spark).write.format("noop").mode("overwrite").save()
            return time.perf_counter() - started

        return read

    def theirs() -> float:
        started = time.perf_counter()
        options = {"readChangeFeed": "true", "startingVersion": str(low), "endingVersion": str(low + span - 1)}
        frame = spark.read.format("delta").options(**options).load(lake.path())
        frame.write.format("noop").mode("overwrite").save()
        return time.perf_counter() - started

    print(f"{span} of {versions} versions, {rows} rows each: planned and read, beside Delta's own read of the feed")
    contenders = {"Delta's feed": theirs, "append": ours(Mode.APPEND), "merge, last per key": ours(Mode.MERGE)}
    for warm in contenders.values():
        warm()
    found = _compared(rounds, contenders)
    ratios = _ratios(found, "Delta's feed")
    return {"versions": versions, "window": span, "rows": rows, "seconds": found, "ratios": ratios}


def _planned(source: DeltaSource, table: Table, asked: Window) -> Any:
    source.horizons([table])
    waiting = source.pending({table.name: (table, asked)})[table.name]
    assert isinstance(waiting, int)
    return source.slices(table, asked, waiting, None)


def _grow(path: str, versions: int, rows: int) -> None:
    """A table with so many commits; a checkpoint now and then, as every writer makes them."""
    write_deltalake(path, rows_of(0), configuration=FEED)
    for number in range(1, versions):
        write_deltalake(path, rows_of(*range(number * rows, (number + 1) * rows)), mode="append")
        if number % 100 == 0:
            DeltaTable(path).create_checkpoint()
            print(f"\r  {number} versions written", end="", flush=True)
    print()


def _compared(rounds: int, contenders: dict[str, Callable[[], float]]) -> dict[str, float]:
    """Interleaved, so that the machine's noise falls on all of them; medians."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, run in contenders.items():
            seconds[name].append(run())
    for name, found in seconds.items():
        print(f"  {name:<30} {statistics.median(found):7.2f} s   ({min(found):.2f}–{max(found):.2f} s)", flush=True)
    return {name: statistics.median(found) for name, found in seconds.items()}


def _ratios(seconds: dict[str, float], peer: str) -> dict[str, float]:
    found = {name: taken / seconds[peer] for name, taken in seconds.items() if name != peer}
    print(f"  beside {peer}: " + ", ".join(f"{name} {ratio:.3g}×" for name, ratio in found.items()))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    choose(parser, "plan", "window")
    parser.add_argument("--tables", type=int, default=500)
    parser.add_argument("--versions", type=int, default=10_000)
    parser.add_argument("--window", type=int, default=10)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    figures: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as place:
        spark = local_session(["delta"], {"spark.driver.memory": "2g"}, "local[2]", "benchmark")
        try:
            if "plan" in asked.what:
                figures["plan"] = planning(Path(place), asked.tables, asked.rounds, spark)
            if "window" in asked.what:
                figures["window"] = window(Path(place), asked.versions, asked.window, asked.rows, asked.rounds, spark)
        finally:
            stop(spark)
    save("delta_source", figures)


if __name__ == "__main__":
    main()

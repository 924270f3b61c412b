"""The stage: how much a look costs as batches pile up, and writing rows beside plain Spark.

python benchmarks/stage.py [history] [write] [--batches N] [--rows N] [--rounds N]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from harness import choose, save

from strandline.core.batch import Applied, How
from strandline.core.position import Horizon
from strandline.core.table import Table, TableInfo
from strandline.core.watermark import Kind, Watermark
from strandline.core.window import Window
from strandline.endpoint import Endpoint
from strandline.objects import Objects
from strandline.stage.ledger import Ledger
from strandline.stage.sink import StageSink
from strandline.stage.source import StageSource
from strandline.testing.sink import RowChanges, batch, orders
from strandline.testing.stage import LAYOUT, staged
from strandline.testing.stores import Seaweed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Counted:
    """A store that counts what is asked of it; a listing counts once per thousand keys, as S3 pages it."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self.requests: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._objects, name)
        if not callable(found) or name == "url":
            return found

        def counted(*given: Any, **options: Any) -> Any:
            self.requests[name] += 1
            answer = found(*given, **options)
            return self._pages(answer) if name == "list" else answer

        return counted

    def _pages(self, listed: Iterator[Any]) -> Iterator[Any]:
        for number, entry in enumerate(listed, 1):
            self.requests["list"] += number % 1000 == 0
            yield entry


def history(endpoint: Endpoint, counts: list[int], rounds: int) -> list[dict[str, object]]:
    """What a run with nothing new asks of the stage, with ever more batches behind it."""
    sink = StageSink(endpoint, _no_spark)
    found, done = [], 0
    print(f"nothing new, {endpoint.scheme}: requests and milliseconds by number of batches")
    for count in counts:
        _pile_up(sink.objects, done, count)
        done = count
        times, requests = [], 0
        for _ in range(rounds):
            started = time.perf_counter()
            requests = _look(endpoint, count)
            times.append((time.perf_counter() - started) * 1000)
        found.append({"batches": count, "requests": requests, "ms": statistics.median(times)})
        print(f"  {count:>7,} batches   {requests:>3} requests   {statistics.median(times):7.1f} ms", flush=True)
    return found


def _pile_up(objects: Objects, done: int, count: int) -> None:
    """Manifests without files, put straight into their places; the last as a sink adds it."""
    if not done:
        staged(objects, batch(1))
    like = Ledger(objects, LAYOUT).last()
    assert like is not None
    for number in range(done + 1, count):
        if number > 1:
            of = replace(batch(1), number=number)
            made = replace(like, batch=of, previous=number - 1, files=(), applied=Applied())
            objects.create(LAYOUT.manifest(*of.order), made.to_json())
    Ledger(objects, LAYOUT).add(replace(like, batch=replace(batch(1), number=count), previous=count - 1))


def _look(endpoint: Endpoint, count: int) -> int:
    """The extract's look at its target, and the load's at its source: tables, horizon, nothing pending."""
    sink, source = StageSink(endpoint, _no_spark), StageSource(endpoint, "shop")
    sink.objects = source.objects = counted = Counted(source.objects)
    receipt = sink.applied(orders())
    assert receipt is not None and receipt.batch.number == count
    info = source.tables(["orders"], {})["orders"]
    assert isinstance(info, TableInfo)
    table = source.resolve(orders(), info, None)
    horizon = source.horizons([table])["orders"]
    high = Watermark(Kind.VERSION, str(count + 1))
    assert isinstance(horizon, Horizon) and horizon.high == high
    assert source.pending({"orders": (table, Window(high, high))}) == {"orders": 0}
    return sum(counted.requests.values())


def _no_spark() -> SparkSession:
    raise AssertionError("nothing here needs Spark")


class Generated(RowChanges):
    """Six columns of every sort, made by Spark itself, so that writing is what costs."""

    rows_wanted = 0

    def frame(self, spark: SparkSession) -> DataFrame:
        return spark.range(0, self.rows_wanted, 1, 2).selectExpr(
            "id",
            "cast(id % 100000 as int) AS customer_id",
            "element_at(array('new', 'paid', 'sent', 'done'), cast(1 + id % 4 as int)) AS status",
            "cast((id % 100000) / 100 as decimal(12,2)) AS amount",
            "concat('note ', id) AS note",
            "timestamp_micros(1763164800000000 + id) AS at",
        )


def write(seaweed: Seaweed, rows: int, rounds: int) -> dict[str, object]:
    """The same rows to the same store on the same warm session: plain Spark, and a batch of the stage."""
    from strandline.spark.session import batch_session, local_session, stop
    from strandline.spark.storage import storage_settings

    endpoint = seaweed.endpoint("bench")
    spark = local_session(["s3"], {"spark.driver.memory": "2g"}, "local[2]", "bench")
    sink = StageSink(endpoint, lambda: spark)
    changes = Generated([], "")
    Generated.rows_wanted = rows
    table: Table = orders()

    def plain(number: int) -> None:
        session = batch_session(spark)
        for key, value in storage_settings(endpoint).items():
            session.conf.set(key, value)
        changes.frame(session).write.parquet(f"s3a://bench/plain/{number}")

    def stage(number: int) -> None:
        applied = sink.apply(table, batch(number), changes, how=How.CHANGES)
        assert applied.rows_read == rows

    taken: dict[str, list[float]] = {"plain Spark": [], "stage": []}
    try:
        for number in range(1, rounds + 2):  # the first round warms up
            for name, run in {"plain Spark": plain, "stage": stage}.items():
                seconds = _seconds(run, number)
                if number > 1:
                    taken[name].append(seconds)
    finally:
        stop(spark)
    ratio = statistics.median(taken["stage"]) / statistics.median(taken["plain Spark"])
    print(f"{rows:,} rows, 6 columns, to SeaweedFS")
    for name, seconds in taken.items():
        print(f"  {name:<14} {statistics.median(seconds):7.2f} s   ({min(seconds):.2f}–{max(seconds):.2f} s)")
    print(f"  ratio {ratio:.2f}")
    return {**taken, "ratio": ratio}


def _seconds(run: Callable[[int], None], number: int) -> float:
    started = time.perf_counter()
    run(number)
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    choose(parser, "history", "write")
    parser.add_argument("--batches", type=int, default=10_000)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    counts = [count for count in (10, 100, 1_000, 10_000, 100_000) if count <= asked.batches]
    with Seaweed() as seaweed, tempfile.TemporaryDirectory() as folder:
        if "history" in asked.what:
            figures = {
                "directory": history(Endpoint.parse(f"{folder}/stage"), counts, asked.rounds),
                "seaweedfs": history(seaweed.endpoint("history"), counts, asked.rounds),
            }
            save("stage-history", figures)
        if "write" in asked.what:
            save(f"stage-write-{asked.rows}", write(seaweed, asked.rows, asked.rounds))


if __name__ == "__main__":
    main()

"""Every pipeline of a config at once, on one Spark: `zombie_child.py CONFIG TABLES`.

With so many tables about to be read it says `ready` and waits for a line; in the end it says what became of each.
"""

from __future__ import annotations

import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import strandline
from strandline.core.events import Event, Intended
from strandline.core.table import LOAD
from strandline.spark.session import local_session, stop
from strandline.spark.storage import needs


def main(config: str, tables: int) -> None:
    gathered = threading.Barrier(tables + 1)

    def wait(event: Event) -> None:
        if isinstance(event, Intended) and event.stage != LOAD:
            gathered.wait()  # all are here
            gathered.wait()  # and may go on

    with strandline.load(config) as project:
        # So that nothing tells it when it wakes: the lease is renewed, and seen to be lost, three times in this time.
        project.books.lease_time = timedelta(hours=1)
        specs = project.config.pipelines.values()
        ends = [end for spec in specs for end in (spec.source, *spec.targets.values())]
        # A task that waits keeps its thread.
        spark = local_session(needs(ends), {"spark.driver.memory": "1g"}, f"local[{2 * tables}]", "zombies")
        with ThreadPoolExecutor(len(specs)) as pool:
            runs = [pool.submit(project.sync, spec.name, spark=spark, listener=wait) for spec in specs]
            gathered.wait()
            print("ready", flush=True)
            sys.stdin.readline()
            gathered.wait()
            results = [run.result() for run in runs]
        parts = [(run.pipeline, part) for run in results for part in run.tables if part.stage != LOAD]
        told = {f"{pipeline}.{part.table}": str(part.error or "") for pipeline, part in parts}
        print(json.dumps(told), flush=True)
        stop(spark)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

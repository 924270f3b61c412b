"""A job of somebody's own over Delta tables: `tracked_child.py STATE LAKE TARGET WHAT`.

Appends the ids of each table's window to a file per table. WHAT: `finish`, `kill` (by SIGKILL, with the second table
written and not done), or `wait` (with everything at hand, until a line comes in).
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from strandline import Tracker
from strandline.tracking.table import TrackedTable


def read(lake: str, table: TrackedTable) -> list[int]:
    low = table.window.low
    start, end = int(low.text) if low else 0, int(table.window.high.text) - 1
    feed: Any = DeltaTable(f"{lake}/{table.name}").load_cdf(starting_version=start, ending_version=end).read_all()
    return sorted(feed["id"].to_pylist())


def main(state: str, lake: str, target: str, what: str) -> None:
    with Tracker(state, pipeline="nightly", source=f"delta:{lake}", key="id").run(["fees", "orders"]) as run:
        for table in run:
            with Path(target, table.name).open("a") as file:
                file.write(f"{table.window} {read(lake, table)}\n")
            if what == "kill" and table.name == "orders":
                os.kill(os.getpid(), signal.SIGKILL)
            if what == "wait":
                print(run.run_id, flush=True)
                sys.stdin.readline()
            table.done()


if __name__ == "__main__":
    main(*sys.argv[1:])

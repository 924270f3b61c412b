"""A position update in a Delta state beside one in SQLite, and updates of several processes at once: none is lost.

python benchmarks/delta_state.py [update] [race] [--rounds N] [--updates N] [--processes N]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace

from harness import choose, save

from strandline.core.protocols import Record
from strandline.endpoint import Endpoint
from strandline.state import open_state
from strandline.testing.state import position, run

_INCREMENT = """
import sys
from dataclasses import replace
from strandline.core.errors import ConflictError
from strandline.endpoint import Endpoint
from strandline.state import open_state
state, done = open_state(Endpoint.parse(sys.argv[1])), 0
while done < int(sys.argv[2]):
    (record,) = state.read("position")
    try:
        state.put([replace(record, fields={"rows_read": record.fields["rows_read"] + 1})])
        done += 1
    except ConflictError:
        pass
"""


def update(urls: dict[str, str], rounds: int) -> dict[str, dict[str, float]]:
    """A step of a run as the books write it: the position and its row of history, in one put; both stores in turn."""
    states = {name: open_state(Endpoint.parse(url)) for name, url in urls.items()}
    stored = {name: state.put([position("orders"), _part(0)]) for name, state in states.items()}
    times: dict[str, list[float]] = {name: [] for name in urls}
    busy = dict.fromkeys(urls, 0.0)
    for number in range(rounds):
        for name, state in states.items():
            changed = [replace(record, fields={**record.fields, "batches": number}) for record in stored[name]]
            started, worked = time.perf_counter(), time.process_time()
            stored[name] = state.put(changed)
            times[name].append((time.perf_counter() - started) * 1000)
            busy[name] += (time.process_time() - worked) * 1000
    found = {}
    for name, taken in times.items():
        slow = sorted(taken)[-len(taken) // 20]
        found[name] = {"median": statistics.median(taken), "mean": statistics.fmean(taken), "p95": slow}
        found[name]["processor"] = busy[name] / rounds  # all threads: says more than the clock on a busy machine
        print(f"{name:<7}" + "".join(f"   {what} {ms:6.1f} ms" for what, ms in found[name].items()))
        states[name].close()
    return found


def _part(number: int) -> Record:
    return Record("table_run", (f"run-{number}", "orders", "load"), {"pipeline": "shop", "status": "RUNNING"})


def race(url: str, updates: int, processes: int) -> dict[str, float]:
    """So many increments of one record, by several processes at once."""
    state = open_state(Endpoint.parse(url))
    state.put([position("orders", rows_read=0), run("r1")])
    each = updates // processes
    started = time.perf_counter()
    running = [subprocess.Popen([sys.executable, "-c", _INCREMENT, url, str(each)]) for _ in range(processes)]
    assert [process.wait() for process in running] == [0] * processes
    seconds = time.perf_counter() - started
    (record,) = state.read("position")
    print(f"{processes} processes, {each * processes} updates: {record.fields['rows_read']} arrived, {seconds:.1f} s")
    assert record.fields["rows_read"] == each * processes == record.revision - 1
    return {"processes": processes, "updates": each * processes, "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    choose(parser, "update", "race")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--updates", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=4)
    given = parser.parse_args()
    found: dict[str, object] = {"load": os.getloadavg()[0]}
    with tempfile.TemporaryDirectory() as folder:
        if "update" in given.what:
            urls = {"sqlite": f"sqlite:///{folder}/state.db", "delta": f"delta:{folder}/update"}
            found["update"] = update(urls, given.rounds)
        if "race" in given.what:
            found["race"] = race(f"delta:{folder}/race", given.updates, given.processes)
    save("delta_state", found)


if __name__ == "__main__":
    main()

"""`python -m soak --minutes 5`: writes soak/results/soak.json and prints the table for docs/guarantees.md."""

from __future__ import annotations

import argparse
import json
import platform
import signal
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import yaml

from soak.bench import Bench, benches
from soak.runner import DeltaRunner, LedgerRunner, Runner
from soak.watchers import Naive, Stopwatch, spread
from soak.writers import TABLES

RESULTS = Path(__file__).parent / "results"
GUARD = timedelta(seconds=2)  # shorter than many transactions, longer than any backend is frozen
WHEN = {"idle": "idle", "short": "{} writers, short transactions", "hostile": "{} hostile writers"}
BEHIND = {
    "postgresql": "now() - interval '500 milliseconds'",
    "mariadb": "NOW(6) - INTERVAL 500000 MICROSECOND",
}


def soak(minutes: float, writers: int, pace: float, delta: bool) -> dict[str, Any]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="strandline-soak-")))
        used = benches()
        for bench in used:
            stack.callback(bench.close)
            bench.open()
        config = _config(folder, used)
        waits = {bench.name: {"idle": _timed(bench, 41 if minutes >= 1 else 3)} for bench in used}
        if minutes >= 1:
            for bench in used:
                bench.work(writers, 0.2, calm=True)
                waits[bench.name]["short"] = _timed(bench, 41)
                bench.rest()
        for bench in used:
            bench.work(writers, pace)
        runners: list[Runner] = [LedgerRunner(config, bench, folder) for bench in used]
        if delta:
            runners.append(DeltaRunner(config, used, folder))
        for runner in runners:
            stack.callback(runner.abort)
        naive = {bench.name: (Naive(bench, "naive"), Naive(bench, "delayed", BEHIND[bench.name])) for bench in used}
        watches = {bench.name: Stopwatch(bench, GUARD) for bench in used}
        threads: list[threading.Thread] = [
            *runners,
            *watches.values(),
            *(one for pair in naive.values() for one in pair),
        ]
        for thread in threads:
            thread.start()
        until = time.monotonic() + minutes * 60
        while time.monotonic() < until:
            time.sleep(min(15, max(0, until - time.monotonic())))
            print(" · ".join(_progress(bench) for bench in used), flush=True)
        for name, watch in watches.items():
            waits[name]["hostile"] = watch.finish()
        for bench in used:
            bench.rest()
        time.sleep(GUARD.total_seconds() + 1)
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(Runner.finish, runners))
        for pair in naive.values():
            for one in pair:
                one.finish()
        return {
            "machine": f"{platform.machine()}, python {platform.python_version()}",
            "minutes": minutes,
            "writers": writers,
            "guard_seconds": GUARD.total_seconds(),
            "databases": {
                bench.name: {
                    "written": dict(sorted(bench.tally.counts.items())),
                    "transaction_ms": spread(bench.tally.seconds),
                    "barrier_ms": waits[bench.name],
                    "naive": {one.name: {"polls": one.polls, "lost": one.lost()} for one in naive[bench.name]},
                    "strandline": {
                        "memory": watches[bench.name].figures(),
                        **{runner.name: runner.figures(bench) for runner in runners if bench in runner.benches},
                    },
                }
                for bench in used
            },
        }


def _timed(bench: Bench, rounds: int) -> dict[str, float]:
    watch = Stopwatch(bench, GUARD, rounds)
    watch.start()
    watch.join()
    watch.source.close()
    return watch.finish()


def _progress(bench: Bench) -> str:
    counts = bench.tally.counts
    return f"{bench.name}: {counts['transactions']:,} transactions, {counts['rows']:,} rows"


def _config(folder: Path, used: list[Bench]) -> Path:
    """For each database one pipeline into the ledger and one into Delta, all over one state store."""
    tables = [{"name": name, "cursor": "at"} for name in TABLES[:2]] + [
        {"name": "events", "cursor": "id", "mode": "append"}
    ]
    pipelines = {
        f"{bench.name}_{kind}": {
            "source": bench.url,
            "target": f"delta:{kind}/{bench.name}",
            "guard": f"{GUARD.total_seconds():g}s",
            "tables": tables,
        }
        for bench in used
        for kind in ("ledger", "lake")
    }
    path = folder / "strandline.yml"
    path.write_text(yaml.safe_dump({"pipelines": pipelines}))
    path.chmod(0o600)
    return path


def table(figures: dict[str, Any]) -> str:
    lines = [
        "| | written | | `> watermark` | `now() − 500 ms` | Strandline, killed | |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        "| | transactions | rows | lost | lost | kills / windows | lost / twice |",
    ]
    for name, found in figures["databases"].items():
        for kind, one in found["strandline"].items():
            written = found["written"]
            lines.append(
                f"| {name} → {kind} | {written.get('transactions', 0):,} | {written.get('rows', 0):,} "
                f"| {found['naive']['naive']['lost']:,} | {found['naive']['delayed']['lost']:,} "
                f"| {one['kills']:,} / {one['windows']:,} | {one['lost']:,} / {one['twice']:,} |"
            )
    lines += [
        "",
        "| barrier, ms | p50 | p90 | p99 | max | measured | held |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, found in figures["databases"].items():
        for when, one in found["barrier_ms"].items():
            shown = " | ".join(f"{one.get(key, 0):g}" for key in ("p50", "p90", "p99", "max", "number", "held"))
            lines.append(f"| {name}, {WHEN[when].format(figures['writers'])} | {shown} |")
        one = found["transaction_ms"]
        shown = " | ".join(f"{one.get(key, 0):g}" for key in ("p50", "p90", "p99", "max", "number"))
        lines.append(f"| {name}, the writers' own transactions | {shown} | |")
    return "\n".join(lines)


def wrong(figures: dict[str, Any]) -> list[str]:
    """Everything that must not have happened, and a run that proves nothing."""
    found = []
    for name, one in figures["databases"].items():
        for kind, end in one["strandline"].items():
            found += [f"{name} → {kind}: {end['lost']} lost"] if end["lost"] else []
            found += [f"{name} → {kind}: {end['twice']} came twice"] if end["twice"] else []
            found += [f"{name} → {kind}: the last sync failed: {end['failed']}"] if end["failed"] else []
            found += [] if end["windows"] else [f"{name} → {kind}: no window was taken"]
        found += [] if one["written"].get("transactions") else [f"{name}: nothing was written"]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--writers", type=int, default=50, help="per database")
    parser.add_argument("--pace", type=float, default=0.5, help="mean seconds a writer rests between transactions")
    parser.add_argument("--no-delta", action="store_true", help="only the ledger: starts no JVM")
    parser.add_argument("--save", type=Path, default=RESULTS / "soak.json")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    figures = soak(given.minutes, given.writers, given.pace, not given.no_delta)
    given.save.parent.mkdir(parents=True, exist_ok=True)
    given.save.write_text(json.dumps(figures, indent=2) + "\n")
    print(f"\n{table(figures)}\n")
    if trouble := wrong(figures):
        raise SystemExit("\n".join(trouble))


if __name__ == "__main__":
    main()

"""Strandline beside what people use today: the same work, each contender in its own process, interleaved.

    python benchmarks/against.py [--only a,b] [--peers dlt-pyarrow,sling | none] [--rows N] [--scale F] [--rounds N]

a first load · b increment · c nothing new · d many small tables · e inside PostgreSQL · f over a stage · g wide rows,
large texts · h planning · i larger first loads. `--scale 0.01` makes everything small.
Figures are kept in results/against.json, workload by workload; the chart and the tables in docs/benchmarks.md are made
of them, with `--report` without measuring.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import tempfile
from dataclasses import asdict
from pathlib import Path

from chart import chart
from contenders import OURS, THEIRS, Contender, WarmStrandline
from harness import HERE
from report import PAGE, table, written
from workloads import TITLES, Bench

ROWS = 5_000_000


def contenders(peers: str) -> tuple[list[Contender], dict[str, str]]:
    """Those that can be had, and why the others cannot."""
    asked = [*OURS, *THEIRS] if peers == "all" else [name for name in peers.split(",") if name != "none"]
    found: list[Contender] = [OURS["strandline"](), OURS["limit"]()]
    missing: dict[str, str] = {}
    found += [OURS[name]() for name in ("spark", "hand-written") if name in asked]
    if peers != "none":
        found.append(WarmStrandline())
    for name in asked:
        if name in THEIRS:
            try:
                found.append(THEIRS[name]())
            except subprocess.CalledProcessError as error:
                missing[THEIRS[name].name] = f"could not be installed: {(error.stderr or '').strip()[-300:]}"
    return found, missing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(TITLES), help="letters of workloads, with commas")
    parser.add_argument("--peers", default="all", help=f"all, none, or of: spark,hand-written,{','.join(THEIRS)}")
    parser.add_argument("--rows", type=int, help=f"rows of the large tables; {ROWS:,} times the scale")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warming", type=int, default=3, help="rounds that a warm Spark does before")
    parser.add_argument("--results", type=Path, default=HERE / "results")
    parser.add_argument("--report", action="store_true")
    given = parser.parse_args()
    file = given.results / "against.json"
    if not given.report:
        measure(given, file)
    figures = json.loads(file.read_text())
    (given.results / "against.svg").write_text(chart(figures))
    if given.results == HERE / "results":
        PAGE.write_text(written(PAGE.read_text(), figures))
    print(table(figures))


def measure(given: argparse.Namespace, file: Path) -> None:
    found, missing = contenders(given.peers)
    for name, why in missing.items():
        print(f"left out: {name}: {why}", flush=True)
    rows = given.rows or max(1000, int(ROWS * given.scale))
    with tempfile.TemporaryDirectory(prefix="strandline-against-") as name:
        only = tuple(given.only.split(","))
        bench = Bench(
            found,
            Path(name),
            given.rounds,
            rows,
            given.scale,
            only,
            given.warming,
            lambda so_far: keep(file, so_far, missing),
        )
        try:
            bench.run()
        finally:
            for one in found:
                if isinstance(one, WarmStrandline):
                    one.close()


def keep(file: Path, bench: Bench, missing: dict[str, str]) -> None:
    """Put the workloads of this run, as far as it got, in the place of what was there for them."""
    before = json.loads(file.read_text()) if file.exists() else {"workloads": {}, "contenders": {}}
    for letter in bench.results.keys() & bench.titles.keys():
        results = bench.results[letter]
        before["workloads"][letter] = {
            "title": bench.titles[letter],
            "load": os.getloadavg()[2],
            "contenders": {name: asdict(result) for name, result in results.items()},
        }
    before["contenders"] |= {one.name: one.note for one in bench.contenders}
    before["missing"] = missing
    before["machine"] = f"{os.cpu_count()} processors, {platform.system()}, Python {platform.python_version()}"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(before, indent=2, sort_keys=True, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()

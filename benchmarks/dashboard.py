"""The overview with 1,000 tables and 100,000 runs in the history: server time and size of each page.

python benchmarks/dashboard.py [--tables 1000] [--runs 100000] [--pipelines 10]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from fastapi.testclient import TestClient

from strandline.cli.progress import describe
from strandline.core.books import stamp
from strandline.core.codec import position_record
from strandline.core.position import Position
from strandline.core.protocols import Record
from strandline.core.records import COUNTS
from strandline.core.watermark import Kind, Watermark
from strandline.project import Project, load
from strandline.service.service import Service
from strandline.web.app import make_app
from strandline.web.security import Security

LIMIT_MS, LIMIT_KB = 200, 300
PATHS = ("/", "/api/v1/pipelines", "/pipelines/p0", "/pipelines/p0/tables/table_00000", "/runs", "/metrics")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tables", type=int, default=1_000)
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--pipelines", type=int, default=10)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        project = _project(Path(folder), given.pipelines)
        fill(project, [f"p{number}" for number in range(given.pipelines)], given.tables, given.runs)
        client = TestClient(make_app(Service(project, words=describe), Security()), base_url="http://127.0.0.1")
        print(f"{given.pipelines} pipelines, {given.tables:,} tables, {given.runs:,} runs in SQLite")
        slow = [path for path in PATHS if not _measure(client, path)]
        project.close()
    print(f"the overview is {'too slow or too large' if '/' in slow else 'within'} {LIMIT_MS} ms and {LIMIT_KB} KB")
    return int("/" in slow)


def _measure(client: TestClient, path: str, rounds: int = 9) -> bool:
    client.get(path, headers={"Accept": "text/html"})  # templates are compiled, the lag is sampled
    took = []
    for _ in range(rounds):
        began = time.perf_counter()
        answer = client.get(path, headers={"Accept": "text/html"})
        took.append((time.perf_counter() - began) * 1000)
        assert answer.status_code == 200, answer.text[:500]
    median, size = statistics.median(took), len(answer.content) / 1000
    print(f"  {path:<36} {median:7.0f} ms ({min(took):.0f}–{max(took):.0f})   {size:7.0f} KB")
    return median < LIMIT_MS and size < LIMIT_KB


def _project(folder: Path, pipelines: int) -> Project:
    ends = "source: postgresql://h/x, target: postgresql://h/x, via: server"
    parts = [f"  p{number}: {{{ends}, tables: ['*']}}\n" for number in range(pipelines)]
    (folder / "strandline.yml").write_text(f"state: sqlite:///{folder}/state.db\npipelines:\n{''.join(parts)}")
    return load(folder / "strandline.yml")


def fill(project: Project, pipelines: Sequence[str], tables: int, runs: int) -> None:
    """As so many tables and runs would leave the state: each run moved one table of its pipeline."""
    state, now = project.books.state, datetime.now(UTC)
    mark = Watermark(Kind.TIMESTAMP, f"{now:%Y-%m-%d %H:%M:%S}.120003")
    where = [(pipelines[number % len(pipelines)], f"table_{number:05}") for number in range(tables)]
    position = Position(
        "", "", "sync", watermark=mark, last_value=mark, updated_at=stamp(now), run_id="20261101-000000"
    )
    state.put([position_record(replace(position, pipeline=name, table=table)) for name, table in where])
    for first in range(0, runs, 5_000):
        history = []
        for number in range(first, min(first + 5_000, runs)):
            at = now - timedelta(seconds=30 * (runs - number))
            name, table = where[number % tables]
            run_id = f"{at:%Y%m%d-%H%M%S}-000-{number:06x}"
            fields = {
                "pipeline": name,
                "status": "FAILED" if number % 97 == 0 else "COMPLETED",
                "started_at": stamp(at),
                "ended_at": stamp(at + timedelta(seconds=2)),
                "milliseconds": 2000,
                **dict.fromkeys(COUNTS, 10),
            }
            history.append(Record("run", (run_id,), {**fields, "trigger_name": "schedule", "tables": 1}))
            part = {**fields, "low": mark.text, "high": mark.text, "reason": "incremental", "batches": 1, "error": ""}
            history.append(Record("table_run", (run_id, table, "sync"), part))
        state.append(history)


if __name__ == "__main__":
    sys.exit(main())

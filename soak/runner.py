"""Processes that sync until they are killed, started again at once; and what their targets hold in the end."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from soak.bench import Bench
from soak.watchers import missing
from soak.writers import TABLES

ROOT = Path(__file__).parents[1]
_ZOMBIE_SECONDS = 3  # a killed child's JVM may live on beside the next child, as it does in life


class Runner(ABC, threading.Thread):
    """One child at a time, killed after a random while; the last one runs to its end."""

    name: str
    seconds: tuple[float, float]  # how long a child lives at most

    def __init__(self, config: Path, benches: Sequence[Bench], folder: Path) -> None:
        super().__init__(daemon=True)
        self.config = config
        self.folder = folder
        self.benches = list(benches)
        self.counts: dict[str, Counter[str]] = {bench.name: Counter() for bench in benches}
        self.places: Counter[str] = Counter()  # where children killed themselves
        self.errors: Counter[str] = Counter()
        self.failed: dict[str, str] = {}
        self.ended = threading.Event()
        self.child: subprocess.Popen[str] | None = None
        self.chance = random.Random(self.kind)

    @property
    @abstractmethod
    def kind(self) -> str:
        """The end of the pipelines' names."""

    def ledger(self, bench: Bench) -> Path | None:
        """Where rows go instead of to the config's target."""
        return self.folder / f"{bench.name}.ledger" if self.kind == "ledger" else None

    @abstractmethod
    def held(self, bench: Bench, table: str) -> tuple[dict[int, int], int]:
        """What the target holds: the newest version of each row, and how many came twice."""

    def run(self) -> None:
        turn = 0
        while not self.ended.is_set():
            bench = self.benches[turn % len(self.benches)]
            turn += 1
            self._child(bench, turn, self.chance.uniform(*self.seconds))

    def _child(self, bench: Bench, seed: int, seconds: float | None) -> int:
        command = [sys.executable, "-m", "soak.child", str(self.config), f"{bench.name}_{self.kind}", str(seed)]
        if ledger := self.ledger(bench):
            command.append(str(ledger))
        quiet = {**os.environ, "STRANDLINE_CLASS_ARCHIVE": "off"}
        with (self.folder / f"{self.kind}.log").open("ab") as log:
            child = subprocess.Popen(
                command,
                stdout=subprocess.PIPE, stderr=log, text=True, cwd=ROOT, env=quiet, start_new_session=True,
            )  # fmt: skip
        self.child = child
        alarm = threading.Timer(seconds, child.kill) if seconds is not None else None
        if alarm:
            alarm.start()
        assert child.stdout is not None
        for line in child.stdout:
            self._note(bench, json.loads(line))
        code = child.wait()
        if alarm:
            alarm.cancel()
        threading.Timer(_ZOMBIE_SECONDS, _kill, [child.pid]).start()
        self.counts[bench.name]["kills"] += code == -signal.SIGKILL
        if code not in (0, -signal.SIGKILL):
            self.errors[f"exit {code}"] += 1
        return code

    def _note(self, bench: Bench, said: dict[str, Any]) -> None:
        if "killed" in said:
            self.places[said["killed"]] += 1
            return
        counts = self.counts[bench.name]
        counts["syncs"] += 1
        for what in ("batches", "windows", "held"):
            counts[what] += said[what]
        for error in said["errors"]:
            self.errors[error.splitlines()[0][:200]] += 1
        self.failed[bench.name] = "; ".join(said["errors"])

    def finish(self) -> None:
        """Kill the child under way, then sync to the end: what it left, and what is new."""
        self.abort()
        for bench in self.benches:
            if self._child(bench, 0, None) != 0:
                self.failed[bench.name] = "the last sync did not end well"

    def abort(self) -> None:
        self.ended.set()
        if self.child and self.child.poll() is None:
            _kill(self.child.pid)
        if self.is_alive():
            self.join()

    def figures(self, bench: Bench) -> dict[str, Any]:
        lost = twice = 0
        for table in TABLES:
            rows, repeated = self.held(bench, table)
            lost += missing(bench.versions(table), rows)
            twice += repeated
        return {
            **self.counts[bench.name],
            "lost": lost,
            "twice": twice,
            "failed": self.failed.get(bench.name, ""),
            "killed itself at": dict(self.places),
            "errors on the way": dict(self.errors),
        }


class LedgerRunner(Runner):
    """Into SQLite, without Spark: killed every few seconds."""

    name = "ledger"
    kind = "ledger"
    seconds = (0.7, 20.0)

    def __init__(self, config: Path, bench: Bench, folder: Path) -> None:
        super().__init__(config, [bench], folder)

    def held(self, bench: Bench, table: str) -> tuple[dict[int, int], int]:
        from soak.ledger import Ledger

        ledger = Ledger(self.folder / f"{bench.name}.ledger")
        return ledger.versions(table), ledger.repeated(table)


class DeltaRunner(Runner):
    """Through Spark into Delta, one database after the other: a JVM's start takes its time."""

    name = "delta"
    kind = "lake"
    seconds = (15.0, 75.0)

    def held(self, bench: Bench, table: str) -> tuple[dict[int, int], int]:
        from deltalake import DeltaTable, QueryBuilder
        from deltalake.exceptions import TableNotFoundError

        try:
            lake = DeltaTable(str(self.folder / "lake" / bench.name / table))
        except TableNotFoundError:
            return {}, 0  # every row of it is lost, then
        read = QueryBuilder().register("t", lake).execute("SELECT id, version FROM t").read_all()
        pairs = list(zip(read["id"].to_pylist(), read["version"].to_pylist(), strict=True))
        return dict(pairs), len(pairs) - len({number for number, _ in pairs})


def _kill(group: int) -> None:
    """Whatever a child has left behind."""
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)

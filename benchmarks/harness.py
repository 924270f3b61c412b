"""Times whole processes side by side: interleaved rounds, medians with spread, peak memory of the process tree."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
PYTHON = sys.executable


@dataclass
class Series:
    """What one contender took, round by round."""

    name: str
    seconds: list[float] = field(default_factory=list)
    peak_mb: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    def line(self) -> str:
        spread = f"{min(self.seconds):.2f}–{max(self.seconds):.2f}"
        return f"  {self.name:<34} {self.median:8.2f} s   ({spread} s)   peak {max(self.peak_mb):7.0f} MB"


def timed(command: Sequence[str], env: Mapping[str, str] | None = None) -> tuple[float, float, str]:
    """Run a process to its end: seconds, peak MB of it and its children, and what it printed. Fails if it fails."""
    started = time.perf_counter()
    process = subprocess.Popen(
        command, env={**os.environ, **(env or {})}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    peak = Peak(process.pid)
    out, err = process.communicate()
    seconds = time.perf_counter() - started
    peak.stop()
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: exit {process.returncode}\n{out}\n{err}")
    return seconds, peak.megabytes, out


def compare(rounds: int, contenders: Mapping[str, Callable[[], tuple[float, float]]]) -> dict[str, Series]:
    """Run every contender once per round, in turn, so that the machine's noise falls on all of them."""
    series = {name: Series(name) for name in contenders}
    for _ in range(rounds):
        for name, run in contenders.items():
            seconds, peak = run()
            series[name].seconds.append(seconds)
            series[name].peak_mb.append(peak)
    for one in series.values():
        print(one.line(), flush=True)
    return series


def save(name: str, figures: Mapping[str, object]) -> None:
    """Keep the figures of a run as JSON beside the others."""
    folder = HERE / "results"
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(figures, indent=2, sort_keys=True) + "\n")


def processor_seconds(pid: int) -> float:
    """Of a process and all its descendants, ended ones too: what else the machine does matters less for it."""
    ticks = 0
    for each in _family(pid):
        try:
            fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        ticks += sum(int(field) for field in fields[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


class Peak:
    """Samples the resident memory of a process and all its descendants."""

    def __init__(self, pid: int) -> None:
        self.megabytes = 0.0
        self._pid = pid
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._done.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._done.wait(0.2):
            self.megabytes = max(self.megabytes, sum(_rss(pid) for pid in _family(self._pid)) / 1024)


def _family(root: int) -> set[int]:
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue  # ended meanwhile
            parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    family = {root}
    while True:
        more = {pid for pid, parent in parents.items() if parent in family} - family
        if not more:
            return family
        family |= more


def _rss(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((float(line.split()[1]) for line in lines if line.startswith("VmRSS")), 0.0)

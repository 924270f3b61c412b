"""Times whole processes side by side: interleaved rounds, medians with spread, peak memory of the process tree."""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from strandline.spark.jars import cache_folder

HERE = Path(__file__).parent
PYTHON = sys.executable
PATIENCE = 1800


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


class FailedError(SystemExit):
    """A process that was to be timed failed."""


@dataclass(frozen=True)
class Took:
    """What a whole process took: seconds by the clock, of the processors, and peak MB."""

    seconds: float
    peak_mb: float
    busy: float
    out: str = ""


def timed(command: Sequence[str], env: Mapping[str, str] | None = None) -> tuple[float, float, str]:
    """Run a process to its end: seconds, peak MB of it and its children, and what it printed. Fails if it fails."""
    took = measured(command, env)
    return took.seconds, took.peak_mb, took.out


def measured(
    command: Sequence[str],
    env: Mapping[str, str] | None = None,
    also: Sequence[int] = (),
    servers: Sequence[int] = (),
) -> Took:
    """The same. `also` are processes that count too, as a Spark that works for it; of `servers`, databases, only what
    the processors do for them."""
    started = time.perf_counter()
    process = subprocess.Popen(
        command, env={**environment(), **(env or {})}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    peak = Peak(process.pid, *also, servers=servers)
    try:
        out, err = process.communicate(timeout=PATIENCE)
        seconds = time.perf_counter() - started
    except subprocess.TimeoutExpired:
        for pid in _family(process.pid):
            os.kill(pid, signal.SIGKILL)
        process.communicate()
        raise FailedError(f"{' '.join(command)}: not done after {PATIENCE} s") from None
    finally:
        peak.stop()
    if process.returncode != 0:
        raise FailedError(f"{' '.join(command)}: exit {process.returncode}\n{out[-4000:]}\n{err[-4000:]}")
    return Took(seconds, peak.megabytes, peak.busy, out)


def environment() -> dict[str, str]:
    """Ours, but Python keeps what it compiled, as it does for users; in a place of its own."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPYCACHEPREFIX": str(cache_folder().parent / "peers" / "bytecode")}


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


def choose(parser: argparse.ArgumentParser, *parts: str) -> None:
    """`what`: the parts to run; without any, all of them."""

    def known(text: str) -> str:
        if text not in parts:
            raise argparse.ArgumentTypeError(f"{text}: choose from {', '.join(parts)}")
        return text

    parser.add_argument("what", nargs="*", type=known, default=parts)


def save(name: str, figures: Mapping[str, object]) -> None:
    """Keep the figures of a run as JSON beside the others."""
    folder = HERE / "results"
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(figures, indent=2, sort_keys=True) + "\n")


def processor_seconds(*pids: int) -> float:
    """Of processes and all their descendants, ended ones too: what else the machine does matters less for it."""
    ticks = 0
    for each in _family(*pids):
        try:
            fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        ticks += sum(int(field) for field in fields[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


class Peak:
    """Samples the resident memory of processes and all their descendants, and the processors' time they and the servers
    took."""

    def __init__(self, *pids: int, servers: Sequence[int] = ()) -> None:
        self.megabytes = 0.0
        self.busy = 0.0
        self._pids = pids
        self._working = (*pids, *servers)
        self._before = processor_seconds(*self._working)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._done.set()
        self._thread.join()

    def _sample(self) -> None:
        looks = 0
        while not self._done.wait(0.02 if looks < 50 else 0.2):  # a short process is looked at more often
            looks += 1
            self.megabytes = max(self.megabytes, _resident(_family(*self._pids)))
            self.busy = max(self.busy, processor_seconds(*self._working) - self._before)


def _family(*roots: int) -> dict[int, int]:
    """Processes and their descendants, and of each the parent."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue  # ended meanwhile
            parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    family = {pid: parents.get(pid, 0) for pid in roots}
    while more := {pid: parent for pid, parent in parents.items() if parent in family and pid not in family}:
        family |= more
    return family


def _resident(family: Mapping[int, int]) -> float:
    """MB. A child that has not become another program yet still is its parent in memory, and is not counted again: its
    addresses are those of its parent, as far as two looks, one after the other, can tell."""
    sizes = {pid: _size(pid) for pid in family}
    parents = {pid: sizes.get(family[pid], (0, 0))[0] for pid in family}
    own = (resident for pid, (all_, resident) in sizes.items() if abs(parents[pid] - all_) * 100 > all_)
    return sum(own) / 1024


def _size(pid: int) -> tuple[int, int]:
    """KB of its addresses, and of the memory behind them."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0, 0
    found = {name: value.split()[0] for name, _, value in (line.partition(":") for line in lines) if value.strip()}
    return int(found.get("VmSize", 0)), int(found.get("VmRSS", 0))

"""A process that syncs one pipeline until it is killed: `python -m soak.child CONFIG PIPELINE SEED [LEDGER]`.

It kills itself with SIGKILL at a random event now and then; the rest is up to whoever started it. With SEED 0 it syncs
twice, what was left and what is new, and ends. With a LEDGER, rows go there instead of to the target in the config.
Prints a line of JSON per sync.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from soak.ledger import LedgerSink
from strandline.config import load_config
from strandline.core.events import Event
from strandline.pipeline import Pipeline
from strandline.project import Project

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAUSE_SECONDS = 0.2


class LedgerProject(Project):
    """A project like any other, but for where its rows end."""

    ledger: Path

    @contextmanager
    def opened(self, name: str, stage: str = "", spark: SparkSession | None = None) -> Iterator[Pipeline]:
        with super().opened(name, stage, spark) as pipeline:
            pipeline._sink = LedgerSink(self.ledger, self.pipeline(name).source)
            yield pipeline


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


def sync(project: Project, pipeline: str, seed: int) -> None:
    chance = random.Random(seed)

    def perhaps(event: Event) -> None:
        if seed and chance.random() < 0.02:
            say(killed=type(event).__name__)
            os.kill(os.getpid(), signal.SIGKILL)

    for round_ in count(1):
        result = project.sync(pipeline, listener=perhaps)
        say(
            batches=sum(table.batches for table in result.tables),
            windows=sum(table.plan.window is not None for table in result.tables),
            held=sum(table.plan.held_by is not None for table in result.tables),
            errors=[str(table.error) for table in result.tables if table.error],
        )
        if not seed and round_ == 2:
            return
        time.sleep(PAUSE_SECONDS)


def main(config: str, pipeline: str, seed: str, ledger: str = "") -> None:
    if ledger:
        kept = LedgerProject(load_config(Path(config)))
        kept.ledger = Path(ledger)
    with kept if ledger else Project(load_config(Path(config))) as project:
        sync(project, pipeline, int(seed))


if __name__ == "__main__":
    main(*sys.argv[1:])

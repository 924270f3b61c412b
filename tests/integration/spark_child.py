"""Syncs of one process, on the Spark that its config names: `spark_child.py CONFIG`, then a line for each, PIPELINE or
PIPELINE EVENT: at that event it kills itself."""

from __future__ import annotations

import json
import os
import signal
import sys

import strandline
from strandline.core.events import Event


def main(config: str) -> None:
    with strandline.load(config) as project:
        for line in sys.stdin:
            pipeline, *at = line.split()
            events: list[str] = []

            def heard(event: Event, at: list[str] = at, events: list[str] = events) -> None:
                events.append(type(event).__name__)
                if events[-1] in at:
                    os.kill(os.getpid(), signal.SIGKILL)

            result = project.sync(pipeline, listener=heard)
            session = project.own_spark.session
            told = {
                "status": result.status.value,
                "events": events,
                "errors": [str(outcome.error) for outcome in result.tables if outcome.error],
                "spark": type(session).__module__,
            }
            print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])

"""A sync that kills itself with SIGKILL at an event: `crash_child.py CONFIG EVENT`, its number or its name; where there
are two stages, as in `load:Committed`.

Where there is no such event it ends as any sync does.
"""

from __future__ import annotations

import os
import signal
import sys
from itertools import count

import strandline
from strandline.core.events import Event, TableEvent
from strandline.core.table import SYNC


def main(config: str, at: str) -> None:
    numbers = count(1)

    def kill(event: Event) -> None:
        stage = f"{event.stage}:" if isinstance(event, TableEvent) and event.stage != SYNC else ""
        name = stage + type(event).__name__
        print(name, flush=True)
        if at in (name, str(next(numbers))):
            os.kill(os.getpid(), signal.SIGKILL)

    with strandline.load(config) as project:
        project.sync("shop", listener=kill, raise_on_failure=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])

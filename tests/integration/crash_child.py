"""A sync that kills itself with SIGKILL at event k: `crash_child.py CONFIG K`. No event k: it ends as any sync does."""

from __future__ import annotations

import os
import signal
import sys
from itertools import count

import strandline
from strandline.core.events import Event


def main(config: str, at: int) -> None:
    numbers = count(1)

    def kill(event: Event) -> None:
        print(type(event).__name__, flush=True)
        if next(numbers) == at:
            os.kill(os.getpid(), signal.SIGKILL)

    with strandline.load(config) as project:
        project.sync("shop", listener=kill, raise_on_failure=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

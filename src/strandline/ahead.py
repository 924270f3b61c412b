"""What the next stage needs is imported while this one waits for Spark: a target's driver takes a tenth of a second.

Modules only. Nothing is connected, and what cannot be imported is told when its turn comes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from threading import Event, Thread

from strandline.endpoint import Endpoint

_MODULES = {
    "postgresql": ("strandline.sinks.postgres", "strandline.sinks.sql", "psycopg"),
    "mysql": ("strandline.sinks.mysql", "strandline.sinks.sql", "pymysql"),
}
_LOOK, _IDLE = 0.02, 0.005
"""Seconds of a look, and of the processor's time in them below which this process waits."""


@contextmanager
def imported_ahead(targets: Iterable[Endpoint]) -> Iterator[None]:
    missing = [name for end in targets for name in _MODULES.get(end.scheme, ()) if name not in sys.modules]
    if not missing:
        yield
        return
    over = Event()
    thread = Thread(target=_import, args=(missing, over), name="ahead", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _import(names: Iterable[str], over: Event) -> None:
    """Not before this process waits: Python imports on one thread at a time, and ours would be in the way."""
    while not over.is_set():
        before = time.process_time()
        over.wait(_LOOK)
        if time.process_time() - before < _IDLE:
            break
    for name in names:
        if not over.is_set():
            with suppress(ImportError):
                import_module(name)

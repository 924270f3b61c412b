"""Ctrl-C during a run: the first lets the slices at work end, the second exits at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SAID = b"\nfinishing the slices at work; Ctrl-C again stops at once (nothing is lost either way)\n"


@contextmanager
def finishing_slices() -> Iterator[None]:
    """KeyboardInterrupt for the first Ctrl-C; exit code 130, without any cleaning up, for the second."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    seen = threading.Event()

    def stop(_: int, __: FrameType | None) -> None:
        if seen.is_set():
            os._exit(130)
        seen.set()
        os.write(2, _SAID)  # a handler may interrupt a write to sys.stderr half-way; the descriptor has no buffer
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)

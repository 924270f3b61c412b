"""A shop whose orders can be read only while a gate is open, and a real sync, in its own process, that waits there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from lake_shop import Shop

import strandline

_GATE = 4711
# Lets every reader pass at once, unless somebody holds the gate.
_SLOW = f"""
CREATE FUNCTION passed() RETURNS boolean LANGUAGE plpgsql AS
$$ BEGIN PERFORM pg_advisory_xact_lock_shared({_GATE}); RETURN true; END $$;
CREATE VIEW slow_orders AS SELECT * FROM orders WHERE passed()"""
SECONDS = 300


class GatedShop(Shop):
    def __init__(self, url: str, folder: Path, spark: Any = None, **table: Any) -> None:
        super().__init__(url, folder, spark)
        self.execute(_SLOW)
        self.tables = [{"name": "slow_orders", "target": "orders", "key": "id", **table}]

    def hold(self) -> None:
        self.execute(f"SELECT pg_advisory_lock({_GATE})")

    def release(self) -> None:
        self.execute("SELECT pg_advisory_unlock_all()")

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "strandline", *words, "-c", str(self.config)]

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(Path(strandline.__file__).parents[1])}

    @contextmanager
    def syncing(self) -> Iterator[subprocess.Popen[str]]:
        """A sync that has begun its batch and waits at the gate, which this shop holds then."""
        with (self.folder / "stderr").open("w") as errors:
            child = subprocess.Popen(
                self.command("sync"),
                env=self.environment,
                cwd=self.folder,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        try:
            until(lambda: "slice 1 of 1" in self.told() or child.poll() is not None)
            self.hold()
            until(lambda: self._waiting() or child.poll() is not None)
            assert child.poll() is None, self.told()
            yield child
        finally:
            self.release()
            with suppress(ProcessLookupError):  # it has ended
                os.killpg(child.pid, signal.SIGKILL)
            child.communicate()

    def told(self) -> str:
        return (self.folder / "stderr").read_text()

    def _waiting(self) -> bool:
        found = self.database.execute("SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
        return bool(found.fetchall())


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)

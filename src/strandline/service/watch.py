"""The config of a service, read again when its files change or somebody asks. A bad edit is told and not used."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from strandline.config import Config, config_files, load_config
from strandline.core.errors import StrandlineError

Seen = tuple[tuple[str, int, int, int], ...]


class Watch:
    def __init__(self, config: Config, load: Callable[[Config], Config] | None = None) -> None:
        self.config = config  # the last good one
        self.error = ""
        self._load = load or _again
        self._seen = _look(config)
        self._asked = threading.Event()

    def ask(self) -> None:
        """Read it at the next look, whatever its files look like: a variable's file may be another."""
        self._asked.set()

    def look(self) -> bool:
        """Whether there is something to tell: another config, or an error that comes or goes."""
        seen = _look(self.config)
        if seen == self._seen and not self._asked.is_set():
            return False
        self._seen = seen
        self._asked.clear()
        before, error = self.config, self.error
        try:
            self.config, self.error = self._load(self.config), ""
            self._seen = _look(self.config)  # its patterns may be others
        except StrandlineError as caught:
            self.error = self.config.redactor.redact(str(caught))
        return self.config != before or self.error != error


def _again(config: Config) -> Config:
    return load_config(config.path, redactor=config.redactor)


def _look(config: Config) -> Seen:
    """A file that was replaced by another has another inode, whatever its time says."""
    return tuple(_stamp(path) for path in config_files(config))


def _stamp(path: Path) -> tuple[str, int, int, int]:
    try:
        found = path.stat()
    except OSError:
        return str(path), 0, 0, 0
    return str(path), found.st_mtime_ns, found.st_ino, found.st_size

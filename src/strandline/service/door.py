"""The door of a service: a socket that only its own user can open, for commands of the same config on this machine.

`sync` hands its run in here, and hears the events and the result as the values they are: what it shows, and its exit
code, are as if the run were its own.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import pickle
import queue
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strandline import __version__
from strandline.config import Config
from strandline.core.errors import ConnectError, LeaseError, StrandlineError
from strandline.core.events import Event, Listener
from strandline.core.process import user
from strandline.private import check_private, private_folder
from strandline.result import RunResult
from strandline.service.desk import Job, JobStatus
from strandline.spark.jars import cache_folder

if TYPE_CHECKING:
    from strandline.service.service import Service


@dataclass(frozen=True)
class Refused:
    """The run is not made here, and why."""

    why: str


@dataclass(frozen=True)
class Queued:
    """It begins when others have ended."""


@dataclass(frozen=True)
class Ended:
    status: JobStatus
    result: RunResult | None  # None: it did not come to a run


Said = Event | Refused | Queued | Ended


def _name(config: Config) -> str:
    return hashlib.sha256(str(config.path).encode()).hexdigest()[:16]


def _alike(config: Config, pipeline: str) -> str:
    """The same for two processes that mean the same by this pipeline."""
    text = f"{__version__} {config.state!r} {config.pipelines.get(pipeline)!r}"
    return hashlib.sha256(text.encode()).hexdigest()


class Door:
    """Open from the moment it is made. Of two services with one config, the first has it."""

    def __init__(self, service: Service) -> None:
        self._service = service
        folder = private_folder("serve")
        for left in folder.glob("*.lock"):
            _tidy(left)
        self._path = folder / _name(service.project.config)
        self._turn = os.open(self._path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        self._listening: socket.socket | None = None
        if not _locked(self._turn):
            return
        self._listening = socket.socket(socket.AF_UNIX)
        with _address(self._path) as address:
            self._listening.bind(address)
        self._path.chmod(0o600)
        self._listening.listen()
        threading.Thread(target=self._accept, args=(self._listening,), name="strandline-door", daemon=True).start()

    def __enter__(self) -> Door:
        return self

    def __exit__(self, *_: object) -> None:
        if self._listening is not None:
            self._path.unlink(missing_ok=True)
            self._path.with_suffix(".lock").unlink(missing_ok=True)
            self._close(self._listening)
        os.close(self._turn)

    @staticmethod
    def _close(listening: socket.socket) -> None:
        with suppress(OSError):  # not every system takes a word that wakes the thread that waits there
            listening.shutdown(socket.SHUT_RDWR)
        listening.close()

    def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._answer, args=(connection,), name="strandline-door", daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        """A command that goes away leaves its run to us."""
        try:
            with connection, connection.makefile("rwb") as stream:
                heard: queue.SimpleQueue[Said] = queue.SimpleQueue()
                self._take_in(json.loads(stream.readline()), heard.put)
                said: Said | None = None
                while not isinstance(said, Refused | Ended):
                    said = heard.get()
                    pickle.dump(said, stream)
                    stream.flush()
        except (OSError, ValueError) as error:
            self._service.log.tell("door_error", f"a command went away: {error}", error=str(error))

    def _take_in(self, asked: dict[str, Any], hear: Callable[[Said], None]) -> None:
        if asked["alike"] != _alike(self._service.project.config, asked["pipeline"]):
            hear(Refused("it has another version of Strandline or of the config"))
            return
        job = Job(
            asked["pipeline"], tables=tuple(asked["tables"]), stages=tuple(asked["stages"]), trigger="cli", who=user()
        )
        try:
            status = self._service.attend(job, hear, lambda status, result: hear(Ended(status, result)))
        except StrandlineError as error:
            hear(Refused(str(error)))
            return
        if status.status == "queued":
            hear(Queued())


@contextmanager
def _address(path: Path) -> Iterator[str]:
    """A socket's name may have a hundred bytes, its folder's alone may have more: Linux finds it in the open folder."""
    if not Path("/proc/self/fd").exists():
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def _locked(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _tidy(lock: Path) -> None:
    """Take away the door of a service that was killed."""
    with suppress(FileNotFoundError):
        file = os.open(lock, os.O_RDWR)
        try:
            if _locked(file):
                lock.with_suffix("").unlink(missing_ok=True)
                lock.unlink()
        finally:
            os.close(file)


def hand_over(
    config: Config,
    pipeline: str,
    tables: Sequence[str],
    stages: Sequence[str],
    listener: Listener,
    note: Callable[[str], None],
) -> RunResult | None:
    """The result of a run that the service of this config made. None: there is no such service here, or (as noted) it
    does not make this run."""
    path = cache_folder().parent / "serve" / _name(config)
    if not path.exists():
        return None
    check_private(path.parent)
    asked = {"pipeline": pipeline, "tables": list(tables), "stages": list(stages), "alike": _alike(config, pipeline)}
    with ExitStack() as opened:
        connection = opened.enter_context(socket.socket(socket.AF_UNIX))
        try:
            with _address(path) as address:
                connection.connect(address)
        except (FileNotFoundError, ConnectionRefusedError):  # it has ended, or was killed
            return None
        stream = opened.enter_context(connection.makefile("rwb"))
        stream.write(json.dumps(asked).encode() + b"\n")
        stream.flush()
        while True:
            try:
                said: Said = pickle.load(stream)
            except (EOFError, ConnectionError) as error:
                raise ConnectError(
                    "the service that made the run has ended", remedy="Nothing is lost; run again."
                ) from error
            except KeyboardInterrupt:
                note("the service goes on with the run")
                raise
            match said:
                case Refused():
                    note(f"the service of this config does not make this run ({said.why}); it is made here")
                    return None
                case Queued():
                    note("queued in the service, after what is at work there")
                case Ended():
                    return _result(said)
                case Event():
                    listener(said)


def _result(ended: Ended) -> RunResult:
    if ended.result is not None:
        return ended.result
    kind = StrandlineError if ended.status.status == "failed" else LeaseError
    remedy = ended.status.remedy or "Its log says more."
    raise kind(ended.status.error or "the service did not make the run", remedy=remedy)

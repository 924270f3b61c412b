"""The warm Spark, `spark: {warm: 10m}`: a server in the background that a user's commands share, and how it is found.

Owns identity, record and locks. A record is a file that only its owner can read; whoever uses the server holds a lock
on it, which ends with its process, however that ends. The process itself is `daemon_process`. It may be killed at any
time: the next command that needs Spark starts another.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from strandline import __version__
from strandline.core.errors import SetupError
from strandline.core.process import here
from strandline.private import check_private, private_folder
from strandline.spark.connect import leave, local_server_session
from strandline.spark.jars import PINNED, spark_home
from strandline.spark.java import find_java
from strandline.spark.session import MARK

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_START_SECONDS = 180
_POLL_SECONDS = 0.05
_log = logging.getLogger(__name__)
# What else Spark, its drivers and its Python workers take from the environment.
_READ = ("PYTHONPATH", "PYSPARK_PYTHON", "SPARK_HOME", "SPARK_CONF_DIR", "SPARK_SUBMIT_OPTS", "JAVA_TOOL_OPTIONS")
_READ_PREFIXES = ("AWS_", "HADOOP_")


@dataclass(frozen=True)
class Order:
    """What a server is started for. Another one is needed where anything in here differs."""

    config: str
    root: str
    needs: tuple[str, ...]
    conf: Mapping[str, str]
    master: str | None
    idle_seconds: float

    @property
    def identity(self) -> str:
        """Also of the versions it would be started with, and of this start of this machine."""
        java = find_java()
        names = sorted(name for name in os.environ if name in _READ or name.startswith(_READ_PREFIXES))
        home = Path(os.environ.get("SPARK_CONF_DIR") or spark_home() / "conf")
        files = sorted(home.iterdir()) if home.is_dir() else []
        parts = [
            asdict(self) | {"conf": sorted(self.conf.items())},
            [__version__, version("pyspark"), sys.version, sys.executable, here()],
            [java, (Path(java) / "release").read_text()],
            [(jar.coordinates, jar.sha256) for need in self.needs for jar in PINNED[need]],
            [(file.name, file.stat().st_mtime_ns, file.stat().st_size) for file in files],
            [(name, os.environ[name]) for name in names],
        ]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Record:
    """What a running server left for those who look for it."""

    pid: int
    port: int
    token: str
    mark: str
    config: str
    log: str
    spark: str
    strandline: str
    idle_seconds: float
    started_at: str


@dataclass(frozen=True)
class Seen:
    """A server as `status` tells of it; its token stays where it is."""

    identity: str
    record: Record
    in_use: bool
    idle_for: float

    def to_json(self) -> dict[str, object]:
        told = asdict(self.record)
        for name in ("token", "mark"):
            del told[name]
        left = None if self.in_use else round(max(0.0, self.record.idle_seconds - self.idle_for), 1)
        return told | {"identity": self.identity, "in_use": self.in_use, "ends_in_seconds": left}


@dataclass
class Borrowed:
    """A session on the warm server. As long as it is not given back, the server is not ended."""

    session: SparkSession
    record: Record
    _file: int

    def close(self) -> None:
        leave(self.session)
        os.utime(self._file)
        os.close(self._file)


def folder() -> Path:
    """Where records lie."""
    return private_folder("warm")


def borrow(order: Order) -> Borrowed:
    """A session on the server for this order, which is started if there is none."""
    place, identity = folder(), order.identity
    if (found := _borrow(place / f"{identity}.json")) is not None:
        return found
    _start(place, identity, order)
    if (found := _borrow(place / f"{identity}.json")) is not None:
        return found
    log = place / f"{identity}.log"
    raise SetupError("the warm Spark ended as soon as it had started", why=_tail(log), remedy=f"Its log: {log}")


def start(order: Order) -> Seen:
    """Have a server for this order running."""
    borrowed = borrow(order)
    identity = order.identity
    borrowed.close()
    return Seen(identity, borrowed.record, in_use=False, idle_for=0.0)


def seen(config: str | None = None) -> list[Seen]:
    """The servers that run, of this config or of all."""
    found = []
    for path in sorted(folder().glob("*.json")):
        with suppress(FileNotFoundError, TypeError), _opened(path) as file:
            record = _read(file)  # TypeError: that of another version of Strandline
            if config not in (None, record.config) or not _listens(record):
                continue
            idle = max(0.0, time.time() - os.fstat(file).st_mtime)
            found.append(Seen(path.stem, record, _in_use(file), idle))
    return found


def stop(found: Seen, *, wait: float = 30.0) -> bool:
    """Let nobody find a server any more: it ends at once, or as soon as nobody uses it. Whether it has ended."""
    path = folder() / f"{found.identity}.json"
    with suppress(FileNotFoundError), _opened(path) as file:
        if _read(file) == found.record:
            withdraw(path, file)
    until = time.monotonic() + wait
    while (there := _listens(found.record)) and not found.in_use and time.monotonic() < until:
        time.sleep(_POLL_SECONDS)
    return not there


def _borrow(path: Path) -> Borrowed | None:
    """None where no server answers that knows what its record says it knows."""
    while True:
        try:
            file = _open(path)
        except FileNotFoundError:
            return None
        try:
            _lock(file, fcntl.LOCK_SH)
            if not current(path, file):  # it ended while we waited
                os.close(file)
                continue
            os.utime(file)
            record = _read(file)
            session = _session(record)
        except BaseException:
            os.close(file)
            raise
        if session is None:
            os.close(file)
            return None
        return Borrowed(session, record, file)


def _session(record: Record) -> SparkSession | None:
    """By now a process of somebody else may have the port: only ours knows the mark, and only ours takes the token."""
    if not _listens(record):
        return None
    session = None
    try:
        session = local_server_session(record.port, record.token)
        if session.conf.get(MARK, "") == record.mark:
            return session
        _log.debug("port %s is another Spark's by now", record.port)
    except SetupError:
        raise
    except Exception as error:
        _log.debug("no warm Spark answers on port %s: %s", record.port, error)
    if session is not None:
        leave(session)
    return None


def _start(place: Path, identity: str, order: Order) -> None:
    """One starter at a time; who waited for another finds what that one started."""
    path, log = place / f"{identity}.json", place / f"{identity}.log"
    with _turn(place / f"{identity}.lock") as turn:
        if (found := _borrow(path)) is not None:
            found.close()
            return
        path.unlink(missing_ok=True)
        for outdated in seen(order.config):
            stop(outdated, wait=0)
        ready, telling = os.pipe()
        with os.fdopen(ready, "rb") as word:
            try:
                _launch(order, path, log, turn, telling)
            finally:
                os.close(telling)
            told, _, _ = select.select([word], [], [], _START_SECONDS)
            if not told or not word.read():
                raise SetupError("the warm Spark did not start", why=_tail(log), remedy=f"Its log: {log}")


def _launch(order: Order, path: Path, log: Path, turn: int, telling: int) -> None:
    """It leaves our family: nobody waits for its end."""
    command = [sys.executable, "-m", "strandline.spark.daemon_process", str(path), str(log), str(turn), str(telling)]
    with os.fdopen(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as output:
        subprocess.run(
            command,
            input=json.dumps(asdict(order)).encode(),
            stdout=output,
            stderr=output,
            start_new_session=True,
            pass_fds=[turn, telling],
            cwd=order.root,  # Python workers find modules there
            env=_environment(),
            check=True,
        )


def _environment() -> dict[str, str]:
    """Ours, but for what PySpark leaves in it to say that it is a client."""
    client = ("SPARK_REMOTE", "SPARK_LOCAL_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "SPARK_CONNECT_AUTHENTICATE_TOKEN")
    return {name: value for name, value in os.environ.items() if name not in client}


def write(path: Path, record: Record) -> int:
    """The record under its name, whole; the open file that locks are held on."""
    unfinished = path.with_suffix(f".{os.getpid()}.tmp")
    file = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    os.write(file, json.dumps(asdict(record)).encode())
    unfinished.rename(path)
    return file


def withdraw(path: Path, file: int) -> None:
    """Let nobody find the server any more, unless what they find is another one."""
    if current(path, file):
        path.unlink(missing_ok=True)


def current(path: Path, file: int) -> bool:
    """Whether this file is still the one under that name."""
    try:
        there, ours = path.stat(), os.fstat(file)
    except FileNotFoundError:
        return False
    return (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)


def unused(file: int) -> bool:
    """Whether nobody uses the server; then nobody can begin to until `used_again`."""
    return _lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def used_again(file: int) -> None:
    fcntl.flock(file, fcntl.LOCK_UN)


def _open(path: Path) -> int:
    file = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    try:
        check_private(path, file)
    except BaseException:
        os.close(file)
        raise
    return file


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    file = _open(path)
    try:
        yield file
    finally:
        os.close(file)


@contextmanager
def _turn(path: Path) -> Iterator[int]:
    """The server that is being started has it, too: a starter that is killed leaves it to that one."""
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        _lock(file, fcntl.LOCK_EX)
        yield file
    finally:
        os.close(file)


def _lock(file: int, kind: int) -> bool:
    try:
        fcntl.flock(file, kind)
    except BlockingIOError:
        return False
    return True


def _in_use(file: int) -> bool:
    """The server itself locks others out for moments, in which nobody uses it."""
    return _lock(file, fcntl.LOCK_SH | fcntl.LOCK_NB) and not _lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _read(file: int) -> Record:
    return Record(**json.loads(os.pread(file, 65536, 0)))


def _listens(record: Record) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", record.port)) == 0


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-15:]) if log.exists() else ""

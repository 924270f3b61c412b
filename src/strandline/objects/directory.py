"""Objects as files of a directory: complete when visible, flushed to disk, private (folders 0700, files 0600).

Plain system calls: obstore's LocalStore links complete files too, but neither flushes them, nor orders a listing, nor
can compare before it replaces.
"""

from __future__ import annotations

import errno
import fcntl
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from strandline.core.errors import ConnectError, StrandlineError, TransientError
from strandline.objects import Entry

_UNFINISHED = ".tmp-"
_LOCK = ".lock"
_ATTEMPTS = 100  # at a folder that others remove


class DirectoryObjects:
    """One directory. Compare-and-set holds among the processes of one machine: it takes a lock on a file."""

    def __init__(self, path: str) -> None:
        self.root = Path(path).expanduser().absolute()
        self.address = str(self.root)

    def url(self, key: str) -> str:
        return f"file:{self.root / key}"  # Hadoop takes a path as it stands, without percent signs

    def get(self, key: str) -> bytes | None:
        found = self.find(key)
        return found[0] if found else None

    def find(self, key: str) -> tuple[bytes, Entry] | None:
        try:
            with (self.root / key).open("rb") as file:
                return file.read(), _entry(key, os.fstat(file.fileno()))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise self._explain(error) from error

    def create(self, key: str, data: bytes) -> bool:
        try:
            self._write(key, data, os.link)
        except FileExistsError:
            return self.get(key) == data
        return True

    def replace(self, key: str, data: bytes, etag: str | None = None) -> str | None:
        if etag is None:
            return self._write(key, data, os.replace)
        with self._locked():
            found = self.find(key)
            if found is None or found[1].etag != etag:
                return None
            return self._write(key, data, os.replace)

    def list(self, prefix: str = "", after: str = "") -> Iterator[Entry]:
        folder = self.root / prefix.rstrip("/")
        try:
            yield from self._below(folder, f"{prefix.rstrip('/')}/" if prefix.rstrip("/") else "", after)
        except OSError as error:
            raise self._explain(error) from error

    def folders(self, prefix: str = "") -> Sequence[str]:
        try:
            with os.scandir(self.root / prefix) as scan:
                return sorted(item.name for item in scan if item.is_dir())
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise self._explain(error) from error

    def tail(self, key: str, size: int) -> bytes:
        try:
            with (self.root / key).open("rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - size))
                return file.read()
        except OSError as error:
            raise self._explain(error) from error

    def settle(self, keys: Iterable[str]) -> None:
        try:
            paths = [self.root / key for key in keys]
            folders = {parent for path in paths for parent in (path.parent, path.parent.parent)}
            for path in (*paths, *folders):
                _flush(path)
        except OSError as error:
            raise self._explain(error) from error

    def delete(self, keys: Iterable[str]) -> None:
        try:
            for key in keys:
                path = self.root / key
                path.unlink(missing_ok=True)
                self._prune(path.parent)
        except OSError as error:
            raise self._explain(error) from error

    def _below(self, folder: Path, start: str, after: str) -> Iterator[Entry]:
        """In the order of whole keys, as S3 has it: a folder sorts as its name with the slash."""
        try:
            with os.scandir(folder) as scan:
                named = ((f"{item.name}/" if item.is_dir() else item.name, item) for item in scan)
                found = sorted(pair for pair in named if _beyond(start + pair[0], after))
        except (FileNotFoundError, NotADirectoryError):
            return
        for name, item in found:
            key = start + name
            if name.startswith((_UNFINISHED, _LOCK)):
                continue
            if name.endswith("/"):
                yield from self._below(folder / item.name, key, after)
            else:
                try:
                    yield _entry(key, item.stat())
                except FileNotFoundError:
                    continue  # removed since the folder was read

    def _write(self, key: str, data: bytes, publish: Callable[[Path, Path], None]) -> str:
        """Write beside, flush, then make visible in one step; FileExistsError passes through."""
        path = self.root / key
        unfinished = path.parent / f"{_UNFINISHED}{uuid.uuid4().hex}"
        try:
            descriptor = self._begin(unfinished)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                    etag = _entry(key, os.fstat(file.fileno())).etag
                publish(unfinished, path)
            finally:
                unfinished.unlink(missing_ok=True)
            _flush(path.parent)
            return etag
        except FileExistsError:
            raise
        except OSError as error:
            raise self._explain(error) from error

    def _begin(self, unfinished: Path) -> int:
        """A new file in its folder, which is made again if somebody else has just removed it for being empty."""
        for _ in range(_ATTEMPTS):
            with suppress(FileNotFoundError):
                self._make(unfinished.parent)
                return os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        raise FileNotFoundError(errno.ENOENT, "the folder cannot be made", str(unfinished.parent))

    def _make(self, folder: Path) -> None:
        if folder.is_dir():
            return
        self._make(folder.parent)
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            return
        _flush(folder.parent)

    def _prune(self, folder: Path) -> None:
        """Folders that became empty go, up to the root."""
        while folder != self.root and folder.is_relative_to(self.root):
            try:
                folder.rmdir()
            except OSError:
                return  # not empty, or gone
            folder = folder.parent

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            self._make(self.root)
            descriptor = os.open(self.root / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise self._explain(error) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _explain(self, error: OSError) -> StrandlineError:
        what = f"{error.filename or self.root}: {error.strerror or error}"
        if isinstance(error, PermissionError):
            return ConnectError(what, remedy=f"Give the user that runs Strandline the right to write {self.root}.")
        if isinstance(error, (FileExistsError, NotADirectoryError, IsADirectoryError)):
            return ConnectError(what, remedy="Name a folder that is Strandline's own.")
        return TransientError(what, remedy="Check the disk: is it full, read-only, or away?")


def _beyond(key: str, after: str) -> bool:
    """Whether this is a file after a key, or a folder that may hold some."""
    return key > after or (key.endswith("/") and after.startswith(key))


def _entry(key: str, stat: os.stat_result) -> Entry:
    modified = datetime.fromtimestamp(stat.st_mtime, UTC)
    return Entry(key, stat.st_size, modified, f"{stat.st_ino:x}-{stat.st_mtime_ns:x}-{stat.st_size:x}")


def _flush(path: Path) -> None:
    """Bring a file to the disk; a name is there once its folder is."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""Objects: whole values under keys, on S3 or in a directory, with the two conditional writes that everything rests on.

Owns access and what its failures mean. Knows nothing of stages, states or what the bytes say. Keys are relative to the
endpoint's path, use "/" between parts and only characters that every store takes as they are: `[A-Za-z0-9._=-]`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from strandline.core.errors import ConfigError, SetupError
from strandline.endpoint import Endpoint

S3_OPTIONS = ("endpoint", "region", "access_key_id", "secret_access_key", "session_token", "profile", "path_style")
"""Options of an `s3://` address."""


@dataclass(frozen=True)
class Entry:
    """What a listing says of one object. The ETag differs whenever the bytes do; on S3 equal bytes share one."""

    key: str
    size: int
    modified: datetime
    etag: str


class Objects(Protocol):
    """A store of whole objects. A reader sees the old bytes or the new ones, never a part; what a write confirmed
    survives a power cut. Errors are ConnectError (place, login, permission), TransientError or SetupError."""

    address: str
    """Where this is, without secrets."""

    def url(self, key: str) -> str:
        """The object's address as Spark takes it."""

    def get(self, key: str) -> bytes | None:
        """The bytes, or None if there is no such object."""

    def find(self, key: str) -> tuple[bytes, Entry] | None:
        """The bytes together with the entry they belong to."""

    def create(self, key: str, data: bytes) -> bool:
        """Write the object unless it exists; False if it does. Of any number of callers at once exactly one wins.

        An object that holds exactly these bytes counts as ours, since the answer to an earlier try may be lost: bytes
        that two callers could both write need something of their own in them.
        """

    def replace(self, key: str, data: bytes, etag: str | None = None) -> str | None:
        """Overwrite, only while the object still has this ETag if one is given; the new ETag, or None if it had not.

        On S3 equal bytes have equal ETags: bytes that could recur need something of their own in them.
        """

    def list(self, prefix: str = "", after: str = "") -> Iterator[Entry]:
        """Objects in the folder `prefix` and the folders below it; only keys greater than `after`, which is a key.

        By key, as far as no folder's name begins another name beside it (SeaweedFS sorts folder by folder).
        """

    def folders(self, prefix: str = "") -> Sequence[str]:
        """Names of the folders right below a folder, in order, whatever they hold."""

    def tail(self, key: str, size: int) -> bytes:
        """The last bytes of an object that is there, at most so many."""

    def settle(self, keys: Iterable[str]) -> None:
        """Make durable what somebody else wrote under these keys (Spark does not flush its files to the disk)."""

    def delete(self, keys: Iterable[str]) -> None:
        """Remove objects; one that is gone already is no error."""


def open_objects(endpoint: Endpoint) -> Objects:
    """The store at an `s3://bucket/prefix` or directory endpoint. Nothing is asked of it yet."""
    if endpoint.scheme == "file":
        from strandline.objects.directory import DirectoryObjects

        return DirectoryObjects(endpoint.path)
    if endpoint.scheme != "s3":
        raise ConfigError(f"{endpoint} is no store of objects", remedy="Name a folder, or s3://bucket/prefix.")
    try:
        from strandline.objects.s3 import S3Objects
    except ImportError as error:
        raise SetupError("obstore is needed for s3:// addresses", remedy="pip install 'strandline[s3]'") from error

    return S3Objects(endpoint)

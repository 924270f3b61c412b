"""Documents in an object store: one object per revision, created only if it is absent.

The newest is the one with the highest number, so one listing of a folder finds it. Revisions never change, which is why
one that was read, or written here, is not read again as long as the listing shows the same ETag. A few old ones stay as
last good versions; the others are removed after a write.

A write is settled by the listing that follows it. If ours is the newest, nobody was before us: the newest is never
removed, so whoever had gone on from the same revision would show. (Creating alone does not tell: the name may be free
because it was removed long ago, and the writer slept all the while.) If another is the newest, it either has our mark
among its last writes and was made on top of ours, or we were too late. Answers that got lost are settled the same way.
"""

from __future__ import annotations

import logging
import re
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import groupby
from typing import TypeVar

from strandline.core.errors import CommitUnknownError, ConflictError, StateError, StrandlineError, TransientError
from strandline.core.protocols import Record
from strandline.objects import Entry, Objects
from strandline.state.objects_clock import StoreClock, steady
from strandline.state.objects_document import DamagedError, Document, decoded, encoded
from strandline.state.objects_names import Place, place_of

log = logging.getLogger(__name__)
_NUMBER = re.compile(r"(.+)/(\d{12})\.json")
_SIDE_BY_SIDE = 16
_ATTEMPTS = 3
_LOCKS = 64
_KEPT, _MOST = 3, 8  # revisions that stay, and how many there may be until the others are removed

A = TypeVar("A")
B = TypeVar("B")
Change = Callable[[Document], tuple[Sequence[Record], Sequence[Record]] | None]
"""Which records to put and which to remove, given the newest revision; None: leave it. Raises ConflictError."""


class Documents:
    """Safe to use from several threads; writes of one document take turns."""

    def __init__(self, objects: Objects, clock: StoreClock, settle: Callable[[Sequence[Record]], None]) -> None:
        """`settle` writes what a document still owes."""
        self._objects = objects
        self._clock = clock
        self._settle = settle
        self._lock = threading.Lock()
        # Several documents may share a lock. Whoever holds one of history takes no other.
        self._locks = {history: [threading.Lock() for _ in range(_LOCKS)] for history in (False, True)}
        self._known: dict[str, tuple[str, Document]] = {}  # by folder: the ETag of the newest revision seen

    def close(self) -> None:
        """Forget what was read. Using it afterwards reads it again."""
        self._known.clear()

    def side_by_side(self, work: Callable[[A], B], on: Iterable[A]) -> list[B]:
        given = list(on)
        if len(given) < 2:
            return [work(each) for each in given]
        with ThreadPoolExecutor(min(_SIDE_BY_SIDE, len(given)), "strandline-state") as pool:
            return list(pool.map(work, given))

    def folders(self, prefix: str, after: str = "") -> Iterator[tuple[Place, list[Entry]]]:
        """Every document in this folder and below with its revisions, oldest first. Strangers are passed by."""
        entries = ((_NUMBER.fullmatch(entry.key), entry) for entry in self._objects.list(prefix, after))
        for folder, group in groupby(entries, lambda pair: pair[0][1] if pair[0] else ""):
            place = place_of(folder)
            if place is not None:
                yield place, sorted((entry for _, entry in group), key=lambda entry: entry.key)

    def read(self, prefix: str) -> list[Document]:
        """The newest revision of each document in this folder and below."""
        return self.newest(self.folders(prefix))

    def read_now(self, prefix: str) -> list[Document]:
        """As `read`, one after the other: for callers that are side by side already."""
        return [self._newest(*each) for each in self.folders(prefix)]

    def newest(self, folders: Iterable[tuple[Place, list[Entry]]]) -> list[Document]:
        found = self.side_by_side(lambda each: self._newest(*each), folders)
        return [document for document in found if document.revision]

    def write(self, place: Place, change: Change, *, owed: Sequence[Record] = (), new: bool = False) -> Document:
        """Write the next revision, on top of whatever others wrote meanwhile. `new`: probably there is none yet."""
        folder, mark = place.folder, secrets.token_hex(8)
        with self._lock_of(place):
            known = self._known.get(folder)
            base, fresh = (known[1] if known else Document(place)), False
            if known is None and not new:
                base, fresh = self._load(place), True
            while True:
                self._settle(base.owed)
                try:
                    changed = change(base)
                except ConflictError:
                    if fresh:
                        raise
                    base, fresh = self._load(place), True
                    continue
                if changed is None:
                    return base
                written = base.next(*changed, owed, mark)
                if self._create(written, mark):
                    return written
                base, fresh = self._load(place), True

    def settled(self, place: Place, owed: Sequence[Record]) -> None:
        """This is written, and owed no more."""
        with self._lock:
            known = self._known.get(place.folder)
            if owed and known and {_id(record) for record in known[1].owed} == {_id(record) for record in owed}:
                self._known[place.folder] = (known[0], replace(known[1], owed=()))

    def owed(self) -> list[tuple[Place, tuple[Record, ...]]]:
        """What the documents seen so far still owe."""
        return [(document.place, document.owed) for _, document in list(self._known.values()) if document.owed]

    def _create(self, document: Document, mark: str) -> bool:
        """Whether this is the revision after its base, and everybody will see it."""
        folder, data = document.place.folder, encoded(document)
        key = _key(folder, document.revision)
        trouble: TransientError | None = None
        for _ in range(_ATTEMPTS):
            try:
                before = steady()
                created = self._objects.create(key, data)
                entries = self._entries(folder)
                break
            except TransientError as error:
                trouble = error  # it may be there all the same: the same bytes again are the same write
        else:
            assert trouble is not None
            text = f"whether {self._objects.address}/{key} was written cannot be told: {trouble.message}"
            raise CommitUnknownError(text, why=trouble.why, remedy=trouble.remedy) from trouble
        if not entries or entries[-1].key < key:
            raise StateError(
                f"{self._objects.address}/{key} was written, but a listing does not show it",
                remedy="A state needs a store whose listings show at once what was written.",
            )
        newest = entries[-1]
        if created and newest.key == key:
            if trouble is None:
                self._clock.saw(newest, before, steady())
            self._remember(newest, document)
            self._tidy(document, entries)
            return True
        self._known.pop(folder, None)
        if mark in self._newest(document.place, entries).writes:
            return True
        if created:
            self._objects.delete([key])  # below the newest, where it was removed before: nobody looks there
        return False

    def _load(self, place: Place) -> Document:
        return self._newest(place, self._entries(place.folder))

    def _entries(self, folder: str) -> list[Entry]:
        return [entry for _, entries in self.folders(folder) for entry in entries]

    def _newest(self, place: Place, entries: list[Entry]) -> Document:
        """Revision 0 where there is none."""
        folder = place.folder
        while entries:
            known = self._known.get(folder)
            if known and known[0] == entries[-1].etag and known[1].revision == _revision(entries[-1]):
                return known[1]
            data = self._objects.get(entries[-1].key)
            if data is not None:
                return self._decoded(place, data, entries)
            entries = self._entries(folder)  # eight newer ones since the listing
        return Document(place)

    def _decoded(self, place: Place, data: bytes, entries: list[Entry]) -> Document:
        newest = entries[-1]
        try:
            document = decoded(data, place, _revision(newest))
        except DamagedError as damage:
            said = f"{self._objects.address}/{newest.key} {damage.message}"
            return self._last_good(place, entries[:-1]).damaged(_revision(newest), said)
        if not place.family.history:  # history is read once, and there is much of it
            self._remember(newest, document)
        return document

    def _last_good(self, place: Place, entries: list[Entry]) -> Document:
        for entry in reversed(entries):
            data = self._objects.get(entry.key)
            try:
                return decoded(data or b"", place, _revision(entry))
            except DamagedError:
                continue  # the newest of all is the one to report
        return Document(place)

    def _remember(self, entry: Entry, document: Document) -> None:
        folder = document.place.folder
        if document.place.family.history and all(record.fields.get("ended_at") for record in document.records.values()):
            self._known.pop(folder, None)
        else:
            self._known[folder] = (entry.etag, document)

    def _tidy(self, document: Document, entries: list[Entry]) -> None:
        history = document.place.family.history
        kept, most = (1, 1) if history else (_KEPT, _MOST)
        if len(entries) <= most:
            return
        try:
            self._objects.delete([entry.key for entry in entries[:-kept]])
        except StrandlineError as error:
            log.warning("old revisions of %s stay for now: %s", document.place.folder, error)

    def _lock_of(self, place: Place) -> threading.Lock:
        return self._locks[place.family.history][hash(place.folder) % _LOCKS]


def _id(record: Record) -> tuple[str, tuple[str, ...]]:
    return record.kind, record.key


def _key(folder: str, revision: int) -> str:
    return f"{folder}/{revision:012d}.json"


def _revision(entry: Entry) -> int:
    return int(entry.key[-17:-5])

"""History in an object store: runs, their tables and changes, filed newest first.

Two indexes keep questions about few records from reading all: which ids a pipeline has, and which runs are open. An
entry is an empty object that is made before its record and does no harm if that never comes. Removed with its record.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from itertools import groupby, islice

from strandline.core.position import Status
from strandline.core.protocols import Record, Value
from strandline.objects import Objects
from strandline.state.objects_document import Document
from strandline.state.objects_documents import Documents
from strandline.state.objects_names import Family, filed, identity_of, segment

_CHUNK = 32  # documents asked for at once


class History:
    def __init__(self, objects: Objects, documents: Documents) -> None:
        self._objects = objects
        self._documents = documents
        self._entered: set[str] = set()
        self._indexes: set[str] = set()
        self._lock = threading.Lock()

    def enter(self, family: Family, record: Record) -> None:
        """To be called before the record is written."""
        pipeline, name = record.fields["pipeline"], filed(record.key[0])
        if not isinstance(pipeline, str):
            return
        self._create(_index(family, pipeline), name)
        if record.kind == "run" and record.fields["status"] == Status.RUNNING:
            self._create(_open_runs(pipeline), name)

    def left(self, record: Record) -> None:
        """To be called after the record was written: a run that ended is open no more."""
        pipeline, name = record.fields["pipeline"], filed(record.key[0])
        if record.kind == "run" and isinstance(pipeline, str) and record.fields["status"] != Status.RUNNING:
            self._objects.delete([f"{_open_runs(pipeline)}/{name}"])
            with self._lock:
                self._entered = {entry for entry in self._entered if not entry.endswith(f"/{name}")}

    def recent(
        self, family: Family, where: Mapping[str, Value], since: str | None, newest: int | None
    ) -> Iterator[list[Document]]:
        """Documents newest first, a handful at a time, all of one id together; the caller stops when it has enough."""
        at_once = _CHUNK if newest is None else min(_CHUNK, newest)
        index = self._index_for(family, where, newest)
        if index is None:
            yield from self._listed(family, since, at_once)
            return
        ids = (identity_of(entry.key.rpartition("/")[2]) for entry in self._objects.list(index))
        while chunk := list(islice(ids, at_once)):
            wanted = [identity for identity in chunk if since is None or identity >= since]
            found = self._documents.side_by_side(self._documents.read_now, map(family.folder, zip(wanted)))
            yield [document for documents in found for document in documents]
            if len(wanted) < len(chunk):
                return

    def prune(self, family: Family, before: str) -> int:
        """Remove what is older; how many documents that were."""
        old: list[str] = []
        documents = 0
        for place, entries in self._documents.folders(family.name, after=f"{family.name}/{filed(before)}"):
            if place.parts[0] < before:
                documents += 1
                old += [entry.key for entry in entries]
        of_these = (f"index/{family.name}/", *(("open/",) if family.name == "runs" else ()))
        for index in sorted(index for index in self._indexes if index.startswith(of_these)):
            keys = [entry.key for entry in self._objects.list(index, after=f"{index}/{filed(before)}")]
            old += [key for key in keys if identity_of(key.rpartition("/")[2]) < before]
        self._objects.delete(old)
        return documents

    def _listed(self, family: Family, since: str | None, at_once: int) -> Iterator[list[Document]]:
        chunk = []
        for identity, folders in groupby(self._documents.folders(family.name), lambda each: each[0].parts[0]):
            if since is not None and identity < since:
                break
            chunk += list(folders)
            if len(chunk) >= at_once:
                yield self._documents.newest(chunk)
                chunk = []
        yield self._documents.newest(chunk)

    def _index_for(self, family: Family, where: Mapping[str, Value], newest: int | None) -> str | None:
        """Where most of a pipeline's history is asked for, one listing of all is cheaper than one per id."""
        pipeline = where.get("pipeline")
        if not isinstance(pipeline, str):
            return None
        if family.name == "runs" and where.get("status") == Status.RUNNING:
            return _open_runs(pipeline)
        return None if newest is None else _index(family, pipeline)

    def _create(self, folder: str, name: str) -> None:
        entry = f"{folder}/{name}"
        with self._lock:
            self._indexes.add(folder)
            if entry in self._entered:
                return
        self._objects.create(entry, b"")
        with self._lock:
            self._entered.add(entry)


def _index(family: Family, pipeline: str) -> str:
    return f"index/{family.name}/{segment(pipeline)}"


def _open_runs(pipeline: str) -> str:
    return f"open/{segment(pipeline)}"

"""A Delta table's log: which versions there are, when each was committed, and what it did. delta-rs and JSON, no JVM.

Owns what a commit means for whoever reads changes. Writes nothing, and knows no window and no mode.
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from strandline.core.errors import SetupError, SourceError
from strandline.sources.delta_places import MissingError, Place

try:
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError, TableNotFoundError
except ImportError as error:
    raise SetupError("the package deltalake is not installed", remedy="pip install 'strandline[delta]'") from error

DOCS = "docs/sources-delta.md"
READERS = 16
"""Logs, or commits of one on an object store, that are read at once."""
_SOME = 1000  # commits that are read to see whether one of them changed what the table is
_COMMIT = re.compile(r"(\d{20})\.json")
_CHANGED = re.compile(r"num_?(target_?rows_?(inserted|updated|deleted)|(updated|deleted)_?rows)", re.IGNORECASE)
_UNKNOWN = "Upgrade what reads it (pip install --upgrade deltalake), or drop what it does not know (DROP FEATURE)."
_UNREADABLE = "Check that its _delta_log is whole, and that it may be read."
_FOREIGN = {"catalogManaged", "catalogOwned-preview", "coordinatedCommits-preview"}


@dataclass(frozen=True)
class Metadata:
    """What a table was from one version on."""

    id: str
    schema: str  # Delta's JSON
    partitions: tuple[str, ...]
    properties: Mapping[str, str] = field(hash=False)

    @property
    def feed(self) -> bool:
        return self.properties.get("delta.enableChangeDataFeed", "").lower() == "true"

    @property
    def mapping(self) -> str:
        """How columns are named in the files: none (as in the table), name or id."""
        return self.properties.get("delta.columnMapping.mode", "none").lower()

    @property
    def columns(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.schema)["fields"]
        return found

    def physical(self) -> dict[str, tuple[str, Any]]:
        """Name and type of each column by what does not change when it is renamed."""
        return {
            column["metadata"].get("delta.columnMapping.physicalName", column["name"]): (column["name"], column["type"])
            for column in self.columns
        }


@dataclass(frozen=True)
class Added:
    """A file that a commit added to the table's rows."""

    path: str  # as the log spells it: URL-encoded, relative to the table or absolute
    partition: Mapping[str, str | None] = field(hash=False)  # by the column's physical name
    rows: int | None = None
    holes: bool = False  # some of its rows count as deleted


@dataclass(frozen=True)
class Commit:
    version: int
    at: int  # milliseconds, as Delta counts them
    operation: str
    added: tuple[Added, ...] = ()
    removed: int = 0  # files whose rows were taken out or replaced
    rows: int = 0  # about how many changed
    metadata: Metadata | None = None  # if it changed

    @property
    def changes(self) -> bool:
        """Whether any row may differ after it. Compaction moves rows and changes none."""
        return bool(self.added or self.removed or self.rows)

    @property
    def appends(self) -> bool:
        """Whether all it did to rows was to add whole files."""
        return not self.removed and not any(file.holes for file in self.added)


class Log:
    """One table's log as it was when it was opened; what it says of a version never changes."""

    def __init__(self, place: Place, version: int | None = None) -> None:
        """SourceError: it cannot be read. MissingError: there is no Delta table."""
        self.place = place
        try:
            self._delta = DeltaTable(place.uri, version=version, storage_options=dict(place.options) or None)
        except TableNotFoundError as error:
            there = next(iter(place.objects.list(place.folder)), None)
            said = "is not a Delta table: it has no _delta_log" if there else "is not there"
            raise MissingError(f"{place.uri} {said}") from error
        except (DeltaError, OSError, ValueError) as error:
            first = next(iter(str(error).splitlines()), type(error).__name__)
            remedy = _UNKNOWN if "nsupported" in first or "not supported" in first else _UNREADABLE
            raise SourceError(f"{place.uri} cannot be read as a Delta table: {first}", remedy=remedy) from error
        protocol = self._delta.protocol()
        if foreign := _FOREIGN & {*(protocol.reader_features or ()), *(protocol.writer_features or ())}:
            raise SourceError(
                f"{place.uri}: its catalog alone knows its commits ({min(foreign)})",
                remedy="Leave it out of the pipeline.",
                docs=f"{DOCS}#catalogs",
            )
        self._commits: dict[int, Commit] = {}
        self._earlier: dict[int, Log] = {}

    @property
    def version(self) -> int:
        return self._delta.version()

    @cached_property
    def metadata(self) -> Metadata:
        """As of the version that it was opened at."""
        found = self._delta.metadata()
        return Metadata(
            str(found.id), self._delta.schema().to_json(), tuple(found.partition_columns), dict(found.configuration)
        )

    @property
    def comment(self) -> str:
        return self._delta.metadata().description or ""

    def at(self, version: int) -> Log:
        """The same table as it was then. ExpiredError where the log no longer reaches so far back."""
        if version != self.version and version not in self._earlier:
            try:
                self._earlier[version] = Log(self.place, version)
            except SourceError as error:
                raise self._expired(version, "can no longer be put together from the log") from error
        return self._earlier.get(version, self)

    def reopened(self) -> Log:
        """As it is now. What was read stays read, as long as it is the same table."""
        log = Log(self.place)
        if log.metadata.id == self.metadata.id:
            log._commits, log._earlier = self._commits, self._earlier
        return log

    def rows(self) -> int | None:
        """About how many there are; 0 is exact."""
        counted = int(self._delta.count())
        return counted or (None if self._delta.file_uris() else 0)

    def commit(self, version: int) -> Commit:
        if version not in self._commits:
            found = self.place.objects.find(self.place.key(f"_delta_log/{version:020}.json"))
            if found is None:
                raise self._expired(version)
            data, entry = found
            try:
                self._commits[version] = _commit(version, data, _millis(entry.modified))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise SourceError(
                    f"{self.place.uri}: what the log says of version {version} cannot be read",
                    remedy=f"Bring {version:020}.json in its _delta_log back as it was.",
                ) from error
        return self._commits[version]

    def commits(self, low: int, high: int) -> list[Commit]:
        """Those of `[low, high)`, in order. ExpiredError where the log has dropped one."""
        versions = range(low, high)
        if "://" not in self.place.uri or len(versions) == 1:
            return [self.commit(version) for version in versions]
        with ThreadPoolExecutor(READERS) as pool:
            return list(pool.map(self.commit, versions))

    def metadata_of(self, commits: Sequence[Commit]) -> Iterator[tuple[Commit, Metadata]]:
        """Each of these commits, which follow one another, with what the table was once it was in."""
        current = self.before(commits)
        for commit in commits:
            current = commit.metadata or current
            assert current is not None  # version 0 says what the table is
            yield commit, current

    def before(self, commits: Sequence[Commit]) -> Metadata | None:
        """What the table was before the first of these commits, which follow one another; None: it was not there."""
        changed = next((commit for commit in commits if commit.metadata), None)
        if changed is not None:
            return self.at(changed.version - 1).metadata if changed.version else None
        last = commits[-1].version if commits else self.version
        later = range(last + 1, self.version + 1)
        if all(
            version in self._commits for version in later[_SOME:]
        ):  # quicker than to have an old version put together
            changed = next((commit for commit in self.commits(later.start, later.stop) if commit.metadata), None)
            return self.metadata if changed is None else self.at(last).metadata
        return self.at(last).metadata

    def committed(self, version: int) -> str:
        """When a version was committed; empty where the log has dropped it."""
        found = self.place.objects.find(self.place.key(f"_delta_log/{version:020}.json"))
        return "" if found is None else stamp(self.commit(version).at)

    def last_at(self, millis: int) -> int | None:
        """The last version that was committed at this moment or before; None: there was none, or the log does not
        reach back so far. By what commits say themselves where the table has it so, else by their files' times, which
        Delta takes to be at least one millisecond after the one before."""
        found = self._versions()
        dated = [version for version, _ in found if version >= self._dated]
        if dated and self.commit(dated[0]).at <= millis:
            return dated[bisect_right(dated, millis, key=lambda version: self.commit(version).at) - 1]
        last, latest = None, 0
        for version, at in found:
            latest = max(at, latest + 1)
            if version >= self._dated or latest > millis:
                break
            last = version
        return last

    def first_from(self, millis: int) -> int:
        """The first version that was committed at this moment or after it. Where the log no longer tells, one that it
        no longer has: who has yet to read from there is stopped, who has long done so is not."""
        last = self.last_at(millis - 1)
        return max(self.earliest - 1, 0) if last is None else last + 1

    @property
    def earliest(self) -> int:
        """The first version that the log still has."""
        there = self._versions()
        if not there:
            raise MissingError(f"{self.place.uri} is gone")
        return there[0][0]

    @cached_property
    def _dated(self) -> float:
        """The version from which on commits say themselves when they were made; infinite: they do not."""
        properties = self.metadata.properties
        if properties.get("delta.enableInCommitTimestamps", "").lower() != "true":
            return math.inf
        return int(properties.get("delta.inCommitTimestampEnablementVersion", 0))

    def _versions(self) -> list[tuple[int, int]]:
        """Every commit that is still there, up to the version that was opened, with its file's time."""
        prefix = self.place.key("_delta_log")
        listed = self.place.objects.list(prefix)
        named = ((_COMMIT.fullmatch(entry.key.rpartition("/")[2]), entry) for entry in listed)
        found = sorted((int(name[1]), _millis(entry.modified)) for name, entry in named if name)
        return [pair for pair in found if pair[0] <= self.version]

    def _expired(self, version: int, said: str = "is no longer in the log") -> ExpiredError:
        earliest = self.earliest
        if version > self.version:
            return ExpiredError(
                f"there is no version {version}: {self.version} is the last one",
                why="An older state of the table was brought back, or it was made anew.",
                docs=f"{DOCS}#replaced",
            )
        return ExpiredError(
            f"version {version} {said}: it begins at {earliest}",
            why="Delta drops what is older than delta.logRetentionDuration, 30 days unless the table says otherwise.",
            docs=f"{DOCS}#expired",
        )


class ExpiredError(SourceError):
    """The log does not tell of a version. Which way leads out knows whoever wanted it."""


def _millis(at: datetime) -> int:
    return int(at.timestamp() * 1000)


def stamp(millis: int) -> str:
    """A commit's time as positions and plans keep it."""
    return datetime.fromtimestamp(millis / 1000, UTC).replace(tzinfo=None).isoformat(" ", "milliseconds")


def _commit(version: int, data: bytes, modified: int) -> Commit:
    info: dict[str, Any] = {}
    added, removed, fed, metadata = [], [], False, None
    for line in data.splitlines():
        action = json.loads(line) if line.strip() else {}
        match action:
            case {"add": dict(file)} if file.get("dataChange", True):
                added.append(file)
            case {"remove": dict(file)} if file.get("dataChange", True):
                removed.append(file)
            case {"cdc": dict()}:
                fed = True
            case {"metaData": dict(found)}:
                metadata = _metadata(found)
            case {"commitInfo": dict(found)}:
                info = found
    at = info.get("inCommitTimestamp", modified)
    return Commit(
        version,
        int(at),
        str(info.get("operation", "")),
        tuple(_added(file) for file in added),
        len(removed),
        _rows(info, added, removed, fed),
        metadata,
    )


def _added(file: Mapping[str, Any]) -> Added:
    return Added(file["path"], file.get("partitionValues") or {}, _records(file), bool(file.get("deletionVector")))


def _metadata(found: Mapping[str, Any]) -> Metadata:
    return Metadata(
        found["id"], found["schemaString"], tuple(found.get("partitionColumns") or ()), found.get("configuration") or {}
    )


def _rows(
    info: Mapping[str, Any], added: Iterable[Mapping[str, Any]], removed: Iterable[Mapping[str, Any]], fed: bool
) -> int:
    """About how many rows a commit changed; 0 only if none can have been."""
    files = [*added, *removed]
    if not files and not fed:
        return 0
    metrics = info.get("operationMetrics") or {}
    counted = sum(int(value) for name, value in metrics.items() if _CHANGED.fullmatch(name) and str(value).isdigit())
    if not counted:
        counted = sum(_records(file) or 0 for file in added)
    return max(counted, 1)


def _records(file: Mapping[str, Any]) -> int | None:
    try:
        found = json.loads(file.get("stats") or "{}").get("numRecords")
    except ValueError:
        return None
    return None if found is None else int(found)

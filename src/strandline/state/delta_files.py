"""A state's Delta table by its path, through delta-rs: no JVM. `delta:PATH` and `delta:s3://…`.

What makes compare-and-set safe is the log itself: a commit is made at exactly the version after the rows we know, or
not at all (delta-rs with no retries; by itself it would move an append behind whatever others wrote). The log's file of
a version is created only if it is absent: by a hard link in a folder, by a conditional put on S3.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote

from strandline.core.errors import CommitUnknownError, SetupError, StateError, StrandlineError, TransientError
from strandline.core.protocols import Record, Value
from strandline.endpoint import Endpoint
from strandline.objects import Objects, open_objects
from strandline.spark.storage import delta_options
from strandline.state.delta_marks import VERSION_MARK, Marks, marks, new_properties
from strandline.state.delta_rows import (
    COLUMNS,
    HISTORY,
    PARTITIONS,
    WATERMARKS,
    Row,
    current_sql,
    history_sql,
    old_sql,
    revisions_sql,
)
from strandline.state.delta_state import DeltaState
from strandline.state.objects_clock import StoreClock, steady

try:
    from arro3.core import Array, DataType, Field, Schema, Table
    from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, QueryBuilder, write_deltalake
    from deltalake import Field as DeltaField
    from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
    from deltalake.schema import PrimitiveType
except ImportError as error:
    raise SetupError("the package deltalake is not installed", remedy="pip install 'strandline[delta]'") from error

log = logging.getLogger(__name__)
_EVERY, _VACUUM_EVERY = 20, 200  # commits: a log without a checkpoint makes every read and write slower
_KEPT_HOURS = 1  # files that were replaced stay so long, for whoever is reading them
_HISTORY_FILE_BYTES = 1 << 20
_SLOW_SECONDS = 600.0
_ATTEMPTS = 3
_TABLE = "state"
_OWN = "_strandline"  # a folder that Delta passes over
_ALONE = CommitProperties(max_commit_retries=0)
_NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
_ARROW = {"string": DataType.utf8(), "long": DataType.int64(), "boolean": DataType.bool()}
_SCHEMA = Schema([Field(name, _ARROW[type_], nullable=True) for name, type_ in COLUMNS.items()])

T = TypeVar("T")


def delta_state(endpoint: Endpoint) -> DeltaState:
    return DeltaState(FileLog(endpoint))


class FileLog:
    def __init__(self, endpoint: Endpoint) -> None:
        self.address = str(endpoint)
        self._local = "://" not in endpoint.path
        self._uri = str(Path(endpoint.path).expanduser().absolute()) if self._local else _as_s3(endpoint.path)
        self._options = delta_options(endpoint)
        self._objects = _objects(endpoint, self._uri)
        own = _objects(endpoint, f"{self._uri}/{_OWN}")
        self._clock = StoreClock(own) if own else None
        self._table, found = self._open()
        self._store = found.store
        self._known = -1  # the version up to which the caller has been given all rows
        self._last = 0  # the highest number of a write among them: through a catalog it lags behind the version
        self._due: int | None = None

    def now(self) -> datetime:
        return self._clock.now() if self._clock else datetime.now(UTC)

    def identity(self) -> str:
        return self._store

    def close(self) -> None:
        """Nothing is held open."""

    # Reading

    def load(self) -> list[Row]:
        return self._told(lambda: self._scan(f"part = '{WATERMARKS}'"))

    def added(self) -> list[Row]:
        def look() -> list[Row]:
            self._table.update_incremental()
            if self._table.version() == self._known:
                return []
            self._marks(self._table)  # whoever wrote may be newer than we are: of its columns we would keep nothing
            return self._scan(f"seq > {self._last}")

        return self._told(look)

    def _scan(self, predicate: str) -> list[Row]:
        rows = sorted(_rows(self._table.scan(predicate=predicate).read_all()), key=lambda row: row["seq"] or 0)
        self._known = self._table.version()
        self._last = int(rows[-1]["seq"] or 0) if rows else self._last
        return rows

    def history(
        self, kind: str, prefix: Sequence[str], where: Mapping[str, Value], since: str | None, newest: int | None
    ) -> list[Row]:
        return self._ask(history_sql(_TABLE, kind, prefix, where, since, newest, _quoted))

    def stored(self, records: Sequence[Record]) -> list[Row]:
        return self._ask(revisions_sql(_TABLE, records, _quoted))

    def _ask(self, sql: str) -> list[Row]:
        return self._told(lambda: _rows(_query(self._table, sql)))

    def _told(self, work: Callable[[], T]) -> T:
        """After trouble once more on a table opened anew: what ours was made of may have been cleaned away."""
        try:
            return work()
        except (DeltaError, OSError) as error:
            log.debug("%s is opened anew: %s", self.address, error)
        try:
            self._table = self._opened()
            return work()
        except (DeltaError, OSError) as error:
            raise self._failure(error) from error

    # Writing

    def append(self, rows: Sequence[Row]) -> bool:
        version, mark = self._table.version(), secrets.token_hex(8)
        if version != self._known:
            return False
        for row in rows:
            row["seq"], row["mark"] = version + 1, mark
        data = Table.from_arrays(
            [Array([row[name] for row in rows], _ARROW[type_]) for name, type_ in COLUMNS.items()], schema=_SCHEMA
        )
        before, trouble = steady(), None
        try:
            write_deltalake(
                self._table, data, mode="append", commit_properties=_ALONE, post_commithook_properties=_NO_HOOKS
            )
            # Whoever slept since it looked may have created a name that was free because the log was cleaned.
            settled = steady() - before < _SLOW_SECONDS
        except (DeltaError, OSError) as error:
            trouble, settled = error, False
        if not settled and not self._found(version, mark, trouble):
            return False
        self._settle(version + 1)
        if settled:
            self._known = self._last = version + 1
        self._due = version + 1 if (version + 1) % _EVERY == 0 else None
        return True

    def _found(self, version: int, mark: str, trouble: Exception | None) -> bool:
        """Whether the write that began at a version is there after all. Raises what kept it, if not others."""
        if self._local and isinstance(trouble, CommitFailedError):
            return False  # a folder always answers
        try:
            table = self._opened()
            written = _query(table, f"SELECT mark FROM {_TABLE} WHERE seq = {version + 1} AND mark = '{mark}'")
        except (DeltaError, OSError) as error:
            text = f"the state {self.address}: whether a write went through cannot be told: {_first(error)}"
            raise CommitUnknownError(text) from error
        if written.num_rows:
            return True
        if trouble is not None and not (isinstance(trouble, CommitFailedError) and table.version() > version):
            raise self._failure(trouble) from trouble
        return False

    def _settle(self, version: int) -> None:
        """Delta-rs does not flush its files to the disk."""
        if not self._local or self._objects is None:
            return
        entry = f"_delta_log/{version:020}.json"
        actions = [json.loads(line) for line in (self._objects.get(entry) or b"").splitlines()]
        added = [unquote(action["add"]["path"]) for action in actions if "add" in action]
        self._objects.settle([*added, entry])

    def drop(self, kind: str, before: str) -> int:
        condition = old_sql(kind, before, _quoted)

        def remove() -> int:
            table = self._opened()
            counted = _query(table, f"SELECT COUNT(DISTINCT `key`) AS records FROM {_TABLE} WHERE {condition}")
            records = int(counted.column("records").to_pylist()[0])
            if records:
                table.delete(condition, commit_properties=_ALONE, post_commithook_properties=_NO_HOOKS)
            return records

        for _ in range(_ATTEMPTS):
            try:
                return self._told(remove)
            except TransientError as error:
                if not isinstance(error.__cause__, CommitFailedError):
                    raise
        return 0  # others are at work without a pause: what is old now is still so next time

    # Tidying

    def tidy(self) -> bool:
        due, self._due = self._due, None
        if due is None:
            return False
        try:
            table = self._opened()
            self._rewrite(table)
            filters = [("part", "=", HISTORY)]
            table.optimize.compact(filters, _HISTORY_FILE_BYTES, 1, post_commithook_properties=_NO_HOOKS)
            table.create_checkpoint()
            table.cleanup_metadata()
            if due % _VACUUM_EVERY == 0:
                table.vacuum(_KEPT_HOURS, dry_run=False, enforce_retention_duration=False, full=True)
        except CommitFailedError as error:
            log.debug("%s is tidied another time: %s", self.address, error)
        except (DeltaError, OSError, StrandlineError) as error:
            log.warning("the state %s was not tidied: %s", self.address, _first(error))
        return True

    def _rewrite(self, table: DeltaTable) -> None:
        """One file per pipeline for what is no history, with the latest rows alone. Those that say that a record is
        gone stay: others must still come to see them. If others are quicker every time, it waits for the next."""
        for _ in range(_ATTEMPTS):
            table.update_incremental()
            current = _query(table, current_sql(_TABLE, WATERMARKS))
            try:
                write_deltalake(
                    table,
                    current,
                    mode="overwrite",
                    predicate=f"part = '{WATERMARKS}'",
                    commit_properties=_ALONE,
                    post_commithook_properties=_NO_HOOKS,
                )
            except CommitFailedError as error:
                log.debug("%s is rewritten another time: %s", self.address, error)
                continue
            self._settle(table.version())
            return

    # The table itself

    def _opened(self) -> DeltaTable:
        return DeltaTable(self._uri, storage_options=self._options or None)

    def _open(self) -> tuple[DeltaTable, Marks]:
        """The table, made if there is none and brought to our version if it is older."""
        if self._objects is not None:
            self._objects.get("_delta_log/_last_checkpoint")  # a store that cannot be reached says so in words
        for _ in range(_ATTEMPTS):
            try:
                table = self._opened()
                found = self._marks(table)
                if not found.outdated:
                    return table, found
                self._migrate(table, found)
            except TableNotFoundError:
                self._make()
            except CommitFailedError:
                continue  # somebody else brings it to our version
            except (DeltaError, OSError, ValueError) as error:
                raise StateError(
                    f"the state {self.address} cannot be read as a Delta table: {_first(error)}",
                    remedy="Check its _delta_log, or restore it from a backup. It was left as it is.",
                ) from error
        raise TransientError(f"the state {self.address} is being made or changed by others")

    def _marks(self, table: DeltaTable) -> Marks:
        fields = json.loads(table.schema().to_json())["fields"]
        metadata = table.metadata()
        columns = {field["name"]: str(field["type"]) for field in fields}
        return marks(self.address, metadata.configuration, columns, metadata.partition_columns)

    def _make(self) -> None:
        """A new table, unless something else lies there; of several makers one wins."""
        if self._objects is not None:
            for entry in self._objects.list():
                if entry.key.split("/")[0] not in (_OWN, "_delta_log"):
                    raise StateError(
                        f"{self.address} holds something else: it is not empty, and not a Delta table",
                        remedy="Name a folder of its own under `state:`. This one was left as it is.",
                    )
            self._check_winners(self._objects)
        try:
            DeltaTable.create(
                self._uri,
                _SCHEMA,
                partition_by=list(PARTITIONS),
                name="strandline_state",
                configuration=new_properties(),
                storage_options=self._options or None,
                commit_properties=_ALONE,
                post_commithook_properties=_NO_HOOKS,
                raise_if_key_not_exists=False,
            )
        except (DeltaError, OSError) as error:
            if not DeltaTable.is_deltatable(self._uri, self._options or None):
                raise self._failure(error) from error

    def _check_winners(self, objects: Objects) -> None:
        """A store that does not know conditional puts takes them for ordinary ones, and loses commits."""
        probe = f"{_OWN}/probe-{secrets.token_hex(8)}"
        first, second = objects.create(probe, b"first"), objects.create(probe, b"second")
        objects.delete([probe])
        if not first or second:
            raise StateError(
                f"{self.address} cannot hold a state in Delta: of two writers at once both win there",
                why="It does not create a file only if it is absent (hard links in a folder, If-None-Match on S3).",
                remedy="Keep the state in a database: state: postgresql://…",
            )

    def _migrate(self, table: DeltaTable, found: Marks) -> None:
        fields = [DeltaField(name, PrimitiveType(type_)) for name, type_ in found.missing.items()]
        if fields:
            table.alter.add_columns(fields, commit_properties=_ALONE, post_commithook_properties=_NO_HOOKS)
        table.alter.set_table_properties(
            VERSION_MARK, False, commit_properties=_ALONE, post_commithook_properties=_NO_HOOKS
        )

    def _failure(self, error: Exception) -> StrandlineError:
        if isinstance(error, TableNotFoundError):
            remedy = "Restore it, or start over and rebuild the positions: strandline watermark import --from-target"
            return StateError(f"the state {self.address} is gone", remedy=remedy)
        if "ermission denied" in str(error) or "Read-only" in str(error):
            remedy = "Give the user that runs Strandline the right to write there."
            return StateError(f"the state {self.address}: {_first(error)}", remedy=remedy)
        return TransientError(f"the state {self.address}: {_first(error)}")


def _query(table: DeltaTable, sql: str) -> Table:
    found: Table = QueryBuilder().register(_TABLE, table).execute(sql).read_all()
    return found


def _rows(data: Table) -> list[Row]:
    columns = [data.column(name).to_pylist() for name in COLUMNS]
    return [dict(zip(COLUMNS, values, strict=True)) for values in zip(*columns, strict=True)]


def _quoted(value: Value) -> str:
    """A literal of DataFusion, which knows no backslashes."""
    return str(value) if isinstance(value, int) else "'" + (value or "").replace("'", "''") + "'"


def _as_s3(url: str) -> str:
    return url.replace("s3a://", "s3://", 1).rstrip("/")


def _objects(endpoint: Endpoint, uri: str) -> Objects | None:
    """The place as a store of objects; None where we have no access of our own."""
    scheme, found, rest = uri.partition("://")
    if not found:
        return open_objects(Endpoint("file", uri))
    if scheme != "s3":
        return None
    bucket, _, prefix = rest.partition("/")
    return open_objects(replace(endpoint, scheme="s3", host=bucket, path=prefix))


def _first(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)

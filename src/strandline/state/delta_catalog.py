"""A state's Delta table in a catalog, through the caller's Spark session: `catalog:CATALOG.SCHEMA`.

What makes compare-and-set safe is Delta's own conflict detection. Writes are numbered (`seq`): one is a MERGE that
inserts its rows only if there is no number above the last we know. A MERGE reads what it depends on, so of two at once
Delta commits one and refuses the other, which it would not do with an INSERT; whoever comes later inserts nothing. The
row with the highest number is never removed.
Only SQL and the public DataFrame API, so that the session may be classic or Spark Connect; it is never stopped here.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TypeVar

from strandline.core.errors import (
    CommitUnknownError,
    ConfigError,
    StateError,
    StrandlineError,
    TransientError,
)
from strandline.core.protocols import Record, Spark, Value
from strandline.endpoint import Endpoint
from strandline.sinks.delta_errors import conflicting, ours, short
from strandline.spark.session import batch_session, end_batch
from strandline.state.delta_marks import VERSION_MARK, Marks, marks, new_properties
from strandline.state.delta_rows import (
    COLUMNS,
    PARTITIONS,
    WATERMARKS,
    Row,
    current_sql,
    history_sql,
    names,
    old_sql,
    revisions_sql,
)
from strandline.state.delta_state import DeltaState

log = logging.getLogger(__name__)
TABLE = "strandline_state"
_EVERY, _VACUUM_EVERY = 50, 200  # writes: tidying costs as much as ten of them
_ATTEMPTS, _OPENINGS = 3, 20
_MADE = re.compile(r"ALREADY_EXISTS|DELTA_CREATE_TABLE_WITH|LOCATION_ALREADY_EXISTS|NON_EMPTY_LOCATION")
_SMALL = {  # a few rows need one task each, in one job, and nothing compiled for them
    "spark.sql.shuffle.partitions": "1",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
}
_OF_DELTA = "delta.minReaderVersion"  # every Delta table has it among its properties
_SQL = {"string": "STRING", "long": "BIGINT", "boolean": "BOOLEAN"}
_COLUMNS = ", ".join(f"`{name}` {_SQL[type_]}" for name, type_ in COLUMNS.items())

T = TypeVar("T")


def catalog_state(endpoint: Endpoint, spark: Spark) -> DeltaState:
    return DeltaState(CatalogLog(endpoint, spark))


class CatalogLog:
    def __init__(self, endpoint: Endpoint, spark: Spark) -> None:
        self.address = str(endpoint)
        parts = endpoint.path.split(".")
        if len(parts) != 2 or not all(re.fullmatch(r"[^`\s]+", part) for part in parts):
            raise ConfigError(f"the state {endpoint} names no schema", remedy="Write state: catalog:CATALOG.SCHEMA")
        self._name = ".".join(f"`{part}`" for part in (*parts, TABLE))
        # A session of its own: what the caller sets on theirs, for one write of theirs, must not touch ours.
        self._session = batch_session(spark())
        for name, value in _SMALL.items():
            if self._session.conf.isModifiable(name):
                self._session.conf.set(name, value)
        self._known = 0
        self._due: int | None = None
        self._store = self._told(self._open).store

    def now(self) -> datetime:
        return datetime.now(UTC)

    def identity(self) -> str:
        return self._store

    def close(self) -> None:
        end_batch(self._session)

    # Reading

    def load(self) -> list[Row]:
        """Writes after the last of these rows were history alone: they come with the first `added`."""
        return self._since(current_sql(self._name, WATERMARKS))

    def added(self) -> list[Row]:
        rows = self._since(f"SELECT {names(COLUMNS)} FROM {self._name} WHERE seq > {self._known}")
        if rows:
            self._told(self._marks)  # whoever wrote may be newer than we are: of its columns we would keep nothing
        return rows

    def _since(self, sql: str) -> list[Row]:
        rows = sorted(self._rows(sql), key=lambda row: row["seq"] or 0)
        self._known = max(self._known, int(rows[-1]["seq"] or 0)) if rows else self._known
        return rows

    def history(
        self, kind: str, prefix: Sequence[str], where: Mapping[str, Value], since: str | None, newest: int | None
    ) -> list[Row]:
        return self._rows(history_sql(self._name, kind, prefix, where, since, newest, _quoted))

    def stored(self, records: Sequence[Record]) -> list[Row]:
        return self._rows(revisions_sql(self._name, records, _quoted))

    def _rows(self, sql: str) -> list[Row]:
        return self._told(lambda: [row.asDict() for row in self._session.sql(sql).collect()])

    # Writing

    def append(self, rows: Sequence[Row]) -> bool:
        number, mark = self._known + 1, secrets.token_hex(8)
        for row in rows:
            row["seq"], row["mark"] = number, mark
        try:
            merged = self._session.sql(
                f"MERGE INTO {self._name} AS t USING ({_source(rows)}) AS s ON t.seq > {self._known} "
                "WHEN NOT MATCHED THEN INSERT *"
            ).collect()
            settled = bool(merged)
            if settled and not merged[0]["num_inserted_rows"]:
                return False
        except Exception as error:
            if conflicting(error):
                return False
            if not self._found(number, mark):
                raise self._failure(error) from error
            settled = True
        if not settled and not self._found(number, mark):
            return False
        self._known = number
        self._due = number if number % _EVERY == 0 else None
        return True

    def _found(self, number: int, mark: str) -> bool:
        """Whether a write is there though Spark did not say so."""
        try:
            last = self._session.sql(f"SELECT MAX(seq) AS seq FROM {self._name}").collect()[0]["seq"] or 0
            own = self._session.sql(f"SELECT DISTINCT mark FROM {self._name} WHERE seq = {number}").collect()
        except Exception as error:
            text = f"the state {self.address}: whether a write went through cannot be told: {short(error)}"
            raise CommitUnknownError(text) from error
        if last >= number and not own:
            raise CommitUnknownError(f"the state {self.address}: others went on before it could be told who wrote")
        return any(row["mark"] == mark for row in own)

    def drop(self, kind: str, before: str) -> int:
        condition = f"{old_sql(kind, before, _quoted)} AND seq < {self._known}"

        def remove() -> int:
            counted = f"SELECT COUNT(DISTINCT `key`) AS records FROM {self._name} WHERE {condition}"
            records = int(self._session.sql(counted).collect()[0]["records"])
            if records:
                self._session.sql(f"DELETE FROM {self._name} WHERE {condition}").collect()
            return records

        for _ in range(_ATTEMPTS):
            try:
                return self._told(remove)
            except TransientError as error:
                if error.__cause__ is None or not conflicting(_cause(error)):
                    raise
        return 0  # others are at work without a pause: what is old now is still so next time

    # Tidying

    def tidy(self) -> bool:
        due, self._due = self._due, None
        if due is None:
            return False
        last = f"SELECT record, `key`, MAX(seq) AS last FROM {self._name} WHERE part = '{WATERMARKS}' GROUP BY ALL"
        statements = [
            f"MERGE INTO {self._name} AS t USING ({last}) AS s ON t.part = '{WATERMARKS}' AND t.record = s.record "
            "AND t.`key` = s.`key` AND t.seq < s.last WHEN MATCHED THEN DELETE",
            f"OPTIMIZE {self._name}",
            *([f"VACUUM {self._name}"] if due % _VACUUM_EVERY == 0 else []),
        ]
        try:
            for statement in statements:
                self._session.sql(statement).collect()
        except Exception as error:
            level = logging.DEBUG if conflicting(error) else logging.WARNING
            log.log(level, "the state %s was not tidied: %s", self.address, short(error))
        return True

    # The table itself

    def _open(self) -> Marks:
        """What the table says of itself, made if there is none and brought to our version if it is older."""
        for attempt in range(_OPENINGS):
            if not self._session.catalog.tableExists(self._name):
                try:
                    self._make()
                except Exception as error:
                    if attempt + 1 == _OPENINGS or not (conflicting(error) or _MADE.search(str(error))):
                        raise
                    time.sleep(1)  # somebody else makes it: its log comes first, its name in the catalog later
                    continue
            found = self._marks()
            if not found.outdated:
                return found
            if found.missing:
                columns = ", ".join(f"`{name}` {_SQL[type_]}" for name, type_ in found.missing.items())
                self._session.sql(f"ALTER TABLE {self._name} ADD COLUMNS ({columns})")
            self._session.sql(f"ALTER TABLE {self._name} SET TBLPROPERTIES ({_pairs(VERSION_MARK)})")
        raise TransientError(f"the state {self.address} is being made or changed by others")

    def _make(self) -> None:
        self._session.sql(
            f"CREATE TABLE IF NOT EXISTS {self._name} ({_COLUMNS}) USING DELTA "
            f"PARTITIONED BY ({names(PARTITIONS)}) TBLPROPERTIES ({_pairs(new_properties())})"
        )

    def _marks(self) -> Marks:
        """What the table says of itself. No job of Spark, as DESCRIBE DETAIL is three."""
        address = f"{self.address}.{TABLE}"
        pairs = self._session.sql(f"SHOW TBLPROPERTIES {self._name}").collect()
        properties = {pair["key"]: pair["value"] for pair in pairs}
        if _OF_DELTA not in properties:
            raise StateError(
                f"the state {self.address}: {TABLE} is no Delta table",
                remedy="Name a schema of its own under `state:`. The table was left as it is.",
            )
        columns = {field.name: field.dataType.typeName() for field in self._session.table(self._name).schema.fields}
        partitions = [column.name for column in self._session.catalog.listColumns(self._name) if column.isPartition]
        return marks(address, properties, columns, partitions)

    def _told(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except StrandlineError:
            raise
        except Exception as error:
            raise self._failure(error) from error

    def _failure(self, error: Exception) -> StrandlineError:
        known = ours(error)
        if conflicting(error) or isinstance(known, TransientError):
            return TransientError(f"the state {self.address}: {short(error)}")
        remedy = "Check that the schema exists and that this user may create, read and change tables in it."
        return StateError(f"the state {self.address}: {short(error)}", remedy=remedy)


def _cause(error: Exception) -> Exception:
    return error.__cause__ if isinstance(error.__cause__, Exception) else error


def _quoted(value: Value) -> str:
    """A literal that no setting of a session reads in another way. (Delta's parser knows no parameters.)"""
    return str(value) if isinstance(value, int) else f"CAST(X'{(value or '').encode().hex()}' AS STRING)"


def _source(rows: Sequence[Row]) -> str:
    """The rows as a query. One text, and not a frame: Spark need not keep it first, nor ask Python for it."""
    given = json.dumps([{name: value for name, value in row.items() if value is not None} for row in rows])
    return f"SELECT INLINE(FROM_JSON({_quoted(given)}, 'ARRAY<STRUCT<{_COLUMNS}>>', MAP('mode', 'FAILFAST')))"


def _pairs(properties: Mapping[str, str]) -> str:
    return ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())

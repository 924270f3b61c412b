"""Writing to a Delta table through Spark: the session made for one batch, the table's columns, the commit.

Owns every Spark setting and statement. The settings that make Delta apply a batch once are set on a session that ends
with the batch: left behind, they would silently drop later writes.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException
from pyspark.sql.types import StructType

from strandline.core.batch import Applied, Batch, How
from strandline.core.protocols import Changes
from strandline.core.table import Mode, Table
from strandline.core.window import Repair
from strandline.sinks.delta_log import PIPELINE, TABLE, DeltaLog, app_id, fence_note, note, txn_version
from strandline.sinks.delta_rows import Counting, Rows, cursor_column, held, living, merge_text
from strandline.sinks.delta_schema import Evolution, allow, check_columns, compare, plain, properties_for
from strandline.spark.session import batch_session, end_batch, set_all
from strandline.spark.text import literal, quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_APP, _VERSION = "spark.databricks.delta.write.txnAppId", "spark.databricks.delta.write.txnVersion"
_REPLACE = "spark.databricks.delta.replaceOn.dataframe.writer.enabled"
_THERE, _BROUGHT = "strandline_target", "strandline_rows"  # Delta would take a column of this name for it
_PROMISED = {
    "spark.databricks.delta.history.metricsEnabled": "true",  # the counts are read from there
    "spark.databricks.delta.schema.autoMerge.enabled": "false",  # `schema:` decides
}
_NOTE = "spark.databricks.delta.commitInfo.userMetadata"

Counted = Callable[[Applied], Applied]
"""Completes what the commit says with what only the writer saw."""


class Write:
    """One batch on its way into one table."""

    def __init__(self, spark: SparkSession, path: str, table: Table, batch: Batch, changes: Changes) -> None:
        self.session = tuned(batch_session(spark))
        self.path = path
        self.target = f"delta.{quoted(path)}"
        self.table = table
        self.batch = batch
        self.changes = changes
        self.frame = changes.frame(self.session)
        stored = self.frame.drop(changes.operation) if changes.operation else self.frame
        self.schema = plain(stored.schema)
        self._overwrite_schema = False
        self._made_of: dict[str, str] = {}
        self._log: DeltaLog | None = None
        self._plain = True

    def prepare(self, log: DeltaLog | None, *, replace: bool) -> list[str]:
        """Make the table, or make room for the batch's columns, as the policy allows. Returns what is worth saying."""
        check_columns(self.table, self.schema)
        if log is None:
            self._make()
            return []
        self._log = log
        evolution = compare(self.schema, StructType.fromJson(json.loads(log.schema_json)))
        feed = log.properties.get("delta.enableChangeDataFeed", "").lower() == "true"
        self._plain = not feed and not evolution.dropped
        allow(self.table, evolution, replace=replace)
        self._set(properties_for(self.schema), log)
        if replace:
            self._overwrite_schema = not evolution.nothing
            return []
        self._evolve(evolution, log)
        return [f"column {name} is no longer in the source: kept, and NULL in new rows" for name in evolution.dropped]

    def run(self, how: How, repair: Repair | None = None) -> Counted:
        """The one commit. Delta skips it silently if it holds this batch or a later one: the caller looks."""
        if repair is not None:
            self._repair(repair)
            return lambda applied: applied
        mode = "overwrite" if how is How.REPLACE else "append"
        keyed = self.table.mode is Mode.MERGE
        if not keyed or (self.changes.unique and how not in (How.CHANGES, How.CURRENT)):
            counting = Counting(self.table, self.frame)
            # A log of versions keeps those of deleted rows too.
            every = self.table.mode is Mode.APPEND and how is not How.REPLACE
            rows = counting.frame.select(self._columns) if every else living(self.changes, counting.frame)
            self._save(rows, mode, note(self.table, self.batch))
            return counting.complete
        if how in (How.CHANGES, How.CURRENT) and not self._made_of:
            self._upsert(compared=how is How.CHANGES)
        else:
            with held(self.table, self.changes, self.frame) as kept:
                self._save(living(self.changes, kept.frame), mode, note(self.table, self.batch, kept.applied))
        return lambda applied: applied

    def close(self) -> None:
        end_batch(self.session)

    def cancel(self) -> None:
        """Interrupt the session of this batch; no other session notices."""
        self.session.interruptAll()

    @property
    def _columns(self) -> list[str]:
        return [quoted(name) for name in self.schema.names]

    def _make(self) -> None:
        """A table in a folder is made by the commit of its first batch. Elsewhere, and where others write to it too, it
        is made first: Delta then makes sure that nothing else lies there, and the table says whose it is."""
        properties = {"delta.enableDeletionVectors": "true", **properties_for(self.schema)}
        if "://" not in self.path and not self.table.shared:
            self._made_of = properties
            return
        columns = ", ".join(f"{quoted(field.name)} {field.dataType.simpleString()}" for field in self.schema.fields)
        listed = _listed({PIPELINE: self.table.pipeline, TABLE: self.table.name, **properties})
        self.session.sql(f"CREATE TABLE IF NOT EXISTS {self.target} ({columns}) USING delta TBLPROPERTIES ({listed})")

    def make_empty(self) -> None:
        """Make the table without rows, for a fence to stand there. If a batch came in meanwhile, Delta skips this: the
        count is below that of any batch."""
        if self._made_of:
            nothing, count = self._bare(self.frame).limit(0), 1 << 32
            _save(nothing, self.path, "append", self.table, count, fence_note(self.table, count), **self._made_of)
            self._made_of = {}

    def _bare(self, frame: DataFrame) -> DataFrame:
        """Columns without what a source notes beside them, the length of a text for one: a cast leaves it behind. It is
        given as text, because Spark Connect spells out the collation of a type, which few readers of Delta know."""
        return frame.selectExpr(
            *(f"CAST({quoted(f.name)} AS {f.dataType.simpleString()}) AS {quoted(f.name)}" for f in self.schema)
        )

    def _evolve(self, evolution: Evolution, log: DeltaLog) -> None:
        if evolution.added:
            columns = ", ".join(f"{quoted(field.name)} {field.dataType.simpleString()}" for field in evolution.added)
            self.session.sql(f"ALTER TABLE {self.target} ADD COLUMNS ({columns})")
        if evolution.widened:
            self._set({"delta.enableTypeWidening": "true"}, log)
        for field in evolution.widened:
            kind = field.dataType.simpleString()
            self.session.sql(f"ALTER TABLE {self.target} ALTER COLUMN {quoted(field.name)} TYPE {kind}")

    def _set(self, properties: dict[str, str], log: DeltaLog) -> None:
        present, features = log.properties, log.features
        missing = {
            key: value
            for key, value in properties.items()
            if present.get(key) != value and key.removeprefix("delta.feature.") not in features
        }
        if missing:
            self.session.sql(f"ALTER TABLE {self.target} SET TBLPROPERTIES ({_listed(missing)})")

    def _save(self, frame: DataFrame, mode: str, identity: str) -> None:
        options = {"partitionOverwriteMode": "static", **self._made_of}
        if self._overwrite_schema:
            options["overwriteSchema"] = "true"
        if self._made_of:
            frame = self._bare(frame)
        _save(frame, self.path, mode, self.table, txn_version(self.batch), identity, **options)

    def _merge(self, rows: Rows, *, compared: bool) -> None:
        source = rows.frame.hint("broadcast") if rows.small else rows.frame
        text = merge_text(self.table, self.changes, self.target, self.schema.names, compared=compared)
        self._commit(source, rows, text)

    def _upsert(self, *, compared: bool) -> None:
        """Delta takes its time to read a table's log: it does so while the source is read."""
        with ThreadPoolExecutor(1, "strandline-log") as aside:
            can = aside.submit(_can_replace, self.session, self.path)
            with held(self.table, self.changes, self.frame) as kept:
                if self._may_replace(kept, compared=compared) and can.result():
                    self._replace(kept)
                else:
                    self._merge(kept, compared=compared)

    def _may_replace(self, rows: Rows, *, compared: bool) -> bool:
        """Whether "delete what has these keys, then append" comes to the same as MERGE: no row of the batch is a
        delete or older than the target's, and each has every column. Delta does it in one commit too, and reads the
        target once instead of three times. Its change feed would tell a delete and an insert of each row instead of
        an update."""
        if rows.deletes or self.table.shared or not self._plain:
            return False
        name = cursor_column(self.table, self.schema.names)
        if compared and self._log is not None and name is not None:
            return rows.first_value is not None and not self._log.may_exceed(name, rows.first_value)
        return True

    def _replace(self, rows: Rows) -> None:
        on = [f"{_THERE}.{quoted(name)} = {_BROUGHT}.{quoted(name)}" for name in self.table.key]
        if rows.keys is not None:
            on.append(f"{_THERE}.{quoted(self.table.key[0])} BETWEEN {rows.keys[0]} AND {rows.keys[1]}")
        source = living(self.changes, rows.frame).alias(_BROUGHT)
        self.session.conf.set("spark.sql.sources.partitionOverwriteMode", "static")
        _save(
            source.hint("broadcast") if rows.small else source,
            self.path,
            "overwrite",
            self.table,
            txn_version(self.batch),
            note(self.table, self.batch, rows.applied),
            replaceOn=" AND ".join(on),
            targetAlias=_THERE,
        )

    def _repair(self, repair: Repair) -> None:
        from strandline.sinks.delta_repair import needed, repair_text

        names, target = self.schema.names, self.session.read.format("delta").load(self.path)
        with (
            held(self.table, self.changes, self.frame) as kept,
            needed(self.table, self.changes, kept.frame, target, names, repair) as source,
        ):
            self._commit(source, kept, repair_text(self.table, self.target, names, repair))

    def _commit(self, source: DataFrame, rows: Rows, merge: str) -> None:
        source.createOrReplaceTempView("strandline_rows")
        said = {_NOTE: note(self.table, self.batch, rows.applied)}
        set_all(self.session, {**said, _APP: app_id(self.table), _VERSION: str(txn_version(self.batch))})
        self.session.sql(merge).collect()


def fence(spark: SparkSession, path: str, table: Table, version: int) -> None:
    """Raise our count in the table's log by a commit without rows."""
    session = batch_session(spark)
    try:
        nothing = session.read.format("delta").load(path).limit(0)
        _save(nothing, path, "append", table, version, fence_note(table, version))
    finally:
        end_batch(session)


def maintain(spark: SparkSession, path: str, carried: str, *, compact: bool, retain_hours: float | None) -> None:
    """Compact, then clean up; both commits say `carried`."""
    session = tuned(batch_session(spark))
    if carried:
        session.conf.set(_NOTE, carried)
    target = f"delta.{quoted(path)}"
    if compact:
        session.sql(f"OPTIMIZE {target}").collect()
    retain = "" if retain_hours is None else f" RETAIN {retain_hours:g} HOURS"
    session.sql(f"VACUUM {target}{retain}").collect()


def tuned(session: SparkSession) -> SparkSession:
    """Settings that follow the size of the work, unless the user chose others; and two that our promises rest on."""
    chosen, ours = session.conf.getAll, {}
    if found := re.match(r"local(?:\[(\d+|\*))?", chosen.get("spark.master", "")):
        cores = str(os.cpu_count() or 1) if found[1] == "*" else found[1] or "1"
        ours = {
            "spark.sql.shuffle.partitions": cores,
            "spark.sql.sources.parallelPartitionDiscovery.parallelism": cores,
            "spark.databricks.delta.snapshotPartitions": "1",
        }
    set_all(session, {**{key: value for key, value in ours.items() if key not in chosen}, **_PROMISED})
    return session


def _save(frame: DataFrame, path: str, mode: str, table: Table, version: int, identity: str, **options: str) -> None:
    """One commit that moves our count to `version`; Delta skips it silently if it stands there or higher."""
    writer = frame.write.format("delta").mode(mode).options(**options)
    writer = writer.option("txnAppId", app_id(table)).option("txnVersion", version)
    writer.option("userMetadata", identity).save(path)


def _can_replace(session: SparkSession, path: str) -> bool:
    """Whether this Delta knows `replaceOn`: another would take no notice of it, and overwrite the whole table."""
    try:
        # Done as soon as it is said: Delta computes the table's state, and a session knows its settings after that.
        session.sql(f"DESCRIBE DETAIL delta.{quoted(path)}")
        return session.conf.get(_REPLACE) == "true"
    except PySparkException as error:
        if error.getCondition() == "SQL_CONF_NOT_FOUND":
            return False
        raise


def _listed(properties: dict[str, str]) -> str:
    return ", ".join(f"{literal(key)} = {literal(value)}" for key, value in properties.items())

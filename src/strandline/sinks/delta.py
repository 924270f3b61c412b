"""Delta tables as targets: append, merge and snapshot, each batch in one commit that carries its identity.

Owns when a batch is applied, refused or already there. What a table holds is read from its log without a JVM
(`delta_log`); Spark is asked for only to write (`delta_write`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from strandline.core.batch import Applied, Batch, How, Receipt
from strandline.core.compare import Comparison, Form, spark_form
from strandline.core.errors import BatchConflictError, ConfigError, TargetError
from strandline.core.protocols import Changes, Spark
from strandline.core.table import Mode, Table
from strandline.core.window import Repair
from strandline.endpoint import Endpoint
from strandline.sinks.delta_errors import told
from strandline.sinks.delta_log import DeltaLog, note, retention_hours, txn_version
from strandline.spark.storage import delta_options, spark_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from strandline.sinks.delta_side import DeltaSide
    from strandline.sinks.delta_write import Write


class DeltaSink:
    """Tables under one folder or object prefix: `schema.table` lies in `schema/table`."""

    def __init__(self, endpoint: Endpoint, spark: Spark) -> None:
        self.endpoint = endpoint
        self.warnings: list[tuple[str, str]] = []
        """What was worth saying while applying, as (`table.name`, message): a column that is gone, for one."""
        self._spark = spark
        self._writes: dict[str, Write] = {}  # under way, by table

    def identity(self, table: Table) -> str:
        return f"delta:{self.uri(table)}"

    def uri(self, table: Table) -> str:
        """Where the table lies: an absolute path, or an object store's URL."""
        return "/".join([self._root, *_parts(table)])

    def applied(self, table: Table) -> Receipt | None:
        log = self._log(table)
        return None if log is None else log.receipt(table)

    def apply(self, table: Table, batch: Batch, changes: Changes, *, how: How, repair: Repair | None = None) -> Applied:
        log = self._log(table)
        if log is not None and (held := _held(log, table, batch)) is not None:
            return held.applied
        if log is None:
            self._refuse_nesting(table)
        if table.mode is Mode.SNAPSHOT and how is not How.REPAIR:
            how = How.REPLACE
        with told(table, changes, committing=True):
            spark = self._spark()  # first: PySpark is imported while its Java starts
            from strandline.sinks.delta_write import Write

            write = Write(spark, spark_path(self.uri(table)), table, batch, changes)
            self._writes[table.name] = write
            try:
                for warning in write.prepare(log, replace=how is How.REPLACE):
                    self._warn(table, warning)
                if log is None and batch.epoch > 1:
                    write.make_empty()
                    self._refuse_zombie(table, batch)
                counted = write.run(how, repair)
            finally:
                del self._writes[table.name]
                write.close()
        log = self._log(table)
        held = None if log is None else _held(log, table, batch)
        if held is None:
            raise BatchConflictError(
                f"{batch} was not written: the target holds another batch", where=table.where_text, remedy=_CONFLICT
            )
        return held.applied if held.batch.attempt != batch.attempt else counted(held.applied)

    def fence(self, table: Table, epoch: int) -> Receipt | None:
        """Delta refuses a commit below the count it holds, also one under way: raising the count shuts it out."""
        log = self._log(table)
        if log is None:
            return None
        count = log.txn_version(table) or 0
        if count >> 32 >= epoch:
            return log.receipt(table)
        with told(table):
            from strandline.sinks.delta_write import fence

            fence(self._spark(), spark_path(self.uri(table)), table, epoch << 32 | count & 0xFFFFFFFF)
        return self.applied(table)

    def fit(self, table: Table, types: Mapping[str, str]) -> list[str]:
        """What the next batch, with columns of these Spark types, would change about a target that is there, in words.
        SchemaError where it would be refused."""
        log = self._log(table)
        if log is None:
            return []
        from pyspark.sql.types import StructType

        from strandline.sinks.delta_schema import allow, check_columns, compare, schema_of

        schema = schema_of(types)
        check_columns(table, schema)
        evolution = compare(schema, StructType.fromJson(json.loads(log.schema_json)))
        allow(table, evolution, replace=table.mode is Mode.SNAPSHOT)
        return evolution.words()

    def forms(self, table: Table) -> dict[str, Form | None]:
        log = self._log(table)
        if log is None:
            return {}
        from pyspark.sql.types import StructType

        fields = StructType.fromJson(json.loads(log.schema_json)).fields
        return {field.name: spark_form(field.dataType.simpleString()) for field in fields}

    def hashes(self) -> tuple[str, ...]:
        return ("crc32", "md5")

    def side(self, comparison: Comparison) -> DeltaSide:
        from strandline.sinks.delta_side import DeltaSide

        log = self._log(comparison.table)
        if log is None:
            raise TargetError("there is no target yet", where=comparison.table.where_text)
        path = spark_path(self.uri(comparison.table))
        version = log.delta.version()

        def read(session: SparkSession) -> DataFrame:
            return session.read.format("delta").option("versionAsOf", version).load(path)

        return DeltaSide(self._spark(), read, comparison)

    def cancel(self, table: str | None = None) -> None:
        for name, write in list(self._writes.items()):
            if table in (None, name):
                write.cancel()

    def maintain(self, table: Table, *, compact: bool = True, retain_hours: float | None = None) -> None:
        """Compact small files, then drop files that no version within the retention needs.

        The commits carry the last batch's identity on, so that it outlives the log's own retention. Refuses to keep
        less than the table's `delta.deletedFileRetentionDuration` (7 days): readers of its change feed need the files.
        """
        log = self._log(table)
        if log is None:
            return
        least = retention_hours(log.properties)
        if retain_hours is not None and retain_hours < least:
            raise ConfigError(
                f"maintain: {retain_hours:g} hours is less than the {least:g} that the target keeps removed files for",
                where=table.where_text,
                why="Whoever reads an older version or the change feed would find files gone.",
                remedy="Keep more, or lower the table's property delta.deletedFileRetentionDuration first.",
            )
        receipt = log.receipt(table)
        with told(table):
            from strandline.sinks.delta_write import maintain

            carried = (
                note(table, receipt.batch, receipt.applied, carried=log.txn_version(table))
                if receipt and receipt.exact
                else ""
            )
            maintain(self._spark(), spark_path(self.uri(table)), carried, compact=compact, retain_hours=retain_hours)

    def close(self) -> None:
        """Nothing is held open: every look at a table opens its log anew."""

    @property
    def _root(self) -> str:
        root = self.endpoint.path
        return root.rstrip("/") if "://" in root else str(Path(root).expanduser().absolute())

    def _log(self, table: Table) -> DeltaLog | None:
        log = DeltaLog.open(self.uri(table), delta_options(self.endpoint))
        if log is not None:
            log.check_owner(table)
        return log

    def _warn(self, table: Table, message: str) -> None:
        if (table.name, message) not in self.warnings:
            self.warnings.append((table.name, message))

    def _refuse_zombie(self, table: Table, batch: Batch) -> None:
        """Where there was no table there was nothing to fence: a batch given up earlier could have come in just now."""
        receipt = self.fence(table, batch.epoch)
        if receipt is not None:
            raise BatchConflictError(f"the target holds {receipt.batch}", where=table.where_text, remedy=_CONFLICT)

    def _refuse_nesting(self, table: Table) -> None:
        """A table inside another one's folder would be cleaned away by that one's VACUUM."""
        parts = _parts(table)
        for depth in range(1, len(parts)):
            outer = "/".join([self._root, *parts[:depth]])
            try:
                inside = DeltaLog.open(outer, delta_options(self.endpoint)) is not None
            except TargetError:  # a folder of other tables
                inside = False
            if inside:
                raise TargetError(
                    f'target "{table.target}" would lie inside the Delta table {outer}',
                    where=table.where_text,
                    remedy="Give one of the two tables another `target:`.",
                )


_CONFLICT = """\
Another state store feeds this target, or an older run is still alive.
See what the target holds (it asks before it changes anything):   strandline watermark import --from-target -t TABLE"""


def _held(log: DeltaLog, table: Table, batch: Batch) -> Receipt | None:
    """The target's receipt for this batch; None where it is still to come. BatchConflictError: it never will be."""
    receipt = log.receipt(table)
    if receipt is not None and receipt.exact and batch.same(receipt.batch):
        return receipt
    last = log.txn_version(table)
    if last is not None and last >= txn_version(batch):
        raise BatchConflictError(
            f"the target has moved past {batch}: it counts up to {last >> 32}.{last & 0xFFFFFFFF}",
            where=table.where_text,
            why="Another run got there, or a change of the watermark was begun and did not end: give it again.",
            remedy=_CONFLICT,
        )
    return None


def _parts(table: Table) -> list[str]:
    parts = table.target.split(".")
    if any(part in ("", "..") or "/" in part for part in parts):
        raise ConfigError(f'target "{table.target}" is not a table name', where=table.where_text)
    return parts

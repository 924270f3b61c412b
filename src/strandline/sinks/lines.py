"""Standard output as a target: a line of JSON per change, for pipes and for a look at what a pipeline brings.

At least once: what was printed cannot be asked for. The position alone says how far it is, and a batch that was under
way when a process died is printed again.
"""

from __future__ import annotations

import json
import sys
from threading import Lock
from typing import TYPE_CHECKING

from strandline.core.batch import NO_MEMORY, Applied, Batch, How, Receipt
from strandline.core.compare import Comparison, Form
from strandline.core.errors import ConfigError, TargetError
from strandline.core.protocols import Changes, Spark, TargetSide
from strandline.core.table import Table
from strandline.core.window import Repair
from strandline.endpoint import Endpoint
from strandline.sinks.delta_errors import told

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class LineSink:
    def __init__(self, endpoint: Endpoint, spark: Spark) -> None:
        if endpoint.path or endpoint.options:
            raise ConfigError("stdout: takes no path and no options", remedy='Write   target: "stdout:"')
        self.warnings: list[tuple[str, str]] = []
        self._spark = spark
        self._lock = Lock()  # a line is one table's
        self._sessions: dict[str, SparkSession] = {}  # at work, by table

    def identity(self, table: Table) -> str:
        return f"stdout:{table.target}"

    def applied(self, _table: Table) -> Receipt | None:
        return NO_MEMORY

    def apply(self, table: Table, batch: Batch, changes: Changes, *, how: How, repair: Repair | None = None) -> Applied:
        if how is How.REPAIR or repair is not None:
            raise _incomparable(table)
        with told(table, changes):
            from strandline.sinks.kafka_rows import DELETE, headers, messages, spread
            from strandline.sinks.kafka_tally import Tally
            from strandline.spark.session import batch_session, end_batch

            session = self._sessions[table.name] = batch_session(self._spark())
            try:
                frame = spread(table, changes, changes.frame(session), parts=True)
                found, tally = messages(table, changes, frame, tombstones=False), Tally(table)
                for key, row, cursor, operation in found.toLocalIterator(prefetchPartitions=True):
                    tally.see(cursor, deleted=operation == DELETE)
                    told_ = json.dumps({**headers(table, batch), "cursor": cursor, "operation": operation})
                    # Both are JSON already, and exact as they are.
                    self._print(f'{told_[:-1]}, "key": {key or "null"}, "row": {row}}}')
                sys.stdout.flush()
            finally:
                del self._sessions[table.name]
                end_batch(session)
        return tally.applied

    def fence(self, _table: Table, _epoch: int) -> Receipt | None:
        """There is nothing to shut: a batch that is on its way may still be printed."""
        return NO_MEMORY

    def forms(self, table: Table) -> dict[str, Form | None]:
        raise _incomparable(table)

    def hashes(self) -> tuple[str, ...]:
        return ("md5",)

    def side(self, comparison: Comparison) -> TargetSide:
        raise _incomparable(comparison.table)

    def cancel(self, table: str | None = None) -> None:
        for name, session in list(self._sessions.items()):
            if table in (None, name):
                session.interruptAll()

    def maintain(self, table: Table) -> None:
        """Nothing is left behind."""

    def close(self) -> None:
        """Standard output is not ours to close."""

    def _print(self, line: str) -> None:
        with self._lock:
            sys.stdout.write(line + "\n")


def _incomparable(table: Table) -> TargetError:
    return TargetError(
        f"pipeline {table.pipeline} prints to standard output, which cannot be compared", where=table.where_text
    )

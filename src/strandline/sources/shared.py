"""One read of the source for several targets: Spark keeps a slice's rows while more than one of them is to apply it.

They apply it one after the other, each on a session of its own. The first action that needs a row reads it; what is
kept, in memory or else on disk, is dropped before the next slice is read. A target that fails on its way leaves to the
others what it has read, and what is missing they read.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from strandline.core.errors import StrandlineError
from strandline.core.protocols import Changes, Files, Readable
from strandline.core.table import Table
from strandline.core.window import Slice

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)


class SharedReads:
    def __init__(self, source: Readable) -> None:
        self._source = source
        self._shared: dict[tuple[str, Slice], SharedChanges | None] = {}  # None: nobody has asked for it yet

    @contextmanager
    def sharing(self, table: Table, slice: Slice) -> Iterator[None]:
        """While this lasts, all who ask for the slice get one read of it."""
        key = (table.name, slice)
        self._shared[key] = None
        try:
            yield
        finally:
            if shared := self._shared.pop(key):
                shared.close()

    def changes(self, table: Table, slice: Slice) -> Changes:
        key = (table.name, slice)
        if key not in self._shared:
            return self._source.changes(table, slice)
        shared = self._shared[key] = self._shared[key] or SharedChanges(table, self._source.changes(table, slice))
        return shared


class SharedChanges:
    """Changes whose frame is kept from its first use on; whoever needs no frame shares nothing."""

    def __init__(self, table: Table, changes: Changes) -> None:
        self._table = table
        self._changes = changes
        self._kept: _Kept | None = None
        self._apart = False  # this Spark's sessions share nothing
        self.operation, self.order = changes.operation, changes.order
        self.how, self.repair = changes.how, changes.repair

    def __getattr__(self, name: str) -> Any:
        """Whatever else a source offers to sinks that know of it."""
        return getattr(self._changes, name)

    @property
    def unique(self) -> bool:
        return self._changes.unique

    @property
    def query(self) -> str | None:
        return self._changes.query

    @property
    def files(self) -> Files | None:
        return self._changes.files

    def frame(self, spark: SparkSession) -> DataFrame:
        """Where a Spark does not let its sessions share, each target reads for itself."""
        if self._kept is None and not self._apart:
            try:
                self._kept = _Kept(spark, self._changes)
            except Exception as error:
                if self.translate(error):
                    raise
                self._apart = True
                log.warning("%s: its targets cannot share a read: %s", self._table.where_text, type(error).__name__)
        return self._kept.on(spark) if self._kept else self._changes.frame(spark)

    def translate(self, error: Exception) -> StrandlineError | None:
        return self._changes.translate(error)

    def close(self) -> None:
        if self._kept is not None:
            try:
                self._kept.close()
            except Exception as error:  # whoever needs Spark next says what is wrong with it
                log.warning(
                    "%s: what its targets shared is still there: %s", self._table.where_text, type(error).__name__
                )


class _Kept:
    """A frame that all sessions of one Spark can read: a view that they see by its name, persisted."""

    def __init__(self, spark: SparkSession, changes: Changes) -> None:
        from pyspark import StorageLevel

        from strandline.spark.session import batch_session, end_batch

        self._session = batch_session(spark)  # a target's own may end before the others' turn
        self._name = f"strandline_{secrets.token_hex(8)}"
        try:
            changes.frame(self._session).createGlobalTempView(self._name)
            self._frame = self._view(self._session).persist(StorageLevel.MEMORY_AND_DISK)
        except Exception:
            with suppress(Exception):  # it may be what was refused
                self._session.catalog.dropGlobalTempView(self._name)
            end_batch(self._session)
            raise

    def on(self, spark: SparkSession) -> DataFrame:
        """A frame of another plan than the one that is kept, with the same rows: a sink that persists what it is given
        would else drop with it what all share."""
        return self._view(spark).where("true")

    def close(self) -> None:
        from strandline.spark.session import end_batch

        try:
            self._frame.unpersist()
            self._session.catalog.dropGlobalTempView(self._name)
        finally:
            end_batch(self._session)

    def _view(self, spark: SparkSession) -> DataFrame:
        return spark.table(f"{spark.conf.get('spark.sql.globalTempDatabase', 'global_temp')}.{self._name}")

"""The stage as a sink: every batch is kept as its own files and a manifest, in the order of their numbers.

Owns when a batch is added, refused or already there. A batch exists when its manifest does, which is one conditional
put; files without a manifest are nobody's, and `clean` finds them. Rows are kept as the source sent them.
"""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import TYPE_CHECKING

from strandline.core.batch import Applied, Batch, How, Receipt
from strandline.core.compare import Comparison, Form
from strandline.core.errors import BatchConflictError, ConfigError, TargetError
from strandline.core.protocols import Changes, Spark, TargetSide
from strandline.core.table import Table
from strandline.core.window import Repair
from strandline.endpoint import Endpoint
from strandline.objects import S3_OPTIONS, open_objects
from strandline.sinks.delta_errors import told
from strandline.spark.storage import storage_settings
from strandline.stage.layout import Layout
from strandline.stage.ledger import Ledger, now
from strandline.stage.manifest import Manifest

if TYPE_CHECKING:
    from strandline.stage.write import Write

_FILE_MB = 128
_TELLING_BYTES = 1 << 20


class StageSink:
    """Tables under one folder or object prefix."""

    def __init__(self, endpoint: Endpoint, spark: Spark) -> None:
        self.endpoint = endpoint
        self.objects = open_objects(endpoint)
        self.warnings: list[tuple[str, str]] = []
        _check_options(endpoint)
        self._file_bytes = _file_bytes(endpoint)
        self._spark = spark
        self._writes: dict[str, Write] = {}  # under way, by table

    def identity(self, table: Table) -> str:
        return f"stage:{self.objects.address}/{_layout(table).folder}"

    def applied(self, table: Table) -> Receipt | None:
        return _receipt(self._ledger(table))

    def apply(self, table: Table, batch: Batch, changes: Changes, *, how: How, repair: Repair | None = None) -> Applied:
        ledger = self._ledger(table)
        last = ledger.last()
        if last is not None and batch.same(last.batch):
            return last.applied
        _refuse_passed(table, batch, last)
        _refuse_shut_out(table, batch, ledger.fence(batch.epoch, last.number if last else 0).epoch)
        folder = ledger.layout.attempt(batch.number, f"{batch.attempt}-{secrets.token_hex(4)}")
        with told(table, changes):
            spark = self._spark()  # first: PySpark is imported while its Java starts
            from strandline.stage.write import Write

            settings = storage_settings(self.endpoint)
            write = Write(spark, self.objects, folder, table, changes, settings)
            self._writes[table.name] = write
            try:
                files, applied = write.run(self._file_bytes, _row_bytes(last))
                made = Manifest(
                    table.pipeline,
                    table.name,
                    table.source,
                    batch,
                    last.number if last else 0,
                    how,
                    repair,
                    tuple(replace(file, path=file.path.removeprefix(f"{ledger.layout.folder}/")) for file in files),
                    write.schema.json(),
                    table.columns,
                    table.key,
                    table.key_enforced,
                    "" if table.transform else table.family,
                    table.comment,
                    changes.unique,
                    changes.order,
                    changes.operation,
                    table.cursor,
                    applied,
                    now(),
                )
                return self._add(table, ledger, made, write)
            finally:
                del self._writes[table.name]
                write.close()

    def fence(self, table: Table, epoch: int) -> Receipt | None:
        """Also where there is no batch yet: a first one that is on its way is void then."""
        ledger = self._ledger(table)
        last = ledger.last()
        ledger.fence(epoch, last.number if last else 0)
        return _receipt(ledger)

    def forms(self, table: Table) -> dict[str, Form | None]:
        raise TargetError(
            "a stage is not compared: verify compares the target with the database", where=table.where_text
        )

    def hashes(self) -> tuple[str, ...]:
        return ("md5",)

    def side(self, comparison: Comparison) -> TargetSide:
        where = comparison.table.where_text
        raise TargetError("a stage is not compared: verify compares the target with the database", where=where)

    def cancel(self, table: str | None = None) -> None:
        for name, write in list(self._writes.items()):
            if table in (None, name):
                write.cancel()

    def maintain(self, table: Table) -> None:
        """Nothing: what is loaded is cleaned away when a person or a schedule says so (`stage clean`)."""

    def close(self) -> None:
        """Nothing is held open."""

    def _add(self, table: Table, ledger: Ledger, made: Manifest, write: Write) -> Applied:
        """The one moment in which the batch comes to exist."""
        held = ledger.add(made)
        if held is not made:
            write.remove()
            if not made.batch.same(held.batch):
                raise BatchConflictError(
                    f"the stage holds another batch under number {made.number}",
                    where=table.where_text,
                    remedy=_CONFLICT,
                )
        fences = ledger.fences()
        if fences.owner(made.number) != made.batch.epoch:  # the manifest came too late, and is void
            _refuse_shut_out(table, made.batch, fences.epoch)
        return held.applied

    def _ledger(self, table: Table) -> Ledger:
        return Ledger(self.objects, _layout(table))


_CONFLICT = """\
Another state store feeds this stage, or an older run is still alive.
See what the stage holds:   strandline stage list -t TABLE"""


def _refuse_passed(table: Table, batch: Batch, last: Manifest | None) -> None:
    if last is not None and last.number >= batch.number:
        raise BatchConflictError(
            f"the stage has moved past {batch}: it holds {last.batch}", where=table.where_text, remedy=_CONFLICT
        )


def _refuse_shut_out(table: Table, batch: Batch, epoch: int) -> None:
    if epoch > batch.epoch:
        raise BatchConflictError(
            f"{batch} was shut out of the stage: epoch {epoch} has begun",
            where=table.where_text,
            why="Another run got there, or a change of the watermark was begun and did not end: give it again.",
            remedy=_CONFLICT,
        )


def _receipt(ledger: Ledger) -> Receipt | None:
    last = ledger.last()
    return Receipt(last.batch, last.applied, epoch=ledger.known.epoch) if last else None


def _layout(table: Table) -> Layout:
    return Layout(table.pipeline, table.name)


def _row_bytes(last: Manifest | None) -> float | None:
    """What a row takes, where enough was written to tell."""
    return last.size / last.rows if last is not None and last.size >= _TELLING_BYTES else None


def _check_options(endpoint: Endpoint) -> None:
    known = ("file_mb", *(S3_OPTIONS if endpoint.scheme == "s3" else ()))
    unknown = next((option for option in endpoint.options if option not in known), None)
    if unknown:
        raise ConfigError(f'{endpoint}: there is no option "{unknown}"', remedy=f"Known are {', '.join(known)}.")


def _file_bytes(endpoint: Endpoint) -> int:
    text = endpoint.options.get("file_mb", str(_FILE_MB))
    if not text.isdecimal() or not int(text):
        raise ConfigError(f'{endpoint}: file_mb is "{text}"', remedy=f"Write a whole number of megabytes: {_FILE_MB}")
    return int(text) << 20

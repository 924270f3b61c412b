"""Writing a batch's rows as Parquet files of one attempt, through Spark, and counting them in the files themselves.

Owns every Spark setting of the write. Spark's own committer keeps out what a failed or repeated task wrote; what it
left in the folder is what the job committed, and the footers say how many rows that is.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import TYPE_CHECKING

from pyspark.sql.types import StructField, StructType

from strandline.core.batch import Applied
from strandline.core.errors import TargetError, TransientError
from strandline.core.protocols import Changes
from strandline.core.table import Table
from strandline.objects import Objects
from strandline.sinks.delta_rows import FIXED, Counting
from strandline.spark.session import batch_session, end_batch, set_all
from strandline.stage.ledger import READERS
from strandline.stage.manifest import DataFile

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SMALL_BYTES = 8 << 20  # so little is written again as one file rather than left in several
_TOO_LARGE = 1.5  # times the aim: such a file is cut
_FEW = 4  # files that were ended too early and together make less than one: they are joined
_GROUPS, _GROUP_BYTES = 4, 128 << 20  # row groups of a file of the aimed size, at least: it can be cut between them
_FIXED_BYTES, _TEXT_BYTES = 4, 24  # a guess at what a column of a row takes on disk, where no batch before says
_FOOTER_BYTES = 64 << 10
_MAGIC = b"PAR1"
_OPTIONS = {
    "compression": "snappy",
    # A task's files come into the folder only when the job commits, and each once.
    "mapreduce.fileoutputcommitter.algorithm.version": "1",
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    # Rows after which a row group is measured. With Parquet's own 100 and 10,000, rows that turn wide on the way fill
    # the heap before anybody looks.
    "parquet.page.size.row.check.min": "10",
    "parquet.page.size.row.check.max": "1000",
}
_SETTINGS = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.writeLegacyFormat": "false",
    "spark.sql.sources.partitionOverwriteMode": "STATIC",
}
_AGAIN = {"spark.sql.files.minPartitionNum": "1", "spark.sql.files.openCostInBytes": "0"}


class Write:
    """One attempt at one batch. `folder`: where its files go, which nobody else has."""

    def __init__(
        self,
        spark: SparkSession,
        objects: Objects,
        folder: str,
        table: Table,
        changes: Changes,
        settings: Mapping[str, str],
    ) -> None:
        self.session = batch_session(spark, {**_SETTINGS, **settings})
        self.objects = objects
        self.folder = folder
        self.counting = Counting(table, changes.frame(self.session))
        self.schema = StructType([StructField(field.name, field.dataType) for field in self.counting.frame.schema])

    def run(self, file_bytes: int, row_bytes: float | None) -> tuple[tuple[DataFile, ...], Applied]:
        """Write, count, and bring to rest. `row_bytes`: what a row took in the batch before."""
        width = row_bytes or sum(_guess(field) for field in self.schema)
        most_rows = int(file_bytes / max(width, 1)) + 1
        self._save(self.counting.frame, self.folder, file_bytes, most_rows)
        files = self._shaped(self._files(self.folder), file_bytes, most_rows)
        self.objects.settle([file.path for file in files])
        rows = sum(file.rows for file in files)
        counted = self.counting.complete(Applied())
        if rows != counted.rows_read:
            raise TransientError(f"{counted.rows_read:,} rows were written, and {rows:,} are in the files")
        return files, Applied(rows, rows, last_value=counted.last_value, files=len(files))

    def remove(self) -> None:
        """Forget this attempt's files."""
        for folder in (self.folder, self._again):
            self.objects.delete([entry.key for entry in self.objects.list(folder)])

    def cancel(self) -> None:
        self.session.interruptAll()

    def close(self) -> None:
        end_batch(self.session)

    @property
    def _again(self) -> str:
        return f"{self.folder}-again"

    def _shaped(self, files: tuple[DataFile, ...], file_bytes: int, most_rows: int) -> tuple[DataFile, ...]:
        """Files near the aim. How wide rows are is certain only now, and what is written is read again where the source
        is not: little becomes one file, a file far too large is cut, and those that `most_rows` ended far too early are
        joined."""
        if sum(file.bytes for file in files) <= _SMALL_BYTES:
            return self._rewritten(files, _SMALL_BYTES) if len(files) > 1 else files
        early = [file for file in files if file.rows >= most_rows and file.bytes < file_bytes / _FEW]
        large = [file for file in files if file.bytes > _TOO_LARGE * file_bytes]
        missed = (*large, *(early if len(early) >= _FEW else ()))
        if not missed:
            return files
        return (*(file for file in files if file not in missed), *self._rewritten(missed, file_bytes))

    def _rewritten(self, files: tuple[DataFile, ...], file_bytes: int) -> tuple[DataFile, ...]:
        """The same rows beside them: a task, and so a file, for about so many bytes of row groups."""
        settings = {
            **_AGAIN,
            "spark.sql.files.maxPartitionBytes": str(file_bytes),
            # Faster, but it holds thousands of rows at once: not where they are wide.
            "spark.sql.parquet.enableVectorizedReader": str(all(f.bytes <= file_bytes for f in files)).lower(),
        }
        set_all(self.session, settings)
        urls = [self.objects.url(file.path) for file in files]
        self._save(self.session.read.schema(self.schema).parquet(*urls), self._again, file_bytes, 0)
        made = self._files(self._again)
        if sum(file.rows for file in made) != sum(file.rows for file in files):
            raise TargetError(f"{self.folder}: rows were lost while its files were written again")
        gone = {_name(file.path) for file in files}
        listed = [entry.key for entry in self.objects.list(self.folder)]
        self.objects.delete([key for key in listed if _name(key).removeprefix(".").removesuffix(".crc") in gone])
        return made

    def _save(self, frame: DataFrame, folder: str, file_bytes: int, most_rows: int) -> None:
        group = min(file_bytes // _GROUPS, _GROUP_BYTES)
        options = {**_OPTIONS, "parquet.block.size": str(group), "maxRecordsPerFile": str(most_rows)}
        frame.write.mode("error").options(**options).parquet(self.objects.url(folder))

    def _files(self, folder: str) -> tuple[DataFile, ...]:
        """What the job left, without files that hold no rows (Spark writes one for the schema's sake)."""
        listed = [entry for entry in self.objects.list(folder) if _holds_rows(entry.key)]
        with ThreadPoolExecutor(READERS) as pool:
            rows = pool.map(lambda entry: footer_rows(self.objects, entry.key), listed)
            found = [DataFile(entry.key, entry.size, count) for entry, count in zip(listed, rows, strict=True)]
        self.objects.delete([file.path for file in found if not file.rows])
        return tuple(file for file in found if file.rows)


def footer_rows(objects: Objects, key: str) -> int:
    """How many rows a Parquet file says it holds."""
    arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    end = objects.tail(key, _FOOTER_BYTES)
    needed = int.from_bytes(end[-8:-4], "little") + 8
    if end[-4:] != _MAGIC:
        raise TargetError(f"{objects.address}/{key} is no whole Parquet file")
    if needed > len(end):
        end = objects.tail(key, needed)
    return int(parquet.read_metadata(arrow.BufferReader(end)).num_rows)


def _guess(field: StructField) -> int:
    return _FIXED_BYTES if isinstance(field.dataType, FIXED) else _TEXT_BYTES


def _holds_rows(key: str) -> bool:
    return _name(key).startswith("part-") and key.endswith(".parquet")


def _name(key: str) -> str:
    return key.rpartition("/")[2]

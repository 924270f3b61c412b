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
from strandline.spark.session import batch_session, end_batch
from strandline.stage.ledger import READERS
from strandline.stage.manifest import DataFile

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SMALL_BYTES = 8 << 20  # so little is written again as one file rather than left in several
_FIXED_BYTES, _TEXT_BYTES = 4, 24  # a guess at what a column of a row takes on disk, where no batch before says
_FOOTER_BYTES = 64 << 10
_MAGIC = b"PAR1"
_OPTIONS = {
    "compression": "snappy",
    # A task's files come into the folder only when the job commits, and each once.
    "mapreduce.fileoutputcommitter.algorithm.version": "1",
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
}
_SETTINGS = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.writeLegacyFormat": "false",
    "spark.sql.sources.partitionOverwriteMode": "STATIC",
}


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
        self.session = batch_session(spark)
        for key, value in {**_SETTINGS, **settings}.items():
            self.session.conf.set(key, value)
        self.objects = objects
        self.folder = folder
        self.counting = Counting(table, changes.frame(self.session))
        self.schema = StructType([StructField(field.name, field.dataType) for field in self.counting.frame.schema])

    def run(self, file_bytes: int, row_bytes: float | None) -> tuple[tuple[DataFile, ...], Applied]:
        """Write, count, and bring to rest. `row_bytes`: what a row took in the batch before."""
        width = row_bytes or sum(_guess(field) for field in self.schema)
        self._save(self.counting.frame, self.folder, int(file_bytes / max(width, 1)) + 1)
        files = self._files(self.folder)
        if len(files) > 1 and sum(file.bytes for file in files) <= _SMALL_BYTES:
            files = self._as_one(files)
        self.objects.settle([file.path for file in files])
        rows = sum(file.rows for file in files)
        counted = self.counting.complete(Applied())
        if rows != counted.rows_read:
            raise TransientError(f"{counted.rows_read:,} rows were written, and {rows:,} are in the files")
        return files, Applied(rows, rows, last_value=counted.last_value, files=len(files))

    def remove(self) -> None:
        """Forget this attempt's files."""
        for folder in (self.folder, self._one):
            self.objects.delete([entry.key for entry in self.objects.list(folder)])

    def cancel(self) -> None:
        self.session.interruptAll()

    def close(self) -> None:
        end_batch(self.session)

    @property
    def _one(self) -> str:
        return f"{self.folder}-one"

    def _as_one(self, files: tuple[DataFile, ...]) -> tuple[DataFile, ...]:
        """Few rows in many files, written again as one file beside them."""
        urls = [self.objects.url(file.path) for file in files]
        self._save(self.session.read.schema(self.schema).parquet(*urls).coalesce(1), self._one, 0)
        made = self._files(self._one)
        if sum(file.rows for file in made) != sum(file.rows for file in files):
            raise TargetError(f"{self.folder}: rows were lost while its files were made one")
        self.objects.delete([entry.key for entry in self.objects.list(self.folder)])
        return made

    def _save(self, frame: DataFrame, folder: str, most_rows: int) -> None:
        writer = frame.write.mode("error").options(**_OPTIONS).option("maxRecordsPerFile", most_rows)
        writer.parquet(self.objects.url(folder))

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
    name = key.rpartition("/")[2]
    return name.startswith("part-") and name.endswith(".parquet")

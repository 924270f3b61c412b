"""Batches on their way into Snowflake: the files of a stage, or, without one, files that Spark writes on this machine.

Owns these files, from their making to their end. Snowflake fetches neither from a cluster's disks nor from Spark.
"""

from __future__ import annotations

import shutil
import tempfile
from typing import TYPE_CHECKING

from pyspark.sql.types import StructType

from strandline.core.batch import Batch
from strandline.core.errors import ConfigError
from strandline.core.protocols import Changes, Spark
from strandline.core.table import Table
from strandline.endpoint import Endpoint
from strandline.objects import open_objects
from strandline.sinks.snowflake import SnowflakeTarget
from strandline.sinks.sql_dialect import Place
from strandline.sinks.sql_files import FileDatabase, FileFill, FileSink
from strandline.sinks.sql_server import ServerWrite
from strandline.sinks.sql_write import Write
from strandline.stage.files import StagedFiles
from strandline.stage.manifest import DataFile
from strandline.stage.write import Write as FilesWrite

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FILE_BYTES = 128 << 20
"""Snowflake loads files of 100 to 250 MB best."""


class SnowflakeSink(FileSink):
    def __init__(self, endpoint: Endpoint, database: SnowflakeTarget, spark: Spark) -> None:
        super().__init__(endpoint, database)
        self._spark = spark

    def _write(self, table: Table, place: Place, batch: Batch, changes: Changes) -> Write | ServerWrite:
        if changes.files is not None:
            return super()._write(table, place, batch, changes)
        own = self._loading.another()
        return Write(own, LocalFill(own, self._spark(), table, changes), table, place, batch, changes)


class LocalFill(FileFill):
    """Spark writes Parquet into a folder of this machine, and Snowflake's connector sends it."""

    def __init__(self, database: FileDatabase, spark: SparkSession, table: Table, changes: Changes) -> None:
        if not (spark.conf.get("spark.master", "") or "").startswith("local"):
            raise ConfigError(
                "Spark runs on a cluster, whose files cannot be sent to Snowflake from here",
                where=table.where_text,
                remedy='Give the pipeline a stage that Snowflake can read: add   stage: "s3://…"',
                docs="docs/snowflake.md#stage",
            )
        self._spark = spark
        self._table = table
        self._folder = tempfile.mkdtemp(prefix="strandline-")
        self._objects = open_objects(Endpoint("file", self._folder))
        self._written: list[DataFile] = []
        self._writing: FilesWrite | None = None
        super().__init__(database, changes, StagedFiles(self._objects, ".", self._written, ""))

    def schema(self) -> StructType:
        self._writing = FilesWrite(self._spark, self._objects, "batch", self._table, self._changes, {})
        self._files = StagedFiles(self._objects, ".", self._written, self._writing.schema.json())
        return self._writing.schema

    def bring(self) -> None:
        assert self._writing is not None
        files, _ = self._writing.run(_FILE_BYTES, None)
        self._written.extend(files)
        super().bring()

    def cancel(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
        super().cancel()

    def close(self) -> None:
        if self._writing is not None:
            self._writing.close()
        shutil.rmtree(self._folder, ignore_errors=True)

"""The rows of some batches of one table, as a sink gets them: read from the files that the manifests name."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from strandline.core.batch import How
from strandline.core.errors import SourceError, StrandlineError, TransientError
from strandline.core.table import Mode, Table
from strandline.objects import Objects
from strandline.stage.files import StagedFiles
from strandline.stage.layout import Layout
from strandline.stage.ledger import DOCS, REBUILD
from strandline.stage.manifest import Manifest

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_NUMBER = "strandline_batch"
_IN_PATH = r"/data/(\d+)-[^/]+/[^/]+$"
_MISSING = re.compile(r"FileNotFoundException|FILE_NOT_EXIST|PATH_NOT_FOUND|NoSuchKey")
_DAMAGED = re.compile(r"is not a Parquet file|CANNOT_READ_FILE_FOOTER|ParquetDecodingException|FAILED_READ_FILE")
_AWAY = re.compile(r"ConnectException|NoHttpResponseException|ConnectionClosedException|Unable to execute HTTP request")
_OPTIONS = {"datetimeRebaseMode": "CORRECTED", "ignoreMissingFiles": "false", "ignoreCorruptFiles": "false"}


class StageChanges:
    """Batches that go together. `frame` gives what applying them one after the other would leave to apply."""

    query: str | None = None

    def __init__(
        self,
        objects: Objects,
        settings: Mapping[str, str],
        layout: Layout,
        table: Table,
        manifests: Sequence[Manifest],
    ) -> None:
        self.objects = objects
        self.settings = settings
        self.layout = layout
        self.table = table
        self.manifests = manifests
        self._check_files()
        last = manifests[-1] if manifests else None
        self.operation = last.operation if last else None
        self.order = last.order if last else ()
        self.how = last.how if last else None
        self.repair = last.repair if last else None

    @property
    def unique(self) -> bool:
        return all(manifest.unique for manifest in self.manifests)

    @property
    def files(self) -> StagedFiles | None:
        """None where the files of several batches may hold several versions of a row."""
        if self._repeats or not self.manifests:
            return None
        found = [file for manifest in self.manifests for file in manifest.files]
        return StagedFiles(self.objects, self.layout.folder, found, self.manifests[-1].schema)

    def frame(self, spark: SparkSession) -> DataFrame:
        from pyspark.sql.types import StructType

        from strandline.spark.session import set_all

        if not self.manifests:
            raise SourceError("there is no batch in this window", where=self.table.where_text)
        set_all(spark, self.settings)
        schema = StructType.fromJson(json.loads(self.manifests[-1].schema))
        if not self._urls:
            return spark.createDataFrame([], schema)
        frame = spark.read.schema(schema).options(**_OPTIONS).parquet(*self._urls)
        return self._last_versions(frame) if self._repeats else frame

    def translate(self, error: Exception) -> StrandlineError | None:
        if isinstance(error, StrandlineError):
            return error.at(self.table.where_text)
        text = str(error)
        named = next((file for file in self._urls if file.rpartition("/")[2] in text), None)
        if named and _MISSING.search(text):
            return self._broken(named, "is missing")
        if named and _DAMAGED.search(text):
            return self._broken(named, "cannot be read")
        if "fs.s3a" in text and _AWAY.search(text):
            remedy = "Check that the store is up and that `endpoint` leads to it; the next run tries again."
            return TransientError("Spark cannot reach the stage", where=self.table.where_text, remedy=remedy)
        return None

    @property
    def _urls(self) -> list[str]:
        return [
            self.objects.url(f"{self.layout.folder}/{file.path}")
            for manifest in self.manifests
            for file in manifest.files
        ]

    @property
    def _repeats(self) -> bool:
        """Whether a row may be there in several versions, of which one counts."""
        with_rows = sum(1 for manifest in self.manifests if manifest.rows)
        return with_rows > 1 and self.table.mode is Mode.MERGE and self.how is not How.FRESH

    def _last_versions(self, frame: DataFrame) -> DataFrame:
        """Per key the version that a MERGE of one batch after the other would leave: the highest cursor value, of equal
        ones that of the latest batch. Where the source went back, that of the latest batch. What is equal within one
        batch stays, for the sink to judge."""
        from pyspark.sql import Window
        from pyspark.sql import functions as sql

        from strandline.sinks.delta_rows import cursor_column

        path = frame.metadataColumn("_metadata").getField("file_path")
        number = sql.regexp_extract(path, _IN_PATH, 1).cast("long")
        compared = None if self.how is How.CURRENT else cursor_column(self.table, frame.columns)
        order = [] if compared is None else [_column(compared).desc_nulls_last()]
        order.append(_column(_NUMBER).desc())
        keys = [_column(name) for name in self.table.key]
        rank = "strandline_rank"
        ranked = frame.withColumn(_NUMBER, number)
        ranked = ranked.withColumn(rank, sql.rank().over(Window.partitionBy(*keys).orderBy(*order)))
        return ranked.where(_column(rank) == 1).drop(_NUMBER, rank)

    def _check_files(self) -> None:
        """Every file is there in its full length, or nothing is read."""
        for manifest in self.manifests:
            folders = {file.path.rpartition("/")[0] for file in manifest.files}
            found = {
                entry.key: entry.size
                for folder in folders
                for entry in self.objects.list(f"{self.layout.folder}/{folder}")
            }
            for file in manifest.files:
                size = found.get(f"{self.layout.folder}/{file.path}")
                if size != file.bytes:
                    what = "is missing" if size is None else f"has {size:,} bytes, not {file.bytes:,}"
                    raise self._broken(f"{self.objects.address}/{self.layout.folder}/{file.path}", what, manifest)

    def _broken(self, file: str, what: str, manifest: Manifest | None = None) -> SourceError:
        batch = f" of batch {manifest.number}" if manifest else ""
        return SourceError(
            f"the stage is damaged: {file}{batch} {what}", where=self.table.where_text, remedy=REBUILD, docs=DOCS
        )


def _column(name: str) -> Column:
    from pyspark.sql import functions as sql

    return sql.col(f"`{name.replace('`', '``')}`")

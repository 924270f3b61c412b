"""The rows of a slice of a Delta table, as a sink gets them: one version, a range of the change feed, or added files.

Owns what Spark is asked for and what its errors mean. Frames are lazy and use public API only, so that a session may be
classic or Spark Connect.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from strandline.core.batch import How
from strandline.core.errors import SourceError, StrandlineError, TransientError
from strandline.core.protocols import Files
from strandline.core.table import Mode, Table
from strandline.core.watermark import Kind
from strandline.core.window import Repair, Slice
from strandline.sources.delta_log import DOCS, Added, Commit, Metadata
from strandline.sources.delta_places import Place, feed_on
from strandline.sources.delta_schema import again
from strandline.sources.jdbc import OPERATION, transformed
from strandline.spark.columns import column, constant
from strandline.spark.text import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

_VERSION, _TYPE, _TIME = "_commit_version", "_change_type", "_commit_timestamp"
_ENFORCED = "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration"
_NULL_KEY, _TWINS, _NULL_CURSOR = "strandline: NULL in the key", "strandline: twins", "strandline: NULL cursor"
_FILES_GONE = re.compile(r"FileNotFoundException|FILE_NOT_EXIST|NoSuchKey|DELTA_FILE_NOT_FOUND")
_TABLE_GONE = re.compile(
    r"PATH_NOT_FOUND|DELTA_(TABLE_NOT_FOUND|MISSING_DELTA_TABLE|PATH_DOES_NOT_EXIST)|TABLE_OR_VIEW_NOT_FOUND"
    r"|is not a Delta table"
)
_LOG_GONE = re.compile(
    r"DELTA_(LOG_FILE_NOT_FOUND|VERSION_NOT_CONTIGUOUS|TRUNCATED_TRANSACTION_LOG|CANNOT_TIME_TRAVEL|VERSION_NOT_FOUND"
    r"|STATE_RECOVER_ERROR|UNSUPPORTED_TIME_TRAVEL)|VersionNotFoundException"
)
_FEED_OFF = re.compile(r"DELTA_MISSING_CHANGE_DATA")
_COLUMNS = re.compile(r"DELTA_CHANGE_DATA_FEED_INCOMPATIBLE|DELTA_SCHEMA_CHANGED")
_AWAY = re.compile(r"ConnectException|NoHttpResponseException|ConnectionClosedException|Unable to execute HTTP request")


class DeltaChanges:
    """`commits`: what is to be read, each with what the table was then; none: all of one version."""

    files: Files | None = None
    query: str | None = None
    repair: Repair | None = None

    def __init__(
        self,
        place: Place,
        table: Table,
        slice: Slice,
        commits: Sequence[tuple[Commit, Metadata]],
    ) -> None:
        self.place = place
        self.table = table
        self.slice = slice
        self.commits = commits
        self.how = How.REPLACE if table.mode is Mode.SNAPSHOT and slice.repair is None else None
        cursor = table.cursor
        self._cursor = cursor.column if cursor and cursor.kind is not Kind.VERSION else None
        self.order: tuple[str, ...] = (self._cursor,) if self._cursor else ()
        keyed = bool(commits) and table.mode is Mode.MERGE
        self.operation: str | None = OPERATION if keyed or table.deleted else None
        self._single = keyed and self._cursor is None

    @property
    def unique(self) -> bool:
        """Of a whole version it is known once the frame was asked for."""
        return self._single and self.table.transform is None

    @property
    def last(self) -> int:
        return int(self.slice.window.high.text) - 1

    def frame(self, spark: SparkSession) -> DataFrame:
        if not self.commits:
            frame = self._chosen(self._version(spark))
        elif self.table.mode is Mode.APPEND:
            frame = self._chosen(self._changed(spark).where(f"{_TYPE} IN ('insert', 'update_postimage')"))
        else:
            frame = self._last_changes(self._changed(spark))
        return transformed(self.table, self.operation, frame) if self.table.transform else frame

    def living(self, spark: SparkSession, since: DeltaChanges | None) -> DataFrame:
        """The rows of a whole version that a copy of it has; of a copy that began later, those that changed since."""
        frame = self._chosen(self._whole(spark))
        if self.operation is not None:
            frame = frame if self.table.mode is Mode.APPEND else frame.where(f"{OPERATION} = 'upsert'")
            frame = frame.drop(OPERATION)
        if since is None:
            return frame
        return frame.join(since.frame(spark).select(*self.table.key), list(self.table.key), "left_semi")

    def translate(self, error: Exception) -> StrandlineError | None:
        if isinstance(error, StrandlineError):
            return error.at(self.table.where_text)
        text = str(error)
        found: StrandlineError | None = self._own(text) or self._gone(text)
        if found is None and "fs.s3a" in text and _AWAY.search(text):
            remedy = "Check that the store is up and that `endpoint` leads to it; the next run tries again."
            found = TransientError("Spark cannot reach the source", remedy=remedy)
        return None if found is None else found.at(self.table.where_text)

    # --- what is read

    def _version(self, spark: SparkSession) -> DataFrame:
        """All rows of the last version; of a repair, those of its part."""
        frame = self._whole(spark)
        if self.slice.repair is not None:
            from strandline.sinks.delta_canonical import in_part

            return frame.where(in_part(self.table, self.slice.repair.part))
        if self.table.mode is Mode.MERGE:
            self._single = self._once(frame)
        return frame

    def _whole(self, spark: SparkSession) -> DataFrame:
        return self._load(spark, {"versionAsOf": str(self.last)})

    def _once(self, frame: DataFrame) -> bool:
        """Whether every key is there once and without a NULL: two columns are read, where a sink that has to find out
        would keep and sort whole rows."""
        from pyspark.sql import functions as sql

        keys = [column(name) for name in self.table.key]
        counted = frame.groupBy(*keys).agg(sql.count(constant(1)).alias("strandline_count"))
        repeated = counted.where(" OR ".join(["strandline_count > 1", *self._null_keys]))
        return not repeated.limit(1).collect()

    def _changed(self, spark: SparkSession) -> DataFrame:
        """Every change of the slice, with its version and Delta's word for it. Slices never mix the feed and files."""
        if self.commits[0][1].feed:
            low = int(self.slice.low.text) if self.slice.low else 0
            options = {"readChangeFeed": "true", "startingVersion": str(low), "endingVersion": str(self.last)}
            return self._load(spark, options)
        return self._added(spark)

    def _load(self, spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
        """Old versions too, as long as their files are there: a file that VACUUM took is missed when it is read."""
        enforced = spark.conf.get(_ENFORCED, None)
        spark.conf.set(_ENFORCED, "false")
        try:
            reader = spark.read.format("delta").options(**options)
            return reader.table(self.place.name) if self.place.name else reader.load(self.place.path)
        finally:
            if enforced is None:
                spark.conf.unset(_ENFORCED)
            else:
                spark.conf.set(_ENFORCED, enforced)

    def _added(self, spark: SparkSession) -> DataFrame:
        from pyspark.sql.types import StructType

        metadata = self.commits[-1][1]
        if metadata.mapping == "id":
            raise SourceError(
                "its columns are known by number in its files, which only the change data feed can read",
                where=self.table.where_text,
                remedy=f"Turn it on:   {feed_on(self.place)}\nOr use mode: snapshot",
                docs=f"{DOCS}#feed",
            )
        schema = StructType.fromJson(json.loads(metadata.schema))
        frames = [self._read(spark, schema, metadata.partitions, group) for group in _by_name(self.commits)]
        if not frames:
            empty = spark.createDataFrame([], schema)
            frames = [empty.withColumn(_VERSION, constant(0)).withColumn(_TYPE, constant("insert"))]
        return reduce(lambda one, other: one.unionByName(other), frames)

    def _read(
        self, spark: SparkSession, schema: StructType, by: Sequence[str], files: Mapping[str, tuple[int, Added]]
    ) -> DataFrame:
        """Files of which no two have one name: by its name each row finds its version and its partition's values."""
        from pyspark.sql import functions as sql
        from pyspark.sql.types import StructField, StructType

        partitions = {name: _physical(schema[name]) for name in by}
        stored = [field for field in schema.fields if field.name not in partitions]
        physical = StructType([StructField(_physical(field), _in_files(field.dataType)) for field in stored])
        urls = [self._url(file.path) for _, file in files.values()]
        read = (
            spark.read.schema(physical).options(ignoreMissingFiles="false", ignoreCorruptFiles="false").parquet(*urls)
        )
        read = read.select("*", read.metadataColumn("_metadata").getField("file_name").alias("strandline_file"))
        rows = [(name, at, *(file.partition.get(p) for p in partitions.values())) for name, (at, file) in files.items()]
        values = ", ".join(f"p{number} string" for number, _ in enumerate(partitions))
        known = spark.createDataFrame(
            rows, f"strandline_file string, {_VERSION} long" + (f", {values}" if values else "")
        )
        joined = read.join(known.hint("broadcast"), "strandline_file")
        select = []
        for field in schema.fields:
            if field.name in partitions:
                value = sql.col(f"p{list(partitions).index(field.name)}")
                value = sql.when(value == "", None).otherwise(value)
            else:
                value = column(_physical(field))
            select.append(value.cast(field.dataType).alias(field.name))
        return joined.select(*select, _VERSION, constant("insert").alias(_TYPE))

    def _url(self, path: str) -> str:
        plain = unquote(path)
        return plain if "://" in plain or plain.startswith(("/", "file:")) else f"{self.place.path}/{plain}"

    # --- what is made of it

    def _chosen(self, frame: DataFrame) -> DataFrame:
        """The rows and columns that are asked for, with what is to be done where a column tells."""
        kept = frame.where(self.table.where) if self.table.where else frame
        select = self._columns(kept)
        if self.operation:
            select.append(_expression(f"CASE WHEN {self._deleted} THEN 'delete' ELSE 'upsert' END").alias(OPERATION))
        return kept.select(*select)

    def _columns(self, frame: DataFrame) -> list[Column]:
        from pyspark.sql import functions as sql

        there = {name.lower() for name in frame.columns}
        select = []
        for wanted in self.table.columns:
            value = column(wanted.name) if wanted.name.lower() in there else constant(None).cast(wanted.type)
            value = value.cast(wanted.cast) if wanted.cast else value
            if wanted.name == self._cursor and self.table.nulls != "include":
                value = sql.coalesce(value, sql.raise_error(constant(_NULL_CURSOR)).cast(wanted.type))
            select.append(value.alias(wanted.name, metadata={}))
        return select

    @property
    def _deleted(self) -> str:
        """SQL for whether a row is marked as deleted."""
        name = self.table.deleted
        if name is None:
            return "false"
        kind = next(column.type for column in self.table.columns if column.name == name)
        return quoted(name) if kind == "boolean" else f"{quoted(name)} IS NOT NULL"

    @property
    def _null_keys(self) -> list[str]:
        return [f"{quoted(name)} IS NULL" for name in self.table.key]

    def _last_changes(self, changed: DataFrame) -> DataFrame:
        """Per key what all its changes come to: the last version counts, and in it a row that is there beats one that
        went. The image before an update counts as a delete, so that a row whose key was updated leaves its old key; a
        row that no longer meets `where` is one that went."""
        from pyspark.sql import Window
        from pyspark.sql import functions as sql

        ordered = self._cursor is not None  # a row's own stamp counts, and what it was before an update says nothing
        if ordered:
            changed = changed.where(f"{_TYPE} <> 'update_preimage'")
        gone = f"{_TYPE} IN ('delete', 'update_preimage') OR coalesce({self._deleted}, false)"
        gone += f" OR NOT coalesce(({self.table.where}\n), false)" if self.table.where else ""
        keys = [column(name) for name in self.table.key]
        marked = changed.select("*", sql.expr(gone).alias("strandline_gone"))
        order = [column(self._cursor).desc_nulls_last()] if self._cursor else []
        order += [sql.col(_VERSION).desc(), sql.col("strandline_gone").asc()]
        place = (sql.rank() if ordered else sql.row_number()).over(Window.partitionBy(*keys).orderBy(*order))
        beside = Window.partitionBy(*keys, _VERSION, "strandline_gone")
        own = [field for field in changed.schema.fields if field.name not in (_TYPE, _VERSION, _TIME)]
        number = sql.xxhash64(*[column(field.name) for field in own if _hashable(field.dataType)])
        ranked = marked.select("*", place.alias("strandline_place"), number.alias("strandline_hash"))
        low, high = (edge("strandline_hash").over(beside) for edge in (sql.min, sql.max))
        last = ranked.select("*", (low != high).alias("strandline_twins")).where("strandline_place = 1")
        verdict = (
            sql.when(sql.expr(" OR ".join(self._null_keys)), sql.raise_error(constant(_NULL_KEY)).cast("string"))
            .when(sql.expr("strandline_gone"), "delete")
            .when(constant(not ordered) & sql.col("strandline_twins"), sql.raise_error(constant(_TWINS)).cast("string"))
            .otherwise("upsert")
        )
        return last.select(*self._columns(last), verdict.alias(OPERATION))

    # --- what went wrong

    def _own(self, text: str) -> SourceError | None:
        """What the frame itself refuses."""
        key = ", ".join(self.table.key)
        if _NULL_KEY in text:
            return SourceError(
                f"rows have a NULL in the key ({key})",
                remedy="Choose a `key:` whose columns are never NULL, or leave those rows out with `where:`.",
            )
        if _TWINS in text:
            return SourceError(
                f"one version holds several different rows of one key ({key}): which one is the last cannot be told",
                remedy="Choose a `key:` that is unique, or name the column that tells:   cursor: COLUMN",
                docs=f"{DOCS}#keys",
            )
        if _NULL_CURSOR in text:
            return SourceError(
                f'rows have no value in the cursor column "{self._cursor}"',
                remedy="Fill the column, or let such rows count as current:   nulls: include",
            )
        return None

    def _gone(self, text: str) -> SourceError | None:
        """What the table no longer has."""
        anew = again(self.table)
        if _FEED_OFF.search(text):
            on = f"Turn it on, for versions to come:   {feed_on(self.place)}"
            return SourceError("the change data feed was off for some of these versions", remedy=f"{on}\n{anew}")
        if _COLUMNS.search(text):
            return SourceError("its columns changed within these versions", remedy=anew, docs=f"{DOCS}#columns")
        if _LOG_GONE.search(text):
            return SourceError(f"{self._named} are no longer in the log", remedy=anew, docs=f"{DOCS}#expired")
        if _TABLE_GONE.search(text) and not self._there():
            return SourceError(f"{self.place.uri} is gone", remedy="Bring it back, or leave it out of the pipeline.")
        if _FILES_GONE.search(text) or _TABLE_GONE.search(text):
            return SourceError(
                f"files of {self._named} are gone: VACUUM removes what is older than the table keeps",
                why="delta.deletedFileRetentionDuration says for how long, 7 days unless the table says otherwise.",
                remedy=f"{anew}\nRun more often than files are kept, or have them kept for longer.",
                docs=f"{DOCS}#expired",
            )
        return None

    @property
    def _named(self) -> str:
        low = self.slice.low
        return f"versions {low} to {self.last}" if low and int(low.text) < self.last else f"version {self.last}"

    def _there(self) -> bool:
        return self.place.objects.find(self.place.key(f"_delta_log/{self.last:020}.json")) is not None


def _by_name(commits: Sequence[tuple[Commit, Metadata]]) -> Iterator[dict[str, tuple[int, Added]]]:
    """The files that were added, by name, in as many groups as the commonest name has files: mostly one."""
    groups: list[dict[str, tuple[int, Added]]] = []
    seen: Counter[str] = Counter()
    for commit, _ in commits:
        for file in commit.added:
            name = unquote(file.path).rpartition("/")[2]
            if seen[name] == len(groups):
                groups.append({})
            groups[seen[name]][name] = (commit.version, file)
            seen[name] += 1
    yield from groups


def _physical(field: Any) -> str:
    return str((field.metadata or {}).get("delta.columnMapping.physicalName", field.name))


def _in_files(kind: DataType) -> DataType:
    """A type as files spell it: fields within structs have names of their own there."""
    from pyspark.sql.types import ArrayType, MapType, StructField, StructType

    if isinstance(kind, StructType):
        return StructType([StructField(_physical(field), _in_files(field.dataType)) for field in kind.fields])
    if isinstance(kind, ArrayType):
        return ArrayType(_in_files(kind.elementType))
    if isinstance(kind, MapType):
        return MapType(_in_files(kind.keyType), _in_files(kind.valueType))
    return kind


def _hashable(kind: DataType) -> bool:
    text = kind.simpleString()
    return "map<" not in text and "variant" not in text


def _expression(text: str) -> Column:
    from pyspark.sql import functions as sql

    return sql.expr(text)

"""Warehouses as targets: they load the files of a staged batch by themselves, and no Spark starts.

Owns a batch's way from the stage's files into a staging table. One COPY is one transaction, so every row that is staged
counts, and once. What a warehouse is told, and how it says what is wrong with a file, is its own file's business.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pyspark.sql.types import StructType

from strandline.core.batch import Applied, Batch
from strandline.core.errors import ConfigError, StrandlineError, TargetError, TransientError
from strandline.core.protocols import Changes, Files
from strandline.core.table import Column, Table
from strandline.endpoint import Endpoint
from strandline.sinks.sql import SqlSink
from strandline.sinks.sql_dialect import Database, Place, Session, TargetDialect
from strandline.sinks.sql_server import ServerWrite
from strandline.sinks.sql_stage import Pair, Staging
from strandline.sinks.sql_write import Write

_REFUSED = """\
Nothing of the batch was written: the next run loads the same files again.
If they can never be loaded, mend the source, and read the table anew:   strandline sync --full -t {}"""


@dataclass(frozen=True)
class FileColumn:
    """A column of the files, and of the staging table they are loaded into."""

    name: str  # in the files
    spark: str  # its type there, as `simpleString` spells it
    staged: str  # c0, c1, …, op
    type: str  # in the staging table


class FileDialect(TargetDialect, Protocol):
    def file_type(self, spark: str, held: str) -> str:
        """Type of a staging column that files of this Spark type are loaded into, for a target's column of a type."""

    def from_file(self, value: str, spark: str) -> str:
        """SQL that makes of a staged value what the target's column takes; often the value itself."""


class FileDatabase(Database, Protocol):
    def another(self) -> FileDatabase: ...

    @property
    def dialect(self) -> FileDialect: ...

    def copy(self, session: Session, files: Files, stage: Place, columns: Sequence[FileColumn]) -> None:
        """Load every row of the files into a staging table, whose columns are in the files' order.

        TargetError shows what the warehouse says of the rows it did not take.
        """


class FileSink(SqlSink):
    """Tables of one warehouse. Names are what the warehouse folds them to."""

    def __init__(self, endpoint: Endpoint, database: FileDatabase) -> None:
        super().__init__(endpoint, database)
        self._loading = database

    def _write(self, table: Table, place: Place, batch: Batch, changes: Changes) -> Write | ServerWrite:
        files = changes.files
        if files is None:
            raise ConfigError(
                f"{self.endpoint.scheme} loads the files of a stage",
                where=table.where_text,
                remedy='Give the pipeline one:   stage: "s3://bucket/prefix"',
            )
        own = self._loading.another()  # what takes long must not keep other tables waiting
        return Write(own, FileFill(own, changes, files), table, place, batch, changes)

    def _place(self, table: Table) -> Place:
        fold, place = self._loading.dialect.fold, super()._place(table)
        return Place(fold(place.schema), fold(place.table))


class FileFill:
    """The warehouse loads the files; their columns are known from the stage."""

    def __init__(self, database: FileDatabase, changes: Changes, files: Files) -> None:
        self._database = database
        self._changes = changes
        self._files = files
        self._session: Session | None = None

    def schema(self) -> StructType:
        return _schema(self._files)

    def stage(self, place: Place, table: Table, batch: Batch) -> FileStaging:
        self._staging = FileStaging(self._database, place, table, batch, self._changes, self._files)
        self._refused = _REFUSED.format(table.name)
        return self._staging

    def bring(self) -> None:
        if not self._files.sizes:
            return
        with self._database.transaction() as session:
            self._session = session
            try:
                self._database.copy(session, self._files, self._staging.place, self._staging.file_columns)
            except TargetError as error:
                error.remedy = f"{error.remedy}\n{self._refused}".lstrip()
                raise
            finally:
                self._session = None

    def translate(self, _text: str, /) -> StrandlineError | None:
        """Nobody stands between the warehouse and its errors."""
        return None

    def cancel(self) -> None:
        if (session := self._session) is not None:
            session.cancel()

    def close(self) -> None:
        """Nothing is held open."""


class FileStaging(Staging):
    """A staging table that holds what the files hold, in their order."""

    def __init__(
        self, database: FileDatabase, place: Place, table: Table, batch: Batch, changes: Changes, files: Files
    ) -> None:
        super().__init__(database, place, table, batch, changes)
        self._from = database.dialect
        self._files = files

    def create(self, columns: Sequence[Column]) -> None:
        self._pairs = tuple(Pair(column, f"c{at}") for at, column in enumerate(columns))
        left, made = iter(self._pairs), []
        for field in _schema(self._files).fields:
            spark = field.dataType.simpleString()
            if field.name == self._changes.operation:
                made.append(FileColumn(field.name, spark, "op", self._from.file_type(spark, "varchar(20)")))
            else:
                pair = next(left)
                made.append(FileColumn(field.name, spark, pair.staged, self._from.file_type(spark, pair.column.type)))
        self.file_columns = tuple(made)
        staged = [(column.staged, column.type) for column in made]
        for statement in self._from.create_stage(self.place, staged, self._owner):
            self._database.run(statement)

    def _staged(self) -> tuple[str, Applied]:
        value = self._from.from_file
        made = [f"{value(column.staged, column.spark)} AS {column.staged}" for column in self.file_columns]
        plain = f"(SELECT {', '.join(made)} FROM {self._name})"
        read = self._read(self._database.rows(f"SELECT {', '.join(self._counts())} FROM {plain} s"))
        if read.rows_read != self._files.rows:
            raise TransientError(f"the files hold {self._files.rows:,} rows, and {read.rows_read:,} were loaded")
        return plain, read


def _schema(files: Files) -> StructType:
    return StructType.fromJson(json.loads(files.schema))

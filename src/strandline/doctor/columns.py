"""Checks of columns: would the next batch fit the target that is there? The words are those a run would meet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol, runtime_checkable

from strandline.core.errors import StrandlineError
from strandline.core.table import Table
from strandline.doctor.finding import Finding, fail, note
from strandline.pipeline import Pipeline
from strandline.sources.database import DatabaseSource

_AREA = "target"
_DOCS = "docs/doctor.md#columns"


@runtime_checkable
class Fitting(Protocol):
    """A sink that knows without Spark what a batch would do to its columns."""

    def fit(self, table: Table, types: Mapping[str, str]) -> list[str]:
        """What would change, in words; SchemaError where the batch would be refused."""


def check_columns(origin: Pipeline, end: Pipeline, tables: Sequence[Table]) -> Iterator[Finding]:
    """`tables` as the source of `origin` has them now. What a `transform` makes of them only a run can tell."""
    source, sink, name = origin.source, end.sink, end.spec.name
    if not isinstance(source, DatabaseSource) or not isinstance(sink, Fitting):
        return
    for table in tables:
        if table.transform is not None:
            continue
        try:
            words = sink.fit(replace(table, stage=end.stage), source.spark_types(table))
        except StrandlineError as error:
            error.docs = error.docs or _DOCS
            yield fail(_AREA, error.at(table.where_text), name)
            continue
        for said in words:
            yield note(_AREA, f"{table.name}: {said}", docs=_DOCS, pipeline=name)

"""OpenLineage events as JSON: one job for a pipeline, and one below it for each of its tables and stages, so that a
target is said to come from the one table it does come from. Pure.

https://openlineage.io/docs/spec/object-model is what they look like.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from strandline import __version__
from strandline.core.batch import Applied
from strandline.core.table import SYNC, Column
from strandline.lineage.naming import Name

Json = dict[str, Any]
PRODUCER = f"urn:strandline:{__version__}"
_SPEC = "https://openlineage.io/spec"
_EVENT = f"{_SPEC}/2-0-2/OpenLineage.json#/$defs/"
_FACETS = {
    "processing_engine": "1-1-1/ProcessingEngineRunFacet",
    "nominalTime": "1-0-1/NominalTimeRunFacet",
    "parent": "1-2-0/ParentRunFacet",
    "errorMessage": "1-0-1/ErrorMessageRunFacet",
    "jobType": "2-0-4/JobTypeJobFacet",
    "dataSource": "1-0-1/DatasourceDatasetFacet",
    "schema": "1-2-0/SchemaDatasetFacet",
    "columnLineage": "1-2-0/ColumnLineageDatasetFacet",
    "inputStatistics": "1-0-0/InputStatisticsInputDatasetFacet",
    "outputStatistics": "1-0-2/OutputStatisticsOutputDatasetFacet",
}


def facet(name: str, /, **says: Any) -> Json:
    """`{name: facet}`. Names that OpenLineage does not know are our own."""
    if name not in _FACETS:
        return {name: {"_producer": PRODUCER, "_schemaURL": f"{_EVENT}RunFacet", **says}}
    place = _FACETS[name]
    kind = place.partition("/")[2]
    return {name: {"_producer": PRODUCER, "_schemaURL": f"{_SPEC}/facets/{place}.json#/$defs/{kind}", **says}}


@dataclass(frozen=True)
class Job:
    """A pipeline (`table` is empty), or one table and stage of it."""

    namespace: str
    pipeline: str
    table: str = ""
    stage: str = ""

    @property
    def name(self) -> str:
        return ".".join(filter(None, (self.pipeline, self.table, "" if self.stage == SYNC else self.stage)))

    def run(self, run_id: str) -> str:
        """The same, whoever asks: what a dead process began, another can end."""
        return str(uuid.uuid5(uuid.NAMESPACE_URL, f"strandline:{run_id}/{self.table}/{self.stage}"))

    def said(self) -> Json:
        kind = "TABLE" if self.table else "PIPELINE"
        facets = facet("jobType", processingType="BATCH", integration="STRANDLINE", jobType=kind)
        return {"namespace": self.namespace, "name": self.name, "facets": facets}


@dataclass(frozen=True)
class Copy:
    """What a table and stage reads and writes. `source`: None for a query, which is no dataset. `columns`: none where a
    transform decides what is written."""

    source: Name | None
    target: Name
    read: tuple[Column, ...] = ()
    written: tuple[Column, ...] = ()

    def inputs(self, applied: Applied | None) -> list[Json]:
        if self.source is None:
            return []
        fields = [{"name": column.name, "type": column.type} for column in self.read]
        found = _dataset(self.source, facet("schema", fields=fields) if fields else {})
        if applied is not None:
            found["inputFacets"] = facet("inputStatistics", rowCount=applied.rows_read)
        return [found]

    def outputs(self, applied: Applied | None) -> list[Json]:
        names = [column.name for column in self.written]
        facets = facet("schema", fields=[{"name": name} for name in names]) if names else {}
        if self.source is not None and names:
            namespace, table = self.source
            same = [{"type": "DIRECT", "subtype": "IDENTITY"}]
            comes = {
                name: {"inputFields": [{"namespace": namespace, "name": table, "field": name, "transformations": same}]}
                for name in names
            }
            facets |= facet("columnLineage", fields=comes)
        found = _dataset(self.target, facets)
        if applied is not None:
            written = applied.rows_inserted + applied.rows_updated
            found["outputFacets"] = facet("outputStatistics", rowCount=written)
        return [found]


def _dataset(name: Name, facets: Json) -> Json:
    namespace, table = name
    uri = namespace if "://" in namespace else f"file://{table}"
    return {"namespace": namespace, "name": table, "facets": {**facet("dataSource", name=namespace, uri=uri), **facets}}


def event(
    kind: str,
    job: Job,
    run_id: str,
    at: datetime,
    facets: Mapping[str, Any],
    copy: Copy | None,
    applied: Applied | None,
) -> Json:
    engine = facet("processing_engine", name="strandline", version=__version__, openlineageAdapterVersion=__version__)
    return {
        "eventType": kind,
        "eventTime": at.isoformat(timespec="milliseconds"),
        "producer": PRODUCER,
        "schemaURL": f"{_EVENT}RunEvent",
        "run": {"runId": job.run(run_id), "facets": {**engine, **facets}},
        "job": job.said(),
        "inputs": copy.inputs(applied) if copy else [],
        "outputs": copy.outputs(applied) if copy else [],
    }

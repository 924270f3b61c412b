"""One run, as OpenLineage hears of it: what its tables read and write is noted before they begin, and what becomes of
them is heard from the event stream. A run that moves nothing, and fails nowhere, is not told."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from strandline.config import PipelineSpec
from strandline.core.batch import Applied
from strandline.core.events import Event, Planned, TableFinished
from strandline.core.position import Status
from strandline.core.protocols import Record
from strandline.core.table import Table
from strandline.lineage.facets import Copy, Job, Json, event, facet
from strandline.lineage.naming import Name, staged_name, table_name
from strandline.pipeline import reads_source

PARENT = "OPENLINEAGE_PARENT_ID"
"""`namespace/job/run`: the run of another scheduler that ours is part of."""


@dataclass
class Lineage:
    """`stopped`: whether the run was asked to end before it was done. `nominal`: when its schedule wanted it."""

    put: Callable[[Mapping[str, Any]], None]
    redact: Callable[[str], str]
    namespace: str
    run_id: str
    spec: PipelineSpec
    trigger: str
    stopped: Callable[[], bool]
    nominal: datetime | None = None
    copies: dict[tuple[str, str], Copy] = field(default_factory=dict)

    @property
    def _job(self) -> Job:
        return Job(self.namespace, self.spec.name)

    def note(self, tables: Iterable[Table]) -> None:
        for table in tables:
            self.copies[table.name, table.stage] = _copy(self.spec, table)

    def started(self) -> None:
        self._put("START", self._job, self._facets())

    def ended(self, status: Status, error: str = "") -> None:
        self._put(self._end(status), self._job, {**self._facets(), **_error(error)})

    def hear(self, heard: Event) -> None:
        match heard:
            case Planned():
                window = heard.plan.window
                low = window.low.text if window and window.low else None
                span = {"low": low, "high": window.high.text if window else None, "reason": heard.plan.reason.value}
                self._put_table("START", heard.table, heard.stage, facet("strandline_plan", **span))
            case TableFinished():
                kind, error = self._end(heard.status), _error(heard.error)
                self._put_table(kind, heard.table, heard.stage, error, heard.applied)

    def abandoned(self, records: Iterable[Record]) -> None:
        """Runs, and tables in them, that died without a word: whoever found them says so."""
        for record in records:
            run_id, *where = record.key
            self._put("ABORT", Job(self.namespace, self.spec.name, *where), _error(str(record.fields["error"])), run_id)

    def _end(self, status: Status) -> str:
        return "COMPLETE" if status is not Status.FAILED else "ABORT" if self.stopped() else "FAIL"

    def _put_table(self, kind: str, table: str, stage: str, facets: Json, applied: Applied | None = None) -> None:
        run, job = {"runId": self._job.run(self.run_id)}, {"namespace": self.namespace, "name": self._job.name}
        above = facet("parent", run=run, job=job)
        where = Job(self.namespace, self.spec.name, table, stage)
        self._put(kind, where, {**above, **facets}, copy=self.copies.get((table, stage)), applied=applied)

    def _put(
        self,
        kind: str,
        job: Job,
        facets: Json,
        run_id: str = "",
        copy: Copy | None = None,
        applied: Applied | None = None,
    ) -> None:
        said = event(kind, job, run_id or self.run_id, datetime.now(UTC), facets, copy, applied)
        self.put(
            {
                name: self._clean(value) if name in ("run", "inputs", "outputs") else value
                for name, value in said.items()
            }
        )

    def _clean(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.redact(value)
        if isinstance(value, list):
            return [self._clean(part) for part in value]
        if isinstance(value, dict):
            return {name: part if name.startswith("_") else self._clean(part) for name, part in value.items()}
        return value

    def _facets(self) -> Json:
        facets = facet("strandline_run", run_id=self.run_id, trigger=self.trigger)
        if self.nominal:
            facets |= facet("nominalTime", nominalStartTime=self.nominal.astimezone(UTC).isoformat())
        return {**facets, **_parent(os.environ.get(PARENT, ""))}


def _parent(text: str) -> Json:
    """None where it cannot be read: it is not ours to judge."""
    namespace, _, rest = text.partition("/")
    name, _, run = rest.rpartition("/")
    try:
        found = str(UUID(run))
    except ValueError:
        return {}
    return facet("parent", run={"runId": found}, job={"namespace": namespace, "name": name})


def _error(message: str) -> Json:
    return facet("errorMessage", message=message, programmingLanguage="PYTHON") if message else {}


def _copy(spec: PipelineSpec, table: Table) -> Copy:
    written = () if table.transform else table.columns
    source = None if table.query else table_name(spec.source, table.source)
    if spec.stage is not None:
        staged = staged_name(spec.stage, spec.name, table.name)
        if not reads_source(spec, table.stage):
            return Copy(staged, _target(spec, table), (), written)
        return Copy(source, staged, table.columns, written)
    return Copy(source, _target(spec, table), table.columns, written)


def _target(spec: PipelineSpec, table: Table) -> Name:
    return table_name(spec.targets[table.stage.partition(":")[2]], table.target)

"""One pipeline, opened: its source, its sink, and its tables resolved against what the source really has."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from typing import TYPE_CHECKING

from strandline.config import PipelineSpec, TableSpec, check_targets
from strandline.core.errors import ConfigError, StrandlineError
from strandline.core.protocols import Sink, Source, Spark
from strandline.core.table import Table, TableInfo
from strandline.core.watermark import Cursor, Kind
from strandline.sinks import open_sink
from strandline.sources import open_source

if TYPE_CHECKING:
    from types import TracebackType

SYNC = "sync"  # the stage of a pipeline with one hop


@dataclass(frozen=True)
class Resolved:
    """A table as far as it could be resolved; `error` says why not further."""

    table: Table
    error: StrandlineError | None = None


class Pipeline:
    """Opens nothing until it is asked for: `source` connects, `sink` does not need Spark before data moves."""

    def __init__(self, spec: PipelineSpec, spark: Spark) -> None:
        self.spec = spec
        self._spark = spark
        self._source: Source | None = None
        self._sink: Sink | None = None

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for end in (self._source, self._sink):
            if end is not None:
                end.close()

    @property
    def source(self) -> Source:
        if self._source is None:
            spec = self.spec
            self._source = open_source(
                spec.source,
                guard=spec.guard,
                barrier="lookback" if spec.barrier else None,
                readers=spec.readers,
                statements=spec.show_statements,
            )
        return self._source

    @cached_property
    def _source_identity(self) -> str:
        """Asked once for all tables: it is a query."""
        return self.source.identity()

    @property
    def sink(self) -> Sink:
        if self._sink is None:
            target = self.spec.targets.get("")
            if target is None or self.spec.stage is not None:
                raise ConfigError("stages and several targets are not supported yet", where=self.spec.name)
            self._sink = open_sink(target, self._spark)
        return self._sink

    def tables(self, only: Collection[str] = ()) -> list[Resolved]:
        """Every table of the pipeline (or those named), in the config's order; a table named wins over a glob."""
        specs = self.spec.tables
        queries = {spec.name: spec.query for spec in specs if spec.query is not None}
        found = self.source.tables([spec.name for spec in specs if spec.query is None], queries)
        resolved: dict[str, Resolved] = {}
        named: dict[str, str] = {}  # by the source's own name of a table, the config's
        for spec in sorted(specs, key=lambda spec: spec.glob):
            for name, info in self._matches(spec, found):
                physical = name if isinstance(info, StrandlineError) else info.name
                if physical in named and not spec.glob:
                    raise ConfigError(
                        f'"{named[physical]}" and "{name}" are one table, {physical}',
                        where=self.spec.name,
                        remedy="Name it once.",
                    )
                named.setdefault(physical, name)
                if physical not in resolved and (not only or name in only):
                    resolved[physical] = self._resolve(replace(spec, name=name), info)
        unknown = sorted(set(only) - {part.table.name for part in resolved.values()})
        if unknown:
            raise ConfigError(
                f'no table "{unknown[0]}" in this pipeline',
                where=self.spec.name,
                remedy="Its tables: " + ", ".join(spec.name for spec in specs),
            )
        check_targets([(part.table.target, part.table) for part in resolved.values()])
        return list(resolved.values())

    def _matches(
        self, spec: TableSpec, found: Mapping[str, TableInfo | StrandlineError]
    ) -> list[tuple[str, TableInfo | StrandlineError]]:
        if not spec.glob:
            return [(spec.name, found[spec.name])]
        return [
            (name, info)
            for name, info in found.items()
            if isinstance(info, TableInfo)
            and fnmatchcase(name, spec.name)
            and not any(fnmatchcase(form, pattern) for pattern in self.spec.exclude for form in (name, info.name))
        ]

    def _resolve(self, spec: TableSpec, info: TableInfo | StrandlineError) -> Resolved:
        table = unresolved(self.spec.name, spec)
        try:
            if isinstance(info, StrandlineError):
                raise info
            return Resolved(self.source.resolve(table, info, spec.zone))
        except StrandlineError as error:
            return Resolved(table, error.at(table.where_text))

    def measures(self, table: Table) -> Mapping[str, str]:
        """Everything a position over this table measures."""
        return {"source": self._source_identity, "target": self.sink.identity(table), **table.measures()}


def unresolved(pipeline: str, spec: TableSpec) -> Table:
    """The table as the config has it, before the source was asked."""
    return Table(
        pipeline,
        spec.name,
        spec.name,
        spec.target or spec.name,
        SYNC,
        spec.mode,
        None if spec.cursor is None else Cursor(spec.cursor, Kind.TIMESTAMP),  # typed by the source
        key=spec.key,
        select=spec.columns or (),
        query=spec.query,
        where=spec.where,
        transform=spec.transform,
        deleted=spec.deleted,
        initial=spec.initial,
        lookback=spec.lookback,
        nulls=spec.nulls,
        slice_rows=spec.slice_rows,
        schema=spec.schema,
        shared=spec.shared,
        max_stall=spec.max_stall,
    )

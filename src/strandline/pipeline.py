"""One pipeline, opened: its source, its sink, and its tables resolved against what the source really has."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from strandline.config import PipelineSpec, TableSpec
from strandline.core.errors import ConfigError, StrandlineError
from strandline.core.protocols import Sink, Source, Spark
from strandline.core.table import Table, TableInfo
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
            self._source = open_source(spec.source, guard=spec.guard, barrier=spec.barrier, readers=spec.readers)
        return self._source

    @property
    def sink(self) -> Sink:
        if self._sink is None:
            target = self.spec.targets.get("")
            if target is None or self.spec.stage is not None:
                raise ConfigError("stages and several targets are not supported yet", where=self.spec.name)
            self._sink = open_sink(target, self._spark)
        return self._sink

    def tables(self, only: Collection[str] = ()) -> list[Resolved]:
        """Every table of the pipeline (or those named), in the config's order."""
        wanted = [spec for spec in self.spec.tables if not only or _may_match(spec, only)]
        plain = {spec.name for spec in wanted if not _is_glob(spec.name)}
        patterns = [spec.name for spec in wanted if spec.query is None]
        queries = {spec.name: spec.query for spec in wanted if spec.query is not None}
        found = self.source.tables(patterns, queries)
        resolved: dict[str, Resolved] = {}
        for spec in wanted:
            for name, info in sorted(found.get(spec.name, {}).items()) if _is_glob(spec.name) else [(spec.name, None)]:
                if _is_glob(spec.name) and (name in plain or _excluded(name, self.spec.exclude)):
                    continue
                if not only or name in only:
                    resolved.setdefault(name, self._resolve(replace(spec, name=name), info or found.get(name)))
        missing = sorted(set(only) - set(resolved))
        if missing:
            raise ConfigError(
                f'no table "{missing[0]}" in this pipeline',
                where=self.spec.name,
                remedy="Its tables: " + ", ".join(spec.name for spec in self.spec.tables),
            )
        return list(resolved.values())

    def _resolve(self, spec: TableSpec, info: TableInfo | StrandlineError) -> Resolved:
        table = unresolved(self.spec.name, SYNC, spec)
        try:
            if isinstance(info, StrandlineError):
                raise info
            return Resolved(self.source.resolve(table, info, spec.zone))
        except StrandlineError as error:
            return Resolved(table, error.at(table.where_text))

    def measures(self, table: Table) -> Mapping[str, str]:
        """Everything a position over this table measures."""
        return {"source": self.source.identity(), "target": self.sink.identity(table), **table.measures()}

"""One stage of a pipeline, opened: its source, its sink, and its tables resolved against what the source really has."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from typing import TYPE_CHECKING

from strandline.config import PipelineSpec, TableSpec, check_targets
from strandline.core.errors import ConfigError, StrandlineError
from strandline.core.protocols import Resting, Sink, Source, Spark
from strandline.core.table import EXTRACT, LOAD, SYNC, Table, TableInfo
from strandline.core.watermark import Cursor, Kind
from strandline.sinks import loads_files, open_sink
from strandline.sources import open_source

if TYPE_CHECKING:
    from types import TracebackType

_STREAMED = 20_000_000


def stages(spec: PipelineSpec) -> tuple[str, ...]:
    """The hops of a pipeline, in the order in which they run."""
    loads = tuple(f"{LOAD}:{name}" if name else LOAD for name in spec.targets)
    if spec.stage is not None:
        return (EXTRACT, *loads)
    return loads if len(loads) > 1 or "" not in spec.targets else (SYNC,)


def together(spec: PipelineSpec, wanted: Collection[str]) -> list[tuple[str, ...]]:
    """The stages that are wanted, in their order. Those that read the source, one for each target, go side by side."""
    chosen = some_stages(spec, wanted)
    reading = tuple(stage for stage in chosen if reads_source(spec, stage))
    return [*([reading] if reading else []), *((stage,) for stage in chosen if stage not in reading)]


def one_stage(spec: PipelineSpec, stage: str) -> str:
    """The stage by its name; without one, the first. ConfigError if the pipeline has no such stage, or several."""
    found = some_stages(spec, [stage] if stage else [])
    if stage and len(found) > 1:
        raise ConfigError(
            f'"{stage}" is {len(found)} stages of this pipeline',
            where=spec.name,
            remedy=f"Say which: {', '.join(found)}",
        )
    return found[0]


def some_stages(spec: PipelineSpec, wanted: Collection[str]) -> tuple[str, ...]:
    """The stages that are wanted, in their order; none wanted: all. `load` stands for every load."""
    known = stages(spec)
    missing = [name for name in wanted if not any(_means(name, stage) for stage in known)]
    if missing:
        raise ConfigError(
            f'this pipeline has no stage "{missing[0]}"',
            where=spec.name,
            remedy=f"Its stages: {', '.join(known)}",
        )
    return tuple(stage for stage in known if not wanted or any(_means(name, stage) for name in wanted))


def _means(name: str, stage: str) -> bool:
    return stage == name or (name == LOAD and stage.startswith(f"{LOAD}:"))


def within(source: str, server: str) -> bool:
    """Whether a source lies in the database that a target says it is. What MySQL calls a database is a schema of it."""
    return server in (source, source.rpartition("/")[0])


def reads_source(spec: PipelineSpec, stage: str) -> bool:
    return spec.stage is None or stage == EXTRACT


def _forms(name: str, info: TableInfo | StrandlineError) -> tuple[str, ...]:
    return (name, info.name) if isinstance(info, TableInfo) else (name,)


@dataclass(frozen=True)
class Resolved:
    """A table as far as it could be resolved; `error` says why not further."""

    table: Table
    error: StrandlineError | None = None

    def into(self, stage: str) -> Resolved:
        """The same table on its way into another target."""
        return self if self.table.stage == stage else replace(self, table=replace(self.table, stage=stage))


class Pipeline:
    """Opens nothing until it is asked for: `source` connects, `sink` does not need Spark before data moves."""

    def __init__(self, spec: PipelineSpec, stage: str, spark: Spark, source: Source | None = None) -> None:
        self.spec = spec
        self.stage = stage
        self._spark = spark
        self._source = source
        self._sink: Sink | None = None
        self._beside: dict[str, Pipeline] = {}
        self.told: set[tuple[str, str]] = set()  # warnings that were passed on

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for end in (self._source, self._sink, *self._beside.values()):
            if end is not None:
                end.close()

    def rest(self) -> None:
        """Between runs."""
        for hop in (self, *self._beside.values()):
            if isinstance(hop._sink, Resting):
                hop._sink.rest()

    def beside(self, stage: str) -> Pipeline:
        """The hop into another target of the same source; it is closed with this one."""
        if stage == self.stage:
            return self
        if stage not in self._beside:
            self._beside[stage] = Beside(self, stage)
        return self._beside[stage]

    @property
    def staged(self) -> bool:
        """Whether this hop reads what an extract has staged."""
        return not reads_source(self.spec, self.stage)

    @property
    def target(self) -> str:
        """The name of the target among several."""
        return self.stage.partition(":")[2]

    @property
    def source(self) -> Source:
        if self._source is None:
            self._source = self._open_source()
        return self._source

    def _open_source(self) -> Source:
        spec = self.spec
        if spec.stage is not None and self.staged:
            from strandline.stage.source import StageSource

            one_by_one = loads_files(spec.targets[self.target])
            return StageSource(spec.stage, spec.name, one_by_one=one_by_one)
        return open_source(
            spec.source,
            guard=spec.guard,
            barrier="lookback" if spec.barrier else None,
            readers=spec.readers,
            statements=spec.show_statements,
            as_of=spec.as_of,
            spark=self._spark,
        )

    @cached_property
    def _source_identity(self) -> str:
        """Asked once for all tables: it is a query."""
        return self.source.identity()

    @property
    def sink(self) -> Sink:
        if self._sink is None:
            self._sink = self._open_sink()
        return self._sink

    def _open_sink(self) -> Sink:
        if self.stage == EXTRACT and self.spec.stage is not None:
            from strandline.stage.sink import StageSink

            return StageSink(self.spec.stage, self._spark)
        return open_sink(self.spec.targets[self.target], self._spark, self.spec.via)

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

    def renewed(self) -> bool:
        """Whether tables are otherwise than `tables` last said, because it spoke from memory; from now on it says them
        as they are."""
        return False

    def _matches(
        self, spec: TableSpec, found: Mapping[str, TableInfo | StrandlineError]
    ) -> list[tuple[str, TableInfo | StrandlineError]]:
        if not spec.glob:
            return [(spec.name, found[spec.name])]
        return [
            (name, info)
            for name, info in found.items()
            if fnmatchcase(name, spec.name)
            and not any(fnmatchcase(form, pattern) for pattern in self.spec.exclude for form in _forms(name, info))
        ]

    def _resolve(self, spec: TableSpec, info: TableInfo | StrandlineError) -> Resolved:
        table = self.unresolved(spec)
        try:
            if isinstance(info, StrandlineError):
                raise info
            return Resolved(self.source.resolve(table, info, spec.zone))
        except StrandlineError as error:
            return Resolved(table, error.at(table.where_text))

    def measures(self, table: Table) -> Mapping[str, str]:
        """Everything a position over this table measures. ConfigError where it would be copied onto itself."""
        self._check_one_database()
        source, target = self._source_identity, self.sink.identity(table)
        server = source.rpartition("/")[0]  # a database of MySQL is what others call a schema
        proven = target.startswith(("postgresql:", "mysql:", "snowflake:"))  # by the server itself
        if proven and target in (f"{source}/{table.source}", f"{server}/{table.source}"):
            raise ConfigError(
                "source and target are one table, whatever their addresses",
                where=table.where_text,
                remedy="Give the table another `target:`, or the target another database or `schema`.",
            )
        return {"source": source, "target": target, **table.measures()}

    def _check_one_database(self) -> None:
        """`via: server` is taken at the servers' word, not at their addresses'."""
        if self.spec.via != "server":
            return
        if self.spec.stage is not None:
            raise ConfigError("via: server moves rows inside one database: it takes no stage", where=self.spec.name)
        from strandline.sinks.sql import SqlSink

        assert isinstance(self.sink, SqlSink)
        here = self.sink.server()
        if not within(self._source_identity, here):
            raise ConfigError(
                f"via: server: {self.spec.source} and {self.spec.targets[self.target]} are not one database",
                where=self.spec.name,
                why=f"The source says it is {self._source_identity}, the target {here}.",
                remedy="Leave `via: server` out: rows then move through Spark.",
            )

    def _load_rows(self, spec: TableSpec) -> int | None:
        """A first load streams into Delta, while every commit takes about a second. Not where rows are kept for other
        targets, or to look for repeated keys."""
        targets = [target.scheme for target in self.spec.targets.values()]
        streams = targets == ["delta"] and self.spec.stage is None and spec.transform is None
        return _STREAMED if streams and spec.slice_rows is None else None

    def unresolved(self, spec: TableSpec) -> Table:
        """The table as the config has it, before the source was asked.

        A load takes the rows as the extract staged them: what was said about reading them has been done.
        """
        table = Table(
            self.spec.name,
            spec.name,
            spec.name,
            spec.target or spec.name,
            self.stage,
            spec.mode,
            None if spec.cursor is None else Cursor(spec.cursor, Kind.TIMESTAMP),  # typed by the source
            key=spec.key,
            deleted=spec.deleted,
            nulls=spec.nulls,
            slice_rows=spec.slice_rows or Table.slice_rows,
            load_rows=self._load_rows(spec),
            schema=spec.schema,
            shared=spec.shared,
        )
        if self.staged:
            return table
        return replace(
            table,
            select=spec.columns or (),
            query=spec.query,
            where=spec.where,
            transform=spec.transform,
            initial=spec.initial,
            lookback=spec.lookback,
            max_stall=spec.max_stall,
        )


class Beside(Pipeline):
    """Has a sink of its own; the source, and what it is, are another pipeline's."""

    def __init__(self, first: Pipeline, stage: str) -> None:
        super().__init__(first.spec, stage, first._spark)
        self._first = first

    @property
    def source(self) -> Source:
        return self._first.source

    @property
    def _source_identity(self) -> str:
        return self._first._source_identity

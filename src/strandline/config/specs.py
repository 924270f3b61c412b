"""What a configuration says, as frozen values. A field's annotation declares its key: type of value and meaning.

Reading, the JSON Schema and the tables in docs/configuration.md follow from these declarations, so a key is added here
and nowhere else.
"""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, ClassVar

from strandline.config import values as v
from strandline.config.duration import format_duration
from strandline.config.reader import Key, suggest
from strandline.core.errors import ConfigError
from strandline.core.table import MaxStall, Mode, Table
from strandline.endpoint import Endpoint
from strandline.secrets import Redactor

_POLICIES = v.choice("evolve", "stop", "reload")
_TABLES = {"type": "array", "minItems": 1, "items": {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/table"}]}}
_TARGETS = {"type": "object", "minProperties": 1, "additionalProperties": v.endpoint("target").schema}
_PIPELINES = {"type": "object", "additionalProperties": {"$ref": "#/$defs/pipeline"}}


@dataclass(frozen=True, kw_only=True)
class TableSpec:
    name: Annotated[str, Key(v.text, "`orders`, `schema.orders`, a view, a glob (`public.*`), or a name for `query`.")]
    query: Annotated[str | None, Key(v.text, "A SELECT to read instead of a table. Needs `key` and `cursor`.")] = None
    target: Annotated[str | None, Key(v.text, "The table's name in the target. Default: as in the source.")] = None
    key: Annotated[tuple[str, ...], Key(v.names, "What identifies a row. Default: the primary key.")] = ()
    cursor: Annotated[str | None, Key(v.text, "The timestamp, date or integer column that orders changes.")] = None
    zone: Annotated[str | None, Key(v.zone, "The time zone of a cursor column that carries none.")] = None
    mode: Annotated[Mode, Key(v.choice(*Mode), "Upsert by key, only add, or replace all.")] = Mode.MERGE
    initial: Annotated[str | None, Key(v.text, "First start: a value or `latest`. Default: the beginning.")] = None
    lookback: Annotated[timedelta | int | None, Key(v.span, "What is read again: `10m`, or units of integers.")] = None
    columns: Annotated[tuple[str, ...] | None, Key(v.names, "The columns to read. Default: all.")] = None
    where: Annotated[str | None, Key(v.text, "An SQL condition on the rows to read; it runs in the source.")] = None
    transform: Annotated[str | None, Key(v.text, "`module:function`, DataFrame → DataFrame, on every batch.")] = None
    deleted: Annotated[str | None, Key(v.text, "Soft-delete column: true or not null means deleted.")] = None
    nulls: Annotated[str, Key(v.choice("refuse", "include"), "Rows whose cursor is NULL.")] = "refuse"
    slice_rows: Annotated[int, Key(v.whole(1), "About how many rows one batch holds.")] = Table.slice_rows
    max_stall: Annotated[MaxStall | None, Key(v.stall, "When held too long: `{after: 1h, then: fail}`, `skip`.")] = None
    schema: Annotated[str, Key(_POLICIES, "What to do when the source's columns change.")] = "evolve"
    shared: Annotated[bool, Key(v.boolean, "Others write to this target table too; all must say so.")] = False
    extra: ClassVar[dict[str, Key]] = {}

    @property
    def glob(self) -> bool:
        """Whether the name is a pattern over the source's tables."""
        return self.query is None and any(mark in self.name for mark in "*?[")


@dataclass(frozen=True, kw_only=True)
class PipelineSpec:
    name: str
    source: Annotated[Endpoint, Key(v.endpoint("source"), "Where tables are read from. Required.")]
    stage: Annotated[Endpoint | None, Key(v.endpoint("stage"), "Folder or bucket between source and target.")] = None
    targets: Annotated[Mapping[str, Endpoint], Key(v.part(_TARGETS), "Several targets by name.")]  # "": the only one
    tables: Annotated[tuple[TableSpec, ...], Key(v.part(_TABLES), "Names, globs or mappings. Required.")]
    exclude: Annotated[tuple[str, ...], Key(v.names, "Names and globs left out of what globs match.")] = ()
    schedule: Annotated[str | None, Key(v.text, "`every 1m`, cron with zone, `after PIPELINE`, `manual`.")] = None
    parallel: Annotated[int, Key(v.whole(1), "How many tables run side by side.")] = 2
    readers: Annotated[int | None, Key(v.whole(1), "Connections that read one slice. Default: by its size.")] = None
    guard: Annotated[timedelta, Key(v.duration, "How far windows stay below the barrier.")] = timedelta(seconds=5)
    barrier: Annotated[str | None, Key(v.barrier, "`lookback 10m`: no barrier, each table re-reads that much.")] = None
    show_statements: Annotated[bool, Key(v.boolean, "Name the statement that holds a table, without literals.")] = False
    via: Annotated[str, Key(v.choice("spark", "server"), "`server` moves rows inside one database.")] = "spark"
    freshness: Annotated[Any, Key(v.anything, "Lateness: `{warn_after: {count: 10, period: minute}}`.")] = None
    verify: Annotated[Any, Key(v.anything, "When to verify: `every 1d`, `every 1d repair`.")] = None
    maintain: Annotated[
        timedelta | None, Key(v.every, "`every 1d`: how often targets are compacted and cleaned up.")
    ] = None
    history: Annotated[str, Key(v.choice("state", "target"), "`target`: runs are also a table there.")] = "state"
    unfinished: Annotated[str, Key(v.choice("resume", "stop"), "Carry an open plan out, or ask.")] = "resume"
    extra: ClassVar[dict[str, Key]] = {
        "target": Key(v.endpoint("target"), "Where tables are copied to. Required, or `targets`."),
        "defaults": Key(v.part({"$ref": "#/$defs/defaults"}), "Table keys for every table without its own."),
    }


@dataclass(frozen=True, kw_only=True)
class SparkSpec:
    master: Annotated[str | None, Key(v.text, "The cluster to run on. Default: this machine.")] = None
    remote: Annotated[str | None, Key(v.connect, "A Spark Connect server to use: `sc://host:15002`.")] = None
    warm: Annotated[timedelta | None, Key(v.duration, "Keeps a local Spark until idle for this long.")] = None
    conf: Annotated[Mapping[str, str], Key(v.settings, "Spark settings; they win over ours.")] = field(
        default_factory=dict, hash=False
    )
    extra: ClassVar[dict[str, Key]] = {}


@dataclass(frozen=True, kw_only=True)
class Config:
    path: Path
    root: Path  # the folder of `path`; relative paths start here
    redactor: Redactor = field(compare=False, repr=False)
    state: Annotated[Endpoint, Key(v.endpoint("state"), "The store of watermarks, plans and runs.")]
    spark: Annotated[SparkSpec, Key(v.part({"$ref": "#/$defs/spark"}), "How Spark is started.")] = SparkSpec()
    keep: Annotated[timedelta, Key(v.duration, "How long the history of runs is kept.")] = timedelta(days=90)
    alerts: Annotated[Any, Key(v.anything, "Where alerts are sent.")] = None
    pipelines: Annotated[Mapping[str, PipelineSpec], Key(v.part(_PIPELINES), "The pipelines by name.")]
    extra: ClassVar[dict[str, Key]] = {
        "include": Key(v.names, "Files and globs (`conf.d/*.yml`) whose `pipelines` are added."),
    }

    def pipeline(self, name: str) -> PipelineSpec:
        if name not in self.pipelines:
            raise ConfigError(f'there is no pipeline "{name}"{suggest(name, self.pipelines)}')
        return self.pipelines[name]


Spec = type[TableSpec] | type[PipelineSpec] | type[SparkSpec] | type[Config]


def keys(spec: Spec) -> dict[str, Key]:
    """The keys a spec is read from, in the order they are documented; `extra` are those that make no field."""
    declared = {part.name: part.type.__metadata__[0] for part in fields(spec) if hasattr(part.type, "__metadata__")}
    return {**declared, **spec.extra}


def default_text(spec: Spec, name: str) -> str:
    """The key's default as the file would say it; empty where there is none."""
    default = next((part.default for part in fields(spec) if part.name == name), None)
    if default in (None, (), MISSING, SparkSpec()):
        return ""
    if isinstance(default, timedelta):
        return format_duration(default)
    return str(default).lower() if isinstance(default, bool) else str(default)

"""What a configuration says, as frozen values. A field's annotation declares its key: type of value and meaning.

Reading, the JSON Schema and the tables in docs/configuration.md follow from these declarations, so a key is added here
and nowhere else.
"""

import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from datetime import timedelta
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, ClassVar

from strandline.alerts.webhook import Webhook
from strandline.config import values as v
from strandline.config.duration import format_duration
from strandline.config.reader import Key, suggest
from strandline.core.attention import HELD_AFTER, STUCK_AFTER, Freshness
from strandline.core.errors import ConfigError
from strandline.core.table import MaxStall, Mode
from strandline.endpoint import Endpoint
from strandline.secrets import Redactor
from strandline.service.schedule import Checking, Schedule, Timed

NAME = re.compile(r"[A-Za-z0-9_.-]+")
"""Of a pipeline, or of a target among several."""
POLICIES = ("evolve", "stop", "reload")
NULLS = ("refuse", "include")
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
    initial: Annotated[
        str | None, Key(v.text, "First start: a value, a Delta version or time, `latest`. Default: all.")
    ] = None
    lookback: Annotated[timedelta | int | None, Key(v.span, "What is read again: `10m`, or units of integers.")] = None
    columns: Annotated[tuple[str, ...] | None, Key(v.names, "The columns to read. Default: all.")] = None
    where: Annotated[str | None, Key(v.text, "An SQL condition on the rows to read; it runs in the source.")] = None
    transform: Annotated[str | None, Key(v.text, "`module:function`, DataFrame → DataFrame, on every batch.")] = None
    deleted: Annotated[str | None, Key(v.text, "Soft-delete column: true or not null means deleted.")] = None
    nulls: Annotated[str, Key(v.choice(*NULLS), "Rows whose cursor is NULL.")] = "refuse"
    slice_rows: Annotated[
        int | None,
        Key(v.whole(1), "About how many rows one batch holds. Default: 5 million; a first load into Delta 20 million."),
    ] = None
    max_stall: Annotated[MaxStall | None, Key(v.stall, "When held too long: `{after: 1h, then: fail}`, `skip`.")] = None
    schema: Annotated[str, Key(v.choice(*POLICIES), "What to do when the source's columns change.")] = "evolve"
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
    schedule: Annotated[
        Schedule | None, Key(v.schedule, "`every 1m`, `0 2 * * * Europe/Berlin`, `after PIPELINE`, `manual`.")
    ] = None
    parallel: Annotated[int, Key(v.whole(1), "How many tables run side by side.")] = 2
    readers: Annotated[
        int | None,
        Key(v.whole(1), "Connections that read one slice. Default: by its size, at most this machine's cores."),
    ] = None
    commit_every: Annotated[int, Key(v.whole(1), "How many batches a write of the position may stand for.")] = 1
    guard: Annotated[timedelta, Key(v.duration, "How far windows stay below the barrier.")] = timedelta(seconds=5)
    barrier: Annotated[str | None, Key(v.barrier, "`lookback 10m`: no barrier, each table re-reads that much.")] = None
    as_of: Annotated[str | None, Key(v.text, "Delta sources: read up to what was committed then.")] = None
    show_statements: Annotated[bool, Key(v.boolean, "Name the statement that holds a table, without literals.")] = False
    via: Annotated[str, Key(v.choice("spark", "server"), "`server` moves rows inside one database.")] = "spark"
    freshness: Annotated[
        Freshness | None, Key(v.freshness, "How late is too late: `{warn_after: {count: 10, period: minute}}`.")
    ] = None
    verify: Annotated[Checking | None, Key(v.checking, "When to verify: `every 1d`, `every 1d repair`.")] = None
    maintain: Annotated[Timed | None, Key(v.timed, "`every 1d`: when targets are compacted and cleaned up.")] = None
    history: Annotated[str, Key(v.choice("state", "target"), "`target`: runs are also a table there.")] = "state"
    stuck_after: Annotated[timedelta, Key(v.duration, "A plan open for longer shows as stuck.")] = STUCK_AFTER
    held_after: Annotated[timedelta, Key(v.duration, "A table held for longer needs attention.")] = HELD_AFTER
    unfinished: Annotated[str, Key(v.choice("resume", "stop"), "Carry an open plan out, or ask.")] = "resume"

    def matches(self, table: str) -> bool:
        """Whether a table is among those that names and globs stand for."""
        excluded = any(fnmatchcase(table, pattern) for pattern in self.exclude)
        return not excluded and any(fnmatchcase(table, part.name) for part in self.tables if part.query is None)

    def has(self, table: str) -> bool:
        return any(part.name == table for part in self.tables) or self.matches(table)

    extra: ClassVar[dict[str, Key]] = {
        "target": Key(v.endpoint("target"), "Where tables are copied to. Required, or `targets`."),
        "defaults": Key(v.part({"$ref": "#/$defs/defaults"}), "Table keys for every table without its own."),
    }


@dataclass(frozen=True, kw_only=True)
class SparkSpec:
    master: Annotated[str | None, Key(v.text, "The cluster to run on. Default: this machine.")] = None
    remote: Annotated[str | None, Key(v.connect, "A Spark Connect server to use: `sc://host:15002`.")] = None
    warm: Annotated[timedelta | None, Key(v.duration, "Keeps a local Spark until unused for so long.")] = None
    conf: Annotated[Mapping[str, str], Key(v.settings, "Spark settings; they win over ours.")] = field(
        default_factory=dict, hash=False
    )
    extra: ClassVar[dict[str, Key]] = {}


@dataclass(frozen=True, kw_only=True)
class ServiceSpec:
    max_parallel: Annotated[int, Key(v.whole(1), "How many pipelines run side by side.")] = 4
    extra: ClassVar[dict[str, Key]] = {}


@dataclass(frozen=True, kw_only=True)
class AlertsSpec:
    webhook: Annotated[
        Webhook | None, Key(v.webhook, "`https://…`, or `{url: …, secret: …}` to sign what is sent.")
    ] = None
    command: Annotated[
        tuple[str, ...], Key(v.words, "A program and its words; it gets the alert as JSON on stdin.")
    ] = ()
    apprise: Annotated[tuple[str, ...], Key(v.hidden, "Addresses for Apprise: mail, chat and so on.")] = field(
        default=(), repr=False
    )
    extra: ClassVar[dict[str, Key]] = {}


@dataclass(frozen=True, kw_only=True)
class LineageSpec:
    url: Annotated[str, Key(v.collector, "A collector of OpenLineage events: `https://marquez.example.org`.")] = ""
    file: Annotated[str, Key(v.text, "Instead of `url`: a file that each event is added to as a line.")] = ""
    namespace: Annotated[str, Key(v.text, "Of the jobs: what your pipelines are called together.")] = "strandline"
    token: Annotated[str, Key(v.text, "Sent to the collector as a bearer token.")] = field(default="", repr=False)
    extra: ClassVar[dict[str, Key]] = {}


@dataclass(frozen=True, kw_only=True)
class Config:
    path: Path
    root: Path  # the folder of `path`; relative paths start here
    redactor: Redactor = field(compare=False, repr=False)
    include: tuple[str, ...] = ()
    state: Annotated[Endpoint, Key(v.endpoint("state"), "The store of watermarks, plans and runs.")]
    spark: Annotated[SparkSpec, Key(v.part({"$ref": "#/$defs/spark"}), "How Spark is started.")] = SparkSpec()
    service: Annotated[ServiceSpec, Key(v.part({"$ref": "#/$defs/service"}), "How `serve` works.")] = ServiceSpec()
    keep: Annotated[timedelta, Key(v.duration, "How long the history of runs is kept.")] = timedelta(days=90)
    alerts: Annotated[AlertsSpec, Key(v.part({"$ref": "#/$defs/alerts"}), "Where alerts are sent.")] = AlertsSpec()
    lineage: Annotated[LineageSpec, Key(v.part({"$ref": "#/$defs/lineage"}), "Where lineage is told.")] = LineageSpec()
    pipelines: Annotated[Mapping[str, PipelineSpec], Key(v.part(_PIPELINES), "The pipelines by name.")]
    extra: ClassVar[dict[str, Key]] = {
        "include": Key(v.names, "Files and globs (`conf.d/*.yml`) whose `pipelines` are added."),
    }

    def pipeline(self, name: str) -> PipelineSpec:
        if name not in self.pipelines:
            raise ConfigError(f'there is no pipeline "{name}"{suggest(name, self.pipelines)}')
        return self.pipelines[name]


Part = SparkSpec | ServiceSpec | AlertsSpec | LineageSpec
Spec = type[TableSpec] | type[PipelineSpec] | type[Part] | type[Config]


def keys(spec: Spec) -> dict[str, Key]:
    """The keys a spec is read from, in the order they are documented; `extra` are those that make no field."""
    declared = {part.name: part.type.__metadata__[0] for part in fields(spec) if hasattr(part.type, "__metadata__")}
    return {**declared, **spec.extra}


def default_text(spec: Spec, name: str) -> str:
    """The key's default as the file would say it; empty where there is none."""
    default = next((part.default for part in fields(spec) if part.name == name), None)
    if default in (None, (), MISSING, SparkSpec(), ServiceSpec(), AlertsSpec(), LineageSpec()):
        return ""
    if isinstance(default, timedelta):
        return format_duration(default)
    return str(default).lower() if isinstance(default, bool) else str(default)

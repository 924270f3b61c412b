"""Loading: files → specs, with the checks that need more than one key. Nothing here connects anywhere."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from yaml.nodes import Node, ScalarNode, SequenceNode

from strandline.config import values
from strandline.config.reader import Place, Problems, Reader, find_file, normal, suggest
from strandline.config.specs import (
    NAME,
    AlertsSpec,
    Config,
    LineageSpec,
    Part,
    PipelineSpec,
    ServiceSpec,
    SparkSpec,
    TableSpec,
    keys,
)
from strandline.core.errors import ConfigError
from strandline.core.table import Mode, Table
from strandline.endpoint import Endpoint
from strandline.secrets import Redactor
from strandline.service.schedule import After

DEFAULT_STATE = "sqlite:///.strandline/state.db"
_ONE_TABLE = ("name", "query", "target")  # keys that cannot be the default of many tables
_TABLE_KEYS = keys(TableSpec)
DEFAULTS_KEYS = {name: key for name, key in _TABLE_KEYS.items() if name not in _ONE_TABLE}
_PIPELINE_KEYS = keys(PipelineSpec)
_PARTS: dict[str, type[Part]] = {
    "spark": SparkSpec,
    "service": ServiceSpec,
    "alerts": AlertsSpec,
    "lineage": LineageSpec,
}


@dataclass(frozen=True)
class _Claim:
    """One table's wish to write to one target table."""

    table: str  # "pipeline.table"
    target: str  # the whole address of the target table
    shared: bool = False
    place: Place | None = None  # file and line, where known


def load_config(
    path: Path | None = None, environ: Mapping[str, str] = os.environ, redactor: Redactor | None = None
) -> Config:
    """Read the given file, or STRANDLINE_CONFIG, or strandline.yml from here upward.

    Raises ConfigError with every problem found, one line each. `redactor` gets the secrets also when that happens.
    """
    redactor = redactor or Redactor()
    problems = Problems()
    found = find_file(path, environ)
    reader = Reader(found, found.parent, environ, redactor, problems)
    top = reader.document()
    if top is None:
        problems.stop(redactor, remedy="Make a new one with: strandline init")
        raise AssertionError("a document that cannot be read notes why")
    given = reader.group(keys(Config), top, "")
    pipelines = _Pipelines()
    if "pipelines" in given:
        pipelines.read(reader, given.pop("pipelines"))
    for other in _matched(found, found.parent, given.get("include", ())):
        _include(replace(reader, path=other), pipelines)
    if not pipelines.specs and not problems.found:
        reader.problem(top, 'there are no pipelines; add some under "pipelines:"')
    for name, spec in _PARTS.items():
        if name in given:
            given[name] = _part(reader, given[name], name, spec)
    pipelines.check_order(problems)
    for first, second in _conflicts(pipelines.claims):
        problems.add(second.place or Place(reader.path.name), _conflict_text(first, second))
    problems.stop(redactor)
    given.setdefault("state", values.place(reader, DEFAULT_STATE, {}, "state"))
    return Config(path=found, root=found.parent, redactor=redactor, pipelines=pipelines.specs, **given)


def check_targets(pairs: Iterable[tuple[str, Table]]) -> None:
    """Raise ConfigError if two tables write to one target and not all of them are `shared`; for use after globs."""
    claims = [_Claim(table.where_text, target, table.shared) for target, table in pairs]
    texts = [_conflict_text(first, second) for first, second in _conflicts(claims)]
    if texts:
        raise ConfigError("\n".join(texts), docs="docs/configuration.md")


def _claimed(target: Endpoint, table: TableSpec) -> str:
    """Where a table's copy lies; one without a schema lies in the target's."""
    name, schema = table.target or table.name, target.options.get("schema")
    if target.scheme == "kafka":
        return f"{target}{target.options.get('topic', '{table}').replace('{table}', name)}"
    return f"{target}/{schema}.{name}" if schema and "." not in name else f"{target}/{name}"


def _conflicts(claims: Iterable[_Claim]) -> Iterator[tuple[_Claim, _Claim]]:
    owners: dict[str, _Claim] = {}
    for claim in claims:
        first = owners.setdefault(claim.target, claim)
        if first is not claim and not (first.shared and claim.shared):
            yield first, claim


def _conflict_text(first: _Claim, second: _Claim) -> str:
    there = f" ({first.place})" if first.place else ""
    return (
        f"{second.table} and {first.table}{there} both write to {second.target}; "
        'give one another "target", or both "shared: true"'
    )


def config_files(config: Config) -> list[Path]:
    """The files that the config is read from, as its patterns match now."""
    return [config.path, *_matched(config.path, config.root, config.include)]


def _matched(main: Path, root: Path, patterns: Iterable[str]) -> Iterator[Path]:
    seen = {main}
    for pattern in patterns:
        path = root / pattern
        if any(mark in pattern for mark in "*?["):
            matched = sorted(Path(path.anchor).glob(str(path.relative_to(path.anchor))))
        else:
            matched = [path]
        for found in map(normal, matched):
            if found not in seen:
                seen.add(found)
                yield found


def _include(reader: Reader, pipelines: _Pipelines) -> None:
    top = reader.document()
    if top is None:
        return
    for name, (key_node, value) in reader.pairs(top, "").items():
        if name == "pipelines":
            pipelines.read(reader, value)
        else:
            reader.problem(key_node, f'"{name}" in an included file; only "pipelines" may stand here')


def _part(reader: Reader, node: Node, name: str, spec: type[Part]) -> Part:
    """A group of keys of the top level; as if it were empty where a problem was noted."""
    try:
        found = reader.group(keys(spec), node, name)
        if name == "alerts" and not node.value:
            raise ConfigError("names no webhook, command or apprise")
        if name == "spark" and "remote" in found and ("master" in found or "warm" in found):
            raise ConfigError("remote is a Spark that runs already; master and warm say how to start one")
        if name == "lineage" and ("url" in found) == ("file" in found) and len(found) == len(node.value):
            raise ConfigError("names one of url and file")
        return spec(**found)
    except ConfigError as error:
        reader.problem(node, f"{name}: {error.message}")
        return spec()


class _Pipelines:
    """The pipelines of all files, with where each was found."""

    def __init__(self) -> None:
        self.specs: dict[str, PipelineSpec] = {}
        self.claims: list[_Claim] = []
        self._places: dict[str, Place] = {}
        self._follows: dict[str, tuple[str, Place]] = {}  # `after`, and where it is written

    def check_order(self, problems: Problems) -> None:
        """Whoever runs after another runs after one that exists, and not after itself."""
        for name, (before, place) in self._follows.items():
            where = f"pipelines.{name}.schedule: after {before}"
            if before not in self._places:
                problems.add(place, f"{where}: there is no such pipeline{suggest(before, self._places)}")
            seen = [name]
            while before in self._follows and before not in seen:
                seen.append(before)
                before = self._follows[before][0]
            if before == name:
                problems.add(place, f"{where}: each waits for the other ({' → '.join(reversed(seen))})")

    def read(self, reader: Reader, node: Node) -> None:
        try:
            pairs = reader.pairs(node, "pipelines")
        except ConfigError as error:
            reader.problem(node, f"pipelines: {error.message}")
            return
        for name, (key_node, value) in pairs.items():
            if not NAME.fullmatch(name):
                reader.problem(key_node, f'"{name}" cannot name a pipeline; use letters, digits, "_", "." and "-"')
            elif name in self._places:
                reader.problem(key_node, f'pipeline "{name}" is also in {self._places[name]}')
            else:
                self._places[name] = reader.place(key_node)
                try:
                    self._add(reader, name, key_node, value)
                except ConfigError as error:
                    reader.problem(value, f"pipelines.{name}: {error.message}")

    def _add(self, reader: Reader, name: str, key_node: Node, node: Node) -> None:
        where = f"pipelines.{name}"
        before = len(reader.problems.found)
        given = reader.group(_PIPELINE_KEYS, node, where)
        targets = _targets(reader, given, f"{where}.targets")
        written = reader.pairs(node, where)
        for key, present in (("source", "source" in written), ("tables", "tables" in written)):
            if not present:
                reader.problem(key_node, f'{where} has no "{key}"')
        if "target" in written and "targets" in written:
            reader.problem(written["targets"][0], f'{where} has both "target" and "targets"; keep one')
        elif "target" not in written and "targets" not in written:
            reader.problem(key_node, f'{where} has no "target"')
        redshift = next((target for target in targets.values() if target.scheme == "redshift"), None)
        stage = given.get("stage")
        if redshift is not None and (stage is None or stage.scheme != "s3"):
            reader.problem(key_node, f'{where}: redshift loads from a stage on S3; write "stage: s3://…"')
        kafka = any(target.scheme == "kafka" for target in targets.values())
        defaults = _defaults(reader, given.pop("defaults", None), f"{where}.defaults")
        if "barrier" in given:
            defaults.setdefault("lookback", values.parse_span(given["barrier"].removeprefix("lookback ")))
        found = _tables(reader, given.pop("tables", None), defaults, f"{where}.tables")
        for table, line in found:
            if kafka and table.mode is Mode.SNAPSHOT:
                reader.problem(
                    line,
                    f"{where}: {table.name}: a topic cannot be replaced, so mode: snapshot has no meaning there; "
                    "write mode: merge with a cursor, and sync --full to publish everything again",
                )
        if len(reader.problems.found) > before:
            return
        tables = tuple(table for table, _ in found)
        self.specs[name] = PipelineSpec(name=name, **{**given, "targets": targets, "tables": tables})
        if isinstance(schedule := given.get("schedule"), After):
            self._follows[name] = (schedule.pipeline, reader.place(written["schedule"][1]))
        self.claims += [
            _Claim(f"{name}.{table.name}", _claimed(target, table), table.shared, reader.place(line))
            for table, line in found
            if not table.glob
            for target in targets.values()
        ]


def _targets(reader: Reader, given: dict[str, Any], where: str) -> dict[str, Endpoint]:
    single = given.pop("target", None)
    node = given.pop("targets", None)
    if node is None:
        return {} if single is None else {"": single}
    targets = {}
    try:
        for name, (key_node, value) in reader.pairs(node, where).items():
            if not NAME.fullmatch(name):
                reader.problem(key_node, f'"{name}" cannot name a target; use letters, digits, "_", "." and "-"')
            try:
                targets[name] = reader.value(values.endpoint("target"), value, f"{where}.{name}")
            except ConfigError as error:
                reader.problem(value, f"{where}.{name}: {error.message}")
    except ConfigError as error:
        reader.problem(node, f"{where}: {error.message}")
    return targets


def _defaults(reader: Reader, node: Node | None, where: str) -> dict[str, Any]:
    if node is None:
        return {}
    try:
        return reader.group(DEFAULTS_KEYS, node, where)
    except ConfigError as error:
        reader.problem(node, f"{where}: {error.message}")
        return {}


def _tables(reader: Reader, node: Node | None, defaults: dict[str, Any], where: str) -> list[tuple[TableSpec, Node]]:
    if node is None:
        return []
    if not isinstance(node, SequenceNode) or not node.value:
        reader.problem(node, f"{where}: should be a list of tables")
        return []
    tables: dict[str, tuple[TableSpec, Node]] = {}
    for index, item in enumerate(node.value):
        try:
            table = _table(reader, item, defaults, f"{where}[{index}]")
        except ConfigError as error:
            reader.problem(item, f"{where}[{index}]: {error.message}")
            continue
        if table is None:
            continue
        if table.name in tables:
            first = reader.place(tables[table.name][1])
            reader.problem(item, f'{where}[{index}]: table "{table.name}" is already listed in {first}')
        tables.setdefault(table.name, (table, item))
    return list(tables.values())


def _table(reader: Reader, node: Node, defaults: dict[str, Any], where: str) -> TableSpec | None:
    """The table with the defaults merged in; None where a problem was noted."""
    if isinstance(node, ScalarNode):
        return TableSpec(**{**defaults, "name": reader.value(values.text, node, where)})
    before = len(reader.problems.found)
    given = reader.group(_TABLE_KEYS, node, where, null=True)
    if len(reader.problems.found) > before:
        return None
    merged = {name: value for name, value in {**defaults, **given}.items() if value is not None}
    if "name" not in merged:
        raise ConfigError('has no "name"')
    table = TableSpec(**merged)
    if table.query is not None and table.mode is not Mode.SNAPSHOT:
        missing = [f'"{name}"' for name in ("key", "cursor") if not getattr(table, name)]
        if missing:
            raise ConfigError(f"a query declares what the database cannot tell: add {' and '.join(missing)}")
    if table.glob and table.target is not None:
        raise ConfigError(f'"{table.name}" can match many tables; they cannot share one "target"')
    return table

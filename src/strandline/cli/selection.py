"""Which pipelines and tables a command is about: `-p`, `-t`, both or neither, against config and state."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from strandline.core.errors import ConfigError

if TYPE_CHECKING:
    from strandline.config import Config
    from strandline.core.protocols import Record
    from strandline.project import Project


def select(project: Project, pipeline: str | None, tables: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Pipelines with the tables asked for; no tables: all of them. ConfigError lists what exists."""
    if pipeline is not None:
        project.pipeline(pipeline)
        return {pipeline: tuple(tables)}
    config = project.config
    if not tables:
        return dict.fromkeys(config.pipelines, ())
    chosen: dict[str, list[str]] = {}
    for table in dict.fromkeys(tables):
        for name in _homes(config, table):
            chosen.setdefault(name, []).append(table)
    return {name: tuple(chosen[name]) for name in config.pipelines if name in chosen}


def _homes(config: Config, table: str) -> list[str]:
    """Pipelines that name the table, or else those with a glob that matches it."""
    named = [name for name, spec in config.pipelines.items() if any(part.name == table for part in spec.tables)]
    matched = [name for name, spec in config.pipelines.items() if spec.matches(table)]
    if not named and not matched:
        known = "\n".join(
            f"  {name}: {', '.join(part.name for part in spec.tables)}" for name, spec in config.pipelines.items()
        )
        raise ConfigError(f'no pipeline has a table "{table}"', remedy=f"Tables in {config.path}:\n{known}")
    return named or matched


def stored(project: Project, pipeline: str | None = None) -> dict[tuple[str, str, str], Record]:
    """Position records of the state as they are, readable or not, by (pipeline, table, stage)."""
    found = project.books.state.read("position", [pipeline] if pipeline else [])
    return {(record.key[0], record.key[1], record.key[2]): record for record in found}


def one_pipeline(project: Project, pipeline: str | None) -> str:
    """The pipeline named, or the only one there is."""
    known = list(project.config.pipelines)
    if pipeline is not None or len(known) == 1:
        return project.pipeline(pipeline or known[0]).name
    raise ConfigError(f"there are several pipelines: {', '.join(known)}", remedy="Say which: -p PIPELINE")


def one_table(project: Project, pipeline: str | None, table: str) -> str:
    """The one pipeline whose table a watermark command is about, known to the config or the state."""
    known = stored(project, pipeline)
    homes = sorted({key[0] for key in known if key[1] == table})
    if not homes:
        homes = _homes(project.config, table) if pipeline is None else [_with_table(project, pipeline, table, known)]
    if len(homes) > 1:
        raise ConfigError(
            f'table "{table}" is in several pipelines: {", ".join(homes)}',
            remedy=f"Say which: -p {homes[0]} -t {table}",
        )
    return homes[0]


def _with_table(project: Project, pipeline: str, table: str, known: Collection[tuple[str, str, str]]) -> str:
    spec = project.config.pipelines.get(pipeline) if known else project.pipeline(pipeline)
    names = {part.name for part in spec.tables} if spec else set()
    if table in names or (spec and spec.matches(table)):
        return pipeline
    remedy = "Its tables: " + ", ".join(sorted(names | {key[1] for key in known}))
    raise ConfigError(f'no table "{table}"', where=pipeline, remedy=remedy)

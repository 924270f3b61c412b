"""What a service says as it starts: the value that it found in the state for every table, and where those begin that
have none. It is very easy to use another state than one means to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from strandline.config import PipelineSpec, TableSpec
from strandline.core.errors import StateError
from strandline.core.position import Position
from strandline.pipeline import reads_source, stages
from strandline.project import Project


def found_at_start(project: Project, pipelines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Fields of an entry for each table and stage, `message` among them."""
    for name in pipelines:
        spec = project.config.pipelines[name]
        unreadable: dict[tuple[str, str, str], StateError] = {}
        positions = project.books.positions(name, unreadable=unreadable)
        tables = dict.fromkeys([part.name for part in spec.tables] + [key[1] for key in (*positions, *unreadable)])
        for table in tables:
            for stage in stages(spec):
                key = (name, table, stage)
                position = positions.get(key)
                mark = position.watermark if position else None
                said = unreadable[key].message if key in unreadable else _words(spec, table, stage, position)
                if said:
                    yield {
                        "pipeline": name,
                        "table": table,
                        "stage": stage,
                        "watermark": mark.text if mark else None,
                        "message": said,
                    }


def _words(spec: PipelineSpec, table: str, stage: str, position: Position | None) -> str:
    if position is not None and position.watermark is not None:
        return f"found watermark {position.watermark.text}"
    given = next((part for part in spec.tables if part.name == table), None)
    if not reads_source(spec, stage):
        return "" if given and given.glob else "nothing loaded yet"
    return f"no watermark{' for tables that never ran' if given and given.glob else ''}: starts {_beginning(given)}"


def _beginning(table: TableSpec | None) -> str:
    initial = table.initial if table else None
    return "from now on" if initial == "latest" else f"at {initial}" if initial else "from the beginning"

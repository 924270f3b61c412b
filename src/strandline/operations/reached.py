"""Whether a pipeline has got as far as a value, for those who wait for it. Looks at the state alone."""

from __future__ import annotations

from collections.abc import Collection

from strandline.core.errors import ConfigError, WindowError
from strandline.core.position import Position
from strandline.core.table import EXTRACT
from strandline.core.watermark import Watermark
from strandline.pipeline import one_stage, stages
from strandline.project import Project


class Reaching:
    """With a stage, a table has got there when every target holds the batch that the extract had written when it did:
    what comes later need not be waited for."""

    def __init__(self, project: Project, pipeline: str, tables: Collection[str], until: str) -> None:
        self._project = project
        self._spec = project.pipeline(pipeline)
        self._until = until
        self._batches: dict[str, int] = {}  # of tables whose extract has got there
        self._tables = dict.fromkeys(tables or (part.name for part in self._spec.tables if not part.glob))
        self._all = not tables
        for table in tables:
            if not self._spec.has(table):
                raise ConfigError(f'no table "{table}" in this pipeline', where=pipeline)

    def missing(self) -> dict[str, str]:
        """Tables that have not got there, and where they are."""
        found = self._project.books.positions(self._spec.name)
        known = dict.fromkeys(key[1] for key in found if self._spec.has(key[1])) if self._all else {}
        missing = {}
        for table in {**self._tables, **known}:
            where = self._where(table, {key[2]: position for key, position in found.items() if key[1] == table})
            if where:
                missing[table] = where
        if not self._tables and not known:
            missing[self._spec.name] = "no table has run yet"
        return missing

    def _where(self, table: str, positions: dict[str, Position]) -> str:
        """Empty: it has got there."""
        first, *rest = stages(self._spec)
        if first != EXTRACT:
            return next(filter(None, (self._behind(table, positions.get(stage)) for stage in (first, *rest))), "")
        if table not in self._batches:
            extracted = positions.get(one_stage(self._spec, EXTRACT))
            if where := self._behind(table, extracted):
                return f"extract {where}"
            assert extracted is not None
            self._batches[table] = extracted.batch.number if extracted.batch else 0
        for stage in rest:
            loaded = positions.get(stage)
            mark = loaded.watermark if loaded else None
            if self._batches[table] and (mark is None or int(mark.text) <= self._batches[table]):
                return f"{stage} at batch {int(mark.text) - 1 if mark else 0} of {self._batches[table]}"
        return ""

    def _behind(self, table: str, position: Position | None) -> str:
        if position is None or position.watermark is None:
            return "no watermark yet"
        try:
            wanted = Watermark.parse(position.watermark.kind, self._until, position.measures.get("zone") or None)
        except WindowError as error:
            raise error.at(f"{self._spec.name}.{table}") from None
        return f"at {position.watermark.text}" if position.watermark < wanted else ""

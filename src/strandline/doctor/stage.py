"""Checks of a stage: are the files what the manifests say, and has every target loaded what was extracted?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from fnmatch import fnmatchcase

from strandline.config import PipelineSpec
from strandline.core.errors import StateError, StrandlineError
from strandline.core.position import Position
from strandline.core.table import LOAD
from strandline.doctor.finding import Finding, Level, fail, many, note, ok, warn
from strandline.objects import Objects, open_objects
from strandline.pipeline import stages
from strandline.project import Project
from strandline.stage.audit import Audit, audit
from strandline.stage.clean import loaded_by, staged_tables
from strandline.stage.layout import Layout

_AREA = "stage"
_FILES = "docs/doctor.md#files-of-the-stage"
_LOADED = "docs/doctor.md#loaded-and-extracted"
_SHOWN = 3


def check_stage(project: Project, spec: PipelineSpec) -> Iterator[Finding]:
    """Needs neither the source nor a target: what a target has loaded is what its position says, and whether that is
    so is for the target's own check."""
    if spec.stage is None:
        return
    unreadable: dict[tuple[str, str, str], StateError] = {}
    try:
        positions = project.books.positions(spec.name, unreadable=unreadable)
    except StateError:
        return  # the state has its own findings
    loads = {key[1:]: position for key, position in positions.items() if key[2].partition(":")[0] == LOAD}
    try:
        objects = open_objects(spec.stage)
        unknown = {table for _, table, _ in unreadable}  # the state has its own findings
        known = [name for name in staged_tables(objects, spec.name) if name not in unknown]
    except StrandlineError as error:
        yield fail(_AREA, error, spec.name)
        return
    for table in (name for name in known if _configured(spec, name)):
        try:
            found = audit(objects, Layout(spec.name, table))
        except StrandlineError as error:
            yield fail(_AREA, error.at(f"{spec.name}.{table}"), spec.name)
            continue
        mine = {stage: position for (name, stage), position in loads.items() if name == table}
        yield from _Staged(spec, table, objects, found, mine).findings()


def _configured(spec: PipelineSpec, table: str) -> bool:
    return any(table == part.name or (part.glob and fnmatchcase(table, part.name)) for part in spec.tables)


class _Staged:
    """One table in the stage, and how far each load has come."""

    def __init__(
        self, spec: PipelineSpec, table: str, objects: Objects, found: Audit, loads: Mapping[str, Position]
    ) -> None:
        self._spec = spec
        self._table = table
        self._objects = objects
        self._found = found
        self._loads = loads
        self._loaded = loaded_by(loads.values(), [table], spec.targets)[table]  # by target, the last number

    def findings(self) -> Iterator[Finding]:
        troubled = False
        for finding in (*self._files(), *self._left(), *self._waiting()):
            troubled = troubled or finding.level is not Level.NOTE
            yield finding
        if not troubled and self._found.batches:
            kept = [batch for batch in self._found.batches if batch.number >= self._found.floor]
            files, rows = sum(len(batch.files) for batch in kept), sum(batch.rows for batch in kept)
            text = f"{self._table}: batch {self._found.last} is the last, all are loaded; "
            held = f"{many(files, 'file')} with {many(rows, 'row')} as the manifests say"
            yield ok(_AREA, text + held, self._spec.name)

    def _files(self) -> Iterator[Finding]:
        """A file that is gone stops whoever has not loaded it; where all have, it can only not be loaded again."""
        needed = [file for file in self._found.broken if file.number > min(self._loaded.values(), default=0)]
        done = [file for file in self._found.broken if file not in needed]
        for files, level in ((needed, Level.FAIL), (done, Level.WARN)):
            if not files:
                continue
            names = [f"{self._objects.address}/{file.key} {file.wrong}" for file in files[:_SHOWN]]
            more = [f"and {len(files) - _SHOWN:,} more"] if len(files) > _SHOWN else []
            what = "not loaded yet" if files is needed else "loaded already, and cannot be loaded again"
            text = "\n".join([f"{self._table}: batch {files[0].number}, {what}: {names[0]}", *names[1:], *more])
            yield Finding(level, _AREA, text, self._mend(files is needed), _FILES, self._spec.name)
        if self._found.unseen:
            text = f"{self._table}: {many(self._found.unseen, 'older batch')} not looked at"
            yield note(_AREA, text, docs=_FILES, pipeline=self._spec.name)

    def _mend(self, needed: bool) -> str:
        if needed:
            return f"Bring it back (a bucket with versions has it), or stage and load the table anew:\n{self._full}"
        return f"No target misses a row. Have what is loaded cleaned away:   {self._command('stage clean')}"

    def _left(self) -> Iterator[Finding]:
        if orphans := self._found.orphans:
            size = f"{self._found.orphan_bytes / 1e6:,.1f} MB"
            some = f"{many(len(orphans), 'file')} ({size})"
            text = f"{self._table}: {some} that no batch names: attempts that died left them"
            remedy = f"They are never loaded. To remove them:   {self._command('stage clean')}"
            yield warn(_AREA, text, remedy, docs=_FILES, pipeline=self._spec.name)

    def _waiting(self) -> Iterator[Finding]:
        """Every load against the extract."""
        found, name = self._found, self._spec.name
        for stage in stages(self._spec):
            if stage.partition(":")[0] != LOAD:
                continue
            target = stage.partition(":")[2]
            loaded, position = self._loaded[target], self._loads.get(stage)
            where = target or str(self._spec.targets[target])
            if loaded > found.last:
                text = f"{self._table}: {where} has loaded batch {loaded}, and the stage ends at {found.last}"
                remedy = f"It was emptied, or another one than before. Stage and load the table anew:\n{self._full}"
                yield Finding(Level.FAIL, _AREA, text, remedy, _LOADED, name)
                continue
            waiting = [batch for batch in found.batches if batch.number > loaded]
            if lost := [batch for batch in waiting if batch.files and batch.number < found.floor]:
                text = f"{self._table}: batch {lost[0].number} was cleaned away before {where} had loaded it"
                yield Finding(Level.FAIL, _AREA, text, f"Stage and load it anew:\n{self._full}", _LOADED, name)
            elif waiting:
                rows, since = sum(batch.rows for batch in waiting), _hours(waiting[0].written_at)
                some = f"{many(len(waiting), 'batch')} with {many(rows, 'row')}"
                text = f"{self._table}: {some}, staged and not loaded into {where}{since}"
                if position is not None and position.error:
                    text += f"\nThe last try: {position.error.splitlines()[0]}"
                remedy = f"Load what is staged:   {self._command('sync --load-only')}"
                yield warn(_AREA, text, remedy, docs=_LOADED, pipeline=name)

    @property
    def _full(self) -> str:
        return self._command("sync --full")

    def _command(self, words: str) -> str:
        return f"strandline {words} -p {self._spec.name} -t {self._table}"


def _hours(written_at: str) -> str:
    age = datetime.now(UTC) - datetime.fromisoformat(written_at).replace(tzinfo=UTC)
    hours = age.total_seconds() / 3600
    return f", the oldest for {hours:,.0f} hours" if hours >= 2 else ""

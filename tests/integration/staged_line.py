"""Two stages in one process: a database in memory → a real stage in a folder → any target, run by the real Project.

Where the target is in memory, too, rows go into the stage and out of it by Arrow instead of Spark, and a run takes
milliseconds; manifests, fences, positions, leases and plans are the product's own all the same.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType
from targets import Reach, Target, watched

from strandline.config import Config, load_config
from strandline.core.batch import Applied, Batch, How
from strandline.core.books import Books
from strandline.core.errors import CommitUnknownError
from strandline.core.events import Event, TableEvent
from strandline.core.position import Position, Status
from strandline.core.protocols import Changes, Sink, State
from strandline.core.records import COUNTS
from strandline.core.run import Outcome
from strandline.core.table import EXTRACT, LOAD, Column, Mode, Table
from strandline.core.watermark import Cursor, Kind
from strandline.core.window import Repair
from strandline.objects import Objects, open_objects
from strandline.pipeline import Pipeline, one_stage
from strandline.project import Project
from strandline.stage import write
from strandline.stage.changes import StageChanges
from strandline.stage.layout import Layout
from strandline.stage.ledger import Ledger
from strandline.stage.manifest import DataFile, Manifest
from strandline.stage.sink import StageSink
from strandline.testing.database import Clock, Row, watermark
from strandline.testing.memory import MemoryChanges, MemorySink, MemorySource
from strandline.testing.world import Killed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PIPELINE, TABLE = "shop", "orders"
SCHEMA = StructType(
    [StructField("id", LongType()), StructField("value", StringType()), StructField("moved", TimestampType())]
)


NO_SPARK: Any = object()  # passed on and never asked for anything


class ArrowWrite:
    """What `stage.write.Write` does, without Spark: one file, or none where there are no rows."""

    schema = SCHEMA

    def __init__(self, _: object, objects: Objects, folder: str, table: Table, changes: Any, __: object) -> None:
        self.objects, self.folder, self.table = objects, folder, table
        assert isinstance(changes, MemoryChanges)
        self.rows = changes.rows()

    def run(self, _: int, __: float | None) -> tuple[tuple[DataFile, ...], Applied]:
        arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
        if not self.rows:
            return (), Applied()
        key, file = f"{self.folder}/part-0.parquet", io.BytesIO()
        columns = {name: [row[name] for row in self.rows] for name in SCHEMA.names}
        parquet.write_table(arrow.table(columns), file)
        self.objects.create(key, file.getvalue())
        cursor = self.table.cursor
        assert cursor is not None
        last = max(watermark(cursor, row[cursor.column]) for row in self.rows)
        count = len(self.rows)
        return (DataFile(key, len(file.getvalue()), count),), Applied(count, count, last_value=last, files=1)

    def remove(self) -> None:
        self.objects.delete([entry.key for entry in self.objects.list(self.folder)])

    def cancel(self) -> None:
        """It takes no time."""

    def close(self) -> None:
        """Nothing is held."""


class StagedRows(StageChanges):
    """What a slice of the stage holds, read without Spark."""

    def rows(self) -> list[Row]:
        parquet = import_module("pyarrow.parquet")
        read = [row for url in self._urls for row in parquet.read_table(url.removeprefix("file:")).to_pylist()]
        if self.table.mode is Mode.APPEND:
            return read
        last: dict[int, Row] = {}
        for row in read:
            if row["id"] not in last or row["moved"] >= last[row["id"]]["moved"]:
                last[row["id"]] = row
        return list(last.values())


class ArrowLoad(MemorySink):
    """The sink in memory, behind a stage."""

    def apply(self, table: Table, batch: Batch, changes: Changes, *, how: How, repair: Repair | None = None) -> Applied:
        assert isinstance(changes, StageChanges)
        read = StagedRows(changes.objects, changes.settings, changes.layout, changes.table, changes.manifests)
        return super().apply(table, batch, read, how=how, repair=repair)


class LineProject(Project):
    """The real one, but for its outer ends."""

    def __init__(self, config: Config, source: MemorySource, sink: Sink, state: State) -> None:
        super().__init__(config)
        self._books = Books(state)
        self._ends = (source, sink)

    @contextmanager
    def opened(self, name: str, stage: str = "", spark: SparkSession | None = None) -> Iterator[Pipeline]:
        spec = self.pipeline(name)
        pipeline = Pipeline(spec, one_stage(spec, stage), self._spark(spark))
        source, sink = self._ends
        if pipeline.staged:
            pipeline._sink = sink
        else:
            pipeline._source = source
        yield pipeline


class Line:
    """A table on its way through two stages and many deaths. Each round brings rows for `slices` slices."""

    def __init__(
        self,
        folder: Path,
        target: Target,
        state: State,
        *,
        spark: Any = NO_SPARK,
        mode: Mode = Mode.MERGE,
        slices: int = 2,
    ) -> None:
        self.folder, self.target, self.state, self.spark = folder, target, state, spark
        self.mode, self.slices = mode, slices
        self.clock = Clock()
        self.source = MemorySource(self.clock)
        columns = (Column("id", "bigint"), Column("value", "string"), Column("moved", "timestamp"))
        self.source.create(TABLE, columns, Cursor("moved", Kind.TIMESTAMP), ["id"])
        self.deaths: Counter[str] = Counter()
        self.written: list[Row] = []  # every version of every row
        self.config = self._config(folder)
        stage = self.config.pipelines[PIPELINE].stage
        assert stage is not None
        self._stage = Ledger(open_objects(stage), Layout(PIPELINE, TABLE))

    def _config(self, folder: Path) -> Config:
        table = {"name": TABLE, "cursor": "moved", "key": "id", "mode": self.mode.value, "slice_rows": 2}
        # Only the stage is opened by its address.
        ends = {"stage": self.target.stage, "target": self.target.address}
        ends["source"] = "postgresql://memory/shop"
        path = folder / "strandline.yml"
        path.write_text(yaml.safe_dump({"pipelines": {PIPELINE: {**ends, "parallel": 1, "tables": [table]}}}))
        return load_config(path)

    # the database

    def write(self) -> None:
        """Two new rows; with a second slice another one, and an update of what came in an earlier round."""
        first = len(self.source.rows(TABLE)) + 1
        self._write(first, first + 1)
        if self.slices > 1:
            self._write(first + 2, *([first - 1] if first > 1 else []))

    def _write(self, *ids: int) -> None:
        self.clock.advance(1)
        value = f"at {len(self.written)}"
        self.source.write(TABLE, *({"id": id_, "value": value} for id_ in ids))
        self.written += [row for row in self.source.rows(TABLE) if row["id"] in ids]
        self.clock.advance(1)

    # one process

    def sync(self, reach: Reach | None = None, stages: Sequence[str] = (), *, full: bool = False) -> dict[str, Outcome]:
        def listen(event: Event) -> None:
            stage = f"{event.stage} " if isinstance(event, TableEvent) else ""
            if reach is not None:
                reach(f"{stage}{type(event).__name__}")

        with LineProject(self.config, self.source, self.target.sink, self.state) as project:
            result = project.sync(PIPELINE, stages=stages, spark=self.spark, listener=listen, full=full)
        return {outcome.stage: outcome for outcome in result.tables}

    def points(self, **how: Any) -> list[tuple[str, int]]:
        """Where a process can die, in order, from a run that does not: each point with how often it came before."""
        seen: Counter[str] = Counter()
        found = []

        def reach(point: str) -> None:
            found.append((point, seen[point]))
            seen[point] += 1

        self._run(reach, **how)
        return found

    def killed(self, at: str, after: int = 0, **how: Any) -> bool:
        """Whether a sync died at a point, once it had passed it so often."""
        left = after

        def reach(point: str) -> None:
            nonlocal left
            if point == at:
                left -= 1
                if left < 0:
                    self.deaths[point] += 1
                    raise Killed

        try:
            self._run(reach, **how)
        except Killed:
            self._bury()
            self.check_watermark()
            return True
        return False

    def _run(self, reach: Reach, *, trouble: bool = False, every_write: bool = False) -> None:
        """`trouble`: the first batch of each stage gets in, and the answer is lost. `every_write` of the state is a
        point, too."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("strandline.core.retry.WAITS", (0.0, 0.0, 0.0))
            self._watch(patch, reach)
            if trouble:
                lose_an_answer(patch, StageSink)
                lose_an_answer(patch, self.target.sink)
            if every_write:
                watched(patch, self.state, "put", reach)
            self.sync(reach)

    def _watch(self, patch: pytest.MonkeyPatch, reach: Reach) -> None:
        """Inside the stage and inside the target."""

        def in_extract(point: str) -> None:
            reach(f"{EXTRACT} {point}")

        watched(patch, write.Write, "run", in_extract, after=False)
        watched(patch, StageSink, "_add", in_extract)
        kind = type(self._stage.objects)
        real = kind.replace

        def replace(objects: Objects, key: str, data: bytes, etag: str | None = None) -> str | None:
            if key == self._stage.layout.head:
                in_extract("before the hint")  # the manifest is there
            return real(objects, key, data, etag)

        patch.setattr(kind, "replace", replace)
        self.target.watch(patch, lambda point: reach(f"{LOAD} {point}"))

    def _bury(self) -> None:
        """The process that was killed is gone for good: its connection is closed, and its leases have run out."""
        self.state.close()
        leases = self.state.read("lease", [PIPELINE])
        self.state.put([replace(lease, fields={**lease.fields, "expires_at": ""}) for lease in leases])

    def resume(self) -> None:
        """What a process does that nobody disturbs; it brings everything that is there."""
        for outcome in self.sync().values():
            assert outcome.status in (Status.COMPLETED, Status.SKIPPED), outcome.error

    def dies_everywhere(self, only: str = "", **how: Any) -> None:
        """At each point in turn (`only` those of one stage) and, where the next process finds the batch there, once
        more as it says so."""
        self.write()
        points = self.points(trouble=True, **how)
        for point, after in points:
            if not point.startswith(only):
                continue
            self.write()
            assert self.killed(point, after, trouble=True, **how) or "put" in point, point
            stage = point.partition(" ")[0]
            if self.position(stage).intent is not None:
                self.killed(f"{stage} Adopted")
            self.resume()
            self.check()

    # what must be true

    def position(self, stage: str) -> Position:
        return Books(self.state).positions(PIPELINE).get((PIPELINE, TABLE, stage)) or Position(PIPELINE, TABLE, stage)

    def staged(self) -> list[Manifest]:
        return self._stage.between(1, 1 << 40)

    def check_watermark(self) -> None:
        """Whatever lies below both watermarks is in the target, also where somebody has just died."""
        loaded = self.position(LOAD).watermark
        reached = [each.batch.watermark for each in self.staged() if loaded and each.number < int(loaded.text)]
        if not reached:
            return
        cursor, high = self.source.held(TABLE).cursor, reached[-1]
        arrived = self.target.rows(TABLE)
        below = [row for row in self.source.rows(TABLE) if watermark(cursor, row["moved"]) < high]
        assert all(row in arrived for row in below)

    def check(self) -> None:
        """The target equals the source, no batch came twice, none is missing, and the books of both stages agree."""
        kept, staged = self.written if self.mode is Mode.APPEND else self.source.rows(TABLE), self.staged()
        assert by_id(self.target.rows(TABLE)) == by_id(kept)
        versions, ids = len(self.written), len(self.source.rows(TABLE))
        inserted = versions if self.mode is Mode.APPEND else ids
        self._check_stage(EXTRACT, [manifest.batch for manifest in staged], versions)
        self._check_stage(LOAD, self.target.log(TABLE), inserted)
        loaded = self.position(LOAD).watermark
        assert loaded is not None and int(loaded.text) == staged[-1].number + 1

    def _check_stage(self, stage: str, batches: Sequence[Batch], inserted: int) -> None:
        assert [batch.order for batch in batches] == [(1, number) for number in range(1, len(batches) + 1)]
        lows, highs = [batch.low for batch in batches], [batch.high for batch in batches]
        assert lows[0] is None
        assert all(low is not None and high <= low for high, low in zip(highs, lows[1:], strict=False))
        position, versions = self.position(stage), len(self.written)
        assert position.batch is not None and position.batch.same(batches[-1])
        assert (position.plan, position.intent) == (None, None)
        assert self.counted(stage) == {
            "batches": len(batches),
            "rows_read": versions,
            "rows_inserted": inserted,
            "rows_updated": versions - inserted,
            "rows_deleted": 0,
        }

    def counted(self, stage: str) -> dict[str, int]:
        """What all runs of a stage say they did, together."""
        parts = [part.fields for part in self.state.read("table_run") if part.key[1:] == (TABLE, stage)]
        return {name: sum(int(part[name] or 0) for part in parts) for name in ("batches", *COUNTS)}

    def check_history(self) -> None:
        """Once somebody has come after them, no dead run is left for a living one."""
        self.write()
        self.resume()
        self.check()
        for run in self.state.read("run"):
            parts = self.state.read("table_run", run.key)
            if not parts:
                continue  # it died before any table knew of it: nobody can tell it from one that is about to begin
            assert run.fields["status"] != Status.RUNNING
            assert all(part.fields["status"] not in (Status.RUNNING, Status.PLANNED) for part in parts)


def lose_an_answer(patch: pytest.MonkeyPatch, sink: Sink | type[Sink]) -> None:
    """The next batch gets in, and nobody hears of it."""
    real: Callable[..., Any] = sink.apply

    def apply(*given: Any, **how: Any) -> Any:
        patch.setattr(sink, "apply", real)
        real(*given, **how)
        raise CommitUnknownError("no answer")

    patch.setattr(sink, "apply", apply)


def by_id(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row["id"], row["moved"]))

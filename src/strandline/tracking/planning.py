"""What a tracked run is to do: tables as the caller names them, their positions, and the plan over any source.

Asks the source and reads the books; stores nothing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from fnmatch import fnmatchcase

from strandline.config import PipelineSpec, TableSpec
from strandline.core import attention
from strandline.core.books import Books, Key
from strandline.core.codec import resumed
from strandline.core.errors import ChangedError, ConfigError, SourceError, StateError, StrandlineError
from strandline.core.plan import Ask, Planned, make_plan, observed_below
from strandline.core.position import TRACKED, Horizon, Position, TablePlan
from strandline.core.protocols import Source, Spark
from strandline.core.retry import retried
from strandline.core.table import SYNC, Column, Mode, Table
from strandline.core.watermark import Watermark
from strandline.core.window import Slice, Window
from strandline.endpoint import Endpoint
from strandline.pipeline import Pipeline, Resolved
from strandline.tracking.names import Settings, specs
from strandline.tracking.run import Work
from strandline.tracking.table import in_own_words
from strandline.tracking.together import ALL, Together, together

_MISSING = "no table of this name can be read any more: name it to see why"


@dataclass(frozen=True)
class Planner:
    """`open` gives the source for one plan or run; `closes`: it is ours to close again."""

    pipeline: str
    books: Books
    address: Endpoint
    open: Callable[[Spark], Source]
    closes: bool
    tables: Sequence[str]  # of a call that names none
    settings: Settings
    overrides: Mapping[str, Settings]
    exclude: tuple[str, ...]
    every: timedelta | None
    stuck_after: timedelta | None

    @contextmanager
    def each(self, wanted: Sequence[str], spark: Spark, run_id: str, limit: int | None) -> Iterator[Work]:
        """Every table by itself; the source stays open for the run."""
        with self._sourced(spark) as source:
            pipeline = self._pipeline(wanted or self._known(), source, spark)
            planned = retried(lambda: self._make(pipeline, run_id, limit), lambda _, wait: time.sleep(wait))
            names = [part.table.name for part in planned]
            missing = [(position.table, _MISSING) for position in self._missing(pipeline, names)]
            yield Work(source, planned, [*self._attention(names), *missing])

    @contextmanager
    def together(self, spark: Spark, run_id: str) -> Iterator[Work]:
        """All tables under one watermark."""
        with self._sourced(spark) as source:
            tables = _resolved(self._tables(self._pipeline(self._known(), source, spark)))
            table, every = together(self.pipeline, tables), Together(source, tables)
            measures = {
                "source": source.identity(),
                "target": TRACKED,
                "tables": ",".join(sorted(part.name for part in tables)),
                **table.measures(),
            }
            ask = self._ask(table, self.books.positions(self.pipeline), self._busy(), measures)
            planned = make_plan(every, [ask], run_id=run_id, now=self.books.now())
            yield Work(every, planned, self._attention([ALL]))

    @contextmanager
    def as_written(self, open_plans: Sequence[Position], spark: Spark) -> Iterator[Work]:
        """Plans that are open, without a look at the source."""
        with self._sourced(spark) as source:
            yield Work(source, [_as_planned(position) for position in open_plans])

    def horizons(self, wanted: Sequence[str], spark: Spark) -> dict[str, Watermark | None]:
        """Up to where each table could be read now; None: not at all. Raises what keeps one of them from being read."""
        with self._sourced(spark) as source:
            found = source.horizons(_resolved(self._tables(self._pipeline(wanted or self._known(), source, spark))))
        wrong = [answer for answer in found.values() if isinstance(answer, StrandlineError)]
        if wrong:
            raise wrong[0]
        return {name: horizon.high for name, horizon in found.items() if isinstance(horizon, Horizon)}

    @contextmanager
    def _sourced(self, spark: Spark) -> Iterator[Source]:
        source = self.open(spark)
        try:
            yield source
        finally:
            if self.closes:
                source.close()

    def _pipeline(self, wanted: Sequence[str], source: Source, spark: Spark) -> Pipeline:
        spec = PipelineSpec(
            name=self.pipeline,
            source=self.address,
            targets={},
            tables=specs(wanted, self.settings, self.overrides),
            exclude=self.exclude,
        )
        return Pipeline(spec, SYNC, spark, source)

    def _known(self) -> list[str]:
        """The tables of a call that names none."""
        known = list(self.tables) or sorted({key[1] for key in self.books.positions(self.pipeline)} - {ALL})
        if not known:
            raise ConfigError(
                "no tables are named", where=self.pipeline, remedy='Name them: tracker.run(["orders"]), or a glob.'
            )
        return known

    def _make(self, pipeline: Pipeline, run_id: str, limit: int | None) -> list[Planned]:
        source = pipeline.source
        planned = make_plan(source, self._asks(pipeline), run_id=run_id, limit=limit, now=self.books.now())
        for part in planned:
            if part.error is not None:
                in_own_words(part.error, part.table.name, part.position.watermark)
        return [_in_one(source, part) for part in planned]

    def _tables(self, pipeline: Pipeline) -> list[Resolved]:
        """ConfigError where a schema or glob stands for none: misspelt, it would leave its tables out in silence."""
        found = pipeline.tables()
        for spec in pipeline.spec.tables:
            known = (name for part in found for name in (part.table.name, part.table.source))
            if spec.glob and not any(fnmatchcase(name, spec.name) for name in known):
                raise ConfigError(
                    f"no table matches {spec.name}",
                    where=self.pipeline,
                    remedy="Check the name, and that the login may see its tables.",
                )
        return found

    def _asks(self, pipeline: Pipeline) -> list[Ask]:
        unreadable: dict[Key, StateError] = {}
        positions = self.books.positions(self.pipeline, unreadable=unreadable)
        busy, origin = self._busy(), pipeline.source.identity()
        asks = []
        for part in self._tables(pipeline):
            error = part.error or self.books.unreadable_at(unreadable, _key(part.table))
            measures = {} if error else {"source": origin, "target": TRACKED, **part.table.measures()}
            asks.append(self._ask(part.table, positions, busy, measures, error))
        for position in self._missing(pipeline, [name for ask in asks for name in (ask.table.name, ask.table.source)]):
            if position.plan is not None:
                table = pipeline.unresolved(TableSpec(name=position.table))
                asks.append(self._ask(table, positions, busy, {}, _gone(position, position.plan)))
        return asks

    def _missing(self, pipeline: Pipeline, found: Collection[str]) -> list[Position]:
        """Positions of tables that a glob stands for, and that are not there or cannot be read any more."""
        globs = [spec.name for spec in pipeline.spec.tables if spec.glob]
        known = self.books.positions(self.pipeline, unreadable={}) if globs else {}
        return [
            position
            for (_, name, _), position in known.items()
            if name not in found and any(fnmatchcase(name, glob) for glob in globs)
            if not any(fnmatchcase(name, pattern) for pattern in self.exclude)
        ]

    def _ask(
        self,
        table: Table,
        positions: Mapping[Key, Position],
        busy: Mapping[str, str],
        measures: Mapping[str, str],
        error: StrandlineError | None = None,
    ) -> Ask:
        held, position = busy.get(table.name, ""), positions.get(_key(table)) or Position(*_key(table))
        error = error or foreign(position)
        changed = "" if error or held else table.columns_changed(position.schema)
        if changed and table.schema == "stop" and position.plan is None:
            error = _stop(table, changed)
        anew = bool(changed) and table.schema == "reload"
        if anew:
            position = position.moved(None)
        if self.every is not None:
            position = replace(position, due=attention.due(self.books.state.now(), self.every))
        if self.stuck_after is not None:
            position = replace(position, patience=self.stuck_after.total_seconds())
        return Ask(table, position, measures, busy=held, full=anew, error=error)

    def _attention(self, tables: Sequence[str]) -> list[tuple[str, str]]:
        """What a person should look at, as it stood before this run."""
        now = self.books.state.now()
        known = self.books.positions(self.pipeline, unreadable={})
        stood = {key[1]: position for key, position in known.items() if key[1] in tables}
        latest = self.books.state.read("run", where={"pipeline": self.pipeline}, newest=attention.FAILURES)
        found = [(name, attention.stuck(position, now, self.stuck_after)) for name, position in stood.items()]
        found += [(name, attention.missed(position.due, now)) for name, position in stood.items()]
        found += [(tables[0], attention.failing(latest))] if tables else []
        return [(name, text) for name, text in found if text]

    def _busy(self) -> dict[str, str]:
        """Who is at work on which table."""
        now, leases = self.books.state.now(), self.books.leases(self.pipeline)
        return {name: f"{lease.holder}, run {lease.run_id}" for name, lease in leases.items() if lease.held(now)}


def _gone(position: Position, plan: TablePlan) -> StrandlineError:
    return SourceError(
        f"the plan of run {plan.run_id} is open, and {_MISSING}",
        remedy=f'If it is gone for good: Tracker(…, exclude=["{position.table}"])',
    )


def foreign(position: Position) -> StrandlineError | None:
    """Why a position is not the Tracker's: what it measures is the target of a pipeline of the config."""
    if position.measures.get("target", TRACKED) == TRACKED:
        return None
    return ConfigError(
        f'"{position.pipeline}" is a pipeline of a config, and its watermark tells what its target holds',
        where=f"{position.pipeline}.{position.table}",
        remedy="Give the job a name of its own: Tracker(…, pipeline=…)",
    )


def _stop(table: Table, changed: str) -> StrandlineError:
    return ChangedError(
        f"the columns changed: {changed}",
        where=table.where_text,
        why='The table says schema="stop".',
        remedy='Run once with schema="evolve" to take the change, or undo it.',
    )


def _resolved(parts: Sequence[Resolved]) -> list[Table]:
    """All of them; raises what keeps one from being read."""
    for part in parts:
        if part.error is not None:
            raise part.error
    return [part.table for part in parts]


def _as_planned(position: Position) -> Planned:
    """A plan that is open, with what the position knows of its table."""
    assert position.plan is not None
    columns = tuple(Column(name, kind) for name, kind in json.loads(position.schema or "[]"))
    name = position.table
    table = Table(position.pipeline, name, name, name, position.stage, Mode.MERGE, None, columns=columns)
    return Planned(table, position, resumed(position.plan), position.measures)


def _key(table: Table) -> Key:
    return (table.pipeline, table.name, table.stage)


def _in_one(source: Source, part: Planned) -> Planned:
    """A new plan reads its window as one: the caller's job knows no slices. Where a source cannot read all of it in one
    way, what lies beyond its first cut is for the next plan."""
    plan = part.plan
    if part.position.plan is not None or plan.window is None or not plan.slices:
        return part
    first, window = plan.slices[0], plan.window
    observed = plan.observed
    if first.keys is None and first.window.high != window.high:
        observed = observed_below(source, part.table, first.window.high, Horizon(window.high, observed))
        window = Window(window.low, first.window.high)
    whole = Slice(window, read_from=first.read_from, nulls=any(one.nulls for one in plan.slices))
    return replace(part, plan=replace(plan, window=window, slices=(whole,), observed=observed))

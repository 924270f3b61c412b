"""A pipeline whose ends are all in memory: polled as `Project.sync` does it, killed, and compared row by row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from strandline.core.backfill import plan_backfill
from strandline.core.books import Books, Caller, new_id
from strandline.core.events import Event, Listener
from strandline.core.plan import Ask, Planned, make_plan
from strandline.core.position import Position, Status
from strandline.core.protocols import Sink, State
from strandline.core.run import Hop, Outcome
from strandline.core.table import Column, Mode, Table
from strandline.core.watermark import Cursor, Kind
from strandline.state.memory import MemoryState
from strandline.testing.database import Clock, Row, SteppedClock, watermark
from strandline.testing.memory import MemorySink, MemorySource

PIPELINE, STAGE = "shop", "sync"


class Killed(BaseException):
    """The process ends here: no handler of the product sees it, as none sees SIGKILL."""


def nobody(_: Event) -> None:
    """Listens to nothing."""


class World:
    """Everything that outlives a process: the clock, the database, the target and the state.

    `state` and `into`: a store and a sink of another kind, in place of those in memory.
    """

    def __init__(
        self,
        *,
        barrier: bool = True,
        key_slices: bool = False,
        state: State | None = None,
        into: Sink | None = None,
        commit_every: int = 1,
    ) -> None:
        self.clock = Clock()
        self.source = MemorySource(SteppedClock(self.clock), barrier=barrier, key_slices=key_slices)
        self.sink = MemorySink()
        self.into: Sink = into or self.sink
        self.state: State = state or MemoryState(self.clock.now)
        self.commit_every = commit_every
        self.tables: dict[str, Table] = {}

    def table(self, name: str = "orders", *, kind: Kind = Kind.TIMESTAMP, **settings: Any) -> Table:
        """A table `id, value, moved` keyed by id, in the source and in the pipeline."""
        cursor = Cursor("moved", kind, nullable=True)
        columns = (Column("id", "bigint"), Column("value", "string"), Column("moved", kind.value))
        self.source.create(name, columns, cursor, ["id"])
        plain = Table(PIPELINE, name, name, name, STAGE, Mode.MERGE, None)
        self.tables[name] = replace(plain, cursor=cursor, key=("id",), columns=columns)
        return self.change(name, **settings)

    def change(self, name: str = "orders", **settings: Any) -> Table:
        """What the user writes into the config."""
        self.tables[name] = replace(self.tables[name], **settings)
        return self.tables[name]

    def write(self, *ids: int, value: str = "new", table: str = "orders") -> None:
        """One committed transaction, a second after the one before."""
        self.clock.advance(1)
        self.source.write(table, *({"id": id, "value": value} for id in ids))
        self.clock.advance(1)

    # one process's work

    def books(self) -> Books:
        return Books(self.state)

    def position(self, table: str = "orders") -> Position:
        return self.books().positions(PIPELINE).get((PIPELINE, table, STAGE)) or Position(PIPELINE, table, STAGE)

    def asks(self, books: Books, *, full: bool = False) -> list[Ask]:
        positions, leases = books.positions(PIPELINE), books.leases(PIPELINE)
        asks = []
        for table in self.tables.values():
            lease = leases.get(table.name)
            asks.append(
                Ask(
                    table,
                    positions.get((PIPELINE, table.name, STAGE)) or Position(PIPELINE, table.name, STAGE),
                    {"source": self.source.identity(), "target": self.into.identity(table), **table.measures()},
                    busy=lease.holder if lease and lease.held(self.state.now()) else "",
                    full=full,
                )
            )
        return asks

    def plan(self, *, limit: int | None = None, full: bool = False, run_id: str = "") -> list[Planned]:
        return make_plan(
            self.source, self.asks(self.books(), full=full), run_id=run_id, limit=limit, now=self.books().now()
        )

    def poll(
        self,
        listener: Listener = nobody,
        *,
        limit: int | None = None,
        books: Books | None = None,
        sleep: Callable[[float], None] | None = None,
    ) -> dict[str, Outcome]:
        """What one `sync` does, by a process that remembers nothing: plan, idle tables in one write, then the work."""
        books = books or self.books()
        run_id = new_id(self.clock.now())
        planned = make_plan(self.source, self.asks(books), run_id=run_id, limit=limit, now=books.now())
        self._write_idle(books, planned)
        work = [part for part in planned if part.plan.work]
        if not work:
            return {}
        run = books.run_started(run_id, PIPELINE, Caller("test"), len(planned))
        books.close_abandoned([*(part.position.run_id for part in work), *books.silent(PIPELINE)])
        hop = self._hop(run_id, books, listener, sleep)
        outcomes = {outcome.table: outcome for outcome in hop.run(work, books.leases(PIPELINE))}
        failed = [str(outcome.error) for outcome in outcomes.values() if outcome.error]
        books.run_ended(run, Status.FAILED if failed else Status.COMPLETED, failed[0] if failed else "")
        return outcomes

    def backfill(self, low: str | None, high: str | None, listener: Listener = nobody) -> Outcome | None:
        """As `Project.backfill` does it; None: no row is in that range."""
        books, run_id = self.books(), new_id(self.clock.now())
        (ask,) = self.asks(books)
        planned = plan_backfill(self.source, ask, low, high, run_id=run_id)
        if not planned.plan.work:
            return None
        hop = self._hop(run_id, books, listener)
        return hop.run([planned], books.leases(PIPELINE))[0]

    def _hop(self, run_id: str, books: Books, listener: Listener, sleep: Callable[[float], None] | None = None) -> Hop:
        wait, every = sleep or self.clock.advance, self.commit_every
        return Hop(run_id, PIPELINE, self.source, self.into, books, listener, sleep=wait, commit_every=every)

    def _write_idle(self, books: Books, planned: Sequence[Planned]) -> None:
        rested = [(part.position, part.resting()) for part in planned if not part.plan.work]
        moved = [after for before, after in rested if after != before]
        if moved:
            books.write(moved)

    def poll_killed(self, at: int, *, limit: int | None = None) -> bool:
        """Poll, and die at the event of this index; False if it ended before."""
        seen = 0

        def listener(_: Event) -> None:
            nonlocal seen
            seen += 1
            if seen > at:
                raise Killed

        try:
            self.poll(listener, limit=limit)
        except Killed:
            return True
        return False

    def expire_leases(self) -> None:
        self.clock.advance(Books(self.state).lease_time.total_seconds() + 1)

    def bury(self) -> None:
        """The process that was killed is gone for good: its connection is closed, and its leases have run out."""
        self.state.close()
        leases = self.state.read("lease", [PIPELINE])
        self.state.put([replace(lease, fields={**lease.fields, "expires_at": ""}) for lease in leases])

    # what must be true

    def source_rows(self, table: str = "orders") -> list[Row]:
        """The committed rows below the watermark."""
        mark, cursor = self.position(table).watermark, self.source.held(table).cursor
        if mark is None:
            return []
        return [row for row in self.source.rows(table) if watermark(cursor, row["moved"]) < mark]

    def target_rows(self, table: str = "orders") -> list[Row]:
        """The target's rows, by id, repeated ones included."""
        return sorted(self.sink.rows(table), key=lambda row: row["id"])

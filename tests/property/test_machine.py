"""Everything that may happen to one table, in any order: late commits, crashes at every event, zombies, people.

Below the watermark the target equals the source at every moment, and the watermark falls only when a person moves it.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from itertools import count

import pytest
from hypothesis import Phase as SearchPhase
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from strandline.core.batch import Batch
from strandline.core.errors import ChangedError, CommitUnknownError, TargetError, TransientError
from strandline.core.events import Event
from strandline.core.position import Position, Status
from strandline.core.reconcile import reconcile, settle
from strandline.core.table import MaxStall
from strandline.core.watermark import Kind, Watermark
from strandline.core.window import Slice, Window
from strandline.state.memory import MemoryState
from strandline.testing.database import Phase, Transaction, watermark
from strandline.testing.memory import Candidate, MemorySink, Target
from strandline.testing.world import Killed, World

IDS = st.integers(1, 6)
VALUES = st.sampled_from("abc")
EVENTS = st.integers(0, 12)
SECONDS = st.sampled_from([0.000001, 0.5, 20.0, 61.0])


class Machine(RuleBasedStateMachine):
    transactions: Bundle[Transaction] = Bundle("transactions")

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.world.table()
        self.highest: Watermark | None = None
        self.backups: list[Target] = []
        self.moved = self.restarted = False

    @initialize(
        kind=st.sampled_from([Kind.TIMESTAMP, Kind.INTEGER]),
        rows=st.integers(1, 3),
        by_key=st.booleans(),
        back=st.sampled_from([None, None, 1, 30]),
        skips=st.sampled_from([False, False, True]),
        every=st.sampled_from([1, 3]),
    )
    def start(self, kind: Kind, rows: int, by_key: bool, back: int | None, skips: bool, every: int) -> None:
        self.world = World(key_slices=by_key, commit_every=every)
        lookback = timedelta(seconds=back) if back and kind is Kind.TIMESTAMP else back
        max_stall = MaxStall(timedelta(seconds=30), "skip") if skips else None
        self.world.table(kind=kind, slice_rows=rows, lookback=lookback, max_stall=max_stall)

    # the database

    @rule(target=transactions)
    def begin(self) -> Transaction:
        return self.world.source.begin()

    @rule(transaction=transactions, id=IDS, value=VALUES, late=st.booleans())
    def write(self, transaction: Transaction, id: int, value: str, late: bool) -> None:
        """Stamped when the transaction began (`late`), or when the statement does."""
        locked = any(
            ("orders", (id,)) in other.writes for other in self.world.source.in_flight() if other is not transaction
        )
        if transaction.phase is Phase.OPEN and not locked:
            transaction.write("orders", {"id": id, "value": value}, at=None if late else self.world.source.clock.now())

    @rule(transaction=transactions)
    def prepare(self, transaction: Transaction) -> None:
        if transaction.phase is Phase.OPEN:
            transaction.prepare()

    @rule(transaction=transactions, commit=st.sampled_from([True, True, False]))
    def end(self, transaction: Transaction, commit: bool) -> None:
        if transaction.phase is not Phase.ENDED:
            (transaction.commit if commit else transaction.rollback)()

    @rule(id=IDS, value=VALUES)
    def write_and_commit(self, id: int, value: str) -> None:
        transaction = self.world.source.begin()
        self.write(transaction, id, value, late=False)
        transaction.commit()

    @rule(seconds=SECONDS)
    def wait(self, seconds: float) -> None:
        self.world.clock.advance(seconds)

    @rule(seconds=SECONDS)
    def clock_goes_back(self, seconds: float) -> None:
        """While nobody is at work, and seen by the next look: more than the guard between two looks is not promised."""
        self.world.expire_leases()
        self.poll(None)
        self.world.source.clock.advance(-seconds)
        self.poll(None)

    # runs

    @rule(limit=st.sampled_from([None, None, 1, 2]))
    def poll(self, limit: int | None) -> None:
        for outcome in self.world.poll(limit=limit).values():
            assert outcome.status is Status.COMPLETED, outcome.error

    @rule(at=EVENTS, limit=st.sampled_from([None, None, 1, 2]))
    def poll_and_die_at_an_event(self, at: int, limit: int | None) -> None:
        self.world.poll_killed(at, limit=limit)

    @rule(after=st.booleans())
    def poll_and_die_at_the_sinks_commit(self, after: bool) -> None:
        try:
            self.at_commit(after, Killed())
            self.world.poll()
        except Killed:
            return
        finally:
            self.world.sink.forget_actions()

    @rule(after=st.booleans(), error=st.sampled_from([TransientError, CommitUnknownError]))
    def poll_through_trouble(self, after: bool, error: type[TransientError]) -> None:
        self.at_commit(after, error("connection lost"))
        for outcome in self.world.poll().values():
            assert outcome.status is Status.COMPLETED, outcome.error
        self.world.sink.forget_actions()

    @rule(at=EVENTS, id=IDS)
    def zombie_wakes_at_an_event(self, at: int, id: int) -> None:
        """It hangs at this event; its lease runs out and others poll and write; then it goes on as if nothing was."""
        seen = 0

        def listener(_: Event) -> None:
            nonlocal seen
            seen += 1
            if seen == at + 1:
                self.overtake(id)

        self.world.poll(listener)

    @rule(after=st.booleans(), id=IDS)
    def zombie_hangs_in_the_sink(self, after: bool, id: int) -> None:
        self.world.sink.at_commit(**{"after" if after else "before": lambda: self.overtake(id)})
        self.world.poll()
        self.world.sink.forget_actions()

    def overtake(self, id: int) -> None:
        self.world.expire_leases()
        self.world.poll()
        self.write_and_commit(id, "while the zombie slept")
        self.world.clock.advance(1)
        self.world.poll()

    def at_commit(self, after: bool, error: BaseException) -> None:
        def action() -> None:
            raise error

        self.world.sink.at_commit(**{"after" if after else "before": action})

    # people

    @rule(share=st.floats(0, 1))
    def person_moves_the_watermark_back(self, share: float) -> None:
        """Under no lease, the target fenced and the open intent settled, as `watermark set` does. Not together with
        ids that start again: then the watermark no longer says how high the target's ids are."""
        if self.restarted:
            return
        self.moved, world = True, self.world
        world.expire_leases()
        epoch = world.position().epoch + 1
        position = settle(world.sink.fence(world.tables["orders"], epoch), world.position())
        seen = sorted(
            {batch.high for batch in world.sink.log if position.watermark and batch.high < position.watermark}
        )
        back = seen[int(share * (len(seen) - 1))] if seen and share else None
        world.books().write([position.moved(back)])
        self.highest = back

    @rule(replans=st.booleans())
    def person_gives_up_the_plan_or_accepts_the_watermark(self, replans: bool) -> None:
        """As `retry --replan` and `watermark set --accept` do."""
        world = self.world
        world.expire_leases()
        epoch = world.position().epoch + 1
        position = settle(world.sink.fence(world.tables["orders"], epoch), world.position())
        dropped = replace(position, plan=None, intent=None, epoch=epoch)
        world.books().write([dropped if replans else position.moved(position.watermark)])

    @rule(back=st.sampled_from([None, 1, 30, 100]), skips=st.booleans(), rows=st.integers(1, 3))
    def config_changes(self, back: int | None, skips: bool, rows: int) -> None:
        timely = self.world.source.held("orders").cursor.kind is Kind.TIMESTAMP
        lookback = timedelta(seconds=back) if back and timely else back
        max_stall = MaxStall(timedelta(seconds=30), "skip") if skips else None
        self.world.change(lookback=lookback, max_stall=max_stall, slice_rows=rows)

    @precondition(lambda self: self.world.source.held("orders").cursor.kind is Kind.INTEGER)
    @rule()
    def ids_start_again(self) -> None:
        """While nobody is at work and nothing is in flight, and seen by the next look."""
        world, held = self.world, self.world.source.held("orders")
        if not world.source.in_flight() and not self.moved:
            self.restarted = True
            world.expire_leases()
            self.poll(None)
            held.sequence, held.last_id = count(1), 0
            self.poll(None)

    @precondition(lambda self: self.world.sink.backup("orders") is not None)
    @rule(after=st.booleans(), share=st.floats(0, 1))
    def zombie_wakes_after_a_person_moved_the_watermark(self, after: bool, share: float) -> None:
        """It hangs in the sink; its lease runs out, and its batch is given up. A target that does not exist cannot be
        fenced: there the zombie's batch comes in, and the next run stops and says so."""
        self.world.sink.at_commit(
            **{"after" if after else "before": lambda: self.person_moves_the_watermark_back(share)}
        )
        self.world.poll()
        self.world.sink.forget_actions()

    @precondition(lambda self: self.world.position().watermark is not None)
    @rule(start=st.floats(0, 1), at=st.one_of(st.none(), EVENTS))
    def backfill(self, start: float, at: int | None) -> None:
        """From some end of a batch on; killed at an event, or not."""
        world = self.world
        mark = world.position().watermark
        ends = sorted({batch.high for batch in world.sink.log if mark is not None and batch.high < mark})
        low = ends[int(start * (len(ends) - 1))].text if ends and start else None
        world.expire_leases()
        seen = 0

        def listener(_: Event) -> None:
            nonlocal seen
            seen += 1
            if at is not None and seen > at:
                raise Killed

        try:
            outcome = world.backfill(low, None, listener)
            assert outcome is None or outcome.status is Status.COMPLETED, outcome.error
        except Killed:
            return
        except ChangedError:
            assert world.position().plan is not None

    @precondition(lambda self: self.world.position().batch is not None)
    @rule(dropped=st.booleans())
    def target_is_lost(self, dropped: bool) -> None:
        """Found out before anything is written to it; then somebody brings it back."""
        world = self.world
        now = world.sink.backup("orders")
        older = [backup for backup in self.backups if not self.accepted(backup)]
        if not dropped and not older:
            return
        lost = None if dropped else older[-1]
        world.sink.restore("orders", lost)
        world.expire_leases()
        for outcome in world.poll().values():
            assert isinstance(outcome.error, TargetError)
        assert world.sink.backup("orders") == lost
        world.sink.restore("orders", now)

    def accepted(self, backup: Target) -> bool:
        """Whether a target like this would be taken for the present one, or for the one that is to come."""
        try:
            for receipt in backup.receipts.values():
                reconcile(receipt, self.world.position())
        except TargetError:
            return False
        return True

    # what is always true

    @invariant()
    def below_the_watermark_target_equals_source(self) -> None:
        """Apart from a range that is known to be open: there rows may still appear, and are brought later."""
        target = {row["id"]: row for row in self.world.target_rows()}
        gap, cursor = self.world.position().gap, self.world.source.held("orders").cursor
        for row in self.world.source_rows():
            if gap is None or (gap.low is not None and watermark(cursor, row["moved"]) < gap.low):
                assert target.get(row["id"]) == row

    @invariant()
    def no_row_is_there_twice_and_none_was_made_up(self) -> None:
        times = Counter(row["id"] for row in self.world.target_rows())
        assert set(times) <= {row["id"] for row in self.world.source.rows("orders")}
        assert all(number == 1 for number in times.values())

    @invariant()
    def the_watermark_never_falls(self) -> None:
        mark = self.world.position().watermark
        if self.highest is not None:
            assert mark is not None and mark >= self.highest
        self.highest = mark

    @invariant()
    def no_batch_is_applied_twice(self) -> None:
        orders = [batch.order for batch in self.world.sink.log]
        assert orders == sorted(set(orders))
        backup = self.world.sink.backup("orders")
        if backup is not None and backup not in self.backups:
            self.backups.append(backup)

    def teardown(self) -> None:
        """Everything ends, and a last poll brings what is left."""
        for transaction in self.world.source.in_flight():
            transaction.commit()
        self.world.clock.advance(100_000)  # wherever the source's clock was set, it has caught up
        held, mark = self.world.source.held("orders"), self.world.position().watermark
        while held.cursor.kind is Kind.INTEGER and mark is not None and held.last_id < int(mark.text):
            self.write_and_commit(1, "ids have caught up")
        self.poll(None)
        self.poll(None)
        assert self.world.target_rows() == self.world.source.rows("orders")
        self.the_watermark_never_falls()
        position = self.world.position()
        assert position.batches == len(self.world.sink.log)
        assert position.totals.rows_inserted == len(self.world.target_rows())


QUICK = settings(  # `make soak` asks for more
    max_examples=int(os.environ.get("STRANDLINE_EXAMPLES", "100")),
    stateful_step_count=int(os.environ.get("STRANDLINE_STEPS", "40")),
)
TestMachine = Machine.TestCase
TestMachine.settings = QUICK
# Long walks find a mistake in fewer of them.
SEARCH = settings(
    QUICK,
    max_examples=5_000,
    stateful_step_count=80,
    database=None,
    phases=[SearchPhase.generate],
    derandomize=True,
)
PLAIN_SEARCH = settings(SEARCH, stateful_step_count=30)


class PlainMachine(Machine):
    """Without what makes up for a mistake of the barrier: ranges looked at again, clocks, people."""

    @initialize(kind=st.sampled_from([Kind.TIMESTAMP, Kind.INTEGER]), rows=st.integers(1, 3))
    def start_plain(self, kind: Kind, rows: int) -> None:
        self.start(kind, rows, by_key=False, back=None, skips=False, every=1)

    def start(self, kind: Kind, rows: int, by_key: bool, back: int | None, skips: bool, every: int) -> None:
        super().start(kind, rows, by_key, back, skips, every)

    def clock_goes_back(self, seconds: float) -> None:
        """No rule here."""

    def config_changes(self, back: int | None, skips: bool, rows: int) -> None:
        """No rule here."""

    def ids_start_again(self) -> None:
        """No rule here."""

    def backfill(self, start: float, at: int | None) -> None:
        """No rule here."""


def _no_rule(*_: object, **__: object) -> None:
    """Takes a rule's place."""


class CalmMachine(PlainMachine):
    """Transactions and polls alone: a mistake of the barrier is not hidden for long by what else may happen."""

    poll_and_die_at_an_event = poll_and_die_at_the_sinks_commit = poll_through_trouble = _no_rule
    zombie_wakes_at_an_event = zombie_hangs_in_the_sink = zombie_wakes_after_a_person_moved_the_watermark = _no_rule
    person_moves_the_watermark_back = person_gives_up_the_plan_or_accepts_the_watermark = target_is_lost = _no_rule


# A machine that cannot fail proves nothing: each of these is a mistake that peers make, and it must be found.


def _barrier_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Candidate, "proven", True)


def _prepared_transactions_ignored(patch: pytest.MonkeyPatch) -> None:
    def proven(candidate: Candidate) -> bool:
        return all(transaction.phase is not Phase.OPEN for transaction in candidate.noted)

    patch.setattr(Candidate, "proven", property(proven))


def _rows_at_the_watermark_left_out(patch: pytest.MonkeyPatch) -> None:
    def contains(window: Window, value: Watermark) -> bool:
        return (window.low is None or window.low < value) and value < window.high

    patch.setattr(Window, "contains", contains)


def _watermark_moved_before_the_sink(patch: pytest.MonkeyPatch) -> None:
    def intending(position: Position, batch: Batch) -> Position:
        return replace(position, intent=batch, watermark=batch.watermark)

    patch.setattr(Position, "intending", intending)


def _batch_numbers_restarted(patch: pytest.MonkeyPatch) -> None:
    real = Position.next

    def next_(position: Position, slice_: Slice, store: str, attempt: str) -> Batch:
        return replace(real(position, slice_, store, attempt), number=1)

    patch.setattr(Position, "next", next_)


def _state_not_compared(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MemoryState, "_compare", lambda *_: None)


def _intent_not_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Position, "intending", lambda position, _: position)


def _target_not_fenced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MemorySink, "fence", lambda sink, table, _: sink.applied(table))


def _clock_not_compared(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("strandline.core.plan.went_back", lambda *_: None)


def _range_passed_over_and_forgotten(patch: pytest.MonkeyPatch) -> None:
    real = Position.completed
    patch.setattr(Position, "completed", lambda position: replace(real(position), gap=None))


def _watermark_follows_the_batch_down(patch: pytest.MonkeyPatch) -> None:
    real = Position.next

    def next_(position: Position, slice_: Slice, store: str, attempt: str) -> Batch:
        return replace(real(position, slice_, store, attempt), watermark=slice_.window.high)

    patch.setattr(Position, "next", next_)


@pytest.mark.parametrize(
    ("machine", "mistake"),
    [
        (CalmMachine, _barrier_ignored),
        (CalmMachine, _prepared_transactions_ignored),
        (PlainMachine, _watermark_moved_before_the_sink),
    ],
)
def test_a_plainer_machine_finds(
    machine: type[Machine], mistake: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mistake(monkeypatch)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(machine, settings=PLAIN_SEARCH)


@pytest.mark.parametrize(
    "mistake",
    [
        _rows_at_the_watermark_left_out,
        _batch_numbers_restarted,
        _state_not_compared,
        _intent_not_kept,
        _target_not_fenced,
        _clock_not_compared,
        _range_passed_over_and_forgotten,
        _watermark_follows_the_batch_down,
    ],
)
def test_the_machine_finds(mistake: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    mistake(monkeypatch)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(Machine, settings=SEARCH)

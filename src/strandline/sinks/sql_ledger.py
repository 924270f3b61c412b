"""The ledger: a table beside the targets that says which batch each of them holds, and which are shut out.

Its row moves in the transaction that moves the rows, and first: whoever comes second waits there and then finds that
it is no longer his turn. The row is there before the first batch.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from strandline.core.batch import Applied, Batch, Receipt
from strandline.core.errors import BatchConflictError, TargetError, WindowError
from strandline.core.table import Table
from strandline.core.watermark import Kind, Watermark
from strandline.sinks.sql_dialect import LEDGER, Database, Place, Session, TargetDialect

CONFLICT = """\
Another state store feeds this target, or an older run is still alive.
See what the target holds (it asks before it changes anything):   strandline watermark import --from-target -t TABLE"""

_ADOPTED = "adopted"  # in the place of a stage: a row that holds no batch and stays
_TURN = threading.Lock()
_KEY = ("target", "pipeline", "table_name", "stage")
_COUNTS = ("rows_read", "rows_inserted", "rows_updated", "rows_deleted")
_READ = (
    "pipeline",
    "table_name",
    "stage",
    "owner",
    "made",
    "epoch",
    "number",
    "fence",
    "batch",
    *_COUNTS,
    "last_moved",
)


@dataclass(frozen=True)
class Entry:
    """One row: what one table of one pipeline brought to one target."""

    pipeline: str
    table: str
    stage: str
    owner: bool
    made: str  # which incarnation of the target it speaks of
    epoch: int
    number: int
    fence: int
    batch: Batch | None
    applied: Applied

    @classmethod
    def none(cls, table: Table) -> Entry:
        """What a row says before the first batch."""
        return cls(table.pipeline, table.name, table.stage, False, "", 0, 0, 0, None, Applied())

    def of(self, table: Table) -> bool:
        return (self.pipeline, self.table, self.stage) == (table.pipeline, table.name, table.stage)

    def receipt(self) -> Receipt | None:
        return None if self.batch is None else Receipt(self.batch, self.applied, epoch=self.fence)

    def held(self, batch: Batch, table: Table) -> Receipt | None:
        """The receipt for this batch; None where it is still to come. BatchConflictError: it never will be."""
        if self.batch is not None and batch.same(self.batch):
            return self.receipt()
        if (self.epoch, self.number) >= batch.order or self.fence > batch.epoch:
            raise BatchConflictError(
                f"the target has moved past {batch}: it counts up to {max(self.epoch, self.fence)}.{self.number}",
                where=table.where_text,
                why="Another run got there, or a change of the watermark was begun and did not end: give it again.",
                remedy=CONFLICT,
            )
        return None


@dataclass(frozen=True)
class Seen:
    """What a look at a target found. `void`: entries of a table that was dropped, or made anew and is empty."""

    made: str | None  # None: there is no table
    entries: Sequence[Entry] = ()
    void: Sequence[Entry] = ()

    def ours(self, table: Table) -> Entry | None:
        return next((entry for entry in self.entries if entry.of(table)), None)

    @property
    def adopted(self) -> bool:
        """Whether the target was taken over with rows that another hand brought."""
        return any(entry.stage == _ADOPTED for entry in self.entries)


def create_text(dialect: TargetDialect, place: Place) -> str:
    name, short = dialect.name_type(190), dialect.name_type(64)
    return (
        f"CREATE TABLE IF NOT EXISTS {dialect.place(place.beside(LEDGER))} (\n"
        f"  target {short} NOT NULL, pipeline {name} NOT NULL, table_name {name} NOT NULL, stage {short} NOT NULL,\n"
        f"  owner smallint, made {short} NOT NULL,\n"
        "  epoch bigint NOT NULL, number bigint NOT NULL, fence bigint NOT NULL, "
        f"batch {dialect.long_text},\n"
        f"  {', '.join(f'{name} bigint NOT NULL' for name in _COUNTS)}, last_moved {short},\n"
        f"  changed_at {dialect.stamp} NOT NULL,\n"
        "  PRIMARY KEY (target, pipeline, table_name, stage), UNIQUE (target, owner))"
    )


class Ledger:
    """The rows of one target."""

    def __init__(self, database: Database, place: Place) -> None:
        self._database = database
        self._dialect = database.dialect
        self._place = place
        self._name = self._dialect.place(place.beside(LEDGER))

    def create(self) -> None:
        """Unless it is there. Two at once trip over each other in PostgreSQL, so that tables of one run take turns;
        another process's turn is for the database to say (`TransientError`)."""
        with _TURN:
            self._database.run(create_text(self._dialect, self._place))

    def read(self, session: Session | Database) -> list[Entry]:
        target = self._dialect.string(self._place.table)
        found = session.rows(f"SELECT {', '.join(_READ)} FROM {self._name} WHERE target = {target}")
        try:
            return [_entry(row) for row in found]
        except (ValueError, WindowError) as error:
            raise TargetError(
                f"the ledger's row for {self._place} cannot be read: {error}",
                why="It was edited by hand: which batches the target holds cannot be told.",
                remedy="Bring the row back as it was, or load the table again:   "
                f"TRUNCATE TABLE {self._dialect.place(self._place)}, "
                f"DELETE FROM {self._name} WHERE target = {target}, and then   strandline sync --full -t TABLE",
            ) from error

    def claim(self, table: Table, made: str, seen: Sequence[Entry]) -> Entry:
        """Our row, made if there is none. What was seen of a target that is gone speaks of nothing any more.

        TargetError if somebody else was quicker to claim the target, unless it is shared.
        """
        with self._alone() as session:
            for entry in seen:
                session.run(
                    f"DELETE FROM {self._name} WHERE {self._key(entry)} AND number = {entry.number} "
                    f"AND epoch = {entry.epoch} AND fence = {entry.fence}"
                )
            for owner in ("1", "NULL") if table.shared else ("1",):
                session.run(self._insert(table, made, owner))
            entries = self.read(session)
        ours = next((entry for entry in entries if entry.of(table)), None)
        check_owner(table, self._place, entries)
        if ours is None:
            raise TargetError(f"{self._place} was claimed by another table just now", where=table.where_text)
        return ours

    def adopt(self, table: Table, made: str) -> None:
        """Claim a target that has rows of another hand, which is remembered."""
        with self._alone() as session:
            session.run(self._insert(replace(table, stage=_ADOPTED), made, "NULL"))
        self.claim(table, made, ())

    def _insert(self, table: Table, made: str, owner: str) -> str:
        string = self._dialect.string
        names = [string(text) for text in (self._place.table, table.pipeline, table.name, table.stage)]
        rest = [owner, string(made), "0", "0", "0", "NULL", *("0" for _ in _COUNTS), "NULL", self._dialect.now]
        values = dict(zip(("target", *_READ, "changed_at"), [*names, *rest], strict=True))
        return self._dialect.unless_there(self._name, values, (_KEY, ("target", "owner")))

    def ready(self, session: Session, entry: Entry, batch: Batch) -> bool:
        """Whether `move` would move; the row is locked from then on."""
        lock, select = self._dialect.lock(self._name), f"SELECT 1 FROM {self._name} WHERE {self._turn(entry, batch)}"
        if lock:
            session.run(lock)
        return bool(session.rows(select if lock else f"{select} FOR UPDATE"))

    def move(self, session: Session, entry: Entry, batch: Batch, read: Applied, made: str) -> bool:
        """Whether it is this batch's turn: the row still says what it said, and no fence stands in the way."""
        string = self._dialect.string
        sets = {
            "epoch": str(batch.epoch),
            "number": str(batch.number),
            "fence": str(batch.epoch),
            "batch": string(batch.to_json()),
            "made": string(made),
            "rows_read": str(read.rows_read),
            "last_moved": self._last(read),
            "changed_at": self._dialect.now,
        }
        listed = ", ".join(f"{name} = {value}" for name, value in sets.items())
        if lock := self._dialect.lock(self._name):
            session.run(lock)
        moved = session.run(f"UPDATE {self._name} SET {listed} WHERE {self._turn(entry, batch)}")
        if moved > 1:
            raise TargetError(
                f"the ledger has {moved} rows for {self._place}, not one",
                why=f"Somebody wrote to {LEDGER}: nothing here keeps its keys unique but Strandline.",
                remedy=f"Delete the copies from {self._name}, then run again. Nothing was written.",
            )
        return moved == 1

    def count(self, session: Session, entry: Entry, read: Applied, applied: Applied) -> None:
        """What the batch did, into the row that `move` moved and that knows what was `read` by then."""
        listed = ", ".join(f"{name} = {getattr(applied, name)}" for name in _COUNTS)
        if applied.last_value != read.last_value:
            listed += f", last_moved = {self._last(applied)}"
        session.run(f"UPDATE {self._name} SET {listed} WHERE {self._key(entry)}")

    def _last(self, applied: Applied) -> str:
        last = applied.last_value
        return "NULL" if last is None else self._dialect.string(f"{last.kind.value} {last.text}")

    def fence(self, entry: Entry, epoch: int) -> None:
        """Raise the fence, after whoever is at work on the row."""
        with self._alone() as session:
            session.run(
                f"UPDATE {self._name} SET fence = {epoch}, changed_at = {self._dialect.now} "
                f"WHERE {self._key(entry)} AND fence < {epoch}"
            )

    @contextmanager
    def _alone(self) -> Iterator[Session | Database]:
        """Where the database keeps no key, whoever writes to the ledger is the only one to."""
        lock = self._dialect.lock(self._name)
        if not lock:
            yield self._database
            return
        with self._database.transaction() as session:
            session.run(lock)
            yield session

    def _turn(self, entry: Entry, batch: Batch) -> str:
        still = f"number = {entry.number} AND epoch = {entry.epoch} AND fence <= {batch.epoch}"
        return f"{self._key(entry)} AND {still}"

    def _key(self, entry: Entry) -> str:
        string = self._dialect.string
        values = (self._place.table, entry.pipeline, entry.table, entry.stage)
        return " AND ".join(f"{name} = {string(value)}" for name, value in zip(_KEY, values, strict=True))


def check_owner(table: Table, place: Place, entries: Sequence[Entry]) -> None:
    """TargetError unless the first to claim the target was this table, or the user says that it is shared."""
    owner = next((entry for entry in entries if entry.owner), None)
    if table.shared or owner is None or (owner.pipeline, owner.table) == (table.pipeline, table.name):
        return
    raise TargetError(
        f"{place} belongs to {owner.pipeline}.{owner.table}",
        where=table.where_text,
        remedy="Give the table another `target:`, or set `shared: true` if several may write to it.",
    )


def _entry(row: Sequence[object]) -> Entry:
    pipeline, table, stage, owner, made, epoch, number, fence, batch, *counts, last = row
    numbers = [int(str(value)) for value in counts]
    kind, _, text = str(last or "").partition(" ")
    moved = None if last is None else Watermark(Kind(kind), text)
    held = None if batch is None else Batch.from_json(str(batch))
    if held is not None and held.order != (int(str(epoch)), int(str(number))):
        raise ValueError(f"it counts {epoch}.{number} and holds {held}")
    return Entry(
        str(pipeline), str(table), str(stage), owner is not None, str(made),
        int(str(epoch)), int(str(number)), int(str(fence)), held,
        Applied(numbers[0], numbers[1], numbers[2], numbers[3], moved),
    )  # fmt: skip

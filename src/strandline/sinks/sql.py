"""Databases as targets: each batch in one transaction that moves the ledger first and then the rows.

Owns whose a target is, and when a batch is applied, refused or already there. How a database is spoken to is its own
file's business; a batch's way into it is `sql_write`. Looking needs no Spark.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from strandline.core.batch import Applied, Batch, How, Receipt
from strandline.core.compare import Comparison, Form
from strandline.core.errors import ConfigError, StrandlineError, TargetError
from strandline.core.position import TablePlan
from strandline.core.protocols import Changes, Spark
from strandline.core.table import Mode, Table
from strandline.core.window import Extent, Repair
from strandline.endpoint import Endpoint
from strandline.sinks.sql_columns import TRIGGERS, Columns, check_key, own, settle_own
from strandline.sinks.sql_dialect import LEDGER, Database, Held, Place, SparkDatabase
from strandline.sinks.sql_ledger import Ledger, Seen, check_owner
from strandline.sinks.sql_stage import owner, sweep
from strandline.sources import names

if TYPE_CHECKING:
    from strandline.sinks.sql_history import TargetHistory
    from strandline.sinks.sql_server import ServerWrite
    from strandline.sinks.sql_side import SqlSide
    from strandline.sinks.sql_write import Write


class SqlSink(ABC):
    """Tables of one database; those without a schema lie in the target's `schema`, or where the server puts them."""

    def __init__(self, endpoint: Endpoint, database: Database, via: str = "spark") -> None:
        self.endpoint = endpoint
        self.warnings: list[tuple[str, str]] = []
        self._create = endpoint.flag("create", True)
        self._database = database
        self._via = via
        self._writes: dict[str, Write | ServerWrite] = {}  # under way, by table
        self._seen: dict[str, Seen] = {}  # by the last look, for the batch after it

    def identity(self, table: Table) -> str:
        return f"{self._database.identity()}/{self._place(table)}"

    def applied(self, table: Table) -> Receipt | None:
        seen = self._seen[table.name] = self._look(table, self._place(table))
        entry = seen.ours(table)
        return None if entry is None else entry.receipt()

    def apply(self, table: Table, batch: Batch, changes: Changes, *, how: How, repair: Repair | None = None) -> Applied:
        place = self._place(table)
        # Whoever applies has just asked. What changed since, the transaction finds: it moves the row that was seen.
        seen = self._seen.pop(table.name, None) or self._look(table, place)
        entry = seen.ours(table)
        if entry is not None and (held := entry.held(batch, table)) is not None:
            return held.applied
        if table.mode is Mode.SNAPSHOT and how is not How.REPAIR:
            how = How.REPLACE
        if (table.shared or seen.adopted) and how is How.FRESH:
            how = How.CHANGES  # rows of others may be there already
        write = self._writes[table.name] = self._write(table, place, batch, changes)
        try:
            return write.run(seen, how, repair, create=self._create)
        except StrandlineError:
            brought = self._brought(table, place, batch)
            if brought is None:
                raise
            return brought.applied
        finally:
            del self._writes[table.name]
            write.close()
            self._warn(table, write.warnings)

    @abstractmethod
    def _write(self, table: Table, place: Place, batch: Batch, changes: Changes) -> Write | ServerWrite:
        """A batch's way into the database, not gone yet."""

    def ask(self, sql: str) -> list[tuple[Any, ...]]:
        return self._database.rows(sql)

    def server(self) -> str:
        """Which server and database this is, as `Source.identity` says it of a source."""
        return self._database.identity()

    def foreign(self, table: Table) -> bool:
        """Whether the target has rows and belongs to nobody: the next batch would be refused."""
        place = self._place(table)
        return self._is_foreign(table, place, self._looked(table, place))

    def claim(self, table: Table) -> None:
        """Take a target over with the rows that another hand brought: every batch is merged into them."""
        place = self._place(table)
        seen = self._looked(table, place)
        if seen.made is not None and not seen.entries:
            ledger = Ledger(self._database, place)
            ledger.create()
            ledger.adopt(table, seen.made)

    def fence(self, table: Table, epoch: int) -> Receipt | None:
        """Whoever is at work has locked the ledger's row: raising its fence waits for them."""
        place = self._place(table)
        seen = self._look(table, place)
        if seen.made is None:
            return None
        ledger, entry = Ledger(self._database, place), seen.ours(table)
        if entry is None:
            ledger.create()
            entry = ledger.claim(table, seen.made, seen.void)
        ledger.fence(entry, epoch)
        return self.applied(table)

    def fit(self, table: Table, types: Mapping[str, str]) -> list[str]:
        """What the next batch, with columns of these Spark types, would change about a table that is there, in words.
        SchemaError where it would be refused."""
        held = self._database.find(self._place(table))
        if held is None:
            return []
        columns = self._settled(table, types, held)
        check_key(table, held, self._database.dialect)
        words = [f"column {column.name} ({column.type}) is not there yet" for column in columns.added]
        words += [f"column {column.name} becomes {column.type}" for column in (*columns.widened, *columns.changed)]
        return [*words, *columns.warnings, *([TRIGGERS.format(held.place)] if held.triggers else [])]

    def _settled(self, table: Table, types: Mapping[str, str], held: Held) -> Columns:
        dialect = self._database.dialect
        if self._via == "server":
            return settle_own(table, held, own(table, dialect), dialect)
        from strandline.sinks.delta_schema import check_columns, schema_of
        from strandline.sinks.sql_schema import settle, wanted

        schema = schema_of(types)
        check_columns(table, schema, dialect.name)
        new = wanted(table, schema, dialect, self._database.knows)
        return settle(table, schema, held, new, dialect, replaced=table.mode is Mode.SNAPSHOT)

    def forms(self, table: Table) -> dict[str, Form | None]:
        held = self._database.find(self._place(table))
        return {} if held is None else {column.name: self._database.dialect.form(column) for column in held.columns}

    def hashes(self) -> tuple[str, ...]:
        return self._database.dialect.hashes

    def side(self, comparison: Comparison) -> SqlSide:
        from strandline.sinks.sql_side import SqlSide

        held = self._database.find(self._place(comparison.table))
        if held is None:
            raise TargetError("there is no target yet", where=comparison.table.where_text)
        return SqlSide(self._database, held, comparison)

    def history(self, extent: Callable[[TablePlan], Extent]) -> TargetHistory:
        from strandline.sinks.sql_history import TargetHistory

        return TargetHistory(self._database, extent)

    def cancel(self, table: str | None = None) -> None:
        for name, write in list(self._writes.items()):
            if table in (None, name):
                write.cancel()

    def maintain(self, table: Table) -> None:
        """Drop the staging tables of dead attempts, and have the database look at its rows anew for its plans."""
        place = self._place(table)
        if self._look(table, place).made is None:
            return
        if table.name not in self._writes:
            sweep(self._database, place, owner(table, place))
        self._database.run(self._database.dialect.analyze(place))

    def rest(self) -> None:
        self._database.rest()

    def close(self) -> None:
        self._database.close()

    def _place(self, table: Table) -> Place:
        found = names.pattern(table.target)
        parts = [part for part in (found.schema, found.table) if part is not None]
        if found.wild or not all(self._database.dialect.fits_name(part) for part in parts):
            wrong = "is not a table name" if found.wild else "is too long a name"
            raise ConfigError(f'target "{table.target}" {wrong}', where=table.where_text)
        return Place(found.schema or self._database.schema, found.table)

    def _look(self, table: Table, place: Place) -> Seen:
        """What is there, and that it is ours to write to."""
        seen = self._looked(table, place)
        if self._is_foreign(table, place, seen):
            raise self._stranger(table, place)
        return seen

    def _is_foreign(self, table: Table, place: Place, seen: Seen) -> bool:
        known = table.shared or seen.made is None or seen.entries or seen.void
        return not known and not self._is_empty(place)

    def _looked(self, table: Table, place: Place) -> Seen:
        """What is there, and that no other table of ours has it.

        A table that was dropped, or made anew and is empty, holds nothing, whatever the ledger says of the one before.
        One made anew with rows was restored, its ledger with it.
        """
        made = self._database.made(place, [place.table, LEDGER])
        entries = Ledger(self._database, place).read(self._database) if LEDGER in made else []
        here = made.get(place.table)
        if here is None:
            return Seen(None, void=entries)
        other = [entry for entry in entries if entry.made != here]
        if other and self._is_empty(place):
            entries = [entry for entry in entries if entry.made == here]
            return Seen(here, entries, void=other)
        check_owner(table, place, entries)
        return Seen(here, entries)

    def _stranger(self, table: Table, place: Place) -> TargetError:
        return TargetError(
            f"{place} belongs to somebody else: it has rows, and no batch of Strandline's",
            where=table.where_text,
            why="Another hand filled it, or its ledger was lost: which rows are missing cannot be told.",
            remedy="Give the table another `target:`, or set `shared: true` if several may write to it.\n"
            f"To load it again:   TRUNCATE TABLE {self._database.dialect.place(place)}, and then   "
            f"strandline sync --full -t {table.name}",
            docs="docs/recipes/adopt.md#from-watermark-files",
        )

    def _is_empty(self, place: Place) -> bool:
        return not self._database.rows(f"SELECT 1 FROM {self._database.dialect.place(place)} LIMIT 1")

    def _brought(self, table: Table, place: Place, batch: Batch) -> Receipt | None:
        """The batch that failed, where another run has brought it meanwhile and swept our staging table away.

        BatchConflictError if what that run brought is another one.
        """
        try:
            entry = self._look(table, place).ours(table)
        except StrandlineError:
            return None  # what went wrong first is what to tell
        return None if entry is None else entry.held(batch, table)

    def _warn(self, table: Table, messages: list[str]) -> None:
        self.warnings += [(table.name, text) for text in messages if (table.name, text) not in self.warnings]


class SparkSink(SqlSink):
    """Rows come through Spark, or, with `via: server`, never leave the database."""

    def __init__(self, endpoint: Endpoint, database: SparkDatabase, spark: Spark, via: str = "spark") -> None:
        super().__init__(endpoint, database, via)
        self._filled = database
        self._spark = spark

    def _write(self, table: Table, place: Place, batch: Batch, changes: Changes) -> Write | ServerWrite:
        if self._via == "spark":
            spark = self._spark()  # first: PySpark is imported while its Java starts
            from strandline.sinks.sql_write import SparkFill, Write

            own = self._filled.another()  # what takes long must not keep other tables waiting
            return Write(own, SparkFill(own, spark, changes), table, place, batch, changes)
        if changes.query is None:
            raise ConfigError(
                "via: server moves rows inside the database, where no transform can run",
                where=table.where_text,
                remedy="Leave `via: server` out, or write the transform as a `query:`.",
            )
        from strandline.sinks.sql_server import ServerWrite

        return ServerWrite(self._database, table, place, batch, changes)

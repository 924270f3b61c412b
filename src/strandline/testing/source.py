"""What every database Source must keep, as a pytest suite: subclass SourceContract and bring a Shop on your database.

class TestMySource(SourceContract):
    @pytest.fixture
    def shop(self, my_database):
        with MyShop(my_database) as shop:
            yield shop

The tests that read rows take the fixture `spark`, a session with the JDBC driver on its class path. A database that
shows nothing of what is in flight subclasses ReadingContract.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, Self

import pytest

from strandline.core.errors import SourceError, StrandlineError
from strandline.core.position import Horizon
from strandline.core.protocols import Source
from strandline.core.table import Mode, Table, TableInfo
from strandline.core.watermark import Cursor, Kind, Watermark
from strandline.core.window import Slice, Window
from strandline.endpoint import Endpoint
from strandline.sources import open_source
from strandline.sources.database import DatabaseSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DAY = "2026-01-01"


def at(clock: str) -> Watermark:
    """A time of the day all orders in this suite are stamped on."""
    return Watermark(Kind.TIMESTAMP, f"{DAY} {clock}")


def window(low: str | None, high: str) -> Window:
    return Window(None if low is None else at(low), at(high))


class Shop(ABC):
    """A database with one table, `orders`: `id` given out in order, `at` (to the microsecond, indexed), `note`."""

    create: Sequence[str]  # the statements that make `orders`
    quote: Callable[[str], str]

    def __init__(self, url: str) -> None:
        self.url = url
        self._open = ExitStack()
        self._connection = self.connect()

    @abstractmethod
    def connect(self) -> Any:
        """A new connection outside any transaction of the others, in autocommit mode."""

    @abstractmethod
    def execute(self, sql: str, connection: Any = None) -> list[tuple[Any, ...]]:
        """Run a statement, on the shop's own connection unless told otherwise; the rows, if it yields any."""

    def __enter__(self) -> Self:
        for statement in self.create:
            self.execute(statement)
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()
        self._connection.close()

    def source(self, **options: Any) -> Source:
        given: dict[str, Any] = {"guard": timedelta(microseconds=1), "max_wait": timedelta(milliseconds=300), **options}
        source = open_source(Endpoint.parse(self.url), **given)
        self._open.callback(source.close)
        return source

    def insert(self, order: int, clock: str, note: str = "") -> None:
        self.execute(f"INSERT INTO orders (id, at, note) VALUES ({order}, '{DAY} {clock}', '{note}')")

    def table(self, source: Source, name: str = "orders", zone: str | None = None, **wanted: Any) -> Table:
        """The table as `resolve` settles it; `cursor` is a column's name."""
        cursor = wanted.pop("cursor", "at")
        typed = None if cursor is None else Cursor(cursor, Kind.TIMESTAMP)
        query = wanted.get("query")
        info = source.tables([] if query else [name], {name: query} if query else {})[name]
        if isinstance(info, StrandlineError):
            raise info
        asked = {"mode": Mode.MERGE, "source": name, "target": name, "stage": "sync", **wanted}
        return source.resolve(Table(pipeline="shop", name=name, cursor=typed, **asked), info, zone)

    @contextmanager
    def begun(self, *statements: str) -> Iterator[Callable[[], None]]:
        """A transaction on a connection of its own that has run these and stays open; call the value to commit it."""
        connection = self.connect()
        try:
            for statement in ("BEGIN", *statements):
                self.execute(statement, connection)
            yield lambda: _done(self.execute("COMMIT", connection))
        finally:
            connection.close()


def _done(_: object) -> None:
    """A statement whose rows nobody asks for."""


def ids(frame: DataFrame) -> list[int]:
    return sorted(row["id"] for row in frame.select("id").collect())


def horizon(source: Source, table: Table) -> Horizon:
    found = source.horizons([table])[table.name]
    if isinstance(found, StrandlineError):
        raise found
    return found


def waiting(source: Source, table: Table, asked: Window) -> int | None:
    found = source.pending({table.name: (table, asked)})[table.name]
    if isinstance(found, StrandlineError):
        raise found
    return found


def refusal(answer: object) -> SourceError:
    assert isinstance(answer, SourceError), answer
    return answer


class ReadingContract:
    """What every database keeps, whatever it shows of transactions and keeps of keys."""

    identifiers = ('Order "Details" `x`', "na\"me with `every` 'quote' % ünïcode.ß", "select")
    """Of a table, a column and a key, as odd as can be."""

    @pytest.fixture
    def shop(self) -> Shop:
        """To override: a shop with an empty `orders` table in a database of this test's own."""
        raise NotImplementedError

    # --- What is there -----------------------------------------------------------------------------------------------

    def test_globs_match_tables_and_views(self, shop: Shop) -> None:
        shop.execute("CREATE TABLE order_lines (id int PRIMARY KEY)")
        shop.execute("CREATE TABLE customers (id int PRIMARY KEY)")
        shop.execute("CREATE VIEW order_view AS SELECT id FROM orders")
        found = shop.source().tables(["order*", "nothing_like_*"], {})
        assert sorted(found) == ["order_lines", "order_view", "orders"]

    def test_a_missing_table_gets_the_nearest_names_and_the_others_are_found(self, shop: Shop) -> None:
        found = shop.source().tables(["ordesr", "orders"], {})
        assert "orders" in refusal(found["ordesr"]).remedy
        assert isinstance(found["orders"], TableInfo)

    def test_a_query_is_described_by_the_database(self, shop: Shop) -> None:
        found = shop.source().tables(
            [], {"recent": "SELECT id, note AS remark FROM orders", "broken": "SELECT nothing"}
        )
        assert isinstance(found["recent"], TableInfo)
        assert [column.name for column in found["recent"].columns] == ["id", "remark"]
        refusal(found["broken"])

    def test_the_same_database_has_the_same_identity_whoever_asks(self, shop: Shop) -> None:
        assert shop.source().identity() == shop.source().identity() != ""

    def test_many_tables_are_found_in_a_few_statements(self, shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
        for number in range(100):
            shop.execute(f"CREATE TABLE many_{number} (id int PRIMARY KEY, at date NOT NULL)")
        source = shop.source()
        with caplog.at_level(logging.DEBUG, "strandline.sources"):
            found = source.tables(["many_*"], {})
        assert len(found) == 100
        assert 0 < len([record for record in caplog.records if record.name.startswith("strandline.sources")]) < 20

    # --- What is refused ---------------------------------------------------------------------------------------------

    @pytest.mark.parametrize(
        ("wanted", "said"),
        [
            ({"cursor": "att"}, "cursor column"),
            ({"cursor": "note"}, "cannot order changes"),
            ({"cursor": None}, "no cursor column"),
            ({"key": ("idd",)}, "key column"),
            ({"key": ("note",)}, "may be NULL"),
            ({"select": ("id", "att")}, "column"),
            ({"select": ("at",)}, "not among columns"),
            ({"deleted": "gone"}, "soft-delete column"),
        ],
    )
    def test_what_the_table_does_not_have_is_refused_by_name(
        self, shop: Shop, wanted: dict[str, Any], said: str
    ) -> None:
        with pytest.raises(SourceError, match=said) as caught:
            shop.table(shop.source(), **wanted)
        assert caught.value.where == "shop.orders"
        assert caught.value.remedy

    def test_merge_without_any_key_is_refused(self, shop: Shop) -> None:
        shop.execute("CREATE TABLE log (at date NOT NULL, line varchar(10))")
        source = shop.source()
        with pytest.raises(SourceError, match="no primary key") as caught:
            shop.table(source, "log")
        assert "append" in caught.value.remedy
        assert shop.table(source, "log", mode=Mode.APPEND).key == ()

    # --- How far it is safe to read ----------------------------------------------------------------------------------

    def test_the_horizon_is_the_databases_clock_less_the_guard(self, shop: Shop) -> None:
        near, far = shop.source(), shop.source(guard=timedelta(hours=1))
        table = shop.table(near)
        high, behind = horizon(near, table).high, horizon(far, table).high
        assert high is not None
        assert behind is not None
        assert timedelta(seconds=3590) < _gap(behind, high) < timedelta(seconds=3610)

    def test_one_barrier_serves_all_tables(self, shop: Shop) -> None:
        shop.execute("CREATE TABLE log (n int PRIMARY KEY, at date NOT NULL)")
        source = shop.source()
        found = source.horizons([shop.table(source), shop.table(source, "log", zone="UTC")])
        assert len({value.observed for value in found.values() if isinstance(value, Horizon)}) == 1

    def test_an_idle_database_is_asked_without_a_pause(self, shop: Shop) -> None:
        pauses: list[float] = []
        source = shop.source(sleep=pauses.append)
        table = shop.table(source)
        counts = []
        for _ in range(5):
            time.sleep(0.15)  # InnoDB caches its list of transactions for a tenth of a second; runs are further apart
            pauses.clear()
            horizon(source, table)
            counts.append(len(pauses))
        assert 0 in counts  # whatever else the server does for itself now and then

    def test_rows_stamped_in_the_future_do_not_drag_the_horizon_along(self, shop: Shop) -> None:
        shop.execute("INSERT INTO orders (id, at) VALUES (1, '2037-01-01 00:00:00')")
        source = shop.source()
        table = shop.table(source)
        high = horizon(source, table).high
        assert high is not None
        assert high.text < "2037"
        assert waiting(source, table, Window(None, high)) == 0

    def test_todays_date_is_not_over_yet(self, shop: Shop) -> None:
        shop.execute("CREATE TABLE log (n int PRIMARY KEY, at date NOT NULL)")
        source = shop.source()
        found = horizon(source, shop.table(source, "log", zone="UTC"))
        assert found.high == Watermark(Kind.DATE, found.observed[:10])

    def test_a_zone_with_summer_time_leaves_an_hour_for_the_clocks_to_step_back(self, shop: Shop) -> None:
        shop.execute("CREATE TABLE log (n int PRIMARY KEY, at date NOT NULL)")
        source = shop.source()
        log = shop.table(source, "log", zone="UTC")
        stamped = replace(log, cursor=Cursor("at", Kind.TIMESTAMP, 6, "UTC"))
        utc = horizon(source, stamped).high
        assert utc is not None
        for zone, low, high in (("Asia/Tokyo", 9, 9), ("Europe/Berlin", 0, 1), ("America/New_York", -6, -5)):
            there = horizon(source, replace(stamped, cursor=Cursor("at", Kind.TIMESTAMP, 6, zone))).high
            assert there is not None
            shift = _gap(utc, there) / timedelta(hours=1)
            assert low - 0.01 < shift < high + 0.01

    def test_the_horizon_is_cut_to_what_the_column_stores(self, shop: Shop) -> None:
        source = shop.source()
        table = shop.table(source)
        cursor = table.cursor
        assert cursor is not None
        for digits in (0, 3):
            high = horizon(source, replace(table, cursor=replace(cursor, precision=digits))).high
            assert high is not None
            assert len(high.text) == 19 + (digits and digits + 1)

    def test_a_snapshot_needs_no_cursor(self, shop: Shop) -> None:
        source = shop.source()
        table = shop.table(source, cursor=None, mode=Mode.SNAPSHOT)
        high = horizon(source, table).high
        assert high is not None
        assert source.slices(table, Window(None, high), None, None) == (Slice(Window(None, high)),)

    def test_a_fingerprint_changes_with_any_row_and_only_then(self, shop: Shop) -> None:
        shop.execute("INSERT INTO orders (id, note, at) VALUES (1, NULL, '2026-11-15 08:00:00')")
        shop.execute("INSERT INTO orders (id, note, at) VALUES (2, 'b', '2026-11-15 08:00:01')")
        source = shop.source()
        table = shop.table(source)
        low, high = (Watermark(Kind.TIMESTAMP, f"2026-11-15 08:00:0{second}") for second in (0, 5))

        def fingerprint() -> str | StrandlineError:
            return source.fingerprints({table.name: (table, Window(low, high))})[table.name]

        seen = [fingerprint()]
        assert seen == [fingerprint()]
        shop.execute("INSERT INTO orders (id, note, at) VALUES (9, 'outside', '2026-11-15 08:00:05')")
        assert seen == [fingerprint()]
        for change in (
            "UPDATE orders SET note = '' WHERE id = 1",
            "UPDATE orders SET note = 'c' WHERE id = 2",
            "INSERT INTO orders (id, note, at) VALUES (3, 'b', '2026-11-15 08:00:01')",
            "DELETE FROM orders WHERE id = 1",
        ):
            shop.execute(change)
            assert fingerprint() not in seen, change
            seen.append(fingerprint())

    # --- Integers ----------------------------------------------------------------------------------------------------

    def test_ids_beyond_53_bits_stay_exact(self, shop: Shop) -> None:
        top = 2**63 - 2
        shop.insert(top, "10:00:00")
        shop.insert(top - 1, "10:00:00")
        source = shop.source()
        table = shop.table(source, cursor="id")
        low, high = (Watermark(Kind.INTEGER, str(value)) for value in (top, top + 1))
        assert waiting(source, table, Window(low, high))
        assert waiting(source, table, Window(high, high)) == 0

    # --- What is waiting ---------------------------------------------------------------------------------------------

    def test_a_row_stamped_at_the_watermark_after_the_run_is_in_the_next_window(self, shop: Shop) -> None:
        source = shop.source()
        table = shop.table(source)
        shop.insert(1, "09:59:59")
        assert waiting(source, table, window(None, "10:00:00"))
        shop.insert(2, "10:00:00")
        assert waiting(source, table, window("10:00:00", "10:00:00.000001"))

    def test_one_deleted_and_one_inserted_at_the_watermark_is_seen(self, shop: Shop) -> None:
        source = shop.source()
        table = shop.table(source)
        shop.insert(1, "10:00:00")
        shop.execute("DELETE FROM orders WHERE id = 1")
        shop.insert(2, "10:00:00")
        assert waiting(source, table, window("10:00:00", "11:00:00"))

    def test_a_microsecond_is_in_exactly_one_window(self, shop: Shop) -> None:
        source = shop.source()
        table = shop.table(source)
        shop.insert(1, "23:59:59.412003")
        edges = ["23:59:59.412002", "23:59:59.412003", "23:59:59.412004", "23:59:59.412005"]
        found = [waiting(source, table, window(low, high)) for low, high in pairwise(edges)]
        assert [bool(rows) for rows in found] == [False, True, False]

    def test_null_cursors_are_refused_or_counted_never_skipped(self, shop: Shop) -> None:
        shop.execute("CREATE TABLE log (id int PRIMARY KEY, at date)")
        shop.execute("INSERT INTO log VALUES (1, NULL), (2, NULL)")
        source = shop.source()
        table = shop.table(source, "log", zone="UTC")
        asked = Window(None, Watermark(Kind.DATE, "2026-01-02"))
        error = refusal(source.pending({"log": (table, asked)})["log"])
        assert "2 rows have no value" in error.message
        assert "nulls: include" in error.remedy
        assert waiting(source, replace(table, nulls="include"), asked)

    def test_one_table_that_cannot_be_asked_does_not_disturb_the_others(self, shop: Shop) -> None:
        shop.insert(1, "10:00:00")
        shop.execute("CREATE TABLE doomed (n int PRIMARY KEY, at date NOT NULL)")
        source = shop.source()
        table, doomed = shop.table(source), shop.table(source, "doomed", zone="UTC")
        shop.execute("DROP TABLE doomed")
        dates = Window(None, Watermark(Kind.DATE, "2026-01-02"))
        found = source.pending({"doomed": (doomed, dates), "orders": (table, window(None, "11:00:00"))})
        refusal(found["doomed"])
        assert found["orders"]

    def test_where_decides_what_is_waiting(self, shop: Shop) -> None:
        shop.insert(1, "10:00:00", note="dull")
        source = shop.source()
        assert waiting(source, shop.table(source, where="note = 'nice' -- or"), window(None, "11:00:00")) == 0
        assert waiting(source, shop.table(source, where="note = 'dull' -- or"), window(None, "11:00:00"))

    # --- Slices ------------------------------------------------------------------------------------------------------

    def test_a_limit_in_the_middle_of_a_tie_takes_the_whole_tie(self, shop: Shop) -> None:
        for order, clock in enumerate(["10:00", "10:01", "10:01", "10:01", "10:02"], 1):
            shop.insert(order, f"{clock}:00")
        source = shop.source()
        table = shop.table(source)
        (part,) = source.slices(table, window(None, "11:00:00"), 5, 2)
        assert part.window == window(None, "10:02:00")
        (part,) = source.slices(table, window(None, "11:00:00"), 5, 5)
        assert part.window == window(None, "11:00:00")
        (part,) = source.slices(table, window(None, "11:00:00"), 5, 99)
        assert part.window == window(None, "11:00:00")

    def test_windows_are_cut_at_whole_cursor_values_and_tile(self, shop: Shop) -> None:
        for order in range(20):
            shop.insert(order + 1, f"10:00:{order // 4:02d}.5")
        source = shop.source()
        table = replace(shop.table(source), slice_rows=3, key_enforced=False)
        parts = source.slices(table, window("10:00:00", "11:00:00"), 20, None)
        assert len(parts) > 3
        assert parts[0].window.low == at("10:00:00")
        assert [part.window.high for part in parts[:-1]] == [part.window.low for part in parts[1:]]
        assert parts[-1].window.high == at("11:00:00")
        assert sum(waiting(source, table, part.window) == 0 for part in parts) <= 1

    def test_many_rows_on_one_cursor_value_make_one_slice(self, shop: Shop) -> None:
        for order in range(12):
            shop.insert(order + 1, "10:00:00")
        source = shop.source()
        table = replace(shop.table(source), slice_rows=3)
        parts = source.slices(table, window("09:00:00", "11:00:00"), 12, None)
        assert [bool(waiting(source, table, part.window)) for part in parts].count(True) == 1

    # --- Reading -----------------------------------------------------------------------------------------------------

    def test_a_lookback_is_read_from_its_own_bound(self, shop: Shop, spark: SparkSession) -> None:
        shop.insert(1, "09:00:00")
        shop.insert(2, "09:59:00")
        shop.insert(3, "10:00:00")
        source = shop.source()
        table = shop.table(source)
        part = Slice(window("10:00:00", "11:00:00"), read_from=at("09:50:00"))
        assert ids(source.changes(table, part).frame(spark)) == [2, 3]

    def test_null_cursors_are_read_once_where_the_slice_says_so(self, shop: Shop, spark: SparkSession) -> None:
        shop.execute("CREATE TABLE log (id int PRIMARY KEY, at date)")
        shop.execute("INSERT INTO log VALUES (1, NULL), (2, '2026-01-01'), (3, '2026-02-01')")
        source = shop.source()
        table = shop.table(source, "log", zone="UTC", nulls="include")
        asked = Window(Watermark(Kind.DATE, "2026-01-01"), Watermark(Kind.DATE, "2026-01-15"))
        (part,) = source.slices(table, asked, 2, None)
        assert ids(source.changes(table, part).frame(spark)) == [1, 2]
        assert ids(source.changes(table, replace(part, nulls=False)).frame(spark)) == [2]

    def test_only_the_chosen_columns_and_rows_are_read(self, shop: Shop, spark: SparkSession) -> None:
        shop.insert(1, "10:00:00", note="keep")
        shop.insert(2, "10:00:00", note="drop")
        source = shop.source()
        table = shop.table(source, select=("note", "id"), where="note <> 'drop'")
        changes = source.changes(table, Slice(window(None, "11:00:00")))
        assert [tuple(row) for row in changes.frame(spark).collect()] == [("keep", 1)]
        assert changes.order == ()

    def test_any_identifier_can_be_read(self, shop: Shop, spark: SparkSession) -> None:
        quote = shop.quote
        name, column, key = self.identifiers
        shop.execute(
            f"CREATE TABLE {quote(name)} ({quote(key)} int PRIMARY KEY, {quote(column)} varchar(9), at date NOT NULL)"
        )
        shop.execute(f"INSERT INTO {quote(name)} VALUES (7, 'x', '{DAY}')")
        source = shop.source()
        given = '"' + name.replace('"', '""') + '"'
        table = shop.table(source, given, zone="UTC")
        changes = source.changes(table, Slice(Window(None, Watermark(Kind.DATE, "2026-01-02"))))
        (row,) = changes.frame(spark).collect()
        assert row.asDict() == {key: 7, column: "x", "at": row["at"]}

    def test_a_soft_delete_column_becomes_the_operation(self, shop: Shop, spark: SparkSession) -> None:
        shop.insert(1, "10:00:00", note="")
        shop.execute(f"INSERT INTO orders (id, at, note) VALUES (2, '{DAY} 10:00:00', NULL)")
        source = shop.source()
        table = shop.table(source, deleted="note")
        changes = source.changes(table, Slice(window(None, "11:00:00")))
        assert changes.operation is not None
        found = {row["id"]: row[changes.operation] for row in changes.frame(spark).collect()}
        assert found == {1: "delete", 2: "upsert"}

    def test_a_table_dropped_between_plan_and_read_is_named(self, shop: Shop, spark: SparkSession) -> None:
        source = shop.source()
        changes = source.changes(shop.table(source), Slice(window(None, "11:00:00")))
        shop.execute("DROP TABLE orders")
        with pytest.raises(Exception, match=r"(?i)orders") as caught:
            changes.frame(spark).collect()
        assert refusal(changes.translate(caught.value)).where == "shop.orders"
        assert changes.translate(ValueError("something else")) is None


class SourceContract(ReadingContract):
    """For a database that shows what is in flight, keeps keys unique and has indexes."""

    def test_a_table_is_found_with_its_columns_key_and_indexes(self, shop: Shop) -> None:
        info = shop.source().tables(["orders"], {})["orders"]
        assert isinstance(info, TableInfo)
        assert [column.name for column in info.columns] == ["id", "at", "note"]
        assert info.key == ("id",)
        assert ("id",) in info.unique
        assert set(info.indexed or ()) == {"id", "at"}
        assert not info.columns[0].nullable
        assert info.columns[2].nullable

    def test_a_key_that_no_constraint_keeps_is_known_as_such(self, shop: Shop) -> None:
        shop.execute("CREATE TABLE log (n int NOT NULL, at date NOT NULL)")
        source = shop.source()
        assert not shop.table(source, "log", key=("n",)).key_enforced
        assert shop.table(source).key_enforced

    def test_a_cursor_without_an_index_is_a_warning_with_the_index_to_make(self, shop: Shop) -> None:
        shop.execute("CREATE TABLE log (n int PRIMARY KEY, at date NOT NULL)")
        source = shop.source()
        shop.table(source, "log")
        ((table, message),) = source.warnings
        assert table == "log"
        shop.execute(message.splitlines()[-1])
        again = shop.source()
        shop.table(again, "log")
        assert again.warnings == []

    @pytest.mark.parametrize("enforced", [True, False], ids=["by key", "by cursor"])
    def test_many_rows_are_cut_by_a_sample_of_them(self, shop: Shop, enforced: bool) -> None:
        """Into parts of about the size that was asked for; exact ones would have taken numbering every row."""
        shop.execute("CREATE TABLE many (id int PRIMARY KEY, at int NOT NULL)")
        shop.execute("INSERT INTO many VALUES (1, 1)")
        for doubled in range(18):
            shop.execute(f"INSERT INTO many SELECT id + {2**doubled}, id + {2**doubled} FROM many")
        source = shop.source()
        table = replace(shop.table(source, "many"), slice_rows=65_000, key_enforced=enforced)
        whole = Window(None, Watermark(Kind.INTEGER, str(2**18 + 1)))
        edges = [1]
        for part in source.slices(table, whole, 2**18, None):
            end = part.keys.high if part.keys else int(part.window.high.text)
            edges.append(2**18 + 1 if end is None else end)
        sizes = [high - low for low, high in pairwise(edges)]
        assert sum(sizes) == 2**18
        assert len(sizes) in (3, 4, 5)
        assert all(20_000 < size < 130_000 for size in sizes), sizes
        assert sizes[:3] != [65_000] * 3

    def test_an_open_transaction_holds_the_horizon_until_it_commits(self, shop: Shop) -> None:
        source = shop.source()
        table = shop.table(source)
        with shop.begun("INSERT INTO orders (note) VALUES ('late')") as commit:
            held = horizon(source, table)
            assert held.high is None
            assert held.held_by is not None
            commit()
            high = horizon(source, table).high
        assert high is not None
        assert waiting(source, table, Window(None, high))

    def test_a_held_horizon_says_how_far_it_would_reach(self, shop: Shop) -> None:
        source = shop.source()
        table = shop.table(source)
        with shop.begun("INSERT INTO orders (note) VALUES ('late')") as commit:
            held = horizon(source, table)
            commit()
        after = horizon(source, table).high
        assert held.reach is not None
        assert after is not None
        assert held.reach < after

    def test_an_integer_horizon_is_one_above_the_last_id(self, shop: Shop) -> None:
        source = shop.source()
        table = shop.table(source, cursor="id")
        assert horizon(source, table).high is None
        for _ in range(3):
            shop.execute("INSERT INTO orders (note) VALUES ('x')")
        found = horizon(source, table)
        assert found.high == found.next_id == Watermark(Kind.INTEGER, "4")
        shop.execute("DELETE FROM orders WHERE id = 3")
        found = horizon(source, table)
        assert (found.high, found.next_id) == (Watermark(Kind.INTEGER, "3"), Watermark(Kind.INTEGER, "4"))

    def test_an_id_still_to_be_committed_holds_the_horizon(self, shop: Shop) -> None:
        source = shop.source()
        table = shop.table(source, cursor="id")
        with shop.begun("INSERT INTO orders (note) VALUES ('late')") as commit:
            shop.execute("INSERT INTO orders (note) VALUES ('early')")
            assert horizon(source, table).held_by is not None
            commit()
        assert horizon(source, table).high == Watermark(Kind.INTEGER, "3")

    def test_a_first_load_is_cut_by_key_even_if_keys_are_skewed(self, shop: Shop, spark: SparkSession) -> None:
        for order in (*range(1, 11), 10**12, 10**15):
            shop.insert(order, "10:00:00")
        source = shop.source()
        table = replace(shop.table(source), slice_rows=4)
        parts = source.slices(table, window(None, "11:00:00"), 12, None)
        assert [part.last for part in parts] == [False] * (len(parts) - 1) + [True]
        found = [ids(source.changes(table, part).frame(spark)) for part in parts]
        assert [len(part) for part in found] == [4, 4, 4]
        assert sorted(chain(*found)) == [*range(1, 11), 10**12, 10**15]

    def test_parallel_readers_read_every_row_of_the_slice_once(self, shop: Shop, spark: SparkSession) -> None:
        for order in range(1, 41):
            shop.insert(order, f"10:00:{order % 7:02d}")
        source = shop.source(readers=4)
        assert isinstance(source, DatabaseSource)
        source.reader = replace(source.reader, rows_per_reader=1)
        table = shop.table(source)
        by_key = source.changes(table, Slice(window("10:00:01", "10:00:06"))).frame(spark)
        unsplit = replace(table, key=(), key_enforced=False)
        by_cursor = source.changes(unsplit, Slice(window("10:00:01", "10:00:06"))).frame(spark)
        expected = [order for order in range(1, 41) if 1 <= order % 7 < 6]
        assert ids(by_key) == ids(by_cursor) == expected

    def test_few_rows_that_are_large_have_several_readers_too(self, shop: Shop, spark: SparkSession) -> None:
        digests = ", ".join(f"md5(concat(id, {number}))" for number in range(50))
        shop.execute("CREATE TABLE large (id int PRIMARY KEY, at int NOT NULL, note text)")
        shop.execute("INSERT INTO large VALUES (1, 1, '')")
        for doubled in range(11):
            shop.execute(f"INSERT INTO large SELECT id + {2**doubled}, 1, concat({digests}) FROM large")
        everything = Slice(Window(None, Watermark(Kind.INTEGER, "2")))
        for enough, readers in ((1 << 20, 2), (64 << 20, 1)):
            source = shop.source(readers=2)
            assert isinstance(source, DatabaseSource)
            shop.execute("ANALYZE large" if source.dialect.name == "PostgreSQL" else "ANALYZE TABLE large")
            source.reader = replace(source.reader, bytes_per_reader=enough)
            frame = source.changes(shop.table(source, "large"), everything).frame(spark)
            assert frame.rdd.getNumPartitions() == readers
            assert frame.count() == 2**11

    def test_a_transform_is_applied_and_no_promise_outlives_it(self, shop: Shop, spark: SparkSession) -> None:
        shop.insert(1, "10:00:00")
        source = shop.source()
        asked = Slice(window(None, "11:00:00"))
        table = shop.table(source, transform="strandline.testing.source:doubled")
        changes = source.changes(table, asked)
        assert ids(changes.frame(spark)) == [1, 1]
        assert not changes.unique
        assert source.changes(shop.table(source), asked).unique
        with pytest.raises(StrandlineError, match="nowhere:nothing"):
            source.changes(replace(table, transform="nowhere:nothing"), asked).frame(spark)


def doubled(frame: DataFrame) -> DataFrame:
    """A transform for the suite."""
    return frame.union(frame)


def _gap(low: Watermark, high: Watermark) -> timedelta:
    return datetime.fromisoformat(high.text) - datetime.fromisoformat(low.text)

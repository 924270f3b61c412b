"""The demo's shop: three tables that triggers keep stamped, and people who keep changing them."""

from __future__ import annotations

import random
import threading
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    import psycopg

    Connect = Callable[[], psycopg.Connection[tuple[Any, ...]]]

TABLES = ("customers", "orders", "order_items")
_SCHEMA = """
CREATE TABLE customers (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL,
    city text,
    updated_at timestamptz NOT NULL DEFAULT now());
CREATE TABLE orders (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer_id bigint NOT NULL REFERENCES customers,
    status text NOT NULL,
    total numeric(10,2) NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now());
CREATE TABLE order_items (
    order_id bigint REFERENCES orders,
    line integer,
    product text NOT NULL,
    quantity integer NOT NULL,
    price numeric(10,2) NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (order_id, line));
CREATE FUNCTION touch() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN NEW.updated_at := now(); RETURN NEW; END $$;
"""
_PER_TABLE = """
CREATE INDEX ON {table} (updated_at);
CREATE TRIGGER touch BEFORE UPDATE ON {table} FOR EACH ROW EXECUTE FUNCTION touch();
"""
_ROWS = """
INSERT INTO customers (name, city, updated_at)
SELECT 'Customer ' || n, (ARRAY['Aarhus','Łódź','Σέρρες','大阪',NULL])[1 + n % 5], now() - random() * interval '30 days'
  FROM generate_series(1, {customers}) n;
INSERT INTO orders (customer_id, status, total, updated_at)
SELECT 1 + n % {customers}, 'shipped', round((5 + random() * 300)::numeric, 2), now() - random() * interval '30 days'
  FROM generate_series(1, {orders}) n;
INSERT INTO order_items
SELECT o.id, line, 'product ' || (o.id * line) % 500, line, round((1 + random() * 90)::numeric, 2), o.updated_at
  FROM orders o, generate_series(1, 3) line;
ANALYZE;
"""


def create(connection: psycopg.Connection[tuple[Any, ...]], *, customers: int = 1_000, orders: int = 10_000) -> None:
    """Tables, triggers, indexes and a month of business."""
    tables = "".join(_PER_TABLE.format(table=table) for table in TABLES)
    connection.execute((_SCHEMA + tables + _ROWS.format(customers=customers, orders=orders)).encode())


def change_many(connection: psycopg.Connection[tuple[Any, ...]], orders: int, transactions: int) -> None:
    """A busy moment: so many orders change, over several transactions, each with its own time stamp."""
    each = orders // transactions
    for number in range(transactions):
        span = (number * each, (number + 1) * each)
        connection.execute("UPDATE orders SET status = 'returned' WHERE id > %s AND id <= %s", span)
    connection.execute("ANALYZE orders")  # slices are cut by the planner's estimate, which autovacuum renews later


class People:
    """Customers and clerks: a thread that commits a few small transactions a second until it is told to rest."""

    def __init__(self, connect: Connect, *, customers: int = 1_000, pause: float = 0.04, seed: int = 7) -> None:
        self._connect = connect
        self._customers = customers
        self._pause = pause
        self._random = random.Random(seed)
        self._active = threading.Event()
        self._idle = threading.Event()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._live, name="shop", daemon=True)

    def __enter__(self) -> People:
        self._active.set()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        self._active.set()
        self._thread.join()

    def rest(self) -> None:
        """Returns when the last transaction has committed."""
        self._idle.clear()
        self._active.clear()
        self._idle.wait()

    def work(self) -> None:
        self._active.set()

    def _live(self) -> None:
        try:
            with self._connect() as connection:
                while not self._end.wait(self._pause):
                    if not self._active.is_set():
                        self._idle.set()
                        self._active.wait()
                        continue
                    with connection.transaction():
                        self._act(connection)
        finally:
            self._idle.set()  # nobody waits for the dead

    def _act(self, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
        customer = self._random.randint(1, self._customers)
        match self._random.choice(("order", "order", "ship", "move")):
            case "order":
                made = "INSERT INTO orders (customer_id, status, total) VALUES (%s, 'new', %s) RETURNING id"
                total = self._random.randint(500, 30_000) / 100
                row = connection.execute(made, (customer, total)).fetchone()
                item = "INSERT INTO order_items VALUES (%s, %s, %s, 1, %s)"
                for line in range(1, self._random.randint(2, 4)):
                    connection.execute(item, (row and row[0], line, f"product {line}", total))
            case "ship":
                connection.execute("UPDATE orders SET status = 'shipped' WHERE id = %s", (customer * 3,))
            case "move":
                connection.execute("UPDATE customers SET city = 'Bergen' WHERE id = %s", (customer,))

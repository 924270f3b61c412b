"""Writers that do what applications do at their worst: stamp early and commit late, in every way there is.

Three tables per database: `orders` (stamped to the microsecond, inserted and updated), `visits` (whole seconds) and
`events` (insert only, ordered by an id the server gives out). A writer changes only rows of its own.
"""

from __future__ import annotations

import random
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from strandline.endpoint import Endpoint

STAMPED = ("orders", "visits")
TABLES = (*STAMPED, "events")
APPLICATION = "soak writer"


class Tally:
    """What happened, counted by many threads."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.seconds: list[float] = []
        self._lock = threading.Lock()

    def add(self, what: str, number: int = 1) -> None:
        with self._lock:
            self.counts[what] += number


class Writer(ABC, threading.Thread):
    """One connection's life. Ways to write come from the database; each runs in a transaction of its own."""

    def __init__(
        self, url: str, number: int, tally: Tally, stop: threading.Event, pace: float, calm: bool = False
    ) -> None:
        super().__init__(name=f"writer {number}", daemon=True)
        self.end = Endpoint.parse(url)
        self.number = number
        self.tally = tally
        self.stop_now = stop
        self.pace = pace
        self.calm = calm
        self.chance = random.Random(number)
        self.ids: dict[str, list[int]] = {table: [] for table in STAMPED}
        self.fresh: list[tuple[str, int]] = []  # rows of the transaction under way
        self.last = 0
        self.written = 0

    @abstractmethod
    def connect(self) -> Any: ...

    @abstractmethod
    def ways(self) -> Sequence[tuple[int, Callable[[], None]]]:
        """What it may do next, with weights."""

    @abstractmethod
    def execute(self, sql: str) -> None: ...

    @abstractmethod
    def trouble(self) -> type[Exception]:
        """What a server raises when it ends a transaction by itself (a deadlock, for one)."""

    def run(self) -> None:
        weights, ways = zip(*(((3, self.at_once), (1, self.short)) if self.calm else self.ways()), strict=True)
        self.connection = self.connect()
        while not self.stop_now.is_set():
            self.fresh, self.written = [], 0
            (way,) = self.chance.choices(ways, weights)
            started = time.perf_counter()
            try:
                way()
            except self.trouble():
                self.tally.add("ended by the server")
                self.connection.close()
                self.connection = self.connect()
            else:
                self.tally.add(way.__name__)
                self.tally.seconds.append(time.perf_counter() - started)
            time.sleep(self.chance.expovariate(1 / self.pace))
        self.connection.close()

    def write(self) -> None:
        """One row: new, changed, or an event."""
        if self.chance.random() < 0.3:
            self.execute(f"INSERT INTO events (version) VALUES ({self.number})")
        else:
            table = self.chance.choice(STAMPED)
            known = self.ids[table]
            if known and self.chance.random() < 0.5:
                self.execute(f"{self.changing(table)} WHERE id = {self.chance.choice(known)}")
            else:
                self.execute(f"INSERT INTO {table} (id, version) VALUES ({self.new(table)}, 1)")
        self.written += 1

    @abstractmethod
    def changing(self, table: str) -> str: ...

    def new(self, table: str) -> int:
        self.last += 1
        number = self.number * 10_000_000 + self.last
        self.fresh.append((table, number))
        return number

    def committed(self, transactions: int = 1) -> None:
        for table, number in self.fresh:
            self.ids[table].append(number)
        self.fresh = []
        self.tally.add("transactions", transactions)
        self.tally.add("rows", self.written)
        self.written = 0

    def linger(self, longest: float = 1.2) -> None:
        """Now and then several times as long."""
        time.sleep(self.chance.uniform(0.0, longest) * (5 if self.chance.random() < 0.015 else 1))

    # ways that every database has

    def at_once(self) -> None:
        self.write()
        self.committed()

    def short(self) -> None:
        self.execute("BEGIN")
        for _ in range(3):
            self.write()
        self.execute("COMMIT")
        self.committed()

    def late(self) -> None:
        self.execute("BEGIN")
        for _ in range(self.chance.randint(1, 4)):
            self.write()
            self.linger(0.4)
        self.linger()
        self.execute("COMMIT")
        self.committed()

    def read_first(self) -> None:
        self.execute("BEGIN")
        self.execute("SELECT count(*) FROM events WHERE id < 10")
        self.linger()
        self.write()
        self.execute("COMMIT")
        self.committed()

    def rolled_back(self) -> None:
        self.execute("BEGIN")
        self.write()
        self.linger(0.5)
        self.execute("ROLLBACK")

    def savepoint(self) -> None:
        self.execute("BEGIN")
        self.write()
        kept, written = list(self.fresh), self.written
        self.execute("SAVEPOINT here")
        self.write()
        self.linger(0.4)
        self.execute("ROLLBACK TO SAVEPOINT here")
        self.fresh, self.written = kept, written
        self.write()
        self.execute("COMMIT")
        self.committed()


class PostgresWriter(Writer):
    def connect(self) -> Any:
        import psycopg

        end = self.end
        return psycopg.connect(
            host=end.host, port=end.port, dbname=end.path, user=end.user, password=end.password,
            autocommit=True, application_name=APPLICATION,
        )  # fmt: skip

    def execute(self, sql: str) -> None:
        self.connection.execute(sql.encode())

    def trouble(self) -> type[Exception]:
        import psycopg

        return psycopg.OperationalError

    def changing(self, table: str) -> str:
        return f"UPDATE {table} SET version = version + 1, at = now()"

    def ways(self) -> Sequence[tuple[int, Callable[[], None]]]:
        return (
            (40, self.at_once),
            (20, self.late),
            (10, self.read_first),
            (5, self.rolled_back),
            (8, self.savepoint),
            (7, self.slow_statement),
            (5, self.one_message),
            (8, self.two_phase),
        )

    def slow_statement(self) -> None:
        seconds = self.chance.uniform(0.1, 3)
        self.execute(f"INSERT INTO orders (id, version) SELECT {self.new('orders')}, 1 FROM pg_sleep({seconds})")
        self.written = 1
        self.committed()

    def one_message(self) -> None:
        """Several transactions that all bear the time the message came."""
        one = "BEGIN; INSERT INTO orders (id, version) SELECT {}, 1 FROM pg_sleep({}); COMMIT"
        parts = [one.format(self.new("orders"), self.chance.uniform(0.1, 1.2)) for _ in range(3)]
        self.execute("; ".join(parts))
        self.written = 3
        self.committed(3)

    def two_phase(self) -> None:
        name = f"soak-{self.number}"
        self.execute("BEGIN")
        self.write()
        self.linger(0.3)
        self.execute(f"PREPARE TRANSACTION '{name}'")
        self.linger()
        self.execute(f"COMMIT PREPARED '{name}'")
        self.committed()


class MariadbWriter(Writer):
    def connect(self) -> Any:
        import pymysql

        end = self.end
        return pymysql.connect(
            host=end.host, port=end.port or 0, database=end.path, user=end.user, password=end.password,
            autocommit=True, ssl_disabled=True,
        )  # fmt: skip

    def execute(self, sql: str) -> None:
        with self.connection.cursor() as cursor:
            cursor.execute(sql)

    def trouble(self) -> type[Exception]:
        import pymysql

        return pymysql.err.OperationalError

    def changing(self, table: str) -> str:
        return f"UPDATE {table} SET version = version + 1"

    def ways(self) -> Sequence[tuple[int, Callable[[], None]]]:
        return (
            (40, self.at_once),
            (20, self.late),
            (10, self.read_first),
            (5, self.rolled_back),
            (8, self.savepoint),
            (7, self.slow_statement),
            (5, self.slow_function),
            (8, self.two_phase),
        )

    def slow_statement(self) -> None:
        seconds = self.chance.uniform(0.1, 3)
        self.execute(f"INSERT INTO orders (id, version) SELECT {self.new('orders')}, 1 + SLEEP({seconds})")
        self.written = 1
        self.committed()

    def slow_function(self) -> None:
        """Steps inside a function take the place of the statement in the list of what is running."""
        seconds = self.chance.uniform(0.1, 1.1)
        self.execute(f"INSERT INTO orders (id, version) VALUES ({self.new('orders')}, steps({seconds}))")
        self.written = 1
        self.committed()

    def two_phase(self) -> None:
        name = f"soak-{self.number}-{self.last}-{time.monotonic_ns()}"
        self.execute(f"XA START '{name}'")
        self.write()
        self.linger(0.3)
        for step in ("END", "PREPARE"):
            self.execute(f"XA {step} '{name}'")
        self.linger()
        if self.chance.random() < 0.3:  # the connection goes, the transaction stays
            self.connection.close()
            self.connection = self.connect()
        self._until_done(f"XA COMMIT '{name}'")
        self.committed()

    def _until_done(self, sql: str) -> None:
        """A transaction belongs to the connection that left it until the server has noticed."""
        import pymysql

        for _ in range(100):
            try:
                return self.execute(sql)
            except pymysql.err.MySQLError:
                time.sleep(0.05)
        return self.execute(sql)

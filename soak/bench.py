"""One database under test: its server, its tables, its writers, and whoever freezes them."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from soak.writers import APPLICATION, TABLES, MariadbWriter, PostgresWriter, Tally, Writer
from strandline.testing.servers import MariaDB, Postgres, Server


class Bench(ABC):
    name: str
    writer: type[Writer]
    create: Sequence[str]
    server: Server

    def __init__(self) -> None:
        self.tally = Tally()
        self.stop = threading.Event()
        self.threads: list[threading.Thread] = []

    @property
    @abstractmethod
    def url(self) -> str: ...

    @abstractmethod
    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """On a connection of its own, outside any transaction."""

    @abstractmethod
    def settle(self) -> None:
        """End what the writers left prepared."""

    def open(self) -> None:
        self.server.start()

    def work(self, writers: int, pace: float, *, calm: bool = False) -> None:
        """`calm`: short transactions only."""
        self.stop = threading.Event()
        first = 1001 if calm else 1
        numbers = range(first, first + writers)
        self.threads = [self.writer(self.url, number, self.tally, self.stop, pace, calm) for number in numbers]
        for thread in self.threads:
            thread.start()

    def rest(self) -> None:
        self.stop.set()
        for thread in self.threads:
            thread.join(60)
        self.settle()

    def versions(self, table: str) -> dict[int, int]:
        return {int(number): int(version) for number, version in self.rows(f"SELECT id, version FROM {table}")}

    def close(self) -> None:
        self.server.stop()


class PostgresBench(Bench):
    name = "postgresql"
    writer = PostgresWriter
    create = (
        "CREATE TABLE orders (id bigint PRIMARY KEY, version int NOT NULL, at timestamptz NOT NULL DEFAULT now())",
        "CREATE TABLE visits (id bigint PRIMARY KEY, version int NOT NULL, at timestamptz(0) NOT NULL DEFAULT now())",
        "CREATE TABLE events (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, version int NOT NULL)",
        "CREATE INDEX ON orders (at)",
        "CREATE INDEX ON visits (at)",
    )

    def __init__(self) -> None:
        super().__init__()
        self.server: Postgres = Postgres(settings={"max_prepared_transactions": "100", "max_connections": "200"})

    @property
    def url(self) -> str:
        return self.server.url()

    def open(self) -> None:
        super().open()
        for statement in self.create:
            self.rows(statement)

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        with self.server.connect() as connection:
            cursor = connection.execute(sql.encode())
            return cursor.fetchall() if cursor.description else []

    def work(self, writers: int, pace: float, *, calm: bool = False) -> None:
        super().work(writers, pace, calm=calm)
        if calm:
            return
        freezer = threading.Thread(target=self._freeze, daemon=True)
        freezer.start()
        self.threads.append(freezer)

    def _freeze(self) -> None:
        """Now and then the operating system does not run a backend for a while, wherever it is at that moment."""
        chance = random.Random(0)
        busy = f"SELECT pid FROM pg_stat_activity WHERE application_name = '{APPLICATION}' AND state <> 'idle'"
        while not self.stop.is_set():
            pids = [pid for (pid,) in self.rows(busy)]
            if pids:
                pid = chance.choice(pids)
                os.kill(pid, signal.SIGSTOP)
                time.sleep(chance.uniform(0.2, 1.5))
                os.kill(pid, signal.SIGCONT)
                self.tally.add("frozen")
            time.sleep(chance.uniform(0.2, 1))

    def settle(self) -> None:
        for (name,) in self.rows("SELECT gid FROM pg_prepared_xacts"):
            self.rows(f"ROLLBACK PREPARED '{name}'")


class MariadbBench(Bench):
    name = "mariadb"
    writer = MariadbWriter
    create = (
        "CREATE TABLE orders (id bigint PRIMARY KEY, version int NOT NULL, at timestamp(6) NOT NULL"
        " DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6), KEY (at))",
        "CREATE TABLE visits (id bigint PRIMARY KEY, version int NOT NULL, at datetime NOT NULL"
        " DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP, KEY (at))",
        "CREATE TABLE events (id bigint AUTO_INCREMENT PRIMARY KEY, version int NOT NULL)",
        "CREATE FUNCTION steps(seconds double) RETURNS int NOT DETERMINISTIC NO SQL"
        " BEGIN DO SLEEP(seconds); DO SLEEP(seconds); DO SLEEP(seconds); RETURN 1; END",
        "CREATE EVENT tick ON SCHEDULE EVERY 3 SECOND DO INSERT INTO orders (id, version)"
        " SELECT UUID_SHORT() DIV 2, 1 + SLEEP(2.5)",
    )

    def __init__(self) -> None:
        super().__init__()
        self.server: MariaDB = MariaDB(settings={"max-connections": "200"})

    @property
    def url(self) -> str:
        return self.server.url("soak")

    def open(self) -> None:
        super().open()
        self.rows("CREATE DATABASE soak", "")
        for statement in self.create:
            self.rows(statement)

    def rows(self, sql: str, database: str = "soak") -> list[tuple[Any, ...]]:
        with self.server.connect(database or None) as connection, connection.cursor() as cursor:
            cursor.execute(sql)
            return list(cursor.fetchall())

    def work(self, writers: int, pace: float, *, calm: bool = False) -> None:
        self.rows(f"SET GLOBAL event_scheduler = {'OFF' if calm else 'ON'}")
        super().work(writers, pace, calm=calm)

    def settle(self) -> None:
        self.rows("SET GLOBAL event_scheduler = OFF")
        while self.rows("SELECT 1 FROM information_schema.processlist WHERE command = 'Connect'"):
            time.sleep(0.1)
        for *_, name in self.rows("XA RECOVER"):
            self.rows(f"XA ROLLBACK '{name}'")


def benches() -> list[Bench]:
    return [PostgresBench(), MariadbBench()]


__all__ = ["TABLES", "Bench", "benches"]

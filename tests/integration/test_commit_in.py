"""A caller's own rows and the watermark in one transaction, on real databases: both are in, or neither is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pymysql
import pytest
from psycopg.rows import dict_row

from strandline import Tracker
from strandline.core.errors import LeaseError, StateError
from strandline.core.protocols import State
from strandline.endpoint import Endpoint
from strandline.state import open_state
from strandline.testing.world import World


class Warehouse:
    """A database that holds the caller's table and the state; `connect` as the caller does."""

    def __init__(self, url: str) -> None:
        self.endpoint = Endpoint.parse(url)
        self.state: State = open_state(self.endpoint)
        self.world = World(state=self.state)
        self.world.table("orders")
        self.world.write(1)
        connection = self.connect()
        connection.cursor().execute("CREATE TABLE facts (id INT)")
        connection.commit()
        connection.close()

    def connect(self) -> Any:
        at = self.endpoint
        if at.scheme == "postgresql":
            return psycopg.connect(
                host=at.host, port=at.port, user=at.user, password=at.password, dbname=at.path, row_factory=dict_row
            )
        return pymysql.connect(
            host=at.host,
            port=at.port or 3306,
            user=at.user,
            password=at.password,
            database=at.path,
            cursorclass=pymysql.cursors.DictCursor,
        )

    def tracker(self) -> Tracker:
        return Tracker(self.state, pipeline="wos", source=self.world.source, tables=["orders"])

    def moved(self) -> bool:
        return self.tracker().positions()["orders"].plan is None

    def facts(self) -> int:
        connection = self.connect()
        with connection.cursor() as cursor:
            cursor.execute("SELECT id FROM facts")
            found = len(cursor.fetchall())
        connection.close()
        return found


@pytest.fixture(params=["pg_database", "mariadb_database"])
def warehouse(request: pytest.FixtureRequest) -> Iterator[Warehouse]:
    found = Warehouse(request.getfixturevalue(request.param))
    yield found
    found.state.close()


def test_rows_and_watermark_are_one_transaction_wherever_it_ends(warehouse: Warehouse) -> None:
    connection = warehouse.connect()

    def write() -> None:
        connection.cursor().execute("INSERT INTO facts VALUES (1)")

    def statuses() -> list[str]:
        return [str(run.fields["status"]) for run in warehouse.state.read("run")]

    with warehouse.tracker().run() as run:  # rolled back inside the block
        write()
        run["orders"].commit_in(connection, rows=1)
        connection.rollback()
    assert (warehouse.facts(), warehouse.moved(), statuses()) == (0, False, ["FAILED"])

    with warehouse.tracker().run() as run:  # rolled back after it: whoever comes next finds the plan open
        for _ in run:
            write()
        run.commit_in(connection)
    assert not warehouse.moved()
    connection.rollback()
    assert (warehouse.facts(), warehouse.moved()) == (0, False)

    with warehouse.tracker().run() as run:  # committed after it
        for _ in run:
            write()
        run.commit_in(connection)
    connection.commit()
    assert (warehouse.facts(), warehouse.moved()) == (1, True)
    warehouse.world.write(2)

    with warehouse.tracker().run() as run:  # committed inside
        write()
        run["orders"].commit_in(connection, rows=1)
        connection.commit()
    assert (warehouse.facts(), warehouse.moved()) == (2, True)
    assert sorted(statuses()) == ["COMPLETED", "COMPLETED", "FAILED", "FAILED"]
    connection.close()


def test_what_is_said_beside_an_open_transaction_is_refused_at_once(warehouse: Warehouse) -> None:
    """It would wait for the row that the transaction holds, and so for ever."""
    connection = warehouse.connect()
    with warehouse.tracker().run() as run:
        connection.cursor().execute("INSERT INTO facts VALUES (1)")
        run["orders"].commit_in(connection, rows=1)
        with pytest.raises(StateError, match="in a transaction of yours that is still open"):
            run["orders"].done()
        connection.rollback()
        run["orders"].done(rows=0)
    assert (warehouse.facts(), warehouse.moved()) == (0, True)
    connection.close()


def test_a_connection_that_leads_elsewhere_or_commits_by_itself_is_refused(warehouse: Warehouse) -> None:
    connection = warehouse.connect()
    cursor = connection.cursor()
    cursor.execute("INSERT INTO facts VALUES (1)")
    elsewhere = "SET search_path TO pg_temp" if warehouse.endpoint.scheme == "postgresql" else "USE mysql"
    cursor.execute(elsewhere)
    with warehouse.tracker().run() as run:
        with pytest.raises(StateError, match="does not lead to the state"):
            run.commit_in(connection, run.tables)
        connection.commit()  # what the caller did before it stays
        assert warehouse.facts() == 1
        if warehouse.endpoint.scheme == "postgresql":
            connection.autocommit = True
        else:
            connection.autocommit(True)
        with pytest.raises(StateError, match="no transaction open"):
            run.commit_in(connection, run.tables)
    assert not warehouse.moved()
    connection.close()


def test_a_run_that_was_taken_over_cannot_commit_with_the_callers_rows(warehouse: Warehouse) -> None:
    silent = warehouse.tracker().run(renew=False).__enter__()
    connection = warehouse.connect()
    connection.cursor().execute("INSERT INTO facts VALUES (1)")
    (lease,) = warehouse.state.read("lease")
    warehouse.state.put([replace(lease, fields={**lease.fields, "expires_at": ""})])
    with warehouse.tracker().run() as run:
        run["orders"].done()
    with pytest.raises(LeaseError, match="another run has moved the position"):
        silent["orders"].commit_in(connection)
    connection.commit()
    assert warehouse.facts() == 1, "the caller's transaction is as it was, and the caller's to decide on"
    connection.close()

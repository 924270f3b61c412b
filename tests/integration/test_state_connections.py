"""A state on a server whose connections break, above all while a COMMIT is on its way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from strandline.core.errors import CommitUnknownError, ConflictError, ConnectError, TransientError
from strandline.core.protocols import State
from strandline.endpoint import Endpoint
from strandline.state import mysql, open_state, postgres
from strandline.testing.state import position, run
from strandline.testing.wire import COMMIT, Wire


@pytest.fixture(params=["pg_database", "mariadb_database"])
def endpoint(request: pytest.FixtureRequest) -> Endpoint:
    return Endpoint.parse(request.getfixturevalue(request.param))


@pytest.fixture
def wire(endpoint: Endpoint) -> Iterator[Wire]:
    assert endpoint.port is not None
    wire = Wire(endpoint.host, endpoint.port)
    yield wire
    wire.close()


@pytest.fixture
def direct(endpoint: Endpoint) -> Iterator[State]:
    state = open_state(endpoint)
    yield state
    state.close()


@pytest.fixture
def state(endpoint: Endpoint, wire: Wire) -> Iterator[State]:
    """The same store as `direct`, over the wire."""
    options = {"sslmode": "disable", "gssencmode": "disable"} if endpoint.scheme == "postgresql" else {}
    state = open_state(replace(endpoint, port=wire.port, options=options))
    yield state
    state.close()


def test_a_connection_lost_while_idle_is_made_again(state: State, wire: Wire) -> None:
    (record,) = state.put([position("orders", epoch=1)])
    wire.cut()
    assert state.read("position") == [record]
    wire.cut()
    (record,) = state.put([record])
    wire.cut()
    state.append([run("r1")])
    wire.cut()
    assert state.now().tzinfo is not None
    wire.cut()
    assert state.prune("run", "r2") == 1
    wire.cut()
    state.delete([record])
    assert state.read("position") == []


def test_a_commit_that_never_arrived_is_made_again(state: State, direct: State, wire: Wire) -> None:
    wire.cut_before = COMMIT
    put = state.put([position("orders", epoch=1), run("r1")])
    assert wire.cut_before is None
    assert [record.revision for record in put] == [1, 1]
    assert direct.read("position") + direct.read("run") == put


@pytest.mark.parametrize("new", [True, False])
def test_a_commit_whose_answer_was_lost_is_found(state: State, direct: State, wire: Wire, new: bool) -> None:
    records = [position("orders", epoch=1), run("r1")]
    if not new:
        records = direct.put(records)
    wire.cut_answer_to = COMMIT
    put = state.put(records)
    assert wire.cut_answer_to is None
    assert {record.revision for record in put} == {1 if new else 2}
    assert direct.read("position") + direct.read("run") == put


def test_a_deletion_whose_answer_was_lost_is_found(state: State, direct: State, wire: Wire) -> None:
    (record,) = direct.put([position("orders")])
    wire.cut_answer_to = COMMIT
    state.delete([record])
    assert wire.cut_answer_to is None
    assert direct.read("position") == []


def test_a_lost_answer_does_not_hide_that_somebody_else_wrote(state: State, direct: State, wire: Wire) -> None:
    (record,) = direct.put([position("orders", epoch=1)])
    (newer,) = direct.put([record])
    wire.cut_before = COMMIT
    with pytest.raises(ConflictError):
        state.put([record])
    wire.cut_before = None
    assert direct.read("position") == [newer]


@pytest.mark.parametrize("arrived", [True, False])
def test_a_commit_that_cannot_be_settled_is_unknown(state: State, direct: State, wire: Wire, arrived: bool) -> None:
    (record,) = state.put([position("orders", epoch=1)])
    wire.down = True
    wire.cut_answer_to, wire.cut_before = (COMMIT, None) if arrived else (None, COMMIT)
    with pytest.raises(CommitUnknownError):
        state.put([record])
    wire.down = False
    assert direct.read("position")[0].revision == (2 if arrived else 1)
    assert state.read("position") == direct.read("position")


def test_a_server_that_is_gone_is_worth_another_try(state: State, wire: Wire) -> None:
    wire.down = True
    wire.cut()
    with pytest.raises(TransientError) as caught:
        state.put([position("orders")])
    assert not isinstance(caught.value, CommitUnknownError)
    wire.down = False
    state.put([position("orders")])


def test_a_server_that_cannot_be_reached_or_refuses_is_a_connect_error(endpoint: Endpoint, wire: Wire) -> None:
    with pytest.raises(ConnectError) as caught:
        open_state(replace(endpoint, password="nonsense"))
    assert "nonsense" not in caught.value.explain()
    wire.down = True
    with pytest.raises(ConnectError, match="cannot be reached"):
        open_state(replace(endpoint, port=wire.port))


def test_an_older_store_on_a_server_gets_what_it_lacks(endpoint: Endpoint, direct: State) -> None:
    (record,) = direct.put([position("orders", epoch=5)])
    connection = {"postgresql": postgres, "mysql": mysql}[endpoint.scheme].dialect(endpoint).connect()
    for statement in (
        "ALTER TABLE strandline_positions DROP COLUMN measures",
        "DROP TABLE strandline_changes",
        "UPDATE strandline_meta SET value = '0' WHERE name = 'schema_version'",
    ):
        connection.cursor().execute(statement)
    connection.close()
    state = open_state(endpoint)
    assert state.identity() == direct.identity()
    assert state.read("position") == [record]
    assert state.read("change") == []
    state.put([replace(record, fields={"measures": "all"})])
    state.close()

"""`cache: memory`: what is held in memory is never acted on once somebody else has written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import strandline
from strandline import operations
from strandline.core.errors import ConfigError, ConflictError
from strandline.core.protocols import Record, State
from strandline.endpoint import Endpoint
from strandline.state import open_state
from strandline.testing.servers import Postgres
from strandline.testing.state import position


@pytest.fixture(params=["sqlite", "pg_database", "mariadb_database"])
def endpoint(request: pytest.FixtureRequest, tmp_path: Path) -> Endpoint:
    if request.param == "sqlite":
        return Endpoint.parse(f"sqlite:///{tmp_path}/state.db")
    return Endpoint.parse(request.getfixturevalue(request.param))


@pytest.fixture
def plain(endpoint: Endpoint) -> Iterator[State]:
    state = open_state(endpoint)
    yield state
    state.close()


@pytest.fixture
def cached(endpoint: Endpoint) -> Iterator[State]:
    state = open_state(replace(endpoint, options={"cache": "memory"}))
    yield state
    state.close()


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many positions were fetched since the last call."""
    from strandline.state.cached import CachedState

    counts = [0]
    original = CachedState._stored

    def counted(self: CachedState, cursor: Any, records: Sequence[Record], **options: bool) -> Any:
        counts[0] += len(records)
        return original(self, cursor, records, **options)

    monkeypatch.setattr(CachedState, "_stored", counted)

    def since() -> int:
        found, counts[0] = counts[0], 0
        return found

    return since


def test_only_what_others_wrote_is_fetched(plain: State, cached: State, fetched: Callable[[], int]) -> None:
    stored = plain.put([position(f"t{number}", updated_at="1", plan="long" * 100) for number in range(5)])
    assert cached.read("position", ["shop"]) == stored
    assert fetched() == 5
    assert cached.read("position", ["shop"]) == stored
    assert fetched() == 0
    (moved,) = plain.put([replace(stored[2], fields={**stored[2].fields, "watermark": "t:2"})])
    assert cached.read("position", ["shop"]) == [*stored[:2], moved, *stored[3:]]
    assert fetched() == 1


def test_our_own_writes_are_held_as_they_were_stored(plain: State, cached: State, fetched: Callable[[], int]) -> None:
    (record,) = cached.put([position("orders", watermark="t:1", updated_at="1")])
    (record,) = cached.put([replace(record, fields={**record.fields, "watermark": "t:2"})])
    assert cached.read("position", ["shop"]) == plain.read("position", ["shop"]) == [record]
    assert fetched() == 0


def test_a_stale_record_in_memory_cannot_be_written(plain: State, cached: State) -> None:
    (held,) = cached.put([position("orders", epoch=1)])
    plain.put([replace(held, fields={"epoch": 2})])
    with pytest.raises(ConflictError):
        cached.put([replace(held, fields={"epoch": 3})])
    assert [record.fields["epoch"] for record in cached.read("position", ["shop"])] == [2]


def test_what_was_removed_or_made_by_others_goes_and_comes(plain: State, cached: State) -> None:
    orders, fees = cached.put([position("orders"), position("fees")])
    plain.delete([orders])
    (other,) = plain.put([position("orders", pipeline="another")])
    assert cached.read("position", ["shop"]) == [fees]
    assert cached.read("position") == [other, fees]
    plain.delete([fees])
    assert cached.read("position", ["shop"]) == []


def test_a_restored_store_counts_again_and_is_not_taken_for_what_is_held(plain: State, cached: State) -> None:
    """The same revision, written at another time, is another record."""
    (held,) = cached.put([position("orders", epoch=1, updated_at="2026-11-16T10:00:00Z")])
    plain.delete([held])
    (restored,) = plain.put([position("orders", epoch=7, updated_at="2026-11-16T11:00:00Z")])
    assert restored.revision == held.revision
    assert cached.read("position", ["shop"]) == [restored]


def test_a_state_without_a_database_takes_no_cache(tmp_path: Path) -> None:
    for url in (f"sqlite:///{tmp_path}/state.db", "postgresql://nobody@127.0.0.1:1/x"):
        with pytest.raises(ConfigError, match="cache: disk is not known"):
            open_state(Endpoint.parse(url, {"cache": "disk"}))
    with pytest.raises(ConfigError, match="cache"):
        open_state(Endpoint.parse(str(tmp_path / "folder"), {"cache": "memory"}))


def test_two_projects_on_one_cached_state_never_move_a_row_twice(
    postgres: Postgres, pg_database: str, tmp_path: Path
) -> None:
    """Each goes on where the other one stopped, and a reset by one is seen by the other."""
    with postgres.connect(pg_database.rpartition("/")[2]) as connection:
        connection.execute("CREATE SCHEMA copy")
        connection.execute("CREATE TABLE orders (id bigint PRIMARY KEY, at timestamptz NOT NULL DEFAULT now())")
        connection.execute("CREATE INDEX ON orders (at)")
        config = tmp_path / "strandline.yml"
        config.write_text(
            f"state: {{url: '{pg_database}', cache: memory}}\n"
            f"pipelines: {{shop: {{source: '{pg_database}', target: '{pg_database}', via: server, guard: 0s, "
            "tables: [{name: orders, cursor: at, target: copy.orders}]}}\n"
        )
        with strandline.load(config) as first, strandline.load(config) as second:
            for number, project in enumerate([first, second] * 3):
                connection.execute("INSERT INTO orders VALUES (%s)", (number,))
                (outcome,) = project.sync("shop", raise_on_failure=True).tables
                assert outcome.applied.rows_inserted == 1
            change = operations.reset(first, "shop", "orders")
            operations.apply(first, [change], why="test")
            (outcome,) = second.sync("shop", raise_on_failure=True).tables
            assert outcome.applied.rows_read == 6
        assert connection.execute("SELECT count(*) FROM copy.orders").fetchone() == (6,)

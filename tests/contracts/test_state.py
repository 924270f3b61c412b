"""The State contract on every store there is."""

from __future__ import annotations

import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from strandline.core.errors import ConfigError
from strandline.endpoint import Endpoint
from strandline.state import open_state
from strandline.state.memory import MemoryState
from strandline.testing.state import Connect, StateContract
from strandline.testing.stores import Moto, Seaweed


class TestMemoryState(StateContract):
    @pytest.fixture
    def connect(self) -> Connect:
        state = MemoryState()
        return lambda: state


class TestSqliteState(StateContract):
    @pytest.fixture
    def connect(self, tmp_path: Path) -> Connect:
        return lambda: open_state(Endpoint.parse(f"sqlite:///{tmp_path}/folder/state.db"))


class TestCachedState(StateContract):
    @pytest.fixture
    def connect(self, pg_database: str) -> Connect:
        return lambda: open_state(replace(Endpoint.parse(pg_database), options={"cache": "memory"}))


class TestPostgresState(StateContract):
    @pytest.fixture
    def connect(self, pg_database: str) -> Connect:
        return lambda: open_state(Endpoint.parse(pg_database))


class TestMariadbState(StateContract):
    @pytest.fixture
    def connect(self, mariadb_database: str) -> Connect:
        return lambda: open_state(Endpoint.parse(mariadb_database))


class TestDirectoryState(StateContract):
    @pytest.fixture(params=["table", "pipeline"])
    def connect(self, request: pytest.FixtureRequest, tmp_path: Path) -> Connect:
        endpoint = Endpoint.parse(str(tmp_path / "state"), {"layout": request.param})
        return lambda: open_state(endpoint)


class TestSeaweedState(StateContract):
    many = 200

    @pytest.fixture
    def connect(self, seaweed: Seaweed) -> Connect:
        endpoint = seaweed.endpoint("contracts", uuid.uuid4().hex)
        return lambda: open_state(endpoint)


class TestMotoState(StateContract):
    @pytest.fixture
    def connect(self, moto: Moto) -> Connect:
        endpoint = moto.endpoint("contracts", uuid.uuid4().hex, layout="pipeline")
        return lambda: open_state(endpoint)


class TestDeltaState(StateContract):
    @pytest.fixture
    def connect(self, tmp_path: Path) -> Connect:
        return lambda: open_state(Endpoint.parse(f"delta:{tmp_path}/folder/state"))


def test_a_state_cannot_live_just_anywhere() -> None:
    with pytest.raises(ConfigError, match="kafka"):
        open_state(Endpoint.parse("kafka://host/topic"))

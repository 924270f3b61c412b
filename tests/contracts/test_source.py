"""The Source contract on every database there is, and on tables that keep versions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from strandline.testing.lake import Lake, VersionContract
from strandline.testing.shops import MariadbShop, PostgresShop, SnowflakeShop
from strandline.testing.source import ReadingContract, Shop, SourceContract


class TestPostgresSource(SourceContract):
    @pytest.fixture
    def shop(self, pg_database: str) -> Iterator[Shop]:
        with PostgresShop(pg_database) as shop:
            yield shop


class TestMariadbSource(SourceContract):
    @pytest.fixture
    def shop(self, mariadb_database: str) -> Iterator[Shop]:
        with MariadbShop(mariadb_database) as shop:
            yield shop


class TestSnowflakeSource(ReadingContract):
    identifiers = ('Order "Details" `x`', 'na"me with `every` quote % ünïcode.ß', "Select")  # fakesnow trips over a '

    @pytest.fixture
    def shop(self, snowflake_database: str) -> Iterator[Shop]:
        with SnowflakeShop(snowflake_database) as shop:
            yield shop


class TestDeltaSource(VersionContract):
    @pytest.fixture
    def lake(self, tmp_path: Path) -> Lake:
        lake = Lake(tmp_path / "lake")
        lake.create()
        return lake

"""The Source contract on every database there is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from strandline.testing.shops import MariadbShop, PostgresShop
from strandline.testing.source import Shop, SourceContract


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

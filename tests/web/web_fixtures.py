"""A shop behind a client; `steady` is one that a whole file only looks at."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from web_shop import Shop

from strandline.testing.servers import Postgres
from strandline.web.app import make_app
from strandline.web.security import Security


@pytest.fixture
def shop(pg_database: str, tmp_path: Path) -> Iterator[Shop]:
    made = Shop(pg_database, tmp_path)
    yield made
    made.close()


@pytest.fixture
def client(shop: Shop) -> TestClient:
    return TestClient(make_app(shop.desk, Security()), base_url="http://127.0.0.1")


@pytest.fixture(scope="module")
def steady(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    name = f"t_{uuid.uuid4().hex[:12]}"
    with postgres.connect() as connection:
        connection.execute(f"CREATE DATABASE {name}")
        made = Shop(postgres.url(name), tmp_path_factory.mktemp("steady"))
        made.write("orders", *range(1, 8))
        made.write("customers", 1)
        made.execute("INSERT INTO items (value) VALUES ('a')")
        made.sync()
        made.sync("counted")
        yield made
        made.close()
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(scope="module")
def reader(steady: Shop) -> TestClient:
    return TestClient(make_app(steady.desk, Security()), base_url="http://127.0.0.1")

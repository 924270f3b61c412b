"""The whole hop from MariaDB: the same loop, another database's clock, types and barrier."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import yaml
from deltalake import DeltaTable, QueryBuilder

import strandline
from strandline.core.position import Status
from strandline.core.run import Outcome
from strandline.testing.servers import MariaDB

if TYPE_CHECKING:
    from pymysql.connections import Connection
    from pyspark.sql import SparkSession

CLAIMS = """
CREATE TABLE claims (id BIGINT UNSIGNED PRIMARY KEY, partner VARCHAR(20) NOT NULL, amount DECIMAL(38,10),
  update_at DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6), KEY (update_at))"""


class Claims:
    def __init__(self, server: MariaDB, url: str, folder: Path, spark: Any) -> None:
        self.server, self.url, self.folder, self.spark = server, url, folder, spark
        self.database = self.connect()
        self.execute(CLAIMS)

    def connect(self) -> Connection:
        return self.server.connect(self.url.rpartition("/")[2])

    def execute(self, sql: str) -> None:
        with self.database.cursor() as cursor:
            cursor.execute(sql)

    def sync(self) -> Outcome:
        path = self.folder / "strandline.yml"
        table = {"name": "claims", "cursor": "update_at", "zone": "UTC"}
        pipeline = {"source": self.url, "target": "delta:lake", "guard": "0s", "tables": [table]}
        path.write_text(yaml.safe_dump({"pipelines": {"settlement": pipeline}}))
        with strandline.load(path) as project:
            (outcome,) = project.sync("settlement", spark=self.spark).tables
        assert outcome.error is None
        return outcome

    def target(self) -> list[tuple[int, str, Decimal]]:
        lake = DeltaTable(str(self.folder / "lake" / "claims"))
        rows = QueryBuilder().register("t", lake).execute("SELECT id, partner, amount FROM t ORDER BY id").read_all()
        return list(zip(*(rows[name].to_pylist() for name in rows.schema.names), strict=True))


@pytest.fixture
def claims(mariadb: MariaDB, mariadb_database: str, tmp_path: Path, spark: SparkSession) -> Iterator[Claims]:
    claims = Claims(mariadb, mariadb_database, tmp_path, spark)
    yield claims
    claims.database.close()


def test_first_load_increment_and_nothing_new(claims: Claims) -> None:
    most = Decimal("9999999999999999999999999999.9999999999")
    claims.execute(f"INSERT INTO claims (id, partner, amount) VALUES (18446744073709551615, 'Ü', {most}), (1, 'a', 1)")
    assert claims.sync().applied.rows_inserted == 2
    claims.execute("UPDATE claims SET partner = 'b' WHERE id = 1")
    claims.execute("INSERT INTO claims (id, partner) VALUES (2, 'c')")
    applied = claims.sync().applied
    assert (applied.rows_inserted, applied.rows_updated) == (1, 1)
    assert claims.sync().status is Status.SKIPPED
    assert [(int(number), partner) for number, partner, _ in claims.target()] == [(1, "b"), (2, "c"), (2**64 - 1, "Ü")]
    assert claims.target()[2][2] == most


def test_one_command_moves_pipelines_whose_sources_are_of_two_kinds(claims: Claims, pg_database: str) -> None:
    """The Spark of a command is made for all of them: started for the first, it had no driver for the second."""
    with psycopg.connect(pg_database, autocommit=True) as connection:
        connection.execute("CREATE TABLE fees (id bigint PRIMARY KEY, at timestamptz NOT NULL DEFAULT now())")
        connection.execute("INSERT INTO fees VALUES (1)")
    claims.execute("INSERT INTO claims (id, partner) VALUES (1, 'a')")
    table = {"name": "claims", "cursor": "update_at", "zone": "UTC"}
    ends = {"target": "delta:lake", "guard": "0s"}
    pipelines = {
        "fees": {"source": pg_database, "tables": [{"name": "fees", "cursor": "at"}], **ends},
        "settlement": {"source": claims.url, "tables": [table], **ends},
    }
    path = claims.folder / "strandline.yml"
    path.write_text(yaml.safe_dump({"pipelines": pipelines}))
    done = subprocess.run([sys.executable, "-m", "strandline", "sync", "-c", str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(claims.target()) == 1

"""The examples, run: the job as people write it and the same on Strandline arrive at the same rows; and what is said to
go wrong in the one goes right in the other."""

from __future__ import annotations

import runpy
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pymysql
import pytest

import strandline
from strandline.endpoint import Endpoint
from strandline.testing.lake import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLES = Path(__file__).parents[2] / "examples"


def example(folder: str, file: str) -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLES / folder / file))


def test_000_a_watermark_table_over_delta_tables(tmp_path: Path, spark: SparkSession) -> None:
    lake = Lake(tmp_path / "lake")
    lake.create()
    lake.insert(1, 2)
    today, ours = (example("000_watermark_table", name) for name in ("today.py", "on_strandline.py"))

    def run(job: dict[str, Any], keeps: str, folder: str) -> list[int]:
        target = str(tmp_path / folder)
        job["job"](spark, keeps, str(lake.root), target, ["orders"])
        rows = spark.read.format("delta").load(f"{target}/orders").select("id").collect()
        return sorted(row["id"] for row in rows)

    state = f"sqlite:///{tmp_path}/state.db"
    assert run(ours, state, "ours") == [1, 2]
    lake.insert(3)
    lake.delete(1)
    assert run(ours, state, "ours") == [2, 3]
    assert run(today, str(tmp_path / "control"), "today") == [1, 2, 3], "the row that was deleted stays"


def test_001_one_window_for_a_pipeline(tmp_path: Path, spark: SparkSession) -> None:
    source, state = str(tmp_path / "acs_source_table"), f"sqlite:///{tmp_path}/state.db"
    today, ours = (example("001_watermark_tracker", name) for name in ("today.py", "on_strandline.py"))

    def insert(id: int, minutes_ago: int) -> None:
        row = spark.sql(f"SELECT {id} AS id, current_timestamp() - INTERVAL {minutes_ago} MINUTE AS updated_at")
        row.write.format("delta").mode("append").save(source)

    def read() -> tuple[list[int], list[int]]:
        found: list[list[int]] = []

        def process(rows: Any) -> None:
            found.append(sorted(row["id"] for row in rows.collect()))

        today["job"](spark, str(tmp_path / "control"), source, process)
        ours["job"](spark, state, source, process)
        return found[0], found[1]

    insert(1, 10)
    insert(2, 5)
    assert read() == ([1, 2], [1, 2])
    insert(3, 1)  # stamped before the run above, and committed after it
    first, second = read()
    assert first == [], "lost"
    assert 3 in second


def test_002_mysql_to_a_stage_to_a_warehouse(
    mariadb_database: str,
    pg_database: str,
    tmp_path: Path,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at = Endpoint.parse(mariadb_database)
    login: dict[str, Any] = {"host": at.host, "port": at.port, "user": at.user, "password": at.password}
    mysql = pymysql.connect(**login, database=at.path, autocommit=True, init_command="SET time_zone = '+00:00'")
    mysql.cursor().execute(
        "CREATE TABLE claims (id INT PRIMARY KEY, amount DECIMAL(10, 2) NOT NULL, "
        "update_at DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6), INDEX (update_at))"
    )
    mysql.cursor().execute("INSERT INTO claims VALUES (1, 10.50, '2026-11-15 08:00'), (2, 7.25, '2026-11-15 08:01')")
    with psycopg.connect(pg_database, autocommit=True) as warehouse:
        warehouse.execute("CREATE SCHEMA today; SET search_path TO today")
        warehouse.execute("CREATE TABLE claims (id int PRIMARY KEY, amount numeric(10, 2), update_at timestamp)")
        example("002_mysql_stage_warehouse", "today.py")["job"](mysql, warehouse, tmp_path / "staged")
        config = shutil.copy(EXAMPLES / "002_mysql_stage_warehouse" / "strandline.yml", tmp_path)
        monkeypatch.setenv("SOURCE", mariadb_database)
        monkeypatch.setenv("TARGET", pg_database)
        monkeypatch.chdir(tmp_path)
        with strandline.load(config) as project:
            assert not project.sync("settlement", spark=spark, raise_on_failure=True).failed
        both = [
            warehouse.execute(f"SELECT id, amount FROM {schema}.claims ORDER BY id".encode()).fetchall()
            for schema in ("today", "public")
        ]
    assert both[0] == both[1] and len(both[0]) == 2
    mysql.close()


def test_003_table_to_table_inside_one_database(
    pg_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = "(id bigint PRIMARY KEY, status text, last_update_date timestamptz NOT NULL)"
    with psycopg.connect(pg_database) as database:
        for name in ("run_history", "run_history_replica"):
            database.execute(f"CREATE TABLE {name} {table}".encode())
        database.execute("CREATE INDEX ON run_history (last_update_date)")
        database.execute(
            "INSERT INTO run_history VALUES (1, 'done', now() - interval '1 h'), (2, 'new', now() - interval '1 m')"
        )
        database.commit()
        example("003_table_to_table", "today.py")["job"](database)
        config = shutil.copy(EXAMPLES / "003_table_to_table" / "strandline.yml", tmp_path)
        monkeypatch.setenv("DATABASE", pg_database)
        monkeypatch.chdir(tmp_path)
        with strandline.load(config) as project:
            project.sync("replica", raise_on_failure=True)
        both = [
            database.execute(f"SELECT * FROM {name} ORDER BY id".encode()).fetchall()
            for name in ("run_history_replica", "run_history_replica_2")
        ]
    assert both[0] == both[1] and len(both[0]) == 2


def test_004_poll_publish_remember(pg_database: str, capsys: pytest.CaptureFixture[str]) -> None:
    today, ours = (example("004_high_watermark", name) for name in ("today.py", "on_strandline.py"))
    with psycopg.connect(pg_database) as database, psycopg.connect(pg_database) as slow:
        database.execute("CREATE TABLE notifications (seq bigserial PRIMARY KEY, status text)")
        database.execute("INSERT INTO notifications (status) VALUES ('new'), ('new')")
        database.commit()
        cache: dict[str, int] = {}
        topics: tuple[list[Any], list[Any]] = ([], [])

        def poll() -> list[list[int]]:
            today["poll"](database, cache, topics[0].append)
            ours["poll"](database, pg_database, topics[1].append)
            return [sorted(message["seq"] for message in topic) for topic in topics]

        assert poll() == [[1, 2], [1, 2]]
        slow.execute("INSERT INTO notifications (status) VALUES ('late')")  # draws 3, and commits it later
        database.execute("INSERT INTO notifications (status) VALUES ('new')")  # draws 4
        database.commit()
        assert poll()[0] == [1, 2, 4]
        slow.commit()
        assert poll() == [[1, 2, 4], [1, 2, 3, 4]], "3 is lost in the one"
    assert {message["batch"] for message in topics[1]} == {1, 2}
    assert "using cached value: 4" in capsys.readouterr().out

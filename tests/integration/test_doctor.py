"""What `doctor` finds on real servers, healthy and not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import psycopg
import pytest
from clinic import HEALTHY, configured, examine, found, only

from strandline import load
from strandline.core.batch import Batch
from strandline.core.books import Lease
from strandline.core.position import Position, Reason, Status, TablePlan
from strandline.core.watermark import Kind, Watermark
from strandline.core.window import Slice, Window
from strandline.doctor import Level
from strandline.endpoint import Endpoint
from strandline.project import Project
from strandline.testing.servers import MariaDB, Postgres


@pytest.fixture
def connection(pg_database: str) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    with psycopg.connect(pg_database, autocommit=True) as connection:
        connection.execute(HEALTHY)
        yield connection


@pytest.fixture
def project(
    connection: psycopg.Connection[tuple[object, ...]], pg_database: str, tmp_path: Path
) -> Callable[[], Project]:
    del connection
    return configured(tmp_path, pg_database)


def test_a_healthy_project_has_neither_failure_nor_warning(project: Callable[[], Project]) -> None:
    findings = [finding for finding in examine(project) if finding.area != "setup"]
    assert {finding.level for finding in findings} == {Level.OK}
    assert only(findings, "PostgreSQL").pipeline == "shop"
    assert "clock" in only(findings, "PostgreSQL").text
    assert {finding.area for finding in findings} == {"config", "source", "target", "state"}


def test_no_finding_holds_the_password(project: Callable[[], Project], pg_database: str) -> None:
    secret = str(psycopg.conninfo.conninfo_to_dict(pg_database)["password"])
    assert secret not in "".join(f"{finding}" for finding in examine(project))


def test_a_broken_config_is_one_failure_and_the_machine_is_still_looked_at(tmp_path: Path) -> None:
    (tmp_path / "strandline.yml").write_text("pipelines: 3")
    findings = examine(lambda: load(tmp_path / "strandline.yml"))
    assert findings[-1].area == "config" and findings[-1].level is Level.FAIL
    assert any(finding.area == "setup" for finding in findings)


def test_a_server_that_is_down_is_a_failure_with_its_remedy(tmp_path: Path) -> None:
    findings = examine(configured(tmp_path, "postgresql://reader:x@127.0.0.1:1/shop"))
    down = next(finding for finding in findings if finding.level is Level.FAIL)
    assert down.area == "source" and down.remedy


def test_a_wrong_password_is_a_failure(postgres: Postgres, tmp_path: Path) -> None:
    (text,) = found(configured(tmp_path, postgres.url(password="wrong")))
    assert 'login as "postgres" was refused' in text


def test_a_cursor_without_an_index_comes_with_the_statement_that_makes_one(
    project: Callable[[], Project], connection: psycopg.Connection[tuple[object, ...]]
) -> None:
    connection.execute("DROP INDEX orders_updated_at_idx")
    warning = only(examine(project), "has no index")
    assert warning.level is Level.WARN
    connection.execute(warning.remedy)
    assert found(project, Level.WARN) == []


def test_a_cursor_that_nothing_moves_on_update_comes_with_a_trigger_that_does(
    project: Callable[[], Project], connection: psycopg.Connection[tuple[object, ...]]
) -> None:
    connection.execute("DROP TRIGGER touch_orders ON orders")
    warning = only(examine(project), "the application must set it")
    connection.execute(warning.remedy)
    assert found(project, Level.WARN) == []
    connection.execute("UPDATE orders SET id = 3 WHERE id = 2")
    assert connection.execute("SELECT max(updated_at) > min(updated_at) FROM orders").fetchone() == (True,)


def test_null_cursors_fail_and_a_column_that_may_be_null_warns(
    project: Callable[[], Project], connection: psycopg.Connection[tuple[object, ...]]
) -> None:
    connection.execute("ALTER TABLE orders ALTER updated_at DROP NOT NULL")
    assert any("may be NULL; no row is now" in text for text in found(project, Level.WARN))
    connection.execute("INSERT INTO orders VALUES (9, NULL)")
    assert any("is NULL in 1 rows" in text for text in found(project))


def test_rows_from_the_future_are_counted(
    project: Callable[[], Project], connection: psycopg.Connection[tuple[object, ...]]
) -> None:
    connection.execute("INSERT INTO orders VALUES (9, now() + interval '2 days')")
    (text,) = found(project, Level.WARN)
    assert "in the future in 1 rows: the newest is 2 days ahead" in text


def test_a_zone_that_puts_rows_into_the_future_is_doubted(
    connection: psycopg.Connection[tuple[object, ...]], pg_database: str, tmp_path: Path
) -> None:
    connection.execute("CREATE TABLE local (id bigint PRIMARY KEY, updated_at timestamp NOT NULL)")
    connection.execute("CREATE INDEX ON local (updated_at)")
    connection.execute("INSERT INTO local VALUES (1, now() AT TIME ZONE 'Asia/Tokyo'); ANALYZE")
    wrong = configured(tmp_path, pg_database, "{name: local, cursor: updated_at, zone: UTC}")
    assert "9 hours ahead read as UTC" in only(examine(wrong), "in the future").text
    right = configured(tmp_path, pg_database, "{name: local, cursor: updated_at, zone: Asia/Tokyo}")
    assert not any("future" in text for text in found(right, Level.WARN))


def test_whole_seconds_are_pointed_out(
    project: Callable[[], Project], connection: psycopg.Connection[tuple[object, ...]]
) -> None:
    connection.execute("ALTER TABLE orders ALTER updated_at TYPE timestamptz(0)")
    assert any("keeps whole seconds" in text for text in found(project, Level.WARN))


def test_one_tables_trouble_hides_no_other(
    connection: psycopg.Connection[tuple[object, ...]], pg_database: str, tmp_path: Path
) -> None:
    del connection
    tables = "{name: missing, cursor: updated_at}\n      - {name: orders, cursor: updated_at}"
    findings = examine(configured(tmp_path, pg_database, tables))
    assert only(findings, 'no table or view "missing"').level is Level.FAIL
    assert only(findings, "orders: cursor updated_at").level is Level.OK


def test_a_target_folder_that_is_somebody_elses_is_a_failure(project: Callable[[], Project], tmp_path: Path) -> None:
    (tmp_path / "lake" / "orders").mkdir(parents=True)
    (tmp_path / "lake" / "orders" / "report.txt").write_text("mine")
    assert any("not a Delta table" in text for text in found(project))


def test_a_target_below_a_file_is_a_failure(project: Callable[[], Project], tmp_path: Path) -> None:
    (tmp_path / "lake").write_text("a file")
    assert any("is no folder" in text for text in found(project))


def test_a_position_whose_target_is_gone_is_a_failure_with_the_choices(project: Callable[[], Project]) -> None:
    with project() as opened:
        at = Watermark(Kind.TIMESTAMP, "2026-01-01 00:00:00")
        batch = Batch(opened.books.store, 1, 7, None, at, at, "a")
        opened.books.write([Position("shop", "orders", "sync", watermark=at, batch=batch, batches=7)])
    findings = examine(project)
    lost = only(findings, "the target lost its batches")
    assert lost.level is Level.FAIL and "sync --full" in lost.remedy


def test_a_state_file_that_is_none_is_a_failure(project: Callable[[], Project], tmp_path: Path) -> None:
    (tmp_path / ".strandline").mkdir()
    (tmp_path / ".strandline" / "state.db").write_bytes(b"nonsense " * 1000)
    findings = examine(project)
    assert [finding.area for finding in findings if finding.level is Level.FAIL] == ["state"]


def test_a_watermark_in_the_future_an_old_plan_and_a_forgotten_pipeline_are_found(
    project: Callable[[], Project],
) -> None:
    with project() as opened:
        future = Watermark(Kind.TIMESTAMP, f"{datetime.now(UTC).year + 1}-01-01 00:00:00")
        window = Window(None, future)
        plan = TablePlan(
            "orders", "sync", window, (Slice(window),), Reason.FIRST_LOAD, run_id="20200101-000000-000-abc"
        )
        stuck = Position("shop", "orders", "sync", watermark=future, plan=plan, status=Status.FAILED)
        opened.books.write([stuck, Position("gone", "orders", "sync"), Position("shop", "orders", "load")])
    warnings = found(project, Level.WARN)
    assert any("is in the future" in text for text in warnings)
    assert any("20200101-000000-000-abc left its plan open, 0 of 1 slices done" in text for text in warnings)
    assert any("gone is in the state but not in the config" in text for text in warnings)
    assert any("a position of the stage load is left; the pipeline has sync now" in text for text in warnings)


def test_a_position_that_cannot_be_read_is_a_failure(project: Callable[[], Project]) -> None:
    with project() as opened:
        opened.books.write([Position("shop", "orders", "sync")])
        (record,) = opened.books.state.read("position")
        opened.books.state.put([replace(record, fields={**record.fields, "measures": "{"})])
    assert any("cannot be read" in text for text in found(project))


def test_a_plan_whose_run_is_at_work_is_not_stuck(project: Callable[[], Project]) -> None:
    with project() as opened:
        at = Watermark(Kind.TIMESTAMP, "2026-01-01 00:00:00")
        plan = TablePlan(
            "orders", "sync", Window(None, at), (Slice(Window(None, at)),), Reason.FIRST_LOAD, run_id="2020"
        )
        opened.books.write([Position("shop", "orders", "sync", plan=plan)])
        lease = opened.books.take(Lease("shop", "orders"), "2020")
        opened.books.state.put([lease.record()])
        assert not any("left its plan open" in text for text in found(project, Level.WARN))


@pytest.fixture
def mariadb_shop(mariadb: MariaDB, mariadb_database: str) -> Iterator[str]:
    """A healthy table but for what each test does to it."""
    with mariadb.connect(Endpoint.parse(mariadb_database).path) as connection, connection.cursor() as cursor:
        cursor.execute(
            "CREATE TABLE orders (id bigint PRIMARY KEY, "
            "updated_at timestamp(6) NOT NULL DEFAULT now(6) ON UPDATE now(6), KEY (updated_at))"
        )
        cursor.execute("INSERT INTO orders (id) VALUES (1)")
        yield mariadb_database


def test_a_healthy_mariadb_has_neither_failure_nor_warning(mariadb_shop: str, tmp_path: Path) -> None:
    findings = [finding for finding in examine(configured(tmp_path, mariadb_shop)) if finding.area != "setup"]
    assert [finding.text for finding in findings if finding.level is not Level.OK] == []
    assert "MariaDB" in only(findings, "clock").text


def test_a_mariadb_cursor_without_on_update_comes_with_the_statement_that_adds_it(
    mariadb: MariaDB, mariadb_shop: str, tmp_path: Path
) -> None:
    project = configured(tmp_path, mariadb_shop)
    with mariadb.connect(Endpoint.parse(mariadb_shop).path) as connection, connection.cursor() as cursor:
        cursor.execute("ALTER TABLE orders MODIFY updated_at timestamp(6) NOT NULL DEFAULT now(6)")
        cursor.execute(only(examine(project), "the application must set it").remedy)
    assert found(project, Level.WARN) == []


def test_a_mariadb_reader_without_process_is_told_which_grant_it_lacks(
    mariadb: MariaDB, mariadb_shop: str, tmp_path: Path
) -> None:
    database = Endpoint.parse(mariadb_shop).path
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE OR REPLACE USER weak IDENTIFIED BY 'pw'")
        cursor.execute(f"GRANT SELECT ON {database}.* TO weak")
    findings = examine(configured(tmp_path, mariadb.url(database, "weak", "pw")))
    assert any(finding.level is Level.FAIL and "GRANT PROCESS" in finding.remedy for finding in findings)

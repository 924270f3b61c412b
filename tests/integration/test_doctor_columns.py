"""`doctor` compares the columns of source and target, without Spark: PostgreSQL against each kind of target."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from clinic import HEALTHY, examine
from deltalake import DeltaTable, Field, Schema
from deltalake.schema import PrimitiveType

from strandline import load
from strandline.doctor import Finding, Level
from strandline.endpoint import Endpoint
from strandline.project import Project
from strandline.sinks import redshift
from strandline.sinks.snowflake import SnowflakeTarget
from strandline.testing.redshift import as_redshift, redshift_endpoint
from strandline.testing.servers import MariaDB
from strandline.testing.stores import Seaweed

Configured = Callable[..., Callable[[], Project]]


@pytest.fixture
def source(pg_database: str) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    with psycopg.connect(pg_database, autocommit=True) as connection:
        connection.execute(HEALTHY)
        connection.execute("CREATE SCHEMA copied; ALTER TABLE orders ADD amount numeric(12,2)")
        yield connection


@pytest.fixture
def configured(source: psycopg.Connection[tuple[object, ...]], pg_database: str, tmp_path: Path) -> Configured:
    del source

    def configured(target: str, more: str = "") -> Callable[[], Project]:
        tables = f"[{{name: orders, cursor: updated_at{more}}}]"
        text = f"pipelines:\n  shop:\n    source: {pg_database}\n    target: {target}\n    tables: {tables}\n"
        (tmp_path / "strandline.yml").write_text(text)
        return lambda: load(tmp_path / "strandline.yml")

    return configured


def of_target(project: Callable[[], Project]) -> list[Finding]:
    findings = examine(project)
    assert not any(finding.area == "config" and finding.level is Level.FAIL for finding in findings)
    return [finding for finding in findings if finding.area == "target" and finding.level is not Level.OK]


def test_postgresql(configured: Configured, source: psycopg.Connection[tuple[object, ...]], pg_database: str) -> None:
    project = configured(f"{{url: '{pg_database}', schema: copied}}")
    assert of_target(project) == [], "a table that is not there yet can be made as it should be"
    source.execute("CREATE TABLE copied.orders (id bigint, updated_at timestamptz(3), more text)")
    (rounds,) = of_target(project)
    assert (rounds.level, rounds.docs) == (Level.FAIL, "docs/doctor.md#columns")
    assert "column updated_at was timestamp(3) with time zone and is now timestamp" in rounds.text
    source.execute("ALTER TABLE copied.orders ALTER updated_at TYPE timestamptz")
    (keyless,) = of_target(project)
    assert "no unique index over the key (id)" in keyless.text
    source.execute(keyless.remedy.removeprefix("Make one:   "))
    told = of_target(project)
    assert [finding.level for finding in told] == [Level.NOTE, Level.NOTE]
    assert "column amount (numeric(12,2)) is not there yet" in told[0].text
    assert "column more is no longer in the source: kept" in told[1].text


def test_mysql(configured: Configured, mariadb: MariaDB, mariadb_database: str) -> None:
    project = configured(mariadb_database)
    with mariadb.connect(mariadb_database.rpartition("/")[2]) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE orders (id int PRIMARY KEY, updated_at timestamp(6), amount decimal(10,2))")
        widened = of_target(project)
        assert [finding.text for finding in widened] == [
            "orders: column id becomes bigint",
            "orders: column amount becomes decimal(12,2)",
        ]
        cursor.execute("ALTER TABLE orders MODIFY amount varchar(20)")
        (wrong,) = of_target(project)
    assert wrong.level is Level.FAIL
    assert "column amount was varchar(20)" in wrong.text and "decimal(12,2)" in wrong.text
    assert "sync --full -t orders" in wrong.remedy


def test_delta(configured: Configured, tmp_path: Path) -> None:
    project = configured("delta:lake", ", shared: true")
    types = {"id": "string", "updated_at": "timestamp", "x": "long"}
    fields = [Field(name, PrimitiveType(kind)) for name, kind in types.items()]
    DeltaTable.create(str(tmp_path / "lake" / "orders"), Schema(fields))
    (wrong,) = of_target(project)
    assert wrong.level is Level.FAIL
    assert "column id was string and is now bigint" in wrong.text
    assert "sync --full -t orders" in wrong.remedy


def test_redshift(
    configured: Configured,
    source: psycopg.Connection[tuple[object, ...]],
    pg_database: str,
    seaweed: Seaweed,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the stage that its files come from; nothing is staged yet."""
    monkeypatch.setattr(redshift, "RedshiftTarget", as_redshift(lambda _: b""))
    redshift_endpoint(pg_database)
    url = pg_database.replace("postgresql://", "redshift://", 1)
    stage = {"url": str(seaweed.endpoint("doctor", "stage")), **seaweed.options()}
    project = configured(f"{{url: '{url}', iam_role: default, schema: copied}}\n    stage: {json.dumps(stage)}")
    assert of_target(project) == [], "a table that is not there yet can be made as it should be"
    source.execute("CREATE TABLE copied.orders (id bigint, updated_at timestamp, more varchar(10))")
    (zoneless,) = of_target(project)
    assert (zoneless.level, zoneless.docs) == (Level.FAIL, "docs/doctor.md#columns")
    assert "column updated_at was timestamp without time zone and is now timestamp" in zoneless.text
    source.execute("ALTER TABLE copied.orders ALTER updated_at TYPE timestamptz, ALTER id TYPE integer")
    (narrow,) = of_target(project)
    assert narrow.level is Level.FAIL, "Redshift widens no column"
    assert "column id was integer and is now bigint" in narrow.text and "sync --full -t orders" in narrow.remedy
    source.execute("ALTER TABLE copied.orders ALTER id TYPE bigint")
    assert [(told.level, told.text) for told in of_target(project)] == [
        (Level.NOTE, "orders: column amount (numeric(12,2)) is not there yet"),
        (Level.NOTE, "orders: column more is no longer in the source: kept, and NULL in new rows"),
    ]


def test_snowflake(configured: Configured, snowflake_database: str) -> None:
    project = configured(snowflake_database)
    session = SnowflakeTarget(Endpoint.parse(snowflake_database))
    with closing(session):
        assert of_target(project) == [], "a table that is not there yet can be made as it should be"
        session.run("CREATE TABLE orders (id NUMBER(18,0), updated_at TIMESTAMP_NTZ(6), more VARCHAR)")
        (zoneless,) = of_target(project)
        assert (zoneless.level, zoneless.docs) == (Level.FAIL, "docs/doctor.md#columns")
        assert "column updated_at was TIMESTAMP_NTZ" in zoneless.text and "is now timestamp" in zoneless.text
        session.run("DROP TABLE orders")
        session.run("CREATE TABLE orders (id NUMBER(10,0), updated_at TIMESTAMP_TZ(6), more VARCHAR)")
        assert [(told.level, told.text) for told in of_target(project)] == [
            (Level.NOTE, "orders: column amount (NUMBER(12,2)) is not there yet"),
            (Level.NOTE, "orders: column id becomes NUMBER(19,0)"),
            (Level.NOTE, "orders: column more is no longer in the source: kept, and NULL in new rows"),
        ]

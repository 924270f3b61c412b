"""Snowflake, through its stand-in: whole syncs into it and out of it, what a transaction keeps, what a login hears."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import yaml
from clinic import examine

import strandline
from strandline import operations
from strandline.core.errors import ConfigError, ConnectError, TargetError
from strandline.core.position import Status
from strandline.doctor import Level
from strandline.endpoint import Endpoint
from strandline.propose import propose
from strandline.result import RunResult
from strandline.sinks.snowflake import SnowflakeTarget
from strandline.sinks.sql_dialect import Place
from strandline.sinks.sql_move import Move
from strandline.sources.snowflake_session import SnowflakeSession
from strandline.verify.verdict import Answer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVERYTHING = """
CREATE TABLE orders (id bigint PRIMARY KEY, "Na me" varchar(40), price numeric(38,10), raw bytea, paid boolean,
  day date, at timestamptz NOT NULL, local timestamp, ratio double precision, gone boolean NOT NULL DEFAULT false);
COMMENT ON TABLE orders IS 'what people order';
INSERT INTO orders VALUES
  (1, 'it''s "ß" \\ ÿ', 1234567890123456789012345678.0123456789, '\\x00ff', true, '0001-01-01',
   '2026-01-01 10:00:00.123456+02', '9999-12-31 23:59:59.999999', 0.1),
  (2, NULL, NULL, NULL, NULL, NULL, '2026-01-01 10:00:01', NULL, 'NaN'),
  (9007199254740993, '', -0.0000000001, '', false, '9999-12-31', '2026-01-01 10:00:02', '0001-01-01 00:00:00', -0.0);
"""


class Warehouse:
    """A PostgreSQL and a Snowflake, and pipelines between them."""

    def __init__(self, postgres: str, snowflake: str, folder: Path, spark: Any = None) -> None:
        self.postgres, self.snowflake, self.folder, self.spark = postgres, snowflake, folder, spark
        self.session = SnowflakeTarget(Endpoint.parse(snowflake))
        self.database = psycopg.connect(postgres, autocommit=True)

    def close(self) -> None:
        self.session.close()
        self.database.close()

    def load(self, **pipeline: Any) -> Any:
        path = self.folder / "strandline.yml"
        path.write_text(yaml.safe_dump({"pipelines": {"shop": {"guard": "0s", **pipeline}}}))
        return strandline.load(path)

    def sync(self, **pipeline: Any) -> RunResult:
        with self.load(**pipeline) as project:
            result: RunResult = project.sync("shop", spark=self.spark)
            return result

    def into(self, **more: Any) -> RunResult:
        """From PostgreSQL into Snowflake."""
        return self.sync(**{**self._into, **more})

    def verified(self, **options: Any) -> tuple[Answer, int]:
        with self.load(**self._into) as project:
            (verdict,) = project.verify("shop", spark=self.spark, **options)
            assert verdict.error is None, verdict.error.explain()
            return verdict.answer, verdict.repaired

    @property
    def _into(self) -> dict[str, Any]:
        table = {"name": "orders", "cursor": "at", "deleted": "gone"}
        return {"source": self.postgres, "target": self.snowflake, "tables": [table]}

    def staging_tables(self) -> list[str]:
        return list(self.session.left(Place("public", "orders")))


@pytest.fixture
def warehouse(pg_database: str, snowflake_database: str, tmp_path: Path) -> Iterator[Warehouse]:
    with closing(Warehouse(pg_database, snowflake_database, tmp_path)) as warehouse:
        yield warehouse


MONITORING = (
    "SELECT * FROM ETL_PIPELINE_SYNC_CONTROL ORDER BY SYNC_RUN_ID DESC LIMIT 20",
    "SELECT * FROM ETL_PIPELINE_SYNC_CONTROL WHERE SYNC_STATUS = 'FAILED' ORDER BY SYNC_RUN_ID DESC",
    """
    SELECT
        DATE(SYNC_START_TIMESTAMP) AS SYNC_DATE,
        COUNT(*) AS TOTAL_RUNS,
        SUM(CASE WHEN SYNC_STATUS = 'SUCCESS' THEN 1 ELSE 0 END) AS SUCCESS_COUNT,
        SUM(CASE WHEN SYNC_STATUS = 'FAILED' THEN 1 ELSE 0 END) AS FAILED_COUNT,
        SUM(ROWS_INSERTED) AS TOTAL_INSERTED,
        SUM(ROWS_UPDATED) AS TOTAL_UPDATED,
        AVG(TIMESTAMPDIFF('second', SYNC_START_TIMESTAMP, SYNC_END_TIMESTAMP)) AS AVG_DURATION_SEC
    FROM ETL_PIPELINE_SYNC_CONTROL
    WHERE SYNC_STATUS IN ('SUCCESS', 'FAILED')
    GROUP BY DATE(SYNC_START_TIMESTAMP)
    ORDER BY SYNC_DATE DESC
    """,
    "SELECT SYNC_RUN_ID, ERROR_MESSAGE FROM ETL_PIPELINE_SYNC_CONTROL WHERE SYNC_STATUS = 'FAILED'",
    "SELECT MAX(WATERMARK_TO) FROM ETL_PIPELINE_SYNC_CONTROL WHERE SYNC_STATUS = 'SUCCESS'",
    """
    SELECT COUNT(*)
    FROM ETL_PIPELINE_RUN_HISTORY_LOG
    WHERE LAST_UPDATE_DATE > (
        SELECT COALESCE(MAX(WATERMARK_TO), '1900-01-01')
        FROM ETL_PIPELINE_SYNC_CONTROL
        WHERE SYNC_STATUS = 'SUCCESS'
    )
    """,
)  # as people have them who kept a control table by hand, under its name


def watched(warehouse: Warehouse) -> None:
    """Two syncs are in the history, and the queries that people have find them."""
    ask = warehouse.session.rows
    warehouse.session.run("CREATE VIEW ETL_PIPELINE_SYNC_CONTROL AS SELECT * FROM strandline_history")
    log = 'CREATE VIEW ETL_PIPELINE_RUN_HISTORY_LOG AS SELECT "ID", "AT" AS LAST_UPDATE_DATE FROM "ORDERS"'
    warehouse.session.run(log)
    recent, failed, daily, why, watermark, waiting = (ask(query) for query in MONITORING)
    assert [row[0] for row in recent] == [2, 1]
    assert (failed, why) == ([], [])
    assert sum(row[1] for row in daily) == sum(row[2] for row in daily) == 2
    assert (sum(row[4] for row in daily), sum(row[5] for row in daily)) == (3, 1)
    assert all(row[6] >= 0 for row in daily)
    columns = "WATERMARK_FROM, WATERMARK_TO, WATERMARK_FROM IS NULL, ROWS_PROCESSED"
    (_, until, *first), (since, *second) = ask(f"SELECT {columns} FROM strandline_history ORDER BY SYNC_RUN_ID")
    assert (since, first, second[1:]) == (until, [True, 3], [False, 1])
    assert (watermark, waiting) == ([(second[0],)], [(0,)])
    assert ask("SELECT COUNT(*) FROM strandline_history WHERE SYNC_END_TIMESTAMP >= SYNC_START_TIMESTAMP") == [(2,)]
    warehouse.session.run("UPDATE strandline_history SET SYNC_STATUS = 'RUNNING' WHERE SYNC_RUN_ID = 2")
    assert ask(MONITORING[-1]) == [(1,)]


def test_every_value_survives_the_way_into_snowflake_and_back(warehouse: Warehouse, spark: SparkSession) -> None:
    warehouse.spark = spark
    warehouse.database.execute(EVERYTHING)
    (first,) = warehouse.into(history="target").tables
    assert (first.status, first.applied.rows_inserted) == (Status.COMPLETED, 3), first.error
    warehouse.database.execute("UPDATE orders SET at = now(), \"Na me\" = 'two' WHERE id = 2")
    (second,) = warehouse.into(history="target").tables
    assert (second.applied.rows_inserted, second.applied.rows_updated) == (0, 1)
    watched(warehouse)
    assert warehouse.verified(repair=True) == (Answer.EQUAL, 0)
    warehouse.session.run('UPDATE "ORDERS" SET "PRICE" = 1 WHERE "ID" = 1')
    warehouse.session.run('DELETE FROM "ORDERS" WHERE "ID" = 2')
    assert warehouse.verified(repair=True) == (Answer.REPAIRED, 2)
    comment = "SELECT COMMENT FROM INFORMATION_SCHEMA.TABLES WHERE TABLE_NAME = 'ORDERS'"
    assert warehouse.session.rows(comment) == [("what people order",)]
    assert warehouse.staging_tables() == []

    warehouse.database.execute("CREATE SCHEMA again")
    table = {"name": "ORDERS", "cursor": "AT", "target": "again.orders", "key": ["id"]}
    back = {"source": warehouse.snowflake, "target": warehouse.postgres, "tables": [table]}
    (third,) = warehouse.sync(**back).tables
    assert (third.status, third.applied.rows_inserted) == (Status.COMPLETED, 3), third.error
    differ = "(TABLE public.orders EXCEPT TABLE again.orders) UNION ALL (TABLE again.orders EXCEPT TABLE public.orders)"
    assert warehouse.database.execute(differ).fetchall() == []

    late = 'INSERT INTO "ORDERS" ("ID", "AT", "GONE") VALUES (7, DATEADD(minute, -5, CURRENT_TIMESTAMP()), false)'
    warehouse.session.run(late)
    (fourth,) = warehouse.sync(**back).tables
    assert (fourth.status, fourth.applied.rows_inserted) == (Status.COMPLETED, 1), "committed late, and read again"


def test_from_snowflake_into_snowflake_where_a_stored_procedure_had_copied_a_part(
    warehouse: Warehouse, spark: SparkSession
) -> None:
    """Its control table says how far it came: what it copied is merged into."""
    warehouse.spark, session = spark, warehouse.session
    columns = "(id NUMBER PRIMARY KEY, status VARCHAR, last_update TIMESTAMP_NTZ(6) NOT NULL)"
    for name in ("orders", "replica"):
        session.run(f"CREATE TABLE {name} {columns}")
    for number in (1, 2, 3):
        session.run(f"INSERT INTO orders VALUES ({number}, 'new', '2026-01-01 10:0{number}:00')")
    session.run("INSERT INTO replica SELECT * FROM orders WHERE id < 3")
    session.run("UPDATE orders SET status = 'paid', last_update = '2026-01-01 10:04:00' WHERE id = 1")
    session.run("CREATE TABLE sync_control (table_name VARCHAR, watermark_to TIMESTAMP_NTZ, sync_status VARCHAR)")
    session.run("INSERT INTO sync_control VALUES ('ORDERS', '2026-01-01 10:02:00', 'SUCCESS')")
    table = {"name": "orders", "cursor": "last_update", "target": "replica", "key": ["id"]}
    inside = {"source": warehouse.snowflake, "target": warehouse.snowflake, "tables": [table]}
    with warehouse.load(**inside) as project:
        operations.apply(project, operations.adopt_control(project, "shop", "sync_control"), why="moving in")
    (copied,) = warehouse.sync(**inside).tables
    assert copied.error is None and (copied.applied.rows_inserted, copied.applied.rows_updated) == (1, 2)
    rows = session.rows("SELECT id, status FROM replica ORDER BY id")
    assert rows == [(1, "paid"), (2, "new"), (3, "new")]
    with pytest.raises(ConfigError, match="via: server needs a database"):
        warehouse.sync(**inside, via="server")


def test_what_is_staged_is_loaded_once_whenever_the_load_dies(
    warehouse: Warehouse, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    warehouse.spark = spark
    warehouse.database.execute(EVERYTHING)

    def die(*_: Any, **__: Any) -> Any:
        raise TargetError(f"died with {warehouse.staging_tables()}")  # the files are copied, and nothing is committed

    with monkeypatch.context() as patch:
        patch.setattr(Move, "run", die)
        patch.setattr("strandline.sinks.sql_stage.Staging.drop", lambda _: None)
        extract, load = warehouse.into(stage="stage").tables
        assert (extract.status, load.status) == (Status.COMPLETED, Status.FAILED)
        assert "died with ['strandline_stage_" in str(load.error)
    assert warehouse.session.rows('SELECT COUNT(*) FROM "ORDERS"') == [(0,)]
    assert len(warehouse.staging_tables()) == 1
    loaded = warehouse.into(stage="stage").tables
    assert [(each.stage, each.applied.rows_inserted) for each in loaded if each.applied.rows_read] == [("load", 3)]
    assert warehouse.staging_tables() == []
    warehouse.database.execute("UPDATE orders SET at = now(), gone = true WHERE id = 2")
    warehouse.database.execute("ALTER TABLE orders ADD note text DEFAULT 'new'")
    extract, load = warehouse.into(stage="stage").tables
    assert (extract.applied.rows_read, load.applied.rows_deleted, load.status) == (1, 1, Status.COMPLETED)
    assert warehouse.session.rows('SELECT "ID", "NOTE" FROM "ORDERS" ORDER BY 1') == [
        (1, None),
        (9007199254740993, None),
    ]


def test_what_a_transaction_does_is_kept_as_a_whole_or_not_at_all(warehouse: Warehouse) -> None:
    session = warehouse.session
    session.run("CREATE TABLE t (n NUMBER(19,0), s VARCHAR)")
    session.run("INSERT INTO t VALUES (1, 'one'), (2, 'two')")

    def change(inside: Any) -> None:
        assert inside.run("UPDATE t SET s = 'eins' WHERE n = 1") == 1
        assert inside.run("DELETE FROM t AS t USING (SELECT 2 AS k) AS s WHERE t.n = s.k") == 1
        assert inside.run("INSERT INTO t SELECT 3, 'drei' WHERE NOT EXISTS (SELECT 1 FROM t WHERE n = 3)") == 1
        assert session.rows("SELECT n, s FROM t ORDER BY n") == [(1, "one"), (2, "two")], "nobody else sees it"

    for wrong in ("SELECT nothing FROM nowhere", "INSERT INTO t VALUES ('no number', '')"):
        with pytest.raises(TargetError), session.transaction() as inside:
            change(inside)
            inside.run(wrong)
        assert session.rows("SELECT n, s FROM t ORDER BY n") == [(1, "one"), (2, "two")]
    with session.transaction() as inside:
        change(inside)
    assert session.rows("SELECT n, s FROM t ORDER BY n") == [(1, "eins"), (3, "drei")]


def test_a_plan_says_what_is_read_again_and_ids_need_to_be_told(warehouse: Warehouse) -> None:
    warehouse.session.run('CREATE TABLE log ("ID" NUMBER(38,0) PRIMARY KEY, "AT" TIMESTAMP_LTZ(6) NOT NULL)')
    warehouse.session.run("INSERT INTO log VALUES (1, CURRENT_TIMESTAMP())")

    def notes(**table: Any) -> tuple[str, str]:
        tables = [{"name": "log", "target": "again", **table}]
        with warehouse.load(source=warehouse.snowflake, target="delta:lake", tables=tables) as project:
            (part,) = project.plan("shop").tables
            return part.note, part.error

    assert notes(cursor="at") == ("no barrier: lookback reads the last 10m again", "")
    assert notes(cursor="AT", lookback="1h")[0] == "no barrier: lookback reads the last 1h again"
    assert "still to be committed" in notes(cursor="id")[1]
    assert notes(cursor="id", lookback=1000) == ("no barrier: lookback reads 1,000 numbers again", "")
    assert "append mode would add them again" in notes(cursor="at", mode="append")[1]


def test_doctor_names_the_warehouse_and_role_that_a_session_lacks(warehouse: Warehouse) -> None:
    warehouse.session.run('CREATE TABLE log ("ID" NUMBER(38,0) PRIMARY KEY, "AT" TIMESTAMP_LTZ(6) NOT NULL)')

    def findings(options: str) -> dict[Level, list[Any]]:
        told: dict[Level, list[Any]] = {}
        table = {"name": "log", "cursor": "at"}
        pipeline = {"source": f"{warehouse.snowflake}{options}", "target": "delta:lake", "tables": [table]}
        for finding in examine(lambda: warehouse.load(**pipeline)):
            told.setdefault(finding.level, []).append(finding)
        return told

    well = findings("&warehouse=loading")
    assert any("warehouse LOADING, role duckdb" in finding.text for finding in well[Level.OK])
    assert Level.FAIL not in well
    assert not any("the barrier sees" in finding.text for finding in well[Level.OK])
    wrong = findings("&warehouse=huge&role=boss")[Level.FAIL]
    assert [finding.text.partition(": ")[2] for finding in wrong] == [
        "the session has warehouse LOADING, and not huge",
        "the session has role duckdb, and not boss",
    ]
    assert "GRANT USAGE ON WAREHOUSE huge" in wrong[0].remedy


def test_nobody_is_told_of_indexes_and_constraints_that_snowflake_does_not_have(warehouse: Warehouse) -> None:
    warehouse.session.run('CREATE TABLE log ("ID" NUMBER(38,0) PRIMARY KEY, "UPDATED_AT" TIMESTAMP_LTZ(6) NOT NULL)')
    (proposal,) = propose(Endpoint.parse(warehouse.snowflake), ["log"])
    assert proposal.reasons == ("updated_at: TIMESTAMP_TZ(9), NOT NULL",)
    table = {"name": "log", "cursor": "updated_at"}
    pipeline = {"source": warehouse.snowflake, "target": "delta:lake", "tables": [table]}
    (told,) = [found for found in examine(lambda: warehouse.load(**pipeline)) if "is not unique" in found.text]
    assert "in hybrid tables only" in told.remedy


def test_a_schema_that_is_not_there_is_named_with_the_way_out(warehouse: Warehouse) -> None:
    with pytest.raises(TargetError, match='no schema "nowhere"') as refused:
        warehouse.session.made(Place("nowhere", "orders"), ["orders"])
    assert 'CREATE SCHEMA "NOWHERE"' in refused.value.remedy


@contextmanager
def answering(code: str, message: str) -> Iterator[str]:
    """A server that refuses every login as Snowflake does."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            body = json.dumps({"success": False, "code": code, "message": message, "data": {}}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"snowflake://loader:hush@127.0.0.1:{server.server_port}/shop/public?protocol=http&connect_timeout=5"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("code", "message", "told", "remedy"),
    [
        (
            "390100",
            "Incorrect username or password was specified.",
            'login as "loader" was refused',
            "user and password",
        ),
        (
            "390189",
            "Role 'BOSS' specified in the connect string does not exist or not authorized.",
            "Role 'BOSS'",
            "role=",
        ),
        ("390102", "User temporarily locked.", "locked", "unlock"),
    ],
)
def test_a_login_that_is_refused_says_what_to_check(code: str, message: str, told: str, remedy: str) -> None:
    with answering(code, message) as url, pytest.raises(ConnectError, match=told) as refused:
        SnowflakeSession(Endpoint.parse(url)).rows("SELECT 1")
    assert remedy in refused.value.remedy
    assert "hush" not in refused.value.explain()

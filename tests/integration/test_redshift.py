"""PostgreSQL or MySQL → S3 → Redshift, end to end: the code that speaks to a Redshift, with PostgreSQL in its place and
COPY done for it. What Redshift itself is told is in tests/unit/golden."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from lake_shop import Shop
from psycopg.rows import dict_row

from strandline.core.position import Status
from strandline.core.run import Outcome
from strandline.objects import open_objects
from strandline.sinks import redshift
from strandline.sinks.sql_move import Move
from strandline.testing.redshift import ROLE, as_redshift, redshift_endpoint
from strandline.testing.servers import MariaDB, Postgres
from strandline.testing.stores import Seaweed
from strandline.verify.verdict import Answer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLES = """
ALTER TABLE orders ADD COLUMN "Note" varchar(20), ADD COLUMN gone boolean NOT NULL DEFAULT false, ADD COLUMN raw bytea;
COMMENT ON COLUMN orders.status IS 'where it''s at \\ now';
CREATE TABLE log (id bigint, said text, at timestamp NOT NULL DEFAULT clock_timestamp());
CREATE TABLE rules (code text PRIMARY KEY, since date, fee numeric(38,10), active boolean, share float);
"""


class Warehouse(Shop):
    """The shop, staged on S3 and loaded into what takes itself for a Redshift."""

    def __init__(self, source: str, target: str, seaweed: Seaweed, folder: Path, spark: Any) -> None:
        super().__init__(source, folder, spark)
        bucket = f"b{uuid.uuid4().hex[:12]}"
        self.stage = seaweed.endpoint(bucket, "stage")
        self.end = redshift_endpoint(target, schema="dw")
        self.copy = psycopg.connect(target, autocommit=True, row_factory=dict_row)
        self.copy.execute("CREATE SCHEMA dw")
        self.execute(TABLES)
        self.tables = [
            {"name": "orders", "deleted": "gone"},
            {"name": "log", "mode": "append", "cursor": "at", "zone": "UTC"},
            {"name": "rules", "mode": "snapshot"},
        ]
        url = target.replace("postgresql://", "redshift://", 1)
        self.pipeline |= {
            "stage": {"url": str(self.stage), **self.stage.options},
            "targets": {"dw": {"url": url, "iam_role": ROLE, "schema": "DW"}},
            "history": "target",
        }

    def fetch(self, address: str) -> bytes:
        found = open_objects(self.stage).get(address.removeprefix(f"{self.stage}/"))
        assert found is not None, address
        return found

    def loads(self, **options: Any) -> dict[str, Outcome]:
        return {each.table: each for each in self.sync(**options).tables if each.stage == "load:dw"}

    def rows(self, table: str) -> list[dict[str, Any]]:
        return self.copy.execute(f"SELECT * FROM dw.{table} ORDER BY 1").fetchall()

    def verdicts(self, **options: Any) -> list[Any]:
        with self.load() as project:
            return list(project.verify("shop", spark=self.spark, **options))

    def close(self) -> None:
        self.copy.close()
        super().close()


@pytest.fixture
def shop(
    pg_database: str,
    postgres: Postgres,
    seaweed: Seaweed,
    tmp_path: Path,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Warehouse]:
    name = f"t_{uuid.uuid4().hex[:12]}"
    with postgres.connect() as connection:
        connection.execute(f"CREATE DATABASE {name}")
        shop = Warehouse(pg_database, postgres.url(name), seaweed, tmp_path, spark)
        monkeypatch.setattr(redshift, "RedshiftTarget", as_redshift(shop.fetch))
        yield shop
        shop.close()
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def counts(outcome: Outcome) -> tuple[int, int, int, int]:
    applied = outcome.applied
    assert outcome.status is Status.COMPLETED, outcome.error
    return outcome.batches, applied.rows_inserted, applied.rows_updated, applied.rows_deleted


def test_from_the_database_over_s3_into_redshift(shop: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.insert(1, 2, 3)
    shop.execute(
        r"""UPDATE orders SET "Note" = E'\\ ''ü''', raw = '\x00ff' WHERE id = 2; INSERT INTO log VALUES (1, 'one')"""
    )
    shop.execute("INSERT INTO rules VALUES ('a', '2026-11-15', 1e-10, true, 0.1), ('b', NULL, NULL, false, NULL)")
    assert {name: counts(load) for name, load in shop.loads().items()} == {
        "orders": (1, 3, 0, 0),
        "log": (1, 1, 0, 0),
        "rules": (1, 2, 0, 0),
    }
    first, second, _ = shop.rows("orders")
    ((stamp,),) = shop.database.execute("SELECT updated_at FROM orders WHERE id = 1").fetchall()
    assert (first["updated_at"], second["note"], bytes(second["raw"])) == (stamp, "\\ 'ü'", b"\x00\xff")
    equal = shop.verdicts()
    assert [verdict.answer for verdict in equal] == [Answer.EQUAL] * 3
    assert equal[2].notes == ("not compared, for want of a common form: share (float here, no comparable type there)",)

    # Three batches wait, one of them with a new column: each is a COPY of its own.
    shop.update(1, "paid")
    shop.loads(stages=["extract"])
    shop.execute("UPDATE orders SET gone = true, updated_at = clock_timestamp() WHERE id = 2")
    shop.execute("INSERT INTO log VALUES (1, 'again'); DELETE FROM rules WHERE code = 'b'")
    shop.loads(stages=["extract"])
    shop.execute("ALTER TABLE orders ADD COLUMN paid_at timestamp; COMMENT ON COLUMN orders.paid_at IS 'in full'")
    shop.insert(4)
    died(shop, monkeypatch)
    loaded = shop.loads()
    assert counts(loaded["orders"]) == (3, 1, 1, 1)
    assert (counts(loaded["log"]), counts(loaded["rules"])) == ((1, 1, 0, 0), (1, 1, 0, 0))
    assert [(row["id"], row["status"]) for row in shop.rows("orders")] == [(1, "paid"), (3, "new"), (4, "new")]
    assert [row["said"] for row in shop.rows("log")] == ["one", "again"]
    comments = "SELECT description FROM pg_description WHERE objoid = 'dw.orders'::regclass ORDER BY objsubid"
    assert [row["description"] for row in shop.copy.execute(comments)] == ["where it's at \\ now", "in full"]
    left = shop.copy.execute("SELECT relname FROM pg_class WHERE relname LIKE 'strandline_stage%'").fetchall()
    assert left == []

    damaged(shop)
    told_of_bad_rows(shop)
    watched(shop)


def watched(shop: Warehouse) -> None:
    """The history tells of every load, in terms of the source."""
    select = "SELECT * FROM dw.strandline_history WHERE table_name = 'log' ORDER BY sync_run_id"
    first, died, again, bad = shop.copy.execute(select).fetchall()
    assert [row["sync_status"] for row in (first, died, again, bad)] == ["SUCCESS", "FAILED", "SUCCESS", "FAILED"]
    assert (first["rows_processed"], again["rows_processed"], bad["rows_processed"]) == (1, 1, 0)
    one, other = (row["at"].replace(tzinfo=UTC) for row in shop.rows("log"))
    assert first["watermark_from"] is None and "too long" in bad["error_message"]
    assert one < first["watermark_to"] <= again["watermark_from"] <= other < again["watermark_to"]
    assert (died["watermark_from"], died["watermark_to"]) == (again["watermark_from"], again["watermark_to"])
    assert again["watermark_to"] <= bad["watermark_from"] < bad["watermark_to"]
    assert first["sync_end_timestamp"] >= first["sync_start_timestamp"]


def died(shop: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the COPY, before the commit: nothing shows, and the next run applies each batch once."""
    before = shop.rows("orders")

    def die(*_: Any) -> Any:
        raise RuntimeError("died")

    with monkeypatch.context() as patch:
        patch.setattr(Move, "run", die)
        patch.setattr(redshift.RedshiftTarget, "drop", lambda *_: False)
        assert {load.status for load in shop.loads().values()} == {Status.FAILED}
    assert shop.rows("orders") == before
    assert shop.copy.execute("SELECT 1 FROM pg_class WHERE relname LIKE 'strandline_stage%'").fetchall() != []


def damaged(shop: Warehouse) -> None:
    shop.copy.execute("DELETE FROM dw.orders WHERE id = 1")
    shop.copy.execute("UPDATE dw.orders SET id = 40, note = 'WRONG' WHERE id = 4")
    found = {verdict.table: verdict.answer for verdict in shop.verdicts()}
    assert found == {"orders": Answer.DIFFERENT, "log": Answer.EQUAL, "rules": Answer.EQUAL}
    shop.verdicts(repair=True, delete=True, delete_fraction=1.0)
    assert [verdict.answer for verdict in shop.verdicts()] == [Answer.EQUAL] * 3
    assert [row["id"] for row in shop.rows("orders")] == [1, 3, 4]


def told_of_bad_rows(shop: Warehouse) -> None:
    """What the warehouse noted of the COPY is in the error, and nothing of the batch shows."""
    shop.execute("INSERT INTO log VALUES (2, repeat('x', 70000))")
    load = shop.loads()["log"]
    assert load.status is Status.FAILED and load.error is not None
    assert "too long" in load.error.message and "65,535 bytes" in load.error.remedy
    assert "s3://" in load.error.why and '.parquet line 1, column "said" (varchar)' in load.error.why
    assert len(shop.rows("log")) == 2


WIDE = """
CREATE TABLE claims (id BIGINT UNSIGNED PRIMARY KEY, small TINYINT, yes TINYINT(1), flags BIT(8), one BIT(1),
  spent TIME(6), fee DECIMAL(30,10), day DATE, made YEAR, name VARCHAR(40), raw VARBINARY(8), kind ENUM('a', 'b'),
  update_at DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6), KEY (update_at));
INSERT INTO claims VALUES
  (18446744073709551615, -128, 1, b'10000001', b'1', '-838:59:59.000001', 12345678901234567890.0123456789, '1000-01-01',
   2026, 'it''s \\\\ "ü"', x'00ff', 'a', '2026-03-29 02:30:00.123456'),
  (9223372036854775808, 127, 0, b'0', b'0', '23:59:59.999999', -0.0000000001, '9999-12-31', 1901, '', x'', 'b',
   '2026-03-29 02:30:00.123457');
INSERT INTO claims (id) VALUES (3)
"""


def test_from_mysql_over_s3_into_redshift_with_what_only_mysql_has(
    shop: Warehouse, mariadb: MariaDB, mariadb_database: str
) -> None:
    """Unsigned numbers, bits, spans of time, times without a zone that no clock in Europe ever showed."""
    with mariadb.connect(mariadb_database.rpartition("/")[2]) as source, source.cursor() as cursor:
        for statement in WIDE.split(";\n"):
            cursor.execute(statement)
        shop.url = mariadb_database
        shop.tables = [{"name": "claims", "cursor": "update_at", "zone": "UTC"}]
        assert {name: counts(load) for name, load in shop.loads().items()} == {"claims": (1, 3, 0, 0)}
        _, middle, last = shop.rows("claims")
        assert (last["id"], last["small"], last["yes"], last["flags"], last["one"]) == (2**64 - 1, -128, 1, 129, True)
        assert (last["spent"], last["fee"]) == ("-838:59:59.000001", Decimal("12345678901234567890.0123456789"))
        assert (last["name"], bytes(last["raw"]), last["kind"]) == ('it\'s \\ "ü"', b"\x00\xff", "a")
        assert (middle["update_at"], middle["spent"]) == (datetime(2026, 3, 29, 2, 30, 0, 123457), "23:59:59.999999")
        assert [verdict.answer for verdict in shop.verdicts()] == [Answer.EQUAL]
        cursor.execute("UPDATE claims SET small = 5 WHERE id = 3")
        assert counts(shop.loads()["claims"]) == (1, 0, 1, 0)
        shop.copy.execute("UPDATE dw.claims SET fee = fee + 0.0000000001 WHERE id = 9223372036854775808")
        assert [verdict.answer for verdict in shop.verdicts()] == [Answer.DIFFERENT]

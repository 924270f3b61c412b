"""Snowflake in text: names, types, and the statements that no stand-in can run."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
import sqlglot
from sqlglot import exp

from strandline.core.batch import Applied, How
from strandline.core.errors import ConfigError, SchemaError, SetupError, SourceError, TargetError, TransientError
from strandline.core.table import Column, Mode
from strandline.core.watermark import Cursor, Kind, Watermark
from strandline.core.window import KeyRange, Repair
from strandline.endpoint import Endpoint
from strandline.sinks.snowflake import SnowflakeTarget, SnowflakeTransaction, below
from strandline.sinks.snowflake_target import SnowflakeTargetDialect
from strandline.sinks.sql_dialect import Field, Held, Place
from strandline.sinks.sql_files import FileColumn
from strandline.sinks.sql_ledger import create_text
from strandline.sinks.sql_merge import Merge
from strandline.sinks.sql_stage import Pair, Rows
from strandline.sources.snowflake_dialect import SnowflakeDialect, type_text
from strandline.sources.snowflake_names import settled, shown, stored
from strandline.sources.snowflake_session import SnowflakeSession
from strandline.testing.sink import orders

SNOW, HYBRID = SnowflakeTargetDialect(), SnowflakeTargetDialect(hybrid=True)
PLACE, STAGE = Place("shop", "orders"), Place("shop", "strandline_stage_a_1f")
COLUMNS = (
    Column("id", "NUMBER(19,0)", nullable=False, comment="it's the key"),
    Column("Na me", "VARCHAR"),
    Column("at", "TIMESTAMP_TZ(6)"),
)
FILES = (FileColumn("id", "bigint", "c0", "NUMBER(19,0)"), FileColumn("it's", "string", "c1", "VARCHAR"))
URL = "snowflake://loader:hush@acme-eu/shop/public?warehouse=loading&role=loader"


def parsed(statement: str) -> exp.Expr:
    return sqlglot.parse_one(statement, read="snowflake")


@pytest.mark.parametrize(
    ("inside", "here"),
    [
        ("ORDERS", "orders"),
        ("orders", '"orders"'),
        ("OrderLines", "OrderLines"),
        ("MY TABLE", "MY TABLE"),
        ("A$1", "a$1"),
    ],
)
def test_a_name_that_nobody_quoted_is_written_in_small_letters(inside: str, here: str) -> None:
    assert (shown(inside), stored(here)) == (here, inside)
    assert settled(here) == settled(inside if here != f'"{inside}"' else here) == here


def test_a_hybrid_table_is_made_with_its_key_or_not_at_all() -> None:
    (made,) = HYBRID.create(PLACE, COLUMNS, ["id"], "orders' copy")
    assert made == (
        'CREATE HYBRID TABLE IF NOT EXISTS "SHOP"."ORDERS" (\n'
        "  \"ID\" NUMBER(19,0) NOT NULL COMMENT 'it''s the key',\n"
        '  "Na me" VARCHAR,\n'
        '  "AT" TIMESTAMP_TZ(6),\n'
        "  PRIMARY KEY (\"ID\")) COMMENT = 'orders'' copy'"
    )
    (plain,) = SNOW.create(PLACE, COLUMNS, ["id"], "orders' copy")
    assert plain == made.replace("HYBRID TABLE", "TABLE")
    assert isinstance(parsed(plain), exp.Create)
    with pytest.raises(SchemaError, match="needs a primary key"):
        HYBRID.create(PLACE, COLUMNS, [], "")
    assert (HYBRID.keys, SNOW.keys) == (True, False)


def test_local_files_go_into_the_stage_that_the_staging_table_has() -> None:
    assert SNOW.put("/data/it's here/part-0.parquet", STAGE) == (
        "PUT 'file:///data/it''s here/part-0.parquet' @\"SHOP\".%STRANDLINE_STAGE_A_1F AUTO_COMPRESS = FALSE"
    )
    copy = SNOW.copy(STAGE, FILES)
    assert copy == (
        'COPY INTO "SHOP"."STRANDLINE_STAGE_A_1F" (c0, c1) FROM (SELECT $1[\'id\']::NUMBER(19,0), '
        "$1['it''s']::VARCHAR FROM @\"SHOP\".%STRANDLINE_STAGE_A_1F) "
        "FILE_FORMAT = (TYPE = PARQUET USE_LOGICAL_TYPE = TRUE BINARY_AS_TEXT = FALSE) ON_ERROR = ABORT_STATEMENT"
    )
    assert isinstance(parsed(copy), exp.Copy)


def test_files_on_s3_are_loaded_by_name_from_a_stage_that_is_there_already() -> None:
    addresses = [f"s3://lake/raw/shop/data/1-a/part-{number}.parquet" for number in range(1001)]
    paths = below("s3://lake/raw", addresses)
    assert paths[0] == "shop/data/1-a/part-0.parquet"
    first, second = SNOW.copy_external(STAGE, FILES, "LAKE.PUBLIC.RAW", paths)
    assert first.startswith(
        'COPY INTO "SHOP"."STRANDLINE_STAGE_A_1F" (c0, c1) FROM (SELECT $1[\'id\']::NUMBER(19,0), '
        "$1['it''s']::VARCHAR FROM @LAKE.PUBLIC.RAW) FILES = ('shop/data/1-a/part-0.parquet', "
    )
    assert first.count(".parquet'") == 1000
    assert "FILES = ('shop/data/1-a/part-1000.parquet') FILE_FORMAT" in second
    assert isinstance(parsed(second), exp.Copy)
    with pytest.raises(ConfigError, match="does not lie there"):
        below("s3://lake/other/", addresses[:1])


class OnS3:
    """Two files of a stage on S3."""

    schema, rows = "", 2
    sizes: ClassVar[Mapping[str, int]] = {f"s3://lake/raw/shop/{name}.parquet": 1 for name in "ab"}

    def get(self, address: str) -> bytes:
        raise AssertionError(f"{address} is Snowflake's to fetch")

    def put(self, name: str, data: bytes) -> str:
        raise AssertionError(f"nothing is put: {name}, {len(data)} bytes")


class Told:
    """A session that only listens."""

    def __init__(self) -> None:
        self.statements: list[str] = []

    def run(self, sql: str) -> int:
        self.statements.append(sql)
        return 0

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        raise AssertionError(f"nothing is asked: {sql}")

    def cancel(self) -> None:
        """Nothing is under way."""


def test_the_files_of_a_stage_on_s3_are_snowflakes_to_fetch(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = [
        {"property": "URL", "property_value": '["s3://lake/raw/"]'},
        {"property": "AWS_ROLE", "property_value": ""},
    ]
    monkeypatch.setattr(SnowflakeTarget, "records", lambda _, sql: shown if sql == "DESCRIBE STAGE LAKE.RAW" else [])
    session = Told()
    with pytest.raises(ConfigError, match="by itself") as refused:
        SnowflakeTarget(Endpoint.parse(URL)).copy(session, OnS3(), STAGE, FILES)
    assert "external_stage" in refused.value.remedy
    SnowflakeTarget(Endpoint.parse(f"{URL}&external_stage=LAKE.RAW")).copy(session, OnS3(), STAGE, FILES)
    assert session.statements == SNOW.copy_external(STAGE, FILES, "LAKE.RAW", ["shop/a.parquet", "shop/b.parquet"])


SKIPPING = (
    "If you would like to continue loading when an error is encountered, use other values such as 'SKIP_FILE' or "
    "'CONTINUE' for the ON_ERROR option. For more information on loading options, please run 'info loading_data' in a "
    "SQL client."
)


@pytest.mark.parametrize(
    ("said", "what", "where"),
    [
        (
            "Numeric value 'File it' is not recognized\n  File 'shop/b.parquet', line 39, character 168\n"
            '  Row 39, column "STRANDLINE_STAGE_A_1F"["C1":2]\n  ',
            "Numeric value 'File it' is not recognized",
            's3://lake/raw/shop/b.parquet row 39, column "it\'s" (VARCHAR)',
        ),
        (
            "Failed to cast variant value 'x' to FIXED\n  File '@%STRANDLINE_STAGE_A_1F/a.parquet', line 7, character 1"
            '\n  Row 7 starts at line 6, column "STRANDLINE_STAGE_A_1F"["C0":1]\n  ',
            "Failed to cast variant value 'x' to FIXED",
            's3://lake/raw/shop/a.parquet row 7, column "id" (NUMBER(19,0))',
        ),
        (
            "Max LOB size (16777216) exceeded, actual size of parsed column is 20000000\n  ",
            "Max LOB size (16777216) exceeded, actual size of parsed column is 20000000",
            "It was loading s3://lake/raw/shop/a.parquet, s3://lake/raw/shop/b.parquet",
        ),
    ],
)
def test_a_copy_that_is_refused_tells_file_row_and_column_and_not_to_skip_rows(
    monkeypatch: pytest.MonkeyPatch, said: str, what: str, where: str
) -> None:
    """As the connector raises it. What Snowflake says of COPY's errors was read in public reports of them."""
    from snowflake.connector.errors import ProgrammingError

    def refuse(*_: Any) -> Any:
        text = f"{said}{SKIPPING}"
        raise ProgrammingError(msg=text, errno=100038, sqlstate="22018", sfqid="01aa153d-0606-b80e-0000-682122c74986")

    target = SnowflakeTarget(Endpoint.parse(f"{URL}&external_stage=LAKE.RAW"))
    monkeypatch.setattr(target, "_address", lambda _: "s3://lake/raw/")
    monkeypatch.setattr(target, "execute", refuse)
    connection: Any = None
    with pytest.raises(TargetError) as refused:
        target.copy(SnowflakeTransaction(target, connection), OnS3(), STAGE, FILES)
    assert (refused.value.message, refused.value.why) == (what, where)


def test_whoever_moves_the_ledger_has_locked_it_first() -> None:
    assert SNOW.lock('"SHOP"."STRANDLINE_LEDGER"') == 'UPDATE "SHOP"."STRANDLINE_LEDGER" SET changed_at = changed_at'
    insert = SNOW.unless_there("l", {"target": "'t'", "owner": "1"}, [["target"], ["target", "owner"]])
    assert insert == (
        "INSERT INTO l (target, owner) SELECT 't', 1 WHERE NOT EXISTS "
        "(SELECT 1 FROM l WHERE (target = 't') OR (target = 't' AND owner = 1))"
    )
    assert isinstance(parsed(create_text(SNOW, PLACE)), exp.Create)


def test_no_statement_of_a_batch_ends_its_transaction_and_all_of_them_parse() -> None:
    pairs = tuple(Pair(column, f"c{at}") for at, column in enumerate(COLUMNS))
    rows = Rows("(SELECT * FROM stage)", pairs, operation=True, read=Applied())
    steps = []
    for mode in (Mode.MERGE, Mode.APPEND):
        merge = Merge(SNOW, orders(mode=mode), Held(PLACE, COLUMNS, ()), rows)
        steps += [step for how in list(How)[:-1] for step in merge.steps(how)]
        steps += merge.repair(Repair(KeyRange("id", None, 9), 9))
    kinds = {type(parsed(step.sql)) for step in steps}
    assert kinds == {exp.Delete, exp.Update, exp.Insert}
    assert {count for step in steps for count in step.counts} == {"inserted", "updated", "deleted"}


@pytest.mark.parametrize(
    ("spark", "held"),
    [
        ("bigint", "NUMBER(19,0)"),
        ("decimal(38,10)", "NUMBER(38,10)"),
        ("timestamp", "TIMESTAMP_TZ(6)"),
        ("timestamp_ntz", "TIMESTAMP_NTZ(6)"),
        ("binary", "BINARY"),
        ("array<int>", None),
    ],
)
def test_types_of_new_columns(spark: str, held: str | None) -> None:
    assert SNOW.sql_type(Field(spark)) == held
    assert held is None or SNOW.takes(held, spark)


def test_a_column_made_by_hand_must_hold_every_value() -> None:
    assert SNOW.takes("NUMBER(38,0)", "int") and SNOW.takes("TIMESTAMP_LTZ(9)", "timestamp")
    for held, spark in (
        ("TIMESTAMP_TZ(3)", "timestamp"),
        ("NUMBER(10,0)", "bigint"),
        ("TIMESTAMP_NTZ(9)", "timestamp"),
    ):
        assert not SNOW.takes(held, spark)
    with pytest.raises(SchemaError, match="cannot be made FLOAT"):
        SNOW.retype(PLACE, [Column("n", "FLOAT")])
    with pytest.raises(SchemaError, match="another type"):
        SNOW.retype_empty(PLACE, COLUMNS[:1])


def test_every_type_is_read_exactly_or_refused_by_name() -> None:
    dialect = SnowflakeDialect()

    def arrives(kind: str) -> tuple[str, str]:
        carried = dialect.carry(Column("x", kind))
        return carried.spark, carried.value.format("c0")

    assert arrives("NUMBER(18,0)") == ("BIGINT", "c0")
    assert arrives("NUMBER(38,0)") == ("STRING", "CAST(c0 AS DECIMAL(38,0))")
    assert arrives("TIMESTAMP_LTZ(9)") == ("BIGINT", "timestamp_micros(c0)")
    nanoseconds = dialect.carry(Column("it's", "TIMESTAMP_NTZ(9)")).expression
    assert """DATE_TRUNC('MICROSECOND', t."it's") <> t."it's" """ in nanoseconds
    assert "DATE_TRUNC" not in dialect.carry(Column("x", "TIMESTAMP_NTZ(6)")).expression
    assert arrives("VARIANT")[0] == "STRING"
    with pytest.raises(SourceError, match="GEOGRAPHY") as refused:
        dialect.carry(Column("x", "GEOGRAPHY"))
    assert "::varchar" in refused.value.remedy
    assert type_text({"data_type": "FIXED", "numeric_precision": None, "numeric_scale": 0}) == "NUMBER(38,0)"


def test_literals_carry_every_digit_and_the_zone() -> None:
    value = Watermark(Kind.TIMESTAMP, "2026-11-15 08:12:44.123456789")
    dialect = SnowflakeDialect()
    assert dialect.literal(Cursor("at", Kind.TIMESTAMP, 9), value) == f"'{value} +00:00'::TIMESTAMP_TZ"
    assert dialect.literal(Cursor("at", Kind.TIMESTAMP, 9, "Asia/Tokyo"), value) == f"'{value}'::TIMESTAMP_NTZ"
    assert dialect.string("a\\b'c") == "'a\\\\b''c'"


def test_what_the_server_says_becomes_something_to_do() -> None:
    session, target = SnowflakeSession(Endpoint.parse(URL)), SnowflakeTarget(Endpoint.parse(URL))
    assert isinstance(session.told(625, "Statement has locked table"), TransientError)
    assert isinstance(session.told(250001, "Could not connect"), TransientError)
    warehouse = target.told(606, "No active warehouse selected in the current session.")
    assert isinstance(warehouse, ConfigError) and "?warehouse=" in warehouse.remedy
    denied = target.told(3001, "Insufficient privileges to operate on schema 'PUBLIC'")
    assert isinstance(denied, TargetError) and "CREATE TABLE" in denied.remedy
    long = target.told(100078, "String 'x' is too long and would be truncated")
    assert isinstance(long, TargetError) and "Widen" in long.remedy
    odd = session.told(100035, "Timestamp 'strandline refuses column at with the value 0000-01-01' is not recognized")
    assert odd.message.startswith("strandline refuses column at") and "::varchar" in odd.remedy
    gone = session.told(2003, "Object 'ORDERS' does not exist or not authorized.")
    assert isinstance(gone, SourceError) and "role" in gone.remedy


class Timed:
    """A connection, and its cursor, that notes how long each statement may take."""

    def __init__(self) -> None:
        self.seconds: list[int | None] = []
        self.rowcount = 0

    def cursor(self) -> Timed:
        return self

    def execute(self, _: str, timeout: int | None) -> None:
        self.seconds.append(timeout)

    def fetchall(self) -> list[tuple[Any, ...]]:
        return []


@pytest.mark.parametrize(("url", "seconds"), [(URL, 3600), (f"{URL}&network_timeout=7200", 7200)])
def test_what_moves_rows_may_take_longer_than_what_looks(
    monkeypatch: pytest.MonkeyPatch, url: str, seconds: int
) -> None:
    """The connector cancels a statement when its patience with the network ends: a large COPY never got through."""
    connection: Any = Timed()
    target = SnowflakeTarget(Endpoint.parse(url))
    monkeypatch.setattr(target, "open", lambda: connection)
    monkeypatch.setattr(target, "connect", lambda: connection)
    with target.transaction() as session:
        session.run("COPY INTO …")
        session.rows("SELECT …")
    target.rows("SELECT …")
    assert connection.seconds == [*[seconds] * 4, None]


def test_without_its_connector_the_way_to_install_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "snowflake.connector.errors", None)
    with pytest.raises(SetupError, match="snowflake-connector-python") as missing:
        SnowflakeSession(Endpoint.parse(URL)).rows("SELECT 1")
    assert missing.value.remedy == "pip install 'strandline[snowflake]'"


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("snowflake://u:p@acme", "names no database"),
        (f"{URL}&warhouse=x", 'unknown option "warhouse"'),
        (f"{URL}&hybrid=maybe", "hybrid is true or false"),
    ],
)
def test_an_address_that_cannot_be_meant_is_refused(url: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        SnowflakeTarget(Endpoint.parse(url))

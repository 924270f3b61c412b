"""What `init` proposes for real tables of real servers, and that the config it writes loads."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest

from strandline.config import load_config
from strandline.core.errors import ConnectError, SourceError
from strandline.core.table import Mode
from strandline.endpoint import Endpoint
from strandline.propose import Proposal, one_database, propose, source_url, write_config
from strandline.testing.servers import MariaDB, Postgres

SHOP = """
CREATE FUNCTION touch() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.updated_at := now(); RETURN NEW; END $$;
CREATE TABLE orders (id bigint PRIMARY KEY, note text, created_at timestamptz NOT NULL DEFAULT now(),
                     updated_at timestamptz NOT NULL DEFAULT now());
CREATE INDEX ON orders (updated_at);
CREATE TRIGGER touch_orders BEFORE UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION touch();
CREATE TABLE items (order_id bigint, line int, modified_at timestamptz, PRIMARY KEY (order_id, line));
CREATE TABLE colours (name text PRIMARY KEY);
CREATE TABLE "odd $name" (id bigint PRIMARY KEY, "Changed On" timestamptz NOT NULL);
CREATE TABLE log (id bigint PRIMARY KEY, said text);
INSERT INTO log SELECT n, 'x' FROM generate_series(1, 150000) n;
ANALYZE;
"""


@pytest.fixture
def shop(pg_database: str) -> Endpoint:
    with psycopg.connect(pg_database, autocommit=True) as connection:
        connection.execute(SHOP)
    return Endpoint.parse(pg_database)


def proposals(endpoint: Endpoint, *tables: str) -> dict[str, Proposal]:
    return {proposal.name: proposal for proposal in propose(endpoint, tables or ("*",))}


def test_the_column_that_a_trigger_stamps_is_the_cursor_and_the_reason_says_so(shop: Endpoint) -> None:
    found = proposals(shop)["orders"]
    assert (found.mode, found.cursor, found.key) == (Mode.MERGE, "updated_at", ("id",))
    reason = "updated_at: timestamp with time zone, indexed, NOT NULL, set by trigger touch_orders"
    assert found.reasons == (reason,)
    assert found.warnings == ()


def test_a_weak_cursor_is_proposed_with_its_weaknesses(shop: Endpoint) -> None:
    found = proposals(shop)["items"]
    assert (found.cursor, found.key) == ("modified_at", ("order_id", "line"))
    said = " ".join(found.warnings)
    assert "may be NULL" in said and "no index" in said and "the application must" in said


def test_a_small_table_without_a_cursor_is_replaced_whole(shop: Endpoint) -> None:
    found = proposals(shop)["colours"]
    assert (found.mode, found.cursor) == (Mode.SNAPSHOT, None)
    assert "no column can order its changes" in found.reasons[0]


def test_a_large_table_with_only_an_id_gets_new_rows_and_a_warning(shop: Endpoint) -> None:
    found = proposals(shop)["log"]
    assert (found.mode, found.cursor) == (Mode.APPEND, "id")
    assert "changes are not seen" in " ".join(found.warnings)


def test_only_the_tables_asked_for_are_proposed(shop: Endpoint) -> None:
    assert sorted(proposals(shop, "o*")) == ["odd $name", "orders"]


def test_a_table_that_is_not_there_is_an_error_with_the_nearest_name(shop: Endpoint) -> None:
    with pytest.raises(SourceError) as caught:
        propose(shop, ["order"])
    assert "orders" in caught.value.remedy


def test_the_config_loads_means_the_same_and_holds_no_password(shop: Endpoint, tmp_path: Path) -> None:
    found = propose(shop)
    text = write_config(shop, found, pipeline="shop", password_variable="SHOP_PASSWORD")
    assert shop.password and shop.password not in text
    (tmp_path / "strandline.yml").write_text(text)
    config = load_config(tmp_path / "strandline.yml", {"SHOP_PASSWORD": "a b$c"})
    spec = config.pipelines["shop"]
    assert config.spark.warm == timedelta(minutes=10)
    assert (spec.source.password, spec.source.host, spec.source.port) == ("a b$c", shop.host, shop.port)
    assert [(table.name, table.cursor, table.key, table.mode) for table in spec.tables] == [
        (one.name, one.cursor, one.key if one.mode is Mode.MERGE else (), one.mode) for one in found
    ]
    assert "# updated_at: timestamp with time zone, indexed" in text


def test_options_that_are_secrets_do_not_reach_the_config() -> None:
    endpoint = Endpoint.parse("postgresql://ann:geheim@[::1]:5433/my%20db?sslmode=require&sslpassword=hidden")
    assert source_url(endpoint, "PW") == "postgresql://ann:${PW}@[::1]:5433/my%20db?sslmode=require"


def test_a_server_that_is_not_there_is_a_connection_error() -> None:
    with pytest.raises(ConnectError):
        propose(Endpoint.parse("postgresql://nobody@127.0.0.1:1/none"))


@pytest.fixture(scope="module")
def tokyo() -> Iterator[Endpoint]:
    with Postgres(settings={"timezone": "Asia/Tokyo"}) as server:
        with server.connect() as connection:
            connection.execute(
                "CREATE TABLE local (id bigint PRIMARY KEY, updated_at timestamp NOT NULL);"
                "INSERT INTO local VALUES (1, now() AT TIME ZONE 'Asia/Tokyo' - interval '3 minutes');"
                "CREATE TABLE utc (id bigint PRIMARY KEY, updated_at timestamp NOT NULL);"
                "INSERT INTO utc VALUES (1, now() AT TIME ZONE 'UTC' - interval '3 minutes');"
                "CREATE TABLE ahead (id bigint PRIMARY KEY, updated_at timestamp NOT NULL);"
                "INSERT INTO ahead VALUES (1, now() AT TIME ZONE 'Pacific/Kiritimati' - interval '3 minutes');"
                "CREATE TABLE old (id bigint PRIMARY KEY, updated_at timestamp NOT NULL);"
                "INSERT INTO old VALUES (1, now() - interval '9 days');"
                "ANALYZE;"
            )
        yield Endpoint.parse(server.url())


def test_the_zone_is_the_one_under_which_the_newest_row_is_just_past(tokyo: Endpoint) -> None:
    found = proposals(tokyo)
    assert found["local"].zone == "Asia/Tokyo"
    evidence = "the newest row is 3 minutes old read as Asia/Tokyo, 9 hours ahead read as UTC"
    assert any(evidence in reason for reason in found["local"].reasons)


def test_rows_that_fit_no_known_zone_get_no_guess(tokyo: Endpoint) -> None:
    ahead = proposals(tokyo)["ahead"]
    assert ahead.zone is None
    assert any("add the writers' zone yourself" in warning for warning in ahead.warnings)


def test_rows_stamped_in_utc_on_a_server_in_tokyo_are_read_as_utc_when_tokyo_would_be_nine_hours_late(
    tokyo: Endpoint,
) -> None:
    assert proposals(tokyo)["utc"].zone == "UTC"


def test_an_old_row_speaks_for_no_zone_so_the_servers_own_is_proposed(tokyo: Endpoint) -> None:
    assert proposals(tokyo)["old"].zone == "Asia/Tokyo"


def test_mariadbs_on_update_column_is_the_cursor(mariadb: MariaDB, mariadb_database: str) -> None:
    endpoint = Endpoint.parse(mariadb_database)
    with mariadb.connect(endpoint.path) as connection, connection.cursor() as cursor:
        cursor.execute(
            "CREATE TABLE orders (id bigint PRIMARY KEY, created datetime(6) NOT NULL DEFAULT now(6), "
            "updated timestamp(6) NOT NULL DEFAULT now(6) ON UPDATE now(6), KEY (updated))"
        )
        cursor.execute("CREATE TABLE notes (id bigint PRIMARY KEY, changed datetime(6) NOT NULL)")
        cursor.execute("CREATE TRIGGER t BEFORE UPDATE ON notes FOR EACH ROW SET NEW.changed = now(6)")
        cursor.execute("INSERT INTO notes VALUES (1, now(6) - INTERVAL 3 MINUTE)")
    found = proposals(endpoint)
    assert (found["orders"].cursor, found["orders"].key, found["orders"].zone) == ("updated", ("id",), None)
    assert found["orders"].reasons[0].endswith("indexed, NOT NULL, set by ON UPDATE CURRENT_TIMESTAMP")
    assert (found["notes"].cursor, found["notes"].mode) == ("changed", Mode.MERGE)
    assert "set by trigger t" in found["notes"].reasons[0]
    assert any("3 minutes old" in reason for reason in found["notes"].reasons)


def test_one_database_as_source_and_target_is_proposed_to_move_rows_inside_it(
    shop: Endpoint, postgres: Postgres, tmp_path: Path
) -> None:
    here = postgres.url(shop.path)
    assert one_database(shop, here)
    assert not one_database(shop, postgres.url("postgres"))
    assert not one_database(shop, "delta:lake")
    assert not one_database(shop, "postgresql://nobody@127.0.0.1:9/gone?connect_timeout=1")
    file = tmp_path / "strandline.yml"
    file.write_text(write_config(shop, list(proposals(shop, "orders").values()), target=here, inside=True))
    assert postgres.password not in file.read_text()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOURCE_PASSWORD", "one")
        patch.setenv("TARGET_PASSWORD", "two")
        config = load_config(file)
    pipeline = config.pipelines["main"]
    assert (pipeline.via, pipeline.targets[""].password, config.spark.warm) == ("server", "two", None)


def test_a_redshift_target_is_given_a_stage_to_load_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    orders = Proposal("orders", Mode.MERGE, "updated_at", ("id",), None, 5, ("updated_at: indexed",))
    target = "redshift://loader:secret@dw:5439/dw?iam_role=arn:aws:iam::1:role/r&schema=shop"
    file = tmp_path / "strandline.yml"
    file.write_text(write_config(Endpoint.parse("mysql://reader@db/shop"), [orders], target=target))
    monkeypatch.setenv("TARGET_PASSWORD", "two")
    pipeline = load_config(file).pipelines["main"]
    assert pipeline.stage is not None and pipeline.stage.scheme == "s3"
    assert pipeline.targets[""].options == {"iam_role": "arn:aws:iam::1:role/r", "schema": "shop"}

"""Spark Connect: the same sync as on a classic session, on a session that the caller owns and keeps."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from lake_shop import Shop

from strandline.testing.connect import SparkConnect
from strandline.testing.servers import Postgres

CHILD = Path(__file__).with_name("connect_child.py")
# In a process of its own: PySpark is either classic or Connect once a session has been made.
_BATCHES = """
import sys
from pyspark.sql import SparkSession
from strandline.spark.session import batch_session, end_batch
caller = SparkSession.builder.remote(sys.argv[1]).create()
caller.conf.set("spark.sql.shuffle.partitions", "5")
caller.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
caller.conf.set("spark.databricks.delta.write.txnVersion", "9")
first, second = batch_session(caller), batch_session(caller)
first.conf.set("spark.databricks.delta.write.txnAppId", "first")
print(first.conf.get("spark.sql.shuffle.partitions"), first.conf.get("spark.sql.session.timeZone"))
print(first.conf.get("spark.databricks.delta.write.txnVersion", None),
      second.conf.get("spark.databricks.delta.write.txnAppId", None), caller.conf.get("spark.sql.session.timeZone"))
end_batch(first)
end_batch(second)
print(caller.range(3).count())
caller.stop()
"""

_FILLS = """
import sys
from pyspark.sql import SparkSession
from strandline.endpoint import Endpoint
from strandline.sinks.postgres import PostgresTarget
from strandline.sinks.postgres_copy import able
from strandline.sinks.sql_dialect import Place
caller, target = SparkSession.builder.remote(sys.argv[1]).create(), PostgresTarget(Endpoint.parse(sys.argv[2]))
target.run("CREATE TABLE staged (c0 bigint, c1 text, part int)")
rows = caller.range(5).selectExpr("id AS c0", "nullif(id, 3) || '!' AS c1", "0 AS part")
target.fill(rows, Place("public", "staged"))
print(able(caller), target.rows("SELECT count(*), count(c1), max(c1) FROM staged"))
caller.stop()
"""

_STATE = """
import json, sys
from dataclasses import replace
from pyspark.sql import SparkSession
from strandline.core.errors import ConflictError
from strandline.endpoint import Endpoint
from strandline.state import open_state
from strandline.testing.state import keys, position, run
caller = SparkSession.builder.remote(sys.argv[1]).create()
caller.sql(f"CREATE SCHEMA spark_catalog.ops LOCATION '{sys.argv[2]}'").collect()
state, other = (open_state(Endpoint.parse("catalog:spark_catalog.ops"), lambda: caller) for _ in range(2))
(first,) = state.put([position("orders", epoch=1)])
(second, _) = other.put([replace(first, fields={"epoch": 2}), run("r1")])
try:
    state.put([replace(first, fields={"epoch": 3})])
except ConflictError as error:
    print("refused")
print(state.read("position") == [second], keys(state.read("run")))
state.close()
other.close()
print(caller.table("spark_catalog.ops.strandline_state").where("part = 'watermarks'").count(), "rows")
caller.stop()
"""
_SOURCE = """
import sys
from pathlib import Path
from pyspark.sql import SparkSession
from strandline.core.table import Mode
from strandline.core.window import Slice
from strandline.testing.lake import Lake, versions
caller = SparkSession.builder.remote(sys.argv[1]).create()
lake = Lake(Path(sys.argv[2]))
lake.create()
lake.insert(1, 2)
lake.delete(1)
lake.turn_feed(on=False)
lake.insert(3)
source = lake.source()
for mode in (Mode.MERGE, Mode.SNAPSHOT):
    table = lake.table(source, mode=mode)
    parts = source.slices(table, versions(1, 5), 3, None)
    print([sorted(row[0] for row in source.changes(table, part).frame(caller).collect()) for part in parts])
caller.stop()
"""


def run(*command: str) -> str:
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_batch_has_the_callers_settings_and_keeps_its_own(connect: SparkConnect) -> None:
    assert run("-c", _BATCHES, connect.remote()).splitlines() == ["5 UTC", "None None Asia/Tokyo", "3"]


def test_a_sync_on_spark_connect_does_what_it_does_on_a_classic_session(
    connect: SparkConnect, pg_database: str, postgres: Postgres, tmp_path: Path
) -> None:
    shop = Shop(pg_database, tmp_path)
    shop.pipeline["targets"] = {"far": "delta:far", "lake": "delta:lake"}
    shop.insert(1, 2, 3)
    shop.execute(f"ALTER DATABASE \"{shop.database.info.dbname}\" SET log_statement = 'all'")
    before = len(postgres.log())
    told = json.loads(run(str(CHILD), str(shop.config), connect.remote(), pg_database))
    assert told["kind"].startswith("pyspark.sql.connect")
    assert told["counts"] == [[6, 0], [0, 2], [3]], "into two targets; the last by a job of the caller's own"
    said = [text for text in postgres.log()[before:].split("LOG:") if "/* strandline reader */" in text]
    assert sum("WHERE 1=0" not in text for text in said) == 3, "both targets share each read"
    assert (told["zone"], told["rows"]) == ("Asia/Tokyo", 4)
    assert shop.statuses() == {1: "new", 2: "paid", 3: "new"}
    shop.close()


def test_doctor_asks_the_server_instead_of_looking_for_java(connect: SparkConnect, tmp_path: Path) -> None:
    config = tmp_path / "strandline.yml"
    found = []
    for remote in (connect.remote(), f"sc://localhost:{connect.port}/;token=of-somebody-else"):
        config.write_text(
            f"spark: {{remote: '{remote}'}}\npipelines:\n  shop: "
            "{source: 'postgresql://u@127.0.0.1:1/x', target: 'delta:lake', tables: [orders]}\n"
        )
        command = [sys.executable, "-m", "strandline", "doctor", "--json", "-c", str(config)]
        told = json.loads(subprocess.run(command, capture_output=True, text=True, timeout=300).stdout)
        found += [part["text"] for part in told["findings"] if part["area"] == "setup"][:1]
        assert not any("Java" in part["text"] or "jars" in part["text"] for part in told["findings"])
    assert found == [
        f"a Spark Connect server with Spark 4.2.0 at sc://localhost:{connect.port}",
        f"the Spark Connect server sc://localhost:{connect.port} refuses the token",
    ]


def test_where_sparks_workers_lack_the_driver_rows_go_into_postgresql_by_jdbc(
    connect: SparkConnect, pg_database: str
) -> None:
    assert run("-c", _FILLS, connect.remote(), pg_database).strip() == "False [(5, 4, '4!')]"


def test_a_state_in_a_catalog_is_kept_through_a_session_of_spark_connect(connect: SparkConnect, tmp_path: Path) -> None:
    told = run("-c", _STATE, connect.remote(), str(tmp_path / "ops")).splitlines()
    assert told == ["refused", "True [('r1',)]", "2 rows"]


def test_delta_tables_are_read_on_spark_connect_by_feed_files_and_version(
    connect: SparkConnect, tmp_path: Path
) -> None:
    told = run("-c", _SOURCE, connect.remote(), str(tmp_path / "lake")).splitlines()
    assert told == ["[[1, 2], [3]]", "[[2, 3]]"]

"""Delta tables on an object store, with the login in the address: written through Spark, read back without it, and read
on as a source.

In a process of its own: Delta takes the store's login only from the settings that Spark was started with.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

from strandline.endpoint import Endpoint
from strandline.spark.storage import needs, session_settings
from strandline.testing.stores import Seaweed

_APPLY = """
import json, os, sys
from strandline.core.batch import How
from strandline.core.table import Mode, Table
from strandline.core.window import Slice
from strandline.endpoint import Endpoint
from strandline.sinks.delta import DeltaSink
from strandline.sources.delta import DeltaSource
from strandline.spark.session import local_session, stop
from strandline.spark.storage import needs, session_settings
from strandline.testing.lake import versions
from strandline.testing.sink import RowChanges, at, batch, orders

endpoint = Endpoint.parse("delta:s3://lake/tables", json.loads(os.environ["OPTIONS"]))
spark = local_session(needs([endpoint]), session_settings([endpoint]), "local[2]", "lake")
sink = DeltaSink(endpoint, lambda: spark)
assert sink.applied(orders()) is None
sink.apply(orders(), batch(1), RowChanges([(1, "one", at(0)), (2, "two", at(0))]), how=How.FRESH)
done = sink.apply(orders(), batch(2), RowChanges([(2, "zwei", at(1)), (3, "drei", at(1))]), how=How.CHANGES)
fenced = sink.fence(orders(), 2)
source = DeltaSource(endpoint)
((name, info),) = source.tables(["shop.*"], {}).items()
copied = source.resolve(Table("copy", name, name, name, "sync", Mode.APPEND, None), info, None)
high = int(source.horizons([copied])[name].high.text)
waiting = source.pending({name: (copied, versions(1, 2))})[name]
windows = [versions(None, high), versions(1, 2)]
read = [source.changes(copied, Slice(window)).frame(spark).count() for window in windows]
stop(spark)
held = DeltaSink(endpoint, lambda: sys.exit("Spark was asked for")).applied(orders())
told = [done.rows_inserted, done.rows_updated, fenced.epoch, held.batch == batch(2), held.epoch]
print(json.dumps([*told, name, waiting, read]))
"""


def test_batches_are_applied_to_a_table_on_s3_and_told_without_spark(seaweed: Seaweed) -> None:
    options = dict(seaweed.endpoint("lake").options)
    environment = {**os.environ, "OPTIONS": json.dumps(options)}
    done = subprocess.run([sys.executable, "-c", _APPLY], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout) == [1, 1, 2, True, 2, "shop.orders", 2, [3, 2]]


def test_jars_and_settings_follow_from_the_addresses() -> None:
    login = {"access_key_id": "a", "secret_access_key": "b", "endpoint": "http://store:9000", "region": "eu-west-1"}
    lake, stage = Endpoint.parse("delta:s3://lake/x", login), Endpoint.parse("s3://stage/y", login)
    assert needs([lake, stage, Endpoint.parse("/somewhere")]) == ["delta", "s3"]
    assert needs([Endpoint.parse("delta:/lake"), Endpoint.parse("postgresql://db/x")]) == ["delta", "postgresql"]
    found = session_settings([lake, stage])
    assert found["spark.hadoop.fs.s3a.bucket.lake.secret.key"] == "b"
    assert found["spark.hadoop.fs.s3a.bucket.stage.endpoint"] == "http://store:9000"
    assert session_settings([Endpoint.parse("delta:/lake")]) == {}

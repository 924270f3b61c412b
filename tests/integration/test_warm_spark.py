"""The warm Spark: one server for all commands of a config, private, ended when unused, harmless when killed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from gate import GatedShop, until

from strandline.core.errors import SetupError
from strandline.spark import daemon
from strandline.spark.daemon import Seen

# In a process of its own: PySpark is either classic or Connect once a session has been made.
_HANDSHAKES = """
import json, sys
from dataclasses import replace
from strandline.spark import connect, daemon
connect._READY_SECONDS = 2
record = daemon.Record(**json.load(sys.stdin))
print([daemon._session(replace(record, **change)) is None for change in ({"token": "x"}, {"mark": "x"}, {})])
print(daemon._session(replace(record, port=int(sys.argv[1]))))
try:
    connect.local_server_session(record.port, "x").range(1).collect()
except Exception as error:
    print("UNAUTHENTICATED" in str(error))
"""
_FRAMES = """
import json, sys
from strandline.spark import daemon
session = daemon._session(daemon.Record(**json.load(sys.stdin)))
print([row.id for row in session.range(3).collect()], "pandas" in sys.modules)
import pandas
spans = pandas.to_timedelta([1, 2], unit="s")
frame = pandas.DataFrame({"at": pandas.to_datetime(["2026-01-01", None]), "span": spans})
print(session.createDataFrame(frame).toPandas().equals(frame))
"""
# A Python function in Spark's workers, which live longer than a command.
_FLOW = """
from pyspark.sql import functions as sql
def mark(text): return text + " {mark}"
def marked(frame): return frame.withColumn("status", sql.udf(mark, "string")("status"))
"""


@pytest.fixture(scope="module", autouse=True)
def cache(own_cache: Path) -> Iterator[Path]:
    """Servers of this module alone; none of them outlives it."""
    yield own_cache
    for each in daemon.seen():
        os.kill(each.record.pid, signal.SIGKILL)


@pytest.fixture
def shop(pg_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatedShop]:
    """One after the other in one place: they all have the same server."""
    folder = Path(os.environ["XDG_CACHE_HOME"]) / "project"
    folder.mkdir(exist_ok=True)
    shop = GatedShop(pg_database, folder)
    shop.top = {
        "spark": {"master": "local[2]", "warm": "10m", "conf": {"spark.driver.memory": "1g"}},
        "state": f"sqlite:///{tmp_path_factory.mktemp('state')}/state.db",
    }
    shop.pipeline["target"] = f"delta:{tmp_path_factory.mktemp('lake')}"
    yield shop
    shop.close()


def strandline(shop: GatedShop, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(shop.command(*words), env=shop.environment, capture_output=True, text=True, timeout=300)


def only() -> Seen:
    (found,) = daemon.seen()
    return found


def rows(shop: GatedShop) -> dict[int, str]:
    from deltalake import DeltaTable, QueryBuilder

    lake = DeltaTable(f"{shop.pipeline['target'].removeprefix('delta:')}/orders")
    found = QueryBuilder().register("t", lake).execute("SELECT id, status FROM t").read_all()
    ids = found["id"].to_pylist()
    assert len(ids) == len(set(ids))
    return dict(zip(ids, found["status"].to_pylist(), strict=True))


def gone(found: Seen) -> bool:
    try:
        os.kill(found.record.pid, 0)
    except ProcessLookupError:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", found.record.port)) != 0
    return False


def test_a_sync_with_nothing_new_starts_nothing(shop: GatedShop) -> None:
    assert strandline(shop, "sync").returncode == 0
    assert daemon.seen() == []
    told = strandline(shop, "spark", "status")
    assert (told.returncode, told.stdout) == (0, "no warm Spark is running\n")


def test_two_that_start_it_at_once_have_one_server_and_syncs_use_it(shop: GatedShop) -> None:
    command, environment = shop.command("spark", "start", "--json"), shop.environment
    pair = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    told: list[dict[str, Any]] = [json.loads(each.communicate()[0])["sparks"][0] for each in pair]
    assert {each["pid"] for each in told} == {only().record.pid}
    assert "token" not in told[0] and Path(told[0]["log"]).exists()
    shop.tables[0]["transform"] = "flow:marked"
    shop.insert(1, 2)
    (shop.folder / "flow.py").write_text(_FLOW.format(mark="once"))
    assert strandline(shop, "sync").returncode == 0
    shop.update(1, "paid")
    (shop.folder / "flow.py").write_text(_FLOW.format(mark="after an edit"))
    assert strandline(shop, "sync").returncode == 0
    assert rows(shop) == {1: "paid after an edit", 2: "new once"}
    assert only().record.pid == told[0]["pid"]


def test_pandas_is_loaded_by_those_who_use_it_alone(shop: GatedShop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.insert(1)
    assert strandline(shop, "sync").returncode == 0
    shop.update(1, "paid")
    monkeypatch.setenv("PYTHONPROFILEIMPORTTIME", "1")
    loaded = {line.rpartition("|")[2].strip() for line in strandline(shop, "sync").stderr.splitlines()}
    assert rows(shop) == {1: "paid"}
    assert "pyspark.sql.connect.client.core" in loaded and "pandas" not in loaded
    ran = subprocess.run(
        [sys.executable, "-c", _FRAMES], input=json.dumps(asdict(only().record)), capture_output=True, text=True
    )
    assert ran.stdout.splitlines() == ["[0, 1, 2] False", "True"], ran.stderr


def test_only_its_owner_can_read_its_token(shop: GatedShop) -> None:
    record = only()
    place = daemon.folder()
    file = place / f"{record.identity}.json"
    assert (place.stat().st_mode & 0o777, file.stat().st_mode & 0o777) == (0o700, 0o600)
    for opened, closed in ((file, 0o600), (place, 0o700)):
        opened.chmod(closed | 0o040)
        with pytest.raises(SetupError, match="not yours alone"):
            daemon.seen()
        shop.insert(1)
        told = strandline(shop, "sync", "--full", "--yes")
        assert (told.returncode, "not yours alone" in told.stderr) == (1, True)
        opened.chmod(closed)
        shop.execute("DELETE FROM orders")


def test_who_lacks_the_token_is_refused_and_what_lacks_the_mark_is_not_taken_for_it() -> None:
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        command = [sys.executable, "-c", _HANDSHAKES, str(mute.getsockname()[1])]
        told = subprocess.run(
            command, input=json.dumps(asdict(only().record)), capture_output=True, text=True, timeout=300
        )
    assert told.stdout.splitlines() == ["[True, True, False]", "None", "True"], told.stderr


def test_the_batch_of_a_killed_client_is_given_up_and_the_next_sync_carries_it_out(shop: GatedShop) -> None:
    server = only()
    shop.insert(1, 2, 3)
    with shop.syncing() as child:
        assert only().in_use
        child.kill()
        child.wait()
        until(lambda: not only().in_use)
    assert strandline(shop, "sync").returncode == 0
    assert rows(shop) == {1: "new", 2: "new", 3: "new"}
    assert only().record == server.record


def test_killed_in_the_middle_of_a_batch_another_is_started_and_the_run_goes_on(shop: GatedShop) -> None:
    server = only()
    shop.insert(1, 2, 3)
    with shop.syncing() as child:
        os.kill(server.record.pid, signal.SIGKILL)
        until(lambda: gone(server))
        shop.release()
        assert child.wait(300) == 0, shop.told()
        assert "lost" in shop.told()
    assert rows(shop) == {1: "new", 2: "new", 3: "new"}
    assert only().record.pid != server.record.pid


def test_with_other_settings_another_is_started_and_the_one_in_use_ends_after_its_run(shop: GatedShop) -> None:
    server = only()
    shop.insert(1)
    with shop.syncing() as child:
        shop.top["spark"] = {**shop.top["spark"], "warm": "2s"}
        assert strandline(shop, "spark", "start").returncode == 0
        assert only().record.pid != server.record.pid and not gone(server)
        shop.release()
        assert child.wait(300) == 0, shop.told()
    assert rows(shop) == {1: "new"}
    until(lambda: gone(server))
    until(lambda: daemon.seen() == [])  # two seconds are over soon


def test_stop_ends_it_and_a_record_that_was_left_behind_is_no_obstacle(shop: GatedShop) -> None:
    assert strandline(shop, "spark", "start").returncode == 0
    server = only()
    told = json.loads(strandline(shop, "spark", "stop", "--json").stdout)
    assert [each["ended"] for each in told["sparks"]] == [True]
    until(lambda: gone(server))
    os.close(daemon.write(daemon.folder() / f"{server.identity}.json", replace(server.record, token="old")))
    assert daemon.seen() == []
    assert "no warm Spark" in strandline(shop, "spark", "stop").stdout

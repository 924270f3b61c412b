"""The service on a real PostgreSQL, mostly inside it (`via: server`): what a poll costs, and processes that are
stopped, killed, and beside each other."""

from __future__ import annotations

import gc
import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml
from server_shop import Shop, opened

from strandline import operations
from strandline.cli.progress import describe
from strandline.project import Project, load
from strandline.service.service import Service
from strandline.testing.servers import Postgres

SECONDS = 240  # for what hangs


class Served(Shop):
    """A shop, and services over it: in this process by a clock of its own, or as processes."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.now = datetime.now(UTC)
        self.services: list[Service] = []

    def service(self, **pipeline: Any) -> Service:
        self.pipeline |= {"schedule": "every 5s", **pipeline}
        service = Service(
            self.load(), words=describe, now=lambda: self.now, chance=lambda: 0.0, spawn=lambda work: work()
        )
        service.start()
        self.services.append(service)
        return service

    def poll(self, service: Service, times: int = 1) -> None:
        for _ in range(times):
            self.now += timedelta(seconds=5)
            service.tick()

    def ids(self) -> list[int]:
        there = self.execute(f"SELECT to_regclass('{self.copy}.orders')") != [(None,)]
        return [row[0] for row in self.rows()] if there else []

    @contextmanager
    def serving(self, *words: str) -> Iterator[subprocess.Popen[str]]:
        command = [
            sys.executable,
            "-m",
            "strandline",
            *(words or ("serve", "--port", "0")),
            "-c",
            str(self.folder / "strandline.yml"),
        ]
        log = (self.folder / f"log-{time.monotonic_ns()}.txt").open("w+")
        with log, subprocess.Popen(command, stderr=log, stdout=subprocess.PIPE, text=True) as process:
            try:
                yield process
            finally:
                process.kill()

    def log(self) -> str:
        return "".join(path.read_text() for path in sorted(self.folder.glob("log-*.txt")))


@pytest.fixture
def shop(postgres: Postgres, tmp_path: Path) -> Iterator[Served]:
    with opened(Served, "postgres", postgres, tmp_path) as shop:
        yield shop
        for service in shop.services:
            service.close()


def until(true: Callable[[], object]) -> None:
    end = time.monotonic() + SECONDS
    while not true():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.05)


# what a poll costs


def test_an_idle_poll_costs_a_barrier_a_query_and_a_state_write_whatever_the_number_of_tables(
    shop: Served, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(20):
        shop.execute(f"CREATE TABLE t{number} (id bigint PRIMARY KEY, at timestamptz NOT NULL)")
        shop.execute(f"CREATE INDEX ON t{number} (at)")
    tables = [{"name": f"t{number}", "cursor": "at", "target": f"copied.t{number}"} for number in range(20)]
    service = shop.service(tables=tables)
    shop.poll(service, 3)
    ours = "application_name LIKE 'strandline%' AND datname = current_database()"
    connections = shop.execute(f"SELECT pid FROM pg_stat_activity WHERE {ours} ORDER BY 1")
    with caplog.at_level(logging.DEBUG, "strandline"):
        shop.poll(service, 10)
    asked = [record.message for record in caplog.records if record.name == "strandline.sources.postgres_session"]
    assert len(asked) == 10 * 5, "\n".join(asked[:8])
    identity, clock, in_flight, prepared, waiting = asked[:5]
    assert "pg_control_system" in identity and "pg_is_in_recovery" in clock
    assert "pg_locks" in in_flight and "pg_prepared_xacts" in prepared
    assert waiting.count("EXISTS") >= 20, "one query for all tables"
    writes = [record.message for record in caplog.records if record.message.startswith("put ")]
    assert len(writes) == 10 and all(write.count("position ") == 20 for write in writes)
    assert service.project.books.state.read("run") == []
    assert service.project.own_spark.session is None
    again = shop.execute(f"SELECT pid FROM pg_stat_activity WHERE {ours} ORDER BY 1")
    assert again == connections and connections, "connections are kept open"


def test_the_query_of_a_poll_uses_the_index(shop: Served, caplog: pytest.LogCaptureFixture) -> None:
    shop.execute(
        "INSERT INTO orders SELECT g, 'x', 1, false, now() - interval '1 day' FROM generate_series(1, 20000) g"
    )
    shop.execute("ANALYZE orders")
    service = shop.service()
    shop.poll(service, 2)
    with caplog.at_level(logging.DEBUG, "strandline.sources"):
        shop.poll(service)
    plan = "\n".join(line for (line,) in shop.execute(f"EXPLAIN {caplog.records[-1].message}"))
    assert "Index Only Scan using by_at on orders" in plan and "Seq Scan" not in plan


def test_a_change_is_in_the_target_after_the_next_poll_and_memory_does_not_grow(shop: Served) -> None:
    service = shop.service()
    for number in range(1, 6):
        shop.insert(number)
        shop.poll(service)
        assert shop.ids() == list(range(1, number + 1))
    shop.poll(service, 50)
    gc.collect()
    before = sys.getallocatedblocks()
    shop.poll(service, 200)
    gc.collect()
    assert sys.getallocatedblocks() - before < 500


def test_a_column_and_a_table_that_come_between_two_polls_are_carried(shop: Served) -> None:
    shop.insert(1)
    service = shop.service(tables=[{"name": "o*", "cursor": "at"}], target={"url": shop.url, "schema": "copied"})
    shop.poll(service, 2)
    shop.execute("ALTER TABLE orders ADD note text")
    shop.execute("INSERT INTO orders VALUES (2, 'new', 1, false, clock_timestamp(), 'hello')")
    shop.poll(service)
    assert shop.execute("SELECT id, note FROM copied.orders ORDER BY id") == [(1, None), (2, "hello")]
    shop.execute("CREATE TABLE other (id bigint PRIMARY KEY, at timestamptz NOT NULL DEFAULT clock_timestamp())")
    shop.execute("INSERT INTO other VALUES (7)")
    service._warm._clock = lambda: time.monotonic() + 61
    for kept in service._warm._kept.values():
        kept._clock = service._warm._clock
    shop.poll(service)
    assert shop.execute("SELECT id FROM copied.other") == [(7,)]


def test_a_source_that_is_away_for_a_while_is_polled_again_over_new_connections(shop: Served) -> None:
    shop.insert(1)
    service = shop.service()
    shop.poll(service, 2)
    shop.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE application_name LIKE 'strandline%' AND datname = current_database()"
    )
    shop.insert(2)
    shop.poll(service, 3)
    assert shop.ids() == [1, 2]
    shop.execute("ALTER TABLE orders RENAME TO orders_old")
    shop.poll(service, 2)
    assert "there is no table" in service.jobs()[0].error or "does not exist" in service.jobs()[0].error
    shop.execute("ALTER TABLE orders_old RENAME TO orders")
    shop.insert(3)
    shop.poll(service, 10)
    assert shop.ids() == [1, 2, 3]


def test_another_server_behind_the_same_address_is_seen_by_the_next_poll(
    shop: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.insert(1)
    service = shop.service()
    shop.poll(service, 2)
    (before,) = service.project.books.positions().values()
    monkeypatch.setattr("strandline.sources.postgres.PostgresSource.identity", lambda _: "postgresql:another/shop")
    monkeypatch.setattr(
        "strandline.sinks.postgres.PostgresTarget.identity", lambda _: "postgresql:another/shop", raising=False
    )
    shop.insert(2)
    shop.poll(service)
    (after,) = service.project.books.positions().values()
    assert after.watermark == before.watermark and after.error
    assert shop.ids() == [1]


# processes


def test_a_served_pipeline_is_stopped_gently_and_started_again(shop: Served) -> None:
    shop.insert(1)
    shop.pipeline |= {"schedule": "every 200ms"}
    shop.load()
    with shop.serving() as process:
        until(lambda: shop.ids() == [1])
        shop.insert(2)
        until(lambda: shop.ids() == [1, 2])
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 0
    said = shop.log()
    assert re.search(r"watermarks are in sqlite:///.*/state.db \(store [0-9a-f-]{36}\)", said)
    assert "shop.orders sync: no watermark: starts from the beginning" in said
    assert said.rstrip().endswith("stopped")
    with shop.serving("serve", "--no-web", "--log-format", "json") as process:
        shop.insert(3)
        until(lambda: shop.ids() == [1, 2, 3])
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 130
    lines = [yaml.safe_load(line) for line in sorted(shop.folder.glob("log-*.txt"))[-1].read_text().splitlines()]
    found = [line for line in lines if line["event"] == "position_found"]
    assert found[0]["watermark"] and {"committed", "run_finished"} <= {line["event"] for line in lines}


def test_a_service_that_is_asked_to_stop_finishes_the_slice_at_work_and_leaves_the_rest_to_the_next(
    shop: Served,
) -> None:
    shop.settings = {"slice_rows": 1}
    shop.pipeline |= {"schedule": "every 200ms"}
    shop.insert(*range(1, 6))
    shop.execute("ANALYZE orders")
    with shop.load() as project:
        project.sync("shop")
    shop.execute(
        "CREATE FUNCTION pass() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN NULL; END $$"
    )
    shop.execute(f"CREATE TRIGGER gate AFTER UPDATE ON {shop.copy}.orders EXECUTE FUNCTION pass()")
    shop.execute("SELECT pg_advisory_lock(1)")
    shop.execute("UPDATE orders SET status = 'paid', at = clock_timestamp() + id * interval '1 ms'")
    shop.execute("ANALYZE orders")
    with shop.serving() as process:
        until(lambda: shop.execute("SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"))
        process.send_signal(signal.SIGTERM)
        until(lambda: "finishing the slices at work in shop" in shop.log())
        shop.execute("SELECT pg_advisory_unlock_all()")
        assert process.wait(SECONDS) == 0
    assert shop.execute(f"SELECT count(*) FROM {shop.copy}.orders WHERE status = 'paid'") == [(1,)]
    with shop.load() as project:
        (position,) = project.books.positions().values()
        assert position.plan is not None and position.plan.done == 1
        assert "stopped before its next batch" in position.error
    shop.sync()
    shop.check()


def test_killed_services_lose_nothing_and_repeat_nothing(shop: Served) -> None:
    """In append mode a row that is applied twice is there twice."""
    shop.settings = {"mode": "append"}
    shop.pipeline |= {"schedule": "every 100ms"}
    shop.load()
    written = 0
    for round_ in range(3):
        with shop.serving() as process:
            until(lambda: shop.log().count("watermarks are in") == len(list(shop.folder.glob("log-*.txt"))))
            for _ in range(8):
                written += 1
                shop.insert(written)
                time.sleep(0.03 + 0.01 * round_)
            process.kill()
    with shop.serving():
        until(lambda: len(shop.ids()) >= written)
    shop.check()


def test_two_services_on_one_state_do_everything_once(shop: Served, pg_database: str) -> None:
    """The state is in PostgreSQL: SQLite is for one machine, too."""
    shop.settings = {"mode": "append"}
    shop.pipeline |= {"schedule": "every 200ms"}
    shop.load()
    path = shop.folder / "strandline.yml"
    path.write_text(yaml.safe_dump({"state": pg_database, **yaml.safe_load(path.read_text())}))
    with shop.serving(), shop.serving() as second:
        until(lambda: shop.log().count("watermarks are in") == 2)
        for number in range(1, 31):
            shop.insert(number)
            time.sleep(0.03)
        until(lambda: len(shop.ids()) >= 30)
        second.kill()
        shop.insert(31)
        until(lambda: len(shop.ids()) >= 31)
    shop.check()
    assert "FAILED" not in shop.log() and "failed" not in shop.log(), shop.log()


def test_a_bad_edit_keeps_the_old_config_and_hangup_reads_it_at_once(shop: Served) -> None:
    shop.insert(1)
    shop.pipeline |= {"schedule": "manual"}
    shop.load()
    path = shop.folder / "strandline.yml"
    good = path.read_text()
    with shop.serving() as process:
        until(lambda: "watermarks are in" in shop.log())
        path.write_text(good.replace("schedule: manual", "shedule: manual"))
        process.send_signal(signal.SIGHUP)
        until(lambda: 'unknown key "shedule"' in shop.log())
        path.write_text(good.replace("schedule: manual", "schedule: every 200ms"))
        process.send_signal(signal.SIGHUP)
        until(lambda: shop.ids() == [1])
        with load(path) as project:
            operations.suspend(project, "shop", why="test")
            until(lambda: _rests(project))  # the poll that was under way has ended
        shop.insert(2)
        time.sleep(0.6)
        assert shop.ids() == [1]
        assert shop.run("resume", "shop") == 0
        until(lambda: shop.ids() == [1, 2])


def _rests(project: Project) -> bool:
    """Whether no poll, of five in a second, has written its position."""
    before = project.books.positions()
    time.sleep(1)
    return project.books.positions() == before


def test_a_sync_by_hand_is_made_by_the_service_and_after_it_was_killed_by_the_command(shop: Served) -> None:
    shop.pipeline |= {"schedule": "manual"}
    shop.load().close()
    shop.insert(1)

    def sync() -> tuple[int, dict[str, Any]]:
        command = [sys.executable, "-m", "strandline", "sync", "--json", "-c", str(shop.folder / "strandline.yml")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        return done.returncode, json.loads(done.stdout)

    with shop.serving("serve", "--no-web") as process:
        until(lambda: "watermarks are in" in shop.log())
        code, told = sync()
        assert (code, told["status"], told["tables"][0]["rows_inserted"]) == (0, "COMPLETED", 1)
        assert f"run {told['run_id']} COMPLETED" in shop.log()
        process.kill()
        process.wait()
    shop.insert(2)
    code, told = sync()
    assert (code, told["status"], shop.ids()) == (0, "COMPLETED", [1, 2])
    assert told["run_id"] not in shop.log()


def test_sync_every_goes_on_until_it_is_interrupted_and_prints_the_runs_that_moved_something(shop: Served) -> None:
    shop.insert(1)
    shop.load()
    with shop.serving("sync", "--every", "200ms", "--json") as process:
        assert process.stdout is not None
        told = [process.stdout.readline()]
        with load(shop.folder / "strandline.yml") as project:
            before = project.books.positions()
            until(lambda: project.books.positions() != before)  # a poll that moved nothing
        shop.insert(2)
        told.append(process.stdout.readline())
        process.send_signal(signal.SIGINT)
        told += process.communicate(timeout=SECONDS)[0].splitlines()
    assert process.returncode == 130
    results = [yaml.safe_load(line) for line in told]
    assert [result["tables"][0]["rows_inserted"] for result in results] == [1, 1]


# Spark


def test_a_spark_session_that_died_is_replaced_and_the_run_is_made_all_the_same(shop: Served) -> None:
    """In a process of its own: a JVM that is killed would take the other tests' session with it."""
    shop.insert(1, 2)
    shop.pipeline = {"target": f"delta:{shop.folder}/lake", "schedule": "every 1s"}
    shop.settings = {"target": "orders"}
    shop.load()

    with shop.serving() as process:
        until(lambda: " COMPLETED in " in shop.log())
        jvm = _jvm(process.pid)
        os.kill(jvm, signal.SIGKILL)
        shop.insert(3)
        before = shop.log().count(" COMPLETED in ")
        until(lambda: shop.log().count(" COMPLETED in ") > before)
        assert _jvm(process.pid) != jvm
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 0
    with shop.load() as project:
        runs = project.books.state.read("run")
        assert project.books.positions()["shop", "orders", "sync"].totals.rows_inserted == 3
    assert [run.fields["status"] for run in runs][-1] == "COMPLETED"


def _jvm(parent: int) -> int:
    """The Java process that a service has started."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                name, _, rest = (entry / "stat").read_text().partition("(")[2].rpartition(")")
            except OSError:
                continue  # ended meanwhile
            if int(rest.split()[1]) == parent and name == "java":
                return int(entry.name)
    raise AssertionError("there is no JVM")


def test_dashboard_and_api_show_what_the_service_does_and_take_orders(shop: Served, tmp_path: Path) -> None:
    """As a person has it: one process; the address in its log; a run asked for over the API is in the target."""
    shop.pipeline |= {"schedule": "manual"}
    shop.load()
    shop.insert(1, 2)
    token = tmp_path / "token"
    token.write_text("open sesame, please\n")
    with shop.serving("serve", "--port", "0", "--token-file", str(token)):
        until(lambda: "dashboard and API: " in shop.log())
        found = re.search(r"dashboard and API: (http://127\.0\.0\.1:\d+)", shop.log())
        assert found is not None
        with httpx2.Client(base_url=found[1], headers={"Authorization": "Bearer open sesame, please"}) as client:
            assert client.get("/api/v1/pipelines", headers={"Authorization": "Bearer wrong"}).status_code == 401
            assert client.get("/healthz").status_code == 200
            (pipeline,) = client.get("/api/v1/pipelines").json()["pipelines"]
            assert (pipeline["pipeline"], pipeline["schedule"]) == ("shop", "manual")
            answer = client.post("/api/v1/pipelines/shop/run", json={})
            assert answer.status_code == 202, answer.text
            until(lambda: shop.ids() == [1, 2])
    assert "open sesame" not in shop.log()

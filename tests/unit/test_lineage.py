"""OpenLineage: every event is as the specification says, says what the run did, holds no secret, and no run waits."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from clockwork import Clockwork, told
from openlineage.client.naming import dataset as official
from openlineage_spec import conforms

from strandline.core.errors import TargetError
from strandline.core.table import Column
from strandline.core.watermark import Cursor, Kind
from strandline.endpoint import Endpoint
from strandline.lineage import hearing, sending
from strandline.lineage.naming import staged_name, table_name
from strandline.project import Project, load
from strandline.testing.hooks import Receiver, receiver

PASSWORD = "correct-horse-battery"
TOKEN = "lineage-token-0815"
PARENT = "airflow/nightly.shop/4f3e5d0a-8d52-4c6e-9c2e-0d3e5f6a7b8c"


@pytest.fixture
def hook() -> Iterator[Receiver]:
    with receiver() as found:
        yield found


@pytest.fixture
def works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hook: Receiver) -> Iterator[Clockwork]:
    monkeypatch.delenv(hearing.PARENT, raising=False)
    works = Clockwork(tmp_path, monkeypatch)
    configure(works, hook.url)
    works.write("shop", 1, 2, 3)
    yield works
    for service in works.services:
        service.close()


def configure(works: Clockwork, url: str, lines: str = "schedule: every 10s") -> None:
    works.write_config(f'lineage: {{url: "{url}", token: {TOKEN}, namespace: warehouse}}\n', shop=lines)
    text = works.config.read_text().replace("reader@db", f"reader:{PASSWORD}@db")
    works.config.write_text(text)


def synced(works: Clockwork, **options: Any) -> None:
    with load(works.config) as project:
        project.sync("shop", **options)


def kinds(hook: Receiver) -> list[tuple[str, str]]:
    """What was told of which job, each as OpenLineage has it."""
    for event in hook.messages:
        conforms(event)
    return [(event["eventType"], event["job"]["name"]) for event in hook.messages]


TOLD = [("START", "shop"), ("START", "shop.shop_orders"), ("COMPLETE", "shop.shop_orders"), ("COMPLETE", "shop")]


def test_a_run_is_told_with_what_each_table_read_and_wrote(works: Clockwork, hook: Receiver) -> None:
    synced(works)
    assert kinds(hook) == TOLD
    start, table_start, table_end, end = hook.messages
    assert start["run"]["runId"] == end["run"]["runId"] != table_start["run"]["runId"] == table_end["run"]["runId"]
    assert {event["job"]["namespace"] for event in hook.messages} == {"warehouse"}
    assert table_end["run"]["facets"]["parent"]["run"]["runId"] == start["run"]["runId"]
    (read,), (written,) = table_end["inputs"], table_end["outputs"]
    assert (read["namespace"], read["name"]) == ("postgres://db:5432", "shop.public.shop_orders")
    assert (written["namespace"], written["name"]) == ("file", f"{works.folder}/shop/shop_orders")
    assert read["facets"]["schema"]["fields"][0] == {"name": "id", "type": "bigint"}
    assert read["facets"]["dataSource"]["uri"] == "postgres://db:5432"
    assert read["inputFacets"]["inputStatistics"]["rowCount"] == 3
    assert written["outputFacets"]["outputStatistics"]["rowCount"] == 3
    comes = written["facets"]["columnLineage"]["fields"]["moved"]["inputFields"][0]
    assert (comes["name"], comes["field"]) == (read["name"], "moved")
    with load(works.config) as project:
        (run,) = project.books.state.read("run")
    assert end["run"]["facets"]["strandline_run"]["run_id"] == run.key[0]


def test_the_collector_is_asked_at_its_own_path_or_at_the_one_that_is_given(
    works: Clockwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def send(url: str, *_: Any) -> str:
        seen.append(url)
        return ""

    monkeypatch.setattr(sending, "send", send)
    for url in ("http://h:5000", "http://h:5000/", "https://h/lineage?key=v"):
        configure(works, url)
        with load(works.config) as project:
            assert project.lineage is not None
            project.lineage.put({})
    assert seen == [*["http://h:5000/api/v1/lineage"] * 2, "https://h/lineage?key=v"]


def test_a_run_that_moves_nothing_is_not_told(works: Clockwork, hook: Receiver) -> None:
    synced(works)
    hook.got.clear()
    synced(works)
    assert hook.got == []


def test_a_table_that_fails_is_told_with_its_error_and_without_a_secret(works: Clockwork, hook: Receiver) -> None:
    def refuse() -> None:
        raise TargetError(f"refused postgresql://reader:{PASSWORD}@db and {TOKEN}")

    works.sink.at_commit(before=refuse)
    synced(works)
    assert [kind for kind, _ in kinds(hook)] == ["START", "START", "FAIL", "FAIL"]
    for event in hook.messages[2:]:
        assert event["run"]["facets"]["errorMessage"]["message"].endswith("refused postgresql://reader:***@db and ***")
    assert all(secret not in body.decode() for _, body in hook.got for secret in (PASSWORD, TOKEN))
    assert {headers["Authorization"] for headers, _ in hook.got} == {f"Bearer {TOKEN}"}


def test_a_table_that_cannot_be_planned_is_told_as_failed(works: Clockwork, hook: Receiver) -> None:
    works.source.write("shop_orders", {"id": 9, "value": "new", "moved": None})
    synced(works)
    assert [kind for kind, _ in kinds(hook)] == ["START", "START", "FAIL", "FAIL"]


def test_a_run_that_is_stopped_is_aborted_not_failed(works: Clockwork, hook: Receiver) -> None:
    configure(works, hook.url, "schedule: every 10s\n    defaults: {slice_rows: 1}")
    service = works.started()

    def stop() -> None:
        service._running["shop"].stopping.set()

    works.sink.at_commit(before=stop)
    works.pass_time(service, 1)
    assert service.project.lineage is not None
    service.project.lineage.flush(30)
    assert [kind for kind, _ in kinds(hook)] == ["START", "START", "ABORT", "ABORT"]
    assert hook.messages[2]["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"] == 1, "what was done, is told"


def test_a_run_that_is_interrupted_is_aborted(works: Clockwork, hook: Receiver) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    works.sink.at_commit(before=interrupt)
    with pytest.raises(KeyboardInterrupt):
        synced(works)
    assert kinds(hook)[-1] == ("ABORT", "shop")


def test_what_a_killed_process_left_open_is_ended_by_the_next_run(works: Clockwork, hook: Receiver) -> None:
    class Killed(BaseException):
        """As a kill: nothing is cleaned up."""

    def die() -> None:
        raise Killed

    works.keep_state_in_memory()
    works.sink.at_commit(before=die)
    with pytest.raises(Killed):
        synced(works)
    begun = {event["run"]["runId"] for event in hook.messages if event["eventType"] == "START"}
    assert len(begun) == 2
    hook.got.clear()
    works.clock.advance(3600)
    synced(works)
    kinds(hook)
    aborted = {event["run"]["runId"] for event in hook.messages if event["eventType"] == "ABORT"}
    assert aborted == begun
    assert [event["eventType"] for event in hook.messages].count("COMPLETE") == 2


def test_a_service_tells_when_the_schedule_wanted_the_run(works: Clockwork, hook: Receiver) -> None:
    service = works.started()
    works.pass_time(service, 1)
    assert service.project.lineage is not None
    service.project.lineage.flush(30)
    assert kinds(hook) == TOLD
    assert hook.messages[0]["run"]["facets"]["strandline_run"]["trigger"] == "schedule"
    nominal = hook.messages[0]["run"]["facets"]["nominalTime"]["nominalStartTime"]
    assert abs((works.clock.now() - type(works.clock.now()).fromisoformat(nominal)).total_seconds()) < 10


def test_the_run_of_another_scheduler_is_named_as_the_parent(
    works: Clockwork, hook: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(hearing.PARENT, PARENT)
    synced(works)
    kinds(hook)
    parent = hook.messages[0]["run"]["facets"]["parent"]
    assert (parent["job"]["namespace"], parent["job"]["name"]) == ("airflow", "nightly.shop")
    assert parent["run"]["runId"] == PARENT.rpartition("/")[2]
    monkeypatch.setenv(hearing.PARENT, "what/ever")
    works.write("shop", 4)
    synced(works)
    assert "parent" not in hook.messages[4]["run"]["facets"]


def test_events_can_go_to_a_file(works: Clockwork) -> None:
    works.write_config("lineage: {file: lineage.ndjson}\n", shop="parallel: 1")
    synced(works)
    lines = (works.folder / "lineage.ndjson").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    for event in events:
        conforms(event)
    assert [(event["eventType"], event["job"]["name"]) for event in events] == TOLD


# delivery


def test_a_collector_that_is_down_fails_no_run_and_is_shown_once(works: Clockwork, hook: Receiver) -> None:
    hook.answers = [503] * 12
    service = works.started()
    works.pass_time(service, 1)
    lineage = service.project.lineage
    assert lineage is not None
    lineage.flush(30)
    assert works.moved("shop") == 3
    (failed,) = told(service, "lineage_failed")
    assert "HTTP 503" in failed["message"]
    assert (lineage.lost, lineage.sent) == (4, 0)
    hook.answers.clear()
    works.write("shop", 4)
    works.pass_time(service, 20)
    lineage.flush(30)
    assert lineage.sent == 4 and "4 were lost" in told(service, "lineage_sent")[0]["message"]


def test_an_event_is_tried_again_before_it_is_lost(works: Clockwork, hook: Receiver) -> None:
    hook.answers = [500, 500]
    synced(works)
    assert len(hook.got) == len(TOLD) + 2
    assert [event["eventType"] for event in hook.messages[:3]] == ["START"] * 3


def test_a_collector_that_never_answers_holds_up_no_run_and_an_end_only_so_long(
    works: Clockwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered, said = threading.Event(), []

    def send(*_: Any) -> str:
        answered.wait(60)
        return "timed out"

    monkeypatch.setattr(sending, "send", send)
    project: Project = load(works.config)
    assert project.lineage is not None
    project.lineage.tell = lambda _, message, **__: said.append(message)
    project.sync("shop")
    assert works.moved("shop") == 3, "while the first event is still on its way"
    began = time.monotonic()
    project.lineage.flush(0.2)
    assert time.monotonic() - began < 30
    answered.set()
    assert said == ["4 lineage events were not delivered in 0.2 s"] and project.lineage.lost >= 4
    project.close()


def test_too_many_events_are_dropped_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    answered, said = threading.Event(), []
    monkeypatch.setattr(sending, "KEPT", 3)
    box = sending.Outbox(lambda _: "" if answered.wait(60) else "late", lambda _, message, **__: said.append(message))
    for number in range(10):
        box.put({"number": number})
    answered.set()
    box.flush(30)
    assert box.sent in (3, 4) and box.sent + box.lost == 10
    assert "too many are waiting" in said[0]


# names

PG = Endpoint.parse("postgresql://u:p@db:5433/dw?schema=mart")


@pytest.mark.parametrize(
    ("end", "table", "expected"),
    [
        (PG, "orders", official.Postgres("db", "5433", "dw", "mart", "orders")),
        (PG, "raw.orders", official.Postgres("db", "5433", "dw", "raw", "orders")),
        (Endpoint.parse("postgres://db/dw"), "orders", official.Postgres("db", "5432", "dw", "public", "orders")),
        (Endpoint.parse("mysql://db/shop"), "orders", official.MySQL("db", "3306", "shop", "orders")),
        (Endpoint.parse("mariadb://db/shop"), "other.orders", official.MySQL("db", "3306", "other", "orders")),
        (
            Endpoint.parse("redshift://u:p@etl.abc123.eu-west-1.redshift.amazonaws.com:5439/dw"),
            "orders",
            official.Redshift("etl", "eu-west-1", "5439", "dw", "public", "orders"),
        ),
        (
            Endpoint.parse("snowflake://u:p@org-account/DB/MART?warehouse=W"),
            "ORDERS",
            official.Snowflake("org", "account", "DB", "MART", "ORDERS"),
        ),
        (
            Endpoint.parse("kafka://h1:9092,h2:9092?topic=shop.{table}"),
            "orders",
            official.Kafka("h1", "9092", "shop.orders"),
        ),
        (Endpoint.parse("delta:s3://lake/gold/"), "orders", official.S3("lake", "gold/orders")),
        (Endpoint.parse("delta:/data/lake"), "orders", official.LocalFileSystem("/data/lake/orders")),
    ],
    ids=lambda value: getattr(value, "scheme", None) or (value if isinstance(value, str) else type(value).__name__),
)
def test_tables_are_named_as_the_official_client_names_them(
    end: Endpoint, table: str, expected: official.DatasetNaming
) -> None:
    assert table_name(end, table) == (expected.get_namespace(), expected.get_name())


def test_what_is_staged_is_a_dataset_between_the_two() -> None:
    assert staged_name(Endpoint.parse("s3://bucket/stage"), "shop", "orders") == ("s3://bucket", "stage/shop/orders")
    assert staged_name(Endpoint.parse("/srv/stage"), "shop", "orders") == ("file", "/srv/stage/shop/orders")


def test_a_pipeline_with_a_stage_is_two_steps_of_lineage() -> None:
    from strandline.config import PipelineSpec, TableSpec
    from strandline.core.table import Mode, Table

    spec = PipelineSpec(
        name="shop",
        source=Endpoint.parse("mysql://db/shop"),
        stage=Endpoint.parse("s3://bucket/stage"),
        targets={"dw": Endpoint.parse("postgresql://dw/dw")},
        tables=(TableSpec(name="orders"),),
    )
    cursor = Cursor("at", Kind.TIMESTAMP)
    table = Table(
        "shop", "orders", "shop.orders", "orders", "extract", Mode.MERGE, cursor, columns=(Column("id", "int"),)
    )
    extract = hearing._copy(spec, table)
    load_ = hearing._copy(spec, Table("shop", "orders", "orders", "orders", "load:dw", Mode.MERGE, None))
    assert extract.source == ("mysql://db:3306", "shop.orders")
    assert extract.target == load_.source == ("s3://bucket", "stage/shop/orders")
    assert load_.target == ("postgres://dw:5432", "dw.public.orders")

"""A stage that cannot be reached, written, or read as it was written: what is said, and that the next run is right."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from staged_line import TABLE, ArrowLoad, ArrowWrite, Line, by_id
from targets import MemoryTarget

import strandline
from strandline.config import load_config
from strandline.core.errors import SourceError, StrandlineError
from strandline.core.position import Reason, Status
from strandline.core.run import Outcome
from strandline.core.table import EXTRACT, LOAD
from strandline.state.memory import MemoryState
from strandline.testing.shops import PostgresShop
from strandline.testing.stores import Moto, Seaweed, answering

EXPIRED = "<?xml version='1.0'?><Error><Code>ExpiredToken</Code><Message>too old</Message></Error>"


def failed(config: Path, stage: str) -> StrandlineError:
    """What a sync of this stage says of its only table, or of itself."""
    try:
        with strandline.load(config) as project:
            (outcome,) = project.sync("shop", stages=[stage]).tables
    except StrandlineError as error:
        return error
    assert outcome.status is Status.FAILED and outcome.error is not None
    return outcome.error


@pytest.mark.parametrize(
    ("fault", "said", "remedy"),
    [
        ("missing", "the bucket does not exist", "Create it"),
        ("read-only", "access is denied", "s3:PutObject"),
        ("wrong", "the credentials are wrong", "secret_access_key"),
        ("expired", "the credentials have expired", "Renew them"),
    ],
)
def test_a_bucket_that_cannot_be_used_is_named_with_pipeline_and_remedy_and_nothing_is_lost(
    seaweed: Seaweed, moto: Moto, pg_database: str, tmp_path: Path, fault: str, said: str, remedy: str
) -> None:
    seaweed.bucket("faults")
    with answering(403, EXPIRED) as expired, PostgresShop(pg_database) as shop:
        options = {
            "missing": moto.options(),
            "read-only": {**seaweed.options(), "access_key_id": "reader"},
            "wrong": {**seaweed.options(), "secret_access_key": "not-this-one"},
            "expired": {**seaweed.options(), "endpoint": f"http://127.0.0.1:{expired}"},
        }[fault]
        stage = {"url": f"s3://faults/{fault}", **options}
        tables = [{"name": "orders", "cursor": "at"}]
        pipeline = {"source": pg_database, "guard": "0s", "stage": stage, "target": "delta:lake", "tables": tables}
        config = tmp_path / "strandline.yml"
        config.write_text(yaml.safe_dump({"pipelines": {"shop": pipeline}}))
        shop.execute("INSERT INTO orders (id) VALUES (1)")
        error = failed(config, EXTRACT)
        assert str(error) == f"shop.orders: s3://faults/{fault}: {said}"
        assert remedy in error.remedy
        assert "not-this-one" not in error.explain()
        if fault != "read-only":  # it may read, and finds that nothing is staged yet
            assert str(failed(config, LOAD)) == f"shop: load: s3://faults/{fault}: {said}"
        with strandline.load(config) as project:
            position = project.books.positions()["shop", "orders", EXTRACT]
        assert (position.watermark, position.batch) == (None, None)
        assert (position.intent is not None) is (fault == "read-only")


@pytest.fixture
def line(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Line]:
    """Two batches are staged and none is loaded. Nothing needs Spark."""
    monkeypatch.setattr("strandline.stage.write.Write", ArrowWrite)
    target = MemoryTarget(request)
    target.sink = target.memory = ArrowLoad()
    line = Line(tmp_path, target, MemoryState())
    line.write()
    line.sync(stages=[EXTRACT])
    yield line


def loaded(line: Line) -> Outcome:
    return line.sync(stages=[LOAD])[LOAD]


@pytest.mark.parametrize("damage", ["missing", "truncated", "emptied"])
def test_a_file_that_is_not_what_its_manifest_says_stops_the_load_until_it_is_back(line: Line, damage: str) -> None:
    second = next(line.folder.glob(f"stage/shop/{TABLE}/data/000000000002-*/part-0.parquet"))
    content = second.read_bytes()
    if damage == "missing":
        second.unlink()
    else:
        second.write_bytes(content[: -100 if damage == "truncated" else 0])
    outcome = loaded(line)
    assert isinstance(outcome.error, SourceError) and outcome.batches == 1, "what comes before it is loaded"
    assert str(outcome.error).startswith("shop.orders: the stage is damaged: ")
    assert str(second) in str(outcome.error) and "of batch 2" in str(outcome.error)
    assert "sync --full" in outcome.error.remedy
    second.parent.mkdir(exist_ok=True)
    second.write_bytes(content)
    assert loaded(line).status is Status.COMPLETED
    line.check()


def test_a_file_that_is_gone_for_good_is_made_up_for_by_reading_the_table_anew(line: Line) -> None:
    """The load had begun with it: its plan is given up for the batch that replaces everything."""
    next(line.folder.glob(f"stage/shop/{TABLE}/data/000000000002-*/part-0.parquet")).unlink()
    assert loaded(line).status is loaded(line).status is Status.FAILED
    assert {outcome.status for outcome in line.sync(full=True).values()} == {Status.COMPLETED}
    assert by_id(line.target.rows(TABLE)) == by_id(line.source.rows(TABLE))
    line.write()
    line.resume()
    assert by_id(line.target.rows(TABLE)) == by_id(line.source.rows(TABLE))


def test_a_target_that_was_lost_is_loaded_again_by_reading_the_table_anew(line: Line) -> None:
    """As its error says."""
    assert loaded(line).status is Status.COMPLETED
    assert isinstance(line.target, MemoryTarget)
    line.target.memory.restore(TABLE, None)
    line.write()
    line.sync(stages=[EXTRACT])
    lost = loaded(line)
    assert lost.error is not None and "lost its batches" in str(lost.error) and "sync --full" in lost.error.remedy
    assert {outcome.status for outcome in line.sync(full=True).values()} == {Status.COMPLETED}
    assert by_id(line.target.rows(TABLE)) == by_id(line.source.rows(TABLE))


def test_a_first_extract_that_fails_does_not_hold_up_the_load_for_ever(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key is the source's to tell: as long as nothing is staged, a load does not know it."""

    def fail(*_: object) -> None:
        raise SourceError("the source went away")

    monkeypatch.setattr("strandline.stage.write.Write", ArrowWrite)
    target = MemoryTarget(request)
    target.sink = target.memory = ArrowLoad()
    line = Line(tmp_path, target, MemoryState())
    path = line.config.path
    path.write_text(path.read_text().replace("key: id", ""))
    line.config = load_config(path)
    line.write()
    with monkeypatch.context() as patch:
        patch.setattr(ArrowWrite, "run", fail)
        assert [outcome.status for outcome in line.sync().values()] == [Status.FAILED, Status.SKIPPED]
    line.resume()
    line.check()


def test_a_second_loader_names_the_first_and_does_nothing(line: Line) -> None:
    others: list[Outcome] = []

    def reach(point: str) -> None:
        if point == "load Intended" and not others:
            others.append(loaded(line))

    line.sync(reach, stages=[LOAD])
    (other,) = others
    assert (other.plan.reason, other.batches) == (Reason.BUSY, 0)
    line.check()


def test_a_second_loader_with_a_state_of_its_own_is_stopped_by_the_target(line: Line) -> None:
    assert loaded(line).status is Status.COMPLETED
    line.state, mine = MemoryState(), line.state
    outcome = loaded(line)
    assert outcome.status is Status.FAILED and "the state has no position for it" in str(outcome.error)
    line.state = mine
    line.check()

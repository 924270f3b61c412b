"""How Spark's Python workers bring rows into PostgreSQL; without Spark, so that each fault can be brought about."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import psycopg
import pytest
from pyspark.serializers import CloudPickleSerializer

from strandline.core.errors import StrandlineError, TargetError, TransientError
from strandline.endpoint import Endpoint
from strandline.sinks.postgres import PostgresTarget
from strandline.sinks.postgres_copy import able, copied, copying

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pyarrow = import_module("pyarrow")
TEXTS = ["plain", "", "\\N", "\\.", "a\tb", "a\nb\r\nc", "\\", "\\\\x00", "ü€\U0001f600", None]
ALONE = """
import pickle, sys
sys.modules["strandline"] = None  # a worker on a cluster has no such package
import pyarrow
function, batches = pickle.load(sys.stdin.buffer)
done = list(function(iter(batches)))
assert "pandas" not in sys.modules  # it takes longer to import than a small batch takes
print([batch.to_pydict() for batch in done])
"""


class Stage:
    def __init__(self, url: str) -> None:
        self.connection = psycopg.connect(url, autocommit=True)
        self.connection.execute("CREATE TABLE stage (c0 smallint, c1 text, part integer)")
        self.target = PostgresTarget(Endpoint.parse(url))

    def function(self, **login: Any) -> Any:
        login = {**self.target.login, **login}
        return copying(login, self.target.settings, "COPY stage (c0, c1, part) FROM STDIN")

    def copy(self, *batches: Any, **login: Any) -> StrandlineError | None:
        """What the product makes of the error, if there is one."""
        try:
            list(self.function(**login)(iter(batches)))
        except OSError as error:
            return self.target.translate(f"PythonException: Traceback …\nOSError: {error}\n  more lines")
        return None

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        return self.connection.execute("SELECT c0, c1, part FROM stage ORDER BY c0").fetchall()


@pytest.fixture
def stage(pg_database: str) -> Iterator[Stage]:
    stage = Stage(pg_database)
    with stage.connection:
        yield stage
    stage.target.close()


def batch(numbers: list[int], texts: list[str | None]) -> Any:
    columns = [pyarrow.array(numbers, pyarrow.int64()), pyarrow.array(texts), pyarrow.array([7] * len(numbers))]
    return pyarrow.record_batch(columns, ["c0", "c1", "part"])


def test_a_worker_needs_only_the_driver_and_arrow_and_no_character_is_special(stage: Stage) -> None:
    numbers = list(range(len(TEXTS)))
    batches = [batch([], []), batch(numbers[:4], TEXTS[:4]), batch(numbers[4:], TEXTS[4:])]
    serializer: Any = CloudPickleSerializer()  # as Spark sends it
    work = serializer.dumps((stage.function(), batches))
    done = subprocess.run([sys.executable, "-c", ALONE], input=work, capture_output=True, check=True)
    assert done.stdout.decode().strip() == f"[{{'rows': [{len(TEXTS)}]}}]"
    assert stage.rows == [(number, text, 7) for number, text in zip(numbers, TEXTS, strict=True)]


def test_a_partition_without_rows_does_not_connect(stage: Stage) -> None:
    assert stage.copy(batch([], []), host="127.0.0.1", port=1) is None


def test_a_value_that_does_not_fit_is_told_with_its_column_and_nothing_stays(stage: Stage) -> None:
    error = stage.copy(batch([1], ["in"]), batch([70_000], ["secret"]))
    assert isinstance(error, TargetError)
    assert 'out of range for type smallint in column "c0"' in error.message
    assert "secret" not in str(error)
    assert stage.rows == []


def test_what_fails_while_it_is_read_takes_the_rows_before_it_along(stage: Stage) -> None:
    def broken() -> Iterator[Any]:
        yield batch([1], ["in"])
        raise EOFError("the source is gone")

    with pytest.raises(EOFError):
        list(stage.function()(broken()))
    assert stage.rows == []


def test_a_server_that_is_away_or_ends_the_session_is_worth_another_try(stage: Stage) -> None:
    assert isinstance(stage.copy(batch([1], ["in"]), host="127.0.0.1", port=1), TransientError)

    def ended() -> Iterator[Any]:
        yield batch([1], ["in"])
        stage.connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'strandline writer'"
        )
        yield batch([2], ["x" * 100_000])

    with pytest.raises(OSError, match=r"COPY\[") as caught:
        list(stage.function()(ended()))
    assert isinstance(stage.target.translate(str(caught.value)), TransientError)
    assert stage.rows == []


def test_workers_that_cannot_are_asked_once_and_the_reason_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    class NoWorkers:
        """Spark where there is no pyarrow."""

        asked = 0

        @property
        def conf(self) -> dict[str, str]:
            return {"spark.app.id": "application without workers"}

        def range(self, *_: int, **__: int) -> None:
            self.asked += 1
            raise ImportError("PyArrow >= 15 must be installed\nmore")

    tried = []

    def failing(*_: object) -> None:
        tried.append(1)
        raise ImportError("PyArrow >= 15 must be installed")

    spark = NoWorkers()
    rows = cast("DataFrame", SimpleNamespace(columns=["c0"], sparkSession=spark, mapInArrow=failing))
    with caplog.at_level(logging.WARNING, "strandline"):
        assert not copied(rows, {}, "", "staged")
        assert not copied(rows, {}, "", "staged")
        assert not able(cast("SparkSession", spark))
    assert (len(tried), spark.asked) == (1, 1)
    assert [record.getMessage() for record in caplog.records] == [
        "Spark's Python workers cannot COPY; rows go by JDBC. PyArrow >= 15 must be installed"
    ]

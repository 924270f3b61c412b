"""What the warehouse does not take: the error tells its own words, file, row and column, nothing of the batch shows,
and the next run goes on. Files are as long as their manifest says: only whoever reads them finds out."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest
from staged_line import TABLE, ArrowWrite, Line, by_id
from targets import TARGETS

from strandline.core.errors import TargetError
from strandline.core.position import Status
from strandline.core.run import Outcome
from strandline.core.table import EXTRACT, LOAD
from strandline.sinks.sql_dialect import Place
from strandline.sinks.sql_files import FileSink
from strandline.state.memory import MemoryState


def garbage(content: bytes) -> bytes:
    return b"x" * len(content)


def text_for_a_number(content: bytes) -> bytes:
    """The same rows with an id that is none. A file's footer is found from its end, its data from its start: whatever
    is between them is nobody's."""
    arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    rows, file = parquet.read_table(arrow.BufferReader(content)), io.BytesIO()
    rows = rows.set_column(0, "id", arrow.array(["none"] * len(rows)))
    parquet.write_table(rows, file, use_dictionary=False, write_statistics=False, store_schema=False)
    made = file.getvalue()
    footer = 8 + int.from_bytes(made[-8:-4], "little")
    return made[:-footer] + b"\0" * (len(content) - len(made)) + made[-footer:]


@pytest.fixture(params=["redshift", "snowflake"])
def line(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Line:
    """One round is loaded, and another one is staged. Nothing needs Spark."""
    target = TARGETS[request.param](request)  # first: what it imports keeps the real Write
    monkeypatch.setattr("strandline.stage.write.Write", ArrowWrite)
    line = Line(tmp_path, target, MemoryState(), slices=1)
    line.write()
    line.resume()
    line.write()
    line.sync(stages=[EXTRACT])
    return line


def loaded(line: Line) -> Outcome:
    return line.sync(stages=[LOAD])[LOAD]


@pytest.mark.parametrize(
    ("damaged", "said", "where"),
    [
        pytest.param(garbage, r"Spectrum Scan Error|No magic bytes found", "", id="a file"),
        pytest.param(
            text_for_a_number,
            r'invalid input syntax for type bigint: "none"|Could not convert string "none"',
            "id",
            id="a value",
        ),
    ],
)
def test_its_own_words_are_told_with_the_file_and_nothing_of_the_batch_shows(
    line: Line, damaged: Callable[[bytes], bytes], said: str, where: str
) -> None:
    objects = line._stage.objects
    key = max(entry.key for entry in objects.list(line._stage.layout.data) if entry.key.endswith(".parquet"))
    content, held, ledger = objects.get(key), line.target.rows(TABLE), list(line.target.log(TABLE))
    assert content is not None
    objects.replace(key, damaged(content))
    assert len(damaged(content)) == len(content)

    for _ in range(2):  # whoever tries again hears the same
        outcome = loaded(line)
        error = outcome.error
        assert outcome.status is Status.FAILED and isinstance(error, TargetError)
        assert str(error).startswith("shop.orders: ") and re.search(said, str(error)), error.explain()
        assert key in error.why and (f'column "{where}"' in error.why or not where), error.explain()
        assert "ON_ERROR" not in error.explain()
        assert "strandline sync --full -t orders" in error.remedy
        assert (line.target.rows(TABLE), line.target.log(TABLE)) == (held, ledger)
        sink = line.target.sink
        assert isinstance(sink, FileSink) and sink._database.left(Place("public", TABLE)) == {}

    if where:
        objects.replace(key, content)
        assert loaded(line).status is Status.COMPLETED
        line.check()
    else:  # it cannot be had back
        assert {outcome.status for outcome in line.sync(full=True).values()} == {Status.COMPLETED}
        assert by_id(line.target.rows(TABLE)) == by_id(line.source.rows(TABLE))

"""The network breaks in each phase of a load into a warehouse: between Strandline and the warehouse, and between
Strandline and the stage from which it loads. Once, and the run gets through; for good, and it says so, and the next one
completes. Rows are appended: whatever came twice would stay. No Spark starts."""

from __future__ import annotations

import gzip
import re
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from staged_line import ArrowWrite, Line
from targets import RedshiftTarget, SnowflakeTarget, watched
from test_cuts import TARGET, Cut

from strandline.core.batch import Batch
from strandline.core.errors import ConnectError, StrandlineError, TransientError
from strandline.core.protocols import Sink
from strandline.core.table import EXTRACT, LOAD, Mode
from strandline.endpoint import Endpoint
from strandline.sinks import open_sink
from strandline.sinks.sql_ledger import Ledger
from strandline.state.memory import MemoryState
from strandline.testing.stores import Seaweed
from strandline.testing.wire import Wire

SAID = '"sqlText": ?"'
CUTS = {
    "redshift": [
        Cut("looking for manifests", "stage", "", r"GET \S*batches", heard=True),
        Cut("looking at the ledger", "target", "", r"SELECT .* FROM \S*strandline_ledger"),
        Cut("putting COPY's manifest", "stage", "load Intended", r"PUT \S*redshift\.json"),
        Cut("putting COPY's manifest, unanswered", "stage", "load Intended", r"PUT \S*redshift\.json", heard=True),
        *TARGET,
    ],
    "snowflake": [
        Cut("looking at the ledger", "target", "", r"SELECT .* FROM \S*STRANDLINE_LEDGER"),
        Cut("making the staging table", "target", "load Intended", r"CREATE TRANSIENT TABLE"),
        Cut("sending a file", "target", "load Intended", r"PUT /fs_bucket"),
        Cut("sending a file, unanswered", "target", "load Intended", r"PUT /fs_bucket", heard=True),
        Cut("filling the staging table", "target", "load Intended", r"COPY INTO"),
        Cut("moving the ledger", "target", "load Intended", r"UPDATE \S*STRANDLINE_LEDGER"),
        Cut("moving the rows", "target", "load Intended", r"INSERT INTO \S*ORDERS"),
        Cut("committing", "target", "after count", f"{SAID}COMMIT"),
        Cut("committing, unanswered", "target", "after count", f"{SAID}COMMIT", heard=True),
    ],
}
FOR_GOOD = ("filling the staging table", "committing, unanswered")
"""Amid the transaction, fakesnow would keep it open: only Snowflake ends those whose session nobody uses."""


class WiredRedshift(RedshiftTarget):
    """Redshift reads the stage's files itself, by another way than ours."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        super().__init__(request)
        seaweed: Seaweed = request.getfixturevalue("seaweed")
        self.wires["stage"] = Wire("127.0.0.1", seaweed.port)
        self.stage = {**self.stage, "endpoint": f"http://127.0.0.1:{self.wires['stage'].port}"}

    def open(self, request: pytest.FixtureRequest, url: str) -> Sink:
        self.wires = {"target": Wire.to(url)}
        return super().open(request, self.wires["target"].url(url))


class WiredSnowflake(SnowflakeTarget):
    def __init__(self, request: pytest.FixtureRequest) -> None:
        super().__init__(request)
        self.wires = {"target": Wire.to(self.address)}
        address = self.wires["target"].url(self.address).replace("network_timeout=60", "network_timeout=2")
        self.sink = open_sink(Endpoint.parse(f"{address}&connect_timeout=1"), lambda: pytest.fail("no Spark is needed"))
        request.addfinalizer(self.sink.close)

    def log(self, table: str) -> list[Batch]:
        """Also what was committed without an answer."""
        ((text,),) = self.session.rows(f"SELECT batch FROM strandline_ledger WHERE lower(target) = '{table}'")
        held = Batch.from_json(text)
        self.noted += [] if self.noted[-1].same(held) else [held]
        return super().log(table)


class Cutting(Line):
    """One more batch is staged, and its load is cut."""

    target: WiredRedshift | WiredSnowflake

    def cut(self, cut: Cut, *, for_good: bool = False) -> StrandlineError | None:
        """What the load says in the end."""
        self.write()
        self.sync(stages=[EXTRACT])
        wire, armed = self.target.wires[cut.wire], False
        before, said = wire.cuts, re.compile(cut.says.encode())

        def reach(point: str) -> None:
            nonlocal armed
            if not armed and point == cut.after:
                armed = True
                wire.cut_answer_to, wire.cut_before = (said, None) if cut.heard else (None, said)
                wire.for_good = for_good

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("strandline.core.retry.WAITS", () if for_good else (0.1, 0.1, 0.1))
            watched(patch, Ledger, "count", reach)
            reach("")
            try:
                error = self.sync(reach, stages=[LOAD])[LOAD].error
            except StrandlineError as raised:
                error = raised
        assert wire.cuts == before + 1, cut.phase
        wire.mend()
        return error


@pytest.fixture(params=CUTS)
def line(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cutting]:
    target = WiredRedshift(request) if request.param == "redshift" else WiredSnowflake(request)
    monkeypatch.setattr("strandline.stage.write.Write", ArrowWrite)  # later: what the target imports keeps the real one
    readable = SimpleNamespace(compress=partial(gzip.compress, compresslevel=0))  # or the wire cannot read statements
    monkeypatch.setattr("snowflake.connector.network.gzip", readable)
    line = Cutting(tmp_path, target, MemoryState(), mode=Mode.APPEND, slices=1)
    line.write()
    line.resume()
    yield line
    for wire in target.wires.values():
        wire.close()


def cuts_of(request: pytest.FixtureRequest) -> list[Cut]:
    params: dict[str, Any] = request.node.callspec.params
    return CUTS[params["line"]]


def test_cut_once_in_any_phase_the_load_gets_through(line: Cutting, request: pytest.FixtureRequest) -> None:
    for cut in cuts_of(request):
        error = line.cut(cut)
        assert error is None, (cut.phase, error)
        line.check()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # the connector's, as it cancels
def test_cut_for_good_the_load_says_so_and_the_next_one_completes(
    line: Cutting, request: pytest.FixtureRequest
) -> None:
    for cut in cuts_of(request):
        if cut.phase in FOR_GOOD:
            error = line.cut(cut, for_good=True)
            assert isinstance(error, TransientError | ConnectError), (cut.phase, error)
            assert str(error).startswith("shop") and error.remedy, cut.phase
            line.resume()
            line.check()
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer):
            thread.join(30)

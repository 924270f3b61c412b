"""The network breaks in each phase of a run in two stages, with everything at the end of a wire: source, stage, target
and state. Once, and the run gets through; for good, and it says so; then the target equals the source, each row once.

The table is appended to: whatever came twice would stay.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from route import Route
from targets import watched

from strandline.core.errors import ConnectError, StrandlineError, TransientError
from strandline.core.events import Event, TableEvent
from strandline.sinks.sql_ledger import Ledger
from strandline.spark import storage
from strandline.testing.shops import MariadbShop, PostgresShop
from strandline.testing.stores import Seaweed
from strandline.testing.wire import COMMIT, Wire

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DATABASES = {"postgres": "pg_database", "mariadb": "mariadb_database"}


@dataclass(frozen=True)
class Cut:
    """Where, once this was reached ("": at once), when the client says that; `heard`: the server gets it, and the
    answer is lost."""

    phase: str
    wire: str
    after: str
    says: str
    heard: bool = False


SOURCE = [
    Cut("asking how far it is safe to read", "source", "", "pg_locks|processlist|PROCESSLIST", heard=True),
    Cut("asking for the rows", "source", "extract Intended", "orders"),
    Cut("reading the source", "source", "extract Intended", "orders", heard=True),
]
STAGE_AND_STATE = [
    Cut("writing the data file", "stage", "extract Intended", r"PUT \S*/data/\S*part-"),
    Cut("putting the manifest", "stage", "extract Intended", r"PUT \S*/batches/"),
    Cut("putting the manifest, unanswered", "stage", "extract Intended", r"PUT \S*/batches/", heard=True),
    Cut("looking for manifests", "stage", "extract TableFinished", r"GET \S*batches", heard=True),
    Cut("reading the data file", "stage", "load Intended", r"(GET|HEAD) \S*/data/\S*parquet", heard=True),
    Cut("writing the state", "state", "extract BatchApplied", r"PUT \S*/tables/"),
    Cut("writing the state, unanswered", "state", "load BatchApplied", r"PUT \S*/tables/", heard=True),
]
TARGET = [
    Cut("filling the staging table", "target", "load Intended", r"(INSERT INTO|COPY) \S*strandline_stage"),
    Cut("moving the ledger", "target", "load Intended", r"UPDATE \S*strandline_ledger"),
    Cut("moving the rows", "target", "load Intended", r"INSERT INTO \S*(copied|orders)"),
    Cut("committing", "target", "after count", COMMIT.pattern.decode()),
    Cut("committing, unanswered", "target", "after count", COMMIT.pattern.decode(), heard=True),
]


FOR_GOOD = [
    next(cut for cut in (*SOURCE, *STAGE_AND_STATE, *TARGET) if cut.phase == phase)
    for phase in (
        "reading the source",
        "writing the data file",
        "reading the data file",
        "filling the staging table",
        "committing",
        "writing the state",
    )
]


class Wired:
    def __init__(self, route: Route, wires: dict[str, Wire]) -> None:
        self.route, self.wires = route, wires
        self.ids = 0

    def insert(self) -> None:
        self.route.insert(*range(self.ids + 1, self.ids + 4))
        self.ids += 3

    def sync(self, cut: Cut, *, for_good: bool = False) -> tuple[list[StrandlineError], list[str]]:
        """What the run says in the end, and its events."""
        wire, events = self.wires[cut.wire], []
        said = re.compile(cut.says.encode())

        def reach(point: str) -> None:
            events.append(point)
            if point == cut.after and point not in events[:-1]:
                if cut.heard:
                    wire.cut_answer_to = said
                else:
                    wire.cut_before = said
                wire.for_good = for_good

        def listen(event: Event) -> None:
            if isinstance(event, TableEvent):
                reach(f"{event.stage} {type(event).__name__}")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("strandline.core.retry.WAITS", (0.1,) if for_good else (0.1, 0.1, 0.1))
            watched(patch, Ledger, "count", reach)
            reach("")
            try:
                errors = [outcome.error for outcome in self.route.stages(listen) if outcome.error]
            except StrandlineError as error:
                errors = [error]
        wire.mend()
        return errors, events


@pytest.fixture
def wired(
    request: pytest.FixtureRequest,
    seaweed: Seaweed,
    pg_database: str,
    tmp_path: Path,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Wired]:
    monkeypatch.setitem(storage._PATIENCE, "retry.interval", "20ms")  # as a bucket is met first, Hadoop keeps it
    origin, into = (request.getfixturevalue(DATABASES[name]) for name in request.param)
    with ExitStack() as open_, (PostgresShop if origin == pg_database else MariadbShop)(origin) as shop:
        wires = {
            "source": open_.enter_context(Wire.to(origin)),
            "target": open_.enter_context(Wire.to(into)),
            "stage": open_.enter_context(Wire("127.0.0.1", seaweed.port)),
            "state": open_.enter_context(Wire("127.0.0.1", seaweed.port)),
        }
        bucket = f"cuts-{uuid.uuid4().hex}"  # Hadoop knows a bucket by its name alone, and this one is behind this wire
        seaweed.bucket(bucket)

        def objects(name: str) -> dict[str, str]:
            by_wire = {"endpoint": f"http://127.0.0.1:{wires[name].port}"}
            return {"url": f"s3://{bucket}/{name}", **seaweed.options(), **by_wire}

        source, ends = wires["source"].url(origin), {name: objects(name) for name in ("stage", "state")}
        route = Route(shop, tmp_path, spark, source=source, into=into, **ends)
        route.target_url = wires["target"].url(into)
        route.table |= {"mode": "append", "slice_rows": 10_000}
        yield Wired(route, wires)


@pytest.mark.parametrize(
    ("wired", "cuts"),
    [
        pytest.param(("postgres", "postgres"), [*SOURCE, *STAGE_AND_STATE, *TARGET], id="postgres"),
        pytest.param(("postgres", "mariadb"), TARGET, id="into mariadb"),
        pytest.param(("mariadb", "postgres"), SOURCE, id="from mariadb"),
    ],
    indirect=["wired"],
)
def test_cut_once_in_any_phase_the_run_gets_through(wired: Wired, cuts: list[Cut]) -> None:
    for cut in cuts:
        wired.insert()
        before = wired.wires[cut.wire].cuts
        errors, events = wired.sync(cut)
        assert wired.wires[cut.wire].cuts == before + 1, (cut.phase, events)
        assert errors == [], cut.phase
        wired.route.check()


@pytest.mark.parametrize("wired", [("postgres", "postgres")], indirect=True)
def test_cut_for_good_the_run_says_so_and_the_next_one_completes(wired: Wired) -> None:
    for cut in FOR_GOOD:
        wired.insert()
        before = wired.wires[cut.wire].cuts
        (error,), _ = wired.sync(cut, for_good=True)
        assert wired.wires[cut.wire].cuts == before + 1, cut.phase
        assert isinstance(error, TransientError | ConnectError), (cut.phase, error)
        assert str(error).startswith("s3://" if cut.wire == "state" else "shop"), cut.phase  # a state is everybody's
        assert error.remedy, (cut.phase, error)
        wired.route.expire_leases()
        for outcome in wired.route.stages():
            assert outcome.error is None, (cut.phase, outcome.error)
        wired.route.stages()  # what came since it was planned
        wired.route.check()

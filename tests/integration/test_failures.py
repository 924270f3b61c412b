"""Services that fail in the middle of a sync: connections cut, servers stopped, disks full, targets gone.

The run gets through or says what to do; the next one completes; then the target equals the source, each row once. The
table is appended to: whatever came twice would stay.
"""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from route import SHOPS, Route, open_shop

from strandline.core.errors import ConnectError, StateError, StrandlineError, TargetError, TransientError
from strandline.core.events import Event, Listener
from strandline.core.position import Status
from strandline.testing.servers import Postgres
from strandline.testing.shops import PostgresShop
from strandline.testing.source import Shop
from strandline.testing.wire import Wire

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MANY = 3000  # rows: an answer that comes in several parts


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """How long a run waits before it tries again is not what is shown here."""
    monkeypatch.setattr("strandline.core.retry.WAITS", (0.05, 0.05, 0.05))


@pytest.fixture(params=SHOPS)
def shop(request: pytest.FixtureRequest) -> Iterator[Shop]:
    with open_shop(request, request.param) as shop:
        yield shop


@pytest.fixture
def wire(shop: Shop) -> Iterator[Wire]:
    with Wire.to(shop.url) as wire:
        yield wire


@pytest.fixture
def postgres_shop(pg_database: str) -> Iterator[Shop]:
    with PostgresShop(pg_database) as shop:
        yield shop


@pytest.fixture
def restless() -> Iterator[Postgres]:
    """A server that may be stopped: nobody else's data are there."""
    with Postgres() as server:
        yield server


def appending(route: Route) -> Route:
    route.table |= {"mode": "append", "slice_rows": 10_000}
    return route


def at(event: str, action: Callable[[], None]) -> Listener:
    """Do this at the first event of that name."""
    waiting = [action]

    def listener(met: Event) -> None:
        if type(met).__name__ == event and waiting:
            waiting.pop()()

    return listener


def failing(route: Route, listener: Listener) -> StrandlineError | None:
    """What a sync says in the end, of its table or, where not even that could be written down, of itself."""
    try:
        return route.sync(listener).error
    except StrandlineError as error:
        return error


def many(route: Route) -> None:
    """Rows that Spark reads in more than one portion."""
    route.insert(*range(1, MANY + 1), note="x" * 20)


# the source


def test_source_cut_while_spark_reads_is_read_again(
    shop: Shop, wire: Wire, tmp_path: Path, spark: SparkSession
) -> None:
    route = appending(Route(shop, tmp_path, spark, source=wire.url(shop.url)))
    many(route)

    def cut() -> None:
        wire.cut_after = 40_000

    outcome = route.sync(at("Intended", cut))
    assert (outcome.status, wire.cuts) == (Status.COMPLETED, 1), outcome.error
    assert "Retrying" in route.events
    assert outcome.applied.rows_inserted == MANY
    route.check()


def test_source_cut_for_good_while_spark_reads_fails_and_the_next_run_completes(
    shop: Shop, wire: Wire, tmp_path: Path, spark: SparkSession
) -> None:
    route = appending(Route(shop, tmp_path, spark, source=wire.url(shop.url)))
    many(route)

    def cut() -> None:
        wire.cut_after, wire.down = 40_000, True

    outcome = route.sync(at("Intended", cut))
    assert outcome.status is Status.FAILED and isinstance(outcome.error, TransientError)
    assert "cannot connect to the source" in str(outcome.error) and "server runs" in outcome.error.remedy
    assert route.events.count("Retrying") == 3
    wire.down = False
    assert route.sync().status is Status.COMPLETED
    route.check()


def test_source_cut_while_planning(shop: Shop, wire: Wire, tmp_path: Path, spark: SparkSession) -> None:
    """After ever more of what the server says: from the login to the last answer."""
    route = appending(Route(shop, tmp_path, spark, source=wire.url(shop.url)))
    route.insert(1, 2)
    assert route.sync().status is Status.COMPLETED
    said = 30
    refused = completed = 0
    while True:
        wire.cut_after = said
        before = wire.cuts
        try:
            assert route.sync().status is Status.SKIPPED
            completed += 1
        except (ConnectError, TransientError) as error:
            assert error.message
            refused += 1
        wire.cut_after = None
        if wire.cuts == before:
            break  # it said all there is to say
        said = said * 3 // 2
    assert completed > 2, refused
    route.insert(3)
    assert route.sync().status is Status.COMPLETED
    route.check()


def test_source_server_stopped_and_started(restless: Postgres, tmp_path: Path, spark: SparkSession) -> None:
    with PostgresShop(restless.url()) as shop:
        route = appending(Route(shop, tmp_path, spark))
        route.insert(1, 2)
    restless.halt()
    with pytest.raises(ConnectError) as caught:
        route.sync()
    assert "Check that the server runs" in caught.value.remedy
    restless.launch()

    down, up = at("Intended", restless.halt), at("Retrying", restless.launch)

    def listener(event: Event) -> None:
        down(event)
        up(event)

    outcome = route.sync(listener)
    assert outcome.status is Status.COMPLETED, outcome.error
    assert "Retrying" in route.events
    route.shop = PostgresShop(restless.url())
    route.check()
    route.shop.__exit__()


# the state


@pytest.mark.parametrize("database", SHOPS)
def test_state_cut_at_every_event_is_connected_again(
    request: pytest.FixtureRequest, postgres_shop: Shop, database: str, tmp_path: Path, spark: SparkSession
) -> None:
    url = request.getfixturevalue(SHOPS[database][1])
    with Wire.to(url) as wire:
        route = Route(postgres_shop, tmp_path, spark, state=wire.url(url))
        route.insert(*range(1, 5))
        route.insert(*range(5, 8))
        outcome = route.sync(lambda _: wire.cut())
        assert outcome.status is Status.COMPLETED, outcome.error
        assert outcome.batches == 2 and wire.cuts == len(route.events)
        route.check()


def test_state_server_down_and_back(
    postgres_shop: Shop, restless: Postgres, tmp_path: Path, spark: SparkSession
) -> None:
    """Down before a run; then between a batch and its commit, where the next run finds the batch and adopts it."""
    route = appending(Route(postgres_shop, tmp_path, spark, state=restless.url()))
    route.insert(1, 2)
    assert route.sync().status is Status.COMPLETED
    route.insert(3)
    restless.halt()
    with pytest.raises(ConnectError, match="state") as caught:
        route.sync()
    assert "that the server is up" in caught.value.remedy
    restless.launch()

    assert "the state" in str(failing(route, at("BatchApplied", restless.halt)))
    restless.launch()
    route.expire_leases()
    route.insert(4)
    assert route.sync().status is Status.COMPLETED
    assert "Adopted" in route.events
    assert route.sync().status is Status.COMPLETED
    route.check()


# disks


@contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[Callable[[int], None]]:
    """A file system of this size, and a way to leave so many pages of it free."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=777", "strandline-test", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only root may mount a small disk")

    def leave(pages: int) -> None:
        ballast = folder / "ballast"
        ballast.unlink(missing_ok=True)
        free = int(subprocess.check_output(["df", "--output=avail", "-B1", str(folder)]).split()[-1])
        ballast.write_bytes(bytes(max(0, free - pages * 4096)))

    try:
        yield leave
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_disk_of_the_target_full(postgres_shop: Shop, tmp_path: Path, spark: SparkSession) -> None:
    """With ever more pages left: the rows do not fit, then the commit does not, until both do."""
    route = appending(Route(postgres_shop, tmp_path, spark))
    with small_disk(tmp_path / "disk", 4) as leave:
        route.lake = tmp_path / "disk" / "lake"
        route.insert(1, 2)
        assert route.sync().status is Status.COMPLETED
        before = route.target()
        route.insert(*range(3, 400), note=secrets.token_hex(10))
        failures = 0
        for pages in (0, 1, 2, 3, 4, 5, 6, 8, 12, 100):
            leave(pages)
            outcome = route.sync()
            if outcome.status is Status.COMPLETED:
                break
            failures += 1
            assert isinstance(outcome.error, TargetError), (pages, outcome.error)
            assert "the disk is full" in str(outcome.error) and "Free some space" in outcome.error.remedy
            assert route.target() == before
        assert failures >= 3 and outcome.status is Status.COMPLETED
        route.check()


def test_disk_of_the_state_full(postgres_shop: Shop, tmp_path: Path, spark: SparkSession) -> None:
    route = appending(Route(postgres_shop, tmp_path, spark))
    with small_disk(tmp_path / "disk", 2) as leave:
        route.state = f"sqlite:///{tmp_path}/disk/state.db"
        route.insert(1, 2)
        assert route.sync().status is Status.COMPLETED
        route.insert(3)
        leave(0)
        with pytest.raises(StateError, match="the disk is full") as caught:
            route.sync()
        assert "Free some space" in caught.value.remedy
        leave(400)
        error = failing(route, at("BatchApplied", lambda: leave(0)))
        assert isinstance(error, StateError) and "the disk is full" in str(error)
        leave(400)
        route.expire_leases()
        assert route.sync().status is Status.COMPLETED
        assert "Adopted" in route.events
        route.check()


# the target


def test_target_away_and_back(postgres_shop: Shop, tmp_path: Path, spark: SparkSession) -> None:
    """As if its disk were not mounted: nothing is begun anew there; nor is anything where a file stands."""
    route = appending(Route(postgres_shop, tmp_path, spark))
    route.insert(1, 2)
    assert route.sync().status is Status.COMPLETED
    route.insert(3)
    aside = tmp_path / "aside"

    route.lake.rename(aside)
    route.lake.mkdir()
    outcome = route.sync()
    assert isinstance(outcome.error, TargetError) and "lost its batches" in str(outcome.error)
    assert list(route.lake.iterdir()) == []

    route.lake.rmdir()
    route.lake.write_text("not a folder")
    outcome = route.sync()
    assert isinstance(outcome.error, TargetError), outcome.error
    assert route.lake.read_text() == "not a folder"

    route.lake.unlink()
    aside.rename(route.lake)
    assert route.sync().status is Status.COMPLETED
    route.check()

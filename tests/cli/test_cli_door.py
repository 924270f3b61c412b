"""sync where a service of the same config runs: the service makes the run, and the command shows it as its own."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from shop import Shop, open_shop

from strandline.cli.progress import describe
from strandline.core.errors import SetupError, TargetError
from strandline.service.door import Door
from strandline.service.service import Service


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shop:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache" / ("long" * 30)))  # longer than a socket's name may be
    return open_shop(tmp_path, monkeypatch, capsys)


@pytest.fixture
def service(shop: Shop) -> Iterator[Service]:
    service = Service(shop.project(), words=describe)
    thread = threading.Thread(target=service.run)
    with Door(service):
        thread.start()
        yield service
        service.stop()
        thread.join()


def lines(said: str) -> list[str]:
    """Without times and names of runs."""
    return [re.sub(r"\d{8}-\d{6}-\S+|\S+Z |in \d\S* m?s|\d+:\d+\S*", "", line) for line in said.splitlines()]


def test_it_shows_what_it_shows_when_the_run_is_its_own(shop: Shop, service: Service) -> None:
    shop.write("orders", 1, 2)
    handed = shop.run("sync", "-p", "shop")
    (job,) = service.jobs()
    assert (job.job.trigger, job.status, job.run_id in handed.err) == ("cli", "done", True)
    assert len(shop.sink.rows("orders")) == 2
    service.project.config.path.write_text(shop.config.read_text().replace("slice_rows: 4", "slice_rows: 5"))
    shop.write("orders", 3, 4)
    own = shop.run("sync", "-p", "shop")
    assert "note: shop: the service of this config does not make this run" in own.err
    assert (handed.code, own.code) == (0, 0)
    # The first was a first load, so its windows begin elsewhere.
    words = [line.split(" ")[:3] for line in lines(handed.err)]
    assert words == [line.split(" ")[:3] for line in lines(own.err) if "does not make" not in line]


def burn() -> None:
    raise TargetError("disk on fire", remedy="Put it out.")


def test_its_json_and_exit_code_are_those_of_the_run(shop: Shop, service: Service) -> None:
    shop.write("orders", 1)
    shop.sink.at_commit(before=burn)
    said = shop.run("sync", "-p", "shop", "-t", "orders", "--json")
    assert (said.code, said.json["status"]) == (1, "FAILED")
    assert "disk on fire" in said.json["tables"][0]["error"] and "Put it out." in said.err
    again = shop.run("sync", "-p", "shop", "-t", "orders", "--json")
    assert (again.code, again.json["status"], again.json["tables"][0]["rows_inserted"]) == (0, "COMPLETED", 1)
    assert [job.status for job in service.jobs()] == ["done", "failed"]


def test_what_a_service_does_not_do_is_done_here(shop: Shop, service: Service) -> None:
    shop.write("orders", 1, 2)
    for words in (["--limit", "1"], ["--full", "--yes"], ["--job-id", "7"]):
        assert shop.run("sync", "-p", "shop", *words).code == 0
    assert service.jobs() == []


def test_a_door_that_a_killed_service_left_leads_nowhere(shop: Shop) -> None:
    service = Service(shop.project(), words=describe)
    door = Door(service)
    assert door._listening is not None
    door._close(door._listening)
    assert door._path.exists()
    shop.write("orders", 1)
    assert shop.run("sync", "-p", "shop").code == 0
    assert (len(shop.sink.rows("orders")), service.jobs()) == (1, [])
    os.close(door._turn)
    with Door(service) as another:
        assert another._listening is not None
        assert shop.run("sync", "-p", "shop").code == 0
    assert [job.status for job in service.jobs()] == ["done"]
    assert list(door._path.parent.iterdir()) == []
    service.close()


def test_of_two_services_the_first_has_the_door(shop: Shop, service: Service) -> None:
    other = Service(shop.project(), words=describe)
    with Door(other):
        assert shop.run("sync", "-p", "shop").code == 0
    assert (len(service.jobs()), other.jobs()) == (1, [])
    assert shop.run("sync", "-p", "shop").code == 0
    assert len(service.jobs()) == 2, "it is open still"
    other.close()


def test_a_door_that_others_can_open_is_not_gone_through(shop: Shop, service: Service) -> None:
    place = Path(os.environ["XDG_CACHE_HOME"]) / "strandline" / "serve"
    assert place.stat().st_mode & 0o777 == 0o700
    place.chmod(0o755)
    said = shop.run("sync", "-p", "shop")
    assert (said.code, "not yours alone" in said.err) == (SetupError.exit_code, True)
    assert service.jobs() == []

"""A state shared by real processes: nothing is lost, whoever makes the store, writes at once or dies on the way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from urllib.parse import urlencode

import pytest

from strandline.core.protocols import State
from strandline.endpoint import Endpoint
from strandline.state import open_state
from strandline.testing.state import position
from strandline.testing.stores import Seaweed

PROCESSES = 4
ROUNDS = 25

_OPEN = """
import sys
from dataclasses import replace
from strandline.core.errors import ConflictError
from strandline.endpoint import Endpoint
from strandline.state import open_state
from strandline.testing.state import position
print("ready", flush=True)
sys.stdin.readline()
state = open_state(Endpoint.parse(sys.argv[1]))
"""
_IDENTITY = _OPEN + "print(state.identity())"
_INCREMENT = (
    _OPEN
    + """
done = 0
while done < int(sys.argv[2]):
    found = state.read("position") or [position("orders", rows_read=0)]
    try:
        state.put([replace(record, fields={"rows_read": record.fields["rows_read"] + 1}) for record in found])
        done += 1
    except ConflictError:
        pass
print(done)
"""
)
_FOREVER = (
    _OPEN
    + """
records = state.read("position")
print("writing", flush=True)
while True:
    records = state.put([replace(record, fields={"epoch": record.revision}) for record in records])
"""
)


def start(script: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def at_once(script: str, *arguments: str) -> list[str]:
    """What each process says when all were let go at the same moment."""
    started = [start(script, *arguments) for _ in range(PROCESSES)]
    try:
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in started:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        said = [process.communicate(timeout=600)[0].strip() for process in started]
        assert [process.returncode for process in started] == [0] * PROCESSES
        return said
    finally:
        for process in started:
            process.kill()
            process.communicate()


@pytest.fixture(params=["sqlite", "postgresql", "mysql", "directory", "s3", "delta", "delta on s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Of documents, one that holds all tables: then a put of all is one object."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/state.db"
    if request.param == "delta":
        return f"delta:{tmp_path}/state"
    if request.param == "directory":
        return f"file://{tmp_path}/state?layout=pipeline"
    if "s3" in request.param:
        seaweed: Seaweed = request.getfixturevalue("seaweed")
        endpoint = seaweed.endpoint("processes", uuid.uuid4().hex)
        if request.param == "s3":
            return f"{endpoint}?{urlencode({**endpoint.options, 'layout': 'pipeline'})}"
        for name, value in endpoint.options.items():
            monkeypatch.setenv({"endpoint": "AWS_ENDPOINT_URL"}.get(name, f"AWS_{name.upper()}"), value)
        return f"delta:{endpoint}"
    found: str = request.getfixturevalue({"postgresql": "pg_database", "mysql": "mariadb_database"}[request.param])
    return found


def reopened(url: str) -> State:
    return open_state(Endpoint.parse(url))


def test_processes_that_make_the_store_at_once_make_one(url: str) -> None:
    said = at_once(_IDENTITY, url)
    state = reopened(url)
    assert set(said) == {state.identity()}
    state.close()


def test_increments_of_many_processes_are_never_lost(url: str) -> None:
    """In Delta each is a commit of some 20 ms, so there are fewer; STRANDLINE_SOAK=1 makes it 1,000, as
    benchmarks/delta_state.py does. Every 20 of them the table is rewritten while the others go on."""
    few = 250 if os.environ.get("STRANDLINE_SOAK") else 10
    rounds = 5 if url.startswith("delta:s3:") else few if url.startswith("delta:") else ROUNDS
    assert at_once(_INCREMENT, url, str(rounds)) == [str(rounds)] * PROCESSES
    state = reopened(url)
    (record,) = state.read("position")
    assert record.fields["rows_read"] == record.revision == PROCESSES * rounds
    state.close()


def test_a_writer_killed_at_any_moment_leaves_all_or_none_of_a_put(url: str) -> None:
    state = reopened(url)
    state.put([position(f"t{number}") for number in range(50)])
    writer = start(_FOREVER, url)
    assert writer.stdout is not None and writer.stdin is not None
    writer.stdin.write("go\n")
    writer.stdin.flush()
    while writer.stdout.readline() != "writing\n":
        assert writer.poll() is None
    while state.read("position", newest=1)[0].revision < 5:
        assert writer.poll() is None
    writer.send_signal(signal.SIGKILL)
    writer.communicate()
    records = state.read("position")
    assert len({record.revision for record in records}) == 1
    assert {record.fields["epoch"] for record in records} == {records[0].revision - 1}
    state.close()

"""A dead process holds no lease; whatever is not certain counts as alive."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from strandline.core.books import Books, Lease
from strandline.core.errors import LeaseError
from strandline.core.process import gone, this_process
from strandline.state.memory import MemoryState

NAMED = "from strandline.core.process import this_process; print(this_process(), flush=True); input()"


@pytest.fixture
def child() -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", NAMED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_a_killed_process_is_gone_and_a_living_one_is_not(child: subprocess.Popen[str]) -> None:
    assert child.stdout is not None
    name = child.stdout.readline().strip()
    assert name.startswith(this_process().split(" pid ")[0])
    assert not gone(name)
    child.kill()
    child.communicate()
    assert gone(name)


def test_this_process_is_alive() -> None:
    assert not gone(this_process())


@pytest.mark.parametrize(
    "name",
    [
        "",
        "ann",
        "ann@elsewhere pid 999999999",
        f"ann@{socket.gethostname()} pid 999999999 in pid:[17]",
        f"root@{socket.gethostname()} pid 1{this_process().partition(f'pid {os.getpid()}')[2]}",
    ],
)
def test_what_is_elsewhere_unknown_or_somebody_elses_counts_as_alive(name: str) -> None:
    assert not gone(name)


def test_the_lease_of_a_killed_process_can_be_taken_at_once(child: subprocess.Popen[str]) -> None:
    assert child.stdout is not None
    name = child.stdout.readline().strip()
    books = Books(MemoryState())
    lease = replace(books.take(Lease("shop", "orders"), "r1"), holder=name)
    with pytest.raises(LeaseError, match="another run is at work"):
        books.take(lease, "r2")
    child.kill()
    child.communicate()
    assert lease.expires_at > datetime.now(UTC).isoformat()
    assert books.take(lease, "r2").token == lease.token + 1

"""Modules of the next stage come while this one waits, and only then."""

from __future__ import annotations

import sys
import threading
import time
from itertools import count
from pathlib import Path

import pytest

from strandline import ahead
from strandline.endpoint import Endpoint

TARGETS = [Endpoint.parse("postgresql://db/shop")]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "a_driver.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(ahead, "_MODULES", {"postgresql": ("no_such_driver", "a_driver")})
    monkeypatch.delitem(sys.modules, "a_driver", raising=False)
    return "a_driver"


def test_it_is_there_when_the_wait_ends_and_what_is_missing_is_told_by_nobody(module: str) -> None:
    with ahead.imported_ahead(TARGETS):
        deadline = time.monotonic() + 10
        while module not in sys.modules and time.monotonic() < deadline:
            time.sleep(0.05)
    assert module in sys.modules


def test_nothing_is_imported_while_this_process_works(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    worked = count()
    monkeypatch.setattr("strandline.ahead.time.process_time", lambda: next(worked))
    with ahead.imported_ahead(TARGETS):
        time.sleep(0.2)
    assert module not in sys.modules
    assert next(worked) > 2, "it looked"


@pytest.mark.usefixtures("module")
def test_a_stage_that_fails_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    worked = count()
    monkeypatch.setattr("strandline.ahead.time.process_time", lambda: next(worked))
    with pytest.raises(ValueError, match="the stage"), ahead.imported_ahead(TARGETS):
        raise ValueError("the stage")
    assert "ahead" not in [thread.name for thread in threading.enumerate()]

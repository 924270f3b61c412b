"""Whatever is sent, the API answers as its description says, and never with a 5xx."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from web_shop import Shop

from strandline.web.app import make_app
from strandline.web.security import Security

pytest_plugins = ("web_fixtures",)

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
KNOWN = {"pipeline": ["shop", "counted"], "table": ["orders", "items"], "run_id": ["last"], "job_id": ["1"]}
MODES = list(schemathesis.GenerationMode)


@pytest.fixture(scope="module")
def api(steady: Shop) -> Iterator[Any]:
    """Jobs that are asked for are queued and do not run before the end: what is fuzzed is the API."""
    steady.desk.gate.clear()
    app = make_app(steady.desk, Security())
    yield schemathesis.openapi.from_asgi("/api/v1/openapi.json", app, headers={"Host": "127.0.0.1"})


def test_no_request_breaks_the_api(api: Any) -> None:
    """Each operation with requests that fit its description and such that do not; every other time with names that
    exist, so that what lies behind them is reached."""
    seen = 0
    for found in api.get_all_operations():
        operation = found.ok()
        if operation.path.endswith("/stream"):
            continue  # it never ends
        takes = operation.path_parameters or operation.query or operation.body
        for mode in MODES if takes else MODES[:1]:  # what takes nothing cannot be asked wrongly
            seen += _attack(operation.as_strategy(generation_mode=mode))
    assert seen > 120


def _attack(strategy: Any) -> int:
    tried = 0

    @settings(max_examples=6, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def attempt(data: Any) -> None:
        nonlocal tried
        case = data.draw(strategy)
        if data.draw(st.booleans()):
            names = case.path_parameters or {}
            case.path_parameters = {name: data.draw(st.sampled_from(KNOWN[name])) for name in names}
        case.call_and_validate(headers={"Host": "127.0.0.1"}, checks=CHECKS)
        tried += 1

    attempt()
    return tried

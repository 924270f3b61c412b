"""The stage on a directory and on SeaweedFS."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from strandline.endpoint import Endpoint
from strandline.testing.stage import StageContract
from strandline.testing.stores import Seaweed


class TestDirectory(StageContract):
    @pytest.fixture
    def endpoint(self, tmp_path: Path) -> Endpoint:
        return Endpoint.parse(str(tmp_path / "stage"))


class TestSeaweed(StageContract):
    @pytest.fixture
    def endpoint(self, seaweed: Seaweed) -> Endpoint:
        return seaweed.endpoint("stage", uuid.uuid4().hex)

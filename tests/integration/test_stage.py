"""The stage on a directory, on SeaweedFS and on Moto."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from strandline.core.errors import ConfigError
from strandline.endpoint import Endpoint
from strandline.stage.sink import StageSink
from strandline.testing.stage import LedgerContract, StageContract
from strandline.testing.stores import Moto, Seaweed


class InDirectory:
    @pytest.fixture
    def endpoint(self, tmp_path: Path) -> Endpoint:
        return Endpoint.parse(str(tmp_path / "stage"))


class OnSeaweed:
    @pytest.fixture
    def endpoint(self, seaweed: Seaweed) -> Endpoint:
        return seaweed.endpoint("stage", uuid.uuid4().hex)


class TestLedgerInDirectory(InDirectory, LedgerContract):
    pass


class TestLedgerOnSeaweed(OnSeaweed, LedgerContract):
    pass


class TestLedgerOnMoto(LedgerContract):
    @pytest.fixture
    def endpoint(self, moto: Moto) -> Endpoint:
        return moto.endpoint("stage", uuid.uuid4().hex)


class TestStageInDirectory(InDirectory, StageContract):
    pass


class TestStageOnSeaweed(OnSeaweed, StageContract):
    pass


@pytest.mark.parametrize("size", ["0", "-1", "1.5", "big"])
def test_a_file_size_that_is_none_is_refused(tmp_path: Path, size: str) -> None:
    with pytest.raises(ConfigError, match="file_mb"):
        StageSink(Endpoint.parse(str(tmp_path), {"file_mb": size}), lambda: pytest.fail("no Spark is needed"))


def test_an_option_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match='no option "flie_mb"'):
        StageSink(Endpoint.parse(str(tmp_path), {"flie_mb": "1"}), lambda: pytest.fail("no Spark is needed"))

"""The stage on a directory, on SeaweedFS and on Moto."""

from __future__ import annotations

import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from strandline.core.errors import ConfigError
from strandline.endpoint import Endpoint
from strandline.objects import Objects, open_objects
from strandline.stage.ledger import Ledger
from strandline.stage.sink import StageSink
from strandline.testing.sink import batch
from strandline.testing.stage import LAYOUT, LedgerContract, StageContract, staged
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


def test_a_look_asks_as_much_with_two_hundred_batches_behind_it_as_with_five(tmp_path: Path) -> None:
    objects, asked = open_objects(Endpoint.parse(str(tmp_path))), []

    class Counted:
        """Everything that is asked, and every key that a listing answers with."""

        def __getattr__(self, name: str) -> Any:
            def call(*given: Any, **options: Any) -> Any:
                answer = getattr(objects, name)(*given, **options)
                answer = list(answer) if name == "list" else answer
                asked.extend([name, *(["key"] * len(answer) if name == "list" else [])])
                return answer

            return call

    def look() -> tuple[int, list[str]]:
        asked.clear()
        last = Ledger(cast("Objects", Counted()), LAYOUT).last()
        assert last is not None
        return last.number, list(asked)

    for number in range(1, 6):
        staged(objects, replace(batch(1), number=number))
    few = look()
    for number in range(6, 201):
        staged(objects, replace(batch(1), number=number))
    assert look() == (200, few[1])

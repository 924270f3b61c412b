"""A sync on a standalone cluster whose executors are killed under it: nothing is lost, nothing comes twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from gate import GatedShop, until

from strandline.testing.cluster import Cluster


@pytest.fixture
def shop(pg_database: str, tmp_path: Path, cluster: Cluster) -> Iterator[GatedShop]:
    shop = GatedShop(pg_database, tmp_path, mode="append")
    shop.top = {"spark": cluster.settings(), "state": f"sqlite:///{tmp_path}/state.db"}
    yield shop
    shop.close()


def test_executors_killed_in_the_middle_of_a_batch_cost_nothing_but_time(shop: GatedShop, cluster: Cluster) -> None:
    """In append mode a row that came twice would stand there twice."""
    shop.insert(*range(1, 101))
    with shop.syncing() as child:  # its task waits inside an executor
        until(lambda: len(cluster.executors()) == 2)
        killed = cluster.kill_executors()
        shop.release()
        assert child.wait(300) == 0, shop.told()
    assert shop.target_ids() == list(range(1, 101))
    assert not set(killed) & set(cluster.executors())
    with shop.load() as project:
        runs = [(run.fields["status"], run.fields["rows_inserted"]) for run in project.books.state.read("run")]
    assert runs == [("COMPLETED", 100)]

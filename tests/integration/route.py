"""One table from any database to a lake or another database, through a stage or not, with its state anywhere: what
tests of kills and failures speak of.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from deltalake import DeltaTable, QueryBuilder
from test_sql_types import asked

import strandline
from strandline.core.batch import Batch
from strandline.core.events import Event, Listener
from strandline.core.run import Outcome
from strandline.project import Project
from strandline.stage.layout import Layout
from strandline.stage.ledger import Ledger
from strandline.stage.source import StageSource
from strandline.testing.shops import MariadbShop, PostgresShop
from strandline.testing.source import Shop

SHOPS: dict[str, tuple[type[Shop], str]] = {
    "postgres": (PostgresShop, "pg_database"),
    "mariadb": (MariadbShop, "mariadb_database"),
}


def open_shop(request: pytest.FixtureRequest, database: str) -> Shop:
    """A shop in a database of this test's own; its table is made where the caller enters it."""
    kind, fixture = SHOPS[database]
    return kind(request.getfixturevalue(fixture))


def state_url(request: pytest.FixtureRequest, database: str) -> str | None:
    """Where the state is to be kept; None: in the file that is the default."""
    url: str | None = None if database == "sqlite" else request.getfixturevalue(SHOPS[database][1])
    return url


class Route:
    def __init__(
        self,
        shop: Shop,
        folder: Path,
        spark: Any = None,
        *,
        source: str | None = None,
        state: Any = None,
        stage: Any = None,
        into: str | None = None,
    ) -> None:
        """`source`: another way to the shop's database, a relay for one. `into`: a database instead of a lake, where
        the table is called `copied`; it may be the shop's own."""
        self.shop, self.folder, self.spark = shop, folder, spark
        self.lake, self.stage, self.into = folder / "lake", stage, into
        self.target_url = into  # or another way there
        self.pipeline: dict[str, Any] = {"source": source or shop.url, "guard": "0s", "parallel": 1}
        self.table: dict[str, Any] = {"name": "orders", "cursor": "at", "zone": "UTC", "slice_rows": 4}
        self.table |= {"target": "copied"} if into else {}
        self.state = state
        self.events: list[str] = []

    @property
    def config(self) -> Path:
        path = self.folder / "strandline.yml"
        pipeline = {**self.pipeline, "target": self.target_url or f"delta:{self.lake}", "tables": [self.table]}
        pipeline |= {"stage": self.stage} if self.stage else {}
        config = {"pipelines": {"shop": pipeline}, **({"state": self.state} if self.state else {})}
        path.write_text(yaml.safe_dump(config))
        return path

    def load(self) -> Project:
        return strandline.load(self.config)

    def insert(self, *numbers: int, note: str = "new") -> None:
        rows = ", ".join(f"({number}, '{note}')" for number in numbers)
        self.shop.execute(f"INSERT INTO orders (id, note) VALUES {rows}")

    def update(self, number: int, note: str) -> None:
        self.shop.execute(f"UPDATE orders SET note = '{note}', at = CURRENT_TIMESTAMP(6) WHERE id = {number}")

    def sync(self, listener: Listener | None = None) -> Outcome:
        """The outcome of the only table; `events` are those of this run, by name."""
        (outcome,) = self.stages(listener)
        return outcome

    def stages(self, listener: Listener | None = None) -> tuple[Outcome, ...]:
        """The outcomes of the only table in each stage."""
        self.events = []

        def listen(event: Event) -> None:
            self.events.append(type(event).__name__)
            if listener is not None:
                listener(event)

        with self.load() as project:
            return project.sync("shop", spark=self.spark, listener=listen).tables

    def expire_leases(self) -> None:
        """What a minute's wait does, where the process that could not give its lease back is this one."""
        with self.load() as project:
            state = project.books.state
            leases = state.read("lease")
            state.put([replace(lease, fields={**lease.fields, "expires_at": ""}) for lease in leases])

    # what must be true

    def check(self) -> None:
        """The target equals the source; no batch was applied twice, and none is missing."""
        assert self.target() == self.source()
        orders = [batch.order for batch in self.batches()]
        assert orders == [(1, number) for number in range(1, len(orders) + 1)]
        with self.load() as project:
            runs, positions = project.books.state.read("table_run"), project.books.positions()
        for (_, _, stage), position in positions.items():  # what runs say they did is what was done
            counted = sum(int(run.fields["batches"] or 0) for run in runs if run.key[2] == stage)
            assert position.batch is not None and position.batch.number == counted

    def source(self) -> Counter[tuple[int, str]]:
        return Counter((int(number), note) for number, note in self.shop.execute("SELECT id, note FROM orders"))

    def target(self) -> Counter[tuple[int, str]]:
        """With how often each row is there."""
        if self.into:
            return Counter((int(number), note) for number, note in asked(self.into)("SELECT id, note FROM copied"))
        rows = QueryBuilder().register("t", self._delta()).execute("SELECT id, note FROM t").read_all()
        return Counter(zip(rows["id"].to_pylist(), rows["note"].to_pylist(), strict=True))

    def batches(self) -> list[Batch]:
        """Every batch that the stage holds, or else the target's log, oldest first. The ledger of a database has only
        the last one."""
        if self.stage:
            with self.load() as project, project.opened("shop", "load") as opened:
                assert isinstance(opened.source, StageSource)
                staged = Ledger(opened.source.objects, Layout("shop", "orders")).between(1, 1 << 40)
            return [manifest.batch for manifest in staged]
        if self.into:
            return []
        notes = [commit["userMetadata"] for commit in self._delta().history() if "userMetadata" in commit]
        return [Batch.from_json(json.dumps(json.loads(note)["strandline"])) for note in reversed(notes)]

    def _delta(self) -> DeltaTable:
        return DeltaTable(str(self.lake / "orders"))

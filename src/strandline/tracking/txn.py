"""What makes a caller's own write into a Delta table happen once, however often the run is repeated."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CONF = "spark.databricks.delta.write."


@dataclass(frozen=True)
class Txn:
    """Delta skips, silently, a write under an application's name whose version the table holds already."""

    app_id: str
    version: int

    @property
    def options(self) -> dict[str, str]:
        """For `DataFrame.write.options(**…)`."""
        return {"txnAppId": self.app_id, "txnVersion": str(self.version)}

    @property
    def confs(self) -> dict[str, str]:
        """For what is no DataFrame write, a MERGE for one. Set beyond that one statement, they drop later writes."""
        return {f"{_CONF}{name}": value for name, value in self.options.items()}

    @contextmanager
    def on(self, spark: SparkSession) -> Iterator[SparkSession]:
        """The session with the confs set, for one statement; afterwards they are as they were."""
        before = {name: spark.conf.get(name, None) for name in self.confs}
        for name, value in self.confs.items():
            spark.conf.set(name, value)
        try:
            yield spark
        finally:
            for name, theirs in before.items():
                if theirs is None:
                    spark.conf.unset(name)
                else:
                    spark.conf.set(name, theirs)

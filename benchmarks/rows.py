"""Whether a copy holds the rows its source does: how many, how many keys, the sum of amounts, the length of texts.

Touching a row adds to its amount, so of rows that were appended again and again the largest amount is the newest.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

from strandline.testing.servers import Postgres, Server

Sums = tuple[int, float, int]
"""Rows, their amounts, the characters of their notes."""


def sums(server: Server, database: str, table: str) -> Sums:
    query = f"SELECT count(*), sum(amount), sum(char_length(note)) FROM {table}"
    if isinstance(server, Postgres):
        with server.connect(database) as connection:
            row = connection.execute(query).fetchone()
    else:
        with server.connect(database) as other, other.cursor() as cursor:
            cursor.execute(query)
            row = cursor.fetchone()
    assert row is not None
    return int(row[0]), float(row[1] or 0), int(row[2] or 0)


class Copy(ABC):
    @abstractmethod
    def sums(self) -> Sums: ...

    def differs(self, wanted: Sums) -> str:
        """What is wrong with it, or nothing."""
        found = self.sums()
        if found[0] != wanted[0]:
            return f"{found[0] - wanted[0]:+,} rows"
        if abs(found[1] - wanted[1]) > 0.5 or found[2] != wanted[2]:
            return "values differ"
        return ""


@dataclass
class SqlCopy(Copy):
    server: Server
    database: str
    table: str

    def sums(self) -> Sums:
        return sums(self.server, self.database, self.table)


@dataclass
class DeltaCopy(Copy):
    folder: Path

    def sums(self) -> Sums:
        from deltalake import DeltaTable, QueryBuilder

        query = "SELECT count(*) n, sum(cast(amount AS double)) a, sum(char_length(note)) c FROM t"
        answer = QueryBuilder().register("t", DeltaTable(str(self.folder))).execute(query).read_all()
        row = [answer.column(name)[0].as_py() for name in ("n", "a", "c")]
        return int(row[0]), float(row[1] or 0), int(row[2] or 0)


@dataclass
class FilesCopy(Copy):
    """Parquet files to which changed rows are added: of each key the newest counts."""

    folder: Path

    def sums(self) -> Sums:
        import pyarrow.compute as pc
        import pyarrow.dataset as ds

        table = ds.dataset(self.folder, format="parquet").to_table(
            columns={
                "id": ds.field("id"),
                "amount": ds.field("amount").cast("double"),
                "length": pc.utf8_length(ds.field("note")),
            }
        )
        newest = table.group_by("id").aggregate([("amount", "max"), ("length", "max")])
        return newest.num_rows, float(pc.sum(newest["amount_max"]).as_py()), int(pc.sum(newest["length_max"]).as_py())

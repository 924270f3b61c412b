"""Where a stage keeps what: the names of a table's objects, relative to the endpoint.

    PIPELINE/TABLE/batches/EPOCH-NUMBER.json    a manifest: the batch exists when this does
    PIPELINE/TABLE/fences/EPOCH.json            from which number on only this epoch counts
    PIPELINE/TABLE/data/NUMBER-ATTEMPT/…        Parquet files of one attempt at one batch
    PIPELINE/TABLE/head.json                    a hint where the last manifest is
    PIPELINE/TABLE/floor.json                   below which number the data were cleaned away

Numbers are padded, so that names sort as numbers do.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import unquote

_PLAIN = re.compile(r"[^A-Za-z0-9._-]|^[._]")
_MANIFEST = re.compile(r"batches/(\d{6,})-(\d{12,})\.json")
_FENCE = re.compile(r"fences/(\d{6,})\.json")
_DATA = re.compile(r"data/(\d{12,})-[^/]+/[^/]+")


def folder_name(name: str) -> str:
    """A pipeline's or table's name with what not every store takes as `=XX`; no two names become one."""
    return _PLAIN.sub(lambda found: "".join(f"={byte:02X}" for byte in found[0].encode()), name)


def plain_name(folder: str) -> str:
    """The name that `folder_name` made this of."""
    return unquote(folder.replace("=", "%"))


@dataclass(frozen=True)
class Layout:
    """The names of one table's objects."""

    pipeline: str
    table: str

    @property
    def folder(self) -> str:
        return f"{folder_name(self.pipeline)}/{folder_name(self.table)}"

    @property
    def batches(self) -> str:
        return f"{self.folder}/batches"

    @property
    def fences(self) -> str:
        return f"{self.folder}/fences"

    @property
    def data(self) -> str:
        return f"{self.folder}/data"

    @property
    def head(self) -> str:
        return f"{self.folder}/head.json"

    @property
    def floor(self) -> str:
        return f"{self.folder}/floor.json"

    def manifest(self, epoch: int, number: int) -> str:
        return f"{self.batches}/{epoch:06d}-{number:012d}.json"

    def fence(self, epoch: int) -> str:
        return f"{self.fences}/{epoch:06d}.json"

    def attempt(self, number: int, attempt: str) -> str:
        """The folder of one attempt's files."""
        return f"{self.data}/{number:012d}-{folder_name(attempt)}"

    def manifest_order(self, key: str) -> tuple[int, int] | None:
        """Epoch and number of a manifest's key; None for what is none."""
        found = _MANIFEST.fullmatch(key.removeprefix(f"{self.folder}/"))
        return (int(found[1]), int(found[2])) if found else None

    def fence_epoch(self, key: str) -> int | None:
        found = _FENCE.fullmatch(key.removeprefix(f"{self.folder}/"))
        return int(found[1]) if found else None

    def data_number(self, key: str) -> int | None:
        """Which batch a data file was written for."""
        found = _DATA.match(key.removeprefix(f"{self.folder}/"))
        return int(found[1]) if found else None

"""The files of staged batches, for a target whose own database loads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from strandline.core.errors import SourceError
from strandline.objects import Objects
from strandline.stage.manifest import DataFile


@dataclass(frozen=True)
class StagedFiles:
    """Files under one table's folder. What is put beside them goes when they are cleaned away."""

    objects: Objects
    folder: str
    files: Sequence[DataFile]
    schema: str

    @property
    def sizes(self) -> Mapping[str, int]:
        return {self._address(self._key(file.path)): file.bytes for file in self.files}

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    def get(self, address: str) -> bytes:
        data = self.objects.get(self._keys[address])
        if data is None:
            raise SourceError(f"the stage is damaged: {address} is missing")
        return data

    def put(self, name: str, data: bytes) -> str:
        key = f"{self._key(self.files[0].path).rpartition('/')[0]}/{name}"
        self.objects.replace(key, data)
        return self._address(key)

    @cached_property
    def _keys(self) -> dict[str, str]:
        keys = [self._key(file.path) for file in self.files]
        return {self._address(key): key for key in keys}

    def _key(self, path: str) -> str:
        return f"{self.folder}/{path}"

    def _address(self, key: str) -> str:
        """As everybody but Hadoop writes it."""
        url = self.objects.url(key)
        return f"s3:{url.removeprefix('s3a:')}" if url.startswith("s3a:") else url

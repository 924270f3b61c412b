"""Where Delta tables lie: folders below an address, or the locations a catalog names. Owns names and addresses only.

`orders` is the folder `orders`, `shop.orders` the folder `shop/orders`, as targets are laid out. A catalog's names are
resolved by Spark, since only a session knows the catalog.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Protocol

from strandline.core.errors import ConfigError, SourceError
from strandline.core.protocols import Spark
from strandline.endpoint import Endpoint
from strandline.objects import Objects, open_objects
from strandline.sources.names import OWN
from strandline.spark.storage import delta_options, spark_path
from strandline.spark.text import literal, quoted

_WILD = "*?["


class MissingError(SourceError):
    """There is no Delta table at a place."""


@dataclass(frozen=True)
class Place:
    """One table's folder, as delta-rs, `objects` and Spark reach it."""

    uri: str
    objects: Objects
    folder: str  # below the objects' own address
    options: Mapping[str, str] = field(hash=False, repr=False)
    name: str = ""  # in a catalog, quoted; empty: by its path

    @property
    def path(self) -> str:
        """As Spark takes it."""
        return spark_path(self.uri)

    def key(self, path: str) -> str:
        return f"{self.folder}/{path}" if self.folder else path


class Places(Protocol):
    identity: str

    def place(self, name: str) -> Place:
        """Where a table of this name lies, if there is one. SourceError: it is no name, or the catalog has none."""

    def matching(self, pattern: str) -> list[str]:
        """Names of folders or tables that a glob matches; not all of them need be Delta tables."""


def open_places(endpoint: Endpoint, spark: Spark | None) -> Places:
    if endpoint.scheme == "catalog":
        return CatalogPlaces(endpoint, spark)
    return FolderPlaces(endpoint)


def wild(name: str) -> bool:
    return any(mark in name for mark in _WILD)


class FolderPlaces:
    """Tables under one folder or object prefix; or the table that the address itself is, by its own name."""

    def __init__(self, endpoint: Endpoint) -> None:
        path = endpoint.path
        path = _on_s3(path) if "://" in path else str(Path(path).expanduser().absolute())
        self.root = path.rstrip("/")
        self.identity = f"delta:{self.root}"
        self.objects = _objects(self.root, endpoint.options)
        self.options = delta_options(endpoint)

    def place(self, name: str) -> Place:
        parts = name.split(".")
        if any(part in ("", "..") or "/" in part for part in parts):
            raise SourceError(
                f'"{name}" is not a table name',
                remedy="Write orders for PATH/orders, shop.orders for PATH/shop/orders.",
            )
        if [*parts] == [self.root.rpartition("/")[2]] and "_delta_log" in self.objects.folders(""):
            return Place(self.root, self.objects, "", self.options)
        folder = "/".join(parts)
        return Place(f"{self.root}/{folder}", self.objects, folder, self.options)

    def matching(self, pattern: str) -> list[str]:
        found = [""]
        for part in pattern.split("."):
            found = [name for above in found for name in self._below(above, part)]
        last = pattern.rpartition(".")[2]
        return [name for name in found if last.startswith(OWN) or not name.rpartition(".")[2].startswith(OWN)]

    def _below(self, above: str, part: str) -> list[str]:
        folders = self.objects.folders(above.replace(".", "/"))
        plain = (name for name in folders if not name.startswith(("_", ".")) and "." not in name)
        return [f"{above}.{name}" if above else name for name in plain if fnmatchcase(name, part)]


class CatalogPlaces:
    """Tables of a catalog's schema (`catalog:C.S`), or of all its schemas by `schema.table` (`catalog:C`)."""

    def __init__(self, endpoint: Endpoint, spark: Spark | None) -> None:
        self.identity = f"catalog:{endpoint.path}"
        self._above = endpoint.path.split(".")
        self._endpoint = endpoint
        self._spark = spark
        self._places: dict[str, Place] = {}

    def place(self, name: str) -> Place:
        if name not in self._places:
            self._places[name] = self._find(name)
        return self._places[name]

    def matching(self, pattern: str) -> list[str]:
        *schema, last = pattern.split(".")
        if any(wild(part) for part in schema):
            raise ConfigError(f'"{pattern}": in a catalog only the table\'s name takes * and ?')
        rows = self._sql(f"SHOW TABLES IN {_named([*self._above, *schema])}")
        names = [row["tableName"] for row in rows if not row["isTemporary"]]
        kept = (
            name for name in names if fnmatchcase(name, last) and (last.startswith(OWN) or not name.startswith(OWN))
        )
        return [".".join([*schema, name]) for name in kept]

    def _find(self, name: str) -> Place:
        full = _named([*self._above, *name.split(".")])
        told = {row["col_name"].strip(): row["data_type"] for row in self._sql(f"DESCRIBE TABLE EXTENDED {full}")}
        provider, location = told.get("Provider", ""), told.get("Location", "")
        if provider.lower() != "delta" or not location:
            kind = provider or told.get("Type", "something else")
            raise MissingError(f"{full} is not a Delta table but {kind}", remedy="Name Delta tables only.")
        uri = location.removeprefix("file://").removeprefix("file:")
        uri = _on_s3(uri)
        here = Endpoint("delta", uri, options=self._endpoint.options)
        return Place(uri, _objects(uri, here.options), "", delta_options(here), full)

    def _sql(self, text: str) -> list[Mapping[str, str]]:
        if self._spark is None:
            raise ConfigError(
                f"{self.identity} needs a Spark session: only that knows the catalog",
                remedy="Pass the session that has it: sync(spark=spark), Tracker(spark=spark).",
            )
        from pyspark.errors import AnalysisException

        try:
            return [row.asDict() for row in self._spark().sql(text).collect()]
        except AnalysisException as error:
            first = next(iter(str(error).splitlines()), "")
            raise SourceError(
                f"the catalog does not have it: {first}", remedy=f"Look:   SHOW TABLES IN {_named(self._above)}"
            ) from error


def _on_s3(uri: str) -> str:
    """Spark's name for S3 as everybody else spells it."""
    return f"s3://{uri.removeprefix('s3a://')}" if uri.startswith("s3a://") else uri


def _named(parts: Iterable[str]) -> str:
    return ".".join(quoted(part) for part in parts)


def _objects(uri: str, options: Mapping[str, str]) -> Objects:
    if "://" not in uri:
        return open_objects(Endpoint("file", uri))
    if not uri.startswith("s3://"):
        raise ConfigError(
            f"{uri}: Delta tables are read from folders and from s3://", remedy="Copy or mount them there."
        )
    return open_objects(Endpoint.parse(uri, options))


def feed_on(place: Place) -> str:
    """The statement that turns a table's change data feed on."""
    table = place.name or f"delta.{quoted(place.path)}"
    return f"ALTER TABLE {table} SET TBLPROPERTIES ({literal('delta.enableChangeDataFeed')} = 'true')"

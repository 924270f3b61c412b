"""MySQL and MariaDB as targets, in text: types, staging, merge as three statements that each count their rows."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from strandline.core.errors import SourceError
from strandline.core.table import Column
from strandline.sinks.sql_dialect import Field, Matched, Place, Step
from strandline.sources.mysql_dialect import MySqlDialect
from strandline.spark.text import quoted as spark_quoted

_TYPES = {
    "boolean": "bit(1)",
    "tinyint": "tinyint",
    "smallint": "smallint",
    "int": "int",
    "bigint": "bigint",
    "float": "float",
    "double": "double",
    "string": "longtext",
    "binary": "longblob",
    "date": "date",
    "timestamp": "timestamp(6)",
    "timestamp_ntz": "datetime(6)",
}
_TIMES = ("date", "timestamp", "timestamp_ntz")
_KEY_BYTES = 3072
_DECIMAL = re.compile(r"decimal\(\d+,(\d+)\)")
_LENGTH = re.compile(r"(?:var)?char(?:acter)?(?: varying)?\((\d+)\)")
_TEXT_KEY = re.compile(r"(var)?char\(\d+\)")
_NO_LENGTH = re.compile(r"(var)?(char|binary)")
_UNINDEXED = re.compile(r"(tiny|medium|long)?(text|blob)|json")
_CHANGES = re.compile(r"(datetime|timestamp|time)(\([0-5]\))?|char\(\d+\)|(float|double|real)\(.*")
_WIDTH = re.compile(r"\b((?:tiny|small|medium|big)?int)\(\d+\)")


class MySqlTargetDialect(MySqlDialect):
    transactional_ddl = False
    retypes = True
    keys = True
    long_text = "text"
    now = "UTC_TIMESTAMP(6)"
    stamp = "datetime(6)"
    serial = "bigint AUTO_INCREMENT"
    overriding = ""
    hashes: tuple[str, ...] = ("crc32", "md5")

    def __init__(self, *, mariadb: bool) -> None:
        super().__init__()
        self.collation = "utf8mb4_nopad_bin" if mariadb else "utf8mb4_0900_bin"  # blanks at the end count, too
        self.exact_text = f"CHARACTER SET utf8mb4 COLLATE {self.collation}"

    def fold(self, name: str) -> str:
        return name.lower()

    def fits_name(self, name: str) -> bool:
        return len(name) <= 64

    def place(self, place: Place) -> str:
        return f"{self.quote(place.schema)}.{self.quote(place.table)}"

    def name_type(self, length: int) -> str:
        return f"varchar({length}) {self.exact_text}"

    def sql_type(self, field: Field) -> str | None:
        if found := _DECIMAL.fullmatch(field.spark):
            return field.spark if int(found[1]) <= 30 else None
        if field.key and field.spark == "string":
            return f"varchar({self._length(field)}) {self.exact_text}"
        if field.key and field.spark == "binary":
            return f"varbinary({min(255, _KEY_BYTES // field.key)})"
        return _TYPES.get(field.spark)

    def own(self, field: Field) -> str | None:
        """A query's columns are described without their length."""
        if field.source == "time":
            return "time(6)"
        if _NO_LENGTH.fullmatch(field.source):
            return None
        if not field.key:
            return field.source
        if _UNINDEXED.fullmatch(field.source):
            return None
        return f"{field.source} {self.exact_text}" if _TEXT_KEY.fullmatch(field.source) else field.source

    def spark_type(self, column: Column) -> str | None:
        try:
            return self.carry(column).type
        except SourceError:
            return None

    def bare(self, type_text: str) -> str:
        return _WIDTH.sub(r"\1", type_text.partition(" CHARACTER SET ")[0])

    def takes(self, held: str, spark: str) -> bool:
        held = self.bare(held)
        if held == "tinyint(1)" or (held == "tinyint" and spark == "boolean"):
            return spark in ("boolean", "tinyint")
        if _CHANGES.fullmatch(held):  # rounds, or drops blanks
            return False
        return self.spark_type(Column("", held)) == spark

    def staged(self, name: str, spark: str) -> str:
        """Times travel as text: the driver loses microseconds on MariaDB."""
        return f"CAST({spark_quoted(name)} AS STRING)" if spark in _TIMES else spark_quoted(name)

    def create(self, place: Place, columns: Sequence[Column], key: Sequence[str], comment: str) -> list[str]:
        lines = [self._column(column) for column in columns]
        if key:
            lines.append(f"PRIMARY KEY ({', '.join(self.quote(name) for name in key)})")
        told = f" COMMENT = {self.string(comment)}" if comment else ""
        return [
            f"CREATE TABLE IF NOT EXISTS {self.place(place)} (\n  " + ",\n  ".join(lines) + ") "
            f"ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4{told}"
        ]

    def create_stage(self, place: Place, columns: Sequence[tuple[str, str]], comment: str) -> list[str]:
        listed = ", ".join(f"{name} {kind} NULL" for name, kind in columns)
        return [
            f"CREATE TABLE {self.place(place)} ({listed}, part int, tag varchar(40) {self.exact_text} "
            "DEFAULT (CONCAT(CONNECTION_ID(), ''))) "
            f"ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COMMENT = {self.string(comment)}"
        ]

    def add(self, place: Place, columns: Sequence[Column]) -> list[str]:
        listed = ", ".join(f"ADD COLUMN {self._column(column)}" for column in columns)
        return [f"ALTER TABLE {self.place(place)} {listed}"]

    def retype(self, place: Place, columns: Sequence[Column]) -> list[str]:
        listed = ", ".join(f"MODIFY COLUMN {self._column(column)}" for column in columns)
        return [f"ALTER TABLE {self.place(place)} {listed}"]

    def retype_empty(self, place: Place, columns: Sequence[Column]) -> list[str]:
        return self.retype(place, columns)

    def unless_there(self, into: str, values: Mapping[str, str], _keys: Sequence[Sequence[str]], /) -> str:
        return f"INSERT IGNORE INTO {into} ({', '.join(values)}) VALUES ({', '.join(values.values())})"

    def lock(self, _table: str, /) -> str:
        return ""

    def last_first(self, value: str) -> str:
        return f"{value} DESC"

    def count_different(self, rows: str, columns: Sequence[str]) -> str:
        return f"SELECT count(DISTINCT {', '.join(columns)}) FROM {rows} s"

    def twins(self, rows: str, keys: Sequence[str], columns: Sequence[str]) -> str:
        listed = ", ',', ".join(f"QUOTE({name})" for name in columns)
        different = f"count(DISTINCT MD5(CONCAT({listed})))"
        return f"SELECT {', '.join(keys)} FROM {rows} c GROUP BY {', '.join(keys)} HAVING {different} > 1"

    def differs(self, pairs: Sequence[tuple[str, str, str]]) -> str:
        def exact(value: str, kind: str) -> str:
            return f"CAST({value} AS BINARY)" if " COLLATE " in kind else value

        listed = [f"NOT ({exact(one, kind)} <=> {exact(other, kind)})" for one, other, kind in pairs]
        return f"({' OR '.join(listed)})"

    def same(self, one: str, other: str) -> str:
        return f"{one} <=> {other}"

    def equal(self, one: str, other: str, _kind: str, /) -> str:
        """A key's collation tells any two texts apart (`check_key`)."""
        return f"{one} = {other}"

    def apart(self, value: str, _kind: str, /) -> list[str]:
        return [value]

    def update(self, target: str, sets: Sequence[tuple[str, str]], rows: str, on: str) -> str:
        listed = ", ".join(f"t.{name} = {value}" for name, value in sets)
        return f"UPDATE {target} AS t JOIN {rows} AS s ON {on} SET {listed}"

    def delete(self, target: str, rows: str, on: str, _known: Sequence[Column], /) -> str:
        return f"DELETE t FROM {target} AS t JOIN {rows} AS s ON {on}"

    def delete_where(self, target: str, where: str, _known: Sequence[Column], /) -> str:
        return f"DELETE t FROM {target} AS t WHERE {where}"

    def merge(self, _matched: Matched, /) -> Step | None:
        return None

    def analyze(self, place: Place) -> str:
        return f"ANALYZE TABLE {self.place(place)}"

    def _length(self, field: Field) -> int:
        """Of a text key: as the source says, or as much as an index takes."""
        if found := _LENGTH.match(field.source):
            return int(found[1])
        return 36 if field.source == "uuid" else min(255, _KEY_BYTES // 4 // field.key)

    def _column(self, column: Column) -> str:
        told = f" COMMENT {self.string(column.comment)}" if column.comment else ""
        return f"{self.quote(column.name)} {column.type} {'NULL' if column.nullable else 'NOT NULL'}{told}"

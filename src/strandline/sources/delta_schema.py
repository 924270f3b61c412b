"""Settling a Delta table before anything is read: its columns in Spark's words, its key, what orders its rows.

Owns the refusals that need no look at a commit. Loads no Spark.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from strandline.core.errors import SourceError
from strandline.core.table import Column, Mode, Table, TableInfo
from strandline.core.watermark import Cursor, Kind
from strandline.sources.delta_log import DOCS, Commit, Log, Metadata
from strandline.sources.resolve import find, selected

VERSION = Cursor("version", Kind.VERSION)
"""What orders the changes of a Delta table, unless a column is named."""
_WORDS = {"long": "bigint", "integer": "int", "short": "smallint", "byte": "tinyint"}
_KINDS = {
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint"), Kind.INTEGER),
    **dict.fromkeys(("timestamp", "timestamp_ntz"), Kind.TIMESTAMP),
    "date": Kind.DATE,
}


def table_info(name: str, log: Log) -> TableInfo:
    columns = tuple(
        Column(
            field["name"],
            spark_type(field["type"]),
            field["nullable"],
            comment=str(field["metadata"].get("comment", "")),
        )
        for field in log.metadata.columns
    )
    return TableInfo(name, columns, comment=log.comment)


def spark_type(kind: str | Mapping[str, Any]) -> str:
    """A type of Delta's schema as Spark's `simpleString` spells it."""
    if isinstance(kind, str):
        return _WORDS.get(kind, kind.replace(" ", ""))
    match kind["type"]:
        case "struct":
            fields = (f"{field['name']}:{spark_type(field['type'])}" for field in kind["fields"])
            return f"struct<{','.join(fields)}>"
        case "array":
            return f"array<{spark_type(kind['elementType'])}>"
        case "map":
            return f"map<{spark_type(kind['keyType'])},{spark_type(kind['valueType'])}>"
    raise SourceError(f"type {kind['type']} is not known", docs=DOCS)


def settled(table: Table, info: TableInfo, metadata: Metadata, zone: str | None) -> Table:
    """The table with everything that the metadata decides."""
    if table.lookback is not None:
        raise SourceError(
            "lookback reads rows again that came late, and a version of a Delta table is complete when it shows",
            remedy="Leave lookback out.",
        )
    columns = tuple(_column(info, text) for text in table.select or [column.name for column in info.columns])
    chosen = {column.name for column in columns}
    for name in table.key:
        find(info, name, "key column")
        if name not in chosen:
            raise SourceError(f'key column "{name}" is not among columns', remedy=f"Add {name} to columns")
    if not table.key and table.mode is Mode.MERGE:
        raise SourceError(
            f"{info.name} has no key: Delta keeps none, and mode merge needs to know which rows are the same",
            remedy="Name the columns that identify a row (key: [a, b]), or use mode: append or mode: snapshot",
            docs=f"{DOCS}#keys",
        )
    if table.deleted is not None:
        find(info, table.deleted, "soft-delete column")
        if table.deleted not in chosen:
            raise SourceError(
                f'soft-delete column "{table.deleted}" is not among columns', remedy=f"Add {table.deleted} to columns"
            )
    return replace(
        table,
        source=info.name,
        cursor=_cursor(table, info, chosen, zone),
        columns=columns,
        key_enforced=False,
        family="delta",
        comment=info.comment,
        identity=metadata.id,
    )


def _column(info: TableInfo, text: str) -> Column:
    name, cast = (text, "") if info.column(text) else selected(text)
    column = find(info, name, "column")
    return replace(column, type=cast.lower(), cast=cast) if cast else column


def _cursor(table: Table, info: TableInfo, chosen: set[str], zone: str | None) -> Cursor:
    """Versions, or the column by which the newest of several rows of a key is known."""
    if table.cursor is None or table.mode is not Mode.MERGE:
        return VERSION
    column = find(info, table.cursor.column, "cursor column")
    kind = Kind.INTEGER if re.fullmatch(r"decimal\(\d+,0\)", column.type) else _KINDS.get(column.type)
    if kind is None:
        raise SourceError(
            f'cursor column "{column.name}" ({column.type}) cannot order changes: it must be a timestamp, a date or a '
            "whole number",
            remedy="Leave it out: the table's versions order its changes.",
            docs=f"{DOCS}#order",
        )
    if column.name not in chosen:
        raise SourceError(f'cursor column "{column.name}" is not among columns', remedy=f"Add {column.name} to columns")
    return Cursor(column.name, kind, zone=(zone or "UTC") if column.type == "timestamp_ntz" else None)


def again(table: Table) -> str:
    """The way out where changes cannot be told. From where `initial` says they would stop it once more."""
    whole = "" if table.initial in (None, "latest") else ", without `initial:`"
    return f"Load it again from the beginning{whole}:   strandline sync --full -t {table.name}"


def incompatible(before: Metadata | None, pairs: Sequence[tuple[Commit, Metadata]]) -> tuple[int, str] | None:
    """The first version at which a column was renamed, dropped or got another type, and what it was, in words."""
    for commit, metadata in pairs:
        if before is not None and commit.metadata is not None:
            now = metadata.physical()
            for physical, (name, kind) in before.physical().items():
                if physical not in now:
                    return commit.version, f"column {name} was dropped"
                if now[physical][0] != name:
                    return commit.version, f"column {name} was renamed to {now[physical][0]}"
                if spark_type(now[physical][1]) != spark_type(kind):
                    return commit.version, f"column {name} became {spark_type(now[physical][1])}"
        before = metadata
    return None

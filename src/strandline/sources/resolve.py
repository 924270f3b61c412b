"""Settling a table before anything is read: cursor, key and columns, checked against what the source found.

Owns the refusals. Everything it cannot vouch for is an error that says what to write instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from strandline.core.errors import SourceError
from strandline.core.table import Column, Mode, Table, TableInfo
from strandline.core.watermark import Cursor, Kind
from strandline.sources.dialect import column_of
from strandline.sources.names import nearest, split
from strandline.sources.zones import age, is_utc, zone_info

if TYPE_CHECKING:
    from strandline.sources.database import DatabaseSource


@dataclass(frozen=True)
class Server:
    zone: str  # the zone its writers get unless they say otherwise
    now: str  # its clock, in UTC


def resolve(source: DatabaseSource, table: Table, info: TableInfo, zone: str | None) -> tuple[Table, list[str]]:
    """The settled table, and what is worth a warning."""
    table = replace(table, source=table.source if info.kind == "query" else info.name)
    try:
        columns = _columns(source, table, info)
        cursor = _cursor(source, table, info, zone)
        key = _key(table, info, columns)
        _deleted(table, info, columns)
    except SourceError as error:
        raise error.at(table.where_text) from None
    enforced = bool(key) and any(set(unique) <= set(key) for unique in info.unique)
    settled = replace(table, cursor=cursor, key=key, key_enforced=enforced, columns=columns)
    settled = replace(settled, family=source.dialect.name, comment=info.comment)
    return settled, _warnings(source, settled, info)


def selected(text: str) -> tuple[str, str]:
    """`name` or `name::type`: a column, and what the database is to cast it to."""
    name, _, cast = text.partition("::")
    return name.strip(), cast.strip()


def find(info: TableInfo, name: str, role: str) -> Column:
    column = info.column(name)
    if column is None:
        known = [column.name for column in info.columns]
        raise SourceError(f'{role} "{name}" is not in {info.name}', remedy=nearest(name, known))
    return column


def _columns(source: DatabaseSource, table: Table, info: TableInfo) -> tuple[Column, ...]:
    chosen = []
    for wanted in table.select or [column.name for column in info.columns]:
        name, cast = (wanted, "") if info.column(wanted) else selected(wanted)
        column = find(info, name, "column")
        chosen.append(replace(column, type=source.cast_type(cast), cast=cast) if cast else column)
    refused = []
    for column in chosen:
        twin = next((other.name for other in chosen if other is not column and _same(other.name, column.name)), None)
        try:
            if twin is not None:
                raise SourceError(
                    f'columns "{column.name}" and "{twin}" are one name to Spark', remedy="Choose one under columns."
                )
            source.dialect.carry(column)
        except SourceError as error:
            refused.append(error)
    if len(refused) > 1:
        first = refused[0]
        text = "\n".join(error.message for error in refused)
        raise SourceError(
            f"{len(refused)} columns cannot be read exactly", why=text, remedy=first.remedy, docs=first.docs
        )
    if refused:
        raise refused[0]
    return tuple(chosen)


def _same(one: str, other: str) -> bool:
    return one.lower() == other.lower()


def _cursor(source: DatabaseSource, table: Table, info: TableInfo, zone: str | None) -> Cursor | None:
    if table.mode is Mode.SNAPSHOT:
        return None
    if table.cursor is None:
        usable = [column.name for column in info.columns if source.dialect.cursor(column)]
        raise SourceError("no cursor column is given", remedy=_usable(usable), docs="docs/cursors.md")
    column = find(info, table.cursor.column, "cursor column")
    cursor = source.dialect.cursor(column)
    if cursor is None:
        usable = [column.name for column in info.columns if source.dialect.cursor(column)]
        raise SourceError(
            f'cursor column "{column.name}" ({column.type}) cannot order changes: it must be a timestamp, a date or a '
            "whole number",
            remedy=_usable(usable),
            docs="docs/cursors.md",
        )
    if info.kind in ("materialized view", "foreign table") and table.lookback is None:
        raise SourceError(
            f"{info.name} is a {info.kind}: its rows can appear later than they are stamped, and no barrier sees it",
            remedy="Use mode: snapshot, or re-read what may come late, for example lookback: 1d",
            docs="docs/cursors.md#views",
        )
    if cursor.zone is None:
        return cursor
    return replace(cursor, zone=_zone(source, table, cursor, column, zone))


def _usable(names: list[str]) -> str:
    return "Usable here: " + ", ".join(names) if names else "No column here can be one: use mode: snapshot."


def _zone(source: DatabaseSource, table: Table, cursor: Cursor, column: Column, zone: str | None) -> str:
    if zone is not None:
        zone_info(zone)
        return zone
    server = source.server()
    if is_utc(server.zone):
        return "UTC"
    value = column_of(source.dialect, column.name)
    shown = source.dialect.text(cursor, f"max({value})")
    newest = source.session.rows(f"SELECT {shown} FROM {source.dialect.relation(table)}")[0][0]
    evidence = f"The server runs in {server.zone}"
    if newest is not None:
        read = age(newest, server.zone, server.now)
        evidence += (
            f", and the newest row is {read} read as {server.zone}, {age(newest, 'UTC', server.now)} read as UTC"
        )
    raise SourceError(
        f'cursor column "{column.name}" ({column.type}) has no time zone',
        why=f"Rows could be stamped in any zone, and a wrong guess loses them. {evidence}.",
        remedy=f"If that is right, add to the table:   zone: {server.zone}",
        docs="docs/cursors.md#zones",
    )


def _key(table: Table, info: TableInfo, columns: Sequence[Column]) -> tuple[str, ...]:
    key = table.key or info.key
    if not key and table.mode is Mode.MERGE:
        raise SourceError(
            f"{info.name} has no primary key, and mode merge needs to know which rows are the same",
            remedy="Name the columns that identify a row (key: [a, b]), or use mode: append or mode: snapshot",
            docs="docs/cursors.md#keys",
        )
    chosen = {column.name for column in columns}
    for name in key:
        column = find(info, name, "key column")
        if name not in chosen:
            if table.key or table.mode is Mode.MERGE:
                raise SourceError(f'key column "{name}" is not among columns', remedy=f"Add {name} to columns")
            return ()
        if column.nullable and info.kind == "table" and table.key:
            raise SourceError(
                f'key column "{name}" may be NULL, and NULL equals nothing',
                remedy=f"Declare it NOT NULL in the database, or choose other key columns. {_keys(info)}",
                docs="docs/cursors.md#keys",
            )
    return key


def _keys(info: TableInfo) -> str:
    return "Unique there: " + "; ".join(", ".join(unique) for unique in info.unique) if info.unique else ""


def _deleted(table: Table, info: TableInfo, columns: Sequence[Column]) -> None:
    if table.deleted is not None:
        find(info, table.deleted, "soft-delete column")
        if table.deleted not in {column.name for column in columns}:
            raise SourceError(
                f'soft-delete column "{table.deleted}" is not among columns', remedy=f"Add {table.deleted} to columns"
            )


_NO_GUARD = (
    "guard is 0: a transaction that has taken its time but is not listed yet by the database can be lost\n"
    "Leave it out (5s), or make it as long as a busy server may pause a connection."
)


def _warnings(source: DatabaseSource, table: Table, info: TableInfo) -> list[str]:
    found = []
    timed = table.cursor is not None and table.cursor.kind is not Kind.INTEGER
    if timed and not source.guard and source.barrier and all(text != _NO_GUARD for _, text in source.warnings):
        found.append(_NO_GUARD)  # once: it is the pipeline's
    if table.cursor and info.kind == "table" and info.lacks_index(table.cursor.column):
        rows = f" ({info.estimated_rows:,} rows)" if info.estimated_rows else ""
        column = source.dialect.quote(table.cursor.column)
        relation = source.dialect.relation(table).removesuffix(" t")
        index = source.dialect.quote(f"ix_{split(table.source)[1]}_{table.cursor.column}")
        found.append(
            f'cursor column "{table.cursor.column}" has no index: every sync reads the whole table{rows}\n'
            f"CREATE INDEX {index} ON {relation} ({column});"
        )
    if table.key and not table.key_enforced and table.mode is Mode.MERGE:
        found.append(f"key ({', '.join(table.key)}) is not unique by a constraint: the newest row of a key wins")
    return found

"""What Snowflake's catalog says about tables: a few statements, however many tables there are.

A primary key is only declared there, and kept by nobody, but for hybrid tables. There are no indexes to miss.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from strandline.core.errors import SourceError, StrandlineError
from strandline.core.table import Column, TableInfo
from strandline.sources import names
from strandline.sources.snowflake_dialect import SnowflakeDialect, type_text
from strandline.sources.snowflake_names import settled, shown, stored
from strandline.sources.snowflake_session import SnowflakeSession

_KINDS = {"BASE TABLE": "table", "VIEW": "view", "MATERIALIZED VIEW": "materialized view"}
_MANY = 10_000  # SHOW lists so many at most
_DIALECT = SnowflakeDialect()
Name = tuple[str, str]  # schema and table, as they are shown


class Catalog:
    """All relations of the database, read once per question."""

    def __init__(self, session: SnowflakeSession) -> None:
        self.session = session
        self.default = shown(session.default_schema)
        tables = session.records("SELECT * FROM INFORMATION_SCHEMA.TABLES WHERE TABLE_SCHEMA <> 'INFORMATION_SCHEMA'")
        views = session.records("SELECT * FROM INFORMATION_SCHEMA.VIEWS WHERE TABLE_SCHEMA <> 'INFORMATION_SCHEMA'")
        self.relations = {_name(row): row for row in [*({**view, "table_type": "VIEW"} for view in views), *tables]}

    def find(self, patterns: Sequence[str]) -> dict[str, TableInfo | StrandlineError]:
        chosen: dict[str, Name | StrandlineError] = {}
        for text in patterns:
            try:
                chosen |= self._match(names.pattern(text))
            except SourceError as error:
                chosen[text] = error
        infos = self._infos({name for name in chosen.values() if isinstance(name, tuple)})
        return {text: infos[found] if isinstance(found, tuple) else found for text, found in chosen.items()}

    def _match(self, pattern: names.Pattern) -> dict[str, Name]:
        """The relations a pattern stands for, by the name it is called by from then on."""
        if pattern.wild:
            return {
                table if pattern.schema is None else names.render(schema, table): (schema, table)
                for schema, table in sorted(self.relations)
                if pattern.matches(schema, table, self.default)
            }
        wanted = (self.default if pattern.schema is None else settled(pattern.schema), settled(pattern.table))
        if wanted in self.relations:
            return {pattern.text: wanted}
        elsewhere = [names.render(schema, table) for schema, table in self.relations if table == wanted[1]]
        known = [table for schema, table in self.relations if schema == wanted[0]]
        known += [names.render(schema, table) for schema, table in self.relations]
        remedy = "Did you mean " + " or ".join(elsewhere) + "?" if elsewhere else names.nearest(pattern.text, known)
        raise SourceError(f'there is no table or view "{pattern.text}"', remedy=remedy)

    def _infos(self, wanted: Iterable[Name]) -> dict[Name, TableInfo]:
        chosen = set(wanted)
        columns = columns_of(self.session, chosen)
        keys = keys_of(self.session, chosen)
        return {name: self._info(name, tuple(columns[name]), keys.get(name, ())) for name in chosen}

    def _info(self, name: Name, columns: tuple[Column, ...], key: tuple[str, ...]) -> TableInfo:
        row = self.relations[name]
        nullable = {column.name for column in columns if column.nullable}
        key = () if nullable & set(key) else key
        enforced = (key,) if key and row.get("is_hybrid") == "YES" else ()
        rows = row.get("row_count")
        return TableInfo(
            names.render(*name),
            columns,
            key,
            enforced,
            None,
            None if rows is None else int(rows),
            _KINDS.get(str(row["table_type"]), "foreign table" if "EXTERNAL" in str(row["table_type"]) else "table"),
            str(row.get("comment") or ""),
        )


def columns_of(session: SnowflakeSession, tables: Iterable[Name]) -> dict[Name, list[Column]]:
    found: dict[Name, list[Column]] = defaultdict(list)
    for row in column_records(session, tables):
        nullable = row["is_nullable"] == "YES"
        column = Column(shown(row["column_name"]), type_text(row), nullable, comment=str(row.get("comment") or ""))
        found[_name(row)].append(column)
    return found


def column_records(session: SnowflakeSession, tables: Iterable[Name]) -> list[dict[str, Any]]:
    """What the information schema says of every column of these tables, in their order."""
    asked = set(tables)
    if not asked:
        return []
    schemas = ", ".join(_DIALECT.string(stored(schema)) for schema in sorted({schema for schema, _ in asked}))
    where = f"TABLE_SCHEMA IN ({schemas})"
    if len(asked) <= 200:
        where += f" AND TABLE_NAME IN ({', '.join(_DIALECT.string(stored(table)) for _, table in sorted(asked))})"
    found = session.records(f"SELECT * FROM INFORMATION_SCHEMA.COLUMNS WHERE {where} ORDER BY ORDINAL_POSITION")
    return [row for row in found if _name(row) in asked]


def keys_of(session: SnowflakeSession, tables: Iterable[Name]) -> dict[Name, tuple[str, ...]]:
    """The declared primary keys; asked table by table where a schema has more than SHOW lists."""
    asked = set(tables)
    found: dict[Name, list[tuple[int, str]]] = defaultdict(list)
    places = [f"SCHEMA {_DIALECT.quote(schema)}" for schema in sorted({schema for schema, _ in asked})]
    if len(asked) == 1:
        places = [f"TABLE {_quoted(*asked)}"]
    for place in places:
        rows = session.records(f"SHOW PRIMARY KEYS IN {place}")
        if len(rows) >= _MANY:
            rows = [
                row
                for schema, table in sorted(asked)
                for row in session.records(
                    f"SHOW PRIMARY KEYS IN TABLE {_DIALECT.quote(schema)}.{_DIALECT.quote(table)}"
                )
            ]
        for row in rows:
            name = shown(row["schema_name"]), shown(row["table_name"])
            found[name].append((int(row["key_sequence"]), shown(row["column_name"])))
    return {name: tuple(column for _, column in sorted(set(columns))) for name, columns in found.items()}


def describe(session: SnowflakeSession, sql: str) -> tuple[Column, ...]:
    return tuple(Column(shown(name), type_text(described)) for name, described in session.describe(sql))


def _quoted(name: Name) -> str:
    return ".".join(map(_DIALECT.quote, name))


def _name(row: Mapping[str, Any]) -> Name:
    return shown(str(row["table_schema"])), shown(str(row["table_name"]))

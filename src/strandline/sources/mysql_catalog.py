"""What MySQL's information schema says about tables: three statements, however many tables there are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from strandline.core.errors import SourceError, StrandlineError
from strandline.core.table import Column, TableInfo
from strandline.sources import names
from strandline.sources.mysql_dialect import MySqlDialect
from strandline.sources.mysql_session import MySqlSession

_SYSTEM = "('mysql', 'sys', 'information_schema', 'performance_schema')"
_RELATIONS = f"""
SELECT TABLE_SCHEMA, TABLE_NAME, TABLE_TYPE, TABLE_ROWS, TABLE_COMMENT FROM information_schema.TABLES
 WHERE TABLE_SCHEMA NOT IN {_SYSTEM} AND TABLE_TYPE IN ('BASE TABLE', 'VIEW', 'SYSTEM VERSIONED')
"""
_COLUMNS = """
SELECT TABLE_SCHEMA, TABLE_NAME, COLUMN_NAME, COLUMN_TYPE, IS_NULLABLE, COLUMN_COMMENT FROM information_schema.COLUMNS
 WHERE {where} ORDER BY TABLE_SCHEMA, TABLE_NAME, ORDINAL_POSITION
"""
_INDEXES = """
SELECT TABLE_SCHEMA, TABLE_NAME, INDEX_NAME, NON_UNIQUE, COLUMN_NAME FROM information_schema.STATISTICS
 WHERE {where} ORDER BY TABLE_SCHEMA, TABLE_NAME, INDEX_NAME <> 'PRIMARY', INDEX_NAME, SEQ_IN_INDEX
"""

Name = tuple[str, str]


class Catalog:
    """All relations the user may see in the schemas asked for."""

    def __init__(self, session: MySqlSession, patterns: Sequence[str]) -> None:
        self.session = session
        self.dialect = MySqlDialect()
        self.default = str(session.rows("SELECT DATABASE()")[0][0] or "")
        self.patterns: dict[str, names.Pattern | SourceError] = {}
        for text in patterns:
            try:
                self.patterns[text] = names.pattern(text)
            except SourceError as error:
                self.patterns[text] = error
        self.relations = {(row[0], row[1]): row for row in session.rows(_RELATIONS + self._schemas())}

    def _schemas(self) -> str:
        asked = [found for found in self.patterns.values() if isinstance(found, names.Pattern)]
        if any(pattern.schema_wild for pattern in asked):
            return ""
        wanted = {pattern.schema or self.default for pattern in asked} | {self.default}
        return f" AND TABLE_SCHEMA IN ({', '.join(self.dialect.string(name) for name in sorted(wanted))})"

    def find(self) -> dict[str, TableInfo | StrandlineError]:
        chosen: dict[str, Name | StrandlineError] = {}
        for text, pattern in self.patterns.items():
            if isinstance(pattern, SourceError):
                chosen[text] = pattern
            elif pattern.wild:
                for schema, table in sorted(self.relations):
                    if pattern.matches(schema, table, self.default):
                        chosen[table if pattern.schema is None else names.render(schema, table)] = (schema, table)
            else:
                chosen[text] = self._named(pattern)
        infos = self._infos(sorted({found for found in chosen.values() if isinstance(found, tuple)}))
        return {text: infos[found] if isinstance(found, tuple) else found for text, found in chosen.items()}

    def _named(self, pattern: names.Pattern) -> Name | StrandlineError:
        name = (pattern.schema or self.default, pattern.table)
        if name in self.relations:
            return name
        known = [table if schema == self.default else names.render(schema, table) for schema, table in self.relations]
        return SourceError(f'there is no table or view "{pattern.text}"', remedy=names.nearest(pattern.text, known))

    def _infos(self, wanted: Sequence[Name]) -> dict[Name, TableInfo]:
        if not wanted:
            return {}
        where = conditions(self.dialect, wanted)
        columns: dict[Name, list[Column]] = defaultdict(list)
        for schema, table, name, type_text, nullable, comment in self.session.rows(_COLUMNS.format(where=where)):
            columns[schema, table].append(Column(name, _text(type_text), nullable == "YES", comment=_text(comment)))
        indexes: dict[Name, dict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
        unique: dict[Name, set[str]] = defaultdict(set)
        for schema, table, index, non_unique, column in self.session.rows(_INDEXES.format(where=where)):
            indexes[schema, table][index].append(column)
            if not int(non_unique):
                unique[schema, table].add(index)
        return {name: self._info(name, columns[name], indexes[name], unique[name]) for name in wanted}

    def _info(
        self, name: Name, columns: Sequence[Column], indexes: Mapping[str, list[Any]], unique: set[str]
    ) -> TableInfo:
        _, _, kind, rows, comment = self.relations[name]
        filled = {column.name for column in columns if not column.nullable}
        keys = tuple(tuple(over) for index, over in indexes.items() if index in unique and filled.issuperset(over))
        leads = tuple(dict.fromkeys(over[0] for over in indexes.values() if over[0] is not None))
        view = kind == "VIEW"
        return TableInfo(
            names.render(*name),
            tuple(columns),
            keys[0] if keys else (),
            keys,
            leads,
            None if view or rows is None else int(rows),
            "view" if view else "table",
            "" if view else _text(comment),
        )


def conditions(dialect: MySqlDialect, wanted: Sequence[Name]) -> str:
    """Per schema a list of tables: the server then opens only those."""
    by_schema: dict[str, list[str]] = defaultdict(list)
    for schema, table in wanted:
        by_schema[schema].append(dialect.string(table))
    parts = [
        f"(TABLE_SCHEMA = {dialect.string(schema)} AND TABLE_NAME IN ({', '.join(tables)}))"
        for schema, tables in by_schema.items()
    ]
    return "(" + " OR ".join(parts) + ")"


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)

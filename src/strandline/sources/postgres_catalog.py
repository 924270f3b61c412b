"""What PostgreSQL's catalog says about tables: three statements, however many tables there are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from strandline.core.errors import SourceError, StrandlineError
from strandline.core.table import Column, TableInfo
from strandline.sources import names
from strandline.sources.postgres_session import PostgresSession

_KINDS = {"r": "table", "p": "table", "v": "view", "m": "materialized view", "f": "foreign table"}

_RELATIONS = """
SELECT c.oid::bigint, n.nspname, c.relname, c.relkind::text, c.reltuples::bigint,
       array_position(current_schemas(false), n.nspname), obj_description(c.oid, 'pg_class')
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND n.nspname <> 'information_schema' AND n.nspname !~ '^pg_'
"""

# A domain is read as the type it stands on; a key over a domain stays a key.
_COLUMNS = """
SELECT a.attrelid::bigint, a.attname,
       CASE WHEN y.typtype = 'd' THEN format_type(y.typbasetype, y.typtypmod)
            ELSE format_type(a.atttypid, a.atttypmod) END,
       NOT (a.attnotnull OR (y.typtype = 'd' AND y.typnotnull)), a.attnum,
       col_description(a.attrelid, a.attnum)
  FROM pg_attribute a JOIN pg_type y ON y.oid = a.atttypid
 WHERE a.attrelid = ANY(ARRAY[{oids}]::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
 ORDER BY a.attrelid, a.attnum
"""

# Only plain indexes over columns, valid and over all rows, keep anything unique.
_INDEXES = """
SELECT i.indrelid::bigint, i.indkey::int2[], i.indnkeyatts,
       i.indisprimary, i.indisunique AND i.indpred IS NULL AND i.indexprs IS NULL AND i.indimmediate,
       i.indpred IS NULL
  FROM pg_index i
 WHERE i.indrelid = ANY(ARRAY[{oids}]::oid[]) AND i.indisvalid
 ORDER BY i.indrelid, i.indisprimary DESC, i.indexrelid
"""


class Catalog:
    """All relations of the database, read once per question."""

    def __init__(self, session: PostgresSession) -> None:
        self.session = session
        self.relations = session.rows(_RELATIONS)
        self.named: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
        for row in self.relations:
            self.named[row[2]].append(row)
        found = session.rows("SELECT coalesce(current_schema(), 'public')")
        self.default: str = found[0][0]

    def find(self, patterns: Sequence[str]) -> dict[str, TableInfo | StrandlineError]:
        chosen: dict[str, int | StrandlineError] = {}
        for text in patterns:
            try:
                chosen |= self._match(names.pattern(text))
            except SourceError as error:
                chosen[text] = error
        infos = self._infos({oid for oid in chosen.values() if isinstance(oid, int)})
        return {text: infos[found] if isinstance(found, int) else found for text, found in chosen.items()}

    def _match(self, pattern: names.Pattern) -> dict[str, int]:
        """The relations a pattern stands for, by the name it is called by from then on."""
        if pattern.wild:
            return {
                name if pattern.schema is None else names.render(schema, name): oid
                for oid, schema, name, *_ in sorted(self.relations, key=lambda row: (row[1], row[2]))
                if pattern.matches(schema, name, self.default)
            }
        named = self.named.get(pattern.table, [])
        if pattern.schema is not None:
            found = [row for row in named if row[1] == pattern.schema]
        else:
            found = sorted((row for row in named if row[5] is not None), key=lambda row: int(row[5]))[:1]
        if not found:
            known = [names.render(row[1], row[2]) for row in self.relations]
            short = [row[2] for row in self.relations if row[5] is not None] if pattern.schema is None else []
            elsewhere = [names.render(row[1], row[2]) for row in named]
            remedy = names.nearest(pattern.text, [*short, *known])
            if elsewhere:
                remedy = "Did you mean " + " or ".join(elsewhere) + "?"
            raise SourceError(f'there is no table or view "{pattern.text}"', remedy=remedy)
        return {pattern.text: found[0][0]}

    def _infos(self, oids: Iterable[int]) -> dict[int, TableInfo]:
        listed = ", ".join(str(oid) for oid in sorted(oids))
        if not listed:
            return {}
        columns: dict[int, dict[int, Column]] = defaultdict(dict)
        for oid, name, type_name, nullable, number, comment in self.session.rows(_COLUMNS.format(oids=listed)):
            columns[oid][number] = Column(name, type_name, nullable, comment=comment or "")
        keys: dict[int, list[tuple[str, ...]]] = defaultdict(list)
        leads: dict[int, list[str]] = defaultdict(list)
        for oid, numbers, width, _primary, unique, complete in self.session.rows(_INDEXES.format(oids=listed)):
            over = [columns[oid].get(number) for number in numbers[:width]]
            if complete and over and over[0] is not None:
                leads[oid].append(over[0].name)
            plain = [column for column in over if column is not None and not column.nullable]
            if unique and len(plain) == width:
                keys[oid].append(tuple(column.name for column in plain))
        return {
            oid: TableInfo(
                names.render(schema, name),
                tuple(columns[oid].values()),
                keys[oid][0] if keys[oid] else (),
                tuple(keys[oid]),
                tuple(dict.fromkeys(leads[oid])),
                rows if rows >= 0 and kind in "rm" else None,
                _KINDS[kind],
                comment or "",
            )
            for oid, schema, name, kind, rows, _, comment in self.relations
            if oid in columns
        }


def describe(session: PostgresSession, sql: str) -> tuple[Column, ...]:
    fields = session.describe(sql)
    if not fields:
        return ()
    wanted = ", ".join(f"({at}, {oid}, {modifier})" for at, (_, oid, modifier) in enumerate(fields))
    types = session.rows(
        "SELECT CASE WHEN y.typtype = 'd' THEN format_type(y.typbasetype, y.typtypmod) "
        "ELSE format_type(f.oid, f.mod) END "
        f"FROM (VALUES {wanted}) f(n, oid, mod) JOIN pg_type y ON y.oid = f.oid ORDER BY f.n"
    )
    return tuple(Column(name, type_name) for (name, _, _), (type_name,) in zip(fields, types, strict=True))

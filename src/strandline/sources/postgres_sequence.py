"""Whether an integer cursor can be trusted: ids must come in order, one by one, from a sequence the column owns."""

from __future__ import annotations

from collections.abc import Sequence

from strandline.core.errors import SourceError
from strandline.core.table import Table
from strandline.sources.names import split
from strandline.sources.postgres_session import PostgresSession

_OWNED = """
SELECT x.n, s.seqrelid::bigint, s.seqrelid::regclass::text, s.seqincrement, s.seqcache, s.seqcycle, s.seqstart,
       has_sequence_privilege(s.seqrelid, 'SELECT, USAGE')
  FROM (VALUES {wanted}) x(n, schema_name, table_name, column_name)
  JOIN pg_namespace m ON m.nspname = x.schema_name
  JOIN pg_class c ON c.relnamespace = m.oid AND c.relname = x.table_name
  JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = x.column_name
  JOIN pg_depend d ON d.refclassid = 'pg_class'::regclass AND d.refobjid = c.oid AND d.refobjsubid = a.attnum
   AND d.classid = 'pg_class'::regclass AND d.deptype IN ('a', 'i')
  JOIN pg_sequence s ON s.seqrelid = d.objid
"""


def sequences(session: PostgresSession, tables: Sequence[Table]) -> dict[str, str | SourceError]:
    """By table: SQL that gives the last id handed out, or why ids of this table prove nothing."""
    found: dict[str, str | SourceError] = {table.name: _none(table) for table in tables}
    named = [table for table in tables if table.query is None]
    if not named:
        return found
    wanted = ", ".join(
        f"({at}, {', '.join(_string(part) for part in (*split(table.source), table.cursor.column))})"
        for at, table in enumerate(named)
        if table.cursor
    )
    for at, oid, name, increment, cache, cycle, start, readable in session.rows(_OWNED.format(wanted=wanted)):
        table = named[at]
        if increment != 1 or cache != 1 or cycle:
            kind = "INCREMENT" if increment != 1 else "CACHE" if cache != 1 else "CYCLE"
            value = {"INCREMENT": f" {increment}", "CACHE": f" {cache}", "CYCLE": ""}[kind]
            found[table.name] = _refused(table, f"its sequence {name} has {kind}{value}: ids do not come in order")
        elif not readable:
            error = _refused(table, f"the last id given out by {name} cannot be read")
            error.remedy = f"GRANT SELECT ON SEQUENCE {name} TO the source's user, or set lookback"
            found[table.name] = error
        else:
            found[table.name] = f"SELECT coalesce(pg_sequence_last_value({oid}::regclass), {start} - 1)"
    return found


def _none(table: Table) -> SourceError:
    return _refused(table, "no sequence belongs to it: nothing tells in which order ids appear")


def _refused(table: Table, reason: str) -> SourceError:
    column = table.cursor.column if table.cursor else ""
    return SourceError(
        f'cursor column "{column}": {reason}',
        where=table.where_text,
        why="An id below the watermark could still be inserted, and would be lost.",
        remedy="Re-read as many ids as can come late, for example   lookback: 1000   or choose a timestamp cursor",
        docs="docs/cursors.md#integers",
    )


def _string(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"

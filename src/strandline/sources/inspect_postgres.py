"""What PostgreSQL's catalog tells `doctor` and `init`."""

from __future__ import annotations

from strandline.core.table import TableInfo
from strandline.sources.database import Session
from strandline.sources.dialect import Dialect
from strandline.sources.inspection import Stamp
from strandline.sources.names import split

_FIND = "c.relname = {table} AND n.nspname = {schema}"
_DEFAULT = """
SELECT pg_get_expr(d.adbin, d.adrelid)
  FROM pg_attrdef d JOIN pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
  JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE {find} AND a.attname = {column}
"""
# Row triggers (1) before (2) update (16), enabled; what their function says, and what it is told.
_TRIGGERS = """
SELECT t.tgname::text, p.prosrc, encode(t.tgargs, 'escape')
  FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
  JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE {find} AND NOT t.tgisinternal AND t.tgenabled <> 'D' AND t.tgtype & 19 = 19 ORDER BY 1
"""


class PostgresCatalog:
    def __init__(self, session: Session, dialect: Dialect) -> None:
        self._session = session
        self._dialect = dialect

    def product(self) -> str:
        return f"PostgreSQL {self._session.rows('SHOW server_version')[0][0].split()[0]}"

    def stamp(self, info: TableInfo, column: str) -> Stamp:
        schema, table = (self._dialect.string(part) for part in split(info.name))
        find = _FIND.format(schema=schema, table=table)
        defaults = self._session.rows(_DEFAULT.format(find=find, column=self._dialect.string(column)))
        named = [
            name for name, body, told in self._session.rows(_TRIGGERS.format(find=find)) if column in f"{body} {told}"
        ]
        return Stamp(f"default {defaults[0][0]}" if defaults else "", f"trigger {named[0]}" if named else "")

    def stamp_remedy(self, info: TableInfo, column: str) -> str:
        quote = self._dialect.quote
        schema, table = split(info.name)
        function = f"{quote(schema)}.{quote(f'touch_{table}')}"
        return (
            f"CREATE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS\n"
            f"  $$ BEGIN NEW.{quote(column)} := now(); RETURN NEW; END $$;\n"
            f"CREATE TRIGGER {quote(f'touch_{table}')} BEFORE UPDATE ON {quote(schema)}.{quote(table)}\n"
            f"  FOR EACH ROW EXECUTE FUNCTION {function}();"
        )

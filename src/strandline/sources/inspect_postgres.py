"""What PostgreSQL's catalog tells `doctor` and `init`."""

from __future__ import annotations

from collections.abc import Collection

from strandline.core.table import TableInfo
from strandline.sources.database import Session
from strandline.sources.dialect import Dialect
from strandline.sources.inspection import CONSTRAINT, Hidden, Numbers, Stamp, assigns
from strandline.sources.names import split

_FIND = "c.relname = {table} AND n.nspname = {schema}"
_DEFAULT = """
SELECT pg_get_expr(d.adbin, d.adrelid)
  FROM pg_attrdef d JOIN pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
  JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE {find} AND a.attname = {column}
"""
# Row triggers (1) before (2) insert (4) or update (16) that fire for ordinary writers: what their function says, what
# it is told, the columns they are bound to, and whether a condition narrows them to less than every change of the row.
_TRIGGERS = """
SELECT t.tgname::text, p.prosrc, encode(t.tgargs, 'escape'), t.tgtype & 4 > 0, t.tgtype & 16 > 0,
       (SELECT string_agg(a.attname, ', ' ORDER BY a.attnum) FROM pg_attribute a
         WHERE a.attrelid = t.tgrelid AND a.attnum = ANY(t.tgattr::int2[])),
       t.tgqual IS NOT NULL AND pg_get_triggerdef(t.oid) !~* 'old\\.\\* IS DISTINCT FROM new\\.\\*'
  FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
  JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE {find} AND NOT t.tgisinternal AND t.tgenabled IN ('O', 'A') AND t.tgtype & 3 = 3 ORDER BY 1
"""
_SEQUENCE = """
SELECT s.seqrelid::regclass::text, s.seqincrement, s.seqcache, s.seqcycle,
       least(s.seqmax, CASE a.atttypid WHEN 'int2'::regtype THEN 32767 WHEN 'int4'::regtype THEN 2147483647
                       ELSE 9223372036854775807 END),
       CASE WHEN has_sequence_privilege(s.seqrelid, 'SELECT, USAGE') THEN pg_sequence_last_value(s.seqrelid) END
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = {column}
  JOIN pg_depend d ON d.refclassid = 'pg_class'::regclass AND d.refobjid = c.oid AND d.refobjsubid = a.attnum
   AND d.classid = 'pg_class'::regclass AND d.deptype IN ('a', 'i')
  JOIN pg_sequence s ON s.seqrelid = d.objid
 WHERE {find}
"""
_HIDDEN = """
SELECT row_security_active(c.oid), EXISTS (SELECT 1 FROM pg_subscription_rel r WHERE r.srrelid = c.oid)
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE {find}
"""
# Overloads disagree (length of text is immutable, of bytea in an encoding is not): only if all of them may change.
_UNSTEADY = """
SELECT p.proname::text FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
 WHERE p.proname = ANY(ARRAY[{names}]::text[]) GROUP BY p.proname
HAVING bool_and(p.provolatile = 'v' OR (p.provolatile = 's' AND n.nspname <> 'pg_catalog'))
"""


class PostgresCatalog:
    key_remedy = CONSTRAINT

    def __init__(self, session: Session, dialect: Dialect) -> None:
        self._session = session
        self._dialect = dialect

    def product(self) -> str:
        return f"PostgreSQL {self._session.rows('SHOW server_version')[0][0].split()[0]}"

    def clock(self) -> str:
        at = "to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US')"
        return str(self._session.rows(f"SELECT {at}")[0][0])

    def stamp(self, info: TableInfo, column: str) -> Stamp:
        find = self._find(info)
        defaults = self._session.rows(_DEFAULT.format(find=find, column=self._dialect.string(column)))
        inserted, updated, sometimes = f"default {defaults[0][0]}" if defaults else "", "", ""
        for name, body, told, inserts, updates, bound, narrowed in self._session.rows(_TRIGGERS.format(find=find)):
            if not (assigns(body, column, exact=True) or column in told):
                continue
            inserted = f"trigger {name}" if inserts else inserted
            if updates and (bound or narrowed):
                sometimes = f"trigger {name}, only for updates of {bound}" if bound else f"trigger {name}, by its WHEN"
            elif updates:
                updated = updated or f"trigger {name}"
        return Stamp(inserted, updated, sometimes)

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

    def default_remedy(self, info: TableInfo, column: str) -> str:
        return f"ALTER TABLE {self._relation(info)} ALTER {self._dialect.quote(column)} SET DEFAULT now();"

    def numbers(self, info: TableInfo, column: str) -> Numbers | None:
        sql = _SEQUENCE.format(find=self._find(info), column=self._dialect.string(column))
        for name, step, cache, cycles, most, last in self._session.rows(sql):
            return Numbers(name, last, int(most), int(step), int(cache), bool(cycles))
        return None

    def hidden(self, info: TableInfo) -> list[Hidden]:
        found = []
        for secured, subscribed in self._session.rows(_HIDDEN.format(find=self._find(info))):
            if secured:
                text = "row-level security hides rows from this user: they never arrive"
                found.append(Hidden(text, "ALTER ROLE … BYPASSRLS, or a policy that lets it see every row", "rows"))
            if subscribed:
                text = "is fed by a subscription: its rows arrive later than they are stamped, and fire no triggers"
                found.append(Hidden(text, "Re-read what may come late, for example   lookback: 10m", "stamps"))
        return found

    def unsteady(self, functions: Collection[str]) -> set[str]:
        if not functions:
            return set()
        names = ", ".join(self._dialect.string(name) for name in sorted(functions))
        return {str(name) for (name,) in self._session.rows(_UNSTEADY.format(names=names))}

    def sight(self) -> str:
        if self._session.rows("SELECT pg_has_role('pg_read_all_stats', 'USAGE')")[0][0]:
            return ""
        return (
            "the barrier is complete, but whoever holds it shows without its age and statement: "
            "GRANT pg_read_all_stats TO the source's user to see them"
        )

    def select_remedy(self, info: TableInfo) -> str:
        user = self._dialect.quote(str(self._session.rows("SELECT current_user")[0][0]))
        return f"GRANT SELECT ON {self._relation(info)} TO {user};"

    def _find(self, info: TableInfo) -> str:
        schema, table = (self._dialect.string(part) for part in split(info.name))
        return _FIND.format(schema=schema, table=table)

    def _relation(self, info: TableInfo) -> str:
        return ".".join(self._dialect.quote(part) for part in split(info.name))

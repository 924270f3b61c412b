"""What MySQL's and MariaDB's catalog tells `doctor` and `init`."""

from __future__ import annotations

from strandline.core.table import TableInfo
from strandline.sources.database import Session
from strandline.sources.dialect import Dialect
from strandline.sources.inspection import Stamp
from strandline.sources.names import split

_COLUMN = """
SELECT column_default, extra, column_type FROM information_schema.columns
 WHERE table_schema = {schema} AND table_name = {table} AND column_name = {column}
"""
_TRIGGERS = """
SELECT trigger_name, action_statement FROM information_schema.triggers
 WHERE event_object_schema = {schema} AND event_object_table = {table}
   AND event_manipulation = 'UPDATE' AND action_timing = 'BEFORE' ORDER BY 1
"""


class MysqlCatalog:
    def __init__(self, session: Session, dialect: Dialect) -> None:
        self._session = session
        self._dialect = dialect

    def product(self) -> str:
        version, comment = (str(value) for value in self._session.rows("SELECT @@version, @@version_comment")[0])
        maria = "mariadb" in f"{version} {comment}".lower()
        return f"{'MariaDB' if maria else 'MySQL'} {version.split('-')[0]}"

    def stamp(self, info: TableInfo, column: str) -> Stamp:
        names = self._names(info)
        found = self._session.rows(_COLUMN.format(**names, column=self._dialect.string(column)))
        if not found:  # a view: what stamps its rows is behind it
            return Stamp()
        default, extra = (str(value or "") for value in found[0][:2])
        inserted = f"default {default}" if default and default.upper() != "NULL" else ""
        if "on update" in extra.lower():
            return Stamp(inserted, "ON UPDATE CURRENT_TIMESTAMP")
        named = [name for name, body in self._session.rows(_TRIGGERS.format(**names)) if column in body]
        return Stamp(inserted, f"trigger {named[0]}" if named else "")

    def stamp_remedy(self, info: TableInfo, column: str) -> str:
        kind = self._session.rows(_COLUMN.format(**self._names(info), column=self._dialect.string(column)))[0][2]
        digits = kind[kind.find("(") :] if "(" in kind else ""
        quote = self._dialect.quote
        relation = ".".join(quote(part) for part in split(info.name))
        now = f"CURRENT_TIMESTAMP{digits}"
        return f"ALTER TABLE {relation} MODIFY {quote(column)} {kind} NOT NULL DEFAULT {now} ON UPDATE {now};"

    def _names(self, info: TableInfo) -> dict[str, str]:
        schema, table = (self._dialect.string(part) for part in split(info.name))
        return {"schema": schema, "table": table}

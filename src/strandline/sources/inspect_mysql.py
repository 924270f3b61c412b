"""What MySQL's and MariaDB's catalog tells `doctor` and `init`."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from strandline.core.table import TableInfo
from strandline.sources.database import Session
from strandline.sources.dialect import Dialect
from strandline.sources.inspection import CONSTRAINT, Hidden, Numbers, Stamp, assigns
from strandline.sources.names import split

_COLUMN = """
SELECT column_default, extra, column_type FROM information_schema.columns
 WHERE table_schema = {schema} AND table_name = {table} AND column_name = {column}
"""
_TRIGGERS = """
SELECT trigger_name, action_statement, event_manipulation FROM information_schema.triggers
 WHERE event_object_schema = {schema} AND event_object_table = {table}
   AND event_manipulation IN ('INSERT', 'UPDATE') AND action_timing = 'BEFORE' ORDER BY 1
"""
_NEXT = "SELECT auto_increment FROM information_schema.tables WHERE table_schema = {schema} AND table_name = {table}"
# A cascade changes the row behind the server's back: neither ON UPDATE nor a trigger sees it.
_CASCADES = """
SELECT constraint_name FROM information_schema.referential_constraints
 WHERE constraint_schema = {schema} AND table_name = {table}
   AND (update_rule IN ('CASCADE', 'SET NULL', 'SET DEFAULT') OR delete_rule IN ('SET NULL', 'SET DEFAULT')) ORDER BY 1
"""
_UNSTEADY = """
SELECT DISTINCT LOWER(routine_name) FROM information_schema.routines
 WHERE routine_type = 'FUNCTION' AND is_deterministic = 'NO' AND LOWER(routine_name) IN ({names})
"""
_MOST = {"tinyint": 7, "smallint": 15, "mediumint": 23, "int": 31, "bigint": 63}


class _Column(NamedTuple):
    default: str = ""
    extra: str = ""
    type: str = ""  # empty: not a column of a table


class MysqlCatalog:
    key_remedy = CONSTRAINT

    def __init__(self, session: Session, dialect: Dialect) -> None:
        self._session = session
        self._dialect = dialect

    def product(self) -> str:
        version, comment = (str(value) for value in self._session.rows("SELECT @@version, @@version_comment")[0])
        maria = "mariadb" in f"{version} {comment}".lower()
        return f"{'MariaDB' if maria else 'MySQL'} {version.split('-')[0]}"

    def clock(self) -> str:
        return str(self._session.rows("SELECT CAST(NOW(6) AS CHAR)")[0][0])

    def stamp(self, info: TableInfo, column: str) -> Stamp:
        names = self._names(info)
        found = self._column(info, column)
        if not found.type:  # a view: what stamps its rows is behind it
            return Stamp()
        inserted = f"default {found.default}" if found.default and found.default.upper() != "NULL" else ""
        updated = "ON UPDATE CURRENT_TIMESTAMP" if "on update" in found.extra.lower() else ""
        for name, body, event in self._session.rows(_TRIGGERS.format(**names)):
            if assigns(body, column, exact=False):
                inserted = f"trigger {name}" if event == "INSERT" else inserted
                updated = updated or (f"trigger {name}" if event == "UPDATE" else "")
        return Stamp(inserted, updated)

    def stamp_remedy(self, info: TableInfo, column: str) -> str:
        return self._modify(info, column, "DEFAULT {now} ON UPDATE {now}")

    def default_remedy(self, info: TableInfo, column: str) -> str:
        on_update = "on update" in self._column(info, column).extra.lower()
        return self._modify(info, column, "DEFAULT {now}" + (" ON UPDATE {now}" if on_update else ""))

    def _modify(self, info: TableInfo, column: str, rules: str) -> str:
        kind = self._column(info, column).type
        if kind.lower().startswith("date") and not kind.lower().startswith("datetime"):
            return "A date cannot be stamped by the server: use a DATETIME(6) or TIMESTAMP(6) column."
        digits = kind[kind.find("(") :] if "(" in kind else ""
        text = rules.format(now=f"CURRENT_TIMESTAMP{digits}")
        return f"ALTER TABLE {self._relation(info)} MODIFY {self._dialect.quote(column)} {kind} NOT NULL {text};"

    def numbers(self, info: TableInfo, column: str) -> Numbers | None:
        found = self._column(info, column)
        if "auto_increment" not in found.extra.lower():
            return None
        following = self._session.rows(_NEXT.format(**self._names(info)))[0][0]
        step = int(self._session.rows("SELECT @@global.auto_increment_increment")[0][0])
        bits = _MOST.get(found.type.split("(")[0].split()[0].lower(), 63) + ("unsigned" in found.type.lower())
        return Numbers("AUTO_INCREMENT", None if following is None else int(following) - 1, 2**bits - 1, step)

    def hidden(self, info: TableInfo) -> list[Hidden]:
        cascades = [str(name) for (name,) in self._session.rows(_CASCADES.format(**self._names(info)))]
        if not cascades:
            return []
        text = f"is changed by foreign key {', '.join(cascades)} without its triggers and ON UPDATE: cursors stay"
        remedy = "Update the referring rows yourself (ON UPDATE RESTRICT), or compare the copy from time to time."
        return [Hidden(text, remedy, "changes")]

    def unsteady(self, functions: Collection[str]) -> set[str]:
        if not functions:
            return set()
        names = ", ".join(self._dialect.string(name) for name in sorted(functions))
        return {str(name) for (name,) in self._session.rows(_UNSTEADY.format(names=names))}

    def sight(self) -> str:
        """With PROCESS everything shows, and without it the barrier refuses."""
        return ""

    def select_remedy(self, info: TableInfo) -> str:
        user, _, host = str(self._session.rows("SELECT CURRENT_USER()")[0][0]).rpartition("@")
        return f"GRANT SELECT ON {self._relation(info)} TO '{user}'@'{host}';"

    def _column(self, info: TableInfo, column: str) -> _Column:
        rows = self._session.rows(_COLUMN.format(**self._names(info), column=self._dialect.string(column)))
        return _Column(*(_text(value) for value in rows[0])) if rows else _Column()

    def _names(self, info: TableInfo) -> dict[str, str]:
        schema, table = (self._dialect.string(part) for part in split(info.name))
        return {"schema": schema, "table": table}

    def _relation(self, info: TableInfo) -> str:
        return ".".join(self._dialect.quote(part) for part in split(info.name))


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value or "")

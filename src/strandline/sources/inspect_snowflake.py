"""What Snowflake's catalog tells `doctor` and `init`. It has no triggers: nothing there moves a cursor by itself."""

from __future__ import annotations

from collections.abc import Collection

from strandline.core.table import TableInfo
from strandline.sources.database import Session
from strandline.sources.dialect import Dialect
from strandline.sources.inspection import Hidden, Numbers, Stamp
from strandline.sources.names import split
from strandline.sources.snowflake_names import stored

_DEFAULT = """
SELECT COLUMN_DEFAULT FROM INFORMATION_SCHEMA.COLUMNS
 WHERE TABLE_SCHEMA = {schema} AND TABLE_NAME = {table} AND COLUMN_NAME = {column}
"""


class SnowflakeInspection:
    key_remedy = "If it is unique, all is well: Snowflake itself keeps keys unique in hybrid tables only."

    def __init__(self, session: Session, dialect: Dialect) -> None:
        self._session = session
        self._dialect = dialect

    def product(self) -> str:
        return f"Snowflake {self._session.rows('SELECT CURRENT_VERSION()')[0][0]}"

    def clock(self) -> str:
        return str(self._session.rows("SELECT TO_VARCHAR(SYSDATE(), 'YYYY-MM-DD HH24:MI:SS.FF6')")[0][0])

    def stamp(self, info: TableInfo, column: str) -> Stamp:
        string = self._dialect.string
        schema, table = (string(stored(part)) for part in split(info.name))
        found = self._session.rows(_DEFAULT.format(schema=schema, table=table, column=string(stored(column))))
        return Stamp(f"default {found[0][0]}" if found and found[0][0] is not None else "")

    def stamp_remedy(self, _info: TableInfo, column: str) -> str:
        return f"Let whatever updates rows set {self._dialect.quote(column)} = CURRENT_TIMESTAMP()."

    def default_remedy(self, info: TableInfo, column: str) -> str:
        name = self._dialect.quote(column)
        return (
            f"Let whatever inserts rows leave {name} to the database; a new table takes   "
            f"{name} TIMESTAMP_LTZ NOT NULL DEFAULT CURRENT_TIMESTAMP()   ({info.name} cannot be given a default later)"
        )

    def numbers(self, _info: TableInfo, _column: str) -> Numbers | None:
        """Sequences tell no number that they gave out."""
        return None

    def hidden(self, _info: TableInfo) -> list[Hidden]:
        return []

    def unsteady(self, _functions: Collection[str]) -> set[str]:
        return set()

    def sight(self) -> str:
        return "Snowflake shows nothing that is in flight: late commits are found by lookback and verify"

    def select_remedy(self, info: TableInfo) -> str:
        role = self._session.rows("SELECT CURRENT_ROLE()")[0][0]
        relation = ".".join(self._dialect.quote(part) for part in split(info.name))
        return f"GRANT SELECT ON TABLE {relation} TO ROLE {role};"

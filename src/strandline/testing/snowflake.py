"""A stand-in for Snowflake, for tests: fakesnow, which runs Snowflake's SQL on DuckDB behind Snowflake's protocol.

It lives in an environment of its own, beside Strandline's (`make test` makes it), since it pins other versions of what
we use. What Strandline asks for and it lacks is added to it here; what it cannot do at all is listed in
docs/snowflake.md.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.request import urlopen

from strandline.core.errors import SetupError
from strandline.testing.servers import Server

if TYPE_CHECKING:
    from snowflake.connector import SnowflakeConnection

_PROGRAM = r"""
import re
import sys
import duckdb
from fakesnow import cli, cursor, macros
from snowflake.connector.errors import ProgrammingError
from sqlglot import exp

ADDED = '''
CREATE OR REPLACE MACRO {0}.current_organization_name() AS 'STRAND';
CREATE OR REPLACE MACRO {0}.current_account_name() AS 'LINE';
CREATE OR REPLACE MACRO {0}.current_warehouse() AS 'LOADING';
CREATE OR REPLACE MACRO {0}.m_d5_number_lower64(x) AS md5_number_lower(x);
CREATE OR REPLACE MACRO {0}.strandline_unhex(x) AS ('0x' || x)::UBIGINT::BIGINT;
CREATE OR REPLACE MACRO {0}.strandline_hex(x) AS lower(lpad(to_hex(x::UBIGINT), 16, '0'));
'''
REFUSED = '''{0}
  File '{1}', line 1, character 0
  Row 1, column "STAGED"["C{2}":{3}]
  If you would like to continue loading when an error is encountered, use other values such as 'SKIP_FILE' or
  'CONTINUE' for the ON_ERROR option.'''
ZONE = "SHOW PARAMETERS LIKE 'TIMEZONE'"
Cursor = cursor.FakeSnowflakeCursor
made, execute, transform = macros.creation_sql, Cursor.execute, Cursor._transform
copy_into = cursor.copy_into
describe, described = Cursor._describe_last_sql, {}


def known(expression):
    if isinstance(expression, exp.ToNumber) and "X" in expression.text("format"):
        return exp.Anonymous(this="strandline_unhex", expressions=[expression.this])
    if isinstance(expression, exp.ToChar) and "xx" in expression.text("format"):
        return exp.Anonymous(this="strandline_hex", expressions=[expression.this])
    if isinstance(expression, exp.Bracket) and isinstance(expression.this, exp.Parameter):
        return exp.column(expression.expressions[0].name, quoted=True)
    return expression


def executed(self, command, *args, **kwargs):
    asked = "SELECT 'TIMEZONE' AS \"key\", 'Etc/UTC' AS \"value\"" if command.startswith(ZONE) else command
    return execute(self, asked, *args, **kwargs)


def columns(self):  # what a statement without rows of its own says of itself is always the same
    if " FROM " in self._last_sql.upper():
        return describe(self)
    if self._last_sql not in described:
        described[self._last_sql] = describe(self)
    return described[self._last_sql]


class Heard:
    def __init__(self, connection):
        self.connection, self.sql = connection, ""

    def __getattr__(self, name):
        return getattr(self.connection, name)

    def execute(self, sql, *given):
        self.sql = sql
        return self.connection.execute(sql, *given)


def copied(connection, *given):  # what it cannot load is refused in Snowflake's form, not by HTTP 500
    heard = Heard(connection)
    try:
        return copy_into(heard, *given)
    except (duckdb.Error, ProgrammingError) as error:
        file = re.search(r"(?i)read_parquet\('([^']*)'", heard.sql)
        if file is None:
            raise
        said = re.sub(r"^\d+ \(\w+\): ", "", str(error)).split("\n")[0]
        column, names = re.search(r"source column (\w+)", said), re.findall(r'CAST\("(\w+)"', heard.sql)
        at = names.index(column[1]) if column else 0
        text = REFUSED.format(said, file[1].rpartition("/")[2], at, at + 1)
        raise ProgrammingError(msg=text, errno=100038, sqlstate="22018") from None


macros.creation_sql = lambda catalog: made(catalog) + ADDED.format(catalog)
Cursor._transform = lambda self, expression, params: transform(self, expression.transform(known), params)
Cursor.execute, Cursor._describe_last_sql, cursor.copy_into = executed, columns, copied
sys.exit(cli.main(sys.argv[1:]))
"""


class Fakesnow(Server):
    """It takes any login, and makes any database and schema that somebody connects to."""

    scheme = "snowflake"
    user = "loader"
    database = "SHOP/PUBLIC"
    _refuses_root = False
    _give_up = signal.SIGKILL

    @staticmethod
    def python() -> Path:
        return Path(sys.prefix) / "fakesnow" / "bin" / "python"

    def url(self, database: str | None = None, user: str | None = None, password: str | None = None) -> str:
        return f"{super().url(database, user, password).replace('%2F', '/')}?protocol=http&network_timeout=60"

    def connect(self, database: str | None = None, **options: Any) -> SnowflakeConnection:
        from strandline.endpoint import Endpoint
        from strandline.sources.snowflake_session import SnowflakeSession

        return SnowflakeSession(Endpoint.parse(self.url(database), options)).connect()

    def _create(self) -> None:
        if not self.python().exists():
            raise SetupError("fakesnow is not installed", remedy="make .venv/fakesnow/.ready")

    def _command(self) -> list[str]:
        return [str(self.python()), "-c", _PROGRAM, "-s", "-p", str(self.port)]

    def _variables(self) -> dict[str, str]:
        return {"TMPDIR": str(self.folder)}

    def _ready(self) -> bool:
        try:
            with urlopen(f"http://127.0.0.1:{self.port}/", timeout=5):
                return True
        except HTTPError:
            return True
        except OSError:
            return False

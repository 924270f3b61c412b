"""Table names as people write them: `orders`, `sales.orders`, `sales."odd.name"`, `sales.*`.

Owns parsing, matching and suggestions. Knows nothing of databases; quoting for SQL is the dialect's business.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from strandline.core.errors import SourceError

_PART = re.compile(r'"((?:[^"]|"")+)"|([^."]+)')
_NAME = re.compile(rf"(?:{_PART.pattern})(?:\.(?:{_PART.pattern}))?")


OWN = "strandline_"
"""How the names of our own tables begin, in a database that is a target or a state store too: no glob means them."""


@dataclass(frozen=True)
class Pattern:
    """One name or glob. A quoted part is taken as it stands; `*`, `?` and `[` are wild elsewhere."""

    text: str
    schema: str | None
    table: str
    schema_wild: bool
    table_wild: bool

    @property
    def wild(self) -> bool:
        return self.schema_wild or self.table_wild

    def matches(self, schema: str, table: str, default: str) -> bool:
        if table.startswith(OWN) and self.wild and not self.table.startswith(OWN):
            return False
        wanted = default if self.schema is None else self.schema
        in_schema = fnmatchcase(schema, wanted) if self.schema_wild else schema == wanted
        return in_schema and (fnmatchcase(table, self.table) if self.table_wild else table == self.table)


def pattern(text: str) -> Pattern:
    """Parse `table` or `schema.table`, each part optionally in double quotes."""
    if not _NAME.fullmatch(text):
        raise SourceError(
            f'"{text}" is not a table name', remedy='Write table or schema.table; a part with dots goes in "quotes"'
        )
    parts = [_read(*found.groups()) for found in _PART.finditer(text)]
    (table, table_wild) = parts[-1]
    (schema, schema_wild) = parts[0] if len(parts) == 2 else (None, False)
    return Pattern(text, schema, table, schema_wild, table_wild)


def _read(quoted: str | None, plain: str) -> tuple[str, bool]:
    """One part, and whether it is wild."""
    return (quoted.replace('""', '"'), False) if quoted else (plain, bool(re.search(r"[*?\[]", plain)))


def render(schema: str, table: str) -> str:
    """`schema.table`, quoted only where it could not be read back."""
    return ".".join(_part(part) for part in (schema, table))


def split(name: str) -> tuple[str, str]:
    """The two parts of a name that `render` wrote."""
    found = pattern(name)
    if found.schema is None:
        raise SourceError(f'"{name}" has no schema')
    return found.schema, found.table


def nearest(name: str, known: Iterable[str]) -> str:
    """A remedy: the names that look like the one not found, or the first few there are."""
    names = sorted(set(known))
    if not names:
        return "There are none."
    lower = {candidate.lower(): candidate for candidate in names}
    close = [lower[found] for found in difflib.get_close_matches(name.lower(), lower, n=3)]
    if close:
        return "Did you mean " + " or ".join(close) + "?"
    return "There are: " + ", ".join(names[:12]) + (" …" if len(names) > 12 else "")


def _part(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if re.search(r'[."*?\[]', text) else text

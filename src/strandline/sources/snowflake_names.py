"""Snowflake's names as everybody else writes them.

An identifier that nobody quoted is stored in capitals. It is `orders` here and ORDERS there, so that what comes from
other databases needs no quotes in Snowflake, and the other way round; every other name is kept as it stands. A name
stored in small letters, which would read like the first kind, wears its quotes: `"orders"`.
"""

from __future__ import annotations

import re

_FOLDED = re.compile(r"[A-Z_][A-Z0-9_$]*")
_PLAIN = re.compile(r"[a-z_][a-z0-9_$]*")
_QUOTED = re.compile(rf'"({_PLAIN.pattern})"')


def shown(stored: str) -> str:
    """The name that Strandline uses for one that Snowflake stores."""
    if _FOLDED.fullmatch(stored):
        return stored.lower()
    return f'"{stored}"' if _PLAIN.fullmatch(stored) else stored


def stored(name: str) -> str:
    """The name as Snowflake stores it. Capitals are taken for what they are: `ID` and `id` are one."""
    if found := _QUOTED.fullmatch(name):
        return found[1]
    return name.upper() if _PLAIN.fullmatch(name) else name


def settled(name: str) -> str:
    """One spelling for all that mean the same: `ID` becomes `id`."""
    return shown(stored(name))


def quoted(name: str) -> str:
    return '"' + stored(name).replace('"', '""') + '"'

"""A statement as it may be shown: what it does, without the values in it.

Text that cannot be told apart from a value is cut off, together with everything after it.
"""

from __future__ import annotations

import re

LENGTH = 200
_TOKEN = re.compile(
    r"""
      (?P<space> \s+ | --[^\n]* | \#[^\n]* )
    | (?P<comment> /\* )
    | (?P<dollar> \$(?:[^\W\d]\w*)?\$ )
    | (?P<name> (?:[^\W\d][\w$]*) | \$\d+ | [@:]+[^\W\d]\w* | `[^`'"]*` )
    | (?P<number> 0[xX][0-9a-fA-F]+ | (?:\d[\d_]*(?:\.[\d_]*)?|\.\d+)(?:[eE][+-]?\d+)?\w* )
    | (?P<quote> ['"] )
    | (?P<sign> . )
    """,
    re.VERBOSE | re.DOTALL,
)
_PREFIX = re.compile(r"(?:[eEnNbBxX]|[uU]&|_\w+)$")


def without_literals(sql: str, *, double_quotes: bool = False) -> str:
    """Every string and number as `?`, comments gone, white space closed up, at most `LENGTH` characters.

    `double_quotes`: they enclose strings (MySQL) rather than names. Whether a backslash escapes a quote is the
    session's affair, so a string in which it would matter ends what is shown, as does a string that never closes: the
    server itself cuts long statements.
    """
    shown: list[str] = []
    at = 0
    while at < len(sql) and (token := _TOKEN.match(sql, at)):
        kind, text, at = token.lastgroup, token[0], token.end()
        if kind == "space":
            shown.append(" ")
        elif kind == "number":
            shown.append("?")
        elif kind in ("comment", "dollar", "quote"):
            end = _end(sql, at, text)
            if kind == "quote" and (text == "'" or double_quotes):
                _drop_prefix(shown)
            if end is None:
                shown.append("…")
                break
            shown.append(" " if kind == "comment" else sql[at - 1 : end] if _names(text, double_quotes) else "?")
            at = end
        else:
            shown.append(text)
    closed = " ".join("".join(shown).split())
    return closed if len(closed) <= LENGTH else closed[: LENGTH - 1] + "…"


def _names(opening: str, double_quotes: bool) -> bool:
    return opening == '"' and not double_quotes


def _drop_prefix(shown: list[str]) -> None:
    """`E'…'`, `X'…'`, `U&'…'`, `_utf8'…'`: the prefix belongs to the string."""
    if shown and shown[-1] == "&" and len(shown) > 1 and shown[-2] in ("U", "u"):
        del shown[-2:]
    elif shown and _PREFIX.fullmatch(shown[-1]):
        shown.pop()


def _end(sql: str, at: int, opening: str) -> int | None:
    """Where what was opened before `at` ends; None: nowhere, or it depends."""
    if opening == "/*":
        return _comment_end(sql, at)
    if opening.startswith("$"):
        end = sql.find(opening, at)
        return None if end < 0 else end + len(opening)
    while True:
        end = sql.find(opening, at)
        if end < 0 or (end > 0 and sql[end - 1] == "\\"):
            return None
        if sql[end + 1 : end + 2] != opening:
            return end + 1
        at = end + 2


def _comment_end(sql: str, at: int) -> int | None:
    """Comments nest in PostgreSQL and not in MySQL: one that opens inside another ends what can be shown."""
    end, nested = sql.find("*/", at), sql.find("/*", at)
    return None if end < 0 or 0 <= nested < end else end + 2

"""Names and strings as Spark's SQL spells them. Text only: importing this loads no Spark."""

from __future__ import annotations


def quoted(name: str) -> str:
    """An identifier as SQL text; every name that reaches Spark's SQL passes here."""
    return f"`{name.replace('`', '``')}`"


def literal(text: str) -> str:
    """A string as SQL text."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"

"""Checks of `where:` and `query:`: a filter whose verdict on a row can change leaves the copy behind.

Reads words, not SQL: what a filter names is compared with the table's columns and with functions that give another
answer tomorrow. In doubt it says what to look at; the user knows whether the column changes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from strandline.core.table import Mode
from strandline.doctor.cursor import Subject
from strandline.doctor.finding import Finding, warn

_AREA = "source"
_DOCS = "docs/doctor.md#filters"
_STRINGS = re.compile(r"'(?:[^']|'')*'|--[^\n]*|/\*.*?\*/", re.DOTALL)
_WORDS = re.compile(r'"(?:[^"]|"")+"|`(?:[^`]|``)+`|[A-Za-z_\u0080-\uffff][\w$]*')
_CALLS = re.compile(r"([A-Za-z_][\w$]*)\s*\(")
_CLOCKS = {  # the same in both databases' tongues, with or without parentheses
    "now", "clock_timestamp", "transaction_timestamp", "statement_timestamp", "current_timestamp", "current_date",
    "current_time", "localtime", "localtimestamp", "timeofday", "age", "sysdate", "curdate", "curtime", "utc_date",
    "utc_time", "utc_timestamp", "unix_timestamp", "random", "rand", "gen_random_uuid", "uuid", "uuid_generate_v4",
    "nextval", "currval", "lastval", "txid_current", "current_user", "session_user", "connection_id", "current_setting",
}  # fmt: skip


def check_filter(subject: Subject) -> Iterator[Finding]:
    table = subject.table
    for option, text in (("where", table.where), ("query", table.query)):
        if text is None:
            continue
        code = _STRINGS.sub(" ", text)
        words = {_plain(word) for word in _WORDS.findall(code)}
        yield from _unsteady(subject, option, code, words)
        if option == "where" and table.mode is Mode.MERGE:
            yield from _changing(subject, words)


def _changing(subject: Subject, words: set[str]) -> Iterator[Finding]:
    table = subject.table
    lower = {word.lower() for word in words}
    if "select" in lower:
        text = f"{table.name}: where looks into other rows: when they change, a row enters or leaves unseen"
        yield warn(_AREA, text, "Filter by columns of the row itself, or compare the copy.", docs=_DOCS)
    settled = {subject.cursor.column, *table.key}
    named = [column.name for column in subject.info.columns if column.name in words or column.name.lower() in lower]
    changing = [name for name in named if name not in settled]
    if changing:
        columns = ", ".join(changing)
        text = f"{table.name}: where filters by {columns}: a row that no longer meets it stays in the target as it was"
        remedy = f"If {columns} never changes, all is well. Otherwise read every row and filter in the target."
        yield warn(_AREA, text, remedy, docs=_DOCS)


def _unsteady(subject: Subject, option: str, code: str, words: set[str]) -> Iterator[Finding]:
    lower = {word.lower() for word in words}
    columns = {column.name.lower() for column in subject.info.columns}
    calls = {call.lower() for call in _CALLS.findall(code)}
    found = sorted((_CLOCKS & lower - columns) | subject.catalog.unsteady(calls))
    if found:
        text = f"{subject.table.name}: {option} uses {', '.join(found)}: whether a row is read depends on when"
        remedy = "Write a fixed value. How far to read is the watermark's business; where to begin is `initial:`."
        yield warn(_AREA, text, remedy, docs=_DOCS)


def _plain(word: str) -> str:
    quote = word[0]
    return word[1:-1].replace(quote * 2, quote) if quote in '"`' else word

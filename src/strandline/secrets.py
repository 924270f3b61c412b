"""Secrets: the values that must never be seen, and the one place that takes them out of a text.

Owns the forms a secret can take in logs, traces and URLs. Knows nothing of where secrets come from or where texts go.
"""

from __future__ import annotations

import html
import json
import logging
import re
from collections.abc import Iterator
from urllib.parse import quote, quote_plus

MASK = "***"
_NAMES = re.compile(
    r"pass(?:word|wd|phrase)|pwd|secret|token|credential|private|jaas|webhook|(?:api|access|account)[._-]?key", re.I
)
_URL_PASSWORD = re.compile(r"(://[^\s/:@'\"]*:)([^\s/@'\"]+)(?=@)")
_SHORT = 3  # below this a value is hidden only where a secret is expected
_WHOLE = 10  # below this a value is hidden only where it stands alone: "dev" must not turn "device" into "***ice"
_MASKED_LINE = 16  # a line of a longer secret (a private key) is hidden by itself from this length on


def looks_secret(name: str) -> bool:
    """Whether a key, variable or file of this name holds a secret."""
    return _NAMES.search(name) is not None


def url_passwords(text: str) -> list[str]:
    """The passwords of the URLs in a text, as they stand there."""
    return [found[2] for found in _URL_PASSWORD.finditer(text)]


class Redactor:
    """Replaces registered secrets in any text, also URL-encoded and as repr, JSON, HTML and Java write them."""

    def __init__(self) -> None:
        self._secrets: set[str] = set()
        self._pattern: re.Pattern[str] | None = None
        self._short: re.Pattern[str] | None = None

    def register(self, value: str) -> None:
        if not value or value in self._secrets:
            return
        self._secrets.add(value)
        if "\n" in value:
            self._secrets.update(line for line in value.splitlines() if len(line) >= _MASKED_LINE)
        self._compile()

    def redact(self, text: str) -> str:
        if self._pattern is not None:
            text = self._pattern.sub(MASK, text)
        if self._short is not None:
            text = self._short.sub(rf"\1{MASK}", text)
        return _URL_PASSWORD.sub(rf"\1{MASK}", text)

    def formatter(self, inner: logging.Formatter) -> logging.Formatter:
        """`inner`, redacted as a whole: message, arguments and traceback."""
        return _RedactedFormatter(inner, self)

    def _compile(self) -> None:
        forms = {form for secret in self._secrets if len(secret) >= _SHORT for form in _forms(secret)}
        if forms:
            longest_first = sorted(forms, key=lambda form: (-len(form), form))
            self._pattern = re.compile("|".join(_alone(form) for form in longest_first))
        short = sorted(re.escape(secret) for secret in self._secrets if len(secret) < _SHORT)
        if short:
            expected = rf"((?:{_NAMES.pattern})[\"']?\s*[=:]\s*[\"']?)"
            self._short = re.compile(rf"{expected}(?:{'|'.join(short)})(?![A-Za-z0-9])", re.I)


def _forms(secret: str) -> Iterator[str]:
    yield secret
    yield json.dumps(secret)[1:-1]
    yield json.dumps(secret, ensure_ascii=False)[1:-1]
    yield repr(secret)[1:-1]
    yield html.escape(secret)
    java = quote_plus(secret, safe="*").replace("~", "%7E")
    for encoded in (quote(secret, safe=""), quote(secret), quote_plus(secret), java):
        yield encoded
        yield re.sub(r"%[0-9A-F]{2}", lambda found: found[0].lower(), encoded)


def _alone(form: str) -> str:
    escaped = re.escape(form)
    if len(form) >= _WHOLE or not form.isalnum():
        return escaped
    # An escape sequence before the value ("%3Dhunter", "\nhunter") is a boundary too, though it ends in a letter.
    return rf"(?:(?<![A-Za-z0-9])|(?<=%[0-9A-Fa-f]{{2}})|(?<=\\[nrt])){escaped}(?![A-Za-z0-9])"


class _RedactedFormatter(logging.Formatter):
    def __init__(self, inner: logging.Formatter, redactor: Redactor) -> None:
        super().__init__()
        self._inner = inner
        self._redactor = redactor

    def format(self, record: logging.LogRecord) -> str:
        return self._redactor.redact(self._inner.format(record))

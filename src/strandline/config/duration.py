"""Durations as people write them: `500ms`, `5s`, `10m`, `1h30m`, `2d`, `1w`."""

from __future__ import annotations

import re
from datetime import timedelta

from strandline.core.errors import ConfigError

_UNITS = {
    "w": timedelta(weeks=1),
    "d": timedelta(days=1),
    "h": timedelta(hours=1),
    "m": timedelta(minutes=1),
    "s": timedelta(seconds=1),
    "ms": timedelta(milliseconds=1),
}
_PART = r"([0-9]{1,9}(?:\.[0-9]{1,3})?) ?(ms|[wdhms])"
PATTERN = f"^({_PART} ?)+$"


def parse_duration(text: str) -> timedelta:
    """Raises ConfigError for anything else, a bare number included."""
    if not re.fullmatch(PATTERN, text.strip()):
        raise ConfigError(f'"{text}" is not a duration; write 10s, 5m, 2h or 1d')
    try:
        return sum((float(amount) * _UNITS[unit] for amount, unit in re.findall(_PART, text)), timedelta())
    except OverflowError:
        raise ConfigError(f'"{text}" is too long') from None


def format_duration(span: timedelta) -> str:
    """What `parse_duration` reads back as the same span, to the millisecond."""
    rest = round(span / timedelta(milliseconds=1))
    text = ""
    for unit in ("d", "h", "m", "s", "ms"):
        amount, rest = divmod(rest, _UNITS[unit] // timedelta(milliseconds=1))
        text += f"{amount}{unit}" if amount else ""
    return text or "0s"

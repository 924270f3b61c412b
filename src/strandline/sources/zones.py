"""Zones of zone-less cursors: when a time of the database's clock is written down by clocks of another zone.

Owns zone arithmetic. Knows nothing of databases.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from strandline.core.errors import SourceError
from strandline.core.watermark import Kind, Watermark
from strandline.sources.names import nearest

_OFFSET = re.compile(r"([+-])(\d{1,2}):?(\d{2})")
_UTC_NAMES = {"utc", "etc/utc", "gmt", "etc/gmt", "uct", "etc/uct", "zulu", "universal", "greenwich", "+00:00", "z"}


def is_utc(zone: str) -> bool:
    return zone.lower() in _UTC_NAMES


def zone_info(zone: str) -> tzinfo:
    """An IANA name or an offset such as +09:00."""
    if is_utc(zone):
        return UTC
    if offset := _OFFSET.fullmatch(zone):
        sign, hours, minutes = offset.groups()
        shift = timedelta(hours=int(hours), minutes=int(minutes))
        return timezone(shift if sign == "+" else -shift)
    try:
        return ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError):
        remedy = nearest(zone, available_timezones())
        raise SourceError(f'"{zone}" is no time zone', remedy=remedy, docs="docs/cursors.md#zones") from None


def local(at: Watermark, zone: str) -> Watermark:
    """The smallest time that clocks of the zone can show from this UTC time on.

    That is what they show now, unless they are about to be set back: then what they will show after that. Clocks are
    set back by at most a day, at a full minute.
    """
    stamp = datetime.fromisoformat(at.text).replace(tzinfo=UTC)
    info = zone_info(zone)
    ahead = (stamp + timedelta(days=1)).astimezone(info).utcoffset()
    instants = [stamp]
    if ahead != stamp.astimezone(info).utcoffset():
        minute = stamp.replace(second=0, microsecond=0)
        instants += [minute + timedelta(minutes=count) for count in range(1, 24 * 60 + 1)]
    shown = min(instant.astimezone(info).replace(tzinfo=None) for instant in instants)
    return Watermark(Kind.TIMESTAMP, f"{shown:%Y-%m-%d %H:%M:%S.%f}")


def age(value: str, zone: str, now: str) -> str:
    """How old a zone-less value is, read in a zone, in words: evidence for a person to judge by."""
    at = datetime.fromisoformat(value).replace(tzinfo=zone_info(zone))
    seconds = (datetime.fromisoformat(now).replace(tzinfo=UTC) - at).total_seconds()
    return f"{_words(abs(seconds))} {'old' if seconds >= 0 else 'ahead'}"


def _words(seconds: float) -> str:
    for unit, size in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= size:
            count = round(seconds / size)
            return f"{count} {unit}{'s' if count != 1 else ''}"
    return f"{round(seconds)} seconds"

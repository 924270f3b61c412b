"""When pipelines run: values read from the config, pure functions of the time they are given.

`next(after)` is the first moment after a run that began then. A run that is late is never made up for more than once:
whoever is late runs now, and counts from now.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from strandline.core.errors import ConfigError

SHORTEST = timedelta(milliseconds=100)
_NONE = timedelta()
_HOUR = timedelta(hours=1)
_HOW = "write every 5m, a cron line with a zone (0 2 * * * Europe/Berlin), after PIPELINE or manual"
_JITTER = re.compile(r"(.*\S)\s+jitter\s+(.+)", re.DOTALL)
_CRON = re.compile(r"(?:using\s+)?(?:cron\s+)?((?:\S+\s+){4}\S+?)(?:\s+([A-Za-z][\w/+-]*))?", re.DOTALL | re.IGNORECASE)


@dataclass(frozen=True)
class Every:
    """So long after the last run began."""

    span: timedelta
    jitter: timedelta = _NONE
    text: str = field(default="", compare=False)

    def next(self, after: datetime, chance: float = 0.0) -> datetime:
        """`chance`, from 0 to 1: which part of the jitter is added."""
        return after + self.span + chance * self.jitter

    def overdue(self, after: datetime) -> datetime:
        """When a whole run will have been missed."""
        return after + 2 * self.span + self.jitter

    def first(self, now: datetime) -> datetime:
        """When something runs that never did."""
        return now

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Cron:
    """By the clock of a zone. Where summer time skips an hour, what stands in it runs right after; where it repeats
    one, it runs once."""

    line: str
    zone: str = "UTC"
    jitter: timedelta = _NONE
    text: str = field(default="", compare=False)

    @cached_property
    def _tz(self) -> ZoneInfo:
        return ZoneInfo(self.zone)

    def next(self, after: datetime, chance: float = 0.0) -> datetime:
        return self._slot(after) + chance * self.jitter

    def _slot(self, after: datetime) -> datetime:
        from cronsim import CronSim

        return next(CronSim(self.line, after.astimezone(self._tz))).astimezone(UTC)

    def overdue(self, after: datetime) -> datetime:
        slot = self._slot(after)
        return slot + self.jitter + min(self._slot(slot) - slot, _HOUR)

    def first(self, now: datetime) -> datetime:
        return self._slot(now)

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class After:
    """When a run of that pipeline has ended well."""

    pipeline: str

    def __str__(self) -> str:
        return f"after {self.pipeline}"


@dataclass(frozen=True)
class Manual:
    """Never by itself."""

    def __str__(self) -> str:
        return "manual"


Timed = Every | Cron
Schedule = Timed | After | Manual


@dataclass(frozen=True)
class Checking:
    """`verify: every 1d repair`."""

    when: Timed
    repair: bool = False

    def __str__(self) -> str:
        return f"{self.when} repair" if self.repair else str(self.when)


def parse(text: str) -> Schedule:
    """ConfigError says what can be written."""
    words = text.split()
    if words == ["manual"]:
        return Manual()
    if words[:1] == ["after"]:
        if len(words) != 2:
            raise ConfigError("after takes one pipeline: after PIPELINE")
        return After(words[1])
    return parse_timed(text)


def parse_timed(text: str) -> Timed:
    """A schedule by the clock."""
    from strandline.config.duration import parse_duration

    shown = " ".join(text.split())
    found = _JITTER.fullmatch(shown)
    plain, jitter = (found[1], parse_duration(found[2])) if found else (shown, _NONE)
    if plain.startswith("every "):
        span = parse_duration(plain.removeprefix("every "))
        if span < SHORTEST:
            raise ConfigError(f'"{shown}" is too often; at least 100ms must lie between two runs')
        return Every(span, jitter, shown)
    return _cron(plain, jitter, shown)


def parse_checking(text: str) -> Checking:
    words = text.split()
    repair = words[-1:] == ["repair"]
    return Checking(parse_timed(" ".join(words[:-1] if repair else words)), repair)


def _cron(plain: str, jitter: timedelta, shown: str) -> Cron:
    from cronsim import CronSim, CronSimError

    found = _CRON.fullmatch(plain)
    if found is None:
        raise ConfigError(f'"{shown}" is no schedule; {_HOW}')
    line, zone = found[1], found[2] or "UTC"
    try:
        next(CronSim(line, datetime.now(UTC)))
        ZoneInfo(zone)
    except CronSimError as error:
        raise ConfigError(f'"{shown}" is no cron line: {str(error).lower()}; {_HOW}') from None
    except StopIteration:
        raise ConfigError(f'"{shown}" never comes') from None
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ConfigError(f'"{zone}" in "{shown}" is no time zone; write it like Europe/Berlin or UTC') from None
    return Cron(line, zone, jitter, f"{line} {zone}{shown[len(plain) :]}")

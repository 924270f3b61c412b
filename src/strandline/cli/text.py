"""Numbers, times and watermarks as people read them. Pure functions; `--json` never passes through here."""

from __future__ import annotations

from datetime import UTC, datetime

from strandline.core.batch import Applied
from strandline.core.position import Holder
from strandline.core.watermark import Kind, Watermark
from strandline.core.window import Window

_STEPS = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"))


def count(number: int) -> str:
    return f"{number:,}"


def many(number: int, thing: str) -> str:
    """`1 table`, `1,000 tables`; `batch` and `match` take -es, `copy` -ies."""
    plural = thing[:-1] + "ies" if thing.endswith("py") else thing + ("es" if thing.endswith("ch") else "s")
    return f"{count(number)} {thing if number == 1 else plural}"


def duration(seconds: float) -> str:
    """`4 ms`, `4.1 s`, `11 min`, `2 h 5 min`, `3 d 4 h`."""
    if seconds < 0:
        return "-" + duration(-seconds)
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    rest = round(seconds / 60) * 60.0
    parts = []
    for size, unit in _STEPS:
        amount, rest = divmod(rest, size)
        if amount:
            parts.append(f"{amount:.0f} {unit}")
    return " ".join(parts[:2])


def ago(stamp: str, now: datetime) -> str:
    """How long ago a stored time was; empty for none."""
    if not stamp:
        return ""
    seconds = (now - datetime.fromisoformat(stamp)).total_seconds()
    return "just now" if seconds < 1 else f"{duration(seconds)} ago"


def status(word: str) -> str:
    """A table's status. A table is SKIPPED when there is nothing to do for it."""
    return "up to date" if word == "SKIPPED" else word


def moment(stamp: str) -> str:
    """A stored time, to the second."""
    return f"{datetime.fromisoformat(stamp).astimezone(UTC):%Y-%m-%d %H:%M:%S}" if stamp else ""


def value(watermark: Watermark | None, now: datetime, *, like: Watermark | None = None) -> str:
    """A watermark without what is obvious: trailing zeros, and the day of `like` (without it: today) or this year."""
    if watermark is None:
        return "–"
    text = dated(watermark, now)
    day = like.text[:10] if like is not None else f"{now:%Y-%m-%d}"
    same_day = watermark.kind is Kind.TIMESTAMP and watermark.text[:10] == day
    return text.split(" ")[-1] if same_day else text


def dated(watermark: Watermark, now: datetime) -> str:
    """A watermark with its day, without trailing zeros and this year."""
    text = trimmed(watermark)
    return text.removeprefix(f"{now:%Y}-") if watermark.kind is Kind.TIMESTAMP else text


def trimmed(watermark: Watermark) -> str:
    """A watermark without the zeros that end its fraction."""
    text = watermark.text
    return text.rstrip("0").rstrip(".") if "." in text else text


def window(span: Window, now: datetime) -> str:
    """`11-15 08:07:40.003 → 08:12:44.12`, `beginning → 4711`."""
    if span.low is None:
        return f"beginning → {value(span.high, now)}"
    return f"{dated(span.low, now)} → {value(span.high, now, like=span.low)}"


def holder(held_by: Holder) -> str:
    who = f"transaction {held_by.pid}" + (f" ({held_by.user})" if held_by.user else "")
    held = who if held_by.seconds is None else f"{who} open for {duration(held_by.seconds)}"
    return f"{held}: {held_by.statement}" if held_by.statement else held


def changes(applied: Applied) -> str:
    """`11,902 new, 498 changed`."""
    parts = [
        f"{count(number)} {word}"
        for number, word in (
            (applied.rows_inserted, "new"),
            (applied.rows_updated, "changed"),
            (applied.rows_deleted, "deleted"),
        )
        if number
    ]
    return ", ".join(parts) or "no change"


def rate(rows_per_second: float) -> str:
    """`96 k/s`."""
    for size, unit in ((1_000_000, " M"), (1_000, " k")):
        if rows_per_second >= size:
            return f"{rows_per_second / size:.3g}{unit}/s"
    return f"{rows_per_second:.0f}/s"

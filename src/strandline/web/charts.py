"""Charts as SVG, drawn by the server: nothing to load, nothing to run, and they print.

Marks are stretched to the width there is; lines keep their thickness, and labels are text beside the drawing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from markupsafe import Markup, escape

_WIDTH, _HEIGHT = 600.0, 120.0
_FEW = 12  # marks are no wider than this many would be; the newest is always on the right


@dataclass(frozen=True)
class Chart:
    """A drawing and the texts around it; `empty` says why there is none."""

    title: str
    svg: str = ""
    top: str = ""  # what the upper edge stands for
    left: str = ""
    right: str = ""
    says: str = ""
    empty: str = ""


@dataclass(frozen=True)
class Mark:
    """One run in a chart."""

    value: float
    title: str
    failed: bool = False


def line(title: str, points: Sequence[tuple[datetime, float]], show: Callable[[float], str], empty: str) -> Chart:
    """A value over time, as steps and slopes between the moments at which it is known."""
    if len(points) < 2:
        return Chart(title, empty=empty)
    points = _thinned(points)
    first, last = points[0][0], points[-1][0]
    span = (last - first).total_seconds() or 1.0
    top = _time_ceiling(max(value for _, value in points))
    at = [((when - first).total_seconds() / span * _WIDTH, _HEIGHT - value / top * _HEIGHT) for when, value in points]
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in at)
    worst = max(value for _, value in points)
    says = f"{title}: now {show(points[-1][1])}, worst {show(worst)}"
    drawn = (
        f'<path class="area" d="M0 {_HEIGHT}L{path}L{_WIDTH} {_HEIGHT}Z"/>'
        f'<path class="line" d="M{path}" vector-effect="non-scaling-stroke"/>'
    )
    return Chart(title, _svg(drawn, says), show(top), _when(first, last), _when(last, first), says)


def bars(title: str, marks: Sequence[Mark], show: Callable[[float], str], empty: str) -> Chart:
    """A value per run, oldest first."""
    if not marks:
        return Chart(title, empty=empty)
    top = _ceiling(max(mark.value for mark in marks))
    step, drawn = _WIDTH / max(len(marks), _FEW), []
    for number, mark in enumerate(marks, max(_FEW - len(marks), 0)):
        height = max(mark.value / top * _HEIGHT, 1.5)
        kind = "bar failed" if mark.failed else "bar"
        drawn.append(
            f'<rect class="{kind}" x="{number * step + step * 0.1:.1f}" y="{_HEIGHT - height:.1f}" '
            f'width="{step * 0.8:.1f}" height="{height:.1f}"><title>{escape(mark.title)}</title></rect>'
        )
    says = f"{title}: {_count(marks)}, most {show(max(mark.value for mark in marks))}"
    return Chart(title, _svg("".join(drawn), says), show(top), "older" if len(marks) >= _FEW else "", "newest", says)


def dots(title: str, marks: Sequence[Mark], show: Callable[[float], str], empty: str) -> Chart:
    """A value per run, oldest first; a run that failed is a cross."""
    if not marks:
        return Chart(title, empty=empty)
    top = _time_ceiling(max(mark.value for mark in marks))
    step, drawn = _WIDTH / max(len(marks), _FEW), []
    for number, mark in enumerate(marks, max(_FEW - len(marks), 0)):
        x, y = (number + 0.5) * step, _HEIGHT - 6 - mark.value / top * (_HEIGHT - 12)
        title_ = f"<title>{escape(mark.title)}</title>"
        if mark.failed:
            cross = f"M{x - 4:.1f} {y - 4:.1f}l8 8m0 -8l-8 8"
            drawn.append(f'<path class="cross" d="{cross}" vector-effect="non-scaling-stroke">{title_}</path>')
        else:
            dot = f"M{x:.1f} {y:.1f}h0"
            drawn.append(f'<path class="dot" d="{dot}" vector-effect="non-scaling-stroke">{title_}</path>')
    failed = sum(mark.failed for mark in marks)
    says = f"{title}: {_count(marks)}, longest {show(max(mark.value for mark in marks))}, {failed} failed"
    return Chart(title, _svg("".join(drawn), says), show(top), "older" if len(marks) >= _FEW else "", "newest", says)


def spark(points: Sequence[tuple[datetime, float]], says: str) -> Markup:
    """A line as small as a word; empty where there is none to draw."""
    if len(points) < 2:
        return Markup("")
    points = _thinned(points, 60)
    first, last = points[0][0], points[-1][0]
    span, top = (last - first).total_seconds() or 1.0, max(value for _, value in points) or 1.0
    path = "L".join(
        f"{(when - first).total_seconds() / span * 100:.0f} {22 - value / top * 20:.0f}" for when, value in points
    )
    return Markup(
        f'<svg class="spark" viewBox="0 0 100 24" preserveAspectRatio="none" role="img" aria-label="{escape(says)}">'
        f'<path d="M{path}" vector-effect="non-scaling-stroke"/></svg>'
    )


def _svg(drawn: str, says: str) -> Markup:
    return Markup(
        f'<svg viewBox="0 0 {_WIDTH:.0f} {_HEIGHT:.0f}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(says)}">{drawn}</svg>'
    )


def _count(marks: Sequence[Mark]) -> str:
    return "1 run" if len(marks) == 1 else f"{len(marks)} runs"


def _thinned(points: Sequence[tuple[datetime, float]], most: int = 300) -> Sequence[tuple[datetime, float]]:
    """At most so many: of each group the worst, so that no peak is lost; the ends stay."""
    if len(points) <= most:
        return points
    size = len(points) // (most - 2) + 1
    inner = points[1:-1]
    groups = [inner[start : start + size] for start in range(0, len(inner), size)]
    return [points[0], *(max(group, key=lambda point: point[1]) for group in groups), points[-1]]


def _ceiling(value: float) -> float:
    """A round number at or above it: 1, 2 or 5 and zeros."""
    size = 1.0
    while True:
        for step in (1, 2, 5):
            if step * size >= value:
                return step * size
        size *= 10


_SPANS = (0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400)


def _time_ceiling(seconds: float) -> float:
    """A round span at or above it; from a day on, whole days."""
    return next((span for span in _SPANS if span >= seconds), _ceiling(seconds / 86400) * 86400)


def _when(at: datetime, other: datetime) -> str:
    if abs(at - other) < timedelta(minutes=10):
        return f"{at:%H:%M:%S}"
    return f"{at:%H:%M}" if at.date() == other.date() else f"{at:%d %b %H:%M}"

"""The figures of `against.py` as an SVG: a panel per workload, a bar per contender, for light and dark pages."""

from __future__ import annotations

from html import escape
from typing import Any

from report import LIMITS, OURS, median

WIDTH, LABEL, BAR, GAP, HEAD = 760, 210, 16, 5, 30
STYLE = """
text { font: 12px system-ui, sans-serif; fill: #24292f } .title { font-weight: 600; font-size: 13px }
.ours { fill: #0969da } .peer { fill: #8c959f } .limit { fill: none; stroke: #8c959f } .wrong { fill: #cf222e }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .ours { fill: #4493f8 } .peer { fill: #6e7681 } .limit { stroke: #6e7681 }
  .wrong { fill: #f85149 }
}"""


def chart(figures: dict[str, Any]) -> str:
    parts: list[str] = []
    top = 0
    for letter, work in sorted(figures["workloads"].items()):
        results = {name: one for name, one in work["contenders"].items() if one["seconds"]}
        if not results:
            continue
        longest = max(median(one) for one in results.values())
        parts.append(f'<text class="title" x="0" y="{top + 18}">{escape(letter)} · {escape(work["title"])}</text>')
        top += HEAD
        for name, one in sorted(results.items(), key=lambda pair: median(pair[1])):
            parts += _bar(name, one, top, longest)
            top += BAR + GAP
        top += 14
    view = f'viewBox="0 0 {WIDTH} {top}" width="{WIDTH}" height="{top}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {view} role="img"><style>{STYLE}</style>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _bar(name: str, one: dict[str, Any], top: int, longest: float) -> list[str]:
    wrong = any(one["wrong"])
    kind = "ours" if name in OURS else "limit" if name in LIMITS else "peer"
    length = max(2.0, (WIDTH - LABEL - 130) * median(one) / longest)
    shown = f"{median(one):.2f} s" + (" · rows differ" if wrong else "")
    line = top + BAR - 4
    wrong_class = ' class="wrong"' if wrong else ""
    return [
        f'<text x="{LABEL - 8}" y="{line}" text-anchor="end">{escape(name)}</text>',
        f'<rect class="{kind}" x="{LABEL}" y="{top}" width="{length:.1f}" height="{BAR}" rx="2"/>',
        f'<text{wrong_class} x="{LABEL + length + 6:.1f}" y="{line}">{escape(shown)}</text>',
    ]

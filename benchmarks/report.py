"""The figures of `against.py` as Markdown: medians with spread, memory, what lost, and by how much."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
BEGIN, END = "<!-- figures: benchmarks/against.py --report -->\n", "<!-- end of figures -->\n"
OURS = ("Strandline", "Strandline, warm Spark")
LIMITS = ("limit: the database alone", "limit: Spark alone")


def table(figures: dict[str, Any]) -> str:
    lines: list[str] = []
    for letter, work in sorted(figures["workloads"].items()):
        results = {name: one for name, one in work["contenders"].items() if one["seconds"]}
        peers = [one for name, one in results.items() if name not in (*OURS, *LIMITS)]
        lines += [
            "",
            f"**{letter}** {work['title']}",
            "",
            "| | median | spread | processors | peak memory | |",
            "| --- | --- | --- | --- | --- | --- |",
        ]
        for name, one in sorted(results.items(), key=lambda pair: median(pair[1])):
            seconds = one["seconds"]
            said = "; ".join(sorted({wrong for wrong in one["wrong"] if wrong}))
            ratio = _ratio(one, peers) if name in OURS and peers else ""
            shown = f"**{name}**" if name in OURS else name
            spread = f"{min(seconds):.2f}–{max(seconds):.2f}"
            busy = f"{median(one, 'busy'):.1f} s"
            peak = f"{max(one['peak_mb']):,.0f} MB"
            lines.append(f"| {shown} | {median(one):.2f} s | {spread} | {busy} | {peak} | {_wrong(said) or ratio} |")
        failed = {name: one["failed"] for name, one in work["contenders"].items() if one["failed"]}
        lines += [f"| {name} | failed | | | | {why.strip().splitlines()[-1][:160]} |" for name, why in failed.items()]
    lines += ["", *(f"- left out: {name}, {why}" for name, why in figures.get("missing", {}).items())]
    return "\n".join(lines).strip() + "\n"


def median(result: dict[str, Any], what: str = "seconds") -> float:
    return statistics.median(result[what])


def _ratio(ours: dict[str, Any], peers: list[dict[str, Any]]) -> str:
    """Above one: ahead of every peer."""
    clock, processors = (
        min(median(one, what) for one in peers) / max(median(ours, what), 0.01) for what in ("seconds", "busy")
    )
    return f"{clock:.2f}× the fastest peer, {processors:.2f}× by processors"


def _wrong(said: str) -> str:
    return f"**rows differ**: {said}" if said else ""


def written(page: str, figures: dict[str, Any]) -> str:
    """The page with these figures in the place of those it has."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n{table(figures)}\n{END}{rest.partition(END)[2]}"

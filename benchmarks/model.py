"""What tables and rows cost, by straight lines through the figures of growth.py: start + size × each.

python benchmarks/model.py --write     after growth.py or poll.py: writes the figures into docs/scaling.md
python benchmarks/model.py             prints them

Every size is predicted by the line through the other sizes, the largest one therefore by the smaller ones; what was
never measured is computed with the line through all of them. A line has the least sum of squared relative errors.
"""

import json
import sys
from math import ceil
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "scaling.md"
BEGIN, END = "<!-- figures: benchmarks/model.py --write -->\n", "<!-- end of figures -->\n"
CURVES = {
    "nothing new": "tables",
    "a new row in each, via: server": "tables",
    "first load, PostgreSQL → Delta": "rows",
    "1 % of them merged": "rows",
}
CORES, CHANGED = 2, 0.01  # of the machine; as growth.py changes rows
LOAD, SLICE, LARGE = (
    20_000_000,
    5_000_000,
    50_000_000,
)  # rows of a batch: of a first load, of another, and by `slice_rows`
SIZES, TABLES = (10**8, 10**9, 10**10), (100, 1_000, 10_000)
Took = dict[int, list[float]]  # by size: seconds, processor seconds, peak MB


def fit(points: dict[int, float]) -> tuple[float, float]:
    parts = [(1 / cost, size / cost) for size, cost in points.items()]
    one, each = sum(a for a, _ in parts), sum(b for _, b in parts)
    aa, ab, bb = sum(a * a for a, _ in parts), sum(a * b for a, b in parts), sum(b * b for _, b in parts)
    return (one * bb - each * ab) / (aa * bb - ab * ab), (each * aa - one * ab) / (aa * bb - ab * ab)


def line(took: Took, what: int, without: int | None = None) -> tuple[float, float]:
    return fit({size: cost[what] for size, cost in took.items() if size != without})


def spent(seconds: float) -> str:
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.{1 if seconds >= 10 else 2}f} s"


def table(*rows: str) -> list[str]:
    return [f"| {rows[0]} |", f"|{' --- |' * len(rows[0].split(' | '))}", *(f"| {row} |" for row in rows[1:]), ""]


def checked(name: str, unit: str, took: Took) -> list[str]:
    def cells(size: int, what: int) -> str:
        start, each = line(took, what, without=size)
        real, told = took[size][what], start + each * size
        return f"{spent(real)} | {spent(told)} | {round(100 * (told / real - 1)):+d} %"

    (start, each), (work, busy) = line(took, 0), line(took, 1)
    told = (
        f"{start:.2f} s + {each * 1e6:,.2f} µs per {unit[:-1]}; of the processors {work:.2f} s + {busy * 1e6:,.2f} µs"
    )
    rows = (f"{size:,} | {cells(size, 0)} | {cells(size, 1)}" for size in sorted(took))
    head = f"{unit} | measured | predicted | error | processors | predicted | error"
    return [f"**{name}**: {told}", "", *table(head, *rows)]


def figures() -> str:
    found = [json.loads((HERE / "results" / f"growth-{part}.json").read_text()) for part in ("tables", "rows")]
    took = {name: {int(size): cost for size, cost in (found[0] | found[1])[name].items()} for name in CURVES}
    idle, server, load, change = took.values()
    batch = json.loads((HERE / "results" / "poll-delta.json").read_text())["p50"] / 1000

    def slices(rows: float, most: int) -> int:
        return ceil(rows / most) if rows > 1.5 * most else 1

    def clock(took: Took, rows: float, count: int, cores: int) -> str:
        """What a batch costs however small it is does not divide by cores."""
        start, each = line(took, 0)
        alone = min(count * batch, rows * each)
        return spent(start + alone + (rows * each - alone) * CORES / cores)

    def many(size: int) -> str:
        (start, each), (base, more), (memory, mb) = line(idle, 0), line(server, 0), line(idle, 2)
        times = (start + each * size, base + more * size, batch * size)
        return f"{size:,} | {' | '.join(map(spent, times))} | {memory + mb * size:,.0f} MB"

    def loaded(rows: int) -> str:
        (start, each), count = line(load, 1), slices(rows, LOAD)
        times = [clock(load, rows, count, cores) for cores in (CORES, 16, 64)]
        times = [spent(start + each * rows), *times, clock(load, rows, slices(rows, LARGE), 64)]
        return f"{rows:,} | {count:,} | {' | '.join(times)}"

    def changed(rows: int) -> str:
        count = slices(rows * CHANGED, SLICE)
        times = [clock(change, rows * passes, count, cores) for cores in (CORES, 64) for passes in (1, count)]
        return f"{rows:,} | {rows * CHANGED:,.0f} | {count} | {' | '.join(times)}"

    heads = (
        "tables | nothing new | a row in each, `via: server` | a row in each → Delta, in turn | memory, nothing new",
        f"first load, rows | slices | processors | {CORES} cores | 16 | 64 | 64, `slice_rows: {LARGE}`",
        f"rows in the target | changed | slices | {CORES} cores, from | to | 64 cores, from | to",
    )
    text = [part for name, unit in CURVES.items() for part in checked(name, unit, took[name])]
    text += [f"**Computed, not measured.** A batch costs at least {batch:.2f} s (`poll-delta.json`).", ""]
    for head, row, sizes in zip(heads, (many, loaded, changed), (TABLES, SIZES, SIZES), strict=True):
        text += table(head, *map(row, sizes))
    return "\n".join(["", *text, ""])


def written(page: str) -> str:
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}{figures()}{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    print(figures()) if "--write" not in sys.argv else PAGE.write_text(written(PAGE.read_text()))

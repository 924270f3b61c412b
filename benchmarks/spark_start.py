"""How long a process takes until Spark has answered it, its own start included: an own Spark, the warm one, and what
PySpark's import alone takes. `python benchmarks/spark_start.py [ROUNDS]`; interleaved, medians with spread."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CONFIG = """
spark: {spark}
pipelines:
  shop: {{source: "postgresql://reader@db/shop", target: "delta:lake", tables: [{{name: orders, cursor: updated_at}}]}}
"""
REACH = """
import sys, strandline
with strandline.load(sys.argv[1]) as project:
    spark = project.own_spark.get(project.config, list(project.config.pipelines.values()))
    assert spark.range(1).count() == 1
"""
IMPORT = "import pyspark.sql.connect.session"
WAYS = {"own": "{}", "warm": "{warm: 5m}"}


def main(rounds: int) -> None:
    seconds: dict[str, list[float]] = {name: [] for name in (*WAYS, "import alone")}
    with tempfile.TemporaryDirectory(prefix="strandline-bench-") as folder:
        files = {name: Path(folder) / f"{name}.yml" for name in WAYS}
        for name, file in files.items():
            file.write_text(CONFIG.format(spark=WAYS[name]))
        first = timed(REACH, str(files["warm"]))
        try:
            for _ in range(rounds):
                for name, file in files.items():
                    seconds[name].append(timed(REACH, str(file)))
                seconds["import alone"].append(timed(IMPORT))
        finally:
            subprocess.run([sys.executable, "-m", "strandline", "spark", "stop", "-c", str(files["warm"])], check=True)
    print(f"{'warm, first':<14} {first:6.2f} s")
    for name, taken in seconds.items():
        print(f"{name:<14} {statistics.median(taken):6.2f} s   {min(taken):.2f} … {max(taken):.2f}")


def timed(code: str, *words: str) -> float:
    started = time.perf_counter()
    environment = {**os.environ, "STRANDLINE_CLASS_ARCHIVE": "off"}  # no work in the background meanwhile
    subprocess.run([sys.executable, "-c", code, *words], check=True, env=environment)
    return time.perf_counter() - started


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)

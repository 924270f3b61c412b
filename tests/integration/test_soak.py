"""The soak itself, for a few seconds: it writes, kills, compares, and a naive poller beside it loses rows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_short_soak_loses_nothing_where_a_naive_poller_does(tmp_path: Path) -> None:
    saved = tmp_path / "soak.json"
    command = [sys.executable, "-m", "soak", "--no-delta", "--minutes=0.2", "--writers=12", f"--save={saved}"]
    paths = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    ended = subprocess.run(command, cwd=ROOT, env=paths, capture_output=True, text=True, timeout=550, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    for found in json.loads(saved.read_text())["databases"].values():
        strandline = found["strandline"]["ledger"]
        assert found["written"]["transactions"] > 50
        assert found["naive"]["naive"]["lost"] > 0, "these writers would not trouble anybody"
        assert strandline["kills"] > 0
        assert strandline["batches"] > 0
        assert (strandline["lost"], strandline["twice"]) == (0, 0)

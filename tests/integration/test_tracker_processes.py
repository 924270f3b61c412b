"""Jobs of somebody's own as real processes: one that is killed, two of one name at once, and one that is submitted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from strandline import Tracker
from strandline.spark.jars import jars, spark_home
from strandline.spark.java import find_java
from strandline.testing.lake import Lake

CHILD = Path(__file__).with_name("tracked_child.py")


class Nightly:
    def __init__(self, folder: Path) -> None:
        self.lake, self.target = Lake(folder / "lake"), folder / "target"
        self.state = f"sqlite:///{folder}/state.db"
        self.target.mkdir()
        for table in ("fees", "orders"):
            self.lake.create(table)
            self.lake.insert(1, table=table)

    def start(self, what: str) -> subprocess.Popen[str]:
        command = [sys.executable, str(CHILD), self.state, str(self.lake.root), str(self.target), what]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    def run(self, what: str = "finish") -> tuple[int, str]:
        with self.start(what) as job:
            _, err = job.communicate(timeout=300)
        return job.returncode, err

    def written(self, table: str) -> list[str]:
        return (self.target / table).read_text().splitlines()


@pytest.fixture
def nightly(tmp_path: Path) -> Nightly:
    return Nightly(tmp_path)


def test_a_killed_job_is_carried_on_with_the_window_it_had(nightly: Nightly) -> None:
    assert nightly.run("kill")[0] == -9
    nightly.lake.insert(2, table="orders")
    assert nightly.run() == (0, "")
    assert nightly.written("fees") == ["[beginning, 2) [1]"], "what was done before the kill is not read again"
    assert nightly.written("orders") == ["[beginning, 2) [1]"] * 2
    assert nightly.run() == (0, "")
    assert nightly.written("orders")[2:] == ["[2, 3) [2]"]
    with Tracker(nightly.state, pipeline="nightly", source=f"delta:{nightly.lake.root}") as tracker:
        runs = tracker.books.state.read("run")
    assert [(run.fields["status"], "killed" in str(run.fields["error"])) for run in runs] == [
        ("FAILED", True),
        ("COMPLETED", False),
        ("COMPLETED", False),
    ]


def test_of_two_jobs_at_once_the_second_is_told_who_is_at_work_and_disturbs_nothing(nightly: Nightly) -> None:
    with nightly.start("wait") as first:
        assert first.stdout is not None and first.stdin is not None
        run_id = first.stdout.readline().strip()
        code, err = nightly.run()
        assert code == 1 and "LeaseError" in err and run_id in err
        first.stdin.write("go\ngo\n")
        first.stdin.flush()
        assert first.wait(timeout=300) == 0
    assert nightly.written("fees") == nightly.written("orders") == ["[beginning, 2) [1]"]


@pytest.mark.timeout(1800)
def test_a_submitted_job_keeps_its_books_in_its_own_catalog_and_its_session_to_itself(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    lake.create()
    lake.insert(1, 2)
    conf = {
        "spark.master": "local[2]",
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",  # 200 and 50 empty tasks, commit by commit, would take half a minute
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.sql.warehouse.dir": str(tmp_path / "warehouse"),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.jars": ",".join(str(jar) for jar in jars(["delta"])),
    }
    settings = [f"--conf={name}={value}" for name, value in conf.items()]
    environment = {
        **os.environ,
        "JAVA_HOME": find_java(),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    command = [str(spark_home() / "bin" / "spark-submit"), *settings, str(CHILD.with_name("submitted_child.py"))]
    job = subprocess.run([*command, str(lake.root)], env=environment, capture_output=True, text=True, timeout=1700)
    assert job.returncode == 0, job.stderr[-3000:]
    assert json.loads(job.stdout.splitlines()[-1]) == [{"orders": [1, 2]}, "2", "COMPLETED", 3, True]

"""The class archive: built once by a real job (`make setup` does it, or else this test), used by the next start of
Spark."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from strandline.spark import archive
from strandline.spark.archive import _forget_old, build, build_in_background
from strandline.spark.java import find_java
from strandline.spark.session import class_archive

_LOADED_FROM_ARCHIVE = """
import sys
from strandline.spark.session import local_session, stop
log, *needs = sys.argv[1:]
stop(local_session(needs, {"spark.driver.extraJavaOptions": "-Xlog:class+load=info:file=" + log}))
"""


@pytest.mark.parametrize("needs", [["delta", "postgresql"], ["mysql", "postgresql"]], ids=["delta", "no delta"])
def test_archive_is_built_and_the_next_session_loads_its_classes_from_it(tmp_path: Path, needs: list[str]) -> None:
    made = build(needs)
    assert made.suffix == ".jsa"
    before = time.time() - 3600
    os.utime(made, (before, before))
    log = tmp_path / "classes.log"
    subprocess.run([sys.executable, "-c", _LOADED_FROM_ARCHIVE, str(log), *needs], check=True, capture_output=True)
    loaded = [line for line in log.read_text().splitlines() if "org.apache.spark." in line]
    shared = [line for line in loaded if "source: shared objects file (top)" in line]
    assert len(shared) > len(loaded) / 2 > 500
    assert made.stat().st_mtime > before + 1, "a start dates it"


def test_a_job_that_failed_is_not_repeated_after_every_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[object] = []
    monkeypatch.setattr(subprocess, "Popen", lambda command, **_: started.append(command))
    monkeypatch.setenv("STRANDLINE_CLASS_ARCHIVE", "on")
    made = tmp_path / "of-this.jsa"
    monkeypatch.setattr(archive, "class_archive", lambda *_: made)

    def failing(*_: object, **__: object) -> None:
        raise subprocess.CalledProcessError(1, "spark-submit")

    build_in_background(["postgresql"])
    assert len(started) == 1
    with monkeypatch.context() as patch, pytest.raises(subprocess.CalledProcessError):
        patch.setattr(subprocess, "run", failing)
        build(["postgresql"])
    build_in_background(["postgresql"])
    assert len(started) == 1
    os.utime(made.with_suffix(".failed"), (0, 0))  # long ago: whatever was wrong may be mended
    build_in_background(["postgresql"])
    assert len(started) == 2


def test_each_installation_has_its_own_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Java refuses, without a word, an archive of jars at another place, or of the same place installed anew."""
    seen = set()
    for place in ("one", "other"):
        jar = tmp_path / place / "jars" / "spark-core.jar"
        jar.parent.mkdir(parents=True)
        jar.touch()
        os.utime(jar, (0, 0))
        monkeypatch.setenv("SPARK_HOME", str(tmp_path / place))
        seen.add(class_archive(find_java(), []))
        assert class_archive(find_java(), []) in seen
    os.utime(jar, (1, 1))
    seen.add(class_archive(find_java(), []))
    assert len(seen) == 3


def test_one_that_no_start_has_used_for_a_month_goes(tmp_path: Path) -> None:
    new, used, unused = (tmp_path / f"{name}.jsa" for name in ("new", "used", "unused"))
    for each in (new, used, unused):
        each.touch()
    for each in (new, unused):
        os.utime(each, (0, 0))
    _forget_old(new)
    assert sorted(tmp_path.iterdir()) == [new, used]

"""The class archive: built once by a real job (`make setup` does it, or else this test), used by the next start of
Spark."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from strandline.spark.archive import _forget_old, build

_LOADED_FROM_ARCHIVE = """
import sys
import time
from strandline.spark.session import local_session, stop
loading = "-Xlog:class+load=info:file=" + sys.argv[1]
stop(local_session(["delta", "postgresql"], {"spark.driver.extraJavaOptions": loading}))
"""


def test_archive_is_built_and_the_next_session_loads_its_classes_from_it(tmp_path: Path) -> None:
    archive = build(["delta", "postgresql"])
    assert archive.suffix == ".jsa"
    before = time.time() - 3600
    os.utime(archive, (before, before))
    log = tmp_path / "classes.log"
    subprocess.run([sys.executable, "-c", _LOADED_FROM_ARCHIVE, str(log)], check=True, capture_output=True)
    loaded = [line for line in log.read_text().splitlines() if "org.apache.spark." in line]
    shared = [line for line in loaded if "source: shared objects file (top)" in line]
    assert len(shared) > len(loaded) / 2 > 500
    assert archive.stat().st_mtime > before + 1, "a start dates it"


def test_one_that_no_start_has_used_for_a_month_goes(tmp_path: Path) -> None:
    archive, used, unused = (tmp_path / f"{name}.jsa" for name in ("new", "used", "unused"))
    for each in (archive, used, unused):
        each.touch()
    for each in (archive, unused):
        os.utime(each, (0, 0))
    _forget_old(archive)
    assert sorted(tmp_path.iterdir()) == [archive, used]

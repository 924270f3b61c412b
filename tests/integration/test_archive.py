"""The class archive: built once by a real job, used by the next start of Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from strandline.spark.jars import jars

_LOADED_FROM_ARCHIVE = """
import sys
from strandline.spark.session import local_session, stop
stop(local_session(["delta"], {"spark.driver.extraJavaOptions": "-Xlog:class+load=info:file=" + sys.argv[1]}))
"""


def test_archive_is_built_and_the_next_session_loads_its_classes_from_it(tmp_path: Path) -> None:
    folder = jars(["delta"])[0].parent
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "STRANDLINE_JARS": str(folder)}

    def run(*command: str) -> None:
        subprocess.run([sys.executable, *command], env=environment, check=True, capture_output=True, text=True)

    run("-m", "strandline.spark.archive", "delta")
    (archive,) = (tmp_path / "strandline" / "classes").iterdir()
    assert archive.suffix == ".jsa"
    log = tmp_path / "classes.log"
    run("-c", _LOADED_FROM_ARCHIVE, str(log))
    loaded = [line for line in log.read_text().splitlines() if "org.apache.spark." in line]
    shared = [line for line in loaded if "source: shared objects file (top)" in line]
    assert len(shared) > len(loaded) / 2 > 500

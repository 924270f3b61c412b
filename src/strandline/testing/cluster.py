"""A standalone Spark cluster for tests: a master and two workers, each a process of its own, from the PySpark package.

Executors are the workers' children: other JVMs than the driver's, with nothing of it but what Spark carries there. They
end with their worker.
"""

from __future__ import annotations

import json
import os
import signal
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.request import urlopen

from strandline.spark.jars import spark_home
from strandline.spark.java import find_java
from strandline.testing.servers import Server, free_port

_SMALL = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_DEPLOY = "org.apache.spark.deploy"


class _Member(Server):
    scheme = "spark"
    user = database = ""
    _refuses_root = False
    _give_up = signal.SIGKILL

    def _create(self) -> None:
        """It keeps what it needs in its folder as it runs."""

    def _java(self, program: str) -> list[str]:
        return [f"{find_java()}/bin/java", *_SMALL, "-Xmx256m", "-cp", f"{spark_home()}/jars/*", f"{_DEPLOY}.{program}"]

    def _variables(self) -> dict[str, str]:
        return {
            "SPARK_HOME": str(spark_home()),
            "SPARK_SCALA_VERSION": "2.13",  # or a worker looks for the folders of a build
            "SPARK_LOCAL_IP": "127.0.0.1",
            "JAVA_HOME": find_java(),
        }


class _Master(_Member):
    page = 0

    def _command(self) -> list[str]:
        self.page = free_port()  # another one each time it is tried
        where = ["--host", "127.0.0.1", "--port", str(self.port), "--webui-port", str(self.page)]
        return [*self._java("master.Master"), *where]

    def _ready(self) -> bool:
        return self.tells().get("status") == "ALIVE"

    def tells(self) -> dict[str, Any]:
        """What its page says; nothing while it comes up, in parts, or is too busy to answer."""
        found: dict[str, Any] = {}
        with suppress(OSError, ValueError), urlopen(f"http://127.0.0.1:{self.page}/json/", timeout=60) as answer:
            found = json.load(answer)
        return found


class _Worker(_Member):
    def __init__(self, master: _Master) -> None:
        super().__init__()
        self.master = master

    def _command(self) -> list[str]:
        where = ["--host", "127.0.0.1", "--port", str(self.port), "--webui-port", "0", "--work-dir", "work"]
        size = ["--cores", "1", "--memory", "1g"]
        return [*self._java("worker.Worker"), *where, *size, f"spark://127.0.0.1:{self.master.port}"]

    def _ready(self) -> bool:
        return any(
            each["port"] == self.port and each["state"] == "ALIVE" for each in self.master.tells().get("workers", ())
        )

    def executors(self) -> list[int]:
        """The pids of its children."""
        found = []
        for entry in Path("/proc").iterdir():
            with suppress(OSError, ValueError):  # ended meanwhile; no process
                if (entry / "stat").read_text().rpartition(")")[2].split()[1] == str(self.pid):
                    found.append(int(entry.name))
        return found


class Cluster:
    def __init__(self) -> None:
        self._running = ExitStack()
        self.workers: list[_Worker] = []
        self.address = ""

    def __enter__(self) -> Self:
        with ExitStack() as starting:
            master = starting.enter_context(_Master())
            self.workers = [starting.enter_context(_Worker(master)) for _ in range(2)]
            self.address = f"spark://127.0.0.1:{master.port}"
            self._running = starting.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._running.close()

    def settings(self) -> dict[str, Any]:
        """`spark:` of a config, small enough for two workers of one core."""
        conf = {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.memory": "1g",
            "spark.executor.memory": "640m",
            "spark.executor.extraJavaOptions": " ".join(_SMALL),
            "spark.sql.shuffle.partitions": "2",
            "spark.databricks.delta.snapshotPartitions": "1",
        }
        return {"master": self.address, "conf": conf}

    def executors(self) -> list[int]:
        return [pid for worker in self.workers for pid in worker.executors()]

    def kill_executors(self) -> list[int]:
        """As the machines they run on would take them away; workers start others."""
        killed = self.executors()
        for pid in killed:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return killed

"""How each tool does the same work, each as a process of its own: what is run, and where the rows are afterwards.

Peers live in environments of their own, installed by name from the registries pip is set up for, at the versions in
`peers/*.txt`. Each is set up as its documentation does it: a cursor, a primary key, merge where it can.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness import HERE, PYTHON, Took, environment, measured
from rows import Copy, DeltaCopy, FilesCopy, SqlCopy

from strandline.spark.jars import cache_folder, jars
from strandline.testing.servers import Postgres, Server

PEERS = HERE / "peers"


@dataclass(frozen=True)
class Task:
    """Tables with the key `id` and the cursor `updated_at`, to be moved as they stand since the run before."""

    source: Server
    database: str
    tables: tuple[str, ...]
    rows: int
    folder: Path
    """Of this contender in this round; empty before its first run."""
    into: str = "lake"
    """`lake`: a folder, Delta or Parquet. `database`: another schema. `stage`: over Parquet into PostgreSQL."""
    target: Postgres | None = None
    schema: str = ""
    since: str = ""
    """What the limit takes for its watermark."""
    first: bool = False
    command: str = "sync"
    """`plan`: only what would move, by those who can tell; others run and find nothing."""

    @property
    def servers(self) -> list[int]:
        return [server.pid for server in {self.source, self.target or self.source}]

    @property
    def url(self) -> str:
        return self.source.url(self.database)

    @property
    def target_url(self) -> str:
        assert self.target is not None
        return self.target.url(self.database)


class Contender(ABC):
    name: str
    into: tuple[str, ...] = ("lake",)
    note = ""

    def can(self, task: Task) -> bool:
        return task.into in self.into

    @abstractmethod
    def run(self, task: Task) -> Took:
        """The whole process."""

    @abstractmethod
    def copy(self, task: Task, table: str) -> Copy | None:
        """Where the rows of a table are, if they are anywhere."""


class Strandline(Contender):
    name = "Strandline"
    into = ("lake", "database", "stage")
    note = "`strandline sync`, each run starts its own Spark if it needs one"

    def config(self, task: Task) -> Path:
        path = task.folder / "strandline.yml"
        if path.exists():
            return path
        if task.into == "database":
            ends = [f"target: {task.url}", "via: server"]
        elif task.into == "stage":
            ends = [f"stage: {task.folder}/stage", f"target: {task.target_url}"]
        else:
            ends = [f"target: delta:{task.folder}/lake"]
        tables = [
            f"{{name: {table}, target: {task.schema}.{table}}}" if task.schema else table for table in task.tables
        ]
        defaults = (
            "{cursor: updated_at, key: id, zone: UTC}" if task.source.scheme == "mysql" else "{cursor: updated_at}"
        )
        lines = [
            f"state: sqlite:///{task.folder}/state.db",
            f"spark: {self.spark()}",
            "pipelines:",
            "  shop:",
            f"    source: {task.url}",
            *(f"    {end}" for end in ends),
            "    guard: 0s",
            f"    defaults: {defaults}",
            f"    tables: [{', '.join(tables)}]",
        ]
        path.write_text("\n".join(lines) + "\n")
        return path

    def spark(self) -> str:
        return "{conf: {spark.driver.memory: 2g}}"

    def run(self, task: Task) -> Took:
        return self.sync(task)

    def sync(self, task: Task, also: Sequence[int] = ()) -> Took:
        command = [PYTHON, "-m", "strandline", task.command, "-c", str(self.config(task)), "--json"]
        return measured(command, also=also, servers=task.servers)

    def copy(self, task: Task, table: str) -> Copy:
        if task.into == "lake":
            return DeltaCopy(task.folder / "lake" / table)
        assert task.target is not None
        return SqlCopy(task.target, task.database, f"{task.schema}.{table}")


class WarmStrandline(Strandline):
    """One config file for all its tasks: the Spark that is kept warm is kept for a config."""

    name = "Strandline, warm Spark"
    into = ("lake", "stage")
    note = "the same with `spark: {warm: 30m}`, on a Spark that is running already and did such work before"

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="strandline-warm-"))

    def spark(self) -> str:
        return "{warm: 30m, conf: {spark.driver.memory: 2g}}"

    def config(self, task: Task) -> Path:
        path = self.folder / "strandline.yml"
        path.write_text(super().config(task).read_text())
        return path

    def run(self, task: Task) -> Took:
        self.config(task)
        self._spark("start")
        (kept,) = json.loads(self._spark("status", "--json"))["sparks"]
        return self.sync(task, also=[kept["pid"]])

    def close(self) -> None:
        if (self.folder / "strandline.yml").exists():
            self._spark("stop")
        shutil.rmtree(self.folder)

    def _spark(self, *words: str) -> str:
        command = [PYTHON, "-m", "strandline", "spark", *words, "-c", str(self.folder / "strandline.yml")]
        kept = environment()  # of the Spark, too, and of its Python workers
        return subprocess.run(command, check=True, capture_output=True, text=True, env=kept).stdout


class HandWritten(Contender):
    name = "hand-written Spark job"
    note = "four JDBC predicates, a watermark file, MERGE, Spark's default settings (benchmarks/handwritten.py)"

    def run(self, task: Task) -> Took:
        jdbc = f"jdbc:postgresql://127.0.0.1:{task.source.port}/{task.database}"
        (task.folder / "tables").write_text("\n".join(task.tables))
        command = [PYTHON, str(HERE / "handwritten.py"), "all", jdbc, task.source.user, str(task.folder / "lake")]
        command += ["--rows", str(task.rows), "--tables", str(task.folder / "tables")]
        return measured(command, {"PGPASSWORD": task.source.password}, servers=task.servers)

    def copy(self, task: Task, table: str) -> Copy:
        return DeltaCopy(task.folder / "lake" / table)


class Limit(Contender):
    name = "limit: the database alone"
    into = ("lake", "database")
    note = "`COPY … TO STDOUT (FORMAT binary)` into a file; the bare MERGE; `max(updated_at)` of each table"

    def run(self, task: Task) -> Took:
        if len(task.tables) > 1 or task.since == "now":
            rest = ["look", task.url]
        elif task.into == "database":
            if task.first:
                return self._first(task)
            rest = ["merge", task.url, task.schema, task.since]
        else:
            rest = ["copy", task.url, task.tables[0], str(task.folder / "rows"), *([task.since] if task.since else [])]
        return measured([PYTHON, str(PEERS / "limit.py"), *rest], servers=task.servers)

    def _first(self, task: Task) -> Took:
        assert isinstance(task.source, Postgres)
        with task.source.connect(task.database) as connection:
            connection.execute(f"CREATE TABLE {task.schema}.orders (LIKE public.orders, PRIMARY KEY (id))")
            connection.execute(f"INSERT INTO {task.schema}.orders SELECT * FROM public.orders")
        return Took(0, 0, 0)

    def copy(self, task: Task, table: str) -> Copy | None:
        if task.into != "database" or len(task.tables) > 1:
            return None
        assert task.target is not None
        return SqlCopy(task.target, task.database, f"{task.schema}.{table}")


class SparkAlone(Contender):
    name = "limit: Spark alone"
    into = ("lake", "stage")
    note = "Spark started as Strandline starts it; rows read and written, no plan, no watermark, nothing checked"

    def can(self, task: Task) -> bool:
        return super().can(task) and task.since != "now"

    def run(self, task: Task) -> Took:
        server = task.target or task.source
        jdbc = f"jdbc:postgresql://127.0.0.1:{server.port}/{task.database}"
        rest = [str(task.rows), task.since]
        if task.into == "lake":
            words = ["lake", task.url, jdbc, server.user, str(task.folder / "lake"), *rest, *task.tables]
        else:
            words = ["stage", task.url, task.target_url, jdbc, task.schema, str(task.folder), *rest]
        command = [PYTHON, str(PEERS / "spark_limit.py"), *words]
        return measured(command, {"PGPASSWORD": server.password}, servers=task.servers)

    def copy(self, task: Task, table: str) -> Copy:
        if task.into == "lake":
            return DeltaCopy(task.folder / "lake" / table)
        assert task.target is not None
        return SqlCopy(task.target, task.database, f"{task.schema}.{table}")


class Peer(Contender):
    """One with an environment of its own."""

    requirements: str

    def __init__(self) -> None:
        self.home = installed(self.requirements)

    def job(self, task: Task, **more: object) -> str:
        file = task.folder / "job.json"
        told: dict[str, object] = {
            "source": task.url,
            "tables": task.tables,
            "folder": str(task.folder),
            "into": task.into,
            "rows": task.rows,
            "schema": task.schema,
            "target": task.target_url if task.target else None,
        }
        file.write_text(json.dumps(told | more))
        return str(file)


class Dlt(Peer):
    requirements = "dlt"
    into = ("lake", "database", "stage")
    backend: str
    environment: Mapping[str, str] = {
        "RUNTIME__DLTHUB_TELEMETRY": "false",
        "RUNTIME__LOG_LEVEL": "ERROR",
        "EXTRACT__NEXT_ITEM_MODE": "fifo",  # tables one after the other: by turns, each would hold a connection
    }

    def run(self, task: Task) -> Took:
        source = task.url.replace("mysql://", "mysql+pymysql://").replace("postgresql://", "postgresql+psycopg2://")
        job = self.job(task, backend=self.backend, source=source)
        command = [str(self.home / "bin/python"), str(PEERS / "dlt_job.py"), job]
        return measured(command, self.environment, servers=task.servers)

    def copy(self, task: Task, table: str) -> Copy:
        if task.into == "lake":
            return DeltaCopy(task.folder / "lake" / "shop" / table)
        assert task.target is not None
        return SqlCopy(task.target, task.database, f"{task.schema}.{table}")


class DltPyarrow(Dlt):
    name, backend = "dlt, pyarrow", "pyarrow"
    note = "`sql_database`, incremental cursor, merge (`upsert`) by primary key; Delta, or PostgreSQL through CSV"


class DltConnectorx(Dlt):
    name, backend = "dlt, connectorx", "connectorx"
    note = "the same, read by connectorx"


class OnEtl(Peer):
    name = "onETL"
    requirements = "onetl"
    note = "`DBReader` with `AutoDetectHWM`, `IncrementalStrategy`; it cannot merge: it appends to Parquet"

    def run(self, task: Task) -> Took:
        job = self.job(task, jars=[str(file) for file in jars(["postgresql"])])
        command = [str(self.home / "bin/python"), str(PEERS / "onetl_job.py"), job]
        return measured(command, servers=task.servers)

    def copy(self, task: Task, table: str) -> Copy:
        return FilesCopy(task.folder / "lake" / table)


class Sling(Peer):
    name = "Sling"
    requirements = "sling"
    into = ("database",)
    note = (
        "a replication file, `incremental` with primary and update key. Not into a lake: to write Parquet it fetches "
        "DuckDB's program from the network as it runs, and its free edition keeps no state for files"
    )

    def run(self, task: Task) -> Took:
        replication = task.folder / "replication.yaml"
        defaults = {
            "mode": "incremental",
            "object": f"{task.schema}.{{stream_table}}",
            "primary_key": ["id"],
            "update_key": "updated_at",
        }
        streams = {f"public.{table}": None for table in task.tables}
        told = {"source": "SOURCE", "target": "TARGET", "defaults": defaults, "streams": streams}
        replication.write_text(json.dumps(told))  # JSON is YAML
        program = next(self.home.glob("lib/python*/site-packages/sling_linux_amd64/bin/sling-linux-amd64"))
        url = f"{task.url}?sslmode=disable"
        quiet = {"SLING_HOME_DIR": str(task.folder / "home"), "SLING_DISABLE_TELEMETRY": "TRUE"}
        command = [str(program), "run", "-r", str(replication)]
        return measured(command, {"SOURCE": url, "TARGET": url, **quiet}, servers=task.servers)

    def copy(self, task: Task, table: str) -> Copy:
        assert task.target is not None
        return SqlCopy(task.target, task.database, f"{task.schema}.{table}")


OURS = {"strandline": Strandline, "limit": Limit, "spark": SparkAlone, "hand-written": HandWritten}
THEIRS: dict[str, type[Peer]] = {
    "dlt-pyarrow": DltPyarrow,
    "dlt-connectorx": DltConnectorx,
    "sling": Sling,
    "onetl": OnEtl,
}


def installed(name: str) -> Path:
    """A peer's environment, made if it is not there at these versions. Raises CalledProcessError if that fails."""
    wanted = (PEERS / f"{name}.txt").read_text()
    home = cache_folder().parent / "peers" / name
    made = home / "requirements.txt"
    if made.exists() and made.read_text() == wanted:
        return home
    if name == "sling" and (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise subprocess.CalledProcessError(1, "sling", stderr="its binary on PyPI is for Linux on x86_64")
    shutil.rmtree(home, ignore_errors=True)
    _call([PYTHON, "-m", "venv", str(home)])
    uv = Path(PYTHON).with_name("uv")
    python = str(home / "bin/python")
    install = [str(uv), "pip", "install", "--python", python] if uv.exists() else []
    _call([*(install or [python, "-m", "pip", "install"]), "-r", str(PEERS / f"{name}.txt")])
    made.write_text(wanted)
    return home


def _call(command: Sequence[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": ""})

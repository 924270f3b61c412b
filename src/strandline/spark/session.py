"""Spark sessions: our own, started for work on one machine or a given master, and one per batch of any session.

Owns how Spark is started: Java, jars, addresses, zone, log. Only public API, so that a session may be classic or Spark
Connect. A session the caller made is never stopped here.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import re
import shutil
import sys
import tempfile
import uuid
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from strandline.core.errors import SetupError
from strandline.spark import gateway
from strandline.spark.connect import closed_at_exit, leave
from strandline.spark.jars import cache_folder, jars, spark_home
from strandline.spark.java import find_java
from strandline.spark.work import Work

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "alive",
    "batch_session",
    "bury",
    "class_archive",
    "end_batch",
    "find_java",
    "launcher_options",
    "local_session",
    "set_all",
    "settings",
    "stop",
    "write_properties",
]

_DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
_LOGGING = Path(__file__).with_name("log4j2.properties")
WORKERS = Path(__file__).with_name("workers")
"""On the path of Spark's Python workers."""
MARK = "spark.strandline.started"
"""A setting: tells one start of Spark from another."""
# Settings that name one batch of one table; copied to another batch's session, Delta would silently skip its writes.
_OF_ONE_BATCH = ("spark.databricks.delta.write.txnAppId", "spark.databricks.delta.write.txnVersion")
_OF_EVERY_BATCH = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.files.ignoreMissingFiles": "false",  # a batch has every row, or fails
    "spark.sql.files.ignoreCorruptFiles": "false",
}
_SMALL = {
    # Queries over few rows are planned once: planned anew after each of their stages, they win nothing.
    "spark.sql.adaptive.enabled": "false",
    # Each hash table and sort begins with a page: by Spark's rule one of 32 MB in a heap of 2 GB, for ten rows.
    "spark.buffer.pageSize": "4m",
}
# Java source that is written, compiled and loaded for an expression costs more than it wins back on so few rows.
_INTERPRETED = {"spark.sql.codegen.factoryMode": "NO_CODEGEN"}


def local_session(
    needs: Iterable[str] = ("delta",),
    conf: Mapping[str, str] | None = None,
    master: str | None = None,
    app_name: str = "strandline",
    *,
    work: Work = Work.MUCH,
) -> SparkSession:
    """Start Spark in this process with the jars for `needs`; settings in `conf` or spark-defaults.conf win over ours.

    Settings reach Spark through a private file, so that no secret shows in the process list. Spark's log goes to the
    file named by STRANDLINE_SPARK_LOG, or a temporary one. Raises SetupError; also if this process runs Spark already.
    """
    java = find_java()
    home = spark_home()
    if _active():
        raise SetupError(
            "Spark is already running in this process", remedy="Pass that session: sync(spark=spark), or stop it first."
        )
    user_conf = Path(os.environ.get("SPARK_CONF_DIR") or home / "conf")
    theirs = {**_spark_defaults(user_conf), **(conf or {})}
    if master:
        theirs["spark.master"] = master
    folder = conf_folder(user_conf)
    chosen = settings(tuple(needs), theirs, java, work) | {"spark.app.name": app_name, MARK: uuid.uuid4().hex}
    if chosen.get("spark.sql.catalogImplementation") != "hive":  # its tables end with the session: not in the cwd
        chosen.setdefault("spark.sql.warehouse.dir", str(folder / "warehouse"))
    log = Path(os.environ.get("STRANDLINE_SPARK_LOG") or folder / "spark.log").absolute()
    properties = folder / "settings.properties"
    write_properties(properties, chosen)
    submit = f"--properties-file '{properties}'"
    try:
        with (
            gateway.environment(
                JAVA_HOME=java,
                SPARK_CONF_DIR=str(folder),
                STRANDLINE_SPARK_LOG=str(log),
                SPARK_LAUNCHER_OPTS=launcher_options(home),
                PYSPARK_SUBMIT_ARGS=f"{submit} {os.environ.get('PYSPARK_SUBMIT_ARGS', 'pyspark-shell')}",
                PYSPARK_PYTHON=os.environ.get("PYSPARK_PYTHON", sys.executable),
                **({"SPARK_LOCAL_IP": "127.0.0.1"} if _is_local(chosen["spark.master"]) else {}),
            ),
            gateway.java_started(home / "bin" / "spark-submit"),
        ):
            spark = _start(chosen)
    except Exception as error:
        raise SetupError("Spark did not start", why=_tail(log, error), remedy=f"Spark's log: {log}") from error
    finally:
        properties.unlink()
    return spark


def batch_session(spark: SparkSession, conf: Mapping[str, str] | None = None) -> SparkSession:
    """A session of its own for one batch, with the caller's settings, the zone pinned to UTC, and `conf`.

    What is set on it stays on it, so batches of several tables can run side by side.
    """
    theirs = spark.conf.getAll  # on Spark Connect the server knows a session only after its first request
    if hasattr(spark, "cloneSession"):
        session: SparkSession = closed_at_exit(spark.cloneSession())
        session.client.set_retry_policies(spark.client.get_retry_policies())
    else:
        session = spark.newSession()
        inherited = session.conf.getAll
        set_all(session, {key: value for key, value in theirs.items() if inherited.get(key) != value})
        if (catalog := spark.catalog.currentCatalog()) != session.catalog.currentCatalog():
            session.catalog.setCurrentCatalog(catalog)
        if (database := spark.catalog.currentDatabase()) != session.catalog.currentDatabase():
            session.catalog.setCurrentDatabase(database)
    for key in _OF_ONE_BATCH:
        if key in theirs:
            session.conf.unset(key)
    set_all(session, {**_OF_EVERY_BATCH, **(conf or {})})
    return session


def set_all(session: SparkSession, conf: Mapping[str, str]) -> None:
    """Spark Connect takes them in one request."""
    if conf and hasattr(session, "cloneSession"):
        cast(Any, session.conf)._set_all(conf, silent=False)
    else:
        for key, value in conf.items():
            session.conf.set(key, value)


def end_batch(session: SparkSession) -> None:
    """Give up a session that `batch_session` made: on Spark Connect it holds a place on the server, and a channel."""
    if hasattr(session, "cloneSession"):
        leave(session)


def write_properties(file: Path, chosen: Mapping[str, str]) -> None:
    """Settings as spark-submit reads them, for nobody else's eyes."""
    file.touch(mode=0o600)
    file.write_text("".join(f"{key} {_escape(value)}\n" for key, value in chosen.items()))


def launcher_options(home: Path) -> str:
    """For the Java that spells out the command for ours: it need not look through all of Spark's jars for its own."""
    jar = next((str(jar) for jar in (home / "jars").glob("spark-launcher_*.jar") if " " not in str(jar)), None)
    return " ".join(["-XX:+UseSerialGC -XX:TieredStopAtLevel=1", *([f"-Xbootclasspath/a:{jar}"] if jar else [])])


def stop(spark: SparkSession) -> None:
    """Stop a session that `local_session` made."""
    gateway.end_accumulators(spark.sparkContext)
    spark.stop()


def alive(spark: SparkSession) -> bool:
    """Whether it still does any work; it is given some."""
    try:
        return spark.range(1).count() == 1
    except Exception:  # whatever it fails with, it does not answer
        return False


def bury(spark: SparkSession) -> None:
    """Forget a session of ours that died. PySpark would answer a call for a new one with the old, as long as it has its
    remains; a JVM that still answers is used again."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    with suppress(Exception):  # what is dead cannot be stopped
        spark.stop()
    if (there := SparkContext._gateway) is not None:
        try:
            there.jvm.java.lang.System.currentTimeMillis()
        except Exception:
            with suppress(Exception):
                there.shutdown()
            SparkContext._gateway = SparkContext._jvm = None
    SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = SparkSession._activeSession = None


def class_archive(java: str, files: Iterable[Path]) -> Path:
    """Where the shared-class archive for this Java, Spark and class path lies, if one was built.

    Java takes an archive only with the very files it was made with, by path, size and time: another environment, or
    the same one installed anew, has another archive. So has another version ("2") of the job that makes it.
    """
    found = ((file, file.stat()) for file in [*sorted((spark_home() / "jars").glob("*.jar")), *files])
    parts = [
        "2",
        java,
        (Path(java) / "release").read_text(),
        *(f"{file} {s.st_size} {s.st_mtime_ns}" for file, s in found),
    ]
    key = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    return cache_folder().parent / "classes" / f"{key}.jsa"


def settings(needs: tuple[str, ...], theirs: Mapping[str, str], java: str, work: Work = Work.MUCH) -> dict[str, str]:
    """Everything Spark is started with: our defaults under the user's settings, lists joined."""
    files = jars(needs)
    master = theirs.get("spark.master", "local[*]")
    work = work if _is_local(master) else Work.MUCH
    ours = {
        "spark.master": master,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        # Each batch has a session of its own. With a class loader of its own it would share no compiled query with the
        # others, and a batch needs more of them than Spark keeps.
        "spark.sql.artifact.isolation.enabled": "false",
        "spark.sql.codegen.cache.maxEntries": "2000",
        "spark.driver.defaultJavaOptions": _java_options(
            theirs, class_archive(java, files), _LATER if work is Work.MUCH else _SOON
        ),
        "spark.executor.defaultJavaOptions": "-Duser.timezone=UTC",
    }
    if "delta" in needs:
        ours |= _DELTA
    if _is_local(master):
        ours |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.sql.shuffle.partitions": str(_cores(master)),
            "spark.databricks.delta.snapshotPartitions": "1",
            "spark.python.daemon.module": "strandline_workers",
            **(_SMALL if work is not Work.MUCH else {}),
            **(_INTERPRETED if work is Work.LEAST else {}),
        }
    merged = {**ours, **theirs}
    for key in ("spark.driver.defaultJavaOptions", "spark.executor.defaultJavaOptions"):
        merged[key] = f"{ours[key]} {theirs.get(key, '')}".strip()  # for Java, the last word on an option counts
    paths = [str(file) for file in files]
    _join(merged, "spark.driver.extraClassPath", os.pathsep, paths)
    if _is_local(master):
        _join(merged, "spark.executor.extraClassPath", os.pathsep, paths)
    else:  # other machines do not have our files: Spark carries them there
        _join(merged, "spark.jars", ",", paths)
    if "delta" in needs:
        _join(merged, "spark.sql.extensions", ",", [_DELTA["spark.sql.extensions"]])
    return merged


_LATER = (
    # Spark plans with much code that runs some thousand times, once. The optimising compiler takes the processors from
    # the work if it begins there as early as Java has it; loops over rows are hot long before these counts.
    "-XX:Tier4InvocationThreshold=100000",
    "-XX:Tier4MinInvocationThreshold=12000",
    "-XX:Tier4CompileThreshold=300000",
    "-XX:Tier4BackEdgeThreshold=200000",
)
# Without it, the other compiler need not count for it what a method does, which takes as long as the work; and it is
# given the room that both would have had.
_SOON = ("-XX:TieredStopAtLevel=1", "-XX:ReservedCodeCacheSize=240m")


def _java_options(theirs: Mapping[str, str], archive: Path, compilers: tuple[str, ...]) -> str:
    """The zone decides how JDBC drivers read zone-less values. A collector or archive the user chose is left alone."""
    chosen = theirs.get("spark.driver.extraJavaOptions", "")
    # Spark's classes pass Java's first limit for them seven times over, and each time everything is collected.
    options = ["-Duser.timezone=UTC", "-Xlog:disable", "-Xlog:all=error:stderr", "-XX:MetaspaceSize=256m", *compilers]
    if not re.search(r"-XX:\+Use\w+GC\b", chosen):
        options.append("-XX:+UseParallelGC")
    if archive.exists() and "-XX:SharedArchiveFile" not in chosen and "-XX:ArchiveClassesAtExit" not in chosen:
        options += [f"-XX:SharedArchiveFile={archive}", "-Xshare:auto"]
        with suppress(OSError):  # it may be somebody else's to date
            archive.touch()
    return " ".join(options)


def _join(settings: dict[str, str], key: str, separator: str, added: list[str]) -> None:
    present = [part for part in settings.get(key, "").split(separator) if part]
    settings[key] = separator.join([*present, *(part for part in added if part not in present)])


def _is_local(master: str) -> bool:
    return master == "local" or master.startswith("local[")


def _cores(master: str) -> int:
    found = re.match(r"local\[(\d+)", master)
    if found:
        return int(found[1])
    if master == "local":
        return 1
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def _spark_defaults(folder: Path) -> dict[str, str]:
    """What the user's spark-defaults.conf sets: Spark reads it itself, but we must leave these settings alone."""
    file = folder / "spark-defaults.conf"
    lines = file.read_text().splitlines() if file.is_file() else []
    pairs = [
        re.split(r"[\s=:]+", line.strip(), maxsplit=1) for line in lines if not line.lstrip().startswith(("#", "!"))
    ]
    return {pair[0]: pair[1] for pair in pairs if len(pair) == 2}


def conf_folder(user_conf: Path) -> Path:
    """A private configuration folder for Spark: the user's files, our log settings, and output into the log file.

    Where the user has no files for the class path, an empty folder that is always the same takes its place there: the
    class archive is good for one class path only, and for none with a folder that holds something.
    """
    folder = Path(tempfile.mkdtemp(prefix="strandline-spark-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    theirs = {file.name: file.absolute() for file in user_conf.iterdir()} if user_conf.is_dir() else {}
    environment = theirs.pop("spark-env.sh", None)
    on_class_path = [name for name in theirs if not name.endswith(".template") and name != "spark-defaults.conf"]
    lines = ['exec >>"$STRANDLINE_SPARK_LOG" 2>&1', *([f". '{environment}'"] if environment else [])]
    if on_class_path:
        for name, file in theirs.items():
            (folder / name).symlink_to(file)
    else:
        empty = cache_folder().parent / "conf"
        empty.mkdir(parents=True, exist_ok=True)
        lines.append(f"SPARK_CONF_DIR='{empty}'")
    lines.append(f'PYTHONPATH="${{PYTHONPATH:+$PYTHONPATH:}}{WORKERS}"')
    if "log4j2.properties" not in theirs:
        lines.append(f'SPARK_SUBMIT_OPTS="$SPARK_SUBMIT_OPTS -Dlog4j2.configurationFile={_LOGGING.as_uri()}"')
    (folder / "spark-env.sh").write_text("\n".join(lines) + "\n")
    return folder


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n")


def _active() -> bool:
    """Without importing PySpark for the answer."""
    module = sys.modules.get("pyspark.sql")
    return module is not None and module.SparkSession.getActiveSession() is not None


def _start(settings: Mapping[str, str]) -> SparkSession:
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.getOrCreate()
    if spark.conf.get(MARK, "") == settings[MARK]:
        return spark
    # A JVM from an earlier session answered: it read no file, but nothing travels on a command line now either.
    earlier = spark.conf.get(MARK, "")
    spark.stop()
    if not earlier:
        raise RuntimeError(
            "this process already ran Spark without Strandline's jars; use that session, or a new process"
        )
    return SparkSession.builder.config(map=dict(settings)).getOrCreate()


def _tail(log: Path, error: Exception) -> str:
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return "\n".join([str(error), *lines[-15:]])

"""The Spark session that is at work here already, whoever made it. Never makes one, never stops one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from strandline.core.errors import SetupError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def active_session() -> SparkSession:
    """The active session of this process, classic or Spark Connect; in a thread that has none, the default one.
    SetupError where there is neither."""
    try:
        from pyspark.errors import PySparkRuntimeError
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise SetupError("this needs Spark", remedy="pip install 'strandline[spark]'") from error
    try:
        return SparkSession.active()
    except PySparkRuntimeError as error:
        raise SetupError(
            "there is no Spark session here to read with",
            remedy="Pass yours: tracker.run(tables, spark=spark)",
        ) from error

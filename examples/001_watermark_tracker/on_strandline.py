"""The same three steps on Strandline: under a lease, with a history, and the window's end is a value that was seen."""

from datetime import UTC, datetime, timedelta

import strandline
from strandline.compat import finalize_pipeline_run, get_delta_window, start_pipeline_run

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def job(spark, state, source, process):
    frame = strandline.Frame(
        "acs_source_table",
        lambda spark: spark.read.format("delta").load(source),
        "updated_at",
        lookback=timedelta(minutes=10),  # how late a row may come: a column of a DataFrame has no barrier
    )
    tracker = strandline.Tracker(state, pipeline="wos_pipeline", source=frame, spark=spark)
    record = start_pipeline_run(tracker, "job_001")
    start, end = get_delta_window(record)
    rows = spark.read.format("delta").load(source)
    rows = rows.where((rows.updated_at > (start or EPOCH)) & (rows.updated_at <= end))
    process(rows)
    finalize_pipeline_run(record, final_status="SUCCESS")
    tracker.close()

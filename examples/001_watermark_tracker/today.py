"""One watermark record per pipeline, by hand: start a run, get the window, finalize it."""

from datetime import UTC, datetime

COLUMNS = "pipeline_name STRING, job_id STRING, last_processed_ts TIMESTAMP, current_run_ts TIMESTAMP, status STRING"


def start_pipeline_run(spark, control, pipeline, job_id):
    spark.sql(f"CREATE TABLE IF NOT EXISTS delta.`{control}` ({COLUMNS}) USING delta")
    found = spark.read.format("delta").load(control).where(f"pipeline_name = '{pipeline}'").collect()
    last = found[0]["last_processed_ts"] if found else None
    now = datetime.now(UTC)  # a row that is stamped before it and committed after it is never read
    record = {"pipeline_name": pipeline, "job_id": job_id, "last_processed_ts": last, "current_run_ts": now}
    _write(spark, control, {**record, "status": "RUNNING"})  # another run may be under way: nobody looks
    return record


def get_delta_window(record):
    return record["last_processed_ts"], record["current_run_ts"]


def finalize_pipeline_run(spark, control, record, final_status):
    moved = record["current_run_ts"] if final_status == "SUCCESS" else record["last_processed_ts"]
    _write(spark, control, {**record, "last_processed_ts": moved, "status": final_status})


def _write(spark, control, record):
    row = [tuple(record[name.split()[0]] for name in COLUMNS.split(", "))]
    where = f"pipeline_name = '{record['pipeline_name']}'"
    writer = spark.createDataFrame(row, COLUMNS).write.format("delta").mode("overwrite")
    writer.option("replaceWhere", where).save(control)


def job(spark, control, source, process):
    record = start_pipeline_run(spark, control, "wos_pipeline", "job_001")
    start, end = get_delta_window(record)
    rows = spark.read.format("delta").load(source).where(f"updated_at <= timestamp_micros({_micros(end)})")
    if start is not None:
        rows = rows.where(f"updated_at > timestamp_micros({_micros(start)})")
    process(rows)
    finalize_pipeline_run(spark, control, record, "SUCCESS")


def _micros(at):
    return int(at.timestamp() * 1_000_000)

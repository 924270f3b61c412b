"""MySQL → files → warehouse, by hand: a JSON watermark, a file per batch, an upsert, then the watermark again."""

import json
import time
from pathlib import Path


def job(mysql, warehouse, folder):
    folder = Path(folder)
    folder.mkdir(exist_ok=True)
    mark = folder / "watermark.json"
    last = json.loads(mark.read_text())["last"] if mark.exists() else "1970-01-01 00:00:00"
    with mysql.cursor() as cursor:  # a transaction that is still open has rows below the highest stamp: lost
        cursor.execute(
            "SELECT id, amount, CAST(update_at AS CHAR) FROM claims WHERE update_at > %s ORDER BY update_at", [last]
        )
        rows = [[id, str(amount), at] for id, amount, at in cursor.fetchall()]
    if not rows:
        return
    staged = folder / f"batch-{time.time_ns()}.json"
    staged.write_text(json.dumps(rows))
    with warehouse.transaction():
        for row in json.loads(staged.read_text()):
            warehouse.execute(
                "INSERT INTO claims VALUES (%s, %s, %s) ON CONFLICT (id) DO UPDATE "
                "SET amount = excluded.amount, update_at = excluded.update_at",
                row,
            )
    mark.write_text(json.dumps({"last": rows[-1][2]}))  # not written if killed before; half written if killed within

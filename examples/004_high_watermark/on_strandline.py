"""The same on Strandline, without Spark: the window's rows come by its own SQL, and go to a producer that you bring.

At least once: killed between publishing and `done`, the same window is published again, under the same batch number.
"""

from datetime import timedelta

import strandline

WAIT = timedelta(seconds=1)  # for transactions that have drawn a number and not committed; then the next poll has them


def poll(connection, url, publish):
    """Called every few seconds; with nothing new it costs a look at the barrier."""
    with strandline.Tracker(url, pipeline="notifications", source=url, cursor="seq", max_wait=WAIT) as tracker:
        for name, position in tracker.positions().items():
            print(f"{name}: from {position.watermark}, in {position.status}")
        with tracker.run("notifications") as run:
            for table in run:
                names = [column.name for column in table.table.columns]
                rows = connection.execute(table.changes.query).fetchall()
                for row in rows:
                    publish({**dict(zip(names, row, strict=False)), "batch": table.batch.number})
                connection.commit()
                table.done(rows=len(rows))

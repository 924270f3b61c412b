"""What the databases alone take: rows out by `COPY … (FORMAT binary)`, one MERGE, or a look at each table's newest row.

limit.py copy URL TABLE FILE [SINCE] | merge URL SCHEMA SINCE | look URL
"""

from __future__ import annotations

import sys
from pathlib import Path

import psycopg

MERGE = """
MERGE INTO {schema}.orders t USING {rows} s ON t.id = s.id
WHEN MATCHED THEN UPDATE SET customer_id = s.customer_id, status = s.status, amount = s.amount, note = s.note,
  updated_at = s.updated_at
WHEN NOT MATCHED THEN INSERT VALUES (s.id, s.customer_id, s.status, s.amount, s.note, s.updated_at)"""


def main(what: str, url: str, *rest: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection, connection.cursor() as cursor:
        if what == "copy":
            table, file, *since = rest
            rows = f"(SELECT * FROM {table} WHERE updated_at >= '{since[0]}')" if since else table
            with Path(file).open("wb") as out, cursor.copy(f"COPY {rows} TO STDOUT (FORMAT binary)") as copy:
                for block in copy:
                    out.write(block)
        elif what == "merge":
            # As Strandline: by the index, where the server would read all of the target.
            cursor.execute("SET random_page_cost = 1.1")
            rows = f"(SELECT * FROM public.orders WHERE updated_at >= '{rest[1]}')"
            cursor.execute(MERGE.format(schema=rest[0], rows=rows))
        else:
            names = cursor.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
            looks = " UNION ALL ".join(f"SELECT '{name}', max(updated_at) FROM {name}" for (name,) in names)
            cursor.execute(looks).fetchall()


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Strandline's increment on a warm session: `warm.py CONFIG DSN ROUNDS` prints the seconds of each round."""

from __future__ import annotations

import sys
import time

import psycopg

import strandline

TOUCH = "UPDATE orders SET amount = amount + 1, updated_at = now() WHERE id % 100 = 7"


def main(config: str, dsn: str, rounds: int) -> None:
    with strandline.load(config) as project:
        for turn in range(rounds + 1):
            with psycopg.connect(dsn, autocommit=True) as connection:
                connection.execute(TOUCH)
            started = time.perf_counter()
            project.sync("shop", raise_on_failure=True)
            if turn:
                print(f"{time.perf_counter() - started:.3f}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))

"""Two ways to have Airflow and Strandline work together. Airflow 3; `strandline` is on the workers' PATH.

`shop_by_airflow`: Airflow decides when. A repeated task carries out the plan that was left; nothing is applied twice.
`report_after_shop`: `strandline serve` runs the pipeline; Airflow waits for its data. Needs the state alone.
"""

import json
import subprocess
from datetime import datetime, timedelta
from typing import Any

from airflow.sdk import dag, get_current_context, task

CONFIG = "/etc/strandline/strandline.yml"


def run(command: list[str]) -> dict[str, Any]:
    """What the command prints as JSON; progress goes to the task's log."""
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise RuntimeError(f"{command[0]} {command[1]} ended with {done.returncode}: {done.stdout}")
    return dict(json.loads(done.stdout))


@dag(
    schedule=timedelta(minutes=15),
    start_date=datetime(2026, 1, 1),
    catchup=False,  # a watermark knows what was missed: one run makes up for all
    max_active_runs=1,
    default_args={"retries": 3, "retry_delay": timedelta(minutes=1)},
)
def shop_by_airflow() -> None:
    @task
    def sync() -> dict[str, Any]:
        job = get_current_context()["run_id"]
        return run(["strandline", "sync", "-p", "shop", "--job-id", job, "--json", "-c", CONFIG])

    @task(retries=0)
    def verify() -> dict[str, Any]:
        return run(["strandline", "verify", "-p", "shop", "--json", "-c", CONFIG])

    sync() >> verify()


@dag(schedule="@hourly", start_date=datetime(2026, 1, 1), catchup=False)
def report_after_shop() -> None:
    @task(retries=3)
    def wait() -> dict[str, Any]:
        until = get_current_context()["data_interval_end"].isoformat()
        return run(
            ["strandline", "wait", "-p", "shop", "--until", until, "--timeout", "30m", "--json", "-c", CONFIG],
        )

    @task
    def report() -> None:
        """Yours: everything before the end of the interval is in the target."""

    wait() >> report()


shop_by_airflow()
report_after_shop()

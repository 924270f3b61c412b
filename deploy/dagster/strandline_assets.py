"""A pipeline of Strandline, with one target and no stage, as Dagster assets: one per table, rows and window's end told.

`strandline` is on the PATH. A repeated run carries out the plan that was left; nothing is applied twice.
"""

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import dagster as dg

CONFIG = "/etc/strandline/strandline.yml"
TABLES = ("orders", "customers")


def run(command: list[str]) -> tuple[int, dict[str, Any]]:
    """Exit code, and what the command prints as JSON; progress goes to the log."""
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    return done.returncode, dict(json.loads(done.stdout or "{}"))


@dg.multi_asset(
    name="shop",
    specs=[dg.AssetSpec(["shop", table]) for table in TABLES],
    can_subset=True,
    retry_policy=dg.RetryPolicy(max_retries=2, delay=60),
)
def shop(context: dg.AssetExecutionContext) -> Iterator[dg.MaterializeResult]:
    chosen = {key.path[-1]: key for key in context.selected_asset_keys}
    tables = [word for table in chosen for word in ("-t", table)]
    code, found = run(
        ["strandline", "sync", "-p", "shop", *tables, "--job-id", context.run_id, "--json", "-c", CONFIG],
    )
    for outcome in found.get("tables", []):
        if outcome["status"] != "FAILED":  # one table's failure leaves the others alone
            told = {name: outcome[name] for name in ("rows_inserted", "rows_updated", "rows_deleted", "high")}
            yield dg.MaterializeResult(chosen[outcome["table"]], metadata=told)
    if code:
        raise dg.Failure(f"strandline sync ended with {code}: {json.dumps(found)}")


every_15_minutes = dg.ScheduleDefinition(
    name="shop_every_15_minutes",
    target=dg.AssetSelection.assets(shop),
    cron_schedule="*/15 * * * *",
)

defs = dg.Definitions(assets=[shop], schedules=[every_15_minutes])

"""The command line against a real state, with source and target in memory: what it says, where, and how it exits."""

from __future__ import annotations

import json
import logging
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from shop import PASSWORD, Shop, open_shop

from strandline import cli
from strandline.cli.app import app
from strandline.cli.invocation import Invocation
from strandline.cli.reference import document
from strandline.core.errors import ConfigError, ConnectError, RunFailedError, SourceError


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shop:
    return open_shop(tmp_path, monkeypatch, capsys)


def crash() -> None:
    raise SourceError("the table is gone", why="Somebody dropped it.", remedy="Bring it back.")


# plan


def test_plan_shows_what_would_move_and_moves_nothing(shop: Shop) -> None:
    shop.write("orders", *range(9))
    said = shop.run("plan", "-p", "shop")
    assert said.code == 0
    assert "(guard 5 s)" in said.out
    assert "orders      sync    beginning →" in said.out
    assert "~9   first load, 3 slices" in said.out
    assert "2 tables: 1 to do, 1 up to date. Nothing was moved. Run: strandline sync -p shop" in said.out
    assert shop.sink.rows("orders") == []
    assert shop.run("runs", "list").out == ""


def test_detailed_exit_code_tells_work_from_none(shop: Shop) -> None:
    assert shop.run("plan", "--detailed-exitcode").code == 0
    shop.write("orders", 1)
    assert shop.run("plan").code == 0
    assert shop.run("plan", "--detailed-exitcode").code == 3


def test_plan_json_has_the_settled_shape_and_exact_values(shop: Shop) -> None:
    shop.write("orders", 1)
    document = shop.run("plan", "--json", "-t", "orders").json
    assert document["schema_version"] == 1
    assert document["pipelines"][0]["guard_seconds"] == 5
    (table,) = document["pipelines"][0]["tables"]
    assert {"table", "stage", "low", "high", "reason", "estimated_rows", "slices", "held_by"} <= table.keys()
    assert table["high"] == "2026-11-15 08:00:02.000000"


def test_a_held_table_names_the_transaction(shop: Shop) -> None:
    shop.source.begin().write("orders", {"id": 1, "value": "new"})
    shop.clock.advance(700)
    said = shop.run("plan", "-t", "orders")
    assert "transaction 1 open for 12 min" in said.out
    assert "1 table: 1 held. Nothing was moved." in said.out
    assert "Run:" not in said.out


def test_a_stopped_table_shows_in_the_plan_and_as_an_error(shop: Shop) -> None:
    shop.write("customers", 1)
    del shop.source._tables["orders"]
    said = shop.run("plan", "-p", "shop")
    assert said.code == 1
    assert 'stopped: no table "orders"' in said.out
    assert "1 to do" in said.out
    assert 'error: shop.orders: no table "orders"\n\n  Names like it' in said.err


# sync


def test_sync_sums_up_on_stdout_and_tells_each_event_on_stderr(shop: Shop) -> None:
    shop.write("orders", *range(9))
    said = shop.run("sync", "-p", "shop")
    assert said.code == 0
    assert said.out.splitlines()[-1].startswith("shop: 2 tables: 1 moved, 1 up to date; 9 rows: 9 new in ")
    assert "shop.orders sync: slice 3 of 3: 1 row, 1 new" in said.err
    assert "slice" in said.err and "slice 1" not in said.out
    assert len(shop.sink.rows("orders")) == 9


def test_nothing_is_coloured_and_no_bar_is_drawn_on_a_pipe(shop: Shop) -> None:
    shop.write("orders", 1)
    shop.sink.at_commit(before=crash)
    for said in (shop.run("plan"), shop.run("sync"), shop.run("status"), shop.run("runs")):
        assert "\x1b" not in said.out + said.err
        assert "━" not in said.err


def test_sync_json_is_one_object_for_one_pipeline_and_runs_for_several(shop: Shop) -> None:
    shop.write("orders", 1, 2)
    one = shop.run("sync", "--json", "-p", "shop").json
    assert {"schema_version", "run_id", "pipeline", "status", "tables"} <= one.keys()
    assert one["status"] == "COMPLETED"
    assert one["tables"][0] | {"seconds": 0} == {
        "table": "orders",
        "stage": "sync",
        "status": "COMPLETED",
        "low": None,
        "high": "2026-11-15 08:00:03.000000",
        "batches": 1,
        "rows_read": 2,
        "rows_inserted": 2,
        "rows_updated": 0,
        "rows_deleted": 0,
        "seconds": 0,
        "error": None,
    }
    several = shop.run("sync", "--json").json
    assert [run["pipeline"] for run in several["runs"]] == ["shop", "stock"]


def test_a_failed_table_exits_with_1_says_why_and_leaves_the_others_alone(shop: Shop) -> None:
    shop.write("orders", 1)
    shop.write("customers", 1)
    shop.sink.at_commit(before=crash)
    said = shop.run("sync", "-p", "shop")
    assert said.code == 1
    expected = "error: shop.orders: the table is gone\n\n  Somebody dropped it.\n\n  Bring it back.\n"
    assert expected in said.err
    assert "Traceback" not in said.err
    assert "1 moved, 1 failed" in said.out
    assert len(shop.sink.rows("customers")) == 1


def test_a_pipeline_that_cannot_start_leaves_the_others_alone(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.write("items", 1)
    real = shop.source.tables

    def tables(patterns: Any, queries: Any) -> Any:
        if "orders" in patterns:
            raise ConnectError("db does not answer", remedy="Is it up?")
        return real(patterns, queries)

    monkeypatch.setattr(shop.source, "tables", tables)
    said = shop.run("sync", "--json")
    assert said.code == 1
    assert "error: shop: db does not answer\n\n  Is it up?" in said.err
    assert [(run["pipeline"], run["status"]) for run in said.json["runs"]] == [
        ("shop", "FAILED"),
        ("stock", "COMPLETED"),
    ]


def test_limit_says_why_it_moved_more(shop: Shop) -> None:
    shop.write("customers", 1, 2, 3, apart=False)
    shop.write("customers", 4)
    said = shop.run("sync", "-t", "customers", "--limit", "2")
    assert "note: customers: 3 rows instead of 2: rows that share a cursor value move together" in said.err
    assert len(shop.sink.rows("customers")) == 3


def test_dry_run_moves_nothing(shop: Shop) -> None:
    shop.write("orders", 1)
    said = shop.run("sync", "--dry-run", "-t", "orders")
    assert "first load" in said.out
    assert shop.sink.rows("orders") == []


def test_full_needs_yes_where_there_is_no_terminal(shop: Shop) -> None:
    shop.write("orders", 1)
    refused = shop.run("sync", "--full", "-t", "orders")
    assert refused.code == 2
    assert "--yes" in refused.err and "shop: orders" in refused.err
    assert shop.sink.rows("orders") == []
    assert shop.run("sync", "--full", "--yes", "-t", "orders").code == 0
    assert len(shop.sink.rows("orders")) == 1


def test_the_second_sync_of_a_table_says_who_holds_it(shop: Shop) -> None:
    shop.write("orders", 1)
    entered, leave = threading.Event(), threading.Event()

    def hold() -> None:
        entered.set()
        leave.wait(120)

    shop.sink.at_commit(before=hold)
    with shop.project() as other:
        first = threading.Thread(target=other.sync, args=("shop",), kwargs={"tables": ("orders",)})
        first.start()
        try:
            assert entered.wait(120)
            said = shop.run("sync", "-t", "orders", "--json")
        finally:
            leave.set()
            first.join()
    assert said.code == 1
    assert f"pid {os.getpid()}" in said.json["tables"][0]["error"]


def test_job_id_and_trigger_are_in_the_history(shop: Shop) -> None:
    shop.write("orders", 1)
    shop.run("sync", "--job-id", "nightly-7")
    (run,) = shop.run("runs", "list", "--json").json["runs"]
    assert (run["trigger"], run["job_id"]) == ("cli", "nightly-7")


# selection


def test_a_table_without_pipeline_is_found_where_it_is(shop: Shop) -> None:
    shop.write("items", 1)
    assert shop.run("sync", "-t", "items", "--json").json["pipeline"] == "stock"


@pytest.mark.parametrize("command", [("plan",), ("sync",), ("status",), ("watermark", "get"), ("watermark", "list")])
def test_an_unknown_table_exits_with_2(shop: Shop, command: tuple[str, ...]) -> None:
    said = shop.run(*command, "-t", "nope")
    assert said.code == 2
    assert '"nope"' in said.err


def test_an_unknown_name_lists_what_exists(shop: Shop) -> None:
    said = shop.run("sync", "-t", "order")
    assert "shop: orders, customers\n    stock: items" in said.err
    for command in (
        ("sync",),
        ("plan",),
        ("status",),
        ("runs", "list"),
        ("watermark", "list"),
        ("watermark", "export"),
    ):
        said = shop.run(*command, "-p", "shoop")
        assert said.code == 2
        assert "shop, stock" in said.err


# errors


def test_a_missing_config_exits_with_2(shop: Shop) -> None:
    shop.config.unlink()
    said = shop.run("sync")
    assert said.code == 2
    assert said.err.startswith("error: ")


def test_usage_errors_exit_with_2_and_point_to_help(shop: Shop) -> None:
    said = shop.run("sync", "--limt", "3")
    assert said.code == 2
    assert "--limit" in said.err
    assert "Help: strandline sync --help" in said.err
    assert shop.run("snyc").code == 2


def test_a_bug_is_one_line_and_a_hint_and_the_trace_only_with_debug(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError(f"login {PASSWORD} refused")

    monkeypatch.setattr(shop.source, "horizons", broken)
    said = shop.run("plan", "-p", "shop")
    assert said.code == 1
    assert said.err.startswith("error: ZeroDivisionError: login *** refused\n\n  This is a bug in Strandline")
    assert "Traceback" not in said.err
    debug = shop.run("plan", "-p", "shop", "--debug")
    assert "Traceback" in debug.err
    assert PASSWORD not in debug.err + said.err


def test_debug_logs_events_without_secrets(shop: Shop) -> None:
    shop.write("orders", 1)
    shop.sink.at_commit(before=crash)
    said = shop.run("sync", "--debug")
    assert "strandline.run: Intended(" in said.err
    assert PASSWORD not in said.err


def test_after_debug_the_caller_has_its_own_logging_back(shop: Shop) -> None:
    log = logging.getLogger("strandline")
    before = log.handlers[:], log.level, log.propagate
    assert "strandline." in shop.run("plan", "--debug").err
    assert (log.handlers[:], log.level, log.propagate) == before
    assert "strandline." not in shop.run("plan").err


# retry


def test_retry_carries_out_what_a_run_left(shop: Shop) -> None:
    shop.write("orders", *range(9))
    shop.sink.at_commit(after=lambda: shop.sink.at_commit(before=crash))
    failed = shop.run("sync", "-p", "shop", "--json").json["run_id"]
    shop.config.write_text(shop.config.read_text().replace("parallel: 1", "unfinished: stop"))
    assert f"strandline retry {failed}" in shop.run("sync", "-p", "shop").err
    shown = shop.run("watermark", "get", "-t", "orders")
    assert "1 of 3 slices done" in shown.out
    said = shop.run("retry", failed)
    assert said.code == 0
    assert f"carrying out what run {failed} left: shop.orders (1 of 3 slices done)" in said.err
    assert len(shop.sink.rows("orders")) == 9
    again = shop.run("retry", failed)
    assert again.code == 0
    assert "left nothing unfinished" in again.err


def test_retry_replan_drops_the_plan_and_plans_anew(shop: Shop) -> None:
    shop.write("orders", *range(9))
    shop.sink.at_commit(after=lambda: shop.sink.at_commit(before=crash))
    shop.run("sync", "-p", "shop")
    shop.write("orders", 10)
    assert shop.run("retry", "last", "--replan").code == 2
    said = shop.run("retry", "last", "--replan", "--yes")
    assert said.code == 0
    assert len(shop.sink.rows("orders")) == 10


def test_retry_of_an_unknown_run_names_the_latest(shop: Shop) -> None:
    shop.write("orders", 1)
    known = shop.run("sync", "-p", "shop", "--json").json["run_id"]
    said = shop.run("retry", "20200101")
    assert said.code == 2
    assert known in said.err


# Ctrl-C


def test_the_first_ctrl_c_finishes_the_slice_and_exits_with_130(shop: Shop) -> None:
    shop.write("orders", *range(9))
    shop.sink.at_commit(before=lambda: os.kill(os.getpid(), signal.SIGINT))
    said = shop.run("sync", "-p", "shop")
    assert said.code == 130
    assert "stopped by Ctrl-C" in said.err
    with shop.project() as project:
        position = project.books.positions("shop", "orders")["shop", "orders", "sync"]
    assert position.batch is not None
    assert len(shop.sink.rows("orders")) == 4 * position.batch.number
    assert shop.run("runs", "list", "--json").json["runs"][0]["error"] == "interrupted"
    assert shop.run("sync", "-p", "shop").code == 0
    assert len(shop.sink.rows("orders")) == 9


def test_the_second_ctrl_c_exits_at_once() -> None:
    script = """
import sys, threading
from strandline.cli.interrupt import finishing_slices
with finishing_slices():
    try:
        print("ready", flush=True)
        threading.Event().wait()
    except KeyboardInterrupt:
        print("first", flush=True)
        threading.Event().wait()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=_environment()
    )
    assert process.stdout is not None
    for expected in ("ready\n", "first\n"):
        assert process.stdout.readline() == expected
        process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "Ctrl-C again stops at once" in err


# the function for job runners


def test_run_raises_on_failure_and_returns_otherwise(shop: Shop) -> None:
    arguments = ["-c", str(shop.config)]
    shop.write("orders", 1)
    assert cli.run(["plan", "--detailed-exitcode", *arguments]) == 3
    shop.sink.at_commit(before=crash)
    with pytest.raises(RunFailedError, match=r"shop\.orders: the table is gone"):
        cli.run(["sync", *arguments])
    assert cli.run(["sync", *arguments]) == 0
    with pytest.raises(ConfigError, match="nope"):
        cli.run(["sync", "-p", "nope", *arguments])
    with pytest.raises(ConfigError, match="--limt"):
        cli.run(["sync", "--limt", *arguments])


# a process of its own


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(cli.__file__).parents[2])}


@pytest.mark.parametrize("arguments", [("--help",), ("sync", "--help"), ("watermark", "set", "--help")])
def test_help_is_quick(arguments: tuple[str, ...]) -> None:
    """In seconds of processor time: help waits for nothing, and other work on the machine must not count."""
    command = [sys.executable, "-m", "strandline", *arguments]
    taken = []
    for _ in range(5):
        before = _children_seconds()
        subprocess.run(command, check=True, capture_output=True, env=_environment())
        taken.append(_children_seconds() - before)
    assert min(taken) < 0.3


def _children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_help_loads_nothing_heavy() -> None:
    script = """
import sys
from strandline.cli.app import execute
for words in (["--help"], ["sync", "--help"], ["watermark", "import", "--help"], ["runs", "stats", "--help"]):
    assert execute(words) == 0
heavy = {"rich", "yaml", "pyspark", "sqlite3", "psycopg", "strandline.project", "strandline.config"}
sys.exit(", ".join(heavy & set(sys.modules)) or 0)
"""
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, env=_environment())


def test_a_command_loads_no_other() -> None:
    script = """
import sys
from strandline.cli.app import execute
assert execute(["sync", "--help"]) == 0
others = {"setup", "plan", "backfill", "verify", "status", "watermark", "runs", "stage", "serve", "alerts", "spark"}
sys.exit(", ".join(others & {name.removeprefix("strandline.cli.") for name in sys.modules}) or 0)
"""
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, env=_environment())


def test_a_reader_that_goes_away_is_no_error(shop: Shop) -> None:
    shop.write("orders", 1)
    shop.run("sync")
    command = f"{sys.executable} -m strandline watermark export -c {shop.config} | head -c 1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, env=_environment())
    assert done.stderr == ""
    assert json.loads(done.stdout + "}") == {}


def test_the_reference_is_up_to_date() -> None:
    page = Path(__file__).parents[2] / "docs" / "cli.md"
    assert page.read_text(encoding="utf-8") == document(), "run: python -m strandline.cli.reference > docs/cli.md"


def test_every_command_takes_a_config_and_json() -> None:
    def commands(group: click.Group) -> Iterator[click.Command]:
        for command in group.commands.values():
            if isinstance(command, click.Group):
                yield from commands(command)
            else:
                yield command

    for command in commands(app):
        names = {name for param in command.params for name in param.opts}
        assert {"-c", "--json", "--debug"} <= names or command.name == "demo", command.name
        options = [param for param in command.params if isinstance(param, click.Option)]
        assert command.help and all(option.help or option.hidden for option in options), command.name


@pytest.mark.parametrize(
    ("command", "flags", "stage"),
    [
        (("sync",), ("--extract-only",), "extract"),
        (("sync",), ("--backup-only",), "extract"),
        (("sync",), ("--load-only",), "load"),
        (("sync",), ("--redshift-only",), "load"),
        (("backfill",), ("-t", "orders", "--extract-only"), "extract"),
        (("backfill",), ("-t", "orders", "--load-only"), "load"),
        (("plan",), ("--load-only",), "load"),
        (("watermark", "reset"), ("-t", "orders", "--mysql-only"), "extract"),
        (("watermark", "reset"), ("-t", "orders", "--redshift-only"), "load"),
        (("watermark", "reset"), ("-t", "orders", "--stage", "load:far"), "load:far"),
        (("watermark", "reset"), ("-t", "orders"), None),
    ],
)
def test_flags_name_the_stage_also_as_people_know_them_from_elsewhere(
    command: tuple[str, ...], flags: tuple[str, ...], stage: str | None
) -> None:
    found: click.Command = app
    for name in command:
        assert isinstance(found, click.Group)
        found = found.commands[name]
    with found.make_context(command[-1], list(flags), obj=Invocation()) as context:
        assert context.params.get("stage") == stage


def test_two_stages_at_once_are_refused() -> None:
    with pytest.raises(click.UsageError, match="one stage at a time"):
        app.commands["sync"].make_context("sync", ["--extract-only", "--load-only"], obj=Invocation())


def test_verify_data_is_verify(shop: Shop) -> None:
    shop.write("orders", 1, 2)
    said = shop.run("sync", "-t", "orders", "--verify-data")
    assert said.code == 0, said.err
    assert "1 table: 1 as they should be, 0 not" in said.out


def test_a_watermark_file_of_another_tool_is_shown_then_taken_over(shop: Shop) -> None:
    shop.write("orders", 1, 2, 3)
    mark = str(shop.source.rows("orders")[1]["moved"])
    file = shop.folder / "settlement.orders.json"
    document = {"last_mysql_data_timestamp": mark, "mysql_status": "success", "redshift_status": "failed"}
    file.write_text(json.dumps({"table_name": "settlement.orders", **document}))
    said = shop.run("watermark", "import", str(file))
    assert said.code == 2 and "--yes" in said.err
    assert "is our `>=`" in said.err and "its redshift_status is failed" in said.err and "NOT read again" in said.err
    assert shop.run("watermark", "get", "-t", "orders", "--json").json["stages"][0]["watermark"] is None
    assert shop.run("watermark", "import", str(file), "--yes", "--why", "moving in").code == 0
    assert shop.run("sync", "-t", "orders").code == 0
    assert sorted(row["id"] for row in shop.sink.rows("orders")) == [2, 3]
    said = shop.run("watermark", "import", "--from-control", "sync_control", "-p", "shop")
    assert said.code == 2 and "which is no database" in said.err

"""The service by a clock that stands still: what is due runs, once, and nothing else does."""

from __future__ import annotations

import gc
import json
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from clockwork import Clockwork, told

from strandline import operations
from strandline.core import events
from strandline.core.batch import Applied, Batch
from strandline.core.compare import Differences
from strandline.core.errors import ConfigError, ConnectError, StateError
from strandline.core.position import Holder, Reason, Status, TablePlan
from strandline.core.table import Table
from strandline.core.watermark import Kind, Watermark
from strandline.core.window import Slice, Window
from strandline.project import load
from strandline.result import RunResult
from strandline.service import slots
from strandline.service.agenda import every
from strandline.service.desk import Desk, Job, JobStatus
from strandline.service.log import KEPT, Log, event_fields
from strandline.service.service import Service


@pytest.fixture
def works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Clockwork]:
    works = Clockwork(tmp_path, monkeypatch)
    yield works
    for service in works.services:
        service.close()


def runs(service: Service, pipeline: str = "shop") -> list[str]:
    """When the runs of the history began by the service's log, seconds after the first."""
    found = [entry for entry in service.log.since(0) if entry.fields["event"] == "run_started"]
    mine = [entry.at for entry in found if entry.fields["pipeline"] == pipeline]
    return [f"{(at - mine[0]).total_seconds():g}" for at in mine]


def test_a_service_is_what_its_pages_know_of_it(works: Clockwork) -> None:
    works.write_config(shop="schedule: every 5s")
    desk: Desk = works.service()
    assert desk.config_error == ""


def test_what_is_due_runs_and_an_idle_poll_leaves_no_trace_but_the_position(works: Clockwork) -> None:
    works.write_config(shop="schedule: every 5s")
    service = works.started()
    works.write("shop", 1)
    works.pass_time(service, 12)
    assert works.moved("shop") == 1
    assert [len(told(service, name)) for name in ("run_started", "run_finished", "skipped")] == [1, 1, 0]
    assert len(service.project.books.state.read("run")) == 1
    assert [status.status for status in service.jobs()] == ["done"]
    (position,) = service.project.books.positions("shop").values()
    assert position.watermark and position.watermark.text >= "2026-11-15 08:00:10"
    works.write("shop", 2)
    works.pass_time(service, 5)
    assert works.moved("shop") == 2


def test_a_run_that_takes_too_long_is_followed_by_one_run_and_not_by_all_it_missed(works: Clockwork) -> None:
    works.write_config(shop="schedule: every 5s")
    works.waiting = []
    service = works.started()
    for number in range(3):
        works.write("shop", number)
        works.pass_time(service, 0)
        (job,) = works.waiting
        works.waiting.clear()
        works.sink.at_commit(before=lambda: works.clock.advance(17))
        works.pass_time(service, 4)
        assert works.waiting == [], "it is at work"
        job()
    works.pass_time(service, 0)
    assert len(works.waiting) == 1
    assert [round(float(at)) for at in runs(service)] == [0, 21, 42]


def test_cron_runs_by_the_clock_and_a_slot_that_was_missed_is_made_up_for_once(works: Clockwork) -> None:
    works.write_config(shop='schedule: "0 9 * * * UTC"')
    service = works.started()
    works.write("shop", 1)
    works.pass_time(service, 1800)
    assert works.moved("shop") == 0
    works.pass_time(service, 1801)
    assert works.moved("shop") == 1
    works.clock.advance(3 * 86400)  # nobody was there at nine, three times
    works.write("shop", 2)
    again = works.started()
    works.pass_time(again, 60)
    works.write("shop", 3)
    works.pass_time(again, 3600)
    assert works.moved("shop") == 2
    assert len(runs(again)) == 1


def test_a_restart_goes_on_in_the_rhythm_of_the_service_before(works: Clockwork) -> None:
    works.write_config(shop="schedule: every 1h")
    works.pass_time(works.started(), 60)
    works.write("shop", 1)
    again = works.started()
    works.pass_time(again, 1800)
    assert works.moved("shop") == 0
    works.pass_time(again, 1801)
    assert works.moved("shop") == 1


def test_a_pipeline_runs_after_another_that_ended_well_and_not_after_one_that_failed(works: Clockwork) -> None:
    works.write_config(shop="schedule: every 1m", mart="schedule: after shop", other="schedule: manual")
    service = works.started()
    works.write("shop", 1)
    works.write("mart", 1)
    works.write("other", 1)
    works.pass_time(service, 1)
    assert (works.moved("shop"), works.moved("mart"), works.moved("other")) == (1, 1, 0)
    works.write("shop", 2)
    works.write("mart", 2)

    def refuse() -> None:
        raise StateError("no")

    works.sink.at_commit(before=refuse)
    works.pass_time(service, 60)
    assert (works.moved("shop"), works.moved("mart")) == (1, 1)
    works.pass_time(service, 120)
    assert (works.moved("shop"), works.moved("mart")) == (2, 2)


def test_no_more_pipelines_run_side_by_side_than_may_and_jobs_of_one_wait_for_each_other(works: Clockwork) -> None:
    works.write_config(
        "service: {max_parallel: 2}\n", a="schedule: every 1m", b="schedule: every 1m", c="schedule: manual"
    )
    works.write("a", 1)
    works.waiting = []
    service = works.started()
    works.pass_time(service, 0)
    service.ask(Job("c", trigger="api"))
    verify = service.ask(Job("a", "verify", trigger="api"))
    assert service.ask(Job("a", "verify", trigger="api", who="ann")) == verify, "the same job is not queued twice"
    running = [status.job.pipeline for status in service.jobs() if status.status == "running"]
    assert (len(works.waiting), sorted(running)) == (2, ["a", "b"])
    first, second = works.waiting
    works.waiting.clear()
    second()
    assert [status.job.pipeline for status in service.jobs() if status.status == "running"] == ["c", "a"]
    first()
    assert {status.job.action for status in service.jobs() if status.status == "running"} == {"sync", "verify"}
    while works.waiting:
        works.waiting.pop()()
    assert {(status.status, status.error) for status in service.jobs()} == {("done", "")}


def test_what_does_not_exist_cannot_be_asked_for(works: Clockwork) -> None:
    works.write_config(shop="schedule: manual")
    service = works.started()
    for job in (Job("shop2"), Job("shop", tables=("ordres",)), Job("shop", "dance"), Job("shop", stages=("extract",))):
        with pytest.raises(ConfigError):
            service.ask(job)
    works.write("shop", 1)
    service.ask(Job("shop", tables=("shop_orders",), trigger="api", who="ann"))
    (run,) = service.project.books.state.read("run")
    assert (run.fields["trigger_name"], run.fields["user_name"], works.moved("shop")) == ("api", "ann", 1)


def test_a_suspended_pipeline_does_not_run_across_restarts_until_it_is_resumed(works: Clockwork) -> None:
    works.write_config(shop="schedule: every 5s", mart="schedule: after shop")
    service = works.started()
    works.pass_time(service, 1)
    with load(works.config) as project:
        operations.suspend(project, "shop", why="migration", who="ann")
    works.write("shop", 1)
    works.pass_time(service, 60)
    assert works.moved("shop") == 0
    plan = service.timetable()["shop"]
    assert (plan.next_run, plan.suspended_by, plan.why, plan.schedule) == (None, "ann", "migration", "every 5s")
    again = works.started()
    works.pass_time(again, 60)
    assert works.moved("shop") == 0
    service.ask(Job("shop", trigger="api"))
    assert works.moved("shop") == 1, "whoever asks for it gets it"
    works.write("shop", 2)
    with load(works.config) as project:
        assert operations.resume(project, "shop")
        assert operations.resume(project, "shop") is None
    works.pass_time(again, 5)
    assert works.moved("shop") == 2
    assert again.timetable()["shop"].next_run is not None


def test_an_edit_is_picked_up_and_a_bad_one_is_told_and_not_used(works: Clockwork) -> None:
    works.write_config(shop="schedule: manual")
    service = works.started()
    works.write("shop", 1)
    works.pass_time(service, 10)
    good = works.config.read_text()
    works.config.write_text(good.replace("schedule: manual", "schedule: every 5x"))
    works.pass_time(service, 10)
    assert "strandline.yml:7" in service.config_error and '"5x" is not a duration' in service.config_error
    assert [entry["error"] for entry in told(service, "config_error")] == [service.config_error]
    assert service.timetable()["shop"].schedule == "manual"
    works.write_config(shop="schedule: every 5s", mart="schedule: every 5s")
    works.write("mart", 1)
    works.pass_time(service, 10)
    assert (service.config_error, works.moved("shop"), works.moved("mart")) == ("", 1, 1)
    assert set(service.timetable()) == {"shop", "mart"}
    opened = works.opened
    works.config.write_text(works.config.read_text().replace("  mart:", "  # mart:", 1).split("  # mart:")[0])
    works.pass_time(service, 10)
    assert set(service.timetable()) == {"shop"}
    assert works.opened == opened, "what did not change stays open"


def test_an_included_file_that_comes_or_changes_is_an_edit(works: Clockwork) -> None:
    works.write_config("include: conf.d/*.yml\n", shop="schedule: manual")
    service = works.started()
    works.pass_time(service, 10)
    (works.folder / "conf.d").mkdir()
    added = works.folder / "conf.d" / "mart.yml"
    added.write_text(
        f"pipelines:\n  mart: {{source: postgresql://x@db/m, target: delta:{works.folder}/m, tables: [a]}}\n"
    )
    works.pass_time(service, 10)
    assert set(service.timetable()) == {"shop", "mart"}
    added.unlink()
    works.pass_time(service, 10)
    assert set(service.timetable()) == {"shop"}


def test_a_request_to_read_again_looks_at_once(works: Clockwork, monkeypatch: pytest.MonkeyPatch) -> None:
    works.write_config(shop="schedule: ${WHEN}")
    monkeypatch.setenv("WHEN", "manual")
    service = works.started()
    works.pass_time(service, 10)
    monkeypatch.setenv("WHEN", "every 1h")
    works.pass_time(service, 10)
    assert service.timetable()["shop"].schedule == "manual"
    service.reload()
    works.pass_time(service, 0)
    assert service.timetable()["shop"].schedule == "every 1h"


def test_two_services_share_the_work_and_one_takes_over_when_the_other_is_gone(
    works: Clockwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    works.write_config(shop="schedule: every 10s")
    one, two = works.started(), works.started()
    asked: list[Service] = []
    real = works.source.horizons

    def horizons(tables: list[Table]) -> object:
        asked.append(turn)
        return real(tables)

    monkeypatch.setattr(works.source, "horizons", horizons)
    for number in range(200):
        for turn in (one, two):
            turn.tick()
        works.clock.advance(0.5)
        if number % 40 == 0:
            works.write("shop", number)
    assert (asked.count(one), asked.count(two)) == (10, 0)
    assert works.moved("shop") == 5
    turn = two
    before = len(asked)
    works.pass_time(two, 35)
    assert len(asked) - before in (3, 4)


def test_a_table_that_another_service_is_at_work_on_is_busy_and_no_failure(works: Clockwork) -> None:
    works.write_config(shop="schedule: every 1m")
    works.write("shop", 1)
    with load(works.config) as project:
        project.sync("shop")
        state = project.books.state
        (lease,) = state.read("lease")
        later = (state.now() + timedelta(minutes=1)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        holder = {"holder": "ann@elsewhere pid 1", "expires_at": later}
        state.put([replace(lease, fields={**lease.fields, **holder})])
    works.write("shop", 2)
    works.clock.advance(2 * 86400)  # the run by hand was today
    service = works.started()
    works.pass_time(service, 1)
    assert works.moved("shop") == 1
    assert (service.jobs(), told(service, "job_failed")) == ([], [])
    assert len(service.project.books.state.read("run")) == 1


def test_a_pipeline_that_fails_again_and_again_is_tried_less_and_less_often(
    works: Clockwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    works.write_config(shop="schedule: every 10s")
    service = works.started()
    tries: list[float] = []

    def away(_: object) -> object:
        tries.append(works.clock.now().timestamp())
        raise ConnectError("the source is away")

    with monkeypatch.context() as patched:
        patched.setattr(works.source, "horizons", away)
        works.pass_time(service, 2000)
    gaps = [round(later - earlier) for earlier, later in pairwise(tries)]
    assert gaps == [20, 40, 80, 160, 300, 300, 300, 300, 300]
    assert service.jobs()[0].status == "failed" and "the source is away" in service.jobs()[0].error
    works.write("shop", 1)
    works.pass_time(service, 300)
    assert works.moved("shop") == 1
    works.write("shop", 2)
    works.pass_time(service, 10)
    assert works.moved("shop") == 2, "and then as often as before"


def test_verification_and_maintenance_have_schedules_of_their_own_that_outlast_a_restart(works: Clockwork) -> None:
    works.write_config(shop='schedule: every 1h\n    verify: every 1d\n    maintain: "0 3 * * * UTC"')
    works.write("shop", 1)
    service = works.started()
    works.pass_hours(service, 20)
    done = [(entry["action"], entry["event"]) for entry in told(service, "job_done")]
    assert done == [("maintain", "job_done")]
    assert len(told(service, "maintained")) == 1, "a sync of a service leaves it to the job"
    again = works.started()
    plan = again.timetable()["shop"]
    assert plan.next_verify is not None and plan.next_maintain is not None
    works.pass_hours(again, 5)
    assert [entry["action"] for entry in told(again, "job_done")] == ["verify"]
    assert told(again, "compared")[0]["status"] == "equal"


def test_a_difference_that_a_scheduled_verification_finds_is_a_failed_job_and_repair_mends_it(works: Clockwork) -> None:
    works.write_config(shop="schedule: every 1h\n    verify: every 1d")
    works.write("shop", 1, 2)
    service = works.started()
    works.pass_time(service, 60)
    target = works.sink.backup("shop_orders")
    assert target is not None
    works.sink.restore("shop_orders", replace(target, rows=target.rows[:1]))
    works.pass_hours(service, 24)
    assert "1 of 1 tables are not as they should be" in told(service, "job_failed")[0]["error"]
    works.write_config(shop="schedule: every 1h\n    verify: every 1d repair")
    works.pass_hours(service, 48)
    assert works.moved("shop") == 2


def test_at_the_start_it_says_which_state_it_uses_and_what_it_found_there(works: Clockwork) -> None:
    works.write_config(shop="schedule: manual", mart="schedule: manual")
    text = works.config.read_text()
    works.config.write_text(text.replace("[mart_orders]", '[{name: mart_orders, initial: "2025-01-01"}, "mart_*"]'))
    works.write("shop", 1)
    with load(works.config) as project:
        project.sync("shop")
    service = works.started()
    (began,) = told(service, "service_started")
    assert began["state"] == f"sqlite:///{works.folder}/state.db" and service.project.books.store in began["message"]
    found = {entry["table"]: entry["message"] for entry in told(service, "position_found")}
    assert found["shop_orders"].startswith("found watermark 2026-11-15 08:00:00")
    assert found["mart_orders"] == "no watermark: starts at 2025-01-01"
    assert found["mart_*"] == "no watermark for tables that never ran: starts from the beginning"


def test_a_state_that_is_away_is_told_and_the_service_lives_on(
    works: Clockwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    works.write_config(shop="schedule: every 5s")
    service = works.started()
    works.write("shop", 1)

    def away(*_: object, **__: object) -> list[object]:
        raise StateError("the state is away")

    with monkeypatch.context() as patched:
        patched.setattr(service.project.books.state, "read", away)
        works.pass_time(service, 12)
        assert "the state is away" in told(service, "job_failed")[0]["error"]
    works.pass_time(service, 60)
    assert works.moved("shop") == 1


def test_sync_every_looks_at_its_own_pace_and_not_at_slots_or_suspensions(works: Clockwork) -> None:
    works.write_config(shop="schedule: every 1h", mart="schedule: after shop")
    works.pass_time(works.started(), 1)
    with load(works.config) as project:
        operations.suspend(project, "shop")
    service = works.started(agenda=every({"shop": ("shop_orders",)}, timedelta(seconds=5)))
    for number in range(3):
        works.write("shop", number)
        works.write("mart", number)
        works.pass_time(service, 5)
    assert (works.moved("shop"), works.moved("mart")) == (3, 0)
    assert {run.fields["trigger_name"] for run in service.project.books.state.read("run")} == {"cli"}


def test_whoever_waits_for_events_gets_them_as_they_come_and_not_after_the_end(works: Clockwork) -> None:
    works.write_config(shop="schedule: manual")
    service = works.started()
    last = service.log.since(0)[-1].number
    assert service.log.wait(last, 0.01) == []
    service.log.tell("odd", "with ***", secret="x")
    assert [entry.number for entry in service.log.wait(last, 120)] == [last + 1]
    service.log.close()
    assert service.log.wait(last + 1, 10_000) == []


def test_memory_does_not_grow_over_ten_thousand_polls(works: Clockwork) -> None:
    works.write_config(shop="schedule: every 5s")
    works.keep_state_in_memory()
    service = works.started()

    def poll(times: int) -> int:
        """Blocks of memory that Python holds afterwards."""
        for _ in range(times):
            works.clock.advance(5)
            service.tick()
        gc.collect()
        return sys.getallocatedblocks()

    before = poll(500)
    assert poll(9_500) - before < 1000
    assert works.opened == 1, "connections stay open"
    assert service.project.books.positions("shop")["shop", "shop_orders", "sync"].revision == 10_000


def test_services_that_start_at_the_same_moment_fall_out_of_step(
    works: Clockwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both looked before either had written. The one whose slot was taken looks a moment later from then on."""
    works.write_config(shop="schedule: every 10s")
    works.waiting = []
    one, two = works.started(), works.started()
    polled: list[int] = []
    real = works.source.horizons

    def both() -> int:
        """Polls of the source while both tick every half second for ten."""
        before = len(polled)
        for _ in range(20):
            one.tick()
            two.tick()
            assert works.waiting is not None
            jobs, works.waiting[:] = list(works.waiting), []
            threads = [threading.Thread(target=job) for job in jobs]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            works.clock.advance(0.5)
        return len(polled) - before

    meet = threading.Barrier(2)

    def horizons(tables: list[Table]) -> object:
        polled.append(1)
        if len(polled) <= 2:
            meet.wait(120)
        return real(tables)

    monkeypatch.setattr(works.source, "horizons", horizons)
    assert both() == 2
    assert [both() for _ in range(4)] == [1, 1, 1, 1]
    assert told(one, "job_failed") == told(two, "job_failed") == []


def test_every_event_has_fields_that_json_can_hold() -> None:
    window = Window(Watermark(Kind.INTEGER, "1"), Watermark(Kind.INTEGER, "9"))
    plan = TablePlan("orders", "sync", window, (Slice(window),), Reason.INCREMENTAL, 8)
    batch = Batch("store", 1, 4, window.low, window.high, window.high, "attempt")
    where = ("run", "shop", "orders", "sync")
    told = [
        events.RunStarted("run", "shop", 3),
        events.Planned(*where, plan),
        events.Held(*where, Holder("4711", "app", 60.0)),
        events.Intended(*where, batch, Slice(window), 1, 2),
        events.Committed(*where, batch, Applied(8, 5, 3), 1, 2),
        events.Compared(*where, "different", 8, Differences(missing=1), 0.12345),
        events.TableFinished(*where, Status.FAILED, Applied(), 0, 0.5, "no"),
        events.Warned(*where, "odd"),
    ]
    said = [json.loads(json.dumps(event_fields(event))) for event in told]
    assert [fields["event"] for fields in said[:3]] == ["run_started", "planned", "held"]
    assert said[1].items() >= {"low": "1", "high": "9", "estimated_rows": 8, "reason": "incremental"}.items()
    assert said[2]["held_by"] == "transaction 4711 (app) open for 60 s"
    assert said[4].items() >= {"batch": 4, "rows_inserted": 5, "rows_updated": 3, "number": 1, "of": 2}.items()
    assert (said[5]["missing"], said[5]["seconds"], said[6]["status"]) == (1, 0.123, "FAILED")


def test_a_log_forgets_what_is_old_and_tells_no_secret() -> None:
    log = Log(lambda: datetime.now(UTC), lambda text: text.replace("hunter2", "***"))
    for number in range(KEPT + 10):
        log.tell("odd", f"hunter2 said {number}", error="hunter2")
    entries = log.since(0)
    assert (len(entries), entries[0].number, entries[-1].number) == (KEPT, 11, KEPT + 10)
    assert entries[-1].fields == {"event": "odd", "error": "***", "message": f"*** said {KEPT + 9}"}


def test_a_slot_in_the_future_is_waited_for_once_and_then_taken(works: Clockwork) -> None:
    """A clock was ahead, and has been set right; or it is still ahead, and its service is alive."""
    works.write_config(shop="schedule: every 10s")
    with load(works.config) as project:
        state = project.books.state
        state.put([slots.taken(slots.slot(state, "shop", "sync"), works.clock.now() + timedelta(hours=1), "other")])
    works.write("shop", 1)
    service = works.started()
    works.pass_time(service, 19)
    assert works.moved("shop") == 0
    works.pass_time(service, 6)
    assert works.moved("shop") == 1


def test_whoever_follows_a_run_gets_one_that_begins_after_they_asked(works: Clockwork) -> None:
    works.write_config(shop="schedule: manual")
    works.waiting = []
    service = works.started()
    works.write("shop", 1)
    heard: list[str] = []
    ended: list[tuple[JobStatus, RunResult | None]] = []
    service.ask(Job("shop"))
    service.attend(
        Job("shop", trigger="cli"), lambda event: heard.append(type(event).__name__), lambda *told: ended.append(told)
    )
    assert [job.status for job in service.jobs()] == ["queued", "running"]
    works.waiting.pop()()
    assert (heard, ended, works.moved("shop")) == ([], [], 1)
    works.write("shop", 2)
    works.waiting.pop()()
    ((status, result),) = ended
    assert result is not None
    assert (status.status, result.run_id == status.run_id, works.moved("shop")) == ("done", True, 2)
    assert (heard[0], heard[-1]) == ("RunStarted", "RunFinished")

"""Planning over Delta tables, by their logs alone: what can be read, what cannot, and the way out of it. No Spark."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import write_deltalake

import strandline
from strandline.core.errors import ChangedError, ConfigError, SourceError
from strandline.core.plan import Ask, Planned, make_plan
from strandline.core.position import Position, Reason
from strandline.core.table import Mode
from strandline.core.watermark import Kind, Watermark
from strandline.testing.lake import Lake, edges, horizon, rows_of, versions


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    lake = Lake(tmp_path / "lake")
    lake.create()
    return lake


def planned(lake: Lake, mark: int | None, known: dict[str, str] | None = None, **wanted: Any) -> Planned:
    """What a sync of `orders` would do that has read all below a version, and measured this."""
    options = {"as_of": wanted.pop("as_of")} if "as_of" in wanted else {}
    limit, full, observed = wanted.pop("limit", None), wanted.pop("full", False), wanted.pop("observed", "")
    source = lake.source(**options)
    table = lake.table(source, **wanted)
    watermark = None if mark is None else Watermark(Kind.VERSION, str(mark))
    position = Position("shop", "orders", "sync", watermark=watermark, measures=known or {}, observed=observed)
    (found,) = make_plan(source, [Ask(table, position, table.measures(), full=full)], limit=limit)
    return found


def error_of(found: Planned) -> SourceError | ChangedError:
    assert isinstance(found.error, SourceError | ChangedError), found
    return found.error


def edit(lake: Lake, version: int, change: Any) -> None:
    """Rewrite a commit as another writer would have written it."""
    file = lake.commit_file(version)
    actions = [json.loads(line) for line in file.read_text().splitlines()]
    for action in actions:
        change(action)
    file.write_text("\n".join(json.dumps(action) for action in actions))


def test_versions_are_told_as_the_moments_of_their_commits(lake: Lake) -> None:
    lake.insert(1)
    lake.insert(2)
    source = lake.source()
    table = lake.table(source)
    until = Watermark(Kind.TIMESTAMP, horizon(source, table).observed)
    found = source.extent(table, versions(2, 3))
    assert (str(found.low), str(found.high), found.until) == ("2", "3", until)
    assert found.since is not None and found.since <= until
    assert source.extent(table, versions(None, 3)).since is None
    lake.commit_file(1).unlink()
    assert source.extent(table, versions(2, 3)).since is None, "the log no longer tells"


def test_first_load_increment_nothing_new(lake: Lake) -> None:
    lake.insert(1, 2)
    first = planned(lake, None)
    assert (first.plan.reason, str(first.plan.window), first.plan.estimated_rows) == (
        Reason.FIRST_LOAD,
        "[beginning, 2)",
        2,
    )
    lake.insert(3)
    assert str(planned(lake, 2).plan.window) == "[2, 3)"
    assert planned(lake, 3).plan.reason is Reason.NOTHING_NEW
    lake.compact()
    moved = planned(lake, 3)
    assert (moved.plan.reason, str(moved.resting().watermark)) == (Reason.NOTHING_NEW, "4")


def test_without_the_feed_added_files_are_read_and_anything_else_stops_with_three_ways_out(lake: Lake) -> None:
    lake.turn_feed(on=False)
    lake.insert(1, 2)
    assert edges(planned(lake, 2).plan.slices) == [("2", "3")]
    spoilers: list[Callable[[], None]] = [
        lambda: lake.update(1, "paid"),
        lambda: lake.delete(1),
        lambda: lake.overwrite(7),
    ]
    for spoil in spoilers:
        mark = lake.delta().version() + 1
        spoil()
        error = error_of(planned(lake, mark))
        assert f"version {mark} " in error.message
        assert "delta.enableChangeDataFeed" in error.remedy
        assert "--full" in error.remedy
        assert "mode: snapshot" in error.remedy
        again = planned(lake, mark, mode=Mode.SNAPSHOT)
        assert again.plan.work
    assert planned(lake, lake.delta().version() + 1, mode=Mode.SNAPSHOT).plan.reason is Reason.NOTHING_NEW


def test_no_batch_mixes_the_feed_and_files(lake: Lake) -> None:
    lake.turn_feed(on=False)
    lake.insert(1)
    lake.turn_feed(on=True)
    lake.update(1, "paid")
    assert edges(planned(lake, 0).plan.slices) == [("0", "1"), ("1", "3"), ("3", "5")]


def test_an_update_from_before_the_feed_was_on_is_told(lake: Lake) -> None:
    lake.insert(1)
    lake.turn_feed(on=False)
    lake.update(1, "paid")
    lake.turn_feed(on=True)
    assert "version 3 (UPDATE)" in error_of(planned(lake, 2)).message


def test_where_a_version_has_left_the_log_the_way_out_is_a_full_load(lake: Lake) -> None:
    for number in range(5):
        lake.insert(number)
    lake.forget(below=4)
    error = error_of(planned(lake, 2))
    assert "version 2 is no longer in the log: it begins at 4" in error.message
    assert "strandline sync --full -t orders" in error.remedy
    assert planned(lake, 4).plan.work
    assert planned(lake, None).plan.work


def test_a_start_that_has_left_the_log_stops_who_has_yet_to_read_from_there_and_nobody_else(lake: Lake) -> None:
    for number in range(5):
        lake.insert(number)
    lake.forget(below=4)
    for initial in ("2", "1970-01-01"):
        assert str(planned(lake, 5, initial=initial).plan.window) == "[5, 6)"
        for full in (False, True):
            error = error_of(planned(lake, None, initial=initial, full=full))
            assert "is no longer in the log: it begins at 4" in error.message
            assert "without `initial:`:   strandline sync --full -t orders" in error.remedy


def test_a_snapshot_needs_no_log_of_what_it_reads_whole(lake: Lake) -> None:
    for number in range(5):
        lake.insert(number)
    lake.forget(below=4)
    found = planned(lake, 2, mode=Mode.SNAPSHOT)
    assert (str(found.plan.window), found.plan.estimated_rows) == ("[2, 6)", 5)


def test_a_log_that_begins_with_other_columns_is_told_as_expired(lake: Lake) -> None:
    lake.insert(1)
    lake.turn_feed(on=True)
    lake.insert(2)
    lake.forget(below=2)
    error = error_of(planned(lake, 2))
    assert "version 1 can no longer be put together from the log: it begins at 2" in error.message
    assert "strandline sync --full -t orders" in error.remedy


def test_a_table_that_a_glob_matches_and_nobody_can_read_is_told(lake: Lake, tmp_path: Path) -> None:
    """What is no Delta table at all is not meant by the glob."""
    lake.insert(1)
    lake.create("fees")
    (Path(lake.path("fees")) / "_delta_log" / f"{0:020}.json").write_text("not a commit")
    (tmp_path / "lake" / "notes").mkdir()
    config = tmp_path / "strandline.yml"
    config.write_text(
        f"pipelines: {{shop: {{source: 'delta:{tmp_path}/lake', target: 'delta:{tmp_path}/copy', "
        "defaults: {key: id}, tables: ['*'], exclude: ['other*']}}\n"
    )
    with strandline.load(config) as project:
        found = project.plan("shop")
    assert {plan.table: plan.reason for plan in found.tables} == {"orders": Reason.FIRST_LOAD, "fees": Reason.STOPPED}
    (error,) = found.errors
    assert "fees" in str(error) and "cannot be read" in str(error)


def test_a_damaged_commit_stops_its_own_table_only(lake: Lake) -> None:
    lake.create("fine")
    for table in ("orders", "fine"):
        lake.insert(1, table=table)
    lake.delta().create_checkpoint()  # delta-rs looks no further
    lake.commit_file(1).write_text("{")
    source = lake.source()
    tables = [lake.table(source, name) for name in ("orders", "fine")]
    orders, fine = make_plan(source, [Ask(table, Position("shop", table.name, "sync"), {}) for table in tables])
    assert "what the log says of version 1 cannot be read" in error_of(orders).message
    assert f"{1:020}.json" in error_of(orders).remedy
    assert fine.plan.work


def test_what_delta_rs_does_not_know_is_refused_with_the_way_out(lake: Lake) -> None:
    def from_the_future(action: dict[str, Any]) -> None:
        if "protocol" in action:
            features = {"readerFeatures": ["timeTravel2"], "writerFeatures": ["timeTravel2"]}
            action["protocol"] = {"minReaderVersion": 3, "minWriterVersion": 7, **features}

    edit(lake, 0, from_the_future)
    with pytest.raises(SourceError, match="timeTravel2") as caught:
        lake.table(lake.source())
    assert "pip install --upgrade deltalake" in caught.value.remedy


def test_commits_that_touch_no_row_are_passed_over(lake: Lake) -> None:
    lake.insert(1)
    lake.delta().alter.set_table_properties({"delta.logRetentionDuration": "interval 60 days"})
    lake.compact()
    found = planned(lake, 2)
    assert (found.plan.reason, str(found.resting().watermark)) == (Reason.NOTHING_NEW, str(lake.delta().version() + 1))


def test_hundreds_of_tables_are_planned_side_by_side_within_bounds_and_without_a_jvm(lake: Lake) -> None:
    lake.insert(1, 2)
    for number in range(299):
        shutil.copytree(lake.path(), lake.path(f"t{number}"))
    config = lake.root / "strandline.yml"
    config.write_text(
        f"pipelines: {{lake: {{source: 'delta:{lake.root}', target: 'delta:{lake.root}/copy', tables: ['*'], "
        "defaults: {key: id}}}"
    )
    done = subprocess.run([sys.executable, "-c", _PLAN, str(config)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    tables, peak, spark = json.loads(done.stdout)
    assert (tables, spark) == (300, False)
    assert 8 < peak <= 16


_PLAN = """
import json, sys, threading
import strandline
from strandline.core.position import Reason
from strandline.sources import delta

peak = open_now = 0
lock = threading.Lock()

class Counted(delta.Log):
    def __init__(self, *given):
        global peak, open_now
        with lock:
            open_now += 1
            peak = max(peak, open_now)
        super().__init__(*given)
        with lock:
            open_now -= 1

delta.Log = Counted
with strandline.load(sys.argv[1]) as project:
    found = project.plan("lake").tables
assert all(table.reason is Reason.FIRST_LOAD and table.observed for table in found)
print(json.dumps([len(found), peak, any(name.startswith(("pyspark", "py4j")) for name in sys.modules)]))
"""


def test_a_column_renamed_dropped_or_retyped_within_the_window_stops(lake: Lake) -> None:
    lake.insert(1)
    narrow = rows_of(2).drop_columns(["note"])
    write_deltalake(lake.path(), narrow, mode="overwrite", schema_mode="overwrite")
    assert "column note was dropped in version 2" in error_of(planned(lake, 1)).message
    assert "column note was dropped in version 2" in error_of(planned(lake, 2)).message
    assert planned(lake, 3).error is None
    for change, said in (({"name": "remark"}, "renamed to remark"), ({"type": "long"}, "became bigint")):
        other = Lake(lake.root / said)
        other.create()
        other.insert(1)
        other.turn_feed(on=True)
        other.insert(2)

        def alter(action: dict[str, Any], to: dict[str, str] = change) -> None:
            if "metaData" in action:
                schema = json.loads(action["metaData"]["schemaString"])
                for column in schema["fields"]:
                    if column["name"] == "note":
                        column["metadata"] = {"delta.columnMapping.physicalName": "note"}
                        column |= to
                action["metaData"]["schemaString"] = json.dumps(schema)

        edit(other, 2, alter)
        error = error_of(planned(other, 1))
        assert f"column note {'was ' if 'name' in change else ''}{said}" in error.message
        assert "schema: reload" in error.remedy


def test_a_table_dropped_and_made_anew_is_another_one(lake: Lake) -> None:
    lake.insert(1)
    known = dict(planned(lake, None).measures)
    assert planned(lake, 2, known).error is None
    shutil.rmtree(lake.path())
    lake.create()
    lake.insert(1)
    lake.insert(2)
    error = error_of(planned(lake, 2, known))
    assert isinstance(error, ChangedError)
    assert "table:" in error.message
    assert "--full" in error.remedy


def test_an_older_copy_of_the_table_that_was_brought_back_is_noticed(lake: Lake) -> None:
    lake.insert(1)
    assert "an older state of it was brought back" in error_of(planned(lake, 5)).message


def test_one_moment_gives_a_consistent_set_of_versions(lake: Lake) -> None:
    for number in range(1, 5):
        lake.insert(number)
    for version in range(5):
        lake.stamp(version, 100 * version)
    found = planned(lake, None, as_of="1970-01-01 00:03:20")
    assert (str(found.plan.window), found.plan.observed) == ("[beginning, 3)", "1970-01-01 00:03:20.000")
    assert found.plan.note == "as of 1970-01-01 00:03:20.000"
    assert str(planned(lake, 1, as_of="1970-01-01 00:03:19.999").plan.window) == "[1, 2)"
    assert str(planned(lake, 1, as_of="1970-01-01T09:03:20+09:00").plan.window) == "[1, 3)"
    behind = planned(lake, 4, as_of="1970-01-01 00:01:40")
    assert (behind.plan.reason, behind.error) == (Reason.NOTHING_NEW, None)
    assert str(planned(lake, 4, as_of="2100-01-01").plan.window) == "[4, 5)"
    with pytest.raises(ConfigError, match="as_of"):
        lake.source(as_of="yesterday")


def test_one_moment_cuts_every_table_and_one_that_is_younger_waits(lake: Lake) -> None:
    for table, seconds in (("lines", (50, 150, 250)), ("young", (300, 400)), ("orders", (0, 199, 201))):
        if table != "orders":
            lake.create(table)
        for version, second in enumerate(seconds):
            if version:
                lake.insert(version, table=table)
            lake.stamp(version, second, table)
    source = lake.source(as_of="1970-01-01 00:03:20")
    tables = [lake.table(source, name) for name in ("orders", "lines", "young")]
    found = make_plan(source, [Ask(table, Position("shop", table.name, "sync"), {}) for table in tables])
    assert [(str(part.plan.window), part.plan.observed) for part in found] == [
        ("[beginning, 2)", "1970-01-01 00:03:19.000"),
        ("[beginning, 2)", "1970-01-01 00:02:30.000"),
        ("None", ""),
    ]
    young = found[2]
    assert (young.plan.reason, young.resting().watermark) == (Reason.NOTHING_NEW, None)
    assert "no version is so old" in young.plan.note


def test_a_moment_before_the_log_begins_stops_a_table_that_may_have_been_there(lake: Lake) -> None:
    for number in range(1, 4):
        lake.insert(number)
    for version in range(4):
        lake.stamp(version, 100 * version)
    lake.forget(below=2)
    error = error_of(planned(lake, None, as_of="1970-01-01 00:01:40"))
    assert "which version there was at 1970-01-01 00:01:40.000 is no longer in the log: it begins at 2" in error.message
    assert "Choose a later as_of, from 1970-01-01 00:03:20.000 on" in error.remedy
    error = error_of(planned(lake, None, as_of="1970-01-01 00:04:00"))  # no checkpoint reaches back to version 2
    assert ("can no longer be put together" in error.message, error.remedy) == (True, "Choose a later as_of.")


def test_what_is_kept_is_the_commit_time_of_the_last_version_read(lake: Lake) -> None:
    for number in range(1, 5):
        lake.insert(number)
    for version in range(5):
        lake.stamp(version, 100 * version)
    cut = planned(lake, 1, limit=2)
    assert (str(cut.plan.window), cut.plan.observed) == ("[1, 3)", "1970-01-01 00:03:20.000")
    assert planned(lake, 1).plan.observed == "1970-01-01 00:06:40.000"
    for earlier in ("1970-01-01 00:01:40", "1960-01-01"):
        behind = planned(lake, 4, as_of=earlier, observed="1970-01-01 00:05:00.000")
        assert behind.resting().observed == "1970-01-01 00:05:00.000"
    ahead = planned(lake, None, initial="9")
    assert ahead.plan.note == "the source is behind initial: 9: it can be read up to 5 only"


def test_a_commits_own_time_counts_where_the_table_keeps_it(lake: Lake) -> None:
    lake.insert(1)
    lake.insert(2)

    def own_time(action: dict[str, Any]) -> None:
        if "commitInfo" in action:
            action["commitInfo"]["inCommitTimestamp"] = 86_400_000
        if "metaData" in action:
            action["metaData"]["configuration"]["delta.enableInCommitTimestamps"] = "true"

    edit(lake, 0, own_time)
    edit(lake, 1, own_time)
    edit(lake, 2, lambda action: action.get("commitInfo", {}).update(inCommitTimestamp=172_800_000))
    source = lake.source()
    assert horizon(source, lake.table(source)).observed == "1970-01-03 00:00:00.000"
    assert str(planned(lake, None, as_of="1970-01-02 12:00").plan.window) == "[beginning, 2)"


def test_commits_from_before_they_kept_their_own_time_go_by_their_files(lake: Lake) -> None:
    """Delta says in which version that began; files from before it may have been copied since, in any order."""
    for number in range(1, 4):
        lake.insert(number)
    lake.turn_feed(on=True)
    lake.insert(4)

    def own_time(action: dict[str, Any]) -> None:
        if "metaData" in action:
            kept = {"enableInCommitTimestamps": "true", "inCommitTimestampEnablementVersion": "4"}
            action["metaData"]["configuration"] |= {f"delta.{name}": value for name, value in kept.items()}
        action.get("commitInfo", {}).update(inCommitTimestamp=500_000)

    edit(lake, 4, own_time)
    edit(lake, 5, lambda action: action.get("commitInfo", {}).update(inCommitTimestamp=600_000))
    for version, second in enumerate((100, 300, 200, 900, 900, 900)):
        lake.stamp(version, second)
    expected = {"00:04:00": 1, "00:05:00.001": 3, "00:08:19": 3, "00:08:20": 5, "00:10:00": 6}
    found = {at: str(planned(lake, 0, as_of=f"1970-01-01 {at}").plan.window) for at in expected}
    assert found == {at: f"[0, {high})" for at, high in expected.items()}


@pytest.mark.parametrize(
    ("initial", "window"),
    [
        ("0", "[0, 4)"),
        ("2", "[2, 4)"),
        ("1969-12-31", "[0, 4)"),
        ("1970-01-01 00:01:40", "[1, 4)"),
        ("1970-01-01 00:01:40.001", "[2, 4)"),
        ("latest", "[4, 4)"),
        ("2100-01-01", "[4, 4)"),
        (None, "[beginning, 4)"),
    ],
)
def test_where_a_table_starts(lake: Lake, initial: str | None, window: str) -> None:
    for number in range(1, 4):
        lake.insert(number)
    for version in range(4):
        lake.stamp(version, 100 * version)
    assert str(planned(lake, None, initial=initial).plan.window) == window


def test_a_start_that_is_neither_version_nor_time_is_refused(lake: Lake) -> None:
    with pytest.raises(ConfigError, match="neither a version nor a time"):
        lake.table(lake.source(), initial="soon")


def test_files_times_that_run_backwards_are_taken_as_delta_takes_them(lake: Lake) -> None:
    for number in range(1, 4):
        lake.insert(number)
    for version, second in ((0, 100), (1, 300), (2, 200), (3, 400)):
        lake.stamp(version, second)
    assert str(planned(lake, None, as_of="1970-01-01 00:04:00").plan.window) == "[beginning, 1)"
    assert str(planned(lake, None, as_of="1970-01-01 00:05:00.001").plan.window) == "[beginning, 3)"


def test_versions_are_not_filled_in_again_over_newer_rows(lake: Lake) -> None:
    from strandline.core.backfill import plan_backfill

    lake.insert(1)
    source = lake.source()
    table = lake.table(source)
    position = Position("shop", "orders", "sync", watermark=Watermark(Kind.VERSION, "2"))
    with pytest.raises(SourceError, match="could overwrite a newer row"):
        plan_backfill(source, Ask(table, position, table.measures()), "0", "1")


def test_the_table_that_an_address_is_can_be_named(lake: Lake) -> None:
    lake.insert(1)
    inside = Lake(Path(lake.path()))
    assert str(horizon(inside.source(), inside.table(inside.source())).high) == "2"
    assert versions(None, 2) == planned(lake, None).plan.window
